"""FindCoordinator, and what members of groups ask: join, sync, heartbeat, leave, offsets.

Errors of the coordinator's own log or ownership are told as ``NOT_COORDINATOR`` or
``COORDINATOR_NOT_AVAILABLE``: clients look for the coordinator again, and go on.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from functools import partial
from typing import Final

from magnetar.model.errors import MagnetarError
from magnetar.protocols.kafka.coordination.consumer_groups import ConsumerGroups
from magnetar.protocols.kafka.coordination.coordinator import Coordinator, coordinator_error
from magnetar.protocols.kafka.coordination.coordinator_state import Change
from magnetar.protocols.kafka.coordination.group import Joining, protocols_of
from magnetar.protocols.kafka.coordination.group_offsets import Committed, OffsetKey
from magnetar.protocols.kafka.coordination.offset_commits import gathered, told
from magnetar.protocols.kafka.handlers.each_once import groups_once, topics_once
from magnetar.protocols.kafka.known_places import Questions
from magnetar.protocols.kafka.services import NO_NODE, Node
from magnetar.protocols.kafka.session import KafkaSession
from magnetar.wire.kafka.apis import RequestHead
from magnetar.wire.kafka.cluster_messages import (
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    FoundCoordinator,
)
from magnetar.wire.kafka.errors import ErrorCode
from magnetar.wire.kafka.group_messages import (
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    LeavingMember,
    LeftMember,
    SyncGroupRequest,
    SyncGroupResponse,
)
from magnetar.wire.kafka.offset_messages import (
    FoundOffset,
    FoundOffsetsGroup,
    FoundOffsetsTopic,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
)
from magnetar.wire.kafka.topic_shapes import TopicPartitions

GROUP: Final = 0
TRANSACTION: Final = 1
NO_SHARES: Final = (
    "coordinators of share groups' states are not served: brokers find them by themselves, and "
    "clients ask for those of groups (0) and transactional ids (1)"
)
IDS_KNOWN_SINCE: Final = 4
"""The version of JoinGroup from which on a member joins again with the id that it is told."""
SKIPS_SINCE: Final = 9
NO_OFFSET: Final = Committed(-1, -1, "", 0)


class GroupHandlers:
    """The requests about groups; one for all sessions of a broker."""

    def __init__(self, coordinator: Coordinator, consumers: ConsumerGroups) -> None:
        self.coordinator = coordinator
        self.consumers = consumers

    # -- where --------------------------------------------------------------------------------

    async def find(
        self, session: KafkaSession, head: RequestHead, request: FindCoordinatorRequest
    ) -> FindCoordinatorResponse:
        keys = request.keys if head.version >= 4 else [request.key]
        found, turns = [], session.turns()
        for key in keys:
            await turns.next()
            found.append(await self._find(session, key, request.key_type))
        if head.version >= 4:
            return FindCoordinatorResponse(coordinators=found)
        (one,) = found
        return FindCoordinatorResponse(
            error_code=one.error_code,
            error_message=one.error_message,
            node_id=one.node_id,
            host=one.host,
            port=one.port,
        )

    async def _find(self, session: KafkaSession, key: str, kind: int) -> FoundCoordinator:
        services = session.services
        said = FoundCoordinator(key)
        if kind not in (GROUP, TRANSACTION):
            said.error_code, said.error_message = ErrorCode.INVALID_REQUEST, NO_SHARES
            return said
        questions = Questions()
        try:
            await questions.ask(self.coordinator.prepare)
            nodes = await services.nodes_soon(questions)
            node: Node = await services.leader_soon(
                self.coordinator.topic_for(key), nodes, questions
            )
        except MagnetarError as error:
            node, said.error_message = NO_NODE, str(error)
        if node.by(session.tls).port < 0:
            node, said.error_code = NO_NODE, ErrorCode.COORDINATOR_NOT_AVAILABLE
            said.error_message = said.error_message or "it is not known who coordinates; ask again"
        said.node_id, said.host, said.port = node.by(session.tls)
        return said

    # -- membership ---------------------------------------------------------------------------

    async def join(
        self, session: KafkaSession, head: RequestHead, request: JoinGroupRequest
    ) -> JoinGroupResponse:
        if not request.group_id:
            return _not_joined(request, ErrorCode.INVALID_GROUP_ID)
        said = Joining(
            request.member_id,
            f"{head.client_id}-{uuid.uuid4()}",
            request.instance_id,
            head.client_id,
            session.peer.rpartition(":")[0],
            request.session_timeout_ms,
            max(request.rebalance_timeout_ms, 0) or request.session_timeout_ms,
            request.protocol_type,
            protocols_of(request.protocols),
            head.version >= IDS_KNOWN_SINCE,
            head.version >= SKIPS_SINCE,
        )
        try:
            refused = await self.consumers.make_way(request.group_id)
            if refused is not ErrorCode.NONE:
                return _not_joined(request, refused)
            shard, group = await self.coordinator.group(request.group_id)
            ticket, answer = self.coordinator.ticket(shard)
            now_ms = session.services.steady_ms()
            self.coordinator.tell(shard, group, group.join(said, ticket, now_ms))
            found: JoinGroupResponse = await answer
        except MagnetarError as error:
            return _not_joined(request, coordinator_error(error))
        return found

    async def sync(
        self, session: KafkaSession, head: RequestHead, request: SyncGroupRequest
    ) -> SyncGroupResponse:
        try:
            shard, group = await self.coordinator.known_group(request.group_id)
            ticket, answer = self.coordinator.ticket(shard)
            answers = group.sync(
                request.member_id,
                request.instance_id,
                request.generation,
                (request.protocol_type, request.protocol_name),
                [(each.member_id, each.assignment) for each in request.assignments],
                ticket,
                session.services.steady_ms(),
            )
            self.coordinator.tell(shard, group, answers)
            found: SyncGroupResponse = await answer
        except MagnetarError as error:
            return SyncGroupResponse(error_code=coordinator_error(error))
        return found

    async def heartbeat(
        self, session: KafkaSession, head: RequestHead, request: HeartbeatRequest
    ) -> HeartbeatResponse:
        try:
            _, group = await self.coordinator.known_group(request.group_id)
        except MagnetarError as error:
            return HeartbeatResponse(error_code=coordinator_error(error))
        error_code = group.heartbeat(
            request.member_id, request.instance_id, request.generation, session.services.steady_ms()
        )
        return HeartbeatResponse(error_code=error_code)

    async def leave(
        self, session: KafkaSession, head: RequestHead, request: LeaveGroupRequest
    ) -> LeaveGroupResponse:
        several = head.version >= 3
        leaving = request.members if several else [LeavingMember(request.member_id)]
        answer, turns = LeaveGroupResponse(), session.turns()
        for member in leaving:
            await turns.next()
            try:
                now_ms = session.services.steady_ms()
                error_code = await self._leave(request.group_id, member, now_ms)
            except MagnetarError as error:
                return LeaveGroupResponse(error_code=coordinator_error(error))
            if several:
                left = LeftMember(member.member_id, member.instance_id, error_code)
                answer.members.append(left)
            else:
                answer.error_code = error_code
        return answer

    async def _leave(self, group_id: str, member: LeavingMember, now_ms: int) -> ErrorCode:
        """Raises as ``Coordinator.shard``."""
        removed = await self.consumers.remove(group_id, member.member_id, member.instance_id)
        if removed is not None:
            return removed
        shard, group = await self.coordinator.known_group(group_id)
        error_code, answers = group.leave(member.member_id, member.instance_id, now_ms)
        self.coordinator.tell(shard, group, answers)
        return error_code

    # -- offsets ------------------------------------------------------------------------------

    async def commit(
        self, session: KafkaSession, head: RequestHead, request: OffsetCommitRequest
    ) -> OffsetCommitResponse:
        now_ms = session.services.steady_ms()
        key_of = partial(OffsetKey, request.group_id)
        found = await gathered(session.services, session.turns(), request.topics, key_of)
        for some in found.parts():
            error_code = await self._commit(request, head.version, some, now_ms)
            if error_code is not ErrorCode.NONE:
                break
        return OffsetCommitResponse(topics=found.answered(error_code))

    async def _commit(
        self, request: OffsetCommitRequest, version: int, changes: list[Change], now_ms: int
    ) -> ErrorCode:
        if not request.group_id:
            return ErrorCode.INVALID_GROUP_ID
        try:
            shard, group = await self.coordinator.group(request.group_id)
            live = shard.consumer(request.group_id)
            if request.group_id in shard.shares:
                refused = ErrorCode.GROUP_ID_NOT_FOUND  # it has none
            elif live is not None:
                refused = live.group.check_commit(request.member_id, request.generation, version)
            else:
                refused = group.check_commit(
                    request.member_id, request.instance_id, request.generation, now_ms
                )
            if refused is ErrorCode.NONE:
                await self.coordinator.change(shard, changes)
        except MagnetarError as error:
            return coordinator_error(error)
        return refused

    async def fetch_offsets(
        self, session: KafkaSession, head: RequestHead, request: OffsetFetchRequest
    ) -> OffsetFetchResponse:
        if head.version >= 8:
            stable = request.require_stable
            groups = [
                await self._offsets(
                    session,
                    (each.group_id, each.topics),
                    stable,
                    (each.member_id, each.member_epoch),
                )
                for each in groups_once(request.groups)
            ]
            return OffsetFetchResponse(groups=groups)
        asked = request.group_id, request.topics
        found = await self._offsets(session, asked, request.require_stable)
        if found.error_code and head.version < 2:
            # There is no place for an error but at each partition.
            found.topics = [
                FoundOffsetsTopic(
                    topic.name,
                    [FoundOffset(index, error_code=found.error_code) for index in topic.partitions],
                )
                for topic in request.topics or []
            ]
        return OffsetFetchResponse(topics=found.topics, error_code=found.error_code)

    async def _offsets(
        self,
        session: KafkaSession,
        asked: tuple[str, list[TopicPartitions] | None],
        stable: bool,
        member: tuple[str | None, int] = (None, -1),
    ) -> FoundOffsetsGroup:
        """``asked``: the group, and what of it; None: all. ``stable``: an offset that an open
        transaction is to commit is an error; ``member``: its id and epoch, if it says that it is
        one."""
        group_id, topics = asked
        said = FoundOffsetsGroup(group_id)
        try:
            shard = await self.coordinator.shard(group_id)
        except MagnetarError as error:
            said.error_code = coordinator_error(error)
            return said
        live = shard.consumer(group_id)
        if live is not None:
            said.error_code = live.group.check_fetch(*member)
            if said.error_code:
                return said
        known: Mapping[tuple[str, int], Committed] = shard.log.offsets.of(group_id)
        names = {name for name, _ in known} if topics is None else {each.name for each in topics}
        known = await told(session.services, known, [*names])
        if topics is None:
            wanted: dict[str, list[int]] = {}
            for name, index in known:
                wanted.setdefault(name, []).append(index)
            topics = [TopicPartitions(name, indexes) for name, indexes in wanted.items()]
        turns = session.turns()
        for topic in topics_once(topics):
            of_topic = FoundOffsetsTopic(topic.name)
            said.topics.append(of_topic)
            for index in topic.partitions:
                await turns.next()
                key = OffsetKey(group_id, topic.name, index)
                if stable and shard.log.state.pending.waits(key):
                    unstable = ErrorCode.UNSTABLE_OFFSET_COMMIT
                    of_topic.partitions.append(FoundOffset(index, error_code=unstable))
                    continue
                offset, epoch, metadata, *_ = known.get((topic.name, index), NO_OFFSET)
                of_topic.partitions.append(FoundOffset(index, offset, epoch, metadata))
        return said


def _not_joined(request: JoinGroupRequest, error: ErrorCode) -> JoinGroupResponse:
    return JoinGroupResponse(error_code=error, member_id=request.member_id)
