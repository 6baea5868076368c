"""A log followed in a world in memory: faults of the metadata store and of ledgers, trimming, and
that an owner's life, whatever it is, is seen."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from magnetar.config import LedgerConfig
from magnetar.env.metadata import Versioned
from magnetar.log.managed import appender
from magnetar.log.managed.followed_log import FollowedLog
from magnetar.log.managed.records import decode_log, log_path
from magnetar.model.entry import Entry
from magnetar.model.errors import (
    LedgerError,
    LogError,
    MetadataError,
    NoNodeError,
    NoSuchLedgerError,
    NoSuchLogError,
)
from magnetar.model.ids import EARLIEST, Position
from magnetar_sim.world.virtual_time import run_virtual
from tests.unit.log.contract.engines import seen
from tests.unit.log.doubles import NAME, MemoryReader, Process, World
from tests.unit.log.test_managed_log import publish, read_all, values
from tests.unit.log.test_offsets import check, publish_through_faults

SMALL = LedgerConfig(ledger_entries_max=4, cursor_flush_interval_ms=1)
TRIMMING = replace(SMALL, retention_ms=0, retention_bytes=0)


async def follow(world: World) -> tuple[Process, FollowedLog]:
    process = Process(world)
    return process, await process.store(SMALL).follow(NAME)


def test_nothing_is_written_and_one_reader_waits_at_a_time() -> None:
    async def scenario() -> None:
        world = World()
        log = await Process(world).store(SMALL).open(NAME)
        await publish(log, 0, 6)
        process, source = await follow(world)
        assert source.positions.readable == log.positions.readable, "as soon as it is followed"
        for start in range(6, 46, 5):
            await seen(source, (await publish(log, start, 5))[-1])
            assert process.ledgers.tails <= 1
            assert values(await read_all(source)) == list(range(start + 5))
        assert process.operations == 0
        assert not any(ledger.fenced for ledger in world.ledgers.values())
        await source.close()
        assert process.ledgers.tails == 0
        assert not world.watches.paths()
        await publish(log, 46, 3)

    run_virtual(scenario())


def test_what_the_owner_tells_reaches_the_ledger_that_is_followed() -> None:
    async def scenario() -> None:
        world = World()
        config = replace(SMALL, ledger_entries_max=1000)
        log = await Process(world).store(config).open(NAME)
        held = await publish(log, 0, 3)
        process, source = await follow(world)
        source.told_end(held[-1])
        assert process.ledgers.told == [tuple(held[-1])]
        source.told_end(Position(held[-1].ledger_id + 1, 0))
        assert len(process.ledgers.told) == 1, "of another ledger the record tells"
        await source.close()
        source.told_end(held[-1])
        assert len(process.ledgers.told) == 1

    run_virtual(scenario())


def test_new_entries_are_served_from_memory_and_old_ones_are_not_read_for_nothing() -> None:
    async def scenario() -> None:
        world = World()
        config = replace(SMALL, ledger_entries_max=1000)
        log = await Process(world).store(config).open(NAME)
        held = await publish(log, 0, 50)
        process, source = await follow(world)
        assert process.ledgers.reads == [(1, 49, 1)], "the last one: how many messages there are"
        assert source.read_cached(held[0], 10, 1000) is None
        held += await publish(log, 50, 3)
        await seen(source, held[-1])
        reads = len(process.ledgers.reads)
        cached = source.read_cached(held[50], 10, 1000)
        assert cached is not None
        assert values(cached) == [50, 51, 52]
        assert len(process.ledgers.reads) == reads
        await source.close()

    run_virtual(scenario())


def test_what_the_owner_trims_is_stepped_over_even_before_the_record_is_told_of() -> None:
    async def scenario() -> None:
        world = World()
        log = await Process(world).store(TRIMMING).open(NAME)
        cursor = await log.cursors.open("c", EARLIEST)
        held = await publish(log, 0, 14)
        _, source = await follow(world)
        await seen(source, held[-1])
        told = world.watches
        world.watches = type(told)()  # nobody is told of anything
        cursor.acknowledge_cumulative(held[9])
        await cursor.wait_stored()
        await asyncio.sleep(1)
        assert len(world.alive()) < 5
        assert source.positions.first == held[0], "it does not know yet"
        assert values(await source.read(held[0], 1, 1000)) == [8]
        assert source.positions.first == held[8]
        assert await source.positions.offset_of(EARLIEST) == 8
        for ledger in world.ledgers.values():
            ledger.deleted = True  # against the record
        with pytest.raises(NoSuchLedgerError):
            await source.read(held[8], 1, 1000)
        await source.close()

    run_virtual(scenario())


def test_a_metadata_store_that_is_away_costs_time_only() -> None:
    async def scenario() -> None:
        world = World()
        log = await Process(world).store(SMALL).open(NAME)
        held = await publish(log, 0, 2)
        process, source = await follow(world)
        process.metadata.away = MetadataError("no answer")
        held += await publish(log, 2, 7)  # rolls twice
        await asyncio.sleep(60)
        assert source.positions.readable == held[3], "what the open ledger's bookies tell"
        assert values(await source.read(EARLIEST, 10, 1000)) == [0, 1, 2, 3]
        process.metadata.away = None
        await seen(source, held[-1])
        assert values(await read_all(source)) == list(range(9))
        await source.close()

    run_virtual(scenario())


def test_what_changes_while_the_record_is_read_is_read_as_well() -> None:
    async def scenario() -> None:
        world = World()
        log = await Process(world).store(SMALL).open(NAME)
        held = await publish(log, 0, 2)
        process, source = await follow(world)
        get, gate = process.metadata.get, asyncio.Event()

        async def slow(path: str) -> Versioned:
            process.metadata.get = get  # type: ignore[method-assign]
            found = await get(path)
            await gate.wait()
            return found

        process.metadata.get = slow  # type: ignore[method-assign]
        held += await publish(log, 2, 4)  # rolls
        await asyncio.sleep(1)
        held += await publish(log, 6, 4)
        await asyncio.sleep(1)
        gate.set()
        await asyncio.sleep(60)
        assert source.positions.readable == held[-1]
        assert values(await read_all(source)) == list(range(10))
        await source.close()

    run_virtual(scenario())


def test_a_ledger_that_cannot_be_followed_for_a_while_is_tried_again() -> None:
    async def scenario() -> None:
        world = World()
        log = await Process(world).store(SMALL).open(NAME)
        held = await publish(log, 0, 6)
        process, source = await follow(world)
        process.ledgers.tail_errors = [LedgerError("too few bookies answer")] * 8
        held += await publish(log, 6, 1)
        await seen(source, held[-1])
        await asyncio.sleep(60)
        assert not process.ledgers.tail_errors
        await seen(source, (await publish(log, 7, 1))[-1])
        assert values(await read_all(source)) == list(range(8))
        await source.close()

    run_virtual(scenario())


def test_without_the_open_ledger_what_is_before_it_can_be_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario() -> None:
        world = World()
        log = await Process(world).store(SMALL).open(NAME)
        held = await publish(log, 0, 6)
        process = Process(world)
        original = process.ledgers.open_no_recovery

        async def open_no_recovery(ledger_id: int) -> MemoryReader:
            if ledger_id == held[-1].ledger_id:
                raise LedgerError("too few of its bookies tell how far it is confirmed")
            return await original(ledger_id)

        monkeypatch.setattr(process.ledgers, "open_no_recovery", open_no_recovery)
        source = await process.store(SMALL).follow(NAME)
        assert values(await source.read(EARLIEST, 10, 1000)) == [0, 1, 2, 3]
        assert source.positions.readable == held[3]
        monkeypatch.setattr(process.ledgers, "open_no_recovery", original)
        await seen(source, held[-1])
        await source.close()

    run_virtual(scenario())


def test_a_log_that_was_made_anew_is_another_one() -> None:
    async def scenario() -> None:
        world = World()
        owner = Process(world).store(SMALL)
        log = await owner.open(NAME)
        await publish(log, 0, 6)
        process, source = await follow(world)
        process.metadata.away = MetadataError("no answer")
        await log.close()
        await owner.delete(NAME)
        world.now_ms += 1
        log = await owner.open(NAME)
        await publish(log, 100, 2)
        process.metadata.away = None
        await asyncio.sleep(10)
        with pytest.raises(LogError, match="was deleted; if it was made anew, follow it again"):
            await source.read(EARLIEST, 10, 1000)
        assert process.ledgers.tails == 0
        await source.close()
        _, again = await follow(world)
        assert values(await read_all(again)) == [100, 101]
        await again.close()

    run_virtual(scenario())


def test_a_log_whose_end_was_given_up_is_followed_anew() -> None:
    """A follower that had seen it ended by what it said was a defect."""

    async def scenario() -> None:
        world = World()
        config = replace(SMALL, ledger_entries_max=1000)
        held = await publish(await Process(world).store(config).open(NAME), 0, 6)
        _, source = await follow(world)
        await seen(source, held[-1])
        ledger = world.ledgers[held[-1].ledger_id]
        ledger.fenced = ledger.closed = True
        ledger.last = 4
        log = await Process(world).store(config).open(NAME)
        await asyncio.sleep(1)
        with pytest.raises(LogError, match="has lost entries of its end"):
            await source.read(EARLIEST, 10, 1000)
        await source.close()
        await publish(log, 6, 2)
        _, again = await follow(world)
        assert values(await read_all(again)) == [0, 1, 2, 3, 4, 6, 7]
        await again.close()

    run_virtual(scenario())


def test_a_log_that_is_gone_is_not_followed_by_what_a_server_remembers() -> None:
    async def scenario() -> None:
        world = World()
        owners = Process(world).store(SMALL)
        log = await owners.open(NAME)
        await publish(log, 0, 3)
        stale, synced = dict(world.nodes), []
        await log.close()
        await owners.delete(NAME)
        process = Process(world)

        async def sync() -> None:
            synced.append(True)

        async def get(path: str) -> Versioned:
            nodes = world.nodes if synced else stale
            if path not in nodes:
                raise NoNodeError(path)
            return nodes[path]

        store = process.store(SMALL)
        monkey.setattr(process.metadata, "sync", sync)
        monkey.setattr(process.metadata, "get", get)
        with pytest.raises(NoSuchLogError):
            await store.follow(NAME)

    with pytest.MonkeyPatch.context() as monkey:
        run_virtual(scenario())


def test_a_ledger_that_is_closed_and_trimmed_while_its_end_is_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What was read belongs to the ledger that was open, not to the one that is open now."""

    async def scenario() -> None:
        world = World()
        log = await Process(world).store(TRIMMING).open(NAME)
        cursor = await log.cursors.open("c", EARLIEST)
        held = await publish(log, 0, 1)
        process, source = await follow(world)
        slow = asyncio.Event()
        original = MemoryReader.read

        async def read(
            self: MemoryReader, first_entry_id: int, max_entries: int, max_bytes: int
        ) -> list[Entry]:
            found = await original(self, first_entry_id, max_entries, max_bytes)
            if self._owner is process.ledgers:
                await slow.wait()
            return found

        monkeypatch.setattr(MemoryReader, "read", read)
        held += await publish(log, 1, 4)  # the fourth fills the ledger, the fifth is in the next
        await asyncio.sleep(1)
        assert source.positions.readable == held[3], "the record says so"
        cursor.acknowledge_cumulative(held[3])
        await cursor.wait_stored()
        await asyncio.sleep(1)
        assert source.positions.first == held[4]
        slow.set()
        await seen(source, held[4])
        assert source.positions.readable == held[4]
        assert (source.positions.end_offset, source.stats().entries) == (5, 1)
        assert values(await read_all(source)) == [4]
        await source.close()

    run_virtual(scenario())


