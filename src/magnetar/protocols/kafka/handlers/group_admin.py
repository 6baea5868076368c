"""What admins ask of groups: list, describe, delete, and delete offsets."""

from __future__ import annotations

from collections.abc import Sized

from magnetar.model.errors import MagnetarError
from magnetar.protocols.kafka.coordination.coordinator import Coordinator, coordinator_error
from magnetar.protocols.kafka.coordination.group_offsets import OffsetKey
from magnetar.protocols.kafka.coordination.subscriptions import subscribed_topics
from magnetar.protocols.kafka.handlers.operations import ON_GROUP
from magnetar.protocols.kafka.session import KafkaSession
from magnetar.wire.kafka.apis import RequestHead
from magnetar.wire.kafka.errors import ErrorCode
from magnetar.wire.kafka.group_messages import (
    DeletedGroup,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DescribedGroup,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    ListedGroup,
    ListGroupsRequest,
    ListGroupsResponse,
)
from magnetar.wire.kafka.offset_messages import (
    OffsetDeleteRequest,
    OffsetDeleteResponse,
)
from magnetar.wire.kafka.topic_shapes import PartitionResult, TopicResults

CLASSIC = "classic"
CONSUMER = "consumer"
SHARE = "share"
DEAD = "Dead"
SUBSCRIBED = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
UNKNOWN = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


class GroupAdminHandlers:
    """One for all sessions of a broker."""

    def __init__(self, coordinator: Coordinator) -> None:
        self.coordinator = coordinator

    async def list_groups(
        self, session: KafkaSession, head: RequestHead, request: ListGroupsRequest
    ) -> ListGroupsResponse:
        """Those of the logs that this broker has open: clients ask every broker."""
        await self.coordinator.open_own()
        wanted = {state.lower() for state in request.states}
        kinds = {kind.lower() for kind in request.types}
        answer = ListGroupsResponse()
        found = [
            ListedGroup(group.group_id, group.protocol_type, group.state.value, CLASSIC)
            for group in self.coordinator.all_groups()
        ]
        found += [
            ListedGroup(group.group_id, CONSUMER, group.phase, CONSUMER)
            for group in self.coordinator.all_consumers()
        ]
        found += [
            ListedGroup(group.group_id, SHARE, group.phase, SHARE)
            for group in self.coordinator.all_shares()
        ]
        answer.groups = [
            each
            for each in found
            if (not kinds or each.group_type in kinds)
            and (not wanted or each.state.lower() in wanted)
        ]
        return answer

    async def describe(
        self, session: KafkaSession, head: RequestHead, request: DescribeGroupsRequest
    ) -> DescribeGroupsResponse:
        answer, turns = DescribeGroupsResponse(), session.turns()
        for group_id in dict.fromkeys(request.groups):
            await turns.next()
            try:
                shard, group = await self.coordinator.known_group(group_id)
            except MagnetarError as error:
                said = DescribedGroup(coordinator_error(error), group_id)
            else:
                said = group.describe()
                if not self.coordinator.is_there(shard, group):
                    said.state = DEAD  # there is no such group of the classic protocol
                if request.include_operations:
                    said.operations = ON_GROUP
            answer.groups.append(said)
        return answer

    async def delete(
        self, session: KafkaSession, head: RequestHead, request: DeleteGroupsRequest
    ) -> DeleteGroupsResponse:
        results, turns = [], session.turns()
        for name in dict.fromkeys(request.groups):
            await turns.next()
            results.append(DeletedGroup(name, await self._delete(name)))
        return DeleteGroupsResponse(results=results)

    async def _delete(self, group_id: str) -> ErrorCode:
        try:
            shard, group = await self.coordinator.known_group(group_id)
            live, share = shard.consumer(group_id), shard.shares.get(group_id)
            if share is not None:
                if share.group.members:
                    return ErrorCode.NON_EMPTY_GROUP
                await self.coordinator.forget_share(shard, share)
                return _unless_joined(share.group.members)
            if group.members or (live is not None and live.group.members):
                return ErrorCode.NON_EMPTY_GROUP
            forgotten = self.coordinator.forgotten(shard, group_id)
            if live is not None:
                await self.coordinator.forget(shard, live, forgotten)
                return _unless_joined(live.group.members)
            if not self.coordinator.is_there(shard, group):
                return ErrorCode.GROUP_ID_NOT_FOUND
            if forgotten:
                await self.coordinator.change(shard, forgotten)
            self.coordinator.forget_classic(shard, group_id)
        except MagnetarError as error:
            return coordinator_error(error)
        return ErrorCode.NONE

    async def delete_offsets(
        self, session: KafkaSession, head: RequestHead, request: OffsetDeleteRequest
    ) -> OffsetDeleteResponse:
        answer = OffsetDeleteResponse()
        missing = await _missing(session, request)
        try:
            shard, group = await self.coordinator.known_group(request.group_id)
            known = shard.log.offsets.of(request.group_id)
            live = shard.consumer(request.group_id)
            if not self.coordinator.is_there(shard, group) and live is None:
                return OffsetDeleteResponse(error_code=ErrorCode.GROUP_ID_NOT_FOUND)
            if group.members and group.protocol_type != CONSUMER:
                return OffsetDeleteResponse(error_code=ErrorCode.NON_EMPTY_GROUP)
            read = subscribed_topics(group)
            used = {
                topic.name
                for topic in request.topics
                if read is None
                or topic.name in read
                or (live is not None and live.group.subscribes_to(topic.name))
            }
            keys = [
                OffsetKey(request.group_id, topic.name, part.index)
                for topic in request.topics
                for part in topic.partitions
                if (topic.name, part.index) in known and topic.name not in used
            ]
            missing.difference_update(known)
            await self.coordinator.change(shard, [(key, None) for key in keys])
        except MagnetarError as error:
            return OffsetDeleteResponse(error_code=coordinator_error(error))
        for topic in request.topics:
            said = TopicResults(topic.name)
            answer.topics.append(said)
            for part in topic.partitions:
                code = UNKNOWN if (topic.name, part.index) in missing else ErrorCode.NONE
                code = SUBSCRIBED if topic.name in used else code
                said.partitions.append(PartitionResult(part.index, code))
        return answer


async def _missing(session: KafkaSession, request: OffsetDeleteRequest) -> set[tuple[str, int]]:
    """What there is no partition of. (Of one that is gone offsets may be left, and can go.)"""
    turns, found = session.turns(), set[tuple[str, int]]()
    for topic in request.topics:
        for part in topic.partitions:
            await turns.next()
            if not await session.services.has(topic.name, part.index):
                found.add((topic.name, part.index))
    return found


def _unless_joined(members: Sized) -> ErrorCode:
    """A group that somebody has joined while it was to be deleted stays."""
    return ErrorCode.NON_EMPTY_GROUP if members else ErrorCode.NONE
