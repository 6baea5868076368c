"""The tail of every log in memory: the entries as the ledger writer built them, not copied.

One budget in bytes over all logs; what came first goes first. A log's tail is one run of
consecutive entries per ledger, so reading is slicing a list. Whoever reads bounds the slice by
what is confirmed: the cache holds unconfirmed entries too.

Why: docs/adr/0054-lazy-ledgers-and-two-caches.md.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from magnetar.model.entry import Entry

ENTRY_OVERHEAD_BYTES = 80
"""What an entry costs beside its bytes (object header, list slot, allocator)."""

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
        "entries",
        "first",
        "held_bytes",
        "ledger_id",
        "payload_offset",
    )

    def __init__(self, ledger_id: int, first: int, payload_offset: int) -> None:
        self.ledger_id = ledger_id
        self.first = first
        self.payload_offset = payload_offset
        self.entries: list[bytes | None] = []
        self.dropped = 0
        self.held_bytes = 0
        self.batches = 0
        self.dead = False

    def __len__(self) -> int:
        return len(self.entries) - self.dropped

    def drop(self, count: int) -> None:
        end = self.dropped + count
        self.entries[self.dropped : end] = [None] * count
        self.first += count
        self.dropped = end
        if end >= COMPACT_AT and 2 * end >= len(self.entries):
            del self.entries[:end]
            self.dropped = 0


class LogTail:
    """One log's part of the cache."""

    __slots__ = ("_cache", "_runs")

    def __init__(self, cache: TailCache) -> None:
        self._cache = cache
        self._runs: deque[_Run] = deque()  # of growing ledger ids

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
        if run is None or run.ledger_id != ledger_id or run.first + len(run) != first:
            if run is not None and run.ledger_id == ledger_id:
                # A gap: what lies before it is not worth a second run.
                self._cache.give_back(self._runs.pop())
            run = _Run(ledger_id, first, payload_offset)
            self._runs.append(run)
        run.entries += entries
        self._cache.added(self, run, len(entries), stored_bytes)

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
        begin = run.dropped + at
        offset = run.payload_offset
        found: list[Entry] = []
        for data in run.entries[begin : begin + count]:
            assert data is not None
            max_bytes -= len(data)
            if max_bytes < 0 and found:
                break
            found.append(Entry(ledger_id, first, data, offset))
            first += 1
        return found

    def drop_front(self, run: _Run, count: int) -> None:
        """The cache evicts ``count`` entries of ``run``."""
        run.drop(count)
        runs = self._runs
        while len(runs) > 1 and not len(runs[0]):
            runs.popleft()

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

    def added(self, tail: LogTail, run: _Run, count: int, stored_bytes: int) -> None:
        size = stored_bytes + ENTRY_OVERHEAD_BYTES * count
        self._batches.append((tail, run, count, size))
        run.batches += 1
        run.held_bytes += size
        self.held_bytes += size
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
        self.held_bytes -= run.held_bytes
        self._dead_batches += run.batches
        if self._dead_batches > DEAD_BATCHES_LEAST and 2 * self._dead_batches > len(self._batches):
            self._batches = deque(batch for batch in self._batches if not batch[1].dead)
            self._dead_batches = 0
