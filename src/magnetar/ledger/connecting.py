"""Builds a ledger client: out of an address, for programs that use the store on their own
(``connect``), out of what a role has already (``open_access``), or on what somebody else tells of
ledgers and bookies (``open_by_catalog``)."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from magnetar import logs
from magnetar.config import LedgerConfig, check_ledger
from magnetar.env.metadata import MetadataStore
from magnetar.ledger.bookies import BookieClient, ReadOnlyReason
from magnetar.ledger.catalog.metadata import LedgerManager
from magnetar.ledger.catalog.seam import LedgerCatalog
from magnetar.ledger.client import CatalogClient, LedgerClient
from magnetar.ledger.connections.channel import Address, ConnectionOptions
from magnetar.ledger.connections.pool import ConnectionPool
from magnetar.ledger.connections.registry import BookieRegistry
from magnetar.ledger.placing.topology import Topology
from magnetar.model.errors import BookieUnavailableError, ConfigError, NoNodeError
from magnetar.model.ids import BookieId

SQLITE = "sqlite:"
ZOOKEEPER = "zk://"

ENTRY_OVERHEAD_BYTES = 1024
"""More than what an entry and its frame have beside the payload."""


@dataclass(frozen=True)
class LedgerAccess:
    """The ledger client and what it stands on."""

    client: LedgerClient
    manager: LedgerManager
    pool: ConnectionPool
    registry: BookieRegistry
    topology: Topology


class RegisteredBookies(Protocol):
    """Which bookies there are (``BookieRegistry``). All methods may raise ``MetadataError``."""

    async def available(self) -> Mapping[BookieId, Address]:
        """Those that take new entries."""
        ...

    async def all(self) -> Mapping[BookieId, Address]: ...

    async def properties(self) -> Mapping[BookieId, Mapping[str, str]]:
        """What the available ones say of themselves."""
        ...

    async def refusals(self) -> Mapping[BookieId, ReadOnlyReason]:
        """Why the others take no entries."""
        ...


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
    logs.leave_to_program()
    config = config or LedgerConfig()
    check_ledger(config)
    async with AsyncExitStack() as parts:  # each is closed also when another's close fails
        store = await _open_store(metadata_url, session_timeout_ms)
        parts.push_async_callback(store.close)
        manager = LedgerManager(store)
        await manager.initialize(create=False)
        yield open_access(parts, store, manager, config, connection_options(config)).client


def connection_options(
    config: LedgerConfig, frame_bytes_max: int = 0, v3_only: bool = False
) -> ConnectionOptions:
    """How bookies are connected to, for a client of ``config``. Whatever such a client writes it
    can read; ``frame_bytes_max``: and entries of others up to that size."""
    return ConnectionOptions(
        v3_only=v3_only,
        add_timeout_s=config.add_timeout_ms / 1000,
        read_timeout_s=config.read_timeout_ms / 1000,
        frame_bytes_max=max(frame_bytes_max, config.payload_bytes_max + ENTRY_OVERHEAD_BYTES),
        unsent_bytes_max=config.bookie_unsent_bytes_max,
    )


def open_access(
    parts: AsyncExitStack,
    store: MetadataStore,
    manager: LedgerManager,
    config: LedgerConfig,
    options: ConnectionOptions,
    local: Mapping[BookieId, BookieClient] | None = None,
    clock_s: Callable[[], float] = time.time,
    chooser: random.Random | None = None,
    zone: str = "",
) -> LedgerAccess:
    """A ledger client, closed when ``parts`` unwinds. ``manager`` is initialized; ``local`` are the
    bookies that it reaches by calls; ``chooser`` chooses among bookies; of replicas those in
    ``zone`` are read first, if it is said. Raises ``ConfigError`` if
    what the client may append would not fit into an answer that it takes (``options``)."""
    if options.frame_bytes_max < config.payload_bytes_max + ENTRY_OVERHEAD_BYTES:
        raise ConfigError(
            f"connections take frames of {options.frame_bytes_max} bytes at most, so an entry of "
            f"ledger.payload_bytes_max = {config.payload_bytes_max} could be written and never "
            "read; make the options with connection_options"
        )
    registry = BookieRegistry(store, manager.root)
    parts.callback(registry.close)
    pool = _open_pool(registry, options, local or {})
    parts.push_async_callback(pool.close)
    topology = Topology(config, pool, registry.properties, registry.refusals, registry.told, zone)
    client = LedgerClient(manager, pool, config, clock_s, chooser, topology=topology)
    parts.push_async_callback(client.close)
    return LedgerAccess(client, manager, pool, registry, topology)


def open_by_catalog(
    parts: AsyncExitStack, catalog: LedgerCatalog, bookies: RegisteredBookies, config: LedgerConfig
) -> CatalogClient:
    """A ledger client, closed when ``parts`` unwinds."""
    pool = _open_pool(bookies, connection_options(config), {})
    parts.push_async_callback(pool.close)
    topology = Topology(config, pool, bookies.properties, bookies.refusals)
    client = CatalogClient(catalog, pool, config, topology=topology)
    parts.push_async_callback(client.close)
    return client


async def _open_store(url: str, session_timeout_ms: int) -> MetadataStore:
    if url.startswith(ZOOKEEPER):
        from magnetar.env.metadata_stores.zookeeper_metadata import ZooKeeperMetadataStore

        return await ZooKeeperMetadataStore.open(url, session_timeout_ms=session_timeout_ms)
    if url.startswith(SQLITE):
        from magnetar.env.metadata_stores.sqlite_metadata import SqliteMetadataStore

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


def _open_pool(
    bookies: RegisteredBookies, options: ConnectionOptions, local: Mapping[BookieId, BookieClient]
) -> ConnectionPool:
    async def resolve(bookie_id: BookieId) -> Address:
        address = (await bookies.all()).get(bookie_id)
        if address is None:
            raise BookieUnavailableError(
                f"bookie {bookie_id} is not registered; start it, or wait until it is back"
            )
        return address

    async def available() -> list[BookieId]:
        return list(await bookies.available())

    return ConnectionPool(resolve, available, local, options)
