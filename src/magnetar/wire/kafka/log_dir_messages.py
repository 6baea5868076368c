"""Where replicas lie, and how much they take: DescribeLogDirs, AlterReplicaLogDirs.

Facts of Kafka's own message definitions; the names of fields are ours. See ``schema``.
"""

from __future__ import annotations

from magnetar.wire.kafka.partition_messages import PartitionsOfTopic
from magnetar.wire.kafka.schema import array, boolean, int16, int32, int64, message, text

NOT_KNOWN = -1
"""In the place of a size."""


@message(flexible=2)
class DescribeLogDirsRequest:
    """``topics`` None: all."""

    topics: list[PartitionsOfTopic] | None = array(PartitionsOfTopic, null=0)


@message()
class StoredPartition:
    """``byte_count``: of one copy. ``lag``: offsets up to the high watermark that it lacks.
    ``is_future``: it is to be the replica, and is being filled."""

    index: int = int32()
    byte_count: int = int64()
    lag: int = int64()
    is_future: bool = boolean()


@message()
class StoredTopic:
    name: str = text()
    partitions: list[StoredPartition] = array(StoredPartition)


@message()
class LogDir:
    error_code: int = int16()
    path: str = text()
    topics: list[StoredTopic] = array(StoredTopic)
    total_bytes: int = int64(NOT_KNOWN, since=4)
    usable_bytes: int = int64(NOT_KNOWN, since=4)


@message(flexible=2)
class DescribeLogDirsResponse:
    throttle_time_ms: int = int32()
    error_code: int = int16(since=3)
    results: list[LogDir] = array(LogDir)


@message()
class MovesToDir:
    path: str = text()
    topics: list[PartitionsOfTopic] = array(PartitionsOfTopic)


@message(flexible=2)
class AlterReplicaLogDirsRequest:
    dirs: list[MovesToDir] = array(MovesToDir)


@message()
class MovedPartition:
    index: int = int32()
    error_code: int = int16()


@message()
class MovedTopic:
    name: str = text()
    partitions: list[MovedPartition] = array(MovedPartition)


@message(flexible=2)
class AlterReplicaLogDirsResponse:
    throttle_time_ms: int = int32()
    results: list[MovedTopic] = array(MovedTopic)
