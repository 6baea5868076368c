"""Compaction of a managed log: the view, what is trimmed meanwhile, and a crash at every step."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Container, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest

from magnetar.config import LedgerConfig
from magnetar.log.managed.compacted_entries import prefix_of
from magnetar.log.managed.compaction import NEXT_MAX, LogCompaction
from magnetar.log.managed.gone import named_by
from magnetar.log.managed.managed_log import ManagedLog
from magnetar.log.managed.records import decode_log, log_path
from magnetar.log.seam import CompactedElsewhere, ReadableLog, Survivor
from magnetar.model.entry import Entry
from magnetar.model.errors import (
    LedgerError,
    LogClosedError,
    LogFencedError,
    MagnetarError,
    MetadataUnavailableError,
    NoSuchLedgerError,
    NotAllowedError,
)
from magnetar.model.ids import EARLIEST, LATEST, Position
from magnetar.model.keyed import KeyedEntry, KeyedMessage
from magnetar.topics import compacting
from magnetar.topics.compacting import compact
from tests.unit.log.doubles import (
    NAME,
    MemoryReader,
    MemoryWriter,
    Outcomes,
    Process,
    StoredLedger,
    World,
)

KEEP = LedgerConfig(ledger_entries_max=4, cursor_flush_interval_ms=1)
TRIM = replace(KEEP, retention_ms=0, retention_bytes=0)


class Words:
    """Entries are ``key=value``, or several of these in one with blanks between: a batch. A key
    alone is a tombstone."""

    def is_large(self, payload: memoryview) -> bool:
        return False

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


def test_many_messages_have_several_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """256 entries that unpack to a thousand messages each were one turn of the loop, of 2 s."""
    monkeypatch.setattr(compacting, "MESSAGES_PER_TURN", 20)
    looked = 0

    class Counted(Words):
        def keyed(self, payload: memoryview) -> KeyedEntry:
            nonlocal looked
            looked += 1
            return super().keyed(payload)

    async def scenario() -> None:
        log = await Process(World()).store(replace(KEEP, ledger_entries_max=100)).open(NAME)
        await publish(log, *(" ".join(f"k{n}-{i}={i}" for i in range(10)) for n in range(30)))
        task = asyncio.create_task(compact(log, Counted()))
        most = before = 0
        while not task.done():
            await asyncio.sleep(0)
            most, before = max(most, looked - before), looked
        await task
        assert looked == 2 * 30
        assert most == 2, "of ten messages each"
        await log.close()

    asyncio.run(scenario())


def test_large_batches_are_taken_apart_on_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    on_threads: list[int] = []

    async def on_thread(work: Callable[[], Any]) -> Any:
        on_threads.append(1)
        await asyncio.sleep(0)
        return work()

    monkeypatch.setattr(asyncio, "to_thread", on_thread)

    class Large(Words):
        def is_large(self, payload: memoryview) -> bool:
            return payload[:1] == b"l"

    async def scenario() -> None:
        log = await Process(World()).store(KEEP).open(NAME)
        await publish(log, "a=1", "la=1 lb=1", "la=2")
        await compact(log, Large())
        assert texts(await read(log.compaction.view)) == ["a=1", "- lb=1", "la=2"]
        assert len(on_threads) == 4
        await log.close()

    asyncio.run(scenario())


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


def test_what_survived_is_deleted_with_the_log() -> None:
    async def scenario() -> None:
        world = World()
        log, _ = await opened(world)
        await compact(log, Words())
        assert log.compaction.stats is not None
        assert alive(world, log) == {log.compaction.stats.ledger_id}
        await log.close()
        await Process(world).store(KEEP).delete(NAME)
        assert world.alive() == set()

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


def test_a_reader_misses_nothing_that_is_compacted_and_trimmed_while_it_reads() -> None:
    """Of the log, since the view had nothing of it when the reading began."""

    async def scenario() -> None:
        world = World()
        store = Process(world).store(TRIM)
        log = await store.open(NAME)
        await log.cursors.open("s", EARLIEST)
        await publish(log, *(f"k{n}={n}" for n in range(12)))
        await store.close()  # nothing is in memory then
        log = await Process(world).store(TRIM).open(NAME)
        view, read_log = log.compaction.view, log.read
        late_ones = [1]

        async def late(start: Position, max_entries: int, max_bytes: int) -> list[Entry]:
            if late_ones:
                late_ones.pop()
                await compact(log, Words())
                await log.cursors.delete("s")
                log.tick()
                await turns()
                assert log.positions.first > start
            return await read_log(start, max_entries, max_bytes)

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(log, "read", late)
            (entry,) = await view.read(EARLIEST, 1, 100)
        assert bytes(entry.payload) == b"k0=0"

    asyncio.run(scenario())


def test_a_read_that_ends_when_another_view_is_there_leads_nobody_astray() -> None:
    """It told where its reader goes on in a ledger that was not the view any more."""

    async def scenario() -> None:
        process = Process(World())
        log = await process.store(KEEP).open(NAME)
        places = await publish(log, *(f"k{n}={n}" for n in range(6)))
        await compact(log, Words())
        view, slow_ones = log.compaction.view, [1]
        read_ledger = MemoryReader.read

        async def slow(
            self: MemoryReader, first: int, max_entries: int, max_bytes: int
        ) -> list[Entry]:
            found = await read_ledger(self, first, max_entries, max_bytes)
            if max_entries == 3 and slow_ones:
                slow_ones.pop()
                await publish(log, "k0=6")
                await compact(log, Words())
                assert [*await view.read(EARLIEST, 1, 100)] != []
            return found

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(MemoryReader, "read", slow)
            found = await view.read(EARLIEST, 3, 1000)
        assert [bytes(entry.payload) for entry in found] == [b"k0=0", b"k1=1", b"k2=2"]
        after = view.positions.next_position(places[2])
        left = await view.read(after, 9, 1000)
        assert [bytes(entry.payload) for entry in left] == [b"k3=3", b"k4=4", b"k5=5", b"k0=6"]

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


HOLDER = "job"


async def job(log: ManagedLog, process: Process, holder: str = HOLDER) -> CompactedElsewhere:
    """What another process does until it tells the owner: entries with an odd number stay."""
    await log.holds.take(holder, 0, 60_000)
    horizon = log.positions.readable
    ledger_id = await log.compaction.begin_elsewhere(holder)
    writer = process.ledgers.writer_of(ledger_id)
    left = [
        (place, text)
        for place, text in (await read(log.compaction.view)).items()
        if place <= horizon and int(text.partition("=")[2]) % 2
    ]
    outcomes = [b"" for _ in left]
    writer.append(
        [text.encode() for _, text in left],
        lambda error, ledger, first, count: outcomes.clear(),
        [prefix_of(place, ()) for place, _ in left],
    )
    await turns()
    assert not outcomes
    await writer.close()
    return CompactedElsewhere(ledger_id, horizon, len(left), left[-1][0])


async def opened(world: World) -> tuple[ManagedLog, Process]:
    process = Process(world)
    log = await process.store(KEEP).open(NAME)
    await publish(log, *(f"k{n % 7}={n}" for n in range(20)))
    return log, process


def alive(world: World, log: ManagedLog) -> set[int]:
    """Ledgers that are none of the log's own."""
    return world.alive() - {each.ledger_id for each in log.stats().ledgers}