def test_a_log_whose_deletion_is_not_finished_is_followed_no_more() -> None:
    async def scenario() -> None:
        world = World()
        log = await Process(world).store(SMALL).open(NAME)
        await publish(log, 0, 6)
        process, source = await follow(world)
        await asyncio.sleep(1)
        assert process.ledgers.tails == 1
        crashing = Process(world, crash_at=2)  # the record says "deleted", its ledgers are there
        with pytest.raises(MetadataError):
            await crashing.store(SMALL).delete(NAME)
        await asyncio.sleep(1)
        with pytest.raises(LogError, match="was deleted"):
            await source.read(EARLIEST, 10, 1000)
        assert process.ledgers.tails == 0
        await source.close()

    run_virtual(scenario())


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32))
def test_owners_that_fail_and_change_are_followed_without_a_gap(seed: int) -> None:
    async def scenario() -> None:
        rng, world = random.Random(seed), World()
        log = await Process(world).store(SMALL).open(NAME)
        process, source = await follow(world)
        ends: list[Position] = []
        source.watch_readable(lambda: ends.append(source.positions.readable))
        for _ in range(rng.randint(1, 4)):  # owners; those before may hold the log still
            owner = Process(world)
            config = LedgerConfig(ledger_entries_max=rng.choice([3, 10, 1000]))
            log = await owner.store(config).open(NAME)
            await publish_through_faults(rng, owner, log)
            owner.ledgers.create_errors = []
            owner.ledgers.break_after = None
            await seen(source, log.positions.readable)
            assert await check(source) == log.positions.end_offset
            if rng.random() < 0.5:
                await log.close()
        assert ends == sorted(set(ends))
        record = decode_log(NAME, world.nodes[log_path(NAME)].value)
        assert [row[0] for row in source.stats().ledgers] == [i.ledger_id for i in record.ledgers]
        assert (process.operations, process.ledgers.tails <= 1) == (0, True)
        await source.close()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(appender, "OPEN_RETRY_FIRST_S", 0.0)
        run_virtual(scenario())
