"""Compaction of a managed log: the view, what is trimmed meanwhile, and a crash at every step."""

from __future__ import annotations

import asyncio
from collections.abc import Container
from contextlib import suppress
from dataclasses import replace

import pytest

from magnetar.config import LedgerConfig
from magnetar.log.managed.compaction import LogCompaction
from magnetar.log.managed.managed_log import ManagedLog
from magnetar.log.managed.records import decode_log, log_path
from magnetar.log.seam import ReadableLog
from magnetar.model.errors import LogFencedError, MagnetarError, NotAllowedError
from magnetar.model.ids import EARLIEST, LATEST, Position
from magnetar.model.keyed import KeyedEntry, KeyedMessage
from magnetar.topics.compacting import compact
from tests.unit.log.doubles import NAME, Outcomes, Process, World

KEEP = LedgerConfig(ledger_entries_max=4, cursor_flush_interval_ms=1)
TRIM = replace(KEEP, retention_ms=0, retention_bytes=0)


class Words:
    """Entries are ``key=value``, or several of these in one with blanks between: a batch. A key
    alone is a tombstone."""

    def keyed(self, payload: memoryview) -> KeyedEntry:
        words = bytes(payload).split(b" ")
        found = []
        for index, word in enumerate(words):
            key, _, value = word.partition(b"=")
            if key != b"-":
                found.append(KeyedMessage(index, key or None, not value))
        return KeyedEntry(found, len(words))

    def without_others(self, payload: memoryview, kept: Container[int]) -> bytes:
        header, words = bytes(payload[:30]), bytes(payload[30:]).split(b" ")
        left = [word if index in kept else b"-" for index, word in enumerate(words)]
        return header + b" ".join(left)


async def publish(log: ManagedLog, *texts: str) -> list[Position]:
    outcomes = Outcomes()
    for text in texts:  # one at a time: ledgers roll in between
        log.append([text.encode()], outcomes)
        for _ in range(12):
            await asyncio.sleep(0)
    return outcomes.positions


async def read(source: ReadableLog) -> dict[Position, str]:
    """All of it; each position once, in order."""
    found: dict[Position, str] = {}
    position = source.positions.first
    while True:
        entries = source.read_cached(position, 3, 100)
        if entries is None:
            entries = await source.read(position, 3, 100)
        if not entries:
            return found
        for entry in entries:
            here = Position(entry.ledger_id, entry.entry_id)
            assert here >= position
            assert not found or here > list(found)[-1]
            found[here] = bytes(entry.payload).decode()
        position = source.positions.next_position(here)


def texts(found: dict[Position, str]) -> list[str]:
    return list(found.values())


async def turns() -> None:
    for _ in range(60):
        await asyncio.sleep(0)


def test_the_view_has_the_last_of_each_key_and_then_the_log() -> None:
    async def scenario() -> None:
        log = await Process(World()).store(KEEP).open(NAME)
        places = await publish(log, "a=1", "b=1", "a=2 c=1", "=none", "b", "c=2 d=1")
        view = log.compaction.view
        assert texts(await read(view)) == texts(await read(log)), "never compacted"
        await compact(log, Words())
        assert await read(view) == {places[2]: "a=2 -", places[5]: "c=2 d=1"}
        assert (await view.read(places[2], 1, 100))[0].kept == (1,)
        assert view.positions.readable == places[5]
        later = await publish(log, "a=3", "d")
        assert texts(await read(view)) == ["a=2 -", "c=2 d=1", "a=3", "d"]
        assert view.positions.readable == later[-1]
        await compact(log, Words())
        assert await read(view) == {places[5]: "c=2 -", later[0]: "a=3"}
        assert view.positions.readable == later[0], "what was deleted at the end is not waited for"
        assert texts(await read(log))[-1] == "d", "the log is as it was"
        stats = log.compaction.stats
        await compact(log, Words())
        assert log.compaction.stats == stats, "nothing came since"
        await publish(log, "a", "c")
        await compact(log, Words())
        assert await read(view) == {}
        assert log.compaction.stats is not None
        assert log.compaction.stats.ledger_id == -1
        assert texts(await read(log))[-1] == "c"

    asyncio.run(scenario())


def test_a_reader_may_begin_anywhere_in_the_view() -> None:
    async def scenario() -> None:
        log = await Process(World()).store(KEEP).open(NAME)
        places = await publish(log, *(f"k{n % 9}={n}" for n in range(30)))
        await compact(log, Words())
        await publish(log, "x=1")
        view = log.compaction.view
        left = texts(await read(view))
        assert left == [f"k{n % 9}={n}" for n in range(21, 30)] + ["x=1"]
        for number, place in enumerate(places):
            (entry,) = await view.read(place, 1, 100)
            assert bytes(entry.payload).decode() == left[max(0, number - 21)]

    asyncio.run(scenario())


