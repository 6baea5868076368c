"""The newest entries of partitions in memory, as they were written: nobody copies them.

One budget in bytes over all logs; the append that came first goes first. Whoever reads bounds what
it takes by what is committed: the tail has appended entries, too. Entries are shared objects, so
that what one reader finds out about one (its ``description``) the others need not.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Sequence
from typing import Final

from magnetar.model.entry import Entry

ENTRY_OVERHEAD_BYTES: Final = 300
"""What an entry costs beside its bytes: two objects, a view, two slots."""
COMPACT_AT: Final = 512
"""Dropped slots at a list's front before they are given back."""


class TailBudget:
    """Shared by all tails of a process."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.held_bytes = 0
        self._order: deque[tuple[PartitionTail, int, int]] = deque()
        """(tail, entries, bytes) of each append, oldest first."""

    def added(self, tail: PartitionTail, count: int, size: int) -> None:
        self._order.append((tail, count, size))
        self.held_bytes += size
        while self.held_bytes > self.bytes_max and len(self._order) > 1:
            oldest, count, size = self._order.popleft()
            self.held_bytes -= size
            oldest.drop_first(count)


class PartitionTail:
    """Of one log."""

    __slots__ = ("_budget", "_dropped", "_entries", "_offsets", "_owed")

    def __init__(self, budget: TailBudget) -> None:
        self._budget = budget
        self._offsets: list[int] = []
        self._entries: list[Entry | None] = []
        self._dropped = 0
        self._owed = 0
        """Entries that were cleared here, and are still counted in the budget."""

    def add(self, offsets: Sequence[int], entries: Sequence[Entry]) -> None:
        """Of one append, in order, one at least; they will go together."""
        self._offsets += offsets
        self._entries += entries
        count = len(entries)
        size = sum([len(entry.data) for entry in entries]) + count * ENTRY_OVERHEAD_BYTES
        self._budget.added(self, count, size)

    def drop_first(self, count: int) -> None:
        """Those of the oldest append."""
        if self._owed:
            self._owed -= count
            return
        self._entries[self._dropped : self._dropped + count] = [None] * count
        self._dropped += count
        if self._dropped >= COMPACT_AT and 2 * self._dropped >= len(self._entries):
            del self._entries[: self._dropped], self._offsets[: self._dropped]
            self._dropped = 0

    def read(
        self, offset: int, end_offset: int, max_entries: int, max_bytes: int
    ) -> list[Entry] | None:
        """Entries from the one that begins at ``offset`` on, before ``end_offset``, at least one;
        None if it is not held."""
        at = bisect_left(self._offsets, offset, self._dropped)
        if at == len(self._offsets) or self._offsets[at] != offset:
            return None
        stop = bisect_left(self._offsets, end_offset, at)
        found: list[Entry] = []
        for entry in self._entries[at : min(stop, at + max_entries)]:
            assert entry is not None, "it was dropped"
            max_bytes -= len(entry.data)
            if max_bytes < 0 and found:
                break
            found.append(entry)
        return found or None

    def begins_before(self, offset: int) -> bool:
        """Whether an entry is held that begins before ``offset``."""
        return self._dropped < len(self._offsets) and self._offsets[self._dropped] < offset

    def clear(self) -> None:
        """Nobody reads here any more; the budget hears of it as it goes on."""
        self._owed += len(self._entries) - self._dropped
        self._entries, self._offsets, self._dropped = [], [], 0
