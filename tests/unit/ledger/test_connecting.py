"""Connecting, to bookies and to a cluster, and what is left of it when that goes wrong."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from magnetar.config import LedgerConfig
from magnetar.env.metadata_stores.sqlite_metadata import SqliteMetadataStore
from magnetar.ledger import connecting
from magnetar.ledger.catalog.metadata import LedgerManager
from magnetar.ledger.client import LedgerClient
from magnetar.ledger.connecting import (
    ENTRY_OVERHEAD_BYTES,
    connect,
    connection_options,
    open_access,
)
from magnetar.ledger.connections.channel import ConnectionOptions
from magnetar.ledger.connections.connection import BookieConnection, fixed_address
from magnetar.ledger.connections.pool import ConnectionPool
from magnetar.model.errors import BookieUnavailableError, ConfigError, LedgerError
from magnetar.model.ids import BookieId

PATIENT = ConnectionOptions(read_timeout_s=120, connect_timeout_s=120)


@pytest.mark.parametrize("host", ["bookie-1..example", "x" * 70, ""])
def test_a_bookie_whose_host_is_no_name_fails_at_once(host: str) -> None:
    async def run() -> None:
        client = BookieConnection(BookieId("b1"), fixed_address(host, 3181), PATIENT)
        async with asyncio.timeout(30):
            with pytest.raises(BookieUnavailableError, match="b1: cannot be connected to"):
                await client.read_entry(1, 1)
        await client.close()

    asyncio.run(run())


def test_a_client_can_read_whatever_it_can_write() -> None:
    """A frame holds the largest payload: an entry that was confirmed could not be read again."""
    large = LedgerConfig(payload_bytes_max=16 << 20)
    assert connection_options(large).frame_bytes_max > large.payload_bytes_max
    assert connection_options(large, 1 << 20).frame_bytes_max > large.payload_bytes_max
    assert connection_options(large, 32 << 20).frame_bytes_max == 32 << 20


def test_every_limit_of_a_client_is_one_of_its_connections(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a program's own client, too, and a client that could not read what it wrote is refused."""
    config = LedgerConfig(
        payload_bytes_max=16 << 20, add_timeout_ms=1500, read_timeout_ms=2500,
        bookie_unsent_bytes_max=2 << 20,
    )  # fmt: skip
    wanted = ConnectionOptions(
        add_timeout_s=1.5, read_timeout_s=2.5, unsent_bytes_max=2 << 20,
        frame_bytes_max=config.payload_bytes_max + ENTRY_OVERHEAD_BYTES,
    )  # fmt: skip
    given: list[ConnectionOptions | None] = []

    class Noted(ConnectionPool):
        def __init__(self, *args: Any) -> None:
            given.append(args[3])
            super().__init__(*args)

    monkeypatch.setattr(connecting, "ConnectionPool", Noted)

    async def run() -> None:
        file = tmp_path / "metadata.sqlite"
        store = await SqliteMetadataStore.open(file)
        manager = LedgerManager(store)
        await manager.initialize()
        async with AsyncExitStack() as parts:
            with pytest.raises(ConfigError, match="never read"):
                open_access(parts, store, manager, config, ConnectionOptions())
        await store.close()
        async with connect(f"sqlite:{file}", config):
            assert given == [wanted]

    asyncio.run(run())


@pytest.mark.parametrize("fault", ["raises", "is cancelled"])
def test_the_rest_is_closed_when_closing_the_client_fails(
    fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = []

    async def close_client(_: LedgerClient) -> None:
        closed.append("client")
        if fault == "raises":
            raise LedgerError("a fault")
        await asyncio.Event().wait()

    async def close_pool(_: ConnectionPool) -> None:
        closed.append("pool")

    close = SqliteMetadataStore.close

    async def close_store(store: SqliteMetadataStore) -> None:
        closed.append("store")
        await close(store)

    async def run() -> None:
        file = tmp_path / "metadata.sqlite"
        store = await SqliteMetadataStore.open(file)
        await LedgerManager(store).initialize()
        await store.close()
        monkeypatch.setattr(LedgerClient, "close", close_client)
        monkeypatch.setattr(ConnectionPool, "close", close_pool)
        monkeypatch.setattr(SqliteMetadataStore, "close", close_store)
        async with asyncio.timeout(None) as deadline, connect(f"sqlite:{file}"):
            deadline.reschedule(asyncio.get_running_loop().time() + 0.5)

    with pytest.raises(LedgerError if fault == "raises" else TimeoutError):
        asyncio.run(run())
    assert closed == ["client", "pool", "store"]
