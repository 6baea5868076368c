"""Ledgers whose metadata are gone, of logs and cursors that cannot be opened without them."""

from __future__ import annotations

import asyncio

import pytest

from magnetar.log.managed.gone import named_by
from magnetar.log.managed.records import cursor_path, decode_cursor
from magnetar.model.errors import (
    LedgerError,
    LogError,
    LogFencedError,
    MetadataError,
    NoSuchLedgerError,
)
from magnetar.model.ids import EARLIEST
from magnetar_sim.world.virtual_time import run_virtual
from tests.unit.log.doubles import NAME, Outcomes, Process, StoredLedger, World
from tests.unit.log.test_managed_log import number, publish, read_all, values


def entered_anew() -> StoredLedger:
    return StoredLedger(closed=True, given_up=True)


def test_a_log_says_that_its_last_ledger_is_gone_and_goes_on_without_it() -> None:
    async def run() -> None:
        world = World()
        log = await Process(world).store().open(NAME)
        await publish(log, 0, 3)
        world.ledgers[1].deleted = True
        with pytest.raises(LogError, match=rf"close-at-loss 1 --of {NAME}$") as refused:
            await Process(world).store().open(NAME)
        assert isinstance(refused.value.__cause__, NoSuchLedgerError)
        metadata = Process(world).metadata
        assert await named_by(metadata, NAME, 1) == {"magnetar-log": NAME.encode()}
        with pytest.raises(LogError, match="opened with ledger 1, and not with ledger 2"):
            await named_by(metadata, NAME, 2)
        with pytest.raises(LogError, match="there is no public/default/persistent/u"):
            await named_by(metadata, "public/default/persistent/u", 1)
        world.ledgers[1] = entered_anew()
        log = await Process(world).store().open(NAME)
        await publish(log, 7, 1)
        assert values(await read_all(log)) == [7]
        await log.close()
        await publish(await Process(world).store().open(NAME), 8, 1)
        with pytest.raises(LogError, match="without ledger 2, which is closed"):
            await named_by(metadata, NAME, 2)

    run_virtual(run())


def test_a_cursor_says_that_its_ledger_is_gone_and_goes_on_from_its_node() -> None:
    async def run() -> None:
        world = World()
        log = await Process(world).store().open(NAME)
        positions = await publish(log, 0, 10)
        cursor = await log.cursors.open("s/1", EARLIEST)
        cursor.acknowledge([positions[3]])
        await cursor.wait_stored()
        cursor.acknowledge([positions[5]])
        await cursor.wait_stored()
        acks = decode_cursor("s/1", world.nodes[cursor_path(NAME, "s/1")].value).ledger_id
        assert acks is not None
        world.ledgers[acks].deleted = True
        of = f"{NAME}/s/1"
        with pytest.raises(LogError, match=rf"close-at-loss {acks} --of {of}$"):
            await Process(world).store().open(NAME)
        metadata = Process(world).metadata
        assert await named_by(metadata, of, acks) == {"magnetar-cursor": of.encode()}
        with pytest.raises(LogError, match=f"opened with ledger {acks}, and not with ledger 1"):
            await named_by(metadata, of, 1)
        world.ledgers[acks] = entered_anew()
        log = await Process(world).store().open(NAME)
        cursor = log.cursors.durable()["s/1"]
        assert not any(cursor.is_acknowledged(*each) for each in positions)
        assert cursor.backlog_entries() == 10
        await log.close()
        with pytest.raises(LogError, match=f"opened with none, and not with ledger {acks}"):
            await named_by(metadata, of, acks)

    run_virtual(run())


def test_an_owner_ends_whose_ledger_was_closed_below_what_it_served() -> None:
    """Nothing that it has confirmed is there any more: it must not go on as if it were."""

    async def run() -> None:
        world = World()
        process = Process(world)
        log = await process.store().open(NAME)
        await publish(log, 0, 3)
        process.ledgers.silent = True
        outcomes = Outcomes()
        log.append([number(3)], outcomes)
        await asyncio.sleep(0)
        process.ledgers.close_errors = [MetadataError("no answer")]
        world.ledgers[1] = entered_anew()
        process.ledgers.writers[-1].fail(LedgerError("too few bookies"))
        await outcomes.wait(1)
        assert isinstance(outcomes.errors[0], LogFencedError)
        assert "ends at 1:-1 since it was closed at a loss, before 1:2" in str(outcomes.errors[0])
        log = await Process(world).store().open(NAME)
        await publish(log, 4, 1)
        assert values(await read_all(log)) == [4]

    run_virtual(run())
