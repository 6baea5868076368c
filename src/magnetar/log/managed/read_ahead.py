"""Entries read ahead for catch-up readers: sliding windows over ledgers, one budget for all logs.

A window holds consecutive entries of one ledger that a sequential reader is about to ask for.
What was served is dropped when the window is extended; the windows used longest ago go first
when the budget is spent.

Rule: no reader loads more than its share of the budget (``share_bytes``), so that all windows fit
in. One that is thrown away before it was read makes its reader load it all again, for each entry
that it asks for.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence

from magnetar.model.entry import Entry

WINDOW_BYTES = 1 << 20
WINDOW_ENTRIES = 4_096
WINDOWS_MAX = 256


class Window:
    """Entries ``first`` .. ``end`` - 1 of a ledger; those before ``served`` were handed out."""

    __slots__ = ("entries", "first", "held_bytes", "ledger_id", "loading", "served")

    def __init__(self, ledger_id: int, entries: Sequence[Entry]) -> None:
        self.ledger_id = ledger_id
        self.first = entries[0].entry_id
        self.entries = list(entries)
        self.held_bytes = sum(len(entry.data) for entry in entries)
        self.served = 0
        self.loading = False

    @property
    def end(self) -> int:
        return self.first + len(self.entries)

    def read(self, first: int, max_entries: int, max_bytes: int) -> list[Entry]:
        """At most ``max_entries`` from ``first`` on, which the window must hold; at least one."""
        at = first - self.first
        stop = at
        limit = min(len(self.entries), at + max_entries)
        while stop < limit:
            max_bytes -= len(self.entries[stop].data)
            if max_bytes < 0 and stop > at:
                break
            stop += 1
        self.served = max(self.served, stop)
        return self.entries[at:stop]

    @property
    def wants_more(self) -> bool:
        return not self.loading and 2 * self.served >= len(self.entries)

    def extend(self, entries: Sequence[Entry]) -> None:
        """``entries`` follow; what was served goes."""
        self.held_bytes += sum(len(entry.data) for entry in entries)
        self.held_bytes -= sum(len(entry.data) for entry in self.entries[: self.served])
        del self.entries[: self.served]
        self.first += self.served
        self.served = 0
        self.entries += entries


class ReadAheadCache:
    """The windows of all logs, least recently used first."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.held_bytes = 0
        self._windows: OrderedDict[Window, int] = OrderedDict()  # window -> bytes accounted

    def find(self, ledger_id: int, entry_id: int) -> Window | None:
        """The window that holds the entry (ledger ids are unique over all logs)."""
        for window in self._windows:
            if window.ledger_id == ledger_id and window.first <= entry_id < window.end:
                self._windows.move_to_end(window)
                return window
        return None

    def share_bytes(self, window: Window | None) -> int:
        """How much may be loaded at once, for ``window`` or for one more. One that is extended
        whenever half of it was served comes to hold twice as much."""
        windows = len(self._windows) + (window not in self._windows)
        return min(WINDOW_BYTES, self.bytes_max // (2 * windows))

    def account(self, window: Window) -> None:
        """``window`` is new or was extended; makes room."""
        self.held_bytes += window.held_bytes - self._windows.pop(window, 0)
        self._windows[window] = window.held_bytes
        while self._windows and (
            self.held_bytes > self.bytes_max or len(self._windows) > WINDOWS_MAX
        ):
            _, size = self._windows.popitem(last=False)
            self.held_bytes -= size

    def holds(self, window: Window) -> bool:
        return window in self._windows

    def drop(self, window: Window) -> None:
        self.held_bytes -= self._windows.pop(window, 0)

    def drop_ledgers(self, ledger_ids: Iterable[int]) -> None:
        """Forget what was read of these ledgers."""
        gone = frozenset(ledger_ids)
        for window in [w for w in self._windows if w.ledger_id in gone]:
            self.drop(window)
