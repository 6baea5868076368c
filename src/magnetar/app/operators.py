"""What operators' commands stand on, when no server is asked: the cluster's metadata store."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from magnetar.app.outside import real
from magnetar.config import Config
from magnetar.env.data_dir import metadata_file
from magnetar.ledger.catalog.metadata import LedgerManager
from magnetar.ledger.connections.registry import BookieRegistry
from magnetar.repair.operating import Operating


@asynccontextmanager
async def open_operating(config: Config) -> AsyncIterator[Operating]:
    """Repair, as operators see it, of the cluster that ``metadata.url`` names. Raises
    ``MetadataError``; ``NoNodeError`` when there is no cluster."""
    outside = real()
    store = await outside.open_metadata(config, metadata_file(config.data_dir))
    try:
        manager = LedgerManager(store)
        await manager.initialize(create=False)
        registry = BookieRegistry(store, manager.root)
        try:
            delay_s = config.repair.lost_bookie_delay_ms // 1000
            yield Operating(store, manager, registry, delay_s)
        finally:
            registry.close()
    finally:
        await store.close()
