"""DeleteRecords: a partition begins later from now on.

Facts of Kafka's own message definitions; the names of fields are ours. See ``schema``.
"""

from __future__ import annotations

from magnetar.wire.kafka.schema import array, int16, int32, int64, message, text


@message()
class DeleteBefore:
    """``offset`` -1: of everything that is committed."""

    index: int = int32()
    offset: int = int64()


@message()
class DeleteOfTopic:
    name: str = text()
    partitions: list[DeleteBefore] = array(DeleteBefore)


@message(flexible=2)
class DeleteRecordsRequest:
    topics: list[DeleteOfTopic] = array(DeleteOfTopic)
    timeout_ms: int = int32()


@message()
class BegunPartition:
    index: int = int32()
    low_watermark: int = int64(-1)
    error_code: int = int16()


@message()
class BegunTopic:
    name: str = text()
    partitions: list[BegunPartition] = array(BegunPartition)


@message(flexible=2)
class DeleteRecordsResponse:
    throttle_time_ms: int = int32()
    topics: list[BegunTopic] = array(BegunTopic)
