"""A feed's entries are in one place at a time: random histories of rooms, refusals, departures,
reads that come short and reads that take time."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable

import pytest

from magnetar.env.tasks import TaskScope, awaited
from magnetar.model.entry import Entry
from magnetar.model.errors import LogError
from magnetar.model.ids import EARLIEST, Position
from magnetar.topics.consuming import feed as feed_module
from magnetar.topics.consuming.feed import EntryFeed
from magnetar.topics.dispatch.redelivery import Redelivery
from magnetar_sim.world.virtual_time import run_virtual
from tests.doubles.memory_log import MemoryLog

ENTRIES = 40
SIZE = 100


class Consuming:
    """Who takes entries, and keeps, refuses and acknowledges them."""

    def __init__(self, scope: TaskScope, seed: int) -> None:
        self.draw = random.Random(seed)
        self.log = MemoryLog("log", 7)
        self.log.append([bytes(SIZE)] * ENTRIES, lambda *_: None)
        self.log.release()
        self._read, self.log.read = self.log.read, self.slow  # type: ignore[method-assign]
        self.cursor = self.log.cursors.reader("s", EARLIEST)
        self.feed = EntryFeed(self.log, self.cursor, scope, lambda: None)
        self.out: dict[Position, None] = {}

    async def slow(self, start: Position, max_entries: int, max_bytes: int) -> list[Entry]:
        for _ in range(self.draw.randint(0, 6)):
            await asyncio.sleep(0)
        return await self._read(start, max_entries, max_bytes)

    def take(self, room: int, most: int) -> None:
        """As the dispatcher does it: what finds no place, beyond the first ``most``, is given
        back."""
        taken, replay = self.feed.take(room)
        entries = self.cursor.unacknowledged(taken)
        for entry in entries[:most]:
            place = place_of(entry)
            assert place not in self.out, f"{place} is given twice"
            self.out[place] = None
        if entries[most:]:
            self.feed.give_back(entries[most:], replay)

    def some(self, places: list[Position]) -> list[Position]:
        return self.draw.sample(places, self.draw.randint(0, len(places)))

    def refuse(self, places: list[Position]) -> None:
        for place in places:
            del self.out[place]
        self.feed.redelivery.add(places, counted=True)

    def acknowledge(self, places: list[Position]) -> None:
        self.cursor.acknowledge(places)
        self.feed.redelivery.forget(places)
        for place in places:
            self.out.pop(place, None)

    async def step(self) -> None:
        what = self.draw.random()
        if what < 0.4:
            room = self.draw.randint(1, 9)
            self.take(room, self.draw.randint(0, room))
        elif what < 0.6:
            self.refuse(self.some([*self.out]))
        elif what < 0.7:
            self.acknowledge(self.some([*self.out])[:2])
        elif what < 0.75:  # also what waits, or was not read yet
            self.acknowledge(self.some(all_places())[:1])
        elif what < 0.85:
            self.log.cached = not self.log.cached
        elif what < 0.95:  # all have left
            self.out.clear()
            self.feed.rewind()
        else:  # and something is not due yet, so that nothing is read again
            self.feed.redelivery.add([*self.out], counted=False)
            self.out.clear()
            self.feed.rest(self.feed.take_ahead())
        for _ in range(self.draw.randint(0, 3)):
            await asyncio.sleep(0)

    async def rest(self) -> None:
        """Everything is taken and acknowledged in the end."""
        for _ in range(4 * ENTRIES):
            self.take(1000, 1000)
            self.acknowledge([*self.out])
            for _ in range(10):
                await asyncio.sleep(0)


def place_of(entry: Entry) -> Position:
    return Position(entry.ledger_id, entry.entry_id)


def all_places() -> list[Position]:
    return [Position(1 + n // 7, n % 7) for n in range(ENTRIES)]


@pytest.mark.parametrize("seed", range(150))
def test_every_entry_is_in_one_place(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed_module, "BYTES_MAX", 3 * SIZE)

    async def main() -> None:
        scope = TaskScope("test", awaited(by="the test"))
        consuming = Consuming(scope, seed)
        for _ in range(200):
            await consuming.step()
        await consuming.rest()
        assert consuming.cursor.mark_delete == all_places()[-1]
        await scope.close()

    asyncio.run(main())


class Feeding:
    """A feed of a log of seven ledgers' entries, and how often it was ``ready``."""

    def __init__(self, scope: TaskScope) -> None:
        self.log = MemoryLog("public/default/persistent/t", 7)
        self.log.append([bytes(SIZE)] * ENTRIES, lambda *_: None)
        self.log.release()
        self.cursor = self.log.cursors.reader("s", EARLIEST)
        self.readies = 0
        self.feed = EntryFeed(self.log, self.cursor, scope, self._ready)

    def _ready(self) -> None:
        self.readies += 1

    def take(self, room: int, ahead: bool = True) -> tuple[list[int], bool]:
        """The numbers of entries, from 0."""
        taken, replay = self.feed.take(room, ahead)
        return [all_places().index(place_of(each)) for each in taken], replay

    async def taken(self, room: int) -> tuple[list[int], bool]:
        """Also what has to be read first."""
        while not (taken := self.take(room))[0] and self.feed.waits:
            await self.read()
        return taken

    async def read(self) -> None:
        while self.feed.waits:  # noqa: ASYNC110 - a task reads
            await asyncio.sleep(0)

    def again(self, *numbers: int, counted: bool = True) -> None:
        self.feed.redelivery.add([all_places()[each] for each in numbers], counted)


