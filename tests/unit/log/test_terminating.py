"""A log that is terminated takes nothing more, whoever opens it, and keeps what it has."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest

from magnetar.log.managed.managed_log import ManagedLog
from magnetar.log.seam import WritableLog
from magnetar.model.errors import (
    LedgerError,
    LogFencedError,
    LogTerminatedError,
    MagnetarError,
    MetadataError,
    NotAllowedError,
)
from magnetar_sim.world.virtual_time import run_virtual
from tests.unit.log.contract.engines import Engine, each_engine, fill, with_log
from tests.unit.log.doubles import NAME, Outcomes, Process, World
from tests.unit.log.test_managed_log import publish, read_all, values


async def fine() -> None:
    """Nothing speaks against it."""


async def check_takes_nothing(log: WritableLog) -> None:
    assert log.end.terminated
    outcomes = Outcomes()
    log.append([b"late"], outcomes)
    await outcomes.wait(1)
    assert [type(each) for each in outcomes.errors] == [LogTerminatedError]
    assert log.pending_bytes == 0


@each_engine
def test_a_terminated_log_is_read_and_takes_nothing(engine: Engine) -> None:
    async def scenario(log: WritableLog) -> None:
        positions = await fill(log, 7)
        if engine.name == "partition":
            with pytest.raises(NotAllowedError, match="only logs on ledgers"):
                await log.termination.terminate(fine)
            assert not log.end.terminated
            await fill(log, 1)
            return
        grown = asyncio.Event()
        log.watch_readable(grown.set)
        await log.termination.terminate(fine)
        await grown.wait()
        await check_takes_nothing(log)
        await log.termination.terminate(refuse)  # again is no error, and nothing is asked
        assert log.positions.readable == positions[-1]

    with_log(engine, scenario)


async def refuse() -> None:
    raise NotAllowedError("not now")


def test_what_is_under_way_has_its_outcome_first_and_what_comes_then_is_refused() -> None:
    async def scenario() -> None:
        process = Process(World())
        log = await process.store().open(NAME)
        await publish(log, 0, 3)
        process.ledgers.hold = True
        early, late, order = Outcomes(), Outcomes(), list[str]()
        log.append([b"3"], early)
        ending = asyncio.create_task(log.termination.terminate(fine))
        ending.add_done_callback(lambda _: order.append("terminated"))
        await asyncio.sleep(1)
        log.append([b"4"], late)
        assert not log.end.terminated
        assert (early.count, late.count) == (0, 0)
        process.ledgers.hold = False
        process.ledgers.writers[-1].confirm()
        await ending
        await early.wait(1)
        assert early.errors == []
        assert log.positions.readable == early.positions[-1]
        await late.wait(1)
        assert [type(each) for each in late.errors] == [LogTerminatedError]
        assert all(each.state == "closed" for each in log.stats().ledgers)

    run_virtual(scenario())


@pytest.mark.parametrize("used", [False, True])
def test_another_owner_takes_nothing_either(used: bool) -> None:
    async def scenario() -> None:
        world = World()
        log = await Process(world).store().open(NAME)
        if used:
            await publish(log, 0, 5)
        await log.termination.terminate(fine)
        await log.close()
        for _ in range(2):  # handed over, and recovered
            again = await Process(world).store().open(NAME)
            await check_takes_nothing(again)
            assert values(await read_all(again)) == list(range(5 * used))
        follower = await Process(world).store().follow(NAME)
        assert follower.end.terminated
        await follower.close()

    run_virtual(scenario())


def test_a_former_owner_terminates_nothing_and_writes_nothing_after_it() -> None:
    async def scenario() -> None:
        world = World()
        old = await Process(world).store().open(NAME)
        await publish(old, 0, 2)
        new = await Process(world).store().open(NAME)
        with pytest.raises(LogFencedError):
            await old.termination.terminate(fine)
        assert not new.end.terminated
        await publish(new, 2, 1)

        third = await Process(world).store().open(NAME)
        await third.termination.terminate(fine)
        outcomes = Outcomes()
        new.append([b"late"], outcomes)
        await outcomes.wait(1)
        assert [type(each) for each in outcomes.errors] == [LogFencedError]
        assert values(await read_all(third)) == [0, 1, 2]

    run_virtual(scenario())


def test_what_speaks_against_it_lets_the_log_go_on_in_order() -> None:
    async def scenario() -> None:
        log = await Process(World()).store().open(NAME)
        await publish(log, 0, 2)
        asked, go = asyncio.Event(), asyncio.Event()

        async def check() -> None:
            asked.set()
            await go.wait()
            await refuse()

        ending = asyncio.create_task(log.termination.terminate(check))
        await asked.wait()
        waiting = asyncio.create_task(publish(log, 2, 2))
        await asyncio.sleep(1)
        assert not waiting.done()
        go.set()
        with pytest.raises(NotAllowedError):
            await ending
        await waiting
        await publish(log, 4, 1)
        assert values(await read_all(log)) == list(range(5))
        await log.termination.terminate(fine)
        await check_takes_nothing(log)

    run_virtual(scenario())


@pytest.mark.parametrize("turns", range(12))
def test_one_that_is_asked_for_while_a_ledger_is_made(turns: int) -> None:
    async def scenario() -> None:
        log = await Process(World()).store().open(NAME)
        outcomes = Outcomes()
        log.append([b"0"], outcomes)
        for _ in range(turns):
            await asyncio.sleep(0)
        await log.termination.terminate(fine)
        await outcomes.wait(1)
        assert len(await read_all(log)) == len(outcomes.positions), "stored, or refused"
        assert all(isinstance(each, LogTerminatedError) for each in outcomes.errors)
        await check_takes_nothing(log)

    run_virtual(scenario())


def test_one_that_was_perhaps_stored_takes_nothing_before_it_is() -> None:
    """The record may say it: a later owner would not have what was appended here."""

    async def scenario() -> None:
        world = World()
        process = Process(world)
        log = await process.store().open(NAME)
        await publish(log, 0, 2)
        process.metadata.lose_answers = 5
        with pytest.raises(MetadataError):
            await log.termination.terminate(fine)
        await check_takes_nothing_soon(log)
        await log.close()
        await check_takes_nothing(await Process(world).store().open(NAME))

    async def check_takes_nothing_soon(log: ManagedLog) -> None:
        outcomes = Outcomes()
        log.append([b"late"], outcomes)
        await outcomes.wait(1)
        assert len(outcomes.errors) == 1
        await check_takes_nothing(log)

    run_virtual(scenario())


def test_a_ledger_that_fails_meanwhile_is_recovered_first() -> None:
    async def scenario() -> None:
        process = Process(World())
        log = await process.store().open(NAME)
        await publish(log, 0, 2)
        process.ledgers.close_errors = [LedgerError("too few bookies")]
        await log.termination.terminate(fine)
        await check_takes_nothing(log)
        assert values(await read_all(log)) == [0, 1]

    run_virtual(scenario())


@pytest.mark.parametrize("effect", [False, True])
@pytest.mark.parametrize("crash_at", range(1, 9))
def test_a_crash_leaves_it_terminated_or_not(crash_at: int, effect: bool) -> None:
    async def scenario() -> None:
        world = World()
        process = Process(world)
        log = await process.store().open(NAME)
        stored = await publish(log, 0, 3)
        process.crash_at, process.effect = process.operations + crash_at, effect
        told = False
        with suppress(MagnetarError):
            await log.termination.terminate(fine)
            told = True
        again = await Process(world).store().open(NAME)
        assert again.end.terminated or not told
        assert again.positions.readable == stored[-1]
        if again.end.terminated:
            await check_takes_nothing(again)
        else:
            await publish(again, 3, 1)

    run_virtual(scenario())


def test_a_follower_learns_of_it() -> None:
    async def scenario() -> None:
        world = World()
        log = await Process(world).store().open(NAME)
        stored = await publish(log, 0, 3)
        source = await Process(world).store().follow(NAME)
        assert not source.end.terminated
        told = asyncio.Event()
        source.watch_readable(told.set)
        await log.termination.terminate(fine)
        async with asyncio.timeout(10):
            while not source.end.terminated:
                await told.wait()
                told.clear()
        assert source.positions.readable == stored[-1]
        await source.close()

    run_virtual(scenario())