def test_what_survived_outlives_what_it_came_from() -> None:
    """And what was not compacted is not trimmed, though nobody else needs it."""

    async def scenario() -> None:
        world = World()
        store = Process(world).store(TRIM)
        log = await store.open(NAME)
        cursor = await log.cursors.open("s", EARLIEST)
        await publish(log, *(f"k{n % 5}={n}" for n in range(20)))
        await compact(log, Words())
        left = await read(log.compaction.view)
        await publish(log, *(f"k{n % 5}={n}" for n in range(20, 30)))
        cursor.acknowledge_cumulative(LATEST)
        await cursor.wait_stored()
        log.tick()
        await turns()
        assert log.positions.first > next(iter(left)), "it was trimmed"
        whole = texts(await read(log.compaction.view))
        assert whole == [f"k{n % 5}={n}" for n in range(15, 30)]
        reader = log.cursors.reader("r", log.compaction.view.positions.first)
        assert log.compaction.view.positions.next_position(reader.mark_delete) <= next(iter(left))
        reader.acknowledge_cumulative(list(left)[1])
        assert reader.mark_delete < list(left)[2], "the others that were trimmed are not read yet"
        await store.close()
        log = await Process(world).store(TRIM).open(NAME)
        assert texts(await read(log.compaction.view)) == whole
        await compact(log, Words())
        assert texts(await read(log.compaction.view)) == [f"k{n % 5}={n}" for n in range(25, 30)]

    asyncio.run(scenario())


def test_after_the_last_survivor_comes_what_was_published_after_the_horizon() -> None:
    """Also where nothing is in memory."""

    async def scenario() -> None:
        world = World()
        store = Process(world).store(KEEP)
        log = await store.open(NAME)
        places = await publish(log, "a=1", "b=1", "a=2", "a")
        await compact(log, Words())
        await publish(log, "c=1")
        await store.close()
        log = await Process(world).store(KEEP).open(NAME)
        view = log.compaction.view
        assert texts(await read(view)) == ["b=1", "c=1"]
        for place in places[2:]:
            (entry,) = await view.read(place, 1, 100)
            assert bytes(entry.payload) == b"c=1"

    asyncio.run(scenario())


def test_nothing_that_a_compaction_reads_is_trimmed() -> None:
    async def scenario() -> None:
        log = await Process(World()).store(TRIM).open(NAME)
        await log.cursors.open("s", EARLIEST)
        await publish(log, *(f"k{n}={n}" for n in range(12)))
        with log.compaction.reading():
            await log.cursors.delete("s")
            log.tick()
            await turns()
            assert log.positions.first.ledger_id == 1
            with pytest.raises(NotAllowedError), log.compaction.reading():
                pass
        await turns()
        assert log.positions.first.ledger_id > 1

    asyncio.run(scenario())


class Compacting:
    """Two compactions, the second of which may end anywhere."""

    def __init__(self, world: World, crash_at: int | None, effect: bool) -> None:
        self.process = Process(world, effect=effect)
        self._crash_at = crash_at
        self.done = False

    async def run(self) -> None:
        log = await self.process.store(KEEP).open(NAME)
        await publish(log, *(f"k{n % 7}={n}" for n in range(20)))
        await compact(log, Words())
        self.old = await read(log.compaction.view)
        await publish(log, *(f"k{n % 7}={n}" for n in range(20, 26)), "k1", "k3=x k4=y")
        self.tail = await read(log.compaction.view)
        ends = "=19", "=20", "=21", "=23", "k3=x k4=y"
        self.new = {place: text for place, text in self.tail.items() if text.endswith(ends)}
        self.before = self.process.operations
        if self._crash_at is not None:
            self.process.crash_at = self.before + self._crash_at
        with suppress(MagnetarError):
            await compact(log, Words())
            self.done = True


@pytest.mark.parametrize("effect", [False, True], ids=["before", "after"])
def test_a_crash_at_any_step_leaves_the_old_view_or_the_new_one(effect: bool) -> None:
    async def scenario() -> None:
        whole = Compacting(World(), None, effect)
        await whole.run()
        steps = whole.process.operations - whole.before
        assert whole.done
        assert steps >= 6, "create, name, add, close, switch, delete"
        seen = set()
        for step in range(1, steps + 1):
            world = World()
            life = Compacting(world, step, effect)
            await life.run()
            assert life.process.crashed
            log = await Process(world).store(KEEP).open(NAME)
            await turns()
            found = await read(log.compaction.view)
            assert found in (life.new, life.tail), (step, found)
            seen.add(found == life.new)
            if life.done:
                assert found == life.new
            _check_ledgers(world, log)
            await compact(log, Words())
            assert await read(log.compaction.view) == life.new
        assert seen == {False, True}

    asyncio.run(scenario())


def _check_ledgers(world: World, log: ManagedLog) -> None:
    """Nothing is left over but what was created just before the crash."""
    record = decode_log(NAME, world.nodes[log_path(NAME)].value)
    held = {info.ledger_id for info in record.ledgers}
    assert record.compacted is not None
    if record.compacted.ledger_id >= 0:
        assert record.compacted.ledger_id in world.alive()
        held.add(record.compacted.ledger_id)
    assert held <= world.alive()
    left = world.alive() - held
    assert len(left) <= 1, (world.alive(), held)
    assert not any(world.ledgers[each].entries for each in left), "else the record names it"


def test_an_owner_that_was_replaced_does_not_change_the_view() -> None:
    async def scenario() -> None:
        world = World()
        former = await Process(world).store(KEEP).open(NAME)
        await publish(former, "a=1", "a=2")
        lost: list[LogFencedError] = []
        former.watch_lost(lost.append)
        owner = await Process(world).store(KEEP).open(NAME)
        with pytest.raises(MagnetarError):
            await compact(former, Words())
        await turns()
        assert lost
        assert owner.compaction.stats is None
        assert texts(await read(owner.compaction.view)) == ["a=1", "a=2"]
        assert isinstance(owner.compaction, LogCompaction)

    asyncio.run(scenario())
