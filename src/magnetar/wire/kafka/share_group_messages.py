"""Share groups (KIP-932), as their members and admins speak with the coordinator:
ShareGroupHeartbeat, ShareGroupDescribe, and the offsets where partitions start for a group.

Facts of Kafka's own message definitions; the names of fields are ours. See ``schema``. Version 0 of
the first two was Kafka 4.0's preview, and is not spoken any more.
"""

from __future__ import annotations

import uuid

from magnetar.wire.kafka.cluster_messages import NOT_SAID
from magnetar.wire.kafka.consumer_group_messages import DescribedAssignment, HeartbeatAssignment
from magnetar.wire.kafka.schema import (
    INTS,
    TEXTS,
    array,
    boolean,
    int16,
    int32,
    int64,
    message,
    optional_part,
    part,
    text,
    topic_id,
)


@message(flexible=0)
class ShareGroupHeartbeatRequest:
    """What is null is as it was in the heartbeat before."""

    group_id: str = text()
    member_id: str = text()
    member_epoch: int = int32()
    rack_id: str | None = text(None, null=0)
    names: list[str] | None = array(TEXTS, null=0)


@message(flexible=0)
class ShareGroupHeartbeatResponse:
    throttle_time_ms: int = int32()
    error_code: int = int16()
    error_message: str | None = text(None, null=0)
    member_id: str | None = text(None, null=0)
    member_epoch: int = int32()
    heartbeat_interval_ms: int = int32()
    assignment: HeartbeatAssignment | None = optional_part(HeartbeatAssignment)


@message(flexible=0)
class ShareGroupDescribeRequest:
    groups: list[str] = array(TEXTS)
    include_operations: bool = boolean()


@message()
class DescribedShareMember:
    member_id: str = text()
    rack_id: str | None = text(None, null=0)
    member_epoch: int = int32()
    client_id: str = text()
    client_host: str = text()
    names: list[str] = array(TEXTS)
    assignment: DescribedAssignment = part(DescribedAssignment)


@message()
class DescribedShareGroup:
    error_code: int = int16()
    error_message: str | None = text(None, null=0)
    group_id: str = text()
    state: str = text()
    epoch: int = int32()
    assignment_epoch: int = int32()
    assignor: str = text()
    members: list[DescribedShareMember] = array(DescribedShareMember)
    operations: int = int32(NOT_SAID)


@message(flexible=0)
class ShareGroupDescribeResponse:
    throttle_time_ms: int = int32()
    groups: list[DescribedShareGroup] = array(DescribedShareGroup)


# -- where partitions start -----------------------------------------------------------------------


@message()
class AskedShareTopic:
    name: str = text()
    partitions: list[int] = array(INTS)


@message()
class AskedShareGroup:
    """``topics`` null: all."""

    group_id: str = text()
    topics: list[AskedShareTopic] | None = array(AskedShareTopic, null=0)


@message(flexible=0)
class DescribeShareGroupOffsetsRequest:
    groups: list[AskedShareGroup] = array(AskedShareGroup)


@message()
class ShareStart:
    index: int = int32()
    start_offset: int = int64(-1)
    leader_epoch: int = int32()
    error_code: int = int16()
    error_message: str | None = text(None, null=0)


@message()
class ShareStartTopic:
    name: str = text()
    topic_id: uuid.UUID = topic_id()
    partitions: list[ShareStart] = array(ShareStart)


@message()
class ShareStartGroup:
    group_id: str = text()
    topics: list[ShareStartTopic] = array(ShareStartTopic)
    error_code: int = int16()
    error_message: str | None = text(None, null=0)


@message(flexible=0)
class DescribeShareGroupOffsetsResponse:
    throttle_time_ms: int = int32()
    groups: list[ShareStartGroup] = array(ShareStartGroup)


@message()
class NewShareStart:
    index: int = int32()
    start_offset: int = int64()


@message()
class NewShareStartTopic:
    name: str = text()
    partitions: list[NewShareStart] = array(NewShareStart)


@message(flexible=0)
class AlterShareGroupOffsetsRequest:
    group_id: str = text()
    topics: list[NewShareStartTopic] = array(NewShareStartTopic)


@message()
class AlteredShareStart:
    index: int = int32()
    error_code: int = int16()
    error_message: str | None = text(None, null=0)


@message()
class AlteredShareTopic:
    name: str = text()
    topic_id: uuid.UUID = topic_id()
    partitions: list[AlteredShareStart] = array(AlteredShareStart)


@message(flexible=0)
class AlterShareGroupOffsetsResponse:
    throttle_time_ms: int = int32()
    error_code: int = int16()
    error_message: str | None = text(None, null=0)
    topics: list[AlteredShareTopic] = array(AlteredShareTopic)


@message()
class ForgottenShareTopic:
    name: str = text()


@message(flexible=0)
class DeleteShareGroupOffsetsRequest:
    group_id: str = text()
    topics: list[ForgottenShareTopic] = array(ForgottenShareTopic)


@message()
class DeletedShareTopic:
    name: str = text()
    topic_id: uuid.UUID = topic_id()
    error_code: int = int16()
    error_message: str | None = text(None, null=0)


@message(flexible=0)
class DeleteShareGroupOffsetsResponse:
    throttle_time_ms: int = int32()
    error_code: int = int16()
    error_message: str | None = text(None, null=0)
    topics: list[DeletedShareTopic] = array(DeletedShareTopic)
