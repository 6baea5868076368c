"""Ring 2, with Kafka's clients: one rule broken each."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, suppress
from typing import Any

from magnetar.log.partition import producer_states as partition_states
from magnetar.model.errors import MagnetarError
from magnetar.protocols.kafka.coordination import transaction
from magnetar.protocols.kafka.coordination.coordinator import Coordinator
from magnetar.protocols.kafka.coordination.coordinator_state import Change
from magnetar.protocols.kafka.coordination.group import ClassicGroup
from magnetar.protocols.kafka.coordination.group_offsets import PendingOffsets
from magnetar.protocols.kafka.partitions import producer_states
from magnetar.protocols.kafka.partitions.partition import Partition, Produced
from magnetar.protocols.kafka.partitions.partition_transactions import PartitionTransactions
from magnetar.protocols.kafka.partitions.transaction_index import StoredTransactions
from magnetar.wire.kafka.errors import ErrorCode
from tests.sim.mutants.mutant import Mutant, replaced

SEEDS_MAX = 300


def _open_is_stable() -> AbstractContextManager[None]:
    """Readers of what is committed are given what an open transaction wrote."""
    return replaced((StoredTransactions, "stable_offset", lambda _, end_offset: end_offset))


def _aborted_is_forgotten() -> AbstractContextManager[None]:
    """They are not told what was aborted."""

    async def aborted_in(*_: object) -> list[object]:
        return []

    return replaced((PartitionTransactions, "aborted_in", aborted_in))


def _no_marker() -> AbstractContextManager[None]:
    """A transaction is ended, and its partition does not say so."""

    async def append_marker(*_: object) -> Produced:
        return Produced(ErrorCode.NONE)

    return replaced((Partition, "_append_marker", append_marker))


def _sequences_unchecked() -> AbstractContextManager[None]:
    """Every batch is new."""

    def find_repeated(*_: object) -> None:
        return None

    return replaced(
        (producer_states, "find_repeated", find_repeated),
        (partition_states, "find_repeated", find_repeated),
    )


def _told_before_stored() -> AbstractContextManager[None]:
    """A coordinator answers what is not in its log yet."""
    original = Coordinator.change

    async def change(
        self: Any, shard: Any, changes: Sequence[Change], instead: Sequence[Change] = ()
    ) -> None:
        async def store() -> None:
            with suppress(MagnetarError):  # nobody is told
                await original(self, shard, changes, instead)

        shard.log.state.apply(changes)
        self._services.scope.spawn(store(), "stores what was told")

    return replaced((Coordinator, "change", change))


def _zombies_are_heard() -> AbstractContextManager[None]:
    """Who has an id's producer id is its producer, whatever its epoch."""

    def check(record: Any, producer_id: int, epoch: int) -> ErrorCode:
        if record is None or record.producer_id != producer_id:
            return ErrorCode.INVALID_PRODUCER_ID_MAPPING
        return ErrorCode.NONE

    return replaced((transaction, "check", check))


def _epoch_stays() -> AbstractContextManager[None]:
    """Whose transaction is aborted for another may go on with it."""

    def fenced(record: Any, event: Any, now_ms: int) -> Any:
        return record.moved(event, now_ms)

    return replaced((transaction, "_fenced", fenced))


def _aborted_offsets_count() -> AbstractContextManager[None]:
    """Offsets of a transaction count, whatever its outcome."""
    original = PendingOffsets.ended

    def ended(self: Any, producer_id: int, commits: bool, now_ms: int) -> Any:
        return original(self, producer_id, True, now_ms)

    return replaced((PendingOffsets, "ended", ended))


def _pending_is_not_waited_for() -> AbstractContextManager[None]:
    """Offsets are told that an open transaction is about to change."""
    return replaced((PendingOffsets, "waits", lambda *_: False))


def _followers_not_waited_for() -> AbstractContextManager[None]:
    """A batch is acknowledged when its leader alone has it."""
    original = Partition.produce

    def produce(self: Any, batch: Any, told: Any, *, awaits_all: bool = True) -> int:
        return original(self, batch, told, awaits_all=False)

    return replaced((Partition, "produce", produce))


def _static_ids_are_told_at_once() -> AbstractContextManager[None]:
    """A static member that is back is told its id before the group's record has it."""
    original = ClassicGroup._replace

    def replace(self: Any, former: Any, said: Any, ticket: Any, now_ms: int) -> Any:
        answers = original(self, former, said, ticket, now_ms)
        member = self.members[said.new_id]
        if member.id_number:
            self._to_store, member.id_number, member.join_ticket = self._to_store - 1, 0, None
            answers.append((ticket, self._is_back(member)))
        return answers

    return replaced((ClassicGroup, "_replace", replace))


def _mutant(name: str, plant: Any, known: str = "") -> Mutant:
    return Mutant(name, 2, known, plant, SEEDS_MAX, kind="kafka")


KAFKA = (
    _mutant("what an open transaction wrote is stable", _open_is_stable),
    _mutant("what was aborted is not told", _aborted_is_forgotten),
    _mutant("a marker is not written", _no_marker),
    _mutant("sequences of producers are not checked", _sequences_unchecked),
    _mutant("a coordinator answers before it has stored", _told_before_stored),
    _mutant("a producer that was replaced is heard", _zombies_are_heard),
    _mutant("a producer that was replaced keeps its epoch", _epoch_stays),
    _mutant("offsets of an aborted transaction count", _aborted_offsets_count),
    _mutant("offsets are told that are about to change", _pending_is_not_waited_for, "KIP-447"),
    _mutant("followers are not waited for", _followers_not_waited_for),
    _mutant("a static member's id is told before it is stored", _static_ids_are_told_at_once),
)
