"""Would the next entry find space? Asked before anybody sends one."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping

import pytest

from magnetar.ledger.bookies import ReadOnlyReason
from magnetar.ledger.client import LedgerClient
from magnetar.ledger.placing.topology import Topology
from magnetar.model.errors import NoSpaceError
from magnetar.model.ids import BookieId
from magnetar.model.ledger import Quorums
from tests.unit.ledger.doubles import Cluster


def client_of(cluster: Cluster, lacks_space: bool = True) -> LedgerClient:
    """Of a cluster whose bookies in ``gone`` are registered as read-only."""

    async def refusals() -> Mapping[BookieId, ReadOnlyReason]:
        why = ReadOnlyReason("the disk of /d is full", lacks_space)
        return {BookieId(name): why for name in cluster.pool.gone}

    topology = Topology(cluster.config, cluster.pool, refusals=refusals)
    return LedgerClient(
        cluster.manager, cluster.pool, cluster.config, lambda: 1.5, random.Random(1), topology
    )


def test_a_new_ledger_needs_enough_bookies_that_have_space() -> None:
    async def run() -> None:
        cluster = Cluster(3, (3, 3, 2))
        client = client_of(cluster)
        await client.check_space()
        cluster.pool.gone.add("b2")
        with pytest.raises(NoSpaceError, match="the disk of /d is full"):
            await client.check_space()
        await client.check_space(Quorums(2, 2, 1))
        cluster.pool.gone.clear()
        await client.check_space()
        await client.close()

    asyncio.run(run())


def test_an_open_ledger_needs_its_ack_quorum() -> None:
    async def run() -> None:
        cluster = Cluster(3, (3, 3, 2))
        client = client_of(cluster)
        writer = await client.create()
        cluster.pool.gone.add("b1")
        await client.check_space(ledger_id=writer.ledger_id)
        cluster.pool.gone.add("b2")
        with pytest.raises(NoSpaceError):
            await client.check_space(ledger_id=writer.ledger_id)
        await client.close()

    asyncio.run(run())


def test_bookies_that_are_read_only_for_another_reason_are_not_called_full() -> None:
    async def run() -> None:
        cluster = Cluster(1, (1, 1, 1))
        client = client_of(cluster, lacks_space=False)
        cluster.pool.gone.add("b1")
        await client.check_space()
        await client.close()

    asyncio.run(run())
