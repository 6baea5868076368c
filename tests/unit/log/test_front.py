"""The front of a log on ledgers: whole ledgers that go, crashes, and what it is refused for."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import replace

import pytest

from magnetar.config import LedgerConfig
from magnetar.log.managed.managed_log import ManagedLog
from magnetar.log.managed.positions import ChainPositions
from magnetar.log.managed.records import decode_log, encode_log, log_path
from magnetar.log.seam import Checkpoint, Content, LogStats, Survivor, TableMark
from magnetar.model.entry import Entry
from magnetar.model.errors import (
    LogClosedError,
    LogFencedError,
    MagnetarError,
    MetadataError,
    NotAllowedError,
    ServiceNotReadyError,
)
from magnetar.model.ids import EARLIEST, LATEST, Position
from tests.unit.log.doubles import NAME, Process, World
from tests.unit.log.test_managed_log import publish, read_all, values

KEPT = LedgerConfig(ledger_entries_max=4, cursor_flush_interval_ms=1)
"""Retention is without bounds."""


async def turns(condition: Callable[[], bool]) -> None:
    for _ in range(1_000):
        if condition():
            return
        await asyncio.sleep(0.001)
    raise AssertionError("it does not come true")


def place_of(entry: Entry) -> Position:
    return Position(entry.ledger_id, entry.entry_id)


def ledgers_of(stats: LogStats) -> int:
    return len(stats.ledgers)


def test_whole_ledgers_before_it_are_deleted_whatever_retention_keeps() -> None:
    async def scenario() -> None:
        world = World()
        log = await Process(world).store(KEPT).open(NAME)
        await publish(log, 0, 14)
        cursor = await log.cursors.open("s", EARLIEST)
        assert ledgers_of(log.stats()) == 4
        await log.front.delete_before(6)
        await turns(lambda: ledgers_of(log.stats()) == 3)
        stats = log.stats()
        assert (stats.entries, stats.trimmed) == (8, Position(stats.ledgers[0].ledger_id, 1))
        assert values(await read_all(log)) == list(range(6, 14))
        assert cursor.backlog_entries() == 8
        await log.front.delete_before(-1)
        # The open ledger stays until it is full or old.
        await turns(lambda: ledgers_of(log.stats()) == 1)
        assert log.stats().entries == 0
        await publish(log, 14, 2)
        await log.front.delete_before(-1)
        await publish(log, 16, 2)
        await turns(lambda: ledgers_of(log.stats()) == 1)
        assert values(await read_all(log)) == [16, 17]
        assert cursor.backlog_entries() == 2

        def cursors() -> set[int]:
            held = {each.ledger_id for each in log.stats().ledgers}
            return {number for number in world.alive() if number not in held}

        # What is left is the cursor's. Ledgers go once the log's record says so.
        await turns(lambda: len(cursors()) <= 1)
        await log.close()

    asyncio.run(scenario())


def test_a_ledger_waits_for_cursors_that_have_not_stored_that_they_passed_it() -> None:
    async def scenario() -> None:
        world = World()
        process = Process(world)
        log = await process.store(KEPT).open(NAME)
        await publish(log, 0, 12)
        cursor = await log.cursors.open("s", EARLIEST)
        process.ledgers.break_after = 0  # the cursor finds no ledger to write to
        await log.front.delete_before(10)
        assert cursor.backlog_entries() == 2
        assert ledgers_of(log.stats()) == 3
        with pytest.raises(MagnetarError):
            await cursor.wait_stored()
        assert ledgers_of(log.stats()) == 3
        process.ledgers.break_after = None
        await turns(lambda: ledgers_of(log.stats()) == 1)
        await log.close()

    asyncio.run(scenario())


@pytest.mark.parametrize("effect", [False, True], ids=["before", "after"])
def test_a_crash_at_any_step_brings_nothing_back_that_was_said_to_be_gone(effect: bool) -> None:
    async def life(process: Process) -> int:
        """What was promised."""
        begin = 0
        try:
            log = await process.store(KEPT).open(NAME)
            cursor = await log.cursors.open("s", EARLIEST)
            positions = await publish(log, 0, 10)
            cursor.acknowledge([positions[1], positions[7]])
            await cursor.wait_stored()
            for offset in (3, 6):
                begin = await log.front.delete_before(offset)
            await log.close()
        except (MagnetarError, AssertionError):
            assert process.crashed
        return begin

    async def scenario() -> None:
        process = Process(World())
        assert await life(process) == 6
        for step in range(14, process.operations + 1):
            world = World()
            promised = await life(Process(world, crash_at=step, effect=effect))
            log = await Process(world).store(KEPT).open(NAME)
            begin = log.front.offset
            assert begin in (promised, 3, 6)
            assert begin >= promised
            found = await read_all(log)
            assert values(found) == list(range(begin, 10))[: len(found)]
            cursor = await log.cursors.open("s", EARLIEST)
            left = [each for each in found if not cursor.is_acknowledged(*place_of(each))]
            assert cursor.backlog_entries() == len(left)
            await log.close()

    asyncio.run(scenario())


def test_one_that_failed_and_is_asked_for_again_is_stored_before_it_is_answered() -> None:
    async def scenario() -> None:
        world = World()
        process = Process(world)
        log = await process.store(KEPT).open(NAME)
        await publish(log, 0, 6)
        cursor = await log.cursors.open("s", EARLIEST)
        marked = cursor.mark_delete

        async def put(*_: object) -> int:
            raise MetadataError("the store is out of reach")

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(process.metadata, "put", put)
            for _ in range(2):
                with pytest.raises(MetadataError):
                    await log.front.delete_before(3)
                assert cursor.mark_delete == marked, "the next owner may begin there"
        assert decode_log(NAME, world.nodes[log_path(NAME)].value).front.offset == 0
        assert await log.front.delete_before(3) == 3
        assert decode_log(NAME, world.nodes[log_path(NAME)].value).front.offset == 3
        assert cursor.backlog_entries() == 3
        await log.close()

    asyncio.run(scenario())


def test_an_owner_that_was_replaced_deletes_nothing() -> None:
    async def scenario() -> None:
        world = World()
        log = await Process(world).store(KEPT).open(NAME)
        await publish(log, 0, 6)
        later = await Process(world).store(KEPT).open(NAME)
        with pytest.raises(LogFencedError):
            await log.front.delete_before(3)
        assert log.lost is not None
        assert later.front.offset == 0
        await later.close()

    asyncio.run(scenario())


def test_reads_of_headers_stop_at_the_front() -> None:
    """A fetch asks for the begin each time: it costs no read, within a ledger of batches either."""

    async def scenario() -> None:
        world = World()
        process = Process(world)
        log = await process.store(replace(KEPT, ledger_entries_max=100)).open(NAME)
        outcomes = [2, 3, 4, 5, 6]
        for messages in outcomes:
            log.append([b"x"], lambda error, runs: None, Content([messages], [1]))
        await turns(lambda: log.positions.end_offset == 20)
        await log.front.delete_before(7)
        log._tail.clear()
        before = process.operations
        places = log.positions
        assert await places.offset_of(places.first) == 5
        assert places.messages_between(places.previous_position(places.first), LATEST) == 15
        assert process.operations == before
        assert await log.positions.position_of(6) == log.positions.first
        await log.close()

    asyncio.run(scenario())


async def _table(log: ManagedLog) -> None:
    await log.tabled.attach(TableMark("t"))


async def _compacted(log: ManagedLog) -> None:
    async def nothing() -> AsyncIterator[Sequence[Survivor]]:
        for each in ():
            yield each

    with log.compaction.reading():
        await log.compaction.replace(log.positions.readable, nothing())


@pytest.mark.parametrize("make", [_table, _compacted])
def test_what_is_read_from_elsewhere_too_is_refused(
    make: Callable[[ManagedLog], Awaitable[None]],
) -> None:
    async def scenario() -> None:
        log = await Process(World()).store(KEPT).open(NAME)
        await publish(log, 0, 6)
        await make(log)
        with pytest.raises(NotAllowedError):
            await log.front.delete_before(3)
        assert log.front.offset == 0
        await log.close()

    asyncio.run(scenario())


def test_a_table_is_not_attached_while_a_ledger_is_deleted_in_part() -> None:
    async def scenario() -> None:
        log = await Process(World()).store(KEPT).open(NAME)
        await publish(log, 0, 8)
        await log.front.delete_before(6)
        with pytest.raises(NotAllowedError, match="whole ledgers"):
            await log.tabled.attach(TableMark("t"))
        await publish(log, 8, 1)
        await log.front.delete_before(8)
        await turns(lambda: ledgers_of(log.stats()) == 1)
        await log.tabled.attach(TableMark("t"))
        await log.close()

    asyncio.run(scenario())


def test_what_comes_in_the_place_of_a_lost_end_is_not_deleted() -> None:
    """Bookies that do not sync have lost the log's end, and records up to there were deleted."""

    async def scenario() -> None:
        world = World()
        log = await Process(world).store(KEPT).open(NAME)
        positions = await publish(log, 0, 6)
        assert await log.front.delete_before(-1) == 6
        lost = world.ledgers[positions[-1].ledger_id]
        del lost.entries[-1:]
        again = await Process(world).store(KEPT).open(NAME)
        end = again.positions.end_offset
        assert end < 6
        assert again.front.offset == end
        await publish(again, 6, 4)
        assert values(await read_all(again)) == [6, 7, 8, 9]
        await again.close()

    asyncio.run(scenario())


