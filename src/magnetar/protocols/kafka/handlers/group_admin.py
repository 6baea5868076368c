"""What admins ask of groups: list, describe, delete, and delete offsets."""

from __future__ import annotations

from magnetar.model.errors import MagnetarError
from magnetar.protocols.kafka.coordination.coordinator import Coordinator, coordinator_error
from magnetar.protocols.kafka.coordination.group_offsets import OffsetKey
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
DEAD = "Dead"


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
        if kinds and CLASSIC not in kinds:
            return answer
        for group in self.coordinator.all_groups():
            if not wanted or group.state.value.lower() in wanted:
                listed = ListedGroup(
                    group.group_id, group.protocol_type, group.state.value, CLASSIC
                )
                answer.groups.append(listed)
        return answer

    async def describe(
        self, session: KafkaSession, head: RequestHead, request: DescribeGroupsRequest
    ) -> DescribeGroupsResponse:
        answer = DescribeGroupsResponse()
        for group_id in request.groups:
            try:
                shard, group = await self.coordinator.group(group_id)
            except MagnetarError as error:
                said = DescribedGroup(coordinator_error(error), group_id)
            else:
                said = group.describe()
                if not group.members and not shard.log.offsets.of(group_id):
                    said.state = DEAD  # there is no such group
            answer.groups.append(said)
        return answer

    async def delete(
        self, session: KafkaSession, head: RequestHead, request: DeleteGroupsRequest
    ) -> DeleteGroupsResponse:
        results = [DeletedGroup(name, await self._delete(name)) for name in request.groups]
        return DeleteGroupsResponse(results=results)

    async def _delete(self, group_id: str) -> ErrorCode:
        try:
            shard, group = await self.coordinator.group(group_id)
            if group.members:
                return ErrorCode.NON_EMPTY_GROUP
            forgotten = shard.log.offsets.forgotten(group_id)
            if not forgotten:
                return ErrorCode.GROUP_ID_NOT_FOUND
            await self.coordinator.change(shard, forgotten)
        except MagnetarError as error:
            return coordinator_error(error)
        return ErrorCode.NONE

    async def delete_offsets(
        self, session: KafkaSession, head: RequestHead, request: OffsetDeleteRequest
    ) -> OffsetDeleteResponse:
        answer = OffsetDeleteResponse()
        try:
            shard, group = await self.coordinator.group(request.group_id)
            known = shard.log.offsets.of(request.group_id)
            if not known:
                return OffsetDeleteResponse(error_code=ErrorCode.GROUP_ID_NOT_FOUND)
            if group.members:
                # Which of them reads what is in the clients' own bytes.
                return OffsetDeleteResponse(error_code=ErrorCode.NON_EMPTY_GROUP)
            keys = [
                OffsetKey(request.group_id, topic.name, part.index)
                for topic in request.topics
                for part in topic.partitions
                if (topic.name, part.index) in known
            ]
            await self.coordinator.change(shard, [(key, None) for key in keys])
        except MagnetarError as error:
            return OffsetDeleteResponse(error_code=coordinator_error(error))
        answer.topics = [
            TopicResults(topic.name, [PartitionResult(part.index) for part in topic.partitions])
            for topic in request.topics
        ]
        return answer
