"""Our client against our server over TCP, with a storage core in memory behind it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

import pytest

from magnetar.bookie.server import BookieServer
from magnetar.bookie.session import SessionLimits
from magnetar.ledger.bookies import AddFlag, ReadFlag
from magnetar.ledger.connection import BookieConnection, fixed_address
from magnetar.ledger.lane import ConnectionOptions
from magnetar.model.errors import (
    BookieError,
    BookieIOError,
    BookieUnavailableError,
    FencedError,
    MagnetarError,
    NoEntryError,
    NoLedgerError,
    TooManyRequestsError,
    UnauthorizedError,
)
from magnetar.model.ids import BookieId
from magnetar.model.ledger import DigestType
from magnetar.wire.bookie import availability
from magnetar.wire.bookie.digest import EntryDigest
from tests.memory_bookie import MemoryBookie

KEY = b"k" * 20
BOTH = pytest.mark.parametrize("v3_only", [False, True], ids=["v2", "v3"])


class Pair:
    """A server over ``core`` and one client of it."""

    def __init__(self, core: MemoryBookie, server: BookieServer, client: BookieConnection) -> None:
        self.core = core
        self.server = server
        self.client = client

    async def add(
        self,
        ledger_id: int,
        entries: dict[int, bytes],
        flags: AddFlag = AddFlag.NONE,
        key: bytes = KEY,
    ) -> dict[int, MagnetarError | None]:
        """Add; returns each entry id's outcome once all have come."""
        outcomes: dict[int, MagnetarError | None] = {}
        finished = asyncio.Event()

        def done(error: MagnetarError | None, entry_ids: Sequence[int]) -> None:
            for entry_id in entry_ids:
                assert entry_id not in outcomes, "an entry was answered twice"
                outcomes[entry_id] = error
            if len(outcomes) == len(entries):
                finished.set()

        ids = list(entries)
        self.client.add_entries(ledger_id, key, ids, [entries[i] for i in ids], flags, done)
        assert not outcomes, "done was called from inside add_entries"
        async with asyncio.timeout(10):
            await finished.wait()
        return outcomes


@contextlib.asynccontextmanager
async def pair(
    options: ConnectionOptions | None = None, limits: SessionLimits | None = None
) -> AsyncIterator[Pair]:
    core = MemoryBookie()
    server = BookieServer(core, "127.0.0.1", 0, limits)
    await server.start()
    client = BookieConnection(core.bookie_id, fixed_address("127.0.0.1", server.port), options)
    try:
        yield Pair(core, server, client)
    finally:
        await client.close()
        await server.close()


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        async with asyncio.timeout(60):
            await scenario()

    asyncio.run(main())


def entry(
    ledger_id: int, entry_id: int, payload: bytes = b"hello", lac: int | None = None
) -> bytes:
    digest = EntryDigest(DigestType.CRC32C, ledger_id, b"")
    return digest.build(entry_id, entry_id - 1 if lac is None else lac, 5, payload)


@BOTH
def test_adds_are_stored_and_read_back(v3_only: bool) -> None:
    async def scenario() -> None:
        async with pair(ConnectionOptions(v3_only=v3_only)) as p:
            entries = {i: entry(7, i, b"payload %d" % i) for i in range(100)}
            assert await p.add(7, entries) == dict.fromkeys(range(100))
            assert p.core.ledgers[7].entries == entries
            assert await p.client.read_entry(7, 42) == entries[42]
            assert await p.client.read_entry(7, -1) == entries[99]
            assert await p.client.read_batch(7, 10, 5, 1 << 20) == [
                entries[i] for i in range(10, 15)
            ]

    run(scenario)


def test_a_batch_of_adds_reaches_the_core_in_one_call() -> None:
    async def scenario() -> None:
        async with pair() as p:
            await p.add(7, {0: entry(7, 0)})
            calls = p.core.add_calls
            await p.add(7, {i: entry(7, i) for i in range(1, 200)})
            assert p.core.add_calls == calls + 1

    run(scenario)
