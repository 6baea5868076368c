"""The read cache: runs of consecutive entries read from entry logs, ahead of their readers.

Bounded in bytes; the oldest run goes first, which suits readers that move forward. A run costs one
insertion however many entries it has. Runs of a ledger may overlap; what only the earlier of two
holds behind the beginning of the later may be missed. Used on the loop only.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import OrderedDict
from collections.abc import Sequence

from magnetar.bookie.storage.entry_runs import RecordRun

ENTRY_OVERHEAD_BYTES = 48
RUN_OVERHEAD_BYTES = 500


class ReadCache:
    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._runs: OrderedDict[tuple[int, int], Sequence[bytes]] = OrderedDict()
        self._firsts: dict[int, list[int]] = {}  # ledger id -> where its runs begin, ascending
        self.byte_count = 0

    def get(self, ledger_id: int, entry_id: int) -> bytes | None:
        """The entry if it is here."""
        run = self.run(ledger_id, entry_id, 1)
        return run[0] if run else None

    def run(self, ledger_id: int, entry_id: int, count: int) -> Sequence[bytes]:
        """The entry and those that follow it in its run, at most ``count``; empty: not here."""
        firsts = self._firsts.get(ledger_id)
        if firsts is None:
            return ()
        place = bisect_right(firsts, entry_id) - 1
        if place < 0:
            return ()
        begin = entry_id - firsts[place]
        return self._runs[ledger_id, firsts[place]][begin : begin + count]

    def put(self, ledger_id: int, first_entry_id: int, entries: Sequence[bytes]) -> None:
        """Take a run; older ones make room."""
        if not entries:
            return
        key = (ledger_id, first_entry_id)
        if key in self._runs:
            self._drop(key)
        self._runs[key] = entries
        insort(self._firsts.setdefault(ledger_id, []), first_entry_id)
        self.byte_count += _size(entries)
        while self.byte_count > self._bytes_max:
            self._drop(next(iter(self._runs)))

    def drop_entries(self, ledger_id: int, entry_ids: Sequence[int]) -> None:
        """Forget entries that were added again, and the runs that they are in: the newer bytes
        count."""
        low, high = min(entry_ids), max(entry_ids)
        for first in self._firsts.get(ledger_id, ())[:]:
            if first <= high and first + len(self._runs[ledger_id, first]) > low:
                self._drop((ledger_id, first))

    def drop_ledger(self, ledger_id: int) -> None:
        for first in self._firsts.get(ledger_id, ())[:]:
            self._drop((ledger_id, first))

    def _drop(self, key: tuple[int, int]) -> None:
        self.byte_count -= _size(self._runs.pop(key))
        ledger_id, first = key
        firsts = self._firsts[ledger_id]
        del firsts[bisect_left(firsts, first)]
        if not firsts:
            del self._firsts[ledger_id]


def _size(entries: Sequence[bytes]) -> int:
    held_bytes = entries.held_bytes if isinstance(entries, RecordRun) else sum(map(len, entries))
    return held_bytes + len(entries) * ENTRY_OVERHEAD_BYTES + RUN_OVERHEAD_BYTES
