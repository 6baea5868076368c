"""What admins ask of partitions: DescribeTopicPartitions, ElectLeaders, ListPartitionReassignments,
AlterPartitionReassignments.

Facts of Kafka's own message definitions; the names of fields are ours. See ``schema``.
"""

from __future__ import annotations

import uuid

from magnetar.wire.kafka.cluster_messages import NOT_SAID
from magnetar.wire.kafka.schema import (
    INTS,
    array,
    boolean,
    int8,
    int16,
    int32,
    message,
    optional_part,
    text,
    topic_id,
)


@message()
class DescribeCursor:
    topic: str = text()
    partition: int = int32()


@message()
class DescribeTopicName:
    name: str = text()


@message(flexible=0)
class DescribeTopicPartitionsRequest:
    topics: list[DescribeTopicName] = array(DescribeTopicName)
    partitions_max: int = int32(2000)
    cursor: DescribeCursor | None = optional_part(DescribeCursor)


@message()
class DescribedPartition:
    error_code: int = int16()
    index: int = int32()
    leader_id: int = int32()
    leader_epoch: int = int32(-1)
    replicas: list[int] = array(INTS)
    in_sync: list[int] = array(INTS)
    eligible: list[int] | None = array(INTS, null=0)
    last_eligible: list[int] | None = array(INTS, null=0)
    offline: list[int] = array(INTS)


@message()
class DescribedTopic:
    error_code: int = int16()
    name: str | None = text(null=0)
    topic_id: uuid.UUID = topic_id()
    is_internal: bool = boolean()
    partitions: list[DescribedPartition] = array(DescribedPartition)
    operations: int = int32(NOT_SAID)


@message(flexible=0)
class DescribeTopicPartitionsResponse:
    throttle_time_ms: int = int32()
    topics: list[DescribedTopic] = array(DescribedTopic)
    cursor: DescribeCursor | None = optional_part(DescribeCursor)


@message()
class PartitionsOfTopic:
    name: str = text()
    partitions: list[int] = array(INTS)


@message(flexible=2)
class ElectLeadersRequest:
    kind: int = int8(since=1)
    topics: list[PartitionsOfTopic] | None = array(PartitionsOfTopic, null=0)
    timeout_ms: int = int32(60_000)


@message()
class ElectedPartition:
    index: int = int32()
    error_code: int = int16()
    error_message: str | None = text(None, null=0)


@message()
class ElectedTopic:
    name: str = text()
    partitions: list[ElectedPartition] = array(ElectedPartition)


@message(flexible=2)
class ElectLeadersResponse:
    throttle_time_ms: int = int32()
    error_code: int = int16(since=1)
    topics: list[ElectedTopic] = array(ElectedTopic)


@message(flexible=0)
class ListPartitionReassignmentsRequest:
    timeout_ms: int = int32(60_000)
    topics: list[PartitionsOfTopic] | None = array(PartitionsOfTopic, null=0)


@message()
class ReassignedPartition:
    index: int = int32()
    replicas: list[int] = array(INTS)
    adding: list[int] = array(INTS)
    removing: list[int] = array(INTS)


@message()
class ReassignedTopic:
    name: str = text()
    partitions: list[ReassignedPartition] = array(ReassignedPartition)


@message(flexible=0)
class ListPartitionReassignmentsResponse:
    throttle_time_ms: int = int32()
    error_code: int = int16()
    error_message: str | None = text(None, null=0)
    topics: list[ReassignedTopic] = array(ReassignedTopic)


@message()
class ReassignPartition:
    """``replicas`` None: what is under way ends."""

    index: int = int32()
    replicas: list[int] | None = array(INTS, null=0)


@message()
class ReassignTopic:
    name: str = text()
    partitions: list[ReassignPartition] = array(ReassignPartition)


@message(flexible=0)
class AlterPartitionReassignmentsRequest:
    timeout_ms: int = int32(60_000)
    topics: list[ReassignTopic] = array(ReassignTopic)


@message(flexible=0)
class AlterPartitionReassignmentsResponse:
    """Of each partition an index, an error and a text, as in ElectLeaders."""

    throttle_time_ms: int = int32()
    error_code: int = int16()
    error_message: str | None = text(None, null=0)
    topics: list[ElectedTopic] = array(ElectedTopic)
