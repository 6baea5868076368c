"""Ledgers as REST lists them."""

from __future__ import annotations

import asyncio

import pytest

from magnetar.admin.ledgers import UNREADABLE, LedgerService
from magnetar.config import LedgerConfig
from magnetar.env.metadata_stores.sqlite_metadata import MEMORY, SqliteMetadataStore
from magnetar.ledger.catalog.metadata import LedgerManager
from magnetar.model.errors import MetadataFormatError
from magnetar.model.ids import BookieId, LedgerId
from magnetar.model.ledger import DigestType, Fragment, LedgerMetadata


def test_one_ledger_with_damaged_metadata_does_not_hide_the_others() -> None:
    async def scenario() -> None:
        store = await SqliteMetadataStore.open(MEMORY)
        manager = LedgerManager(store)
        await manager.initialize()
        fragments = (Fragment(0, (BookieId("b"),)),)
        for each in (1, 3):
            ledger = LedgerMetadata(
                LedgerId(each), 1, 1, 1, DigestType.CRC32C, b"", fragments
            ).with_close(9, 90)
            await manager.create(ledger)
        await store.create(manager.path(2), b"garbage")
        service = LedgerService(manager, None, LedgerConfig(), {})  # type: ignore[arg-type]
        found = [(each.ledger_id, each.state) for each in await service.ledgers(-1, 10)]
        assert found == [(1, "CLOSED"), (2, UNREADABLE), (3, "CLOSED")]
        with pytest.raises(MetadataFormatError, match="ledger 2 "):
            await service.ledger(2)
        await store.close()

    asyncio.run(scenario())
