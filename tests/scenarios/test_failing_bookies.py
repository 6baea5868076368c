"""Bookies that fail under a writer at full load, one or all: what was acknowledged is there, from
the bookies that the metadata names."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from magnetar.model.errors import NotEnoughBookiesError
from magnetar.model.ledger import LedgerMetadata
from tests.scenarios.cluster import Cluster
from tests.scenarios.counts import Counts
from tests.scenarios.ledgers import Client, Load, append, client, lost
from tests.scenarios.replicas import copies

pytestmark = pytest.mark.zookeeper


async def held_by_ack_quorum(reading: Client, ledger: LedgerMetadata) -> None:
    """Every entry, by as many of the bookies that the metadata names for it."""
    counts = await copies(reading.pool, ledger, ledger.last_entry_id + 1)
    assert min(counts, default=ledger.ack_quorum) >= ledger.ack_quorum


def test_with_a_spare_a_killed_bookie_is_replaced(
    start_cluster: Callable[[int], Cluster], counts: Counts
) -> None:
    cluster = start_cluster(4)

    async def scenario() -> None:
        async with client(cluster.metadata_url) as owner:
            writer = await owner.ledgers.create()
            load = Load(writer)
            await load.wait_confirmed(1000)
            killed = writer.metadata.fragments[0].bookies[1]
            cluster.bookie(killed).kill()
            await load.wait_confirmed(2000)
            await load.stop()
            ledger = await writer.close()

        assert load.error is None
        assert ledger.last_entry_id + 1 >= load.confirmed >= 3000
        assert len(ledger.fragments) == 2
        assert killed not in ledger.fragments[1].bookies
        assert ledger.fragments[1].first_entry_id >= 1000
        cluster.bookie(killed).start()
        async with client(cluster.metadata_url) as other:
            assert await lost(await other.ledgers.open(ledger.ledger_id)) == {}
            await held_by_ack_quorum(other, ledger)
        counts(f"{load.confirmed} acknowledged, one ensemble change: lost 0")

    asyncio.run(scenario())


def test_without_a_spare_two_of_three_confirm_and_one_does_not(
    start_cluster: Callable[[int], Cluster], counts: Counts
) -> None:
    cluster = start_cluster(3)
    url = cluster.metadata_url

    async def scenario() -> None:
        async with client(url, add_timeout_ms=4000) as owner:
            writer = await owner.ledgers.create()
            load = Load(writer)
            await load.wait_confirmed(1000)
            first, second, _ = writer.metadata.fragments[0].bookies
            cluster.bookie(first).kill()
            await load.wait_confirmed(1000)  # two of three go on, nobody is replaced
            assert len(writer.metadata.fragments) == 1

            cluster.bookie(second).kill()  # one is fewer than Qa: nothing may be confirmed
            error = await load.wait_failed()
            assert isinstance(error, NotEnoughBookiesError)
            assert first in str(error)
            assert second in str(error)
            await load.stop()
            confirmed = load.confirmed
            ledger = await writer.close()  # metadata only: the ledger ends where it was confirmed
            assert ledger.last_entry_id == confirmed - 1

        cluster.start_bookies()
        async with client(url) as other:
            reader = await other.ledgers.open(ledger.ledger_id)
            assert reader.last_add_confirmed == confirmed - 1
            assert await lost(reader) == {}
            await held_by_ack_quorum(other, ledger)
        counts(f"{confirmed} acknowledged, then refused by NotEnoughBookiesError: lost 0")

    asyncio.run(scenario())


def test_all_bookies_and_the_owner_killed_under_load(
    start_cluster: Callable[[int], Cluster], counts: Counts
) -> None:
    """kill -9 of every bookie at once. (What the operating system had not written yet survives
    that; a power cut that takes it along is in ``test_power_loss``.)"""
    cluster = start_cluster(3)
    url = cluster.metadata_url

    async def scenario() -> None:
        async with client(url) as owner:
            loads = [Load(await owner.ledgers.create()) for _ in range(3)]
            await asyncio.gather(*(load.wait_confirmed(1000) for load in loads))
            for bookie in cluster.bookies:
                bookie.role.process.kill()
            for load in loads:
                await load.writer.abandon()
                await load.stop()

        for bookie in cluster.bookies:
            bookie.kill()
        cluster.start_bookies()
        async with client(url) as other:
            for load in loads:
                reader = await other.ledgers.open(load.writer.ledger_id)
                cut_off = max(0, load.confirmed - 1 - reader.last_add_confirmed)
                assert cut_off == 0
                assert await lost(reader) == {}
                await held_by_ack_quorum(other, reader.metadata)
        counts(f"{sum(load.confirmed for load in loads)} acknowledged in 3 ledgers: lost 0")

    asyncio.run(scenario())


@pytest.mark.parametrize(
    "slot_paused",
    [None, 1, pytest.param(0, marks=pytest.mark.slow), pytest.param(2, marks=pytest.mark.slow)],
)
def test_three_recoveries_at_once_end_the_ledger_alike(
    start_cluster: Callable[[int], Cluster], counts: Counts, slot_paused: int | None
) -> None:
    """The writer ends with entries under way that some bookies hold and others do not; the paused
    one takes what waits in its socket while the others are asked already."""
    cluster = start_cluster(3)
    url = cluster.metadata_url

    async def scenario() -> None:
        async with client(url) as owner:
            writer = await owner.ledgers.create()
            load = Load(writer)
            await load.wait_confirmed(500)
            if slot_paused is not None:
                paused = cluster.bookie(writer.metadata.fragments[0].bookies[slot_paused])
                paused.role.pause()
                await load.wait_confirmed(200)
            await writer.abandon()
            await load.stop()
        if slot_paused is not None:
            paused.role.resume()

        async with client(url) as one, client(url) as two, client(url) as three:
            clients = (one, two, three)
            readers = await asyncio.gather(*(c.ledgers.open(writer.ledger_id) for c in clients))
            stored = await one.ledgers.read_metadata(writer.ledger_id)
            assert [reader.metadata for reader in readers] == [stored] * 3
            assert stored.last_entry_id >= load.confirmed - 1
            for reader in readers:
                assert await lost(reader) == {}
            await held_by_ack_quorum(one, stored)
        counts(f"{load.confirmed} acknowledged: 3 equal ends at {stored.last_entry_id}, lost 0")

    asyncio.run(scenario())


def test_a_bookie_that_missed_entries_does_not_hide_them(
    start_cluster: Callable[[int], Cluster], counts: Counts
) -> None:
    """The one that was away returns, another goes: recovery must still find all."""
    cluster = start_cluster(3)
    url = cluster.metadata_url

    async def scenario() -> None:
        async with client(url) as owner:
            writer = await owner.ledgers.create()
            first, second, _ = writer.metadata.fragments[0].bookies
            await append(writer, 100)
            cluster.bookie(first).kill()
            await append(writer, 50)  # on the second and the third
            await writer.abandon()
        cluster.bookie(first).start()
        cluster.bookie(second).kill()
        async with client(url, add_timeout_ms=4000) as other:
            reader = await other.ledgers.open(writer.ledger_id)
            assert reader.last_add_confirmed == 149
            assert await lost(reader) == {}
        counts("150 acknowledged, 50 of them on one reachable bookie: lost 0")

    asyncio.run(scenario())
