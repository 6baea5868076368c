"""Which entries of transactions a subscription gets, wherever it has to find that out."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field

import pytest

from magnetar.model.entry import Description, Entry, TransactionPart
from magnetar.model.errors import EntryDamagedError, ProtocolError
from magnetar.model.ids import Position
from magnetar.protocols.kafka.entry_format import KafkaEntryFormat
from magnetar.topics.consuming.transaction_view import (
    Given,
    TransactionView,
    given_between,
    last_delivered,
)
from magnetar.wire.kafka.markers import build_marker
from tests.doubles.memory_log import MemoryLog


class TextFormat(KafkaEntryFormat):
    """Entries in words: ``7`` is of producer 7's transaction, ``7+`` and ``7-`` commit and abort
    it, ``x`` is of none; of ``?`` nobody knows what it is."""

    def describe(self, payload: memoryview) -> Description:
        text = bytes(payload).decode()
        if text == "x":
            return Description(1)
        if text == "?":
            raise ProtocolError("it says nothing of itself")
        commits = {"+": True, "-": False}.get(text[-1])
        return Description(1, transaction=TransactionPart(int(text.rstrip("+-")), commits))


@dataclass
class World:
    log: MemoryLog = field(default_factory=lambda: MemoryLog("l", 4))
    reading: list[Callable[[], Coroutine[None, None, None]]] = field(default_factory=list)

    def view(self) -> TransactionView:
        return TransactionView(self.log, TextFormat(), self.read)

    def read(self, reading: Callable[[], Coroutine[None, None, None]]) -> bool:
        self.reading.append(reading)
        return True

    async def append(self, *texts: str) -> None:
        for text in texts:
            self.log._confirm([bytes(36) + text.encode()], lambda error, runs: None)
        await asyncio.sleep(0)

    def entries(self, first: int = 0, stop: int | None = None) -> list[Entry]:
        return self.log._entries[first:stop]


def texts(entries: list[Entry]) -> str:
    return " ".join(bytes(entry.payload).decode() for entry in entries)


async def sorted_words(world: World, view: TransactionView, first: int = 0) -> tuple[str, int, str]:
    """What is delivered, how many are hidden, and what waits, once all is read that must be."""
    while True:
        found = view.sort(world.entries(first))
        if not world.reading:
            return texts(found.delivered), len(found.hidden), texts(found.waiting)
        await world.reading.pop()()


@pytest.mark.parametrize("cached", [True, False])
def test_what_has_an_outcome_is_delivered_or_hidden_and_the_rest_waits(cached: bool) -> None:
    async def scenario() -> None:
        world = World()
        world.log.cached = cached
        view = world.view()
        await world.append("x", "1", "2", "x", "1+")
        assert await sorted_words(world, view) == ("x 1", 0, "2 x 1+")
        await world.append("2-", "3")
        assert await sorted_words(world, view) == ("x 1 x", 3, "3")
        await world.append("3+", "3", "3-")
        assert await sorted_words(world, view, 6) == ("3", 3, "")
        assert await sorted_words(world, view) == ("x 1 x 3", 6, ""), "it has gone back"

    asyncio.run(scenario())


@pytest.mark.parametrize("seed", range(20))
def test_it_agrees_with_who_sees_the_whole_log(seed: int) -> None:
    async def scenario() -> None:
        source = random.Random(seed)
        world = World()
        view = world.view()
        words: list[str] = []
        at = 0
        delivered: list[int] = []
        hidden = 0
        for _ in range(60):
            word = source.choice(["x", "1", "2", "3", "1+", "2-", "3+", "3-"])
            words.append(word)
            await world.append(word)
            world.log.cached = source.random() < 0.7
            if source.random() < 0.1:  # it goes back
                view, at, delivered, hidden = world.view(), 0, [], 0
            batch = world.entries(at, at + source.randrange(1, 9))
            found = view.sort(batch)
            while world.reading:
                await world.reading.pop()()
                found = view.sort(batch)
            places = [world.log._entries.index(entry) for entry in found.delivered]
            delivered += places
            hidden += len(found.hidden)
            at += len(batch) - len(found.waiting)
        assert delivered == [n for n in range(at) if words[n] == "x" or _committed(words, n)]
        assert len(delivered) + hidden == at

    asyncio.run(scenario())


def _committed(words: list[str], at: int) -> bool:
    ends = [word[1] for word in words[at:] if word[0] == words[at][0] and len(word) == 2]
    return len(words[at]) == 1 and ends[:1] == ["+"]


@pytest.mark.parametrize(
    ("words", "last"),
    [
        ("", -1),
        ("x", 0),
        ("x 1 1+", 1),
        ("x 1 1-", 0),
        ("1 2 2+ 1-", 1),
        ("1 1+ 1 1-", 0),
        ("x 1", 0),
        ("1 1-", -1),
        ("x ?", 0),
        ("x 1 1+ ? ? 2 ?", 1),
        ("? ?", -1),
    ],
)
def test_the_last_entry_that_consumers_get(words: str, last: int) -> None:
    async def scenario() -> None:
        world = World()
        await world.append(*words.split())
        found = await last_delivered(world.log, TextFormat())
        if last >= 0:
            assert found == Position(1, last)
        else:
            assert found < world.log.positions.first

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("words", "first", "stop", "any_given", "undecided"),
    [
        ("x x x", 1, 2, True, False),
        ("x x x", 1, 1, False, False),
        ("7 7 7- x", 0, 3, False, False),
        ("7 7 7- x", 0, 4, True, False),
        ("7 7 8 7+ x", 1, 2, True, False),  # its end is behind the stretch
        ("7 8 8- x 7+", 1, 3, False, False),
        ("7 8 8- x 7+", 0, 3, True, False),
        ("7 8 8- 9", 0, 3, False, True),
        ("7- 8- 7-", 0, 3, False, False),
    ],
)
def test_whether_consumers_get_anything_of_a_stretch(
    words: str, first: int, stop: int, any_given: bool, undecided: bool
) -> None:
    async def scenario() -> None:
        world = World()
        await world.append(*words.split())
        log = world.log
        found = await given_between(log, TextFormat(), Position(1, first), Position(1, stop))
        assert (found.any, found.undecided) == (any_given, undecided)
        if not any_given:
            assert found.sought_to == Position(1, stop)
        log.cached = False
        log.failing = EntryDamagedError("no replica has a sound copy")
        found = await given_between(log, TextFormat(), Position(1, first), Position(1, stop))
        assert found.any == (first < stop)

    asyncio.run(scenario())


def test_a_long_stretch_is_sought_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("magnetar.topics.consuming.transaction_view.SOUGHT_STEPS", 1)
    monkeypatch.setattr("magnetar.topics.consuming.transaction_view.STEP_ENTRIES", 2)

    async def scenario() -> None:
        world = World()
        await world.append(*["7", "7", "7-", "x"])
        places = Position(1, 0), Position(1, 4)
        found = await given_between(world.log, TextFormat(), *places)
        assert found == Given(False, Position(1, 2), undecided=True)
        found = await given_between(world.log, TextFormat(), found.sought_to, places[1])
        assert found.any

    asyncio.run(scenario())


def test_a_last_entry_that_is_lost_is_the_last_one() -> None:
    """Nobody was told where the log ends, and so nobody read what lies before it."""

    async def scenario() -> None:
        world = World()
        await world.append("x", "x")
        world.log.cached = False
        world.log.failing = EntryDamagedError("no replica has a sound copy of entry 1:1")
        assert await last_delivered(world.log, TextFormat()) == Position(1, 1)

    asyncio.run(scenario())


@pytest.mark.parametrize("commits", [True, False])
def test_a_marker_says_whose_transaction_it_ends_and_how(commits: bool) -> None:
    marker = build_marker(7, 3, commits, 5, 1_000)
    described = KafkaEntryFormat().describe(memoryview(marker))
    assert described == Description(1, transaction=TransactionPart(7, commits))
