"""The tail of every log in memory: the entries as the ledger writer built them, not copied.

One budget in bytes over all logs; what came first goes first. A log's tail is one run of
consecutive entries per ledger, so reading is slicing a list. Whoever reads bounds the slice by
what is confirmed: the cache holds unconfirmed entries too.

Subscriptions read a log's newest entries at about the same time. The newest that were read are kept
as ``Entry`` objects (``SHARED_ENTRIES`` a run), so that all of them get the same ones, and what one
has found out about an entry (its ``description``) the others need not. Only so many, because the
collector visits each of them, as it does not the bytes of all others.

Why: docs/adr/0054-lazy-ledgers-and-two-caches.md.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from magnetar.model.entry import Entry

ENTRY_OVERHEAD_BYTES = 80
"""What an entry costs beside its bytes (object header, list slot, allocator)."""

SHARED_ENTRIES = 512
"""Entries of a run that are shared as objects; twice what a reader takes at once."""

COMPACT_AT = 512
"""Dropped slots at a list's front before they are given back."""


DEAD_BATCHES_LEAST = 1_024


class _Run:
    """Consecutive entries of one ledger; ``entries[dropped]`` has the id ``first``. A dead run
    was given back before its ``batches`` came to be evicted."""

    __slots__ = (
        "batches",
        "dead",
        "dropped",
        "end",
        "entries",
        "first",
        "held_bytes",
        "ledger_id",
        "payload_offset",
        "shared",
        "shared_first",
    )

    def __init__(self, ledger_id: int, first: int, payload_offset: int) -> None:
        self.ledger_id = ledger_id
        self.first = self.end = first
        self.payload_offset = payload_offset
        self.entries: list[bytes | None] = []
        self.dropped = 0
        self.held_bytes = 0
        self.batches = 0
        self.dead = False
        self.shared: list[Entry] = []
        self.shared_first = first  # the id of ``shared[0]``

    def __len__(self) -> int:
        return len(self.entries) - self.dropped

    def drop(self, count: int) -> None:
        end = self.dropped + count
        self.entries[self.dropped : end] = [None] * count
        self.first += count
        self.dropped = end
        if self.shared_first < self.first:
            del self.shared[: self.first - self.shared_first]
            self.shared_first = self.first
        if end >= COMPACT_AT and 2 * end >= len(self.entries):
            del self.entries[:end]
            self.dropped = 0

    def slice(self, first: int, count: int, bytes_max: int) -> list[Entry]:
        """Entries ``first`` to ``first + count``, which are held; fewer if they are larger than
        ``bytes_max`` together, but at least one."""
        shared, at = self.shared, first - self.shared_first
        found = shared[at : at + count] if 0 <= at < len(shared) else []
        for index, entry in enumerate(found):
            bytes_max -= len(entry.data)
            if bytes_max < 0 and index:
                return found[:index]
        if len(found) < count and (bytes_max > 0 or not found):
            found += self._make(first + len(found), count - len(found), bytes_max, not found)
        return found

    def _make(self, first: int, count: int, bytes_max: int, at_least_one: bool) -> list[Entry]:
        """Objects for entries of which none are shared; they are from now on if they are new."""
        begin = self.dropped + first - self.first
        ledger_id, offset = self.ledger_id, self.payload_offset
        made: list[Entry] = []
        for entry_id, data in enumerate(self.entries[begin : begin + count], first):
            assert data is not None, "it was dropped"
            bytes_max -= len(data)
            if bytes_max < 0 and not (at_least_one and not made):
                break
            made.append(Entry(ledger_id, entry_id, data, offset))
        shared = self.shared
        end = self.shared_first + len(shared)
        if first == end:
            shared += made
        elif first > end:  # nobody has read what lies between: begin anew
            self.shared = shared = made.copy()
            self.shared_first = first
        if len(shared) > SHARED_ENTRIES:
            self.shared_first += len(shared) - SHARED_ENTRIES
            del shared[:-SHARED_ENTRIES]
        return made


class LogTail:
    """One log's part of the cache."""

    __slots__ = ("_cache", "_runs")

    def __init__(self, cache: TailCache) -> None:
        self._cache = cache
        self._runs: list[_Run] = []  # of growing ledger ids, few

    def add(
        self,
        ledger_id: int,
        first: int,
        entries: Sequence[bytes],
        stored_bytes: int,
        payload_offset: int,
    ) -> None:
        """``entries``, of ``stored_bytes`` together, were appended under ids from ``first`` on."""
        run = self._runs[-1] if self._runs else None
        if run is None or run.ledger_id != ledger_id or run.end != first:
            if run is not None and run.ledger_id == ledger_id:
                # A gap: what lies before it is not worth a second run.
                self._cache.give_back(self._runs.pop())
            run = _Run(ledger_id, first, payload_offset)
            self._runs.append(run)
        count = len(entries)
        run.entries += entries
        run.end = first + count
        size = stored_bytes + ENTRY_OVERHEAD_BYTES * count
        run.batches += 1
        run.held_bytes += size
        self._cache.added((self, run, count, size))

    def read(
        self, ledger_id: int, first: int, last: int, max_entries: int, max_bytes: int
    ) -> list[Entry] | None:
        """Entries ``first``..``last`` of the ledger, bounded, at least one; None when ``first``
        is not held. ``max_bytes`` counts whole entries."""
        for run in self._runs:
            if run.ledger_id == ledger_id:
                break
        else:
            return None
        at = first - run.first
        count = min(max_entries, last - first + 1, len(run) - at)
        if at < 0 or count <= 0:
            return None
        return run.slice(first, count, max_bytes)

    def drop_front(self, run: _Run, count: int) -> None:
        """The cache evicts ``count`` entries of ``run``."""
        run.drop(count)
        runs = self._runs
        while len(runs) > 1 and not len(runs[0]):
            del runs[0]

    def clear(self) -> None:
        """The log is closed: give everything back."""
        while self._runs:
            self._cache.give_back(self._runs.pop())


class TailCache:
    """The budget that all tails share."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.held_bytes = 0
        self._batches: deque[tuple[LogTail, _Run, int, int]] = deque()  # oldest first
        self._dead_batches = 0

    def tail(self) -> LogTail:
        return LogTail(self)

    def added(self, batch: tuple[LogTail, _Run, int, int]) -> None:
        self._batches.append(batch)
        self.held_bytes += batch[3]
        while self.held_bytes > self.bytes_max:
            self._evict()

    def _evict(self) -> None:
        tail, run, count, size = self._batches.popleft()
        if run.dead:
            self._dead_batches -= 1
            return
        run.batches -= 1
        run.held_bytes -= size
        self.held_bytes -= size
        tail.drop_front(run, count)

    def give_back(self, run: _Run) -> None:
        """Nobody reads ``run`` any more: its bytes go now, its batches when their turn comes, or
        when they are most of what waits for it."""
        run.dead = True
        run.entries = []
        run.shared = []
        self.held_bytes -= run.held_bytes
        self._dead_batches += run.batches
        if self._dead_batches > DEAD_BATCHES_LEAST and 2 * self._dead_batches > len(self._batches):
            self._batches = deque(batch for batch in self._batches if not batch[1].dead)
            self._dead_batches = 0
