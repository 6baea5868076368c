"""Groups whose coordinator says who gets what (KIP-848): ConsumerGroupHeartbeat,
ConsumerGroupDescribe.

Facts of Kafka's own message definitions; the names of fields are ours. See ``schema``.
"""

from __future__ import annotations

import uuid
from typing import Final

from magnetar.wire.kafka.cluster_messages import NOT_SAID
from magnetar.wire.kafka.schema import (
    INTS,
    TEXTS,
    array,
    boolean,
    int8,
    int16,
    int32,
    message,
    optional_part,
    part,
    text,
    topic_id,
)

JOIN_EPOCH: Final = 0
LEAVE_EPOCH: Final = -1
LEAVE_FOR_A_WHILE_EPOCH: Final = -2
"""Of a static member, that comes back within its session."""
CONSUMER_MEMBER: Final = 1
"""``member_type``: not one of the classic protocol (0)."""


@message()
class HeldPartitions:
    """Partitions of a topic by its id."""

    topic_id: uuid.UUID = topic_id()
    partitions: list[int] = array(INTS)


@message(flexible=0)
class ConsumerGroupHeartbeatRequest:
    """What is null, or -1 of the timeout, is as it was in the heartbeat before."""

    group_id: str = text()
    member_id: str = text()
    member_epoch: int = int32()
    instance_id: str | None = text(None, null=0)
    rack_id: str | None = text(None, null=0)
    rebalance_timeout_ms: int = int32(-1)
    names: list[str] | None = array(TEXTS, null=0)
    pattern: str | None = text(None, since=1, null=1)
    assignor: str | None = text(None, null=0)
    owned: list[HeldPartitions] | None = array(HeldPartitions, null=0)


@message()
class HeartbeatAssignment:
    topics: list[HeldPartitions] = array(HeldPartitions)


@message(flexible=0)
class ConsumerGroupHeartbeatResponse:
    throttle_time_ms: int = int32()
    error_code: int = int16()
    error_message: str | None = text(None, null=0)
    member_id: str | None = text(None, null=0)
    member_epoch: int = int32()
    heartbeat_interval_ms: int = int32()
    assignment: HeartbeatAssignment | None = optional_part(HeartbeatAssignment)


@message(flexible=0)
class ConsumerGroupDescribeRequest:
    groups: list[str] = array(TEXTS)
    include_operations: bool = boolean()


@message()
class DescribedPartitions:
    topic_id: uuid.UUID = topic_id()
    name: str = text()
    partitions: list[int] = array(INTS)


@message()
class DescribedAssignment:
    topics: list[DescribedPartitions] = array(DescribedPartitions)


@message()
class DescribedConsumer:
    member_id: str = text()
    instance_id: str | None = text(None, null=0)
    rack_id: str | None = text(None, null=0)
    member_epoch: int = int32()
    client_id: str = text()
    client_host: str = text()
    names: list[str] = array(TEXTS)
    pattern: str | None = text(None, null=0)
    assignment: DescribedAssignment = part(DescribedAssignment)
    target: DescribedAssignment = part(DescribedAssignment)
    member_type: int = int8(-1, since=1)


@message()
class DescribedConsumerGroup:
    error_code: int = int16()
    error_message: str | None = text(None, null=0)
    group_id: str = text()
    state: str = text()
    epoch: int = int32()
    assignment_epoch: int = int32()
    assignor: str = text()
    members: list[DescribedConsumer] = array(DescribedConsumer)
    operations: int = int32(NOT_SAID)


@message(flexible=0)
class ConsumerGroupDescribeResponse:
    throttle_time_ms: int = int32()
    groups: list[DescribedConsumerGroup] = array(DescribedConsumerGroup)
