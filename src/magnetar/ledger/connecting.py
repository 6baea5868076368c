"""Builds a ledger client out of an address: for programs that use the store on their own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from magnetar.config import LedgerConfig, check_ledger
from magnetar.env.metadata import MetadataStore
from magnetar.ledger.catalog.metadata import LedgerManager
from magnetar.ledger.client import LedgerClient
from magnetar.ledger.connections.lane import Address, ConnectionOptions
from magnetar.ledger.connections.pool import ConnectionPool
from magnetar.ledger.connections.registry import BookieRegistry
from magnetar.ledger.placing.topology import Topology
from magnetar.model.errors import BookieUnavailableError, ConfigError, NoNodeError
from magnetar.model.ids import BookieId

SQLITE = "sqlite:"
ZOOKEEPER = "zk://"


@asynccontextmanager
async def connect(
    metadata_url: str,
    config: LedgerConfig | None = None,
    *,
    session_timeout_ms: int = 10_000,
) -> AsyncIterator[LedgerClient]:
    """A client of the cluster whose metadata is at ``zk://HOST:PORT[,...]/ROOT`` (or
    ``sqlite:PATH``, for a process that runs its bookies itself).

    Raises ``ConfigError``, ``MetadataError``; ``NoNodeError`` when there is no cluster.
    """
    config = config or LedgerConfig()
    check_ledger(config)
    async with AsyncExitStack() as parts:  # each is closed also when another's close fails
        store = await _open_store(metadata_url, session_timeout_ms)
        parts.push_async_callback(store.close)
        manager = LedgerManager(store)
        await manager.initialize(create=False)
        registry = BookieRegistry(store, manager.root)
        parts.callback(registry.close)
        pool = _open_pool(registry, config)
        parts.push_async_callback(pool.close)
        topology = Topology(config, pool, registry.properties)
        client = LedgerClient(manager, pool, config, topology=topology)
        parts.push_async_callback(client.close)
        yield client


async def _open_store(url: str, session_timeout_ms: int) -> MetadataStore:
    if url.startswith(ZOOKEEPER):
        from magnetar.env.zookeeper_metadata import ZooKeeperMetadataStore

        return await ZooKeeperMetadataStore.open(url, session_timeout_ms=session_timeout_ms)
    if url.startswith(SQLITE):
        from magnetar.env.sqlite_metadata import SqliteMetadataStore

        file = Path(url.removeprefix(SQLITE))
        if not await asyncio.to_thread(file.exists):  # opening would make it
            raise NoNodeError(
                f"there is no cluster at {url}: no such file; correct the metadata URL"
            )
        return await SqliteMetadataStore.open(file)
    raise ConfigError(
        f"metadata URL {url!r} cannot be used; accepted: zk://HOST:PORT[,HOST:PORT]/ROOT, "
        "sqlite:PATH"
    )


def _open_pool(registry: BookieRegistry, config: LedgerConfig) -> ConnectionPool:
    async def resolve(bookie_id: BookieId) -> Address:
        address = (await registry.all()).get(bookie_id)
        if address is None:
            raise BookieUnavailableError(
                f"bookie {bookie_id} is not registered; start it, or wait until it is back"
            )
        return address

    async def available() -> list[BookieId]:
        return list(await registry.available())

    options = ConnectionOptions(
        add_timeout_s=config.add_timeout_ms / 1000,
        read_timeout_s=config.read_timeout_ms / 1000,
        unsent_bytes_max=config.bookie_unsent_bytes_max,
    )
    return ConnectionPool(resolve, available, options=options)
