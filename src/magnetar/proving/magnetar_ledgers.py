"""Ledgers by Magnetar's own ledger client."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Final

from magnetar.app.fate import Fate
from magnetar.app.outside import real
from magnetar.app.process import Process
from magnetar.app.storage import Cluster, open_cluster, open_ledgers, open_metadata
from magnetar.config import Config, LedgerConfig, MetadataConfig
from magnetar.ledger.client import LedgerClient
from magnetar.ledger.connections.registry import BookieRegistry
from magnetar.ledger.writing.writer import LedgerWriter
from magnetar.model.errors import LedgerError, NoEntryError
from magnetar.proving.ledgers import LedgerWork, Owner
from magnetar.proving.stage import SESSION_MS

READ_BYTES: Final = 1 << 20


@asynccontextmanager
async def _cluster(
    metadata_url: str, ledger: LedgerConfig
) -> AsyncIterator[tuple[Process, Cluster]]:
    """With a session and connections of its own: it knows nothing of what others have seen."""
    metadata = MetadataConfig(url=metadata_url, session_timeout_ms=SESSION_MS)
    async with AsyncExitStack() as stack:
        config = Config(metadata=metadata, ledger=ledger)
        process = Process(config, real(), stack, Fate(asyncio.Event()))
        yield process, await open_cluster(await open_metadata(process), process.outside)


@asynccontextmanager
async def ledger_client(metadata_url: str, ack_quorum: int = 2) -> AsyncIterator[LedgerClient]:
    """See ``_cluster``."""
    ledger = LedgerConfig(ensemble_size=3, write_quorum=2, ack_quorum=ack_quorum)
    async with _cluster(metadata_url, ledger) as (process, cluster):
        yield open_ledgers(process, cluster, {}).client


async def registered(metadata_url: str) -> frozenset[str]:
    """The bookies that a new ledger may be put on."""
    async with _cluster(metadata_url, LedgerConfig()) as (_, cluster):
        registry = BookieRegistry(cluster.metadata, cluster.manager.root, cached=False)
        return frozenset(str(each) for each in await registry.available())


class MagnetarOwner(Owner):
    """See ``Owner``."""

    def __init__(self, writer: LedgerWriter) -> None:
        self.ledger_id = writer.ledger_id
        self._writer = writer

    async def append(self, messages: int) -> None:
        first = self._writer.last_add_pushed + 1
        await self._writer.add([b"%d" % number for number in range(first, first + messages)])

    async def close(self) -> None:
        await self._writer.close()

    async def abandon(self) -> None:
        await self._writer.abandon()


class MagnetarLedgers(LedgerWork):
    """See ``LedgerWork``."""

    def __init__(self, metadata_url: str) -> None:
        self._metadata_url = metadata_url

    @asynccontextmanager
    async def owner(self, ack_quorum: int) -> AsyncIterator[Owner]:
        async with ledger_client(self._metadata_url, ack_quorum) as client:
            yield MagnetarOwner(await client.create())

    async def read(self, ledger_id: int) -> list[int]:
        async with ledger_client(self._metadata_url) as client:
            reader = await client.open(ledger_id)
            found: list[int] = []
            entry_id = 0
            while entry_id <= reader.last_add_confirmed:
                try:
                    entries = await reader.read(entry_id, 500, READ_BYTES)
                except (LedgerError, NoEntryError):
                    entry_id += 1
                    continue
                found += [int(bytes(entry.payload)) for entry in entries]
                entry_id += len(entries)
        return found
