"""What a shared subscription sends again: places to replay, and how often each was redelivered.

``Replays`` is what a feed knows of that; ``dispatch.key_waiting`` is the other one of its kind.

Keys are ``(ledger id, entry id)``. An entry is at one place at a time: out at a consumer (the
consumer's own ``pending``), or waiting here, or neither (acknowledged or not read yet); so what is
held is bounded by what consumers may hold unacknowledged. Pure.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from typing import Final, NamedTuple, Protocol, TypeAlias

Key: TypeAlias = tuple[int, int]


class ReplayRun(NamedTuple):
    """``length`` consecutive entries from ``entry_id`` on, of one ledger."""

    ledger_id: int
    entry_id: int
    length: int


def runs_of(keys: Iterable[Key]) -> list[ReplayRun]:
    """``keys``, in order, as runs."""
    runs: list[ReplayRun] = []
    for key in keys:
        last = runs[-1] if runs else None
        if last and key == (last.ledger_id, last.entry_id + last.length):
            runs[-1] = ReplayRun(last.ledger_id, last.entry_id, last.length + 1)
        else:
            runs.append(ReplayRun(key[0], key[1], 1))
    return runs


class Replays(Protocol):
    """What the feed knows of what is to be sent again. ``by_place``: what cannot be sent waits by
    its place, to be read again, and nothing else is placed while something is being read.
    ``counts``: how often each was redelivered."""

    counts: dict[Key, int]

    @property
    def by_place(self) -> bool: ...

    @property
    def ready(self) -> bool:
        """``take`` has some. What it gave before is not on its way any more."""
        ...

    @property
    def full(self) -> bool:
        """So much waits that nothing new is to be read."""
        ...

    @property
    def unread(self) -> int:
        """Of how many nothing is known but their places."""
        ...

    def add(self, keys: Iterable[Key], counted: bool) -> None:
        """Send ``keys`` again; ``counted`` raises their redelivery counts by one.

        A consumer that refused or timed out counts; one that merely left does not.
        """
        ...

    def forget(self, keys: Iterable[Key]) -> None:
        """``keys`` are acknowledged."""
        ...

    def has_below(self, key: Key) -> bool:
        """Whether an entry below ``key`` may be waiting that has to go first."""
        ...

    def up_to(self, last: Key) -> list[Key]:
        """What waits, or was refused, of all up to ``last``."""
        ...

    def take(self, entries_max: int) -> list[ReplayRun]:
        """Remove and return the lowest waiting entries that can be sent as runs, at most
        ``entries_max``."""
        ...

    def clear(self) -> None: ...


class Redelivery:
    """Entries to send again, lowest first, and redelivery counts. It is ``Replays``."""

    __slots__ = ("_heap", "_waiting", "counts")

    by_place: Final = False
    full: Final = False

    def __init__(self) -> None:
        self.counts: dict[Key, int] = {}
        self._heap: list[Key] = []
        self._waiting: dict[Key, None] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def ready(self) -> bool:
        return bool(self._waiting)

    @property
    def unread(self) -> int:
        return len(self._waiting)

    def add(self, keys: Iterable[Key], counted: bool) -> None:
        waiting, counts = self._waiting, self.counts
        for key in keys:
            if key not in waiting:
                waiting[key] = None
                heapq.heappush(self._heap, key)
            if counted:
                counts[key] = counts.get(key, 0) + 1

    def forget(self, keys: Iterable[Key]) -> None:
        waiting, counts = self._waiting, self.counts
        if not waiting and not counts:
            return
        for key in keys:
            waiting.pop(key, None)
            counts.pop(key, None)
        if not waiting:
            self._heap.clear()  # else what was forgotten stays there until somebody takes

    def has_below(self, key: Key) -> bool:
        """See ``Replays``. What was forgotten does not wait: whatever lies behind ``key`` would be
        sent before it."""
        heap, waiting = self._heap, self._waiting
        while heap and heap[0] not in waiting:
            heapq.heappop(heap)
        return bool(heap) and heap[0] < key

    def up_to(self, last: Key) -> list[Key]:
        return [key for key in {**self._waiting, **dict.fromkeys(self.counts)} if key <= last]

    def take(self, entries_max: int) -> list[ReplayRun]:
        taken: list[Key] = []
        while len(taken) < entries_max and self._heap:
            key = heapq.heappop(self._heap)
            if key in self._waiting:
                del self._waiting[key]
                taken.append(key)
        return runs_of(taken)

    def clear(self) -> None:
        self.counts.clear()
        self._heap.clear()
        self._waiting.clear()