def test_what_another_process_has_left_is_taken_over() -> None:
    async def scenario() -> None:
        world = World()
        log, process = await opened(world)
        found = await job(log, process)
        before = await read(log.compaction.view)
        assert len(before) == 20, "nothing of it is served yet"
        await log.compaction.take(HOLDER, None, found)
        odd = [f"k{n % 7}={n}" for n in range(1, 20, 2)]
        assert texts(await read(log.compaction.view)) == odd
        await log.compaction.take(HOLDER, None, found)  # the answer was lost
        base = log.compaction.stats
        assert base is not None
        assert (base.ledger_id, base.horizon, base.entries) == found[:3]
        await publish(log, "k1=21", "k2=22")
        await log.compaction.take(HOLDER, base, await job(log, process))
        assert texts(await read(log.compaction.view)) == [*odd, "k1=21"]
        log.tick()
        await turns()
        assert found.ledger_id not in world.alive(), "the former one goes"
        again = await Process(world).store(KEEP).open(NAME)
        assert texts(await read(again.compaction.view)) == [*odd, "k1=21"]

    asyncio.run(scenario())


def test_of_the_broker_and_another_process_one_wins() -> None:
    async def scenario() -> None:
        world = World()
        log, process = await opened(world)
        found = await job(log, process)
        await compact(log, Words())
        won = await read(log.compaction.view)
        with pytest.raises(NotAllowedError, match="somebody else"):
            await log.compaction.take(HOLDER, None, found)
        log.compaction.give_up(HOLDER)
        log.tick()
        await turns()
        assert await read(log.compaction.view) == won
        assert log.compaction.stats is not None
        assert alive(world, log) == {log.compaction.stats.ledger_id}
        # And the other way: the job is done while the broker writes.
        await publish(log, *(f"k{n % 7}={n}" for n in range(20, 30)))
        base, found = log.compaction.stats, await job(log, process)
        own = asyncio.ensure_future(compact(log, Words()))
        process.ledgers.hold = True
        for _ in range(40):
            await asyncio.sleep(0)
        assert not own.done()
        await log.compaction.take(HOLDER, base, found)
        process.ledgers.hold = False
        process.ledgers.writers[-1].confirm()
        with pytest.raises(NotAllowedError, match="by a job meanwhile"):
            await own
        log.tick()
        await turns()
        assert log.compaction.stats is not None
        assert log.compaction.stats.ledger_id == found.ledger_id
        assert alive(world, log) == {found.ledger_id}, "the ledger of the loser is deleted"

    asyncio.run(scenario())


