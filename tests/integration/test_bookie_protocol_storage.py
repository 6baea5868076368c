"""The protocol end to end: our client over TCP, the real storage core, restarts in between."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from magnetar.bookie.bookie import Bookie
from magnetar.bookie.serving.local import LocalBookie
from magnetar.bookie.serving.server import BookieServer
from magnetar.config import BookieConfig, JournalConfig
from magnetar.ledger.bookies import AddFlag, BookieClient, ReadFlag
from magnetar.ledger.connections.channel import ConnectionOptions
from magnetar.ledger.connections.connection import BookieConnection, fixed_address
from magnetar.metrics import Metrics
from magnetar.model.errors import (
    BookieUnavailableError,
    FencedError,
    MagnetarError,
    NoEntryError,
    NoLedgerError,
    UnauthorizedError,
)
from magnetar.model.ids import BookieId
from magnetar.model.ledger import DigestType
from magnetar.wire.bookie import availability
from magnetar.wire.bookie.digest import EntryDigest

DIGEST = EntryDigest(DigestType.CRC32C, 7, b"pw")
KEY = DIGEST.master_key


@contextlib.asynccontextmanager
async def running(directory: Path) -> AsyncIterator[tuple[Bookie, BookieServer]]:
    config = BookieConfig(
        ledger_directories=(directory / "ledgers",),
        journal=JournalConfig(directories=(directory / "journal",), file_bytes=1 << 20),
        write_cache_bytes=1 << 20,
    )
    bookie = Bookie(config, Metrics())
    await bookie.start()
    server = BookieServer(bookie, "127.0.0.1", 0)
    await server.start()
    try:
        yield bookie, server
    finally:
        await server.close()
        await bookie.close()


@contextlib.asynccontextmanager
async def client_of(directory: Path, v3_only: bool = False) -> AsyncIterator[BookieConnection]:
    async with running(directory) as (_, server):
        address = fixed_address("127.0.0.1", server.port)
        client = BookieConnection(BookieId("b"), address, ConnectionOptions(v3_only=v3_only))
        try:
            yield client
        finally:
            await client.close()


def entry(entry_id: int) -> bytes:
    return DIGEST.build(entry_id, entry_id - 1, 0, b"%d" % entry_id * 100)


async def add(
    client: BookieClient, ids: Sequence[int], flags: AddFlag = AddFlag.NONE, key: bytes = KEY
) -> set[MagnetarError | None]:
    """The distinct outcomes of adding these entries."""
    outcomes: dict[int, MagnetarError | None] = {}
    finished = asyncio.Event()

    def done(error: MagnetarError | None, entry_ids: Sequence[int]) -> None:
        outcomes.update(dict.fromkeys(entry_ids, error))
        if len(outcomes) == len(ids):
            finished.set()

    client.add_entries(7, key, ids, [entry(i) for i in ids], flags, done)
    async with asyncio.timeout(60):
        await finished.wait()
    return set(outcomes.values())


@pytest.mark.parametrize("v3_only", [False, True], ids=["v2", "v3"])
def test_entries_lac_and_fence_survive_a_restart(tmp_path: Path, v3_only: bool) -> None:
    async def write() -> None:
        async with client_of(tmp_path, v3_only) as client:
            assert await add(client, range(2000)) == {None}
            await client.write_lac(7, KEY, 1999, DIGEST.build_lac(1999))
            reply = await client.read_lac(7, ReadFlag.FENCE, KEY)
            assert reply.last_entry == entry(1999)
            (error,) = await add(client, [2000])
            assert isinstance(error, FencedError)

    async def read_back() -> None:
        async with client_of(tmp_path, v3_only) as client:
            (error,) = await add(client, [2000])
            assert isinstance(error, FencedError), "the fence was forgotten"
            assert await add(client, [2000], AddFlag.RECOVERY) == {None}
            found: list[bytes] = []
            while len(found) < 2001:
                found += await client.read_batch(7, len(found), 500, 1 << 20)
            assert found == [entry(i) for i in range(2001)]
            reply = await client.read_lac(7)
            assert reply.last_add_confirmed == 1999
            assert reply.explicit_lac == DIGEST.build_lac(1999)
            groups = await client.list_entries(7)
            assert [availability.holds(groups, i) for i in (0, 2000, 2001)] == [True, True, False]
            total_bytes, free_bytes = await client.disk_space()
            assert 0 < free_bytes <= total_bytes

    asyncio.run(write())
    asyncio.run(read_back())


def test_refusals_of_the_real_core_arrive_as_their_errors(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with client_of(tmp_path) as client:
            with pytest.raises(NoLedgerError):
                await client.read_entry(7, 0)
            with pytest.raises(NoLedgerError):
                await client.read_lac(7)
            assert await add(client, [0, 1, 3]) == {None}
            with pytest.raises(NoEntryError):
                await client.read_entry(7, 2)
            (error,) = await add(client, [4], key=b"x" * 20)
            assert isinstance(error, UnauthorizedError)
            with pytest.raises(UnauthorizedError):
                await client.read_lac(7, ReadFlag.FENCE, b"x" * 20)
            await client.force_ledger(7)

    asyncio.run(scenario())


def test_the_client_of_the_same_process_answers_as_the_one_over_tcp(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as (bookie, server):
            local: BookieClient = LocalBookie(BookieId("b"), bookie)
            address = fixed_address("127.0.0.1", server.port)
            remote: BookieClient = BookieConnection(BookieId("b"), address)
            assert await add(local, [0, 1]) == {None}
            assert await add(remote, [2, 3]) == {None}
            await local.write_lac(7, KEY, 3, DIGEST.build_lac(3))
            for client in (local, remote):
                assert await client.read_entry(7, -1) == entry(3)
                assert await client.read_batch(7, 1, 10, 1 << 20) == [entry(i) for i in (1, 2, 3)]
                assert await client.read_lac(7) == (3, entry(3), DIGEST.build_lac(3))
                with pytest.raises(NoEntryError):
                    await client.read_entry(7, 9)
                await client.close()
                (error,) = await add(client, [5])
                assert isinstance(error, BookieUnavailableError)
                with pytest.raises(BookieUnavailableError):
                    await client.read_entry(7, 0)

    asyncio.run(scenario())


def test_the_bookie_asks_the_writers_of_its_process(tmp_path: Path) -> None:
    """Readers over TCP see what they have confirmed, also those that wait for it."""

    async def scenario() -> None:
        async with running(tmp_path) as (bookie, server):
            local = LocalBookie(BookieId("b"), bookie)
            remote = BookieConnection(BookieId("b"), fixed_address("127.0.0.1", server.port))
            lacs = {8: 5}
            asked: list[int] = []

            def source(ledger_id: int) -> tuple[int, bytes] | None:
                asked.append(ledger_id)
                lac = lacs.get(ledger_id)
                return None if lac is None else (lac, DIGEST.build_lac(lac))

            local.ask_for_lacs(source)
            assert await add(local, [0, 1]) == {None}
            before = bookie._appended_bytes()
            assert (await remote.read_lac(7)).explicit_lac is None, "nobody here writes it"
            lacs[7] = 0
            assert (await remote.read_lac(7)) == (0, entry(1), DIGEST.build_lac(0))
            waiting = asyncio.ensure_future(remote.wait_lac(7, 0, 30.0))
            await asyncio.sleep(0.3)
            assert not waiting.done()
            lacs[7] = 1
            assert (await waiting).last_add_confirmed == 1
            del lacs[7]
            assert (await local.read_lac(7)).last_add_confirmed == 1, "it does not go back"
            assert bookie._appended_bytes() == before, "and costs the journal nothing"
            await local.close()
            asked.clear()
            assert (await remote.read_lac(7)).last_add_confirmed == 1
            assert not asked, "its process has closed its client"
            await remote.close()

    asyncio.run(scenario())
