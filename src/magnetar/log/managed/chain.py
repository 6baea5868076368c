"""The arithmetic of a chain of ledgers: which positions a log holds and how they follow.

Pure: no I/O, no clock. Every entry has a *rank*, its number among all entries that the chain
holds, and every message an *offset*, its number among all that the log ever held. Both are prefix
sums, rebuilt when a ledger comes or goes, so every question is one bisection.

Invariants: ledger ids grow strictly; only the last ledger may be open; ``confirmed`` never moves
back, not even when everything is trimmed (``trimmed`` keeps the place); an entry holds one message
or more; a ledger's offsets begin where those before it end, and no offset is given twice. What lies
before ``front`` was deleted: no question is answered with it, though its ledger may be there yet.
The front never moves back.

A ledger of a record that says nothing of messages was written before offsets were kept: each of
its entries counts as one message. What is made of that here is what the next record says.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from magnetar.log.seam import StoredAt
from magnetar.model.ids import EARLIEST, LATEST, NO_ENTRY, Position

_new: Final = tuple.__new__  # a NamedTuple without its slower, checking constructor


@dataclass(frozen=True, slots=True)
class LedgerInfo:
    """One ledger of a chain. ``entries``, ``stored_bytes``, ``messages``, ``greatest_ms`` and
    ``least_ms`` count only when closed."""

    ledger_id: int
    entries: int = 0
    stored_bytes: int = 0
    created_ms: int = 0
    closed_ms: int = 0  # 0 while open
    first_offset: int = 0
    messages: int = 0  # when closed; 0: each entry is one
    greatest_ms: int = 0  # greatest publish time, when closed; 0: not known
    least_ms: int = 0  # no publish time is less, when closed; 0: not known
    stored: StoredAt = StoredAt.LEDGER  # a closed one may be in the log's table

    @property
    def closed(self) -> bool:
        return self.closed_ms > 0


class Front(NamedTuple):
    """Where a log begins whose first records were deleted: the first entry that is left, or the
    place of the next one; the offset of its first message; and the first one that is left, which
    may lie within the entry."""

    position: Position = EARLIEST
    entry_offset: int = 0
    offset: int = 0


NO_FRONT: Final = Front()


class Chain:
    """The ledgers of one log, in order, and its last confirmed position."""

    __slots__ = (
        "_floor",
        "_ids",
        "_ranks",
        "compacted_to",
        "confirmed",
        "end_offset",
        "first_offset",
        "front",
        "last_confirmed_entry",
        "ledgers",
        "trimmed",
    )

    def __init__(
        self,
        ledgers: Sequence[LedgerInfo] = (),
        trimmed: Position = EARLIEST,
        first_offset: int = 0,
        front: Front = NO_FRONT,
    ) -> None:
        self.ledgers: list[LedgerInfo] = []
        self.front = front
        self.first_offset = first_offset  # of the first message that is held, or of the next
        self.end_offset = first_offset  # of the next message after ``confirmed``
        self.trimmed = trimmed
        self.compacted_to = EARLIEST  # what survived up to here is readable, trimmed or not
        self.last_confirmed_entry = NO_ENTRY  # of the open ledger
        self.confirmed = trimmed
        self.replace_ledgers(ledgers)

    # -- changing -----------------------------------------------------------------------------

    def replace_ledgers(self, ledgers: Sequence[LedgerInfo]) -> None:
        """The chain is ``ledgers`` now."""
        self.ledgers = self._with_offsets(ledgers)
        self._ids = [info.ledger_id for info in ledgers]
        assert self._ids == sorted(set(self._ids)), f"ledger ids out of order: {self._ids}"
        self._ranks = [0]
        for info in ledgers:
            self._ranks.append(self._ranks[-1] + (info.entries if info.closed else 0))
        if not self.ledgers or self.ledgers[-1].closed:
            self.last_confirmed_entry = NO_ENTRY
            last = self.ledgers[-1] if self.ledgers else None
            ended = self.first_offset if last is None else last.first_offset + last.messages
            assert ended >= self.end_offset, f"offsets {ended} to {self.end_offset} given twice"
            self.end_offset = ended
        elif self.last_confirmed_entry == NO_ENTRY:
            self.end_offset = self.ledgers[-1].first_offset
        self.confirmed = max(self.confirmed, self._end())
        self._floor = self._rank_before_front()

    def _rank_before_front(self) -> int:
        """How many entries of these ledgers were deleted, which those that follow do not change."""
        ledger_id, entry_id = self.front.position
        index = self._index(ledger_id)
        if index is None:
            return self._ranks[bisect_left(self._ids, ledger_id)]
        # Of the open ledger more may be deleted than is seen of it here, by who follows its owner.
        info = self.ledgers[index]
        return self._ranks[index] + (min(entry_id, info.entries) if info.closed else entry_id)

    def begin_at(self, front: Front) -> None:
        """All before it is deleted. One that lies before the present one says nothing."""
        if front.offset > self.front.offset:
            self.front = front
            self._floor = self._rank_before_front()

    def end_front(self) -> None:
        """What the log has lost of its end (which only unsafe settings allow) was deleted: what
        comes now was not."""
        if self.front.offset > self.end_offset:
            end = self.end_offset
            self.front = Front(self.next_position(self.confirmed), end, end)
            self._floor = self._rank_before_front()

    def _with_offsets(self, ledgers: Sequence[LedgerInfo]) -> list[LedgerInfo]:
        """``ledgers``, each with the offsets that follow from those before it."""
        found = []
        offset = self.first_offset
        for info in ledgers:
            messages = info.messages
            if info.closed and messages == 0:
                messages = info.entries  # written before offsets were kept
            assert messages >= info.entries or not info.closed, f"too few messages: {info}"
            if (info.first_offset, info.messages) != (offset, messages):
                info = replace(info, first_offset=offset, messages=messages)
            found.append(info)
            offset += messages if info.closed else 0
        return found

    def _end(self) -> Position:
        """The last entry that the chain holds; (last ledger, -1) if it holds none."""
        for info in reversed(self.ledgers):
            last = self.last_entry(info.ledger_id)
            if last >= 0:
                return Position(info.ledger_id, last)
        return Position(self._ids[-1], NO_ENTRY) if self._ids else self.trimmed

    def open_ledger(self, info: LedgerInfo) -> None:
        """A new, empty, open ledger is the last one now."""
        assert not info.closed
        self.replace_ledgers([*self.ledgers, info])

    def close_last(
        self,
        entries: int,
        stored_bytes: int,
        closed_ms: int,
        messages: int = 0,
        greatest_ms: int = 0,
        least_ms: int = 0,
    ) -> LedgerInfo:
        """The open ledger is closed with that many entries, which hold ``messages`` (0: one
        each); an empty one leaves the chain."""
        info = replace(
            self.ledgers[-1],
            entries=entries,
            stored_bytes=stored_bytes,
            closed_ms=closed_ms,
            messages=messages or entries,
            greatest_ms=greatest_ms,
            least_ms=least_ms,
        )
        self.replace_ledgers([*self.ledgers[:-1], info] if entries else self.ledgers[:-1])
        return info

    def trim(self, count: int) -> list[LedgerInfo]:
        """Take the first ``count`` ledgers out; they must be closed."""
        gone = self.ledgers[:count]
        assert all(info.closed for info in gone)
        if gone:
            last = gone[-1]
            self.trimmed = Position(last.ledger_id, last.entries - 1)
            self.first_offset = last.first_offset + last.messages
            self.replace_ledgers(self.ledgers[count:])
        return gone

    def store(self, stored: StoredAt, ledger_ids: Collection[int]) -> None:
        """The entries of these ledgers, which are closed, lie there now."""
        changed = []
        for info in self.ledgers:
            if info.ledger_id in ledger_ids:
                assert info.closed
                info = replace(info, stored=stored)
            changed.append(info)
        self.ledgers = changed

    def confirm(self, entry_id: int, end_offset: int) -> None:
        """Entries of the open ledger up to ``entry_id`` are confirmed; the message after them
        has the offset ``end_offset``."""
        if entry_id > self.last_confirmed_entry:
            assert end_offset - self.end_offset >= entry_id - self.last_confirmed_entry
            self.end_offset = end_offset
            self.last_confirmed_entry = entry_id
            self.confirmed = _new(Position, (self._ids[-1], entry_id))

    def follow(
        self,
        ledgers: Sequence[LedgerInfo],
        trimmed: Position,
        first_offset: int,
        front: Front = NO_FRONT,
    ) -> list[int]:
        """The chain is what its owner's record says now, in whatever steps it came there. Returns
        the ids of the ledgers that left it, or lie elsewhere now."""
        former, opened = self.ledgers, self.open_ledger_id
        if opened is None or not ledgers or ledgers[-1].ledger_id != opened:
            # What was open is closed, or gone: its end is the record's to say. Another one that is
            # open in its place has nothing confirmed yet.
            self.last_confirmed_entry = NO_ENTRY
        self.trimmed = trimmed
        self.first_offset = first_offset
        self.front = front
        self.replace_ledgers(ledgers)
        return [each.ledger_id for each in former if self.stored(each.ledger_id) != each.stored]

    def loses_end(self, ledgers: Sequence[LedgerInfo], first_offset: int) -> bool:
        """Whether a chain of ``ledgers`` lacks messages that are confirmed here: its last one was
        closed without them (``ledger.given_up``, or unsafe settings)."""
        if ledgers and not ledgers[-1].closed and ledgers[-1].ledger_id == self.open_ledger_id:
            return False  # it is seen less of it, and it may be the same
        closed = (info.messages or info.entries for info in ledgers if info.closed)
        return first_offset + sum(closed) < self.end_offset

    # -- asking for ledgers -------------------------------------------------------------------

    def _index(self, ledger_id: int) -> int | None:
        index = bisect_left(self._ids, ledger_id)
        found = index < len(self._ids) and self._ids[index] == ledger_id
        return index if found else None

    def last_entry(self, ledger_id: int) -> int:
        """The id of the ledger's last confirmed entry; -1 if it has none or is not there."""
        index = self._index(ledger_id)
        if index is None:
            return NO_ENTRY
        info = self.ledgers[index]
        return info.entries - 1 if info.closed else self.last_confirmed_entry

    def is_final(self, ledger_id: int) -> bool:
        """True when the ledger takes no more entries (closed, or gone)."""
        index = self._index(ledger_id)
        return index is None or self.ledgers[index].closed

    @property
    def open_ledger_id(self) -> int | None:
        """The last ledger's, while that is open."""
        return self._ids[-1] if self.ledgers and not self.ledgers[-1].closed else None

    def following(self, ledger_id: int) -> int | None:
        """The next ledger after that id, which itself may be gone."""
        index = bisect_right(self._ids, ledger_id)
        return self._ids[index] if index < len(self._ids) else None

    @property
    def last_ledger_id(self) -> int:
        """The newest ledger that is or was in the chain; -1 if there was none."""
        return self._ids[-1] if self._ids else self.trimmed.ledger_id

    # -- asking for positions -----------------------------------------------------------------

    @property
    def first(self) -> Position:
        """The first entry held, or the place of the next one when there is none."""
        if self._floor:
            if self._floor < self._last_rank:
                return self.at_rank(self._floor + 1)
            return max(self._beyond(), self.front.position)
        if self._ids:
            return Position(self._ids[0], 0)
        return Position(self.trimmed.ledger_id, self.trimmed.entry_id + 1)

    def settle(self, position: Position) -> Position:
        """The first entry at or after ``position``; past the last one, its place."""
        return self.next_position(Position(position.ledger_id, position.entry_id - 1))

    def next_position(self, position: Position) -> Position:
        """The position of the entry after ``position``, or the place of the next append."""
        rank = self.rank(position)
        return self.at_rank(rank + 1) if rank < self._last_rank else self._beyond()

    def _beyond(self) -> Position:
        """The place of the next append, as far as known."""
        if self._ids and self._ids[-1] > self.confirmed.ledger_id:
            return Position(self._ids[-1], 0)
        return Position(self.confirmed.ledger_id, self.confirmed.entry_id + 1)

    def previous_position(self, position: Position) -> Position:
        """The position before ``position``: that of the entry before it, or (first ledger, -1)
        (what was trimmed, if there is no ledger) from the first on back."""
        return self.last_at(Position(position.ledger_id, position.entry_id - 1))

    def last_at(self, position: Position) -> Position:
        """The last entry at or before ``position``; as ``before_first`` if there is none."""
        rank = self.rank(position)
        return self.at_rank(rank) if rank > 0 else self.before_first()

    def before_first(self) -> Position:
        rank = self.rank(EARLIEST)
        if rank > 0:
            return self.at_rank(rank)
        return Position(self._ids[0], NO_ENTRY) if self._ids else self.trimmed

    def mark_before(self, start: Position) -> Position:
        """The mark-delete position of a cursor that reads ``start`` next (``EARLIEST`` and
        ``LATEST`` allowed)."""
        if start == LATEST:
            return self.confirmed
        if start < self.first and self.compacted_to > EARLIEST:
            # What was trimmed may have survived compaction: none of it counts as read.
            return max(EARLIEST, Position(start.ledger_id, start.entry_id - 1))
        if start == EARLIEST:
            return self.before_first()
        return self.previous_position(start)

    # -- ranks --------------------------------------------------------------------------------

    def rank(self, position: Position) -> int:
        """How many entries of the chain's ledgers are at or before ``position``; before the first
        that is held, all that were deleted."""
        found = self._rank(position)
        return found if found > self._floor else min(self._floor, self._last_rank)

    def _rank(self, position: Position) -> int:
        index = bisect_left(self._ids, position.ledger_id)
        if index == len(self._ids):
            return self._last_rank
        if self._ids[index] != position.ledger_id:
            return self._ranks[index]
        last = self.last_entry(position.ledger_id)
        return self._ranks[index] + max(NO_ENTRY, min(position.entry_id, last)) + 1

    def at_rank(self, rank: int) -> Position:
        """The position of the ``rank``-th entry, counted from 1."""
        assert 1 <= rank <= self._last_rank
        index = min(bisect_left(self._ranks, rank) - 1, len(self._ids) - 1)
        return Position(self._ids[index], rank - self._ranks[index] - 1)

    @property
    def _last_rank(self) -> int:
        return self._ranks[-1] + self.last_confirmed_entry + 1

    @property
    def entries(self) -> int:
        """All confirmed entries that the chain holds."""
        return max(0, self._last_rank - self._floor)

    @property
    def deleted(self) -> Position:
        """The last entry that is gone from the log's front; ``EARLIEST``: none is."""
        rank = self.rank(EARLIEST)
        return self.at_rank(rank) if rank > 0 else self.trimmed

    def entries_between(self, after: Position, last: Position) -> int:
        """How many entries lie in (after, last]."""
        return max(0, self.rank(last) - self.rank(after))

    # -- offsets ------------------------------------------------------------------------------

    @property
    def first_message(self) -> int:
        """The offset of the first message of ``first``."""
        return max(self.first_offset, self.front.entry_offset)

    def messages_of(self, info: LedgerInfo) -> int:
        """How many messages of the ledger are confirmed."""
        return info.messages if info.closed else self.end_offset - info.first_offset

    def uniform(self, info: LedgerInfo) -> bool:
        """Whether each entry of the ledger is one message."""
        return self.messages_of(info) == self.last_entry(info.ledger_id) + 1

    def info(self, ledger_id: int) -> LedgerInfo | None:
        index = self._index(ledger_id)
        return None if index is None else self.ledgers[index]

    def stored(self, ledger_id: int) -> StoredAt | None:
        """Where the ledger's entries lie; None if it is not in the chain."""
        info = self.info(ledger_id)
        return None if info is None else info.stored

    def holder(self, offset: int) -> LedgerInfo | None:
        """The ledger that holds the message; None past the end."""
        if offset >= self.end_offset:
            return None
        index = bisect_right(self.ledgers, offset, key=lambda info: info.first_offset) - 1
        return self.ledgers[max(0, index)]

    def messages_until(self, position: Position) -> int:
        """How many messages are at or before ``position``, of those in the chain's ledgers; before
        ``first``, all that were deleted. Exact there, at a ledger's end and at ``confirmed``;
        inside a ledger its mean is taken."""
        if self._floor and position < self.first:
            return self.front.entry_offset - self.first_offset
        index = bisect_left(self._ids, position.ledger_id)
        if index == len(self._ids):
            return self.end_offset - self.first_offset
        info = self.ledgers[index]
        before = info.first_offset - self.first_offset
        if info.ledger_id != position.ledger_id:
            return before
        entries = self.last_entry(info.ledger_id) + 1
        inside = max(0, min(position.entry_id + 1, entries))
        return before + (self.messages_of(info) * inside // entries if inside else 0)

    def messages_between(self, after: Position, last: Position) -> int:
        """How many messages lie in (after, last]; see ``messages_until``."""
        return max(0, self.messages_until(last) - self.messages_until(after))