def tell(story: Callable[[Feeding], Awaitable[None]]) -> None:
    async def main() -> None:
        scope = TaskScope("test", awaited(by="the test"))
        await story(Feeding(scope))
        await scope.close()

    run_virtual(main())


def test_what_is_in_memory_is_given_at_once_and_in_order() -> None:
    async def story(on: Feeding) -> None:
        assert on.take(3) == ([0, 1, 2], False)
        assert on.take(2) == ([3, 4], False)
        on.again(1, 3)
        assert on.take(10) == ([1, 3], True), "before what comes for the first time"
        assert on.take(2) == ([5, 6], False)
        assert not on.feed.waits

    tell(story)


def test_what_was_given_back_goes_before_what_lies_behind_it() -> None:
    async def story(on: Feeding) -> None:
        assert on.take(8) == ([*range(8)], False)
        on.again(2, 4, 6, 7)
        taken, replay = on.feed.take(10)
        on.feed.give_back(taken[2:], replay)
        on.again(5)
        assert on.take(10) == ([5], True)
        assert on.take(10) == ([6, 7], True)
        on.again(0, 3)
        taken, replay = on.feed.take(10)
        on.feed.give_back(taken[1:], replay)
        on.again(1)
        taken, replay = on.feed.take(10)
        on.feed.give_back(taken, replay)
        assert on.take(10) == ([1, 3], True)

    tell(story)


def test_nothing_new_is_read_while_so_much_waits() -> None:
    """What is kept of a subscription that does not get on has a bound."""

    class Full(Redelivery):
        full = True  # type: ignore[misc]

    async def story(on: Feeding) -> None:
        on.feed.replay_by(Full(), carry_over=False)
        assert on.take(5) == ([], False)
        assert not on.feed.waits
        on.again(0)
        assert on.take(5) == ([0], True)
        on.feed.replay_by(Redelivery(), carry_over=False)
        assert on.take(1, ahead=False) == ([], False)
        assert on.take(1) == ([0], False)

    tell(story)


def test_what_waits_is_carried_over_when_it_is_asked_for_only() -> None:
    async def story(on: Feeding) -> None:
        on.take(8)
        on.again(2, 5)
        on.feed.replay_by(Redelivery(), carry_over=True)
        assert on.take(10) == ([2, 5], True)
        assert on.feed.redelivery.counts == {}, "nobody has refused it since"
        on.again(3)
        on.feed.replay_by(Redelivery(), carry_over=False)
        on.feed.rewind()
        assert on.take(3) == ([0, 1, 2], False)

    tell(story)


def test_who_comes_when_all_have_left_does_not_inherit_their_refusals() -> None:
    async def story(on: Feeding) -> None:
        on.take(4)
        on.again(1, 1, 2)
        taken, replay = on.feed.take(10)
        on.feed.give_back(taken, replay)
        on.feed.rest(on.feed.take_ahead())
        assert on.feed.redelivery.counts == {}
        assert on.take(10) == ([1, 2], True)
        assert on.take(2) == ([4, 5], False), "nothing else is read again"

    tell(story)


