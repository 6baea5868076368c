"""What share groups have done with the records of partitions: kept in the log of the group's
coordinator, and asked for, and changed, by the leaders of the partitions.

Rules:

* Who reads a state may write it, and nobody else from then on: each read raises the state's epoch,
  a write must name it, and so does an admin who sets a start anew. A leader that was replaced, or
  whose last write has an outcome that it does not know, cannot overwrite what the next one does.
* An older leader of the partition (by the epoch of its log) cannot read any more.
* Reads and writes of one state come one after another: a write that is on its way into the log is
  in what the next one reads.
* Only groups that somebody has joined have states; what was deleted is written by nobody.

A leader asks the coordinator by Kafka's own requests (ReadShareGroupState, WriteShareGroupState).

Why: docs/adr/0167-share-groups.md.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple

from magnetar.env.keyed_locks import KeyedLocks
from magnetar.model.errors import ServiceNotReadyError
from magnetar.protocols.kafka.coordination.coordinator import Coordinator, Shard
from magnetar.protocols.kafka.peers import told_as, told_one
from magnetar.protocols.kafka.services import NO_NODE, KafkaServices, Node
from magnetar.protocols.kafka.shares.share_records import (
    NOT_STARTED,
    RecordState,
    ShareImage,
    ShareStateKey,
    ShareStateRecord,
    StoredRun,
)
from magnetar.wire.kafka.apis import ApiKey
from magnetar.wire.kafka.errors import ErrorCode
from magnetar.wire.kafka.share_state_messages import (
    AskedState,
    AskedStateTopic,
    NewState,
    NewStateTopic,
    ReadShareGroupStateRequest,
    StateBatch,
    WriteShareGroupStateRequest,
)

STATES_MAX: Final = 10_000
"""Partitions of one group."""
EPOCH_MASK: Final = 0x7FFFFFFF


class KeptState(NamedTuple):
    """``record`` None: there is an error."""

    error: ErrorCode
    why: str = ""
    record: ShareStateRecord | None = None


WRITTEN: Final = KeptState(ErrorCode.NONE)


class ShareStates:
    """See the module's text."""

    def __init__(self, services: KafkaServices, coordinator: Coordinator) -> None:
        self._services = services
        self.coordinator = coordinator
        self._locks: KeyedLocks[ShareStateKey] = KeyedLocks()

    # -- for leaders --------------------------------------------------------------------------

    async def read(self, key: ShareStateKey, leader_epoch: int) -> KeptState:
        """Raises ``ServiceNotReadyError``, and what the coordinator's log does."""
        node = await self._elsewhere(key.group)
        if node is None:
            return await self.read_here(key, leader_epoch)
        topic_id, index = key.place
        asked = [AskedStateTopic(topic_id, [AskedState(index, leader_epoch)])]
        answer = await self._services.ask(
            node, ApiKey.READ_SHARE_GROUP_STATE, 0, ReadShareGroupStateRequest(key.group, asked)
        )
        said = told_one(told_one(answer.topics).partitions)
        if said.error_code:
            return self._refused(said.error_code, said.error_message)
        image = ShareImage(said.start_offset, runs_of(said.batches, partial(told_as, RecordState)))
        record = ShareStateRecord(said.state_epoch, leader_epoch, image)
        return KeptState(ErrorCode.NONE, "", record)

    async def write(self, key: ShareStateKey, record: ShareStateRecord) -> KeptState:
        """Stored when it returns without an error. Raises as ``read``: it may be stored or not."""
        node = await self._elsewhere(key.group)
        if node is None:
            return await self.write_here(key, record)
        topic_id, index = key.place
        state = NewState(
            index,
            record.state_epoch,
            record.leader_epoch,
            record.image.start,
            batches_of(record.image),
        )
        request = WriteShareGroupStateRequest(key.group, [NewStateTopic(topic_id, [state])])
        answer = await self._services.ask(node, ApiKey.WRITE_SHARE_GROUP_STATE, 0, request)
        said = told_one(told_one(answer.topics).partitions)
        return self._refused(said.error_code, said.error_message) if said.error_code else WRITTEN

    async def _elsewhere(self, group: str) -> Node | None:
        """The broker that keeps the group; None: this one."""
        if self.coordinator.open_shard(group) is not None:
            return None
        services = self._services
        await self.coordinator.prepare()
        node = await services.leader_of(self.coordinator.topic_for(group), await services.nodes())
        if node is NO_NODE:
            raise ServiceNotReadyError(f"the coordinator of group {group} is not known")
        return None if node == services.node else node

    def _refused(self, code: int, why: str | None) -> KeptState:
        if code in (ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE):
            raise ServiceNotReadyError(why or "the group's coordinator has moved")
        return KeptState(told_as(ErrorCode, code), why or "")

    # -- for the brokers that lead ------------------------------------------------------------

    async def read_here(self, key: ShareStateKey, leader_epoch: int) -> KeptState:
        """Raises as ``Coordinator.shard`` and ``.change``."""
        shard = await self.coordinator.shard(key.group)
        async with self._locks.held(key):
            refused = self._no_group(shard, key.group)
            if refused is not None:
                return refused
            states = shard.log.state.shares.states(key.group)
            known = states.get(key.place)
            if known is None and len(states) >= STATES_MAX:
                why = f"group {key.group} reads {STATES_MAX} partitions, which is the most"
                return KeptState(ErrorCode.POLICY_VIOLATION, why)
            if known is not None and leader_epoch < known.leader_epoch:
                return KeptState(ErrorCode.FENCED_LEADER_EPOCH, "a later leader has read it")
            image = NOT_STARTED if known is None else known.image
            record = ShareStateRecord(self._next_epoch(known), leader_epoch, image)
            await self.coordinator.change(shard, [(key, record)])
            return KeptState(ErrorCode.NONE, "", record)

    async def write_here(self, key: ShareStateKey, record: ShareStateRecord) -> KeptState:
        """Raises as ``read_here``."""
        shard = await self.coordinator.shard(key.group)
        async with self._locks.held(key):
            # One that is being deleted has its states until that is in the log.
            refused = self._no_group(shard, key.group)
            if refused is not None:
                return refused
            known = shard.log.state.shares.states(key.group).get(key.place)
            if known is None or known[:2] != record[:2]:
                why = "the state was read, set or deleted since: read it again"
                return KeptState(ErrorCode.FENCED_STATE_EPOCH, why)
            await self.coordinator.change(shard, [(key, record)])
            return WRITTEN

    # -- for admins ---------------------------------------------------------------------------

    async def set_start(self, key: ShareStateKey, start: int) -> KeptState:
        """Of a group without members. Raises as ``read_here``."""
        shard = await self.coordinator.shard(key.group)
        async with self._locks.held(key):
            refused = self.refused_to_admins(shard, key.group)
            if refused is not None:
                return refused
            known = shard.log.state.shares.states(key.group).get(key.place)
            leader_epoch = -1 if known is None else known.leader_epoch
            record = ShareStateRecord(self._next_epoch(known), leader_epoch, ShareImage(start))
            await self.coordinator.change(shard, [(key, record)])
            return WRITTEN

    async def forget(self, key: ShareStateKey) -> KeptState:
        """As ``set_start``: the partition begins anew, as of a new group."""
        shard = await self.coordinator.shard(key.group)
        async with self._locks.held(key):
            refused = self.refused_to_admins(shard, key.group)
            if refused is not None:
                return refused
            if key.place in shard.log.state.shares.states(key.group):
                await self.coordinator.change(shard, [(key, None)])
            return WRITTEN

    def refused_to_admins(self, shard: Shard, group: str) -> KeptState | None:
        """Why starts of the group cannot be changed; None: they can."""
        refused = self._no_group(shard, group)
        if refused is None and shard.shares[group].group.members:
            refused = KeptState(ErrorCode.NON_EMPTY_GROUP, f"group {group} has members")
        return refused

    def _no_group(self, shard: Shard, group: str) -> KeptState | None:
        live = shard.shares.get(group)
        if live is None or not live.is_stored:
            return KeptState(ErrorCode.GROUP_ID_NOT_FOUND, f"there is no share group {group}")
        return None

    def _next_epoch(self, known: ShareStateRecord | None) -> int:
        """Of a state that was deleted nothing is known: its epoch is that of another second."""
        least = 0 if known is None else known.state_epoch + 1
        return max(self._services.now_ms() // 1000, least) & EPOCH_MASK


def runs_of(
    batches: list[StateBatch], state_of: Callable[[int], RecordState] = RecordState
) -> tuple[StoredRun, ...]:
    """Raises as ``state_of``: ``ValueError`` for a state that there is not."""
    return tuple(
        StoredRun(each.first_offset, each.last_offset, state_of(each.state), each.delivery_count)
        for each in batches
    )


def batches_of(image: ShareImage) -> list[StateBatch]:
    return [StateBatch(*run) for run in image.runs]
