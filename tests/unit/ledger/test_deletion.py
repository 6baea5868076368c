"""Ledgers deleted twice, while they are read, while they are written."""

from __future__ import annotations

import asyncio

import pytest

from magnetar.model.errors import (
    FencedError,
    LedgerFencedError,
    NoEntryError,
    NoSuchLedgerError,
)
from magnetar_sim.world.virtual_time import run_virtual
from tests.unit.ledger.doubles import Cluster, Outcomes, opened, payloads


def collect_garbage(cluster: Cluster, ledger_id: int) -> None:
    """As bookies do some time after a ledger is gone from the metadata."""
    for bookie in cluster.pool.bookies.values():
        bookie.entries.pop(ledger_id, None)
        bookie.refuse = FencedError(f"ledger {ledger_id} was deleted; this writer must stop")


def test_a_second_delete_is_told_or_is_fine() -> None:
    async def run() -> None:
        cluster = Cluster()
        async with opened(cluster) as writer:
            await writer.close()
        await cluster.client.delete(writer.ledger_id)
        with pytest.raises(NoSuchLedgerError):
            await cluster.client.delete(writer.ledger_id)
        await cluster.client.delete(writer.ledger_id, missing_ok=True)
        with pytest.raises(NoSuchLedgerError):
            await cluster.client.open(writer.ledger_id)
        with pytest.raises(NoSuchLedgerError):
            await cluster.client.open_no_recovery(writer.ledger_id)

    run_virtual(run())


def test_a_reader_goes_on_until_the_bookies_have_dropped_the_entries() -> None:
    async def run() -> None:
        cluster = Cluster()
        async with opened(cluster) as writer:
            outcomes = Outcomes()
            writer.append(payloads(0, 9), outcomes)
            await outcomes.wait(9)
            await writer.close()
        reader = await cluster.client.open(writer.ledger_id)
        await cluster.client.delete(writer.ledger_id)
        assert len(await reader.read(0, 5, 1000)) == 5
        collect_garbage(cluster, writer.ledger_id)
        with pytest.raises(NoEntryError, match="it was deleted"):
            await reader.read(5, 4, 1000)

    run_virtual(run())


def test_a_writer_of_a_deleted_ledger_is_stopped() -> None:
    async def run() -> None:
        cluster = Cluster()
        async with opened(cluster) as writer:
            assert await writer.add([b"kept for nobody"]) == 0
            await cluster.client.delete(writer.ledger_id)
            collect_garbage(cluster, writer.ledger_id)
            with pytest.raises(LedgerFencedError, match="or has deleted it"):
                await writer.add([b"x"])
            with pytest.raises(NoSuchLedgerError):
                await writer.close()

    run_virtual(run())


def test_a_follower_of_a_deleted_ledger_reads_what_it_can_and_is_told() -> None:
    async def run() -> None:
        cluster = Cluster()
        async with opened(cluster) as writer:
            await writer.add(payloads(0, 3))
            seen: list[bytes] = []

            async def follow() -> None:
                async with await cluster.new_client().open_no_recovery(writer.ledger_id) as tail:
                    async for entry in tail.follow():
                        seen.append(bytes(entry.payload))

            following = asyncio.ensure_future(follow())
            await asyncio.sleep(2)
            assert seen == payloads(0, 3)
            await cluster.client.delete(writer.ledger_id)
            with pytest.raises(NoSuchLedgerError):
                await asyncio.wait_for(following, 5)

    run_virtual(run())
