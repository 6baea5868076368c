"""Shared subscriptions: runs of entries in turn to all consumers who have room. Pure.

* A consumer is given at most ``RUN_ENTRIES`` entries, then it is the next one's turn; those of a
  lower priority level number come first while they have room.
* A consumer with ``unacked_max`` messages that it has not acknowledged gets no more.
* The chunks of a message (one that is larger than an entry) go to the consumer that has the first
  of them, whatever its permits: nobody else can put them together. While its connection takes no
  more, everything waits for it. A chunk whose first one went to nobody here begins anew.

Invariant: an entry is out at one seat, and then it is in that seat's ``out`` and in ``_holders``,
or it is in neither. (It may wait in the feed then, or be acknowledged, or not be read yet.)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from magnetar.model.entry import Chunk, Description, Entry
from magnetar.topics.dispatch.redelivery import Key
from magnetar.topics.dispatch.seats import Owner, Placed, PlacedRun, Seat, Seats

ROOM_ENOUGH: Final = 1024
"""``room`` stops counting here: nobody reads more at once."""

RUN_ENTRIES: Final = 20
"""Entries that a consumer is given before the next one's turn (Pulsar's default)."""

CHUNKED_MAX: Final = 10_000
"""Chunked messages under way that are remembered; the longest untouched gives way."""


class SharedRoundRobin(Seats[Owner]):
    """See the module's text."""

    def __init__(self, unacked_max: int) -> None:
        super().__init__()
        self._unacked_max = unacked_max
        self._next = 0
        self._holders: dict[Key, Seat[Owner]] = {}
        """Who has what is out: whoever acknowledges it, its holder is known at once."""
        self._chunked: dict[int, Seat[Owner]] = {}
        """Who has the chunks so far of messages whose last chunk is still to come."""

    def add(self, seat: Seat[Owner]) -> None:
        self._seat(seat)
        self.seats.sort(key=lambda item: (item.priority, item.order))

    def remove(self, seat: Seat[Owner]) -> list[Key]:
        index = self.seats.index(seat)
        del self.seats[index]
        if index < self._next:
            self._next -= 1
        if self._chunked:
            self._chunked = {m: other for m, other in self._chunked.items() if other is not seat}
        return self.take_back(seat, ())

    # -- what is out --------------------------------------------------------------------------

    def limit_unacked(self, unacked_max: int) -> None:
        """From now on; what is out stays out."""
        self._unacked_max = unacked_max

    def settle(self, keys: Sequence[Key]) -> bool:
        holders, most = self._holders, self._unacked_max
        freed = False
        for key in keys:
            seat = holders.pop(key, None)
            if seat is not None:
                full = seat.unacked >= most
                seat.unacked -= seat.out.pop(key)
                freed = freed or (full and seat.unacked < most)
        return freed

    def take_back(self, seat: Seat[Owner], keys: Sequence[Key]) -> list[Key]:
        out = seat.out
        mine = [key for key in dict.fromkeys(keys) if key in out] if keys else list(out)
        for key in mine:
            holder = self._holders.pop(key)
            assert holder is seat, "an entry is out at one seat"
            seat.unacked -= out.pop(key)
        return mine

    def is_full(self, seat: Seat[Owner]) -> bool:
        return seat.unacked >= self._unacked_max

    # -- who gets what ------------------------------------------------------------------------

    def room(self) -> int:
        most = self._unacked_max
        total = 0
        for seat in self.seats:
            if not seat.blocked and seat.permits > 0 and seat.unacked < most:
                total += min(seat.permits, most - seat.unacked)
                if total >= ROOM_ENOUGH:
                    break
        return total

    def place(self, entries: Sequence[Entry], descriptions: Sequence[Description]) -> Placed[Owner]:
        runs: list[PlacedRun[Owner]] = []
        start, total = 0, len(entries)
        while start < total:
            chunk = descriptions[start].chunk
            seat = self._turn() if chunk is None else self._seat_of(chunk)
            if seat is None:
                break
            if chunk is None:
                run = self._fill(seat, start, entries, descriptions)
            else:
                run = self._take_chunk(seat, chunk, start, entries[start])
            runs.append(run)
            start = run.stop
        return Placed(runs, range(start, total))

    def _fill(
        self,
        seat: Seat[Owner],
        start: int,
        entries: Sequence[Entry],
        descriptions: Sequence[Description],
    ) -> PlacedRun[Owner]:
        """Give ``seat`` entries from ``start`` on, up to the next chunk."""
        stop, last = start, min(len(entries), start + RUN_ENTRIES)
        before = permits = seat.permits
        may_take = self._unacked_max - seat.unacked
        while stop < last and permits > 0 and before - permits < may_take:
            messages, chunk, _, _ = descriptions[stop]
            if chunk is not None:
                break
            self._put_out(seat, entries[stop], messages)
            permits -= messages
            stop += 1
        seat.permits = permits
        seat.unacked += before - permits
        return PlacedRun(seat, start, stop, before - permits)

    def _seat_of(self, chunk: Chunk) -> Seat[Owner] | None:
        """Who gets ``chunk``; None if it has to wait for a connection, or for room."""
        seat = self._chunked.get(chunk.message)
        if seat is None or seat.unacked >= 2 * self._unacked_max:  # no end of chunks
            return self._turn()
        return None if seat.blocked else seat

    def _take_chunk(
        self, seat: Seat[Owner], chunk: Chunk, index: int, entry: Entry
    ) -> PlacedRun[Owner]:
        """Give ``seat`` the chunk, and those to come."""
        self._put_out(seat, entry, 1)
        seat.permits -= 1
        seat.unacked += 1
        chunked = self._chunked
        chunked.pop(chunk.message, None)
        if not chunk.last:
            chunked[chunk.message] = seat
            if len(chunked) > CHUNKED_MAX:
                del chunked[next(iter(chunked))]
        return PlacedRun(seat, index, index + 1, 1)

    def _put_out(self, seat: Seat[Owner], entry: Entry, messages: int) -> None:
        key = (entry.ledger_id, entry.entry_id)
        # What waits to be sent again was taken back first; else two consumers would have it.
        assert key not in self._holders, f"{key} is out and was to be placed again"
        self._holders[key] = seat
        seat.out[key] = messages

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