def test_what_is_begun_elsewhere_goes_with_its_hold() -> None:
    async def scenario() -> None:
        world = World()
        log, process = await opened(world)
        with pytest.raises(NotAllowedError, match="not held"):
            await log.compaction.begin_elsewhere("nobody")
        first = await job(log, process)
        with pytest.raises(NotAllowedError, match="is being compacted by job"):
            await job(log, process, "second")
        again = await job(log, process)
        with pytest.raises(NotAllowedError, match="was not made for job"):
            await log.compaction.take(HOLDER, None, first)
        log.tick()
        await turns()
        assert alive(world, log) == {again.ledger_id}, "a task that is tried again has another one"
        await log.holds.release(HOLDER)
        log.tick()
        await turns()
        assert alive(world, log) == set()
        with pytest.raises(NotAllowedError, match="hold has ended"):
            await log.compaction.take(HOLDER, None, again)
        assert log.compaction.stats is None
        left = await job(log, process)
        other = await Process(world).store(KEEP).open(NAME)
        await turns()
        assert left.ledger_id not in world.alive(), "another owner deletes it"
        with pytest.raises(MagnetarError):
            await log.compaction.take(HOLDER, None, left)
        assert other.compaction.stats is None

    asyncio.run(scenario())


def test_a_compaction_that_cannot_begin_leaves_nothing() -> None:
    async def scenario() -> None:
        world = World()
        log, process = await opened(world)
        put = process.metadata.put

        async def away(path: str, value: bytes, version: int) -> int:
            raise MetadataUnavailableError("away")

        process.metadata.put = away  # type: ignore[method-assign]
        with pytest.raises(MetadataUnavailableError):
            await compact(log, Words())
        process.metadata.put = put  # type: ignore[method-assign]
        assert not log.compaction.in_use, "records can be deleted at the front again"
        log.tick()
        await turns()
        assert alive(world, log) == set()
        await compact(log, Words())
        assert len(await read(log.compaction.view)) == 7

    asyncio.run(scenario())


def test_a_job_that_begins_twice_at_once_has_one_ledger() -> None:
    """Its first question was not answered in time."""

    async def scenario() -> None:
        world = World()
        log, _ = await opened(world)
        await log.holds.take(HOLDER, 0, 60_000)
        begin = log.compaction.begin_elsewhere
        first, second = await asyncio.gather(begin(HOLDER), begin(HOLDER))
        log.tick()
        await turns()
        assert alive(world, log) == {second}
        assert first != second
        log.compaction.give_up(HOLDER)
        assert not log.compaction.in_use
        log.tick()
        await turns()
        assert alive(world, log) == set()

    asyncio.run(scenario())


@pytest.mark.parametrize("ends", ["released", "given up"])
def test_a_hold_that_ends_while_its_ledger_is_made_has_none(ends: str) -> None:
    async def scenario() -> None:
        world = World()
        log, process = await opened(world)
        await log.holds.take(HOLDER, 0, 60_000)
        creating = process.ledgers.create_for_another

        async def slow(*about: Any, **more: Any) -> int:
            if ends == "released":
                await log.holds.release(HOLDER)
                log.tick()
            else:
                log.compaction.give_up(HOLDER)
            return await creating(*about, **more)

        process.ledgers.create_for_another = slow  # type: ignore[method-assign]
        with pytest.raises(NotAllowedError, match="hold has ended"):
            await log.compaction.begin_elsewhere(HOLDER)
        assert not log.compaction.in_use
        log.tick()
        await turns()
        assert alive(world, log) == set()

    asyncio.run(scenario())


