"""The power of all machines goes at once, under load. ``kill -9`` leaves what the operating system
had not written yet; a power cut does not. So here the whole bookies run on disks that forget.

Expected: with ``journal.sync`` on, 0 acknowledged entries lost; with it off, some are, and the
bookie has said so when it started.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from magnetar.bookie.bookie import Bookie
from magnetar.bookie.serving.server import BookieServer
from magnetar.config import BookieConfig, JournalConfig, LedgerConfig
from magnetar.env.metadata_stores.sqlite_metadata import SqliteMetadataStore
from magnetar.ledger.catalog.metadata import LedgerManager
from magnetar.ledger.client import LedgerClient
from magnetar.ledger.connections.channel import Address, ConnectionOptions
from magnetar.ledger.connections.pool import ConnectionPool
from magnetar.metrics import Metrics
from magnetar.model.errors import BookieUnavailableError
from magnetar.model.ids import BookieId
from tests.scenarios.cluster import SETTINGS, BookieMachine
from tests.scenarios.counts import Counts
from tests.scenarios.ledgers import Client, Load, lost
from tests.scenarios.power import PowerDisk, PoweredIndex, lose_index
from tests.scenarios.replicas import copies

LEDGERS = 2
OPTIONS = ConnectionOptions(add_timeout_s=10, read_timeout_s=10, backoff_max_s=0.1)


class PoweredBookie:
    """A bookie on a disk that forgets; it starts again on what is left.

    With ``sync`` it flushes and rolls its files all the time, because much may go wrong then;
    without, it does neither, so that what is lost is known to the entry."""

    def __init__(self, root: Path, sync: bool) -> None:
        self._root = root
        self._config = BookieConfig(
            ledger_directories=(root / "ledgers",),
            write_cache_bytes=1 << 20 if sync else 64 << 20,
            flush_interval_ms=30 if sync else 60_000,
            journal=JournalConfig(
                directories=(root / "journal",), file_bytes=1 << 20 if sync else 64 << 20, sync=sync
            ),
        )
        self.address: Address | None = None

    async def start(self) -> None:
        self._disk = PowerDisk(self._root)
        self._parts = AsyncExitStack()
        self.bookie = Bookie(self._config, Metrics(), self._disk, partial(PoweredIndex, self._disk))
        self._parts.push_async_callback(self.bookie.close)
        await self.bookie.start()
        server = BookieServer(self.bookie, "127.0.0.1", 0)
        self._parts.push_async_callback(server.close)
        await server.start()
        self.address = ("127.0.0.1", server.port)

    def cut_power(self) -> None:
        self._disk.cut()

    async def lose_power(self, rng: random.Random, survival: float) -> None:
        """What is left of the process goes, then what was not synced."""
        self.address = None
        await self._parts.aclose()
        self._disk.lose(rng, survival)
        lose_index(self._root / "ledgers" / "index")

    async def end(self) -> None:
        await self._parts.aclose()


class Site:
    """Three machines on one power line, and a metadata store elsewhere."""

    def __init__(self, manager: LedgerManager, bookies: dict[BookieId, PoweredBookie]) -> None:
        self._manager = manager
        self.bookies = bookies

    @asynccontextmanager
    async def client(self) -> AsyncIterator[Client]:
        pool = ConnectionPool(self._resolve, self._available, options=OPTIONS)
        config = LedgerConfig(
            ensemble_size=3,
            write_quorum=3,
            ack_quorum=2,
            add_timeout_ms=10_000,
            read_timeout_ms=10_000,
        )
        ledgers = LedgerClient(self._manager, pool, config)
        try:
            yield Client(ledgers, self._manager, pool)
        finally:
            await ledgers.close()
            await pool.close()

    async def _resolve(self, bookie_id: BookieId) -> Address:
        address = self.bookies[bookie_id].address
        if address is None:
            raise BookieUnavailableError(f"{bookie_id} is not registered")
        return address

    async def _available(self) -> list[BookieId]:
        return [name for name, bookie in self.bookies.items() if bookie.address is not None]

    async def load_until_the_power_goes(self, seconds: float) -> dict[int, int]:
        """Ledger id -> how many of its entries were acknowledged."""
        async with self.client() as owner:
            loads = [Load(await owner.ledgers.create()) for _ in range(LEDGERS)]
            await asyncio.gather(*(load.wait_confirmed(1) for load in loads))
            await asyncio.sleep(seconds)
            for bookie in self.bookies.values():
                bookie.cut_power()
            for load in loads:
                await load.writer.abandon()
                await load.stop()
        return {load.writer.ledger_id: load.confirmed for load in loads}

    async def lose_power_and_start(self, rng: random.Random, survivals: Sequence[float]) -> None:
        for bookie in self.bookies.values():
            await bookie.lose_power(rng, rng.choice(survivals))
        for bookie in self.bookies.values():
            await bookie.start()


@asynccontextmanager
async def site(tmp_path: Path, sync: bool) -> AsyncIterator[Site]:
    store = await SqliteMetadataStore.open(tmp_path / "metadata.db")
    manager = LedgerManager(store)
    await manager.initialize()
    names = [BookieId(f"bookie-{index}") for index in range(3)]
    made = Site(manager, {name: PoweredBookie(tmp_path / name, sync) for name in names})
    try:
        for bookie in made.bookies.values():
            await bookie.start()
        yield made
    finally:
        for bookie in made.bookies.values():
            await bookie.end()
        await store.close()


async def cut_off(reading: Client, acknowledged: dict[int, int]) -> int:
    """Acknowledged entries that are past the end of their recovered ledgers; whatever is before
    it must be readable."""
    missing = 0
    for ledger_id, count in acknowledged.items():
        reader = await reading.ledgers.open(ledger_id)
        missing += max(0, count - 1 - reader.last_add_confirmed)
        assert await lost(reader) == {}
    return missing


def power_cuts_lose_nothing(tmp_path: Path, seed: int, cuts: int, counts: Counts) -> None:
    rng = random.Random(seed)
    print(f"seed {seed}")

    async def scenario() -> None:
        async with site(tmp_path, True) as machines:
            every: dict[int, int] = {}
            for _ in range(cuts):
                acknowledged = await machines.load_until_the_power_goes(rng.uniform(0, 0.3))
                await machines.lose_power_and_start(rng, (0.0, 0.5, 0.9))
                for bookie in machines.bookies.values():
                    assert bookie.bookie.report is not None
                    assert bookie.bookie.report.damages == ()
                async with machines.client() as other:
                    assert await cut_off(other, acknowledged) == 0
                every |= acknowledged
            async with machines.client() as other:
                assert await cut_off(other, every) == 0
                for ledger_id in every:
                    ledger = await other.ledgers.read_metadata(ledger_id)
                    held = await copies(other.pool, ledger, ledger.last_entry_id + 1)
                    assert min(held, default=2) >= 2
            counts(f"{cuts} power cuts, {sum(every.values())} acknowledged: lost 0")

    asyncio.run(scenario())


def test_with_journal_sync_a_power_cut_loses_nothing(tmp_path: Path, counts: Counts) -> None:
    power_cuts_lose_nothing(tmp_path, seed=int(time.time()), cuts=3, counts=counts)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10))
def test_with_journal_sync_many_power_cuts_lose_nothing(
    tmp_path: Path, seed: int, counts: Counts
) -> None:
    power_cuts_lose_nothing(tmp_path, seed, cuts=8, counts=counts)


def test_without_journal_sync_a_power_cut_loses_entries_and_the_start_warned_of_it(
    tmp_path: Path, counts: Counts
) -> None:
    """Nothing had been synced, and all three machines forget it: every entry is lost."""

    async def scenario() -> None:
        with capture_logs() as said:
            async with site(tmp_path, False) as machines:
                acknowledged = await machines.load_until_the_power_goes(0.1)
                await machines.lose_power_and_start(random.Random(1), (0.0,))
                gone = 0
                async with machines.client() as other:
                    for ledger_id, count in acknowledged.items():
                        ledger = await other.ledgers.read_metadata(ledger_id)
                        gone += (await copies(other.pool, ledger, count)).count(0)
        assert gone == sum(acknowledged.values()) > 0
        counts(f"{sum(acknowledged.values())} acknowledged: lost {gone}, warned of at each start")
        warnings = [line for line in said if "journal sync is OFF" in line["event"]]
        assert len(warnings) == 6, "each bookie warns at each of its two starts"
        assert all(line["log_level"] == "warning" for line in warnings)

    asyncio.run(scenario())


@pytest.mark.zookeeper
def test_a_bookie_without_journal_sync_says_so_in_its_log(
    tmp_path: Path, zookeeper_url: str
) -> None:
    unsafe = ("--set", "bookie.journal.sync=false")
    bookie = BookieMachine(tmp_path, 0, zookeeper_url, (*SETTINGS, *unsafe))
    bookie.start()
    bookie.kill()
    assert "journal sync is OFF: a power loss loses acknowledged entries" in bookie.role.log
