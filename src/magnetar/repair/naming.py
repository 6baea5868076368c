"""Which ledgers name a bookie: told by the metadata of all of them, some read at a time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Final

from magnetar.ledger.catalog.metadata import LedgerManager
from magnetar.model.errors import NoSuchLedgerError
from magnetar.model.ids import BookieId

READ_AT_ONCE: Final = 16


async def ledgers_naming(manager: LedgerManager, bookie_id: BookieId) -> AsyncIterator[int]:
    """Their ids, ascending. Raises ``MetadataError``."""
    batch: list[int] = []
    async for ledger_id in manager.iterate():
        batch.append(ledger_id)
        if len(batch) == READ_AT_ONCE:
            for found in await _naming(manager, batch, bookie_id):
                yield found
            batch = []
    for found in await _naming(manager, batch, bookie_id):
        yield found


async def _naming(
    manager: LedgerManager, ledger_ids: Sequence[int], bookie_id: BookieId
) -> list[int]:
    named = await asyncio.gather(*(_names(manager, each, bookie_id) for each in ledger_ids))
    return [each for each, yes in zip(ledger_ids, named, strict=True) if yes]


async def _names(manager: LedgerManager, ledger_id: int, bookie_id: BookieId) -> bool:
    try:
        metadata, _ = await manager.read(ledger_id)
    except NoSuchLedgerError:
        return False
    return any(bookie_id in one.bookies for one in metadata.fragments)