@pytest.mark.parametrize("ends", ["released", "given up"])
def test_a_hold_that_ends_while_its_ledger_is_looked_at_leaves_no_view(ends: str) -> None:
    """The ledger was given up by then, and deleted, as what was left of the log."""

    async def scenario() -> None:
        world = World()
        log, process = await opened(world)
        found = await job(log, process)
        opening = process.ledgers.open_no_recovery

        async def slow(ledger_id: int) -> MemoryReader:
            if ends == "released":
                await log.holds.release(HOLDER)
                log.tick()
            else:
                log.compaction.give_up(HOLDER)
            return await opening(ledger_id)

        process.ledgers.open_no_recovery = slow  # type: ignore[method-assign]
        with pytest.raises(NotAllowedError, match="hold has ended"):
            await log.compaction.take(HOLDER, None, found)
        log.tick()
        await turns()
        assert log.compaction.stats is None
        assert alive(world, log) == set()

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"entries": 3}, "is not closed with 3 entries"),
        ({"last": Position(1, 0)}, "and not at"),
        ({"horizon": Position(99, 0)}, "it reaches to"),
        ({"ledger_id": 1}, "was not made for job"),
        ({"ledger_id": -1}, "entries in no ledger"),
    ],
)
def test_what_is_not_as_it_is_told_is_not_taken_over(change: dict[str, Any], why: str) -> None:
    async def scenario() -> None:
        log, process = await opened(World())
        found = await job(log, process)
        with pytest.raises(NotAllowedError, match=why):
            await log.compaction.take(HOLDER, None, found._replace(**change))
        assert log.compaction.stats is None
        await log.compaction.take(HOLDER, None, found)

    asyncio.run(scenario())


async def _two_views() -> tuple[ManagedLog, Process]:
    """A log that was compacted, and has more of its keys since."""
    process = Process(World())
    log = await process.store(KEEP).open(NAME)
    await publish(log, *(f"k{n}={n}" for n in range(6)))
    await compact(log, Words())
    await publish(log, *(f"k{n}=new" for n in range(6)), "z=1")
    return log, process


