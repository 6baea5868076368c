"""Bookies that are lost with all they held: what a closed, striped ledger still gives, and what an
open ledger may become of which the only acknowledged copy is away."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from magnetar.model.errors import LedgerRecoveryError
from magnetar.model.ledger import LedgerMetadata, LedgerState
from tests.roles import END_S
from tests.scenarios.cluster import Cluster
from tests.scenarios.counts import Counts
from tests.scenarios.ledgers import RETURN_S, Client, append, client, lost
from tests.scenarios.replicas import copies

pytestmark = pytest.mark.zookeeper

ENTRIES = 300


async def closed_ledger(writing: Client) -> LedgerMetadata:
    writer = await writing.ledgers.create()
    await append(writer, ENTRIES)
    closed = await writer.close()
    assert closed.last_entry_id == ENTRIES - 1
    return closed


def test_a_closed_ledger_with_one_bookie_wiped_loses_nothing(
    start_cluster: Callable[[int], Cluster], counts: Counts
) -> None:
    cluster = start_cluster(3)

    async def scenario() -> None:
        async with client(cluster.metadata_url, (3, 2, 2)) as one:
            ledger = await closed_ledger(one)
            assert set(await copies(one.pool, ledger, ENTRIES)) == {2}

        wiped = cluster.bookie(ledger.fragments[0].bookies[1])
        wiped.wipe()
        async with client(cluster.metadata_url, (3, 2, 2)) as other:
            reader = await other.ledgers.open(ledger.ledger_id)
            assert reader.last_add_confirmed == ENTRIES - 1
            assert await lost(reader) == {}
        counts(f"{ENTRIES} entries, 1 of 3 bookies wiped: lost 0")

        # Under its id it may not come back: it would deny what it acknowledged.
        back = wiped.begin()
        assert back.process.wait(END_S) == 1
        assert "the disk was wiped, replaced or is not mounted" in back.log

    asyncio.run(scenario())


def test_a_closed_ledger_with_two_bookies_wiped_loses_what_only_they_held(
    start_cluster: Callable[[int], Cluster], counts: Counts
) -> None:
    cluster = start_cluster(3)

    async def scenario() -> None:
        async with client(cluster.metadata_url, (3, 2, 2)) as one:
            ledger = await closed_ledger(one)

        pair = set(ledger.fragments[0].bookies[:2])
        for bookie_id in pair:
            cluster.bookie(bookie_id).wipe()
        cluster.add_bookie()  # an empty one, under an id of its own, denies nothing
        async with client(cluster.metadata_url, (3, 2, 2)) as other:
            reader = await other.ledgers.open(ledger.ledger_id)
            told = await lost(reader)

        only_theirs = [e for e in range(ENTRIES) if set(ledger.write_set(e)) == pair]
        assert only_theirs == list(range(0, ENTRIES, 3))
        assert list(told) == only_theirs
        assert len(told) == ENTRIES // 3 == 100
        counts(f"{ENTRIES} entries, 2 of 3 bookies wiped: lost {len(told)}, by id")
        for entry_id, text in told.items():
            assert f"no replica gave entry {ledger.ledger_id}:{entry_id} " in text
            assert all(bookie_id in text for bookie_id in pair)

    asyncio.run(scenario())


def test_an_open_ledger_whose_only_copy_is_away_is_not_closed_without_it(
    start_cluster: Callable[[int], Cluster], counts: Counts
) -> None:
    """E3 Qw2 Qa1: one acknowledgement is enough, so one machine may hold the only copy."""
    cluster = start_cluster(3)
    url = cluster.metadata_url

    async def scenario() -> None:
        async with client(url, (3, 2, 1)) as owner:
            writer = await owner.ledgers.create()
            ledger = writer.ledger_id
            first, second, _ = (
                cluster.bookie(each) for each in writer.metadata.fragments[0].bookies
            )
            await append(writer, 30)
            second.kill()
            await append(writer, 3)  # entries 30 and 31 have one copy, 30 on the first bookie
            async with asyncio.timeout(RETURN_S):  # one copy was enough: the second may be later
                while True:
                    held = await copies(owner.pool, writer.metadata, 33)
                    if held[-1] == 2:
                        break
            assert list(held[-3:]) == [1, 1, 2]
            first.kill()
            await writer.abandon()  # the owner is gone
        second.start()

        for _ in range(2):  # asking again changes nothing
            async with client(url, (3, 2, 1)) as other:
                with pytest.raises(LedgerRecoveryError, match=first.bookie_id):
                    await other.ledgers.open(ledger)
                metadata = await other.ledgers.read_metadata(ledger)
                assert metadata.state is LedgerState.IN_RECOVERY, "not closed, so not truncated"

        first.start()
        async with client(url, (3, 2, 1)) as other:
            reader = await other.ledgers.open(ledger)
            assert reader.last_add_confirmed == 32
            assert await lost(reader) == {}
            assert min(await copies(other.pool, reader.metadata, 33)) >= 1
        counts("33 entries, the only copy of 2 away: refused twice, then lost 0")

    asyncio.run(scenario())
