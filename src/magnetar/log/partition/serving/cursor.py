"""Cursors of a partition: acknowledged entries as runs of offsets.

Implements ``log.seam.Cursor``. What is kept of it, and where, is an ``AckStore``'s.

Rules:

* An entry is acknowledged with all offsets up to the next entry's: those of its messages, and those
  behind it that compaction took. Those that it takes later are acknowledged then (``passed``):
  nobody gets them any more, so that nobody would.
* The mark-delete position is the last offset up to which all is acknowledged, so mostly within an
  entry and not at its begin; the entry after it is what the log says.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import structlog

from magnetar.log.ack_store import AckStore
from magnetar.log.acked_cursor import AckedCursor
from magnetar.log.acknowledgements import AckState
from magnetar.log.partition.serving.batch_places import BatchPlaces
from magnetar.log.partition.serving.positions import OffsetOrder
from magnetar.log.seam import CursorLending
from magnetar.model.ids import Position

log = structlog.get_logger(__name__)

RUN_MAX: Final = 10_000
"""Offsets that are acknowledged one by one: more than most batches have messages."""


class PartitionCursor(AckedCursor):
    """See the module's text. ``state`` is over an ``OffsetOrder`` of ``places``."""

    def __init__(
        self,
        name: str,
        places: BatchPlaces,
        state: AckState,
        properties: Mapping[str, str],
        store: AckStore,
        lending: CursorLending | None = None,
    ) -> None:
        super().__init__(name, state, properties, store, lending)
        self._places = places
        self._order = OffsetOrder(places)

    def _mark_before(self, position: Position) -> Position:
        return self._order.mark_before(position)

    def acknowledge(self, positions: Sequence[Position]) -> None:
        run: list[Position] = []
        for position in positions:
            run += self._offsets_of(position)
        super().acknowledge(run)

    def passed(self, first: int, end: int) -> None:
        """Between these offsets compaction has taken batches: what is no entry is acknowledged."""
        places = self._places
        first = max(first, places.offset(self._state.mark_delete) + 1)
        end, changed = min(end, places.end), False
        while first < end:
            ledger, low = divmod(first, places.span)
            high = min(end - ledger * places.span, places.span)
            gone = places.none_begins(ledger, low, high)
            changed = self._state.acknowledge_all(ledger, gone) or changed
            first = (ledger + 1) * places.span
        if changed:
            self.store.mark_dirty()

    def _offsets_of(self, position: Position) -> Sequence[Position]:
        """Those of the entry; none if it was trimmed or all are acknowledged. Of one that the log
        does not have it is the position itself: the state is to know of it."""
        places = self._places
        first = places.offset(position)
        if first >= places.log_end:
            return (position,)
        if first < places.start or position.entry_id < 0:
            return ()
        end = places.next_held(first + 1)
        if end == first + 1:
            return (position,)
        if self._has_all(first, end):
            return ()
        if end - first > RUN_MAX:  # the rest of a hole
            self.passed(first + RUN_MAX, end)
            end = first + RUN_MAX
        return [places.position(offset) for offset in range(first, end)]

    def _has_all(self, first: int, end: int) -> bool:
        """Whether these offsets are acknowledged. The Rust client acknowledges a batch whole with
        each of its messages: to go through its offsets every time is quadratic in its size. Of a
        run over two ledger ids it is not said."""
        ledger, low = divmod(first, self._places.span)
        high = low + end - first
        return high <= self._places.span and self._state.all_acknowledged(ledger, low, high)

    def acknowledge_batch(
        self, position: Position, batch_size: int, ack_set: Sequence[int]
    ) -> bool:
        whole = super().acknowledge_batch(position, batch_size, ack_set)
        if whole:
            self._state.acknowledge(self._offsets_of(position))
        return whole

    def acknowledge_cumulative(self, position: Position) -> None:
        places = self._places
        offset = places.offset(position)
        if places.start <= offset < places.log_end:
            position = places.position(places.next_held(offset + 1) - 1)
        super().acknowledge_cumulative(position)

    def backlog_entries(self) -> int:
        places = self._places
        mark = places.offset(self._state.mark_delete)
        after = places.entries - places.count_before(mark + 1)
        holes = self._state.holes()
        return after - sum(places.among(ledger, each) for ledger, each in holes.items())


class PartitionCursors:
    """What cursors of a partition are, for what keeps them (``log.managed.cursors.CursorKind``)."""

    def __init__(self, places: BatchPlaces) -> None:
        self._places = places
        self.chain = OffsetOrder(places)
        self.mark_before = self.chain.mark_before

    def make(
        self,
        name: str,
        state: AckState,
        properties: Mapping[str, str],
        store: AckStore,
        lending: CursorLending | None = None,
    ) -> PartitionCursor:
        places = self._places
        if state.cut(places.position(places.log_end - 1)):
            log.warning(
                "a cursor has acknowledged what its log has lost (a replica leads that lacks it): "
                "what comes in its place is delivered",
                cursor=name,
                log_end=places.log_end,
            )
            store.mark_dirty()
        return PartitionCursor(name, places, state, properties, store, lending)
