"""Key_Shared subscriptions: who has the hash of an entry's key gets it, in the order of the log.
Pure.

* Who has which hash an ``Assignment`` says (``key_ranges``), and changes when consumers come and
  leave.
* What is out of a hash holds it: as long as one seat has entries of it that are not acknowledged,
  nobody else gets any, whoever has the hash by now. The hash is *draining* then. When it is
  drained, the others go to whom it belongs.
* Of a hash the lowest entry that is not out goes first. One that cannot go keeps all behind it
  back, of its hash and of no other: it waits in ``waiting``, by its place.
* ``out_of_order``: neither of the two; an entry goes to whom its hash belongs at the moment.
* The chunks of a message (one that is larger than an entry) have one key, so one hash. From the
  first of them to the last the hash stays where it is: who has some of them cannot acknowledge
  them, and nobody else can put them together. Meanwhile that seat may have more unacknowledged
  (``CHUNKS_MAX``).
* A seat without permits, with a full connection, or with ``unacked_max`` messages that it has not
  acknowledged, gets nothing; those of its hashes wait, and others are served.

Invariants: an entry is out at one seat, or waits, or neither (acknowledged, or not known here).
Entries of one hash are out at one seat at a time, unless out of order; and none is placed while a
lower one of its hash waits.

Why: docs/adr/0160-hashes-are-held-by-what-is-out.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final, Generic, NamedTuple

from magnetar.model.entry import Chunk, Description, Entry
from magnetar.topics.dispatch.key_policy import HashRange, KeyPolicy, check_same
from magnetar.topics.dispatch.key_ranges import Assignment, assignment
from magnetar.topics.dispatch.key_waiting import KeyedWaiting, LookAhead
from magnetar.topics.dispatch.redelivery import Key
from magnetar.topics.dispatch.seats import Owner, Placed, PlacedRun, Seat, Seats
from magnetar.topics.dispatch.shared import ROOM_ENOUGH

CHUNKS_MAX: Final = 10_000
"""Unacknowledged messages of a seat that has part of a message in chunks, at least."""
BEGUN_MAX: Final = 100
"""Messages in chunks of one hash that are under way and remembered; the oldest gives way."""


class Held(Generic[Owner]):
    """What is out of a hash at a seat: ``count`` entries. ``begun``: the messages of which it has
    chunks, and not the last one. ``draining``: the hash belongs to another seat. ``blocked``: how
    often an entry had to wait for that."""

    __slots__ = ("begun", "blocked", "count", "draining", "hashed", "seat")

    def __init__(self, seat: Seat[Owner], hashed: int) -> None:
        self.seat = seat
        self.hashed = hashed
        self.count = 0
        self.begun: dict[int, None] = {}
        self.draining = False
        self.blocked = 0


class Draining(NamedTuple):
    """A hash that drains: ``entries`` of it are out, and ``blocked`` times one had to wait."""

    hashed: int
    entries: int
    blocked: int


class KeyShared(Seats[Owner]):
    """See the module's text. ``hash_of``: the whole hash of an entry's key (``model.key_hash``);
    ``go_on``: more may be placed, by nothing that was done here (``LookAhead``)."""

    def __init__(
        self,
        unacked_max: int,
        look_ahead: LookAhead,
        policy: KeyPolicy,
        hash_of: Callable[[Entry], int],
        go_on: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__()
        self.policy = policy
        """Of all that are seated, but for their ranges."""
        self.waiting: KeyedWaiting[Owner] = KeyedWaiting(self, look_ahead, go_on)
        self._unacked_max = unacked_max
        self._hash_of = hash_of
        self._in_order = not policy.out_of_order
        self._assignment: Assignment[Owner] = assignment(policy.mode)
        self._next = 0
        self._out: dict[Key, Held[Owner]] = {}
        self._held: dict[int, Held[Owner]] = {}
        """By hash. Out of order a hash may be out at others besides, from before."""
        self._begun: dict[Seat[Owner], int] = {}
        """How many hashes each seat holds by chunks."""
        self._drained: dict[Seat[Owner], int] = {}
        self._reassigned = False
        """Consumers came or left, and nobody has asked since what follows from it."""

    def end(self) -> None:
        """Others place from now on, and nothing waits here."""
        self.waiting.end()

    # -- who is there -------------------------------------------------------------------------

    def check(self, subscription: str, policy: KeyPolicy) -> None:
        """Raise ``ConsumerBusyError`` or ``ConsumerAssignError`` if one who asks for ``policy``
        cannot join those who are seated."""
        if self.seats:
            check_same(subscription, self.policy, policy)
            self._assignment.check(policy)

    def add(self, seat: Seat[Owner]) -> None:
        self._assignment.add(seat, seat.key_policy or self.policy)
        self._seat(seat)
        self._reassigned = True

    def remove(self, seat: Seat[Owner]) -> list[Key]:
        self.seats.remove(seat)
        self._assignment.remove(seat)
        mine = self.take_back(seat, ())
        self._drained.pop(seat, None)
        self._reassigned = True
        return mine

    def _see_assignment(self) -> None:
        """Costs time in proportion to what is out and what waits: once for all that come or leave
        together, as those do whose process has ended."""
        if not self._reassigned:
            return
        self._reassigned = False
        if self._in_order:
            for held in self._held.values():
                self._see_draining(held)
        self.waiting.file_all()

    def _see_draining(self, held: Held[Owner]) -> None:
        before = held.draining
        held.draining = not held.begun and self._assignment.owner(held.hashed) is not held.seat
        if before and not held.draining:
            self._count_drained(held.seat)

    def _count_drained(self, seat: Seat[Owner]) -> None:
        self._drained[seat] = self._drained.get(seat, 0) + 1

    # -- what is out --------------------------------------------------------------------------

    def limit_unacked(self, unacked_max: int) -> None:
        """From now on; what is out stays out."""
        self._unacked_max = unacked_max

    def settle(self, keys: Sequence[Key]) -> bool:
        self._see_assignment()
        freed = False
        for key in keys:
            held = self._out.pop(key, None)
            if held is None:
                freed = freed or key in self.waiting  # what is behind it may go now
                continue
            seat = held.seat
            full = self.is_full(seat)
            seat.unacked -= seat.out.pop(key)
            freed = (full and not self.is_full(seat)) or freed
            freed = self._let_go(held) or freed
        return freed

    def take_back(self, seat: Seat[Owner], keys: Sequence[Key]) -> list[Key]:
        out = seat.out
        mine = [key for key in dict.fromkeys(keys) if key in out] if keys else list(out)
        for key in mine:
            held = self._out.pop(key)
            assert held.seat is seat, "an entry is out at one seat"
            seat.unacked -= out.pop(key)
            self.waiting.expect(key, held.hashed)
            self._let_go(held)
        return mine

    def _let_go(self, held: Held[Owner]) -> bool:
        """One entry less of it is out. True if others of its hash can go now."""
        held.count -= 1
        if held.count:
            return False
        moves = held.draining or bool(held.begun)
        if held.draining:
            self._count_drained(held.seat)
        if held.begun:
            held.begun.clear()
            self._end_begun(held.seat)
        if self._held.get(held.hashed) is held:
            del self._held[held.hashed]
        return moves and self.waiting.file(held.hashed)

    def is_full(self, seat: Seat[Owner]) -> bool:
        most = self._unacked_max
        return seat.unacked >= (max(2 * most, CHUNKS_MAX) if seat in self._begun else most)

    # -- who gets what ------------------------------------------------------------------------

    def goes_to(self, hashed: int) -> Seat[Owner] | None:
        held = self._held.get(hashed)
        if held is None:
            return self._assignment.owner(hashed)
        if held.begun:
            return held.seat
        return None if held.draining else self._assignment.owner(hashed)

    def rooms(self) -> Iterator[tuple[Seat[Owner], int]]:
        """Those who have room, in turn: another one comes first after each ``place``."""
        self._see_assignment()
        count = len(self.seats)
        for step in range(count):
            seat = self.seats[(self._next + step) % count]
            if self._open(seat):
                yield seat, seat.permits

    def _open(self, seat: Seat[Owner]) -> bool:
        return not seat.blocked and seat.permits > 0 and not self.is_full(seat)

    def room(self) -> int:
        total = 0
        for seat in self.seats:
            if self._open(seat):
                total += min(seat.permits, max(1, self._unacked_max - seat.unacked))
                if total >= ROOM_ENOUGH:
                    break
        return total

    def place(self, entries: Sequence[Entry], descriptions: Sequence[Description]) -> Placed[Owner]:
        self._see_assignment()
        waiting = self.waiting
        self._next += 1
        taken: dict[Seat[Owner], list[int]] = {}
        left: list[int] = []
        for index, entry in enumerate(entries):
            key = (entry.ledger_id, entry.entry_id)
            hashed = waiting.hash_of(key)
            if hashed is None:
                hashed = self._assignment.within(self._hash_of(entry))
            seat = self._seat_for(key, hashed)
            if seat is None:
                waiting.keep(key, hashed)
                left.append(index)
            else:
                messages, chunk, _, _ = descriptions[index]
                self._put_out(seat, key, hashed, messages, chunk)
                taken.setdefault(seat, []).append(index)
        return _grouped(entries, descriptions, taken, left)

    def _seat_for(self, key: Key, hashed: int) -> Seat[Owner] | None:
        """Who gets an entry of that hash now."""
        seat = self.goes_to(hashed)
        if seat is None:
            held = self._held.get(hashed)
            if held is not None:
                held.blocked += 1
            return None
        if not self._open(seat) or (self._in_order and self.waiting.is_behind(key, hashed)):
            return None
        return seat

    def _put_out(
        self, seat: Seat[Owner], key: Key, hashed: int, messages: int, chunk: Chunk | None
    ) -> None:
        # What waits to be sent again was taken back first; else two consumers would have it.
        assert key not in self._out, f"{key} is out and was to be placed again"
        held = self._held.get(hashed)
        if held is None or held.seat is not seat:
            held = self._held[hashed] = Held(seat, hashed)
        held.count += 1
        self._out[key] = held
        seat.out[key] = messages
        seat.permits -= messages
        seat.unacked += messages
        if key in self.waiting:
            self.waiting.discard(key)
        if chunk is not None:
            self._note_chunk(held, chunk)

    def _note_chunk(self, held: Held[Owner], chunk: Chunk) -> None:
        before = bool(held.begun)
        if chunk.last:
            held.begun.pop(chunk.message, None)
        else:
            held.begun[chunk.message] = None
            if len(held.begun) > BEGUN_MAX:
                del held.begun[next(iter(held.begun))]
        if before and not held.begun:
            self._end_begun(held.seat)
            if self._in_order:
                self._see_draining(held)
            self.waiting.file(held.hashed)
        elif held.begun and not before:
            self._begun[held.seat] = self._begun.get(held.seat, 0) + 1

    def _end_begun(self, seat: Seat[Owner]) -> None:
        self._begun[seat] -= 1
        if not self._begun[seat]:
            del self._begun[seat]

    # -- what is said of it -------------------------------------------------------------------

    def ranges(self) -> dict[Seat[Owner], list[HashRange]]:
        """The hashes that each seat has, in order."""
        return self._assignment.ranges()

    def draining(self) -> dict[Seat[Owner], list[Draining]]:
        """What drains at each seat."""
        self._see_assignment()
        found: dict[Seat[Owner], list[Draining]] = {}
        for held in self._held.values():
            if held.draining:
                said = Draining(held.hashed, held.count, held.blocked)
                found.setdefault(held.seat, []).append(said)
        return found

    def drained(self, seat: Seat[Owner]) -> int:
        """How many hashes have drained there since it came."""
        self._see_assignment()
        return self._drained.get(seat, 0)


def _grouped(
    entries: Sequence[Entry],
    descriptions: Sequence[Description],
    taken: dict[Seat[Owner], list[int]],
    left: list[int],
) -> Placed[Owner]:
    """A run for each seat: its entries lie among those of others."""
    grouped: list[Entry] = []
    runs: list[PlacedRun[Owner]] = []
    for seat, indexes in taken.items():
        start = len(grouped)
        grouped += [entries[index] for index in indexes]
        messages = sum([descriptions[index].messages for index in indexes])
        runs.append(PlacedRun(seat, start, len(grouped), messages))
    return Placed(runs, left, grouped)
