"""Reads while a replica is slow, silent or broken."""

from __future__ import annotations

import asyncio

from magnetar.ledger.reading.reader import LedgerReader
from magnetar.model.errors import BookieIOError
from magnetar_sim.world.virtual_time import run_virtual
from tests.unit.ledger.doubles import Cluster, Outcomes, opened, payloads


async def _written(cluster: Cluster, count: int) -> LedgerReader:
    async with opened(cluster) as writer:
        outcomes = Outcomes()
        writer.append(payloads(0, count), outcomes)
        await outcomes.wait(count)
        await writer.close()
    return await cluster.new_client().open(writer.ledger_id)


async def _timed_read(reader: LedgerReader, first: int) -> float:
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    entries = await reader.read(first, 1, 1000)
    assert [bytes(entry.payload) for entry in entries] == payloads(first, 1)
    return loop.time() - began_s


def test_a_silent_replica_costs_the_bound_once_and_is_asked_last_then() -> None:
    async def run() -> None:
        cluster = Cluster(3, (3, 3, 2), timeout_ms=5000)
        reader = await _written(cluster, 40)
        ensemble = cluster.ensemble(reader.ledger_id)
        for bookie in ensemble:
            bookie.read_delay_s = 0.010
        for entry_id in range(20):
            assert await _timed_read(reader, entry_id) < 0.011
        first = ensemble[reader.ledger_id % 3]
        first.silent = True
        assert 0.020 < await _timed_read(reader, 20) < 0.035  # twice the usual, and an answer
        assert await _timed_read(reader, 21) < 0.011
        first.silent = False
        await asyncio.sleep(1.1)
        reads = first.reads
        assert await _timed_read(reader, 22) < 0.011
        assert first.reads == reads + 1  # it has its place back

    run_virtual(run())


def test_a_failing_replica_is_asked_last_by_every_reader_of_the_client() -> None:
    async def run() -> None:
        cluster = Cluster(3, (3, 3, 2))
        reader = await _written(cluster, 5)
        client = cluster.new_client()
        one, other = await client.open(reader.ledger_id), await client.open(reader.ledger_id)
        first = cluster.ensemble(reader.ledger_id)[reader.ledger_id % 3]
        first.read_error = BookieIOError("disk")
        reads = first.reads
        await one.read(0, 1, 100)
        assert first.reads == reads + 1
        await other.read(1, 1, 100)
        await one.read(2, 1, 100)
        assert first.reads == reads + 1

    run_virtual(run())


def test_the_last_entry_is_one_read() -> None:
    async def run() -> None:
        cluster = Cluster(3, (3, 2, 2))
        reader = await _written(cluster, 30)
        before = sum(bookie.reads for bookie in cluster.pool.bookies.values())
        last = await reader.read_last()
        assert last is not None
        assert (last.entry_id, bytes(last.payload)) == (29, payloads(29, 1)[0])
        assert sum(bookie.reads for bookie in cluster.pool.bookies.values()) == before + 1
        async with opened(cluster) as empty:
            assert await empty.reader().read_last() is None

    run_virtual(run())
