"""The managed log on the real ledger client and the real embedded metadata store; only the
bookies are in memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

from magnetar.config import LedgerConfig
from magnetar.env.metadata_stores.sqlite_metadata import SqliteMetadataStore
from magnetar.ledger.catalog.metadata import LedgerManager
from magnetar.ledger.client import LedgerClient
from magnetar.log.managed.store import ManagedLogStore
from magnetar.model.errors import BookieUnavailableError, LogFencedError
from magnetar.model.ids import EARLIEST, Position
from tests.doubles.garbage import in_cycles, ours
from tests.unit.ledger.doubles import Cluster, MemoryPool
from tests.unit.log.doubles import NAME, Outcomes
from tests.unit.log.test_managed_log import number, publish, read_all, values


class Place:
    """A cluster and its metadata; ``store`` is another process."""

    def __init__(self, cluster: Cluster, metadata: SqliteMetadataStore) -> None:
        self.cluster = cluster
        self.metadata = metadata

    def store(self, **changes: int) -> ManagedLogStore:
        base = LedgerConfig(ledger_entries_max=20, cursor_flush_interval_ms=1)
        client = self.cluster.new_client()
        return ManagedLogStore(self.metadata, client, replace(base, **changes))


@asynccontextmanager
async def place(tmp_path: Path) -> AsyncIterator[Place]:
    metadata = await SqliteMetadataStore.open(tmp_path / "metadata.sqlite")
    try:
        yield Place(Cluster(bookies=3, quorums=(3, 2, 2)), metadata)
    finally:
        await metadata.close()


def test_a_new_process_takes_over_with_everything_confirmed(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with place(tmp_path) as here:
            old = await here.store().open(NAME)
            cursor = await old.cursors.open("s", EARLIEST)
            positions = await publish(old, 0, 50)
            cursor.acknowledge(positions[1:30:2])
            await cursor.wait_stored()

            new = await here.store().open(NAME)
            assert values(await read_all(new)) == list(range(50))
            again = new.cursors.durable()["s"]
            left = again.unacknowledged(await read_all(new))
            assert values(left) == [i for i in range(50) if i not in range(1, 30, 2)]
            outcomes = Outcomes()
            old.append([b"late"], outcomes)
            await outcomes.wait(1)
            assert isinstance(outcomes.errors[0], LogFencedError)
            await publish(new, 50, 30)
            assert values(await read_all(new)) == list(range(80))

    asyncio.run(scenario())


def test_reading_without_a_cache_from_the_open_ledger(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with place(tmp_path) as here:
            log = await here.store(tail_cache_bytes=0).open(NAME)
            for start in (0, 15, 30):
                await publish(log, start, 15)
                assert values(await read_all(log, chunk=4)) == list(range(start + 15))
            last = await log.read(log.positions.readable, 10, 1)
            assert values(last) == [44]

    asyncio.run(scenario())


def test_bookies_lost_for_a_moment_cost_time_only(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with place(tmp_path) as here:
            log = await here.store().open(NAME)
            await publish(log, 0, 5)
            bookies = here.cluster.pool.bookies
            for name in ("b1", "b2"):
                bookies[name].down = True
                here.cluster.pool.gone.add(name)
            outcomes = Outcomes()
            for i in range(5, 15):
                log.append([number(i)], outcomes)
            await asyncio.sleep(0.5)  # past the add timeout: the ledger has failed by now
            assert not outcomes.positions
            for name in ("b1", "b2"):
                bookies[name].down = False
            here.cluster.pool.gone.clear()
            await outcomes.wait(10)
            assert not outcomes.errors
            assert values(await read_all(log)) == list(range(15))
            again = await here.store().open(NAME)
            assert values(await read_all(again)) == list(range(15))

    asyncio.run(scenario())


def test_appends_fail_when_the_bookies_stay_away_and_work_when_they_return(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with place(tmp_path) as here:
            log = await here.store().open(NAME)
            await publish(log, 0, 5)
            bookies = here.cluster.pool.bookies
            for bookie in bookies.values():
                bookie.refuse = BookieUnavailableError("gone")
            outcomes = Outcomes()
            log.append([number(5), number(6)], outcomes)
            await outcomes.wait(1)
            assert outcomes.errors
            for bookie in bookies.values():
                bookie.refuse = None
            await publish(log, 5, 5)
            found = values(await read_all(log))
            assert found == list(range(10))
            assert log.positions.next_position(Position(0, 0)) == log.positions.first

    asyncio.run(scenario())


def test_opening_a_log_leaves_nothing_to_the_collector(tmp_path: Path) -> None:
    """It stops the loop to look: with 10 000 topics, for half a second."""
    opened = 30

    async def scenario() -> None:
        metadata = await SqliteMetadataStore.open(tmp_path / "metadata.sqlite")
        manager = LedgerManager(metadata)
        await manager.initialize()
        config = LedgerConfig(ensemble_size=1, write_quorum=1, ack_quorum=1)
        client = LedgerClient(manager, MemoryPool(1), config, lambda: 1.0)

        async def use(store: ManagedLogStore, name: str) -> None:
            log = await store.open(f"public/default/persistent/{name}")
            await publish(log, 0, 1)
            cursor = await log.cursors.open("s", EARLIEST)
            cursor.acknowledge([log.positions.readable])
            await cursor.wait_stored()

        for what in ("new", "opened again"):
            store = ManagedLogStore(metadata, client, config)
            await use(store, "what is made once")
            with in_cycles() as left:
                for number in range(opened):
                    await use(store, f"t{number}")
            assert len(left) < opened, f"{what}: {ours(left)}"
            await store.close()
        await client.close()
        await metadata.close()

    asyncio.run(scenario())


def test_ledgers_and_cursors_that_end_leave_nothing_to_the_collector(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with place(tmp_path) as here:
            log = await here.store(ledger_entries_max=2).open(NAME)
            await publish(log, 0, 4)
            await asyncio.sleep(0.05)
            with in_cycles() as left:
                await publish(log, 4, 10)  # five ledgers more
                for name in ("one", "other"):
                    cursor = await log.cursors.open(name, EARLIEST)
                    cursor.acknowledge([log.positions.first])
                    await cursor.wait_stored()
                    del cursor
                    await log.cursors.delete(name)
                await asyncio.sleep(0.05)
            assert ours(left) == []
            await log.close()

    asyncio.run(scenario())
