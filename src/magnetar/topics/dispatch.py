"""Who gets which entries: the deciding machines of dispatch. Pure.

A *seat* is what a machine knows of a consumer: its permits, how much it has not acknowledged,
whether its connection can take more. Machines are asked three things:

* ``room()``: how many messages could be placed now (counted up to ``ROOM_ENOUGH``);
* ``assign(sizes, chunks)``: place a leading part of the entries whose message counts are ``sizes``;
  gives runs ``(seat, start, stop)`` in order, and charges the permits;
* ``add`` and ``remove``: consumers that come and go.

Rules:

* Permits count messages. An entry is placed while its consumer has any permit left, so a batch may
  take the permits below zero; the consumer pays that back with its next FLOW. (A batch that is
  larger than a receiver queue could never be sent otherwise.)
* One consumer at a time gets the entries of an exclusive or failover subscription: the *active*
  one. It is the first in order of (priority level, name, arrival); on a partition, the one at
  index ``partition mod n`` among the n of the best level, so that partitions spread.
* A shared subscription gives runs of at most ``RUN_ENTRIES`` entries to consumers in turn, those
  of a lower priority level number first while they have room.
* The chunks of a message (one that is larger than an entry) go to the consumer that has the first
  of them, whatever its permits: nobody else can put them together. While its connection takes no
  more, everything waits for it. A chunk whose first one went to nobody here begins anew.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final, Generic, NamedTuple, Protocol, TypeVar

from magnetar.model.entry import Chunk

ROOM_ENOUGH: Final = 1024
"""``room`` stops counting here: nobody reads more at once."""

RUN_ENTRIES: Final = 20
"""Entries that a shared consumer is given before the next one's turn (Pulsar's default)."""

CHUNKED_MAX: Final = 10_000
"""Chunked messages under way that are remembered; the longest untouched gives way."""

Owner = TypeVar("Owner")


NO_CHUNKS: Final[Mapping[int, Chunk]] = MappingProxyType({})


class Seat(Generic[Owner]):
    """A consumer as dispatch sees it. ``order`` is its arrival number in the subscription, given
    when it is seated there.

    ``unacked`` counts messages placed and not acknowledged (shared subscriptions only);
    ``blocked`` says that its connection cannot take more now.
    """

    __slots__ = ("blocked", "name", "order", "owner", "permits", "priority", "unacked")

    def __init__(self, owner: Owner, name: str, priority: int, order: int = 0) -> None:
        self.owner = owner
        self.name = name
        self.priority = priority
        self.order = order
        self.permits = 0
        self.unacked = 0
        self.blocked = False

    def rank(self) -> tuple[int, str, int]:
        return (self.priority, self.name, self.order)


class Run(NamedTuple, Generic[Owner]):
    """Entries ``[start, stop)`` of what was to be placed go to ``seat``."""

    seat: Seat[Owner]
    start: int
    stop: int


class Machine(Protocol[Owner]):
    """What subscriptions know of both machines."""

    seats: list[Seat[Owner]]

    def add(self, seat: Seat[Owner]) -> None: ...

    def remove(self, seat: Seat[Owner]) -> None: ...

    def room(self) -> int: ...

    def assign(
        self, sizes: Sequence[int], chunks: Mapping[int, Chunk] = NO_CHUNKS
    ) -> list[Run[Owner]]:
        """``chunks``: those of the entries that are chunks, by their index."""
        ...


class SingleActive(Generic[Owner]):
    """Exclusive and failover subscriptions: everything goes to ``active``.

    ``add`` and ``remove`` change the seats only; ``elect`` says who should be active, and whoever
    performs the switch sets ``active`` when nobody else can be any more.
    """

    def __init__(self, partition: int = -1) -> None:
        self.seats: list[Seat[Owner]] = []
        self.active: Seat[Owner] | None = None
        self._partition = partition

    def add(self, seat: Seat[Owner]) -> None:
        self.seats.append(seat)
        self.seats.sort(key=Seat.rank)

    def remove(self, seat: Seat[Owner]) -> None:
        self.seats.remove(seat)
        if self.active is seat:
            self.active = None

    def elect(self) -> Seat[Owner] | None:
        """The seat that should be active; None if there is none."""
        if not self.seats:
            return None
        best = [seat for seat in self.seats if seat.priority == self.seats[0].priority]
        return best[self._partition % len(best)] if self._partition >= 0 else best[0]

    def room(self) -> int:
        seat = self.active
        return 0 if seat is None or seat.blocked or seat.permits <= 0 else seat.permits

    def assign(
        self, sizes: Sequence[int], chunks: Mapping[int, Chunk] = NO_CHUNKS
    ) -> list[Run[Owner]]:
        seat = self.active
        if seat is None or not sizes:
            return []
        permits = seat.permits
        stop = 0
        for size in sizes:
            if permits <= 0:
                break
            permits -= size
            stop += 1
        seat.permits = permits
        return [Run(seat, 0, stop)] if stop else []


class SharedRoundRobin(Generic[Owner]):
    """Shared subscriptions: runs in turn to all who have room.

    ``unacked_max`` is the number of unacknowledged messages at which a consumer gets no more.
    """

    def __init__(self, unacked_max: int) -> None:
        self.seats: list[Seat[Owner]] = []
        self._unacked_max = unacked_max
        self._next = 0
        self._chunked: dict[int, Seat[Owner]] = {}
        """Who has the chunks so far of messages whose last chunk is still to come."""

    def add(self, seat: Seat[Owner]) -> None:
        self.seats.append(seat)
        self.seats.sort(key=lambda item: (item.priority, item.order))

    def remove(self, seat: Seat[Owner]) -> None:
        index = self.seats.index(seat)
        del self.seats[index]
        if index < self._next:
            self._next -= 1
        if self._chunked:
            self._chunked = {m: other for m, other in self._chunked.items() if other is not seat}

    def room(self) -> int:
        most = self._unacked_max
        total = 0
        for seat in self.seats:
            if not seat.blocked and seat.permits > 0 and seat.unacked < most:
                total += min(seat.permits, most - seat.unacked)
                if total >= ROOM_ENOUGH:
                    break
        return total

    def assign(
        self, sizes: Sequence[int], chunks: Mapping[int, Chunk] = NO_CHUNKS
    ) -> list[Run[Owner]]:
        runs: list[Run[Owner]] = []
        start, total = 0, len(sizes)
        while start < total:
            chunk = chunks.get(start) if chunks else None
            seat = self._turn() if chunk is None else self._seat_of(chunk)
            if seat is None:
                break
            if chunk is None:
                stop = self._fill(seat, sizes, start, chunks)
            else:
                stop = start + 1
                self._take_chunk(seat, chunk)
            runs.append(Run(seat, start, stop))
            start = stop
        return runs

    def _seat_of(self, chunk: Chunk) -> Seat[Owner] | None:
        """Who gets ``chunk``; None if it has to wait for a connection, or for room."""
        seat = self._chunked.get(chunk.message)
        if seat is None or seat.unacked >= 2 * self._unacked_max:  # no end of chunks
            return self._turn()
        return None if seat.blocked else seat

    def _take_chunk(self, seat: Seat[Owner], chunk: Chunk) -> None:
        """Charge ``seat`` with ``chunk``, and with those to come."""
        seat.permits -= 1
        seat.unacked += 1
        chunked = self._chunked
        chunked.pop(chunk.message, None)
        if not chunk.last:
            chunked[chunk.message] = seat
            if len(chunked) > CHUNKED_MAX:
                del chunked[next(iter(chunked))]

    def _fill(
        self, seat: Seat[Owner], sizes: Sequence[int], start: int, chunks: Mapping[int, Chunk]
    ) -> int:
        """Charge ``seat`` with entries from ``start`` on; returns where its run stops."""
        stop, last = start, min(len(sizes), start + RUN_ENTRIES)
        if chunks:
            last = next((at for at in range(start, last) if at in chunks), last)
        permits, unacked = seat.permits, seat.unacked
        while stop < last and permits > 0 and unacked < self._unacked_max:
            permits -= sizes[stop]
            unacked += sizes[stop]
            stop += 1
        seat.permits, seat.unacked = permits, unacked
        return stop

    def _turn(self) -> Seat[Owner] | None:
        """The next seat with room, of the best level that has any; after the last one served."""
        seats, count = self.seats, len(self.seats)
        level = self._level()
        for step in range(count):
            index = (self._next + step) % count
            seat = seats[index]
            if seat.priority == level and self._open(seat):
                self._next = (index + 1) % count
                return seat
        return None

    def _level(self) -> int | None:
        """The best priority level that has room (the only one there is, without looking)."""
        seats = self.seats
        if not seats:
            return None
        if seats[0].priority == seats[-1].priority:
            return seats[0].priority
        return next((seat.priority for seat in seats if self._open(seat)), None)

    def _open(self, seat: Seat[Owner]) -> bool:
        return not seat.blocked and seat.permits > 0 and seat.unacked < self._unacked_max