@pytest.mark.parametrize("fault", ["append", "close", "short"])
def test_what_is_not_stored_as_a_whole_is_no_view(
    monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    """Keys that lie in what is missing would be gone, with all that they were left of."""

    async def scenario() -> None:
        log, process = await _two_views()
        before, stats = await read(log.compaction.view), log.compaction.stats
        ledgers = alive(process.world, log)
        close = MemoryWriter.close

        async def short(self: MemoryWriter) -> StoredLedger:
            """Somebody else has closed it, without the last entry."""
            self.last_add_confirmed -= 1
            return await close(self)

        if fault == "append":
            process.ledgers.break_after = 3
        elif fault == "close":
            process.ledgers.close_errors.append(LedgerError("bookies are away"))
        else:
            monkeypatch.setattr(MemoryWriter, "close", short)
        with pytest.raises(LedgerError):
            await compact(log, Words())
        monkeypatch.undo()
        assert log.compaction.stats == stats
        assert await read(log.compaction.view) == before
        await compact(log, Words())
        assert texts(await read(log.compaction.view)) == [f"k{n}=new" for n in range(6)] + ["z=1"]
        log.tick()
        await turns()
        assert len(alive(process.world, log)) == len(ledgers), "nothing of the first try is left"

    asyncio.run(scenario())


def test_a_log_that_closes_while_it_is_compacted_keeps_its_view() -> None:
    """Its next owner may have compacted it by then."""

    async def scenario() -> None:
        log, process = await _two_views()
        stats = log.compaction.stats
        stored = process.world.nodes[log_path(NAME)]

        async def survivors() -> AsyncIterator[Sequence[Survivor]]:
            yield [Survivor(log.positions.readable, b"z=1", ())]
            log._closed = True

        with log.compaction.reading(), pytest.raises(LogClosedError):
            await log.compaction.replace(log.positions.readable, survivors())
        assert log.compaction.stats == stats
        assert decode_log(NAME, process.world.nodes[log_path(NAME)].value).compacted == (
            decode_log(NAME, stored.value).compacted
        )

    asyncio.run(scenario())


def test_a_view_that_goes_while_it_is_opened_is_followed_by_the_next() -> None:
    async def scenario() -> None:
        log, process = await _two_views()
        open_ledger = process.ledgers.open_no_recovery
        slow_ones = [1]

        async def slow(ledger_id: int) -> MemoryReader:
            if slow_ones:
                slow_ones.pop()
                await compact(log, Words())
                await turns()
            return await open_ledger(ledger_id)

        log.compaction.view._reader = None  # type: ignore[attr-defined]
        process.ledgers.open_no_recovery = slow  # type: ignore[method-assign]
        found = await log.compaction.view.read(EARLIEST, 9, 1000)
        assert not slow_ones
        assert bytes(found[0].payload) == b"k0=new"

    asyncio.run(scenario())


def test_a_view_whose_ledger_is_lost_is_told() -> None:
    async def scenario() -> None:
        log, process = await _two_views()
        stats = log.compaction.stats
        assert stats is not None
        process.world.ledgers[stats.ledger_id].deleted = True
        log.compaction.view._reader = None  # type: ignore[attr-defined]
        with pytest.raises(
            NoSuchLedgerError, match=f"close-at-loss {stats.ledger_id} --of {NAME}$"
        ):
            await log.compaction.view.read(EARLIEST, 9, 1000)
        custom = await named_by(process.metadata, NAME, stats.ledger_id)
        assert custom == {"magnetar-compacted": NAME.encode()}

    asyncio.run(scenario())


@pytest.mark.parametrize("compacting", [False, True])
def test_a_view_that_is_given_up_is_the_log_until_it_is_compacted_again(compacting: bool) -> None:
    """No compaction went through any more: each reads what the last one left."""

    async def scenario() -> None:
        log, process = await _two_views()
        stats = log.compaction.stats
        assert stats is not None
        process.world.ledgers[stats.ledger_id] = StoredLedger(closed=True, given_up=True)
        log.compaction.view._reader = None  # type: ignore[attr-defined]
        if compacting:
            with pytest.raises(NotAllowedError, match="given up meanwhile; compact it again"):
                await compact(log, Words())
        else:
            assert texts(await read(log.compaction.view)) == texts(await read(log))
        assert log.compaction.stats is None
        assert stats.ledger_id in alive(process.world, log)
        await compact(log, Words())
        whole = [f"k{n}=new" for n in range(6)] + ["z=1"]
        assert texts(await read(log.compaction.view)) == whole
        log.tick()
        await turns()
        assert process.world.ledgers[stats.ledger_id].deleted
        await log.close()
        log = await process.store(KEEP).open(NAME)
        assert texts(await read(log.compaction.view)) == whole

    asyncio.run(scenario())


def test_an_owner_that_was_replaced_gives_no_view_up() -> None:
    async def scenario() -> None:
        log, process = await _two_views()
        stats = log.compaction.stats
        assert stats is not None
        later = await Process(process.world).store(KEEP).open(NAME)
        process.world.ledgers[stats.ledger_id] = StoredLedger(closed=True, given_up=True)
        log.compaction.view._reader = None  # type: ignore[attr-defined]
        with pytest.raises(LogFencedError):
            await log.compaction.view.read(EARLIEST, 9, 1000)
        assert later.compaction.stats == stats
        assert texts(await read(later.compaction.view)) == texts(await read(later))

    asyncio.run(scenario())


def test_what_readers_leave_behind_in_a_view_has_a_bound() -> None:
    async def scenario() -> None:
        log = await Process(World()).store(KEEP).open(NAME)
        places = await publish(log, *(f"k{n}={n}" for n in range(150)))
        await compact(log, Words())
        view = log.compaction.view
        for place in places[:-1:2]:  # none of them goes on where another ended
            await view.read(place, 1, 100)
        assert len(view._next) <= NEXT_MAX  # type: ignore[attr-defined]
        assert len(await read(view)) == 150

    asyncio.run(scenario())


def test_behind_the_horizon_places_are_those_of_the_log() -> None:
    async def scenario() -> None:
        log, _ = await _two_views()
        stats = log.compaction.stats
        assert stats is not None
        at, view = stats.horizon, log.compaction.view
        while at < log.positions.readable:
            after = view.positions.next_position(at)
            assert after == log.positions.next_position(at)
            (entry,) = await view.read(after, 1, 100)
            assert (entry.ledger_id, entry.entry_id) == after
            at = after

    asyncio.run(scenario())
