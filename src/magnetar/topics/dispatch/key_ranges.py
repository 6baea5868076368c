"""Which seat of a Key_Shared subscription has which hash of keys: by a ring, or by ranges that
consumers name. Pure.

``HashRing`` (AUTO_SPLIT) is Pulsar's consistent hashing, its default: each consumer has ``POINTS``
points on the ring, by the hash of its name, and a hash belongs to the next point at or after it.
So one who comes or leaves moves only hashes that become, or were, its own. Consumers of one name
are told apart by a number, the lowest that is free: one that comes back at once gets its hashes
again. Where points of two collide, the earlier one has the point until it leaves.

``StickyRanges`` (STICKY): a hash that nobody named belongs to nobody.

Invariant: a hash belongs to one seat, or to nobody; with a ring and anybody there, to one.

A ring's hashes are 1 to 65 535, and of sticky ranges nobody gets 0: Pulsar's brokers use 0 for "no
hash".
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from typing import Final, Generic, Protocol

from magnetar.model.errors import ConsumerAssignError
from magnetar.model.key_hash import key_hash
from magnetar.topics.dispatch.key_policy import (
    HASH_MAX,
    HashRange,
    KeyMode,
    KeyPolicy,
    sticky_hash,
)
from magnetar.topics.dispatch.seats import Owner, Seat

POINTS: Final = 100
"""Pulsar's default (``subscriptionKeySharedConsistentHashingReplicaPoints``)."""


class Assignment(Protocol[Owner]):
    """Which seat has which hash."""

    def within(self, hashed: int) -> int:
        """A key's whole hash (``model.key_hash``) as one of this assignment's."""
        ...

    def check(self, policy: KeyPolicy) -> None:
        """Raise ``ConsumerAssignError`` if one who asks for ``policy`` cannot be added."""
        ...

    def add(self, seat: Seat[Owner], policy: KeyPolicy) -> None: ...

    def remove(self, seat: Seat[Owner]) -> None: ...

    def owner(self, hashed: int) -> Seat[Owner] | None:
        """Who has a hash; None: nobody."""
        ...

    def ranges(self) -> dict[Seat[Owner], list[HashRange]]:
        """What each has, in order."""
        ...


def assignment(mode: KeyMode) -> Assignment[Owner]:
    return StickyRanges() if mode is KeyMode.STICKY else HashRing()


class HashRing(Generic[Owner]):
    """See the module's text."""

    def __init__(self) -> None:
        self._points: list[int] = []
        self._seats: dict[int, list[Seat[Owner]]] = {}
        """By point; the first of them has it."""
        self._numbers: dict[str, dict[int, Seat[Owner]]] = {}
        """The numbers in use, by name."""

    def within(self, hashed: int) -> int:
        return hashed % HASH_MAX + 1

    def check(self, policy: KeyPolicy) -> None:
        pass

    def add(self, seat: Seat[Owner], policy: KeyPolicy) -> None:
        numbers = self._numbers.setdefault(seat.name, {})
        number = next(n for n in range(len(numbers) + 1) if n not in numbers)
        numbers[number] = seat
        for point in self._points_of(seat.name, number):
            sharers = self._seats.setdefault(point, [])
            if not sharers:
                insort(self._points, point)
            sharers.append(seat)

    def remove(self, seat: Seat[Owner]) -> None:
        numbers = self._numbers[seat.name]
        number = next(n for n, each in numbers.items() if each is seat)
        del numbers[number]
        if not numbers:
            del self._numbers[seat.name]
        for point in self._points_of(seat.name, number):
            sharers = self._seats[point]
            sharers.remove(seat)
            if not sharers:
                del self._seats[point]
                del self._points[bisect_left(self._points, point)]

    def _points_of(self, name: str, number: int) -> list[int]:
        return [
            self.within(key_hash(f"{name}\0{number}\0{point}".encode())) for point in range(POINTS)
        ]

    def owner(self, hashed: int) -> Seat[Owner] | None:
        points = self._points
        if not points:
            return None
        index = bisect_left(points, hashed)
        return self._seats[points[index if index < len(points) else 0]][0]

    def ranges(self) -> dict[Seat[Owner], list[HashRange]]:
        found: dict[Seat[Owner], list[HashRange]] = {}
        start, before = 1, None
        for end in (*self._points, HASH_MAX):
            seat = self.owner(end)
            if seat is None or start > end:
                continue
            mine = found.setdefault(seat, [])
            if seat is before:
                mine[-1] = HashRange(mine[-1].start, end)
            else:
                mine.append(HashRange(start, end))
            start, before = end + 1, seat
        return found


class StickyRanges(Generic[Owner]):
    """See the module's text."""

    def __init__(self) -> None:
        self._ranges: list[tuple[HashRange, Seat[Owner]]] = []
        """In order; no two overlap."""

    def within(self, hashed: int) -> int:
        return sticky_hash(hashed)

    def check(self, policy: KeyPolicy) -> None:
        for asked in policy.ranges:
            # The last that begins at or before its end: whatever overlaps is that, or before it.
            index = bisect_right(self._ranges, asked.end, key=_start) - 1
            if index >= 0 and self._ranges[index][0].end >= asked.start:
                taken, seat = self._ranges[index]
                raise ConsumerAssignError(
                    f"Range conflict with consumer {seat.name}: {asked} overlaps its {taken}; "
                    "sticky consumers of a subscription have ranges of their own"
                )

    def add(self, seat: Seat[Owner], policy: KeyPolicy) -> None:
        self.check(policy)
        self._ranges += [(each, seat) for each in policy.ranges]
        self._ranges.sort(key=_start)

    def remove(self, seat: Seat[Owner]) -> None:
        self._ranges = [item for item in self._ranges if item[1] is not seat]

    def owner(self, hashed: int) -> Seat[Owner] | None:
        index = bisect_right(self._ranges, hashed, key=_start) - 1
        if index < 0 or self._ranges[index][0].end < hashed:
            return None
        return self._ranges[index][1]

    def ranges(self) -> dict[Seat[Owner], list[HashRange]]:
        found: dict[Seat[Owner], list[HashRange]] = {}
        for each, seat in self._ranges:
            found.setdefault(seat, []).append(each)
        return found


def _start(item: tuple[HashRange, Seat[Owner]]) -> int:
    return item[0].start
