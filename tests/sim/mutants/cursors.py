"""Ring 2 with brokers: cursors and acknowledgements with one rule broken each."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

from magnetar.log.acknowledgements import AckImage, AckState
from magnetar.log.managed.cursor_format import encode_delta
from magnetar.log.managed.cursor_store import CursorStore
from magnetar.log.managed.managed_log import ManagedLog
from magnetar.model.ids import Position
from magnetar.topics.consuming.acknowledging import Acknowledging
from tests.sim.mutants.mutant import Mutant, replaced

SEEDS_MAX = 300


def _holes_not_in_the_snapshot() -> AbstractContextManager[None]:
    original = AckState.snapshot

    def snapshot(self: Any) -> AckImage:
        return replace(original(self), holes={})

    return replaced((AckState, "snapshot", snapshot))


def _parts_not_in_the_snapshot() -> AbstractContextManager[None]:
    original = AckState.snapshot

    def snapshot(self: Any) -> AckImage:
        return replace(original(self), ack_sets={})

    return replaced((AckState, "snapshot", snapshot))


def _changes_outlive_a_reset() -> AbstractContextManager[None]:
    """After a seek the changes from before it are stored as if they came after."""
    original = AckState.reset

    def reset(self: Any, mark_delete: Position) -> None:
        holes = {ledger: bitmap.copy() for ledger, bitmap in self._holes.items()}
        original(self, mark_delete)
        for ledger_id, bitmap in holes.items():
            for entry_id in bitmap:
                self.acknowledge([Position(ledger_id, entry_id)])

    return replaced((AckState, "reset", reset))


def _reset_not_stored() -> AbstractContextManager[None]:
    """A seek is stored as changes without an epoch of its own, so that they cannot say that
    something is no longer acknowledged."""
    original = AckState.reset

    def reset(self: Any, mark_delete: Position) -> None:
        original(self, mark_delete)
        self._reset = False
        self.reset_epoch -= 1

    return replaced((AckState, "reset", reset))


def _merged_after_a_seek() -> AbstractContextManager[None]:
    """What was on its way to the ledger when a seek came lies behind it there, and is merged when
    the cursor is recovered."""
    late: dict[int, tuple[Any, AckImage]] = {}  # with the state, so that no other gets its id
    reset, merge, store = AckState.reset, AckState.merge, CursorStore._store

    def remember(self: Any, mark_delete: Position) -> None:
        late[id(self)] = self, self.snapshot()
        reset(self, mark_delete)

    def store_late(self: Any, writer: Any) -> None:
        store(self, writer)
        if id(self._state) in late:
            _, image = late.pop(id(self._state))
            writer.append([encode_delta(image, self._base)], lambda *_: None)

    def merge_all(self: Any, image: AckImage) -> None:
        merge(self, replace(image, reset_epoch=self.reset_epoch))

    return replaced(
        (AckState, "reset", remember),
        (CursorStore, "_store", store_late),
        (AckState, "merge", merge_all),
    )


def _one_more() -> AbstractContextManager[None]:
    """A cumulative acknowledgement takes the next entry along."""
    original = AckState.acknowledge_cumulative

    def acknowledge(self: Any, position: Position) -> bool:
        return original(self, Position(position.ledger_id, position.entry_id + 1))

    return replaced((AckState, "acknowledge_cumulative", acknowledge))


def _the_last_part_counts() -> AbstractContextManager[None]:
    """The ack set of a batch is the last one that came, not what all of them leave."""
    original = AckState.acknowledge_batch

    def acknowledge(self: Any, position: Position, size: int, ack_set: Sequence[int]) -> bool:
        if position in self._ack_sets:
            self._drop_set(position)
        return original(self, position, size, ack_set)

    return replaced((AckState, "acknowledge_batch", acknowledge))


def _a_part_is_all() -> AbstractContextManager[None]:
    """Whoever acknowledges a message of a batch acknowledges the batch."""

    def acknowledge(self: Any, position: Position, _size: int, _ack_set: Sequence[int]) -> bool:
        self.acknowledge([position])
        return True

    return replaced((AckState, "acknowledge_batch", acknowledge))


def _mark_passes_a_gap() -> AbstractContextManager[None]:
    """What is stored as the mark is the last entry that is acknowledged, over gaps before it."""
    original = AckState.snapshot

    def snapshot(self: Any) -> AckImage:
        image = original(self)
        if not image.holes:
            return image
        ledger_id = max(image.holes)
        return AckImage(Position(ledger_id, image.holes[ledger_id].max()))

    return replaced((AckState, "snapshot", snapshot))


def _answered_before_stored() -> AbstractContextManager[None]:
    """An acknowledgement's receipt does not wait for the store."""

    def answer_stored(_self: Any, client: Any, request_id: int) -> None:
        client.answer_ack(request_id, None)

    return replaced((Acknowledging, "answer_stored", answer_stored))


def _trims_what_one_has_read() -> AbstractContextManager[None]:
    """A ledger goes when the fastest subscription has done with it."""

    class Fastest:
        def __init__(self, cursors: Any) -> None:
            self._cursors = cursors

        def __getattr__(self, name: str) -> Any:
            return getattr(self._cursors, name)

        def stores(self) -> Any:
            stores = list(self._cursors.stores())
            return [max(stores, key=lambda each: each.stored_mark_delete)] if stores else []

    original = ManagedLog._deletable

    def deletable(self: Any) -> int:
        cursors = self._cursors
        self._cursors = Fastest(cursors)
        try:
            return original(self)
        finally:
            self._cursors = cursors

    return replaced((ManagedLog, "_deletable", deletable))


def _mutant(name: str, plant: Any, known: str = "", seeds_max: int = SEEDS_MAX) -> Mutant:
    return Mutant(name, 2, known, plant, seeds_max, brokers=True)


CURSORS = (
    _mutant("a cursor's snapshot leaves holes out", _holes_not_in_the_snapshot),
    _mutant("a cursor's snapshot leaves parts of batches out", _parts_not_in_the_snapshot),
    _mutant("acknowledgements from before a seek outlive it", _changes_outlive_a_reset),
    _mutant("a seek is stored as a change", _reset_not_stored),
    _mutant("what was on its way at a seek is merged after it", _merged_after_a_seek),
    _mutant("a cumulative acknowledgement takes one more", _one_more),
    _mutant("of a batch's acknowledgements the last one counts", _the_last_part_counts),
    _mutant("a part of a batch acknowledges all of it", _a_part_is_all),
    _mutant("the stored mark passes a gap", _mark_passes_a_gap),
    _mutant("an acknowledgement is answered before it is stored", _answered_before_stored),
    _mutant("a ledger is trimmed when one subscription has read it", _trims_what_one_has_read),
)
