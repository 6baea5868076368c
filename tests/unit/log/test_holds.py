"""Holds of readers: what is read is not trimmed meanwhile, and not for ever."""

from __future__ import annotations

import asyncio

import pytest

from magnetar.config import LedgerConfig
from magnetar.log.managed.holds import HOLD_MS_MAX, HOLDS_MAX
from magnetar.log.managed.managed_log import ManagedLog
from magnetar.log.managed.records import decode_log, encode_log, log_path
from magnetar.log.policy import LogPolicy, Retention, RollRule
from magnetar.log.seam import ReaderHold
from magnetar.model.errors import LogFencedError, MetadataUnavailableError, NotAllowedError
from tests.unit.log.doubles import NAME, Process, World
from tests.unit.log.test_managed_log import publish

KEEP_NOTHING = LogPolicy(RollRule(4, 1 << 30, 1 << 40), Retention(0, 0))


async def ledgers_of(log: ManagedLog) -> list[int]:
    """After the log had time to trim."""
    log.tick()
    await asyncio.sleep(0.05)
    return [each.ledger_id for each in log.stats().ledgers]


async def log_of_three_ledgers(world: World) -> tuple[ManagedLog, list[int]]:
    """The last is open. A hold was there before they came."""
    log = await Process(world).store(LedgerConfig(ledger_entries_max=4)).open(NAME)
    await publish(log, 0, 10)
    ids = [each.ledger_id for each in log.stats().ledgers]
    assert len(ids) == 3
    return log, ids


def test_what_a_reader_holds_stays_until_it_lets_go() -> None:
    async def scenario() -> None:
        log, ids = await log_of_three_ledgers(World())
        await log.holds.take("a", ids[0], 1000)
        await log.holds.take("b", ids[1], 1000)
        log.set_policy(KEEP_NOTHING)
        assert await ledgers_of(log) == ids
        await log.holds.release("a")
        assert await ledgers_of(log) == ids[1:]
        await log.holds.take("b", ids[2], 1000)
        assert await ledgers_of(log) == ids[2:]
        await log.holds.release("b")
        await log.holds.release("never taken")
        assert log.holds.all() == ()

    asyncio.run(scenario())


def test_a_hold_that_nobody_renews_ends() -> None:
    async def scenario() -> None:
        world = World()
        log, ids = await log_of_three_ledgers(world)
        await log.holds.take("a", -1, 1000)
        log.set_policy(KEEP_NOTHING)
        world.now_ms += 1000
        assert await ledgers_of(log) == ids
        await log.holds.take("a", -1, 1000)
        world.now_ms += 999
        assert await ledgers_of(log) == ids, "it was renewed"
        world.now_ms += 1001
        assert await ledgers_of(log) == ids[2:]
        assert log.stats().holds == ()

    asyncio.run(scenario())


def test_another_owner_keeps_what_was_promised() -> None:
    async def scenario() -> None:
        world = World()
        log, ids = await log_of_three_ledgers(world)
        await log.holds.take("a", ids[0], 1000)
        world.now_ms += 500
        await log.holds.take("a", ids[1], 1000)  # moved without a write: more is kept, not less
        store = Process(world).store(LedgerConfig(ledger_entries_max=4))
        world.now_ms += 999
        again = await store.open(NAME, KEEP_NOTHING)
        assert await ledgers_of(again) == ids
        assert [hold.holder for hold in again.stats().holds] == ["a"]
        world.now_ms += 502
        assert await ledgers_of(again) == []

    asyncio.run(scenario())


def test_another_owner_does_not_keep_what_was_let_go() -> None:
    """A query ends, and then its topic moves: nobody reads, so nobody is waited for."""

    async def scenario() -> None:
        world = World()
        log, ids = await log_of_three_ledgers(world)
        await log.holds.take("a", ids[0], 1000)
        await log.holds.take("b", ids[1], 1000)
        await log.holds.release("a")
        store = Process(world).store(LedgerConfig(ledger_entries_max=4))
        again = await store.open(NAME, KEEP_NOTHING)
        assert [hold.holder for hold in again.stats().holds] == ["b"]
        assert await ledgers_of(again) == ids[1:]

    asyncio.run(scenario())


