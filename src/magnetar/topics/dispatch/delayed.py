"""Entries of a shared subscription that are not due yet: which they are, and which are due. Pure.

Owns an index of (time, place) of what was read and must wait. Nothing of it is stored: the log has
the entries, and who reads on from the mark-delete position finds all of them again.

Rules:

* An entry is given out when the clock has reached its time, never before, in the order of times,
  and of the log where times are equal.
* Looks come at multiples of the tick (``look_at_ms``), so what is due is found within a tick, and
  many times that lie together cost one look.
* Each call goes by the clock as it is now: one that was wrong, and is set back, leaves nothing
  early. What was given out once does not come here again (whoever dispatches sees to that).
* At most ``entries_max`` are held, and a batch more; who reads ahead stops while it is ``full``.

Invariant: an entry that was held is in the index until it is taken; so it is here, or out at a
consumer, or waits to be sent again, and in no two of these.

How: a run is ``RUN_ENTRIES`` of them, sorted, in arrays of 24 bytes an entry, and the earliest of
all is found by a heap of the runs' heads. The newest ones wait in a heap of their own until they
are a run. Taking one costs the logarithm of the number of runs, and nothing is ever moved but when
small runs, whose entries are gone for the most part, are merged.

Why not a heap of all: a tuple of three numbers takes eight times the memory. Why not buckets of
time: a million entries have a million times, or one.

Why: docs/adr/0069-delayed-delivery.md.
"""

from __future__ import annotations

import heapq
from array import array
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple, TypeAlias

from magnetar.model.entry import Description, Entry
from magnetar.topics.dispatch.redelivery import Key

RUN_ENTRIES: Final = 1024
RUNS_MAX: Final = 4096
"""Past it the ``MERGED_RUNS`` smallest become one."""
MERGED_RUNS: Final = 64
ENTRY_BYTES: Final = 24
NEW_ENTRY_BYTES: Final = 200
"""Of one that is in no run yet, about."""
FOR_EVER_MS: Final = 2**63 - 1

Due: TypeAlias = tuple[int, int, int]
"""Time, ledger id, entry id."""


class DelayPolicy(NamedTuple):
    """``active``: delays are kept; else everything is delivered at once. ``delay_ms_max``:
    producers may ask for no longer one; 0: for any."""

    active: bool = True
    tick_ms: int = 1000
    delay_ms_max: int = 0


class _SortedRun:
    """Sorted; those before ``at`` are gone."""

    __slots__ = ("at", "entries", "ledgers", "times")

    def __init__(self, found: Sequence[Due]) -> None:
        self.times = array("q", [item[0] for item in found])
        self.ledgers = array("q", [item[1] for item in found])
        self.entries = array("q", [item[2] for item in found])
        self.at = 0

    def __len__(self) -> int:
        return len(self.times) - self.at

    def head(self) -> Due:
        at = self.at
        return self.times[at], self.ledgers[at], self.entries[at]

    def step(self) -> bool:
        """Past the head; False if nothing is left."""
        self.at += 1
        if self.at * 2 >= len(self.times):
            for numbers in (self.times, self.ledgers, self.entries):
                del numbers[: self.at]
            self.at = 0
        return bool(self.times)

    def left(self) -> Iterable[Due]:
        at = self.at
        return zip(self.times[at:], self.ledgers[at:], self.entries[at:], strict=True)


