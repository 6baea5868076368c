"""Offsets of groups: OffsetCommit, OffsetFetch, OffsetDelete.

Facts of Kafka's own message definitions; the names of fields are ours. See ``schema``.
"""

from __future__ import annotations

from magnetar.wire.kafka.schema import (
    array,
    boolean,
    int16,
    int32,
    int64,
    message,
    text,
)
from magnetar.wire.kafka.topic_shapes import TopicPartitions, TopicResults


@message()
class CommitPartition:
    index: int = int32()
    offset: int = int64()
    leader_epoch: int = int32(-1, since=6)
    commit_time_ms: int = int64(-1, since=1, until=1)
    metadata: str | None = text("", null=0)


@message()
class CommitTopic:
    name: str = text()
    partitions: list[CommitPartition] = array(CommitPartition)


@message(flexible=8)
class OffsetCommitRequest:
    group_id: str = text()
    generation: int = int32(-1, since=1)
    member_id: str = text(since=1)
    instance_id: str | None = text(None, since=7, null=7)
    retention_ms: int = int64(-1, since=2, until=4)
    topics: list[CommitTopic] = array(CommitTopic)


@message(flexible=8)
class OffsetCommitResponse:
    throttle_time_ms: int = int32(since=3)
    topics: list[TopicResults] = array(TopicResults)


@message()
class OffsetsGroup:
    group_id: str = text()
    member_id: str | None = text(None, since=9, null=9)
    member_epoch: int = int32(-1, since=9)
    topics: list[TopicPartitions] | None = array(TopicPartitions, null=0)


@message(flexible=6)
class OffsetFetchRequest:
    group_id: str = text(until=7)
    topics: list[TopicPartitions] | None = array(TopicPartitions, until=7, null=2)
    groups: list[OffsetsGroup] = array(OffsetsGroup, since=8)
    require_stable: bool = boolean(since=7)


@message()
class FoundOffset:
    index: int = int32()
    offset: int = int64(-1)
    leader_epoch: int = int32(-1, since=5)
    metadata: str | None = text("", null=0)
    error_code: int = int16()


@message()
class FoundOffsetsTopic:
    name: str = text()
    partitions: list[FoundOffset] = array(FoundOffset)


@message()
class FoundOffsetsGroup:
    group_id: str = text()
    topics: list[FoundOffsetsTopic] = array(FoundOffsetsTopic)
    error_code: int = int16()


@message(flexible=6)
class OffsetFetchResponse:
    throttle_time_ms: int = int32(since=3)
    topics: list[FoundOffsetsTopic] = array(FoundOffsetsTopic, until=7)
    error_code: int = int16(since=2, until=7)
    groups: list[FoundOffsetsGroup] = array(FoundOffsetsGroup, since=8)


@message()
class OffsetDeleteRequestPartition:
    index: int = int32()


@message()
class OffsetDeleteTopic:
    name: str = text()
    partitions: list[OffsetDeleteRequestPartition] = array(OffsetDeleteRequestPartition)


@message()
class OffsetDeleteRequest:
    group_id: str = text()
    topics: list[OffsetDeleteTopic] = array(OffsetDeleteTopic)


@message()
class OffsetDeleteResponse:
    error_code: int = int16()
    throttle_time_ms: int = int32()
    topics: list[TopicResults] = array(TopicResults)
