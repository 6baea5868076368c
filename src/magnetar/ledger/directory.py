"""What somebody needs in order to read ledgers at the bookies, and has no metadata store to ask.

A broker tells it to the readers of a topic (``protocols.pulsar.stored_ledgers``), and they read
with ``told_ledgers``. Nothing that allows to write or to fence is told: passwords are left out. A
ledger whose entries cannot be verified without its password is not described.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

from magnetar.ledger.catalog.metadata import LedgerManager
from magnetar.ledger.connections.registry import BookieRegistry
from magnetar.model.errors import NoSuchLedgerError
from magnetar.model.ledger import DigestType, LedgerMetadata
from magnetar.model.registered_bookie import RegisteredBookie
from magnetar.wire.bookie.metadata import encode_ledger_metadata


class LedgerDirectory:
    """Describes ledgers of one cluster."""

    def __init__(self, manager: LedgerManager, registry: BookieRegistry) -> None:
        self._manager = manager
        self._registry = registry

    async def describe(
        self, ledger_ids: Sequence[int]
    ) -> tuple[dict[int, bytes], dict[str, tuple[str, int]]]:
        """The metadata of those ledgers that are there, in BookKeeper's form, and the addresses of
        all bookies that are registered. Raises ``MetadataError``."""
        found = await asyncio.gather(*(self._metadata(ledger_id) for ledger_id in ledger_ids))
        ledgers = {
            int(metadata.ledger_id): encode_ledger_metadata(replace(metadata, password=b""))
            for metadata in found
            if metadata is not None and metadata.digest_type is not DigestType.HMAC
        }
        bookies = {str(bookie_id): at for bookie_id, at in (await self._registry.all()).items()}
        return ledgers, bookies

    async def bookies(self) -> list[RegisteredBookie]:
        """All that are registered: where they listen and stand, and which take new entries. For
        those who choose bookies for ledgers of their own. Raises ``MetadataError``."""
        registry = self._registry
        writable, properties = await registry.available(), await registry.properties()
        refusals, read_only = await registry.refusals(), await registry.read_only()
        found = {
            bookie_id: RegisteredBookie(
                bookie_id, *at, refusal=why.reason, lacks_space=why.lacks_space
            )
            for bookie_id, at in read_only.items()
            if (why := refusals.get(bookie_id)) is not None
        }
        for bookie_id, at in writable.items():
            found[bookie_id] = RegisteredBookie(bookie_id, *at, properties.get(bookie_id, {}))
        return [found[bookie_id] for bookie_id in sorted(found)]

    async def _metadata(self, ledger_id: int) -> LedgerMetadata | None:
        try:
            metadata, _ = await self._manager.read(ledger_id)
        except NoSuchLedgerError:
            return None
        return metadata