class DelayedEntries:
    """See the module's text. Times are milliseconds since 1970."""

    def __init__(self, entries_max: int, tick_ms: int) -> None:
        self.tick_ms = tick_ms
        self._entries_max = entries_max
        self._count = 0
        self._new: list[Due] = []
        self._runs: dict[int, _SortedRun] = {}
        self._heads: list[tuple[Due, int]] = []
        self._numbers = 0

    def __len__(self) -> int:
        return self._count

    @property
    def full(self) -> bool:
        return self._count >= self._entries_max

    @property
    def below_half(self) -> bool:
        return self._count * 2 < self._entries_max

    @property
    def size_bytes(self) -> int:
        """What the index takes in memory, about."""
        new = len(self._new)
        return NEW_ENTRY_BYTES * new + ENTRY_BYTES * (self._count - new)

    def clear(self) -> None:
        """All of it will be read again."""
        self._count = 0
        self._new.clear()
        self._runs.clear()
        self._heads.clear()

    # -- coming in ----------------------------------------------------------------------------

    def hold(
        self, entries: Sequence[Entry], descriptions: Sequence[Description], now_ms: int
    ) -> tuple[list[Entry], list[Description]]:
        """Keep in the index what is not due at ``now_ms``; gives the others."""
        due: list[Entry] = []
        their: list[Description] = []
        for entry, description in zip(entries, descriptions, strict=True):
            if description.deliver_at_ms > now_ms:
                self._add((description.deliver_at_ms, entry.ledger_id, entry.entry_id))
            else:
                due.append(entry)
                their.append(description)
        return due, their

    def _add(self, due: Due) -> None:
        self._count += 1
        heapq.heappush(self._new, due)
        if len(self._new) >= RUN_ENTRIES:
            self._new.sort()
            self._begin_run(self._new)
            self._new.clear()
            if len(self._runs) > RUNS_MAX:
                self._merge()

    def _begin_run(self, found: Sequence[Due]) -> None:
        self._numbers += 1
        run = self._runs[self._numbers] = _SortedRun(found)
        heapq.heappush(self._heads, (run.head(), self._numbers))

    def _merge(self) -> None:
        """The smallest runs become one: of many long delays among short ones, runs are left that
        hold a few entries each."""
        smallest = heapq.nsmallest(MERGED_RUNS, self._runs, key=lambda n: len(self._runs[n]))
        merged: list[Due] = []
        for number in smallest:
            merged += self._runs.pop(number).left()
        merged.sort()
        self._heads = [item for item in self._heads if item[1] in self._runs]
        heapq.heapify(self._heads)
        self._begin_run(merged)

    # -- going out ----------------------------------------------------------------------------

    def next_due_ms(self) -> int | None:
        """When the first is due; None if nothing is held."""
        if not self._count:
            return None
        firsts = [*self._new[:1], *(due for due, _ in self._heads[:1])]
        return min(firsts)[0]

    def is_due(self, now_ms: int) -> bool:
        """Whether ``take_due`` has any."""
        first = self.next_due_ms()
        return first is not None and first <= now_ms

    def look_at_ms(self, now_ms: int) -> int | None:
        """When to look next: at the first multiple of the tick at which the first is due. None if
        nothing is held, or some is due already: whoever has no room for that looks when he has."""
        first = self.next_due_ms()
        if first is None or first <= now_ms:
            return None
        return -(-first // self.tick_ms) * self.tick_ms

    def take_due(self, now_ms: int, entries_max: int) -> list[Key]:
        """Up to ``entries_max`` that are due, the earliest first; they leave the index."""
        return self._take(now_ms, entries_max)

    def take_any(self, entries_max: int) -> list[Key]:
        """As ``take_due``, due or not: nothing is to wait any more."""
        return self._take(FOR_EVER_MS, entries_max)

    def _take(self, until_ms: int, entries_max: int) -> list[Key]:
        taken: list[Key] = []
        new, heads = self._new, self._heads
        while len(taken) < entries_max and self._count:
            from_run = bool(heads) and (not new or heads[0][0] < new[0])
            due = heads[0][0] if from_run else new[0]
            if due[0] > until_ms:
                break
            taken.append(due[1:])
            self._count -= 1
            if from_run:
                self._step(heads[0][1])
            else:
                heapq.heappop(new)
        return taken

    def _step(self, number: int) -> None:
        run = self._runs[number]
        if run.step():
            heapq.heapreplace(self._heads, (run.head(), number))
        else:
            heapq.heappop(self._heads)
            del self._runs[number]