def test_asking_again_writes_only_when_the_record_says_too_little() -> None:
    async def scenario() -> None:
        world = World()
        log, ids = await log_of_three_ledgers(world)
        path = log_path(NAME)

        def version() -> int:
            return world.nodes[path].version

        before = version()
        await log.holds.take("a", ids[1], 1000)
        assert version() == before + 1
        for _ in range(9):
            world.now_ms += 100
            await log.holds.take("a", ids[1], 1000)
        assert version() == before + 1
        await log.holds.take("a", ids[0], 1000)  # from farther back: the record does not say so
        assert version() == before + 2
        record = decode_log(NAME, world.nodes[path].value)
        assert record.holds == (ReaderHold("a", ids[0], world.now_ms + 2000),)
        assert decode_log(NAME, encode_log(record)) == record

    asyncio.run(scenario())


def test_what_is_not_written_is_not_promised() -> None:
    async def scenario() -> None:
        process = Process(World())
        log = await process.store(LedgerConfig(ledger_entries_max=4)).open(NAME)
        await publish(log, 0, 3)

        async def fails(*_: object) -> int:
            raise MetadataUnavailableError("away")

        process.metadata.put = fails  # type: ignore[method-assign]
        with pytest.raises(MetadataUnavailableError):
            await log.holds.take("a", 0, 1000)
        with pytest.raises(MetadataUnavailableError):
            await log.holds.take("a", 0, 1000)  # again: the first one is not taken for stored

    asyncio.run(scenario())


def test_what_is_let_go_while_it_is_written_is_not_promised() -> None:
    async def scenario() -> None:
        world = World()
        process = Process(world)
        log = await process.store(LedgerConfig(ledger_entries_max=4)).open(NAME)
        await publish(log, 0, 3)
        put, writes, gate = process.metadata.put, asyncio.Event(), asyncio.Event()

        async def slow(path: str, value: bytes, version: int) -> int:
            process.metadata.put = put  # type: ignore[method-assign]
            writes.set()
            await gate.wait()
            return await put(path, value, version)

        process.metadata.put = slow  # type: ignore[method-assign]
        taking = asyncio.ensure_future(log.holds.take("a", 0, 60_000))
        await writes.wait()
        await log.holds.release("a")
        gate.set()
        await taking
        assert decode_log(NAME, world.nodes[log_path(NAME)].value).holds == ()

    asyncio.run(scenario())


def test_a_former_owner_promises_nothing() -> None:
    async def scenario() -> None:
        world = World()
        log, ids = await log_of_three_ledgers(world)
        await Process(world).store(LedgerConfig(ledger_entries_max=4)).open(NAME)
        with pytest.raises(LogFencedError):
            await log.holds.take("a", ids[0], 1000)
        assert log.lost is not None
        with pytest.raises(LogFencedError):
            await log.holds.take("a", ids[0], 1000)
        await log.close()

    asyncio.run(scenario())


def test_holds_have_bounds() -> None:
    async def scenario() -> None:
        world = World()
        log, _ = await log_of_three_ledgers(world)
        for number in range(HOLDS_MAX):
            await log.holds.take(f"reader-{number:03}", 0, 1000 + number)
        with pytest.raises(NotAllowedError, match=r"100 readers already.*reader-000"):
            await log.holds.take("another", 0, 1000)
        await log.holds.take("reader-007", 0, 5000)
        world.now_ms += 2001
        await log.holds.take("another", 0, 1000)
        for holder, for_ms in (("", 1), ("x" * 201, 1), ("a", 0), ("a", HOLD_MS_MAX + 1)):
            with pytest.raises(NotAllowedError):
                await log.holds.take(holder, 0, for_ms)

    asyncio.run(scenario())


def test_a_log_that_is_held_may_still_be_unloaded_later_and_deleted() -> None:
    async def scenario() -> None:
        world = World()
        process = Process(world)
        store = process.store(LedgerConfig(ledger_entries_max=4))
        log = await store.open(NAME, LogPolicy(RollRule(4, 1 << 30, 1 << 40), Retention(1000, -1)))
        await publish(log, 0, 10)
        assert log.stats().frees_later
        await log.holds.take("a", 0, 1000)
        assert log.stats().frees_later, "the hold ends by itself, so the log has work left"
        await log.close()
        await store.delete(NAME)
        assert not await store.exists(NAME)

    asyncio.run(scenario())
