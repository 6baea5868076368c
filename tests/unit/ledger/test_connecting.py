"""Connecting, to bookies and to a cluster, and what is left of it when that goes wrong."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from magnetar.config import LedgerConfig
from magnetar.env.sqlite_metadata import SqliteMetadataStore
from magnetar.ledger.catalog.metadata import LedgerManager
from magnetar.ledger.client import LedgerClient
from magnetar.ledger.connecting import connect, connection_options
from magnetar.ledger.connections.channel import ConnectionOptions
from magnetar.ledger.connections.connection import BookieConnection, fixed_address
from magnetar.ledger.connections.pool import ConnectionPool
from magnetar.model.errors import BookieUnavailableError, LedgerError
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