def test_what_the_cursor_passed_is_not_read() -> None:
    async def story(on: Feeding) -> None:
        on.take(3)
        on.cursor.acknowledge_cumulative(all_places()[9])
        on.feed.skip_acknowledged()
        assert on.take(2) == ([10, 11], False)
        on.cursor.acknowledge_cumulative(all_places()[10])
        on.feed.skip_acknowledged()
        assert on.take(2) == ([12, 13], False), "nothing is given twice either"

    tell(story)


def test_a_closed_feed_gives_nothing_and_wakes_nobody() -> None:
    async def story(on: Feeding) -> None:
        on.log.cached = False
        assert on.take(3) == ([], False)
        on.feed.close()
        for _ in range(20):
            await asyncio.sleep(0)
        on.log.cached = True
        assert on.take(3) == ([], False)
        on.again(0)
        assert on.take(3) == ([], False)
        assert on.readies == 0

    tell(story)


def test_a_read_that_was_overtaken_by_a_seek_is_forgotten() -> None:
    async def story(on: Feeding) -> None:
        on.log.cached = False
        on.take(3)
        on.cursor.acknowledge_cumulative(all_places()[4])
        on.feed.rewind()
        assert await on.taken(2) == ([5, 6], False)
        on.again(5, 6)
        on.take(3)
        on.cursor.acknowledge_cumulative(all_places()[7])
        on.feed.rewind()
        assert await on.taken(2) == ([8, 9], False)

    tell(story)


def test_a_log_that_reads_nothing_where_it_has_something_is_told_and_asked_again() -> None:
    async def story(on: Feeding) -> None:
        on.take(3)
        on.log.cached = False
        read = on.log.read

        async def nothing_found(*_: object) -> list[Entry]:
            return []

        on.log.read = nothing_found  # type: ignore[method-assign]
        assert on.take(3) == ([], False)
        await asyncio.sleep(feed_module.RETRY_DELAY_S / 2)
        unread = on.feed.unread
        assert unread is not None
        assert (unread.place, unread.behind, unread.lost) == (*all_places()[3:5], False)
        assert (on.feed.waits, on.readies) == (True, 0), "not at once: it would be asked for ever"
        await asyncio.sleep(feed_module.RETRY_DELAY_S)
        assert (on.feed.waits, on.readies) == (False, 1)
        on.log.read = read  # type: ignore[method-assign]
        assert await on.taken(2) == ([3, 4], False)
        assert on.feed.unread is None
        on.log.read = nothing_found  # type: ignore[method-assign]
        on.take(3)
        await asyncio.sleep(feed_module.RETRY_DELAY_S / 2)
        assert on.feed.unread is not None
        on.feed.rewind()
        assert on.feed.unread is None

    tell(story)


def test_at_the_end_nothing_is_wrong() -> None:
    async def story(on: Feeding) -> None:
        on.log.read_cached = lambda *_: None  # type: ignore[method-assign,assignment]
        on.cursor.acknowledge_cumulative(all_places()[-1])
        on.feed.skip_acknowledged()
        assert on.take(2) == ([], False)
        await on.read()
        assert on.feed.unread is None
        assert on.readies == 1

    tell(story)


def test_what_is_to_be_sent_again_and_cannot_be_read_waits_on() -> None:
    async def story(on: Feeding) -> None:
        on.take(12)
        on.log.cached, on.log.failing = False, LogError("bookies are away")
        on.again(1, 2, 8, 10)
        assert on.take(10) == ([], False) or not on.readies
        await asyncio.sleep(feed_module.RETRY_DELAY_S / 2)
        assert on.feed.unread is not None
        assert on.feed.unread.place == all_places()[1]
        on.log.failing = None
        await asyncio.sleep(feed_module.RETRY_DELAY_S)
        assert await on.taken(10) == ([1, 2, 8, 10], True)
        on.log.damaged[all_places()[8]] = LogError("one bookie is away")
        on.again(1, 8, 10)
        on.take(10)
        await asyncio.sleep(feed_module.RETRY_DELAY_S / 2)
        assert on.feed.unread is not None
        assert on.feed.unread.place == all_places()[8]
        await asyncio.sleep(feed_module.RETRY_DELAY_S)
        assert on.take(10) == ([1], True), "what was read before"
        on.log.damaged.clear()
        assert await on.taken(10) == ([8, 10], True)
        assert await on.taken(1) == ([12], False)
        assert on.feed.unread is None

    tell(story)


