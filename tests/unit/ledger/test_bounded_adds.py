"""``LedgerWriter.add``: waits for room, keeps order, tells what failed."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from magnetar.model.errors import LedgerFencedError
from magnetar_sim.world.virtual_time import run_virtual
from tests.unit.ledger.doubles import Cluster, opened, payloads


def test_unconfirmed_bytes_stay_below_the_budget_and_order_is_kept() -> None:
    async def run() -> None:
        cluster = Cluster(3, (3, 3, 2))
        cluster.config = replace(cluster.config, writer_pending_bytes_max=10_000)
        cluster.client = cluster.new_client()
        async with opened(cluster) as writer:
            slow = cluster.ensemble(writer.ledger_id)[1:]
            for bookie in slow:
                bookie.held_back = []
            adds = [asyncio.ensure_future(writer.add([b"%04d" % i * 100])) for i in range(200)]
            most = 0
            for _ in range(200):
                await asyncio.sleep(0.001)
                most = max(most, writer.pending_bytes)
                for bookie in slow:
                    bookie.answer_held_back()
                    bookie.held_back = []
            assert await asyncio.gather(*adds) == list(range(200))
            assert 9_000 < most <= 10_000
            for bookie in slow:
                bookie.answer_held_back()
            await writer.close()
            reader = await cluster.client.open(writer.ledger_id)
            entries = await reader.read_range(0, 199)
            assert [bytes(e.payload) for e in entries] == [b"%04d" % i * 100 for i in range(200)]

    run_virtual(run())


def test_one_larger_than_the_budget_goes_alone() -> None:
    async def run() -> None:
        cluster = Cluster(1, (1, 1, 1))
        cluster.config = replace(cluster.config, writer_pending_bytes_max=1024)
        cluster.client = cluster.new_client()
        async with opened(cluster) as writer:
            ids = await asyncio.gather(*(writer.add([bytes(5000), b"x"]) for _ in range(3)))
            assert ids == [0, 2, 4]

    run_virtual(run())


def test_who_waits_for_room_is_told_when_the_ledger_is_lost() -> None:
    async def run() -> None:
        cluster = Cluster(3, (3, 3, 2))
        cluster.config = replace(cluster.config, writer_pending_bytes_max=100)
        cluster.client = cluster.new_client()
        async with opened(cluster) as writer:
            for bookie in cluster.pool.bookies.values():
                bookie.held_back = []
            adds = [asyncio.ensure_future(writer.add(payloads(i, 9))) for i in range(4)]
            await asyncio.sleep(0.01)
            for bookie in cluster.pool.bookies.values():
                bookie.fenced.add(writer.ledger_id)
                bookie.held_back = None
            await writer.abandon()
            for error in await asyncio.gather(*adds, return_exceptions=True):
                assert isinstance(error, Exception)

    run_virtual(run())


def test_a_fenced_add_raises() -> None:
    async def run() -> None:
        cluster = Cluster(3, (3, 3, 2))
        async with opened(cluster) as writer:
            assert await writer.add([b"a"]) == 0
            await cluster.new_client().open(writer.ledger_id)
            with pytest.raises(LedgerFencedError):
                await writer.add([b"b"])

    run_virtual(run())
