"""ConsumerGroupHeartbeat and ConsumerGroupDescribe (KIP-848).

Errors of the coordinator's own log or ownership are told as ``NOT_COORDINATOR`` or
``COORDINATOR_NOT_AVAILABLE``, as in ``groups``.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from functools import partial
from typing import Final

from magnetar.cluster.security.permissions import Action
from magnetar.model.errors import MagnetarError
from magnetar.protocols.kafka.consumers.assignors import ASSIGNORS
from magnetar.protocols.kafka.consumers.consumer_group import ConsumerHeartbeat, MemberView
from magnetar.protocols.kafka.consumers.id_partitions import (
    IdPartitions,
    TopicIdPartition,
    by_topic,
)
from magnetar.protocols.kafka.coordination.consumer_groups import ConsumerGroups
from magnetar.protocols.kafka.coordination.coordinator import Coordinator, coordinator_error
from magnetar.protocols.kafka.coordination.live_groups import Reader
from magnetar.protocols.kafka.handlers.heartbeat_bounds import too_much
from magnetar.protocols.kafka.handlers.operations import ON_GROUP
from magnetar.protocols.kafka.session import KafkaSession
from magnetar.wire.kafka.apis import RequestHead
from magnetar.wire.kafka.consumer_group_messages import (
    CONSUMER_MEMBER,
    JOIN_EPOCH,
    LEAVE_FOR_A_WHILE_EPOCH,
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    DescribedAssignment,
    DescribedConsumer,
    DescribedConsumerGroup,
    DescribedPartitions,
    HeartbeatAssignment,
    HeldPartitions,
)
from magnetar.wire.kafka.errors import ErrorCode

OWN_IDS_SINCE: Final = 1
"""The version from which on clients make the ids of their members."""


class ConsumerGroupHandlers:
    """One for all sessions of a broker."""

    def __init__(self, coordinator: Coordinator, consumers: ConsumerGroups) -> None:
        self.coordinator = coordinator
        self.consumers = consumers

    async def heartbeat(
        self, session: KafkaSession, head: RequestHead, request: ConsumerGroupHeartbeatRequest
    ) -> ConsumerGroupHeartbeatResponse:
        wrong = _wrong(head, request)
        if wrong:
            return _refused(ErrorCode.INVALID_REQUEST, wrong)
        if request.assignor and request.assignor not in ASSIGNORS:
            return _refused(
                ErrorCode.UNSUPPORTED_ASSIGNOR,
                f"there is no assignor {request.assignor[:100]}: take {' or '.join(ASSIGNORS)}",
            )
        reader = None
        if session.gate is not None:
            grants = session.grants
            reader = Reader(grants.principal, partial(grants.topic, Action.CONSUME))
        try:
            answer = await self.consumers.heartbeat(
                request.group_id, _said(session, head, request), reader
            )
        except MagnetarError as error:
            return _refused(coordinator_error(error), str(error))
        if answer.error is not ErrorCode.NONE:
            return _refused(answer.error, answer.why)
        said = ConsumerGroupHeartbeatResponse(
            member_id=answer.member_id,
            member_epoch=answer.epoch,
            heartbeat_interval_ms=answer.heartbeat_ms,
        )
        if answer.assigned is not None:
            topics = [HeldPartitions(*each) for each in by_topic(answer.assigned).items()]
            said.assignment = HeartbeatAssignment(topics)
        return said

    # -- what admins ask ----------------------------------------------------------------------

    async def describe(
        self, session: KafkaSession, head: RequestHead, request: ConsumerGroupDescribeRequest
    ) -> ConsumerGroupDescribeResponse:
        groups, turns = [], session.turns()
        for group_id in dict.fromkeys(request.groups):
            await turns.next()
            groups.append(await self._describe(session, group_id))
        for said in groups:
            if request.include_operations and not said.error_code:
                said.operations = ON_GROUP
        return ConsumerGroupDescribeResponse(groups=groups)

    async def _describe(self, session: KafkaSession, group_id: str) -> DescribedConsumerGroup:
        said = DescribedConsumerGroup(group_id=group_id)
        if not group_id:
            said.error_code = ErrorCode.INVALID_GROUP_ID
            return said
        try:
            live = (await self.coordinator.shard(group_id)).consumer(group_id)
            if live is None:
                said.error_code = ErrorCode.GROUP_ID_NOT_FOUND
                said.error_message = f"there is no consumer group {group_id}"
                return said
            group = live.group
            said.state, said.assignor = group.phase, group.assignor
            said.epoch, said.assignment_epoch = group.epoch, group.assignment_epoch
            members = group.described()
            ids = {each.topic_id for view in members for each in view.target | view.record.assigned}
            names = await session.services.topic_ids.names(sorted(ids))
        except MagnetarError as error:
            said.error_code, said.error_message = coordinator_error(error), str(error)
            return said
        said.members = [_described(view, names) for view in members]
        return said


def _wrong(head: RequestHead, request: ConsumerGroupHeartbeatRequest) -> str:
    """What cannot be asked for; empty: nothing."""
    epoch, names = request.member_epoch, request.names
    if not request.group_id.strip():
        return "GroupId is empty"
    for what, value in (("InstanceId", request.instance_id), ("RackId", request.rack_id)):
        if value is not None and not value.strip():
            return f"{what} is empty: leave it out"
    texts = (request.group_id, request.member_id, request.instance_id, request.rack_id)
    if large := too_much((*texts, head.client_id), names):
        return large
    if epoch < LEAVE_FOR_A_WHILE_EPOCH:
        return f"MemberEpoch is {epoch}: it is -2 at least"
    if not request.member_id and (epoch != JOIN_EPOCH or head.version >= OWN_IDS_SINCE):
        return "MemberId is empty"
    if epoch == LEAVE_FOR_A_WHILE_EPOCH and request.instance_id is None:
        return "InstanceId is missing: only static members leave for a while"
    return _wrong_to_join(request) if epoch == JOIN_EPOCH else ""


def _wrong_to_join(request: ConsumerGroupHeartbeatRequest) -> str:
    if request.rebalance_timeout_ms == -1:
        return "RebalanceTimeoutMs is missing: a member says it when it joins"
    if request.owned is None or request.owned:
        return "TopicPartitions must be empty: a member that joins has none"
    if request.names is None and request.pattern is None:
        # An empty list is one: of a client that has not found yet what its own expression matches.
        return "SubscribedTopicNames and SubscribedTopicRegex are missing: a member says one"
    return ""


def _said(
    session: KafkaSession, head: RequestHead, request: ConsumerGroupHeartbeatRequest
) -> ConsumerHeartbeat:
    owned: IdPartitions | None = None
    if request.owned is not None:
        owned = frozenset(
            TopicIdPartition(topic.topic_id, index)
            for topic in request.owned
            for index in topic.partitions
        )
    return ConsumerHeartbeat(
        request.member_id,
        str(uuid.uuid4()),
        request.member_epoch,
        request.instance_id,
        request.rack_id,
        request.rebalance_timeout_ms,
        None if request.names is None else tuple(request.names),
        request.pattern,
        request.assignor,
        owned,
        head.client_id,
        f"/{session.peer.rpartition(':')[0]}",
    )


def _refused(error: ErrorCode, why: str) -> ConsumerGroupHeartbeatResponse:
    return ConsumerGroupHeartbeatResponse(error_code=error, error_message=why)


def _described(view: MemberView, names: Mapping[uuid.UUID, str]) -> DescribedConsumer:
    record = view.record
    return DescribedConsumer(
        view.member_id,
        record.instance_id or None,
        record.rack_id or None,
        record.epoch,
        record.client_id,
        record.client_host,
        list(record.names),
        record.pattern or None,
        _partitions(record.assigned, names),
        _partitions(view.target, names),
        CONSUMER_MEMBER,
    )


def _partitions(held: IdPartitions, names: Mapping[uuid.UUID, str]) -> DescribedAssignment:
    """Topics that are gone have no name, and are left out."""
    return DescribedAssignment(
        [
            DescribedPartitions(topic_id, names[topic_id], indexes)
            for topic_id, indexes in by_topic(held).items()
            if topic_id in names
        ]
    )
