"""The ledger client against real bookies over TCP, with metadata in SQLite: bookies stop and come
back under a writer, writers vanish and are recovered."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from magnetar.bookie.bookie import Bookie
from magnetar.bookie.serving.server import BookieServer
from magnetar.bookie.serving.session import SessionLimits
from magnetar.config import BookieConfig, JournalConfig, LedgerConfig
from magnetar.env.metadata_stores.sqlite_metadata import SqliteMetadataStore
from magnetar.ledger.catalog.metadata import LedgerManager
from magnetar.ledger.client import LedgerClient
from magnetar.ledger.connecting import connection_options
from magnetar.ledger.connections.channel import Address, ConnectionOptions
from magnetar.ledger.connections.connection import BookieConnection
from magnetar.ledger.connections.pool import ConnectionPool
from magnetar.ledger.writing.writer import LedgerWriter
from magnetar.metrics import Metrics
from magnetar.model.errors import (
    BookieUnavailableError,
    EntryTooLargeError,
    LedgerFencedError,
    MagnetarError,
)
from magnetar.model.ids import BookieId, EntryId
from magnetar.model.ledger import LedgerState
from magnetar.wire.bookie import availability

OPTIONS = ConnectionOptions(add_timeout_s=10, read_timeout_s=10, backoff_max_s=0.1)


class RunningBookie:
    """A bookie that can stop and start again on what it had stored."""

    def __init__(self, directory: Path) -> None:
        self.config = BookieConfig(
            ledger_directories=(directory / "ledgers",),
            write_cache_bytes=1 << 20,
            journal=JournalConfig(directories=(directory / "journal",), file_bytes=1 << 20),
        )
        self.address: Address | None = None
        self._parts: AsyncExitStack | None = None

    async def start(self) -> None:
        self._parts = AsyncExitStack()
        bookie = Bookie(replace(self.config), Metrics())
        self._parts.push_async_callback(bookie.close)
        await bookie.start()
        limits = SessionLimits(frame_bytes_max=self.config.entry_bytes_max)
        server = BookieServer(bookie, "127.0.0.1", 0, limits)
        self._parts.push_async_callback(server.close)
        await server.start()
        self.address = ("127.0.0.1", server.port)

    async def stop(self) -> None:
        self.address = None
        if self._parts is not None:
            await self._parts.aclose()


class Platform:
    """Bookies, metadata, and clients as other processes would have them."""

    def __init__(self, manager: LedgerManager, bookies: dict[BookieId, RunningBookie]) -> None:
        self.manager = manager
        self.bookies = bookies
        self.pools: list[ConnectionPool] = []

    def client(self, quorums: tuple[int, int, int]) -> LedgerClient:
        size, write_quorum, ack_quorum = quorums
        config = LedgerConfig(
            ensemble_size=size,
            write_quorum=write_quorum,
            ack_quorum=ack_quorum,
            add_timeout_ms=10_000,
            read_timeout_ms=10_000,
        )
        return self.client_of(config, OPTIONS)

    def client_of(self, config: LedgerConfig, options: ConnectionOptions) -> LedgerClient:
        pool = ConnectionPool(self._resolve, self._available, options=options)
        self.pools.append(pool)
        return LedgerClient(self.manager, pool, config)

    async def _resolve(self, bookie_id: BookieId) -> Address:
        address = self.bookies[bookie_id].address
        if address is None:
            raise BookieUnavailableError(f"{bookie_id} is not registered")
        return address

    async def _available(self) -> list[BookieId]:
        return [name for name, bookie in self.bookies.items() if bookie.address is not None]


def with_platform(
    tmp_path: Path,
    count: int,
    scenario: Callable[[Platform], Awaitable[None]],
    entry_bytes_max: int | None = None,
) -> None:
    async def run() -> None:
        store = await SqliteMetadataStore.open(tmp_path / "metadata.db")
        manager = LedgerManager(store)
        await manager.initialize()
        names = [BookieId(f"bookie-{i}") for i in range(count)]
        platform = Platform(manager, {name: RunningBookie(tmp_path / name) for name in names})
        try:
            for bookie in platform.bookies.values():
                if entry_bytes_max is not None:
                    journal = replace(bookie.config.journal, file_bytes=2 * entry_bytes_max)
                    bookie.config = replace(
                        bookie.config,
                        entry_bytes_max=entry_bytes_max,
                        write_cache_bytes=4 * entry_bytes_max,
                        journal=journal,
                    )
                await bookie.start()
            async with asyncio.timeout(120):
                await scenario(platform)
        finally:
            for pool in platform.pools:
                await pool.close()
            for bookie in platform.bookies.values():
                await bookie.stop()
            await store.close()

    asyncio.run(run())


async def append_all(writer: LedgerWriter, payloads: list[bytes]) -> list[int]:
    """Append one by one without waiting; returns the ids once all are confirmed."""
    ids: list[int] = []
    finished = asyncio.get_running_loop().create_future()

    def done(error: MagnetarError | None, _ledger: int, first: int, count: int) -> None:
        if finished.done():
            return
        if error is not None:
            finished.set_exception(error)
            return
        ids.extend(range(first, first + count))
        if len(ids) == len(payloads):
            finished.set_result(None)

    for payload in payloads:
        writer.append([payload], done)
    await finished
    return ids


def payloads(first: int, count: int) -> list[bytes]:
    return [b"%06d" % i * 50 for i in range(first, first + count)]


async def contents(client: LedgerClient, ledger_id: int) -> list[bytes]:
    reader = await client.open(ledger_id)
    assert reader.closed
    entries = await reader.read_range(0, reader.last_add_confirmed)
    return [bytes(entry.payload) for entry in entries]


def test_written_closed_and_read(tmp_path: Path) -> None:
    async def scenario(platform: Platform) -> None:
        for quorums in ((1, 1, 1), (3, 3, 2), (3, 2, 2)):
            writer = await platform.client(quorums).create({"owner": b"test"})
            assert await append_all(writer, payloads(0, 500)) == list(range(500))
            closed = await writer.close()
            assert (closed.last_entry_id, closed.length) == (499, 500 * 300)
            assert await contents(platform.client(quorums), writer.ledger_id) == payloads(0, 500)

    with_platform(tmp_path, 3, scenario)


def test_a_bookie_stops_under_the_writer_and_another_takes_its_place(tmp_path: Path) -> None:
    async def scenario(platform: Platform) -> None:
        client = platform.client((3, 3, 2))
        writer = await client.create()
        await append_all(writer, payloads(0, 200))
        stopped = writer.metadata.fragments[0].bookies[1]
        appending = asyncio.ensure_future(append_all(writer, payloads(200, 400)))
        await asyncio.sleep(0)
        await platform.bookies[stopped].stop()
        assert await appending == list(range(200, 600))
        await append_all(writer, payloads(600, 10))
        assert stopped not in writer.metadata.fragments[-1].bookies
        await writer.close()
        other = platform.client((3, 3, 2))
        assert await contents(other, writer.ledger_id) == payloads(0, 610)

    with_platform(tmp_path, 4, scenario)


def test_the_only_bookie_restarts_and_the_writer_goes_on(tmp_path: Path) -> None:
    async def scenario(platform: Platform) -> None:
        writer = await platform.client((1, 1, 1)).create()
        await append_all(writer, payloads(0, 100))
        (bookie,) = platform.bookies.values()
        await bookie.stop()
        appending = asyncio.ensure_future(append_all(writer, payloads(100, 100)))
        await asyncio.sleep(0.2)
        assert not appending.done()
        await bookie.start()
        assert await appending == list(range(100, 200))
        await writer.close()
        assert await contents(platform.client((1, 1, 1)), writer.ledger_id) == payloads(0, 200)

    with_platform(tmp_path, 1, scenario)


def test_a_vanished_writer_is_recovered_with_a_bookie_away(tmp_path: Path) -> None:
    async def scenario(platform: Platform) -> None:
        writer = await platform.client((3, 3, 2)).create()
        await append_all(writer, payloads(0, 300))
        await platform.bookies[writer.metadata.fragments[0].bookies[0]].stop()
        other = platform.client((3, 3, 2))
        assert await contents(other, writer.ledger_id) == payloads(0, 300)
        metadata, _ = await platform.manager.read(writer.ledger_id)
        assert metadata.state is LedgerState.CLOSED
        assert metadata.length == 300 * 300
        try:
            await append_all(writer, payloads(300, 1))
        except LedgerFencedError:
            pass
        else:
            raise AssertionError("an old writer was acknowledged after the close")
        await writer.abandon()

    with_platform(tmp_path, 3, scenario)


def test_all_bookies_restart_between_crash_and_recovery(tmp_path: Path) -> None:
    async def scenario(platform: Platform) -> None:
        writer = await platform.client((2, 2, 2)).create()
        await append_all(writer, payloads(0, 250))
        await writer.abandon()
        for bookie in platform.bookies.values():
            await bookie.stop()
        for bookie in platform.bookies.values():
            await bookie.start()
        assert await contents(platform.client((2, 2, 2)), writer.ledger_id) == payloads(0, 250)

    with_platform(tmp_path, 2, scenario)


def test_a_bookie_that_was_away_is_given_what_it_missed(tmp_path: Path) -> None:
    async def scenario(platform: Platform) -> None:
        for quorums in ((3, 3, 2), (3, 2, 1)):
            client = platform.client(quorums)
            writer = await client.create()
            await append_all(writer, payloads(0, 100))
            away = writer.metadata.fragments[0].bookies[1]
            await platform.bookies[away].stop()
            await append_all(writer, payloads(100, 1000))
            await writer.close()
            assert not await is_whole(platform, writer.ledger_id)
            await platform.bookies[away].start()
            while not await is_whole(platform, writer.ledger_id):  # noqa: ASYNC110
                await asyncio.sleep(0.05)
            assert len(writer.metadata.fragments) == 1
            await client.close()

    with_platform(tmp_path, 3, scenario)


async def is_whole(platform: Platform, ledger_id: int) -> bool:
    """Whether every bookie that the metadata names holds its entries."""
    metadata, _ = await platform.manager.read(ledger_id)
    own: dict[BookieId, list[int]] = {}
    for entry_id in range(metadata.last_entry_id + 1):
        for bookie_id in metadata.write_set(entry_id):
            own.setdefault(bookie_id, []).append(entry_id)
    pool = platform.pools[-1]
    for bookie_id, wanted in own.items():
        client = pool.client(bookie_id)
        assert isinstance(client, BookieConnection)
        try:
            groups = await client.list_entries(ledger_id)
        except BookieUnavailableError:
            return False
        if not all(availability.holds(groups, entry_id) for entry_id in wanted):
            return False
    return True


def test_a_tail_over_an_ensemble_change_and_a_recovery(tmp_path: Path) -> None:
    async def scenario(platform: Platform) -> None:
        writer = await platform.client((3, 3, 2)).create()
        seen: list[bytes] = []

        async def follow() -> None:
            reading = platform.client((3, 3, 2))
            async with await reading.open_no_recovery(writer.ledger_id) as tail:
                async for entry in tail.follow():
                    seen.append(bytes(entry.payload))

        following = asyncio.ensure_future(follow())
        await append_all(writer, payloads(0, 100))
        stopped = writer.metadata.fragments[0].bookies[0]
        await platform.bookies[stopped].stop()
        await append_all(writer, payloads(100, 100))
        while len(seen) < 200:  # noqa: ASYNC110 - the writer is idle now, and says how far it is
            await asyncio.sleep(0.02)
        await append_all(writer, payloads(200, 100))
        await writer.abandon()
        await platform.client((3, 3, 2)).open(writer.ledger_id)
        await asyncio.wait_for(following, 60)
        assert seen == payloads(0, 300)

    with_platform(tmp_path, 4, scenario)


def test_large_entries_are_read_and_recovered_and_larger_ones_refused(tmp_path: Path) -> None:
    """Nothing is confirmed that the same client could not read: one by one, in a batch of many, or
    when it takes the ledger over."""
    config = LedgerConfig(
        ensemble_size=3, write_quorum=3, ack_quorum=2, payload_bytes_max=9 << 20,
        add_timeout_ms=60_000, read_timeout_ms=60_000,
    )  # fmt: skip
    options = connection_options(config)
    large = [bytes([i]) * (8 << 20) for i in range(3)]

    async def scenario(platform: Platform) -> None:
        writer = await platform.client_of(config, options).create()
        assert await append_all(writer, large) == [0, 1, 2]
        with pytest.raises(EntryTooLargeError, match="payload_bytes_max"):
            writer.append([bytes((9 << 20) + 1)], lambda *_: None)
        other = platform.client_of(config, options)
        assert await contents(other, writer.ledger_id) == large  # recovered: it was left open
        reader = await other.open(writer.ledger_id)
        batch = await reader.read(EntryId(0), 100, 64 << 20)
        assert [bytes(entry.payload) for entry in batch] == large[: len(batch)]
        for entry_id, payload in enumerate(large):
            (entry,) = await reader.read(EntryId(entry_id), 1, 1)
            assert bytes(entry.payload) == payload

    with_platform(tmp_path, 3, scenario, entry_bytes_max=10 << 20)