def test_what_a_later_owner_must_read_stays() -> None:
    """The feeder's checkpoint counts up to a position; behind it lies what it has to find."""

    async def scenario() -> None:
        log = await Process(World()).store(KEPT).open(NAME)
        positions = await publish(log, 0, 6)
        position = positions[2]
        log.checkpoints.keep(lambda: Checkpoint(position, b"state"))
        with pytest.raises(ServiceNotReadyError):
            await log.front.delete_before(4)
        assert log.front.offset == 0
        assert await log.front.delete_before(3) == 3
        position = positions[-1]
        assert await log.front.delete_before(-1) == 6
        await log.close()

    asyncio.run(scenario())


def test_the_record_says_it_and_older_records_do_not() -> None:
    async def scenario() -> None:
        world = World()
        log = await Process(world).store(KEPT).open(NAME)
        await publish(log, 0, 6)
        untouched = world.nodes[log_path(NAME)].value
        assert encode_log(decode_log(NAME, untouched)) == untouched
        assert b"\x82\x01" not in untouched, "field 16"
        await log.front.delete_before(5)
        record = decode_log(NAME, world.nodes[log_path(NAME)].value)
        assert record.front == (Position(record.ledgers[-1].ledger_id, 1), 5, 5)
        assert decode_log(NAME, encode_log(record)) == record
        await log.close()

    asyncio.run(scenario())


def test_whoever_has_closed_the_log_deletes_nothing_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its next owner may have opened it by then, and have read where it begins."""

    async def scenario() -> None:
        world = World()
        log = await Process(world).store(KEPT).open(NAME)
        await publish(log, 0, 10)
        place_of_offset = ChainPositions.position_of

        async def slow(self: ChainPositions, offset: int) -> Position:
            found = await place_of_offset(self, offset)
            await log.close()
            return found

        monkeypatch.setattr(ChainPositions, "position_of", slow)
        with pytest.raises(LogClosedError):
            await log.front.delete_before(6)
        assert log.front.offset == 0
        stored = world.nodes[log_path(NAME)]
        with pytest.raises(LogClosedError):
            await log.front.delete_before(0)
        assert world.nodes[log_path(NAME)] == stored
        again = await Process(world).store(KEPT).open(NAME)
        assert again.front.offset == 0
        assert values(await read_all(again)) == list(range(10))
        await again.close()

    asyncio.run(scenario())
