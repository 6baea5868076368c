"""A feed's entries are in one place at a time: random histories of rooms, refusals, departures,
reads that come short and reads that take time."""

from __future__ import annotations

import asyncio
import random

import pytest

from magnetar.env.tasks import TaskScope, awaited
from magnetar.model.entry import Entry
from magnetar.model.ids import EARLIEST, Position
from magnetar.topics import feed as feed_module
from magnetar.topics.feed import EntryFeed
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
