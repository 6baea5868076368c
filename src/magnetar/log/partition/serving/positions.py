"""The order of a partition's positions: ``log.seam.Positions``, and what acknowledgements need.

Readers get ``PartitionPositions``. ``OffsetOrder`` is the same log to ``AckState``: there every
offset is an entry, so that entries follow one another without gaps, and to acknowledge an entry is
to acknowledge all offsets up to the next one's (``cursor``).
"""

from __future__ import annotations

from magnetar.log.partition.serving.batch_places import BatchPlaces
from magnetar.model.ids import EARLIEST, LATEST, NO_ENTRY, Position


class PartitionPositions:
    """Implements ``log.seam.Positions``."""

    __slots__ = ("_places",)

    def __init__(self, places: BatchPlaces) -> None:
        self._places = places

    @property
    def first(self) -> Position:
        places = self._places
        return places.position(places.following(places.start))

    @property
    def readable(self) -> Position:
        places = self._places
        last = places.holding(places.end)
        return places.position(places.start - 1 if last < 0 else last)

    @property
    def held(self) -> Position:
        places = self._places
        if places.end >= places.held_end:
            return self.readable
        return self.previous_position(places.position(places.held_end))

    def next_position(self, position: Position) -> Position:
        places = self._places
        return places.position(places.following(places.offset(position) + 1))

    def previous_position(self, position: Position) -> Position:
        places = self._places
        last = places.last_held(places.offset(position) - 1)
        return places.position(places.start - 1 if last < 0 else last)

    def entries_between(self, after: Position, last: Position) -> int:
        places = self._places
        before = places.count_before(places.offset(after) + 1)
        return max(0, places.count_before(places.offset(last) + 1) - before)

    def messages_between(self, after: Position, last: Position) -> int:
        places = self._places
        begin = places.following(places.offset(after) + 1)
        return max(0, places.following(places.offset(last) + 1) - begin)

    @property
    def end_offset(self) -> int:
        return self._places.end

    async def offset_of(self, position: Position) -> int:
        return self._places.following(self._places.offset(position))

    async def position_of(self, offset: int) -> Position:
        places = self._places
        if offset >= places.end:
            return places.position(places.end)
        found = places.holding(offset)
        return places.position(places.following(places.start) if found < 0 else found)


class OffsetOrder:
    """Implements ``log.acknowledgements.LedgerChain``: each offset is an entry."""

    __slots__ = ("_places",)

    def __init__(self, places: BatchPlaces) -> None:
        self._places = places

    def last_at(self, position: Position) -> Position:
        places = self._places
        offset = min(places.offset(position), places.log_end - 1)
        return places.position(max(offset, places.start - 1))

    def last_entry(self, ledger_id: int) -> int:
        places = self._places
        begin = ledger_id * places.span
        if ledger_id < 0 or begin >= places.log_end or begin + places.span <= places.start:
            return NO_ENTRY
        return min(places.span, places.log_end - begin) - 1

    def is_final(self, ledger_id: int) -> bool:
        return (ledger_id + 1) * self._places.span <= self._places.log_end

    def following(self, ledger_id: int) -> int | None:
        places = self._places
        following = max(ledger_id + 1, places.start // places.span)
        return following if following * places.span <= places.log_end else None

    def mark_before(self, start: Position) -> Position:
        """The mark-delete position of a cursor that reads ``start`` next. What cannot be read yet
        was there before the cursor, and readers have had it of a former leader."""
        places = self._places
        if start == LATEST:
            return places.position(places.log_end - 1)
        offset = places.start if start == EARLIEST else places.offset(start)
        return places.position(min(max(offset, places.start), places.log_end) - 1)