def test_what_is_to_be_sent_again_is_read_in_bounds_and_nothing_of_it_is_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(feed_module, "BYTES_MAX", 2 * SIZE)

    async def story(on: Feeding) -> None:
        for _ in range(6):
            on.take(12)
        on.log.cached = False
        on.again(0, 1, 2, 3, 4, 8, 9, 11)
        found: list[int] = []
        while (taken := await on.taken(20))[1]:
            assert len(taken[0]) <= 2
            found += taken[0]
        assert found == [0, 1, 2, 3, 4, 8, 9, 11], "in order: some may be chunks"

    tell(story)


def test_of_many_runs_no_more_is_read_at_once_than_the_bound(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def story(on: Feeding) -> None:
        (entry,), _ = on.feed.take(1)
        monkeypatch.setattr(feed_module, "BYTES_MAX", 2 * len(entry.data))
        for _ in range(6):
            on.take(12)
        on.log.cached = False
        on.again(0, 2, 4, 6, 8)
        assert on.take(10) == ([], True)
        await on.read()
        assert on.log.reads == 2
        assert on.take(10) == ([0, 2], True)
        assert await on.taken(10) == ([4, 6], True)
        assert await on.taken(10) == ([8], True)

    tell(story)


@pytest.mark.parametrize("short", [True, False], ids=["short", "not in memory"])
def test_nothing_is_sent_again_before_what_is_below_it(
    monkeypatch: pytest.MonkeyPatch, short: bool
) -> None:
    """The last chunk of a message went out before those that were read from bookies, or came with
    the next read. These went to somebody else then, and nobody could put the message together."""
    monkeypatch.setattr(feed_module, "BYTES_MAX", 3 * SIZE if short else 1 << 20)

    async def story(on: Feeding) -> None:
        for _ in range(12):
            on.take(12)
        cached = on.log.read_cached

        def some(start: Position, most: int, size: int) -> list[Entry] | None:
            if not short and start in (all_places()[1], all_places()[4]):
                return None
            return cached(start, most, size)

        on.log.read_cached = some  # type: ignore[method-assign]
        on.again(0, 1, 2, 4, 5, 6, 9)
        found: list[int] = []
        while (taken := await on.taken(20))[1]:
            found += taken[0]
        assert found == [0, 1, 2, 4, 5, 6, 9]

    tell(story)


def test_what_the_log_holds_no_longer_is_not_sent_again_nor_anything_in_its_place() -> None:
    async def story(on: Feeding) -> None:
        on.take(14)
        read = on.log.read

        async def trimmed(start: Position, most: int, size: int) -> list[Entry]:
            return await read(max(start, all_places()[5]), most, size)

        def trimmed_cached(start: Position, most: int, size: int) -> list[Entry] | None:
            return cached(max(start, all_places()[5]), most, size)

        cached = on.log.read_cached
        on.log.read, on.log.read_cached = trimmed, trimmed_cached  # type: ignore[method-assign]
        for in_memory in (True, False):
            on.log.cached = in_memory
            on.again(0, 1, 4, 5, 6)
            assert await on.taken(10) == ([5, 6], True)
            on.again(0, 1)
            assert all(each >= 14 for each in (await on.taken(10))[0])
            assert not on.feed.redelivery.ready, "it is not asked for again"

    tell(story)


def test_what_was_read_for_it_goes_in_order_with_what_was_given_back() -> None:
    async def story(on: Feeding) -> None:
        on.take(12)
        cached = on.log.read_cached

        def some(start: Position, most: int, size: int) -> list[Entry] | None:
            return None if start < all_places()[7] else cached(start, most, size)

        on.log.read_cached = some  # type: ignore[method-assign]
        on.again(9, 10)
        taken, replay = on.feed.take(10)
        assert [place_of(each) for each in taken] == all_places()[9:11]
        on.feed.give_back(taken, replay)
        on.again(1, 2)
        assert on.take(10) == ([], True)
        await on.read()
        assert on.take(10) == ([1, 2, 9, 10], True)

    tell(story)


def test_a_log_that_is_closed_ends_the_feed() -> None:
    async def story(on: Feeding) -> None:
        on.log.cached = False
        on.take(3)
        on.log.closed = True
        await asyncio.sleep(10)
        assert on.feed.closed
        assert on.feed.unread is None, "nothing is wrong"

    tell(story)
