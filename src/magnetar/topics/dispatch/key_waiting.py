"""What a Key_Shared subscription has read and could not send yet, by the hash of its key. Pure.

It has the face of ``redelivery``: to the feed both are what waits to be read again. Only
places are kept, no contents: a consumer that is slow costs memory for places, and its entries are
read again when it has room. Of what waits, only that is given out for which somebody has room now
(``Routes``), the lowest of each hash first; so nothing is read in vain.

* ``lowest`` of a hash is what may go next; who places asks whether an entry is behind another one
  of its hash (``is_behind``).
* What was delayed, or was left by consumers of another kind, has a place and no hash yet
  (``UNREAD``): it is read first, and nothing that lies behind it is sent before.
* ``full``: no new entries are to be read (``LookAhead``).

Invariant: an entry that waits here is out at nobody. One that was given out (``take``) is on its
way; it is placed, or comes back (``add``, ``keep``), before anything else is taken.

How: a heap of places per hash, and per seat a heap of the lowest places of its hashes, both with
stale items that are passed over. An item costs the logarithm of both.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Sequence
from typing import Final, Generic, Protocol

from magnetar.topics.dispatch.redelivery import Key, ReplayRun, runs_of
from magnetar.topics.dispatch.seats import Owner, Seat

UNREAD: Final = -1
STALE_MAX: Final = 64
"""Stale items of a line beside twice as many as hashes wait, before it is made anew."""


class LookAhead:
    """How many places may wait before nothing new is read: so many per consumer, but at most so
    many per subscription; and so many together, in all subscriptions that share this. A
    subscription in which nothing waits may always read. (One read more may come on top.) One that
    stands still for what waits in others is told when there is room again (``go_on``)."""

    __slots__ = ("_stopped", "per_consumer", "per_subscription", "together", "used")

    def __init__(self, per_consumer: int, per_subscription: int, together: int) -> None:
        self.per_consumer = per_consumer
        self.per_subscription = per_subscription
        self.together = together
        self.used = 0
        self._stopped: dict[Callable[[], None], None] = {}

    def is_full(self, waiting: int, consumers: int, go_on: Callable[[], None]) -> bool:
        if not waiting:
            return False
        most = self.per_subscription
        if consumers:
            most = min(most, self.per_consumer * consumers)
        if waiting >= most:
            return True
        if self.used < self.together:
            return False
        self._stopped[go_on] = None
        return True

    def let_go(self, places: int) -> None:
        """So many wait no more."""
        self.used -= places
        if self._stopped and self.used < self.together:
            stopped, self._stopped = self._stopped, {}
            for go_on in stopped:
                go_on()


class Routes(Protocol[Owner]):
    """Who gets what now; the machine knows."""

    @property
    def seats(self) -> Sequence[Seat[Owner]]: ...

    def goes_to(self, hashed: int) -> Seat[Owner] | None:
        """Who may get entries of a hash, room or not; None: nobody now."""
        ...

    def rooms(self) -> Iterable[tuple[Seat[Owner], int]]:
        """Who has room for so many messages, in turn."""
        ...


class _NoRoutes(Generic[Owner]):
    """Nobody gets anything."""

    seats: Sequence[Seat[Owner]] = ()

    def goes_to(self, hashed: int) -> Seat[Owner] | None:
        return None

    def rooms(self) -> Iterable[tuple[Seat[Owner], int]]:
        return ()


def _nobody() -> None:
    """Nobody is told."""


class KeyedWaiting(Generic[Owner]):
    """See the module's text. It is ``topics.dispatch.redelivery.Replays``."""

    by_place: Final = True

    def __init__(
        self, routes: Routes[Owner], look_ahead: LookAhead, go_on: Callable[[], None]
    ) -> None:
        self.counts: dict[Key, int] = {}
        self._routes = routes
        self._look_ahead = look_ahead
        self._go_on = go_on
        self._hashes: dict[Key, int] = {}
        """All that waits, with its hash."""
        self._unread: list[Key] = []
        self._unread_count = 0
        self._by_hash: dict[int, list[Key]] = {}
        self._lines: dict[Seat[Owner], list[tuple[Key, int]]] = {}
        self._line_of: dict[int, Seat[Owner]] = {}
        self._coming: dict[Key, int] = {}
        """Hashes of what was given out, or is about to come."""

    def end(self) -> None:
        """Nothing is kept, and nobody asked or told: they lead back here, so would be a cycle."""
        self.clear()
        self._routes = _NoRoutes()
        self._go_on = _nobody

    def __len__(self) -> int:
        return len(self._hashes)

    def __contains__(self, key: Key) -> bool:
        return key in self._hashes

    @property
    def unread(self) -> int:
        return self._unread_count

    @property
    def full(self) -> bool:
        return self._look_ahead.is_full(len(self._hashes), len(self._routes.seats), self._go_on)

    @property
    def ready(self) -> bool:
        if not self._hashes:
            return False
        if self._first_unread() is not None:
            return True
        return any(self._head(seat) is not None for seat, _ in self._routes.rooms())

    # -- coming in ----------------------------------------------------------------------------

    def expect(self, key: Key, hashed: int) -> None:
        """``key`` comes back by ``add``, and this is its hash."""
        self._coming[key] = hashed

    def add(self, keys: Iterable[Key], counted: bool) -> None:
        """Send ``keys`` again; ``counted`` raises their redelivery counts by one."""
        counts = self.counts
        for key in keys:
            if counted:
                counts[key] = counts.get(key, 0) + 1
            self.keep(key, self._coming.pop(key, UNREAD))

    def keep(self, key: Key, hashed: int) -> None:
        """It cannot be sent yet."""
        if key in self._hashes:
            return
        self._hashes[key] = hashed
        self._look_ahead.used += 1
        if hashed == UNREAD:
            self._unread_count += 1
            heapq.heappush(self._unread, key)
            return
        heapq.heappush(self._by_hash.setdefault(hashed, []), key)
        if self.lowest(hashed) == key:
            self.file(hashed)

    def file(self, hashed: int) -> bool:
        """Who may get entries of that hash has changed, or which is the lowest. True if any
        wait."""
        lowest = self.lowest(hashed)
        if lowest is None:
            return False
        seat = self._routes.goes_to(hashed)
        if seat is None:
            self._line_of.pop(hashed, None)
            return True
        self._line_of[hashed] = seat
        line = self._lines.setdefault(seat, [])
        heapq.heappush(line, (lowest, hashed))
        if len(line) > STALE_MAX + 2 * len(self._by_hash):
            line[:] = dict.fromkeys(item for item in line if self._holds(seat, item))
            heapq.heapify(line)
        return True

    def file_all(self) -> None:
        """Consumers came or left."""
        self._lines.clear()
        self._line_of.clear()
        for hashed in list(self._by_hash):
            self.file(hashed)

    # -- what waits ---------------------------------------------------------------------------

    def hash_of(self, key: Key) -> int | None:
        """Of what waits or is on its way; None: it has to be read. To be asked once, by who places
        it."""
        found = self._coming.pop(key, None)
        if found is None and self._hashes:
            found = self._hashes.get(key)
        return None if found == UNREAD else found

    def lowest(self, hashed: int) -> Key | None:
        """What of that hash goes next."""
        heap = self._by_hash.get(hashed)
        if heap is None:
            return None
        hashes = self._hashes
        while heap:
            if hashes.get(heap[0]) == hashed:
                return heap[0]
            heapq.heappop(heap)
        del self._by_hash[hashed]
        self._line_of.pop(hashed, None)
        return None

    def is_behind(self, key: Key, hashed: int) -> bool:
        """Whether something waits that goes before ``key``, of that hash."""
        if not self._hashes:
            return False
        unread = self._first_unread()
        if unread is not None and unread < key:
            return True
        lowest = self.lowest(hashed)
        return lowest is not None and lowest < key

    def has_below(self, key: Key) -> bool:
        """Who places looks at the order."""
        return False

    def up_to(self, last: Key) -> list[Key]:
        """What waits, or was refused, of all up to ``last``."""
        return [key for key in {**self._hashes, **self.counts} if key <= last]

    def _first_unread(self) -> Key | None:
        unread = self._unread
        while unread:
            if self._hashes.get(unread[0]) == UNREAD:
                return unread[0]
            heapq.heappop(unread)
        return None

    def _holds(self, seat: Seat[Owner], item: tuple[Key, int]) -> bool:
        key, hashed = item
        return self._line_of.get(hashed) is seat and self.lowest(hashed) == key

    def _head(self, seat: Seat[Owner]) -> tuple[Key, int] | None:
        """The first that goes to that seat."""
        line = self._lines.get(seat)
        while line:
            if self._holds(seat, line[0]):
                return line[0]
            heapq.heappop(line)
        return None

    # -- going out ----------------------------------------------------------------------------

    def take(self, entries_max: int) -> list[ReplayRun]:
        """Remove and return places for which there is room, at most ``entries_max``, in order.
        Nothing that was taken before may be on its way still."""
        self._coming.clear()  # what has not come back is gone from the log
        taken: list[Key] = []
        while len(taken) < entries_max and (key := self._first_unread()) is not None:
            self._remove(key)
            taken.append(key)
        for seat, room in self._routes.rooms():
            stop = min(entries_max, len(taken) + room)
            while len(taken) < stop and (head := self._head(seat)) is not None:
                taken.append(self._take_head(seat, *head))
        return runs_of(sorted(taken))

    def _take_head(self, seat: Seat[Owner], key: Key, hashed: int) -> Key:
        line = self._lines[seat]
        self._remove(key)
        self._coming[key] = hashed
        following = self.lowest(hashed)
        if following is None:
            heapq.heappop(line)
        else:
            heapq.heapreplace(line, (following, hashed))
        return key

    def _remove(self, key: Key) -> None:
        if self._hashes.pop(key) == UNREAD:
            self._unread_count -= 1
        self._look_ahead.let_go(1)

    def discard(self, key: Key) -> None:
        """It waits no more."""
        hashed = self._hashes.get(key)
        if hashed is None:
            return
        first = hashed != UNREAD and self.lowest(hashed) == key
        self._remove(key)
        if first:
            self.file(hashed)

    def forget(self, keys: Iterable[Key]) -> None:
        """``keys`` are acknowledged."""
        for key in keys:
            self.counts.pop(key, None)
            self.discard(key)

    def clear(self) -> None:
        self._look_ahead.let_go(len(self._hashes))
        self._unread_count = 0
        self.counts.clear()
        self._unread.clear()
        for found in (self._hashes, self._by_hash, self._lines, self._line_of, self._coming):
            found.clear()
