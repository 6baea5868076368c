"""ShareGroupHeartbeat, ShareGroupDescribe, and the starts of partitions that admins see and set
(KIP-932).

Errors of the coordinator's own log or ownership are told as ``NOT_COORDINATOR`` or
``COORDINATOR_NOT_AVAILABLE``, as in ``groups``.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Final

from magnetar.model.errors import MagnetarError
from magnetar.protocols.kafka.consumers.id_partitions import TopicIdPartition, by_topic
from magnetar.protocols.kafka.coordination.coordinator import Coordinator, coordinator_error
from magnetar.protocols.kafka.coordination.share_groups import ShareGroups
from magnetar.protocols.kafka.coordination.share_states import KeptState, ShareStates
from magnetar.protocols.kafka.coordination.topic_shapes import topic_shapes
from magnetar.protocols.kafka.handlers.each_once import groups_once
from magnetar.protocols.kafka.handlers.heartbeat_bounds import too_much
from magnetar.protocols.kafka.handlers.operations import ON_GROUP
from magnetar.protocols.kafka.session import KafkaSession
from magnetar.protocols.kafka.shares.share_group import ShareHeartbeat, ShareMember
from magnetar.protocols.kafka.shares.share_records import ShareStateKey
from magnetar.protocols.kafka.shares.simple_assignor import SIMPLE
from magnetar.wire.kafka.apis import RequestHead
from magnetar.wire.kafka.consumer_group_messages import (
    JOIN_EPOCH,
    LEAVE_EPOCH,
    DescribedAssignment,
    DescribedPartitions,
    HeartbeatAssignment,
    HeldPartitions,
)
from magnetar.wire.kafka.errors import ErrorCode
from magnetar.wire.kafka.share_group_messages import (
    AlteredShareStart,
    AlteredShareTopic,
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsResponse,
    AskedShareGroup,
    DeletedShareTopic,
    DeleteShareGroupOffsetsRequest,
    DeleteShareGroupOffsetsResponse,
    DescribedShareGroup,
    DescribedShareMember,
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsResponse,
    ShareGroupDescribeRequest,
    ShareGroupDescribeResponse,
    ShareGroupHeartbeatRequest,
    ShareGroupHeartbeatResponse,
    ShareStart,
    ShareStartGroup,
    ShareStartTopic,
)

UNKNOWN: Final = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
NO_START: Final = -1
"""Of a partition that nobody of the group has read."""


class ShareGroupHandlers:
    """One for all sessions of a broker."""

    def __init__(self, coordinator: Coordinator, groups: ShareGroups, states: ShareStates) -> None:
        self._coordinator = coordinator
        self._groups = groups
        self._states = states

    async def heartbeat(
        self, session: KafkaSession, head: RequestHead, request: ShareGroupHeartbeatRequest
    ) -> ShareGroupHeartbeatResponse:
        wrong = _wrong(head, request)
        if wrong:
            return _refused(ErrorCode.INVALID_REQUEST, wrong)
        said = ShareHeartbeat(
            request.member_id,
            request.member_epoch,
            request.rack_id,
            None if request.names is None else tuple(request.names),
            head.client_id,
            f"/{session.peer.rpartition(':')[0]}",
        )
        try:
            answer = await self._groups.heartbeat(request.group_id, said)
        except MagnetarError as error:
            return _refused(coordinator_error(error), str(error))
        if answer.error is not ErrorCode.NONE:
            return _refused(answer.error, answer.why)
        told = ShareGroupHeartbeatResponse(
            member_id=request.member_id,
            member_epoch=answer.epoch,
            heartbeat_interval_ms=answer.heartbeat_ms,
        )
        if answer.assigned is not None:
            topics = [HeldPartitions(*each) for each in by_topic(answer.assigned).items()]
            told.assignment = HeartbeatAssignment(topics)
        return told

    # -- what admins ask ----------------------------------------------------------------------

    async def describe(
        self, session: KafkaSession, head: RequestHead, request: ShareGroupDescribeRequest
    ) -> ShareGroupDescribeResponse:
        answer, turns = ShareGroupDescribeResponse(), session.turns()
        for group_id in dict.fromkeys(request.groups):
            await turns.next()
            said = await self._describe(session, group_id)
            if request.include_operations and not said.error_code:
                said.operations = ON_GROUP
            answer.groups.append(said)
        return answer

    async def _describe(self, session: KafkaSession, group_id: str) -> DescribedShareGroup:
        said = DescribedShareGroup(group_id=group_id)
        if not group_id:
            said.error_code = ErrorCode.INVALID_GROUP_ID
            return said
        try:
            live = (await self._coordinator.shard(group_id)).shares.get(group_id)
            if live is None:
                said.error_code = ErrorCode.GROUP_ID_NOT_FOUND
                said.error_message = f"there is no share group {group_id}"
                return said
            group = live.group
            said.state, said.assignor = group.phase, SIMPLE
            said.epoch = said.assignment_epoch = group.epoch
            members = list(group.members.values())
            ids = {place.topic_id for member in members for place in member.assigned}
            names = await session.services.topic_ids.names(sorted(ids))
        except MagnetarError as error:
            said.error_code, said.error_message = coordinator_error(error), str(error)
            return said
        said.members = [_described(member, names) for member in members]
        return said

    # -- where partitions start ---------------------------------------------------------------

    async def describe_starts(
        self, session: KafkaSession, head: RequestHead, request: DescribeShareGroupOffsetsRequest
    ) -> DescribeShareGroupOffsetsResponse:
        groups = [await self._starts(session, asked) for asked in groups_once(request.groups)]
        return DescribeShareGroupOffsetsResponse(groups=groups)

    async def _starts(self, session: KafkaSession, asked: AskedShareGroup) -> ShareStartGroup:
        said, services = ShareStartGroup(asked.group_id), session.services
        try:
            shard = await self._coordinator.shard(asked.group_id)
            if asked.group_id not in shard.shares:
                said.error_code = ErrorCode.GROUP_ID_NOT_FOUND
                said.error_message = f"there is no share group {asked.group_id}"
                return said
            states = shard.log.state.shares.states(asked.group_id)
            if asked.topics is None:
                names = await services.topic_ids.names(sorted({each.topic_id for each in states}))
                wanted = [
                    (names[topic_id], topic_id, indexes)
                    for topic_id, indexes in by_topic(states).items()
                    if topic_id in names
                ]
            else:
                shapes = await topic_shapes(services, {topic.name for topic in asked.topics})
                wanted = [
                    (topic.name, shapes[topic.name].topic_id, topic.partitions)
                    for topic in asked.topics
                    if topic.name in shapes
                ]
                said.topics = [
                    ShareStartTopic(
                        topic.name,
                        partitions=[
                            ShareStart(index, error_code=UNKNOWN) for index in topic.partitions
                        ],
                    )
                    for topic in asked.topics
                    if topic.name not in shapes
                ]
        except MagnetarError as error:
            said.error_code, said.error_message = coordinator_error(error), str(error)
            return said
        for name, topic_id, indexes in wanted:
            found = ShareStartTopic(name, topic_id)
            said.topics.append(found)
            for index in indexes:
                record = states.get(TopicIdPartition(topic_id, index))
                start, epoch = NO_START, 0
                if record is not None:
                    start, epoch = record.image.start, max(0, record.leader_epoch)
                found.partitions.append(ShareStart(index, start, epoch))
        return said

    async def alter_starts(
        self, session: KafkaSession, head: RequestHead, request: AlterShareGroupOffsetsRequest
    ) -> AlterShareGroupOffsetsResponse:
        answer, turns = AlterShareGroupOffsetsResponse(), session.turns()
        try:
            refused = await self._not_changeable(request.group_id)
            if refused is not None:
                answer.error_code, answer.error_message = refused.error, refused.why
                return answer
            names = {topic.name for topic in request.topics}
            shapes = await topic_shapes(session.services, names)
            for topic in request.topics:
                shape = shapes.get(topic.name)
                said = AlteredShareTopic(topic.name)
                answer.topics.append(said)
                for part in topic.partitions:
                    await turns.next()
                    if shape is None or not 0 <= part.index < shape.partitions:
                        said.partitions.append(AlteredShareStart(part.index, UNKNOWN))
                        continue
                    said.topic_id = shape.topic_id
                    place = TopicIdPartition(shape.topic_id, part.index)
                    key = ShareStateKey(request.group_id, place)
                    kept = await self._states.set_start(key, max(0, part.start_offset))
                    said.partitions.append(
                        AlteredShareStart(part.index, kept.error, kept.why or None)
                    )
        except MagnetarError as error:
            answer.error_code, answer.error_message = coordinator_error(error), str(error)
        return answer

    async def delete_starts(
        self, session: KafkaSession, head: RequestHead, request: DeleteShareGroupOffsetsRequest
    ) -> DeleteShareGroupOffsetsResponse:
        answer = DeleteShareGroupOffsetsResponse()
        group_id = request.group_id
        try:
            refused = await self._not_changeable(group_id)
            if refused is not None:
                answer.error_code, answer.error_message = refused.error, refused.why
                return answer
            names = {topic.name for topic in request.topics}
            shapes = await topic_shapes(session.services, names)
            shard = await self._coordinator.shard(group_id)
            for topic in request.topics:
                shape = shapes.get(topic.name)
                if shape is None:
                    answer.topics.append(DeletedShareTopic(topic.name, error_code=UNKNOWN))
                    continue
                states = shard.log.state.shares.states(group_id)
                places = [each for each in states if each.topic_id == shape.topic_id]
                said = DeletedShareTopic(topic.name, shape.topic_id)
                answer.topics.append(said)
                for place in places:
                    kept = await self._states.forget(ShareStateKey(group_id, place))
                    if kept.error:
                        said.error_code, said.error_message = kept.error, kept.why
        except MagnetarError as error:
            answer.error_code, answer.error_message = coordinator_error(error), str(error)
        return answer

    async def _not_changeable(self, group_id: str) -> KeptState | None:
        """Raises as ``Coordinator.shard``."""
        return self._states.refused_to_admins(await self._coordinator.shard(group_id), group_id)


def _wrong(head: RequestHead, request: ShareGroupHeartbeatRequest) -> str:
    """What cannot be asked for; empty: nothing."""
    epoch, names = request.member_epoch, request.names
    if not request.group_id.strip():
        return "GroupId is empty"
    if not request.member_id.strip():
        return "MemberId is empty"
    if request.rack_id is not None and not request.rack_id.strip():
        return "RackId is empty: leave it out"
    texts = (request.group_id, request.member_id, request.rack_id)
    if large := too_much((*texts, head.client_id), names):
        return large
    if epoch < LEAVE_EPOCH:
        return f"MemberEpoch is {epoch}: it is -1 at least"
    if epoch == JOIN_EPOCH and not names:
        return "SubscribedTopicNames is empty: a member says what it reads when it joins"
    return ""


def _refused(error: ErrorCode, why: str) -> ShareGroupHeartbeatResponse:
    return ShareGroupHeartbeatResponse(error_code=error, error_message=why)


def _described(member: ShareMember, names: Mapping[uuid.UUID, str]) -> DescribedShareMember:
    """Topics that are gone have no name, and are left out."""
    assigned = [
        DescribedPartitions(topic_id, names[topic_id], indexes)
        for topic_id, indexes in by_topic(member.assigned).items()
        if topic_id in names
    ]
    return DescribedShareMember(
        member.member_id,
        member.rack_id or None,
        member.epoch,
        member.client_id,
        member.client_host,
        sorted(member.names),
        DescribedAssignment(assigned),
    )
