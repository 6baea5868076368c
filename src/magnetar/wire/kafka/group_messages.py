"""Groups: JoinGroup, SyncGroup, Heartbeat, LeaveGroup, and what admins ask of groups.

Facts of Kafka's own message definitions; the names of fields are ours. See ``schema``.
"""

from __future__ import annotations

from magnetar.wire.kafka.cluster_messages import NOT_SAID
from magnetar.wire.kafka.schema import (
    TEXTS,
    array,
    blob,
    boolean,
    int16,
    int32,
    message,
    text,
)


@message()
class JoinProtocol:
    name: str = text()
    metadata: bytes = blob()


@message(flexible=6)
class JoinGroupRequest:
    group_id: str = text()
    session_timeout_ms: int = int32()
    rebalance_timeout_ms: int = int32(-1, since=1)
    member_id: str = text()
    instance_id: str | None = text(None, since=5, null=5)
    protocol_type: str = text()
    protocols: list[JoinProtocol] = array(JoinProtocol)
    reason: str | None = text(None, since=8, null=8)


@message()
class JoinedMember:
    member_id: str = text()
    instance_id: str | None = text(None, since=5, null=5)
    metadata: bytes = blob()


@message(flexible=6)
class JoinGroupResponse:
    throttle_time_ms: int = int32(since=2)
    error_code: int = int16()
    generation: int = int32(-1)
    protocol_type: str | None = text(None, since=7, null=7)
    protocol_name: str | None = text("", null=7)
    leader: str = text()
    skip_assignment: bool = boolean(since=9)
    member_id: str = text()
    members: list[JoinedMember] = array(JoinedMember)


@message()
class MemberAssignment:
    member_id: str = text()
    assignment: bytes = blob()


@message(flexible=4)
class SyncGroupRequest:
    group_id: str = text()
    generation: int = int32()
    member_id: str = text()
    instance_id: str | None = text(None, since=3, null=3)
    protocol_type: str | None = text(None, since=5, null=5)
    protocol_name: str | None = text(None, since=5, null=5)
    assignments: list[MemberAssignment] = array(MemberAssignment)


@message(flexible=4)
class SyncGroupResponse:
    throttle_time_ms: int = int32(since=1)
    error_code: int = int16()
    protocol_type: str | None = text(None, since=5, null=5)
    protocol_name: str | None = text(None, since=5, null=5)
    assignment: bytes = blob()


@message(flexible=4)
class HeartbeatRequest:
    group_id: str = text()
    generation: int = int32()
    member_id: str = text()
    instance_id: str | None = text(None, since=3, null=3)


@message(flexible=4)
class HeartbeatResponse:
    throttle_time_ms: int = int32(since=1)
    error_code: int = int16()


@message()
class LeavingMember:
    member_id: str = text()
    instance_id: str | None = text(None, null=0)
    reason: str | None = text(None, since=5, null=5)


@message(flexible=4)
class LeaveGroupRequest:
    group_id: str = text()
    member_id: str = text(until=2)
    members: list[LeavingMember] = array(LeavingMember, since=3)


@message()
class LeftMember:
    member_id: str = text()
    instance_id: str | None = text(None, null=0)
    error_code: int = int16()


@message(flexible=4)
class LeaveGroupResponse:
    throttle_time_ms: int = int32(since=1)
    error_code: int = int16()
    members: list[LeftMember] = array(LeftMember, since=3)


@message(flexible=3)
class ListGroupsRequest:
    states: list[str] = array(TEXTS, since=4)
    types: list[str] = array(TEXTS, since=5)


@message()
class ListedGroup:
    group_id: str = text()
    protocol_type: str = text()
    state: str = text(since=4)
    group_type: str = text(since=5)


@message(flexible=3)
class ListGroupsResponse:
    throttle_time_ms: int = int32(since=1)
    error_code: int = int16()
    groups: list[ListedGroup] = array(ListedGroup)


@message(flexible=5)
class DescribeGroupsRequest:
    groups: list[str] = array(TEXTS)
    include_operations: bool = boolean(since=3)


@message()
class DescribedMember:
    member_id: str = text()
    instance_id: str | None = text(None, since=4, null=4)
    client_id: str = text()
    client_host: str = text()
    metadata: bytes = blob()
    assignment: bytes = blob()


@message()
class DescribedGroup:
    error_code: int = int16()
    group_id: str = text()
    state: str = text()
    protocol_type: str = text()
    protocol: str = text()
    members: list[DescribedMember] = array(DescribedMember)
    operations: int = int32(NOT_SAID, since=3)


@message(flexible=5)
class DescribeGroupsResponse:
    throttle_time_ms: int = int32(since=1)
    groups: list[DescribedGroup] = array(DescribedGroup)


@message(flexible=2)
class DeleteGroupsRequest:
    groups: list[str] = array(TEXTS)


@message()
class DeletedGroup:
    group_id: str = text()
    error_code: int = int16()


@message(flexible=2)
class DeleteGroupsResponse:
    throttle_time_ms: int = int32()
    results: list[DeletedGroup] = array(DeletedGroup)
