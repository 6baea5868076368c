"""The managed log against a world in memory: appending, rolling, reading, taking over."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from magnetar.config import LedgerConfig
from magnetar.env.metadata import Versioned
from magnetar.log.housekeeping import HOUSEKEEPING_S
from magnetar.log.managed import catch_up
from magnetar.log.managed.managed_log import ManagedLog
from magnetar.log.managed.records import log_path
from magnetar.log.policy import LogPolicy, Retention, RollRule
from magnetar.log.seam import Checkpoint, ReadableLog
from magnetar.model.entry import Entry
from magnetar.model.errors import (
    EntryTooLargeError,
    LedgerError,
    LedgerFencedError,
    LedgerRecoveryError,
    LogClosedError,
    LogError,
    LogFencedError,
    MetadataError,
    NotEnoughBookiesError,
)
from magnetar.model.ids import EARLIEST, LATEST, Position
from magnetar_sim.world.virtual_time import run_virtual
from tests.unit.log.doubles import NAME, MemoryReader, Outcomes, Process, World

SMALL = LedgerConfig(ledger_entries_max=10, cursor_flush_interval_ms=1)


def number(i: int) -> bytes:
    return b"%06d" % i


async def publish(log: ManagedLog, first: int, count: int, batch: int = 1) -> list[Position]:
    outcomes = Outcomes()
    for start in range(first, first + count, batch):
        log.append([number(i) for i in range(start, min(first + count, start + batch))], outcomes)
    await outcomes.wait(len(range(0, count, batch)))
    assert not outcomes.errors
    return outcomes.positions


async def read_all(log: ReadableLog, start: Position = EARLIEST, chunk: int = 7) -> list[Entry]:
    found: list[Entry] = []
    while entries := await log.read(start, chunk, 1 << 20):
        found += entries
        start = log.positions.next_position(Position(entries[-1].ledger_id, entries[-1].entry_id))
    return found


def values(entries: list[Entry]) -> list[int]:
    return [int(bytes(entry.payload)) for entry in entries]


def test_what_is_appended_is_read_back_in_order_after_reopening() -> None:
    async def scenario() -> None:
        world = World()
        store = Process(world).store(SMALL)
        log = await store.open(NAME)
        assert log.positions.readable == EARLIEST
        assert log.read_cached(EARLIEST, 10, 1 << 20) == []
        positions = await publish(log, 0, 35, batch=3)
        assert positions == sorted(positions)
        assert log.positions.readable == positions[-1]
        assert values(await read_all(log)) == list(range(35))
        await store.close()

        process = Process(world)
        log = await process.store(SMALL).open(NAME)
        assert values(await read_all(log)) == list(range(35))
        assert log.positions.entries_between(EARLIEST, LATEST) == 35
        assert len(log.stats().ledgers) == 3
        await publish(log, 35, 5)
        assert values(await read_all(log)) == list(range(40))

    asyncio.run(scenario())


def test_rolling_under_load_keeps_the_order_and_answers_in_order() -> None:
    async def scenario() -> None:
        store = Process(World()).store(SMALL)
        log = await store.open(NAME)
        outcomes = Outcomes()
        for i in range(300):
            log.append([number(2 * i), number(2 * i + 1)], outcomes.for_append(str(i)))
            if i % 7 == 0:
                await asyncio.sleep(0)
        await outcomes.wait(300)
        labels = list(dict.fromkeys(label for label, _ in outcomes.order))
        assert labels == [str(i) for i in range(300)]
        assert outcomes.positions == sorted(outcomes.positions)
        assert values(await read_all(log)) == list(range(600))
        assert len(log.stats().ledgers) > 20
        assert log.pending_bytes == 0

    asyncio.run(scenario())


def test_payloads_may_be_reused_once_append_returns() -> None:
    async def scenario() -> None:
        log = await Process(World()).store(SMALL).open(NAME)
        outcomes = Outcomes()
        buffer = bytearray(6)
        for i in range(25):
            buffer[:] = number(i)
            log.append([memoryview(buffer)], outcomes)
        buffer[:] = b"xxxxxx"
        await outcomes.wait(25)
        assert values(await read_all(log)) == list(range(25))

    asyncio.run(scenario())


@pytest.mark.parametrize("break_after", [0, 1, 4, 5, 9, 17])
def test_a_failed_ledger_costs_no_error_no_order_and_no_duplicate(break_after: int) -> None:
    async def scenario() -> None:
        process = Process(World())
        log = await process.store().open(NAME)
        await publish(log, 0, 1)
        process.ledgers.break_after = break_after
        outcomes = Outcomes()
        for i in range(1, 10):
            log.append([number(2 * i - 1), number(2 * i)], outcomes)
        await asyncio.sleep(0)
        log.append([number(19)], outcomes)
        await outcomes.wait(10)
        assert not outcomes.errors
        assert values(await read_all(log)) == list(range(20))
        assert len(log.stats().ledgers) == 2

    asyncio.run(scenario())


def test_what_recovery_finds_in_a_failed_ledger_is_confirmed_and_not_sent_again() -> None:
    async def scenario() -> None:
        process = Process(World())
        log = await process.store().open(NAME)
        await publish(log, 0, 2)
        process.ledgers.silent = True
        outcomes = Outcomes()
        log.append([number(2), number(3)], outcomes)
        await asyncio.sleep(0)
        writer = process.ledgers.writers[-1]
        log.append([number(4)], outcomes)  # never reaches the ledger
        process.ledgers.close_errors = [MetadataError("no answer")]
        writer.fail(LedgerError("too few bookies"))
        process.ledgers.silent = False
        await outcomes.wait(2)
        assert not outcomes.errors
        assert [p.ledger_id for p in outcomes.positions] == [1, 1, 2]
        assert values(await read_all(log)) == list(range(5))

    asyncio.run(scenario())


def test_a_recovery_that_failed_is_not_taken_for_another_broker() -> None:
    async def scenario() -> None:
        process = Process(World())
        ledgers = process.ledgers
        log = await process.store().open(NAME)
        await publish(log, 0, 2)
        recover, recoveries = ledgers.open, []

        async def open_late(ledger_id: int) -> MemoryReader:
            recoveries.append(ledger_id)
            if len(recoveries) == 1:  # marked as in recovery by now
                ledgers.close_errors = [LedgerFencedError("is being recovered")]
                raise LedgerRecoveryError("too few bookies answer")
            return await recover(ledger_id)

        ledgers.open = open_late  # type: ignore[method-assign]
        ledgers.close_errors = [MetadataError("no answer")]
        ledgers.silent = True
        outcomes = Outcomes()
        log.append([number(2)], outcomes)
        await asyncio.sleep(0)
        ledgers.silent = False
        ledgers.writers[-1].fail(LedgerError("too few bookies"))
        await outcomes.wait(1)
        assert not outcomes.errors
        assert recoveries == [1, 1]
        assert values(await read_all(log)) == [0, 1, 2]

    run_virtual(scenario())


@pytest.mark.parametrize("away", [False, True], ids=["at once", "later"])
def test_a_ledger_that_failed_empty_is_deleted(away: bool) -> None:
    async def scenario() -> None:
        world = World()
        process = Process(world)
        delete = process.ledgers.delete
        log = await process.store().open(NAME)

        async def no_answer(ledger_id: int) -> None:
            raise MetadataError("no answer")

        if away:
            process.ledgers.delete = no_answer  # type: ignore[method-assign]
        process.ledgers.break_after = 0
        await publish(log, 0, 3)
        await asyncio.sleep(1)
        assert world.alive() == ({1, 2} if away else {2})
        process.ledgers.delete = delete  # type: ignore[method-assign]
        await asyncio.sleep(HOUSEKEEPING_S)
        assert world.alive() == {2}
        await log.close()

    run_virtual(scenario())


def test_what_could_not_be_deleted_when_it_was_trimmed_goes_with_the_log() -> None:
    """Its record alone names it."""

    async def scenario() -> None:
        world = World()
        process = Process(world)
        log = await process.store(SMALL).open(NAME)
        await publish(log, 0, 25)
        held = {each.ledger_id for each in log.stats().ledgers}

        async def no_answer(ledger_id: int) -> None:
            raise MetadataError("no answer")

        process.ledgers.delete = no_answer  # type: ignore[method-assign]
        log.set_policy(LogPolicy(RollRule(10, 1 << 30, 1 << 30), Retention(0, 0)))
        await asyncio.sleep(1)
        await log.close()
        left = held - {each.ledger_id for each in log.stats().ledgers}
        assert left
        assert left <= world.alive()
        await Process(world).store(SMALL).delete(NAME)
        assert world.alive() == set()

    run_virtual(scenario())


def test_housekeeping_goes_on_past_a_log_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("magnetar.log.managed.store.TICKS_PER_TURN", 2, raising=False)
    reported: list[object] = []

    async def scenario() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, told: reported.append(told))
        world = World()
        store = Process(world).store(LedgerConfig(ledger_age_ms_max=1000))
        logs = [await store.open(f"public/default/persistent/log-{n}") for n in range(5)]

        def planted() -> None:
            raise RuntimeError("planted")

        logs[2]._appender.tick = planted  # type: ignore[method-assign]
        for log in logs:
            await publish(log, 0, 1)
        world.now_ms += 1000
        await asyncio.sleep(2 * HOUSEKEEPING_S + 1)
        assert [log.lost is None for log in logs] == [True, True, False, True, True]
        rolled = [all(ledger[3] == "closed" for ledger in log.stats().ledgers) for log in logs]
        assert rolled == [True, True, False, True, True]
        await store.close()

    run_virtual(scenario())
    assert len(reported) == 1


def test_an_append_to_a_ledger_that_failed_in_silence_goes_to_the_next() -> None:
    async def scenario() -> None:
        process = Process(World())
        log = await process.store().open(NAME)
        await publish(log, 0, 2)
        process.ledgers.writers[-1].fail(LedgerError("noticed while nothing was pending"))
        buffer = bytearray(number(2))
        outcomes = Outcomes()
        log.append([memoryview(buffer)], outcomes)
        buffer[:] = b"reused"
        await outcomes.wait(1)
        assert not outcomes.errors
        assert values(await read_all(log)) == [0, 1, 2]

    asyncio.run(scenario())


def test_a_ledger_id_that_is_not_new_is_refused() -> None:
    async def scenario() -> None:
        process = Process(World())
        log = await process.store(SMALL).open(NAME)
        await publish(log, 0, 15)
        process.ledgers.ids = iter([1, 1, 1, 1])
        outcomes = Outcomes()
        log.append([number(i) for i in range(15, 21)], outcomes)
        await outcomes.wait(1)
        log.append([b"x"], outcomes)
        await outcomes.wait(2)
        assert isinstance(outcomes.errors[0], LedgerError)
        assert "counter" in str(outcomes.errors[0])
        assert values(await read_all(log)) == list(range(21))

    asyncio.run(scenario())


def test_several_readers_catch_up_through_small_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catch_up, "WINDOW_ENTRIES", 16)

    async def scenario() -> None:
        process = Process(World())
        config = LedgerConfig(ledger_entries_max=300, tail_cache_bytes=0)
        log = await process.store(config).open(NAME)
        await publish(log, 0, 1000, batch=50)
        readers = [read_all(log, chunk=chunk) for chunk in (1, 3, 7, 40)]
        for entries in await asyncio.gather(*readers):
            assert values(entries) == list(range(1000))
        assert all(read <= 40 for _, _, read in process.ledgers.reads)

    asyncio.run(scenario())


def test_appends_fail_in_order_when_no_ledger_can_be_created() -> None:
    async def scenario() -> None:
        process = Process(World())
        log = await process.store().open(NAME)
        process.ledgers.create_errors = [NotEnoughBookiesError("no bookie") for _ in range(4)]
        outcomes = Outcomes()
        log.append([b"a"], outcomes.for_append("a"))
        log.append([b"b", b"c"], outcomes.for_append("b"))
        await outcomes.wait(2)
        assert outcomes.order == [("a", 0), ("b", 0)]
        assert all(isinstance(error, NotEnoughBookiesError) for error in outcomes.errors)
        assert log.pending_bytes == 0
        await publish(log, 0, 3)  # and goes on when there are bookies again
        assert values(await read_all(log)) == [0, 1, 2]

    asyncio.run(scenario())


@pytest.mark.parametrize("stored", [True, False])
def test_a_ledger_that_the_record_does_not_get_is_deleted(stored: bool) -> None:
    """Its first write fails: it names the ledger, of which nobody hears, or it does not."""

    async def scenario() -> None:
        world = World()
        process = Process(world)
        log = await process.store(SMALL).open(NAME)
        put, failing = process.metadata.put, [True]

        async def fails_once(path: str, value: bytes, version: int) -> int:
            if failing and not stored:
                failing.clear()
                raise MetadataError("no answer")
            return await put(path, value, version)

        process.metadata.put = fails_once  # type: ignore[method-assign]
        process.metadata.lose_answers = int(stored)
        await publish(log, 0, 25)  # some ledgers: what is left over goes when one ends
        assert len(process.ledgers.writers) == 4
        await asyncio.sleep(5)
        assert world.alive() == {each.ledger_id for each in log.stats().ledgers}
        assert values(await read_all(log)) == list(range(25))

    run_virtual(scenario())


def test_the_queue_of_a_changing_log_is_bounded_and_nothing_overtakes() -> None:
    async def scenario() -> None:
        config = LedgerConfig(roll_queue_bytes_max=1024)
        log = await Process(World()).store(config).open(NAME)
        outcomes = Outcomes()
        log.append([bytes(1000)], outcomes.for_append("fits"))
        log.append([bytes(100)], outcomes.for_append("too much"))
        log.append([b"small"], outcomes.for_append("after"))
        await outcomes.wait(3)
        assert [label for label, _ in outcomes.order] == ["fits", "too much", "after"]
        assert len(outcomes.positions) == 1
        assert all(isinstance(error, LogError) for error in outcomes.errors)
        await publish(log, 0, 1)

    asyncio.run(scenario())


def test_an_append_that_is_too_large_is_refused_in_its_turn_and_shifts_no_answers() -> None:
    async def scenario() -> None:
        log = await Process(World()).store(LedgerConfig(payload_bytes_max=1024)).open(NAME)
        for opened in (False, True):  # a ledger
            outcomes = Outcomes()
            log.append([number(0)], outcomes.for_append("before"))
            log.append([number(1), bytes(1025)], outcomes.for_append("too large"))
            log.append([number(2), bytes(1024)], outcomes.for_append("after"))
            await outcomes.wait(3)
            labels = ["before", "too large", "after"]
            assert [label for label, _ in outcomes.order] == labels, opened
            assert [type(error) for error in outcomes.errors] == [EntryTooLargeError]
            assert len(outcomes.positions) == 3
            entries = await log.read(outcomes.positions[1], 1, 1)
            assert values(entries) == [2], "each is told where it lies itself"
        assert log.pending_bytes == 0
        await log.close()

    asyncio.run(scenario())


def test_an_append_larger_than_the_queue_is_stored() -> None:
    async def scenario() -> None:
        config = LedgerConfig(roll_queue_bytes_max=1024)
        log = await Process(World()).store(config).open(NAME)
        outcomes = Outcomes()
        log.append([bytes(1500)], outcomes)
        log.append([b"after"], outcomes)
        await outcomes.wait(2)
        assert len(outcomes.positions) == 1
        log.append([b"again"], outcomes)
        await outcomes.wait(3)
        assert len(outcomes.positions) == 2

    asyncio.run(scenario())


def test_a_log_taken_over_is_fenced_here_and_loses_nothing() -> None:
    async def scenario() -> None:
        world = World()
        old = await Process(world).store().open(NAME)
        await publish(old, 0, 5)
        told: list[LogFencedError] = []
        old.watch_lost(told.append)
        new = await Process(world).store().open(NAME)
        outcomes = Outcomes()
        old.append([b"late"], outcomes)
        await outcomes.wait(1)
        assert isinstance(outcomes.errors[0], LogFencedError)
        old.append([b"later"], outcomes)
        await outcomes.wait(2)
        assert len(told) == 1
        await publish(new, 5, 5)
        assert values(await read_all(new)) == list(range(10))
        await old.close()
        assert values(await read_all(new)) == list(range(10))

    asyncio.run(scenario())


def test_a_former_owner_without_a_ledger_loses_at_its_first_append() -> None:
    async def scenario() -> None:
        world = World()
        old = await Process(world).store().open(NAME)
        new = await Process(world).store().open(NAME)
        outcomes = Outcomes()
        old.append([b"late"], outcomes)
        await outcomes.wait(1)
        assert isinstance(outcomes.errors[0], LogFencedError)
        await publish(new, 0, 3)
        assert values(await read_all(new)) == [0, 1, 2]
        assert world.alive() == {ledger[0] for ledger in new.stats().ledgers}

    asyncio.run(scenario())


def test_closing_finishes_what_is_pending_and_refuses_the_rest_in_order() -> None:
    async def scenario() -> None:
        process = Process(World())
        store = process.store()
        log = await store.open(NAME)
        outcomes = Outcomes()
        log.append([b"first"], outcomes.for_append("first"))
        closing = asyncio.ensure_future(log.close())
        await asyncio.sleep(0)
        log.append([b"second"], outcomes.for_append("second"))
        await closing
        await outcomes.wait(2)
        assert [label for label, _ in outcomes.order] == ["first", "second"]
        assert isinstance(outcomes.errors[0], LogClosedError)
        assert all(ledger.closed for ledger in process.world.ledgers.values())
        with pytest.raises(LogClosedError):
            await log.cursors.open("late", LATEST)

    asyncio.run(scenario())


def test_only_what_is_confirmed_is_read() -> None:
    async def scenario() -> None:
        process = Process(World())
        log = await process.store().open(NAME)
        process.ledgers.hold = True
        outcomes = Outcomes()
        log.append([b"x"], outcomes)
        for _ in range(20):
            await asyncio.sleep(0)
        assert log.read_cached(EARLIEST, 1, 1000) == []  # in memory, but not confirmed
        process.ledgers.writers[-1].confirm()
        assert log.positions.readable.entry_id == 0
        assert len(log.read_cached(EARLIEST, 1, 1000) or []) == 1

    asyncio.run(scenario())


def test_a_reader_faster_than_its_read_ahead_reads_nothing_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(catch_up, "WINDOW_ENTRIES", 16)

    async def scenario() -> None:
        process = Process(World())
        config = LedgerConfig(ledger_entries_max=1000, tail_cache_bytes=0)
        log = await process.store(config).open(NAME)
        await publish(log, 0, 400, batch=10)
        assert values(await read_all(log, chunk=7)) == list(range(400))
        fetched = sum(count for _, _, count in process.ledgers.reads)
        assert fetched <= 400 + 7, "all but the first read come through one window"

    asyncio.run(scenario())


@pytest.mark.parametrize("budget_bytes", [0, 100, 1000, 4000, 1 << 20])
@pytest.mark.parametrize("chunk", [1, 20])
@pytest.mark.parametrize("readers", [1, 7])
def test_readers_load_no_more_than_their_share_of_the_read_ahead(
    budget_bytes: int, chunk: int, readers: int
) -> None:
    """What does not fit in the budget is thrown away, and would be loaded again for each entry."""

    async def scenario() -> None:
        process = Process(World())
        config = LedgerConfig(tail_cache_bytes=0, read_ahead_bytes_max=budget_bytes)
        log = await process.store(config).open(NAME)
        await publish(log, 0, 300, batch=10)
        found: list[list[Entry]] = [[] for _ in range(readers)]
        for _ in range(0, 300, chunk):
            for mine in found:
                last = mine[-1] if mine else None
                at = Position(last.ledger_id, last.entry_id + 1) if last else EARLIEST
                mine += await log.read(at, chunk, 1 << 20)
                await asyncio.sleep(0)
        while len(found[0]) < 300:
            for mine in found:
                last = mine[-1]
                at = Position(last.ledger_id, last.entry_id + 1)
                mine += await log.read(at, chunk, 1 << 20)
        assert [values(mine[:300]) for mine in found] == [list(range(300))] * readers
        fetched = sum(count for _, _, count in process.ledgers.reads)
        assert fetched <= 2 * 300 * readers

    asyncio.run(scenario())


def test_a_reader_that_takes_a_window_in_one_read_finds_the_next_in_memory() -> None:
    """As who reads batches of some hundred KiB: a few of them are a window."""

    async def scenario() -> None:
        process = Process(World())
        entry_bytes = 72
        config = LedgerConfig(tail_cache_bytes=0, read_ahead_bytes_max=2 * 3 * entry_bytes)
        log = await process.store(config).open(NAME)
        await publish(log, 0, 60, batch=10)
        at, found, waited = EARLIEST, list[Entry](), 0
        while len(found) < 60:
            some = log.read_cached(at, 3, 1 << 20)
            if some is None:
                waited += 1
                some = await log.read(at, 3, 1 << 20)
            found += some
            at = Position(found[-1].ledger_id, found[-1].entry_id + 1)
            for _ in range(10):
                await asyncio.sleep(0)
        assert values(found) == list(range(60))
        assert waited == 2, "the first read, and the one that shows that it goes on"
        assert sum(count for _, _, count in process.ledgers.reads) == 60, "nothing is read twice"

    asyncio.run(scenario())


def test_a_read_that_ends_after_its_log_reads_nothing_ahead() -> None:
    async def scenario() -> None:
        process = Process(World())
        config = LedgerConfig(tail_cache_bytes=0, read_ahead_bytes_max=2 * 3 * 72)
        log = await process.store(config).open(NAME)
        await publish(log, 0, 60, batch=10)
        first = await log.read(EARLIEST, 3, 1 << 20)
        after = Position(first[-1].ledger_id, first[-1].entry_id + 1)
        catch_up = log._catch_up
        original, closed = catch_up._fetch, asyncio.Event()

        async def fetch(position: Position, entries: int, byte_count: int) -> list[Entry]:
            found: list[Entry] = await original(position, entries, byte_count)
            await closed.wait()
            return found

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(catch_up, "_fetch", fetch)
            reading = asyncio.create_task(log.read(after, 3, 1 << 20))
            for _ in range(10):
                await asyncio.sleep(0)
            await log.close()
            closed.set()
            assert [entry.entry_id for entry in await reading] == [3, 4, 5]

    asyncio.run(scenario())


@pytest.mark.parametrize("cache_bytes", [0, 300, 1 << 20])
def test_reading_with_little_memory_goes_to_the_bookies(cache_bytes: int) -> None:
    async def scenario() -> None:
        process = Process(World())
        config = LedgerConfig(ledger_entries_max=50, tail_cache_bytes=cache_bytes)
        log = await process.store(config).open(NAME)
        await publish(log, 0, 180, batch=10)
        assert values(await read_all(log, chunk=3)) == list(range(180))
        if cache_bytes == 0:
            reads = len(process.ledgers.reads)
            assert 0 < reads < 30, "read-ahead should save most of 60 reads"
        if cache_bytes == 1 << 20:
            assert not process.ledgers.reads

    asyncio.run(scenario())


def test_a_ledger_that_moved_is_read_where_it_lies_now(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        log = await Process(World()).store(LedgerConfig(tail_cache_bytes=0)).open(NAME)
        await publish(log, 0, 5)
        read, gone, used = MemoryReader.read, list[MemoryReader](), list[MemoryReader]()

        async def read_unless_gone(
            self: MemoryReader, first_entry_id: int, max_entries: int, max_bytes: int
        ) -> list[Entry]:
            used.append(self)
            if self in gone:
                raise LedgerError("no bookie that this reader knows of has the entry")
            return await read(self, first_entry_id, max_entries, max_bytes)

        monkeypatch.setattr(MemoryReader, "read", read_unless_gone)
        assert values(await log.read(EARLIEST, 1, 1)) == [0]
        gone += used
        with pytest.raises(LedgerError):
            await log.read(EARLIEST, 1, 1)
        assert values(await log.read(EARLIEST, 1, 1)) == [0]

    asyncio.run(scenario())


def test_a_log_says_what_was_trimmed_and_when_it_was_made() -> None:
    """Both survive a reopening; a log made anew under the name is told from the one before."""

    async def scenario() -> None:
        config = replace(SMALL, retention_ms=0, retention_bytes=0)
        process = Process(World())
        process.world.now_ms = 5000
        store = process.store(config)
        log = await store.open(NAME)
        assert (log.stats().trimmed, log.stats().created_ms) == (EARLIEST, 5000)
        positions = await publish(log, 0, 25)
        log.tick()
        for _ in range(50):
            await asyncio.sleep(0)
        trimmed = log.stats().trimmed
        assert trimmed in positions
        assert log.positions.first > trimmed
        await log.close()
        process.world.now_ms = 6000
        log = await store.open(NAME)
        assert log.stats().created_ms == 5000
        assert log.stats().trimmed >= trimmed
        await log.close()
        await store.delete(NAME)
        log = await store.open(NAME)
        assert (log.stats().trimmed, log.stats().created_ms) == (EARLIEST, 6000)

    asyncio.run(scenario())


def test_trimming_that_failed_is_finished_by_a_later_look() -> None:
    async def scenario() -> None:
        config = replace(SMALL, retention_ms=0, retention_bytes=0)
        process = Process(World())
        log = await process.store(config).open(NAME)
        counted = Position(-1, -1)
        log.checkpoints.keep(lambda: Checkpoint(counted, b"state"))
        positions = await publish(log, 0, 25)
        before, put = process.world.alive(), process.metadata.put

        async def away(path: str, value: bytes, version: int) -> int:
            raise MetadataError("no answer")

        process.metadata.put = away  # type: ignore[method-assign]
        counted = positions[12]
        log.tick()
        await asyncio.sleep(1)
        assert process.world.alive() == before, "the record does not say so"
        process.metadata.put = put  # type: ignore[method-assign]
        for _ in range(2):
            log.tick()
            await asyncio.sleep(1)
        assert log.positions.first > positions[0]
        assert process.world.alive() == {each.ledger_id for each in log.stats().ledgers}
        first, counted = log.positions.first, positions[-1]
        log.tick()
        await asyncio.sleep(1)
        assert log.positions.first > first, "and so on"

    run_virtual(scenario())


def test_what_no_checkpoint_counts_is_not_trimmed() -> None:
    """And what is trimmed is counted by the checkpoint in the same record, in memory or not."""

    async def scenario() -> None:
        config = replace(SMALL, retention_ms=0, retention_bytes=0)
        process = Process(World())
        log = await process.store(config).open(NAME)
        counted = Position(-1, -1)
        log.checkpoints.keep(lambda: Checkpoint(counted, b"state"))
        positions = await publish(log, 0, 25)
        for _ in range(2):
            log.tick()
            for _ in range(50):
                await asyncio.sleep(0)
        assert log.positions.first == positions[0]
        counted = positions[12]
        log.tick()
        for _ in range(50):
            await asyncio.sleep(0)
        assert positions[0] < log.positions.first <= positions[13]
        stored = log.checkpoints.stored
        assert stored == Checkpoint(counted, b"state")
        again = await process.store(config).open(NAME)
        assert again.checkpoints.stored == stored
        again.tick()
        for _ in range(50):
            await asyncio.sleep(0)
        assert again.positions.first == log.positions.first, "kept for whoever reads on from there"
        await again.close()

    asyncio.run(scenario())


def test_a_log_says_whether_it_frees_space_later() -> None:
    """An open ledger that is acknowledged goes with retention once its age has closed it."""

    async def scenario() -> None:
        config = LedgerConfig(ledger_age_ms_max=1000, retention_ms=500)
        process = Process(World())
        log = await process.store(config).open(NAME)
        cursor = await log.cursors.open("c", EARLIEST)
        assert not log.stats().frees_later
        (position,) = await publish(log, 0, 1)
        assert not log.stats().frees_later
        cursor.acknowledge([position])
        await cursor.wait_stored()
        assert log.stats().frees_later
        for _ in range(2):
            process.world.now_ms += 1000
            log.tick()
            for _ in range(50):
                await asyncio.sleep(0)
        assert log.stats().entries == 0
        assert not log.stats().frees_later
        await log.close()

    asyncio.run(scenario())


def test_old_ledgers_roll_and_empty_ones_do_not() -> None:
    async def scenario() -> None:
        process = Process(World())
        log = await process.store(LedgerConfig(ledger_age_ms_max=1000)).open(NAME)
        await publish(log, 0, 1)
        log.tick()
        assert log.stats().ledgers[-1][3] == "open"
        process.world.now_ms += 1000
        log.tick()
        for _ in range(20):
            await asyncio.sleep(0)
        assert [ledger[3] for ledger in log.stats().ledgers] == ["closed"]
        await publish(log, 1, 1)
        assert [ledger[3] for ledger in log.stats().ledgers] == ["closed", "open"]
        assert values(await read_all(log)) == [0, 1]

    asyncio.run(scenario())


@pytest.mark.parametrize("others", [0, 40], ids=["few names", "many"])
def test_a_log_whose_record_cannot_be_read_is_listed_with_the_others(others: int) -> None:
    """It is one that is damaged, or of a newer release, which a cluster may have beside this."""

    async def scenario() -> None:
        world = World()
        store = Process(world).store(SMALL)
        names = [f"public/default/persistent/{n:02}" for n in range(others + 2)]
        for name in names:
            await (await store.open(name)).close()
        world.nodes[log_path(names[0])] = Versioned(b"\xff no record", 7)
        assert await store.names("public/default") == names
        with pytest.raises(LogError, match="cannot be read"):
            await store.open(names[0])

    asyncio.run(scenario())


def test_names_are_listed_and_deleted_logs_leave_nothing() -> None:
    async def scenario() -> None:
        world = World()
        process = Process(world)
        store = process.store(SMALL)
        names = [
            "public/default/persistent/a/b c~d",
            "public/default/persistent/z",
            "public/other/persistent/é",
        ]
        for name in names:
            log = await store.open(name)
            await publish(log, 0, 15)
            cursor = await log.cursors.open("sub/1", EARLIEST)
            cursor.acknowledge([log.positions.readable])
            await cursor.wait_stored()
        assert await store.names("") == sorted(names)
        assert await store.names("public/default") == names[:2]
        assert await store.names("nobody") == []
        assert await store.names("public/default", {names[0]}) == names[:2]
        with pytest.raises(LogError, match="open"):
            await store.delete(names[0])
        await store.close()
        store = process.store(SMALL)
        for name in names:
            assert await store.exists(name)
            await store.delete(name)
            assert not await store.exists(name)
        await store.delete(names[0])
        assert await store.names("") == []
        assert world.alive() == set()
        with pytest.raises(LogError, match="tenant"):
            await store.open("short/name")

    asyncio.run(scenario())
