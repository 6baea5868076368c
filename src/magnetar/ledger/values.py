"""Values in ledgers of their own: written once, whole, and never changed.

For what is too large for the metadata store and is read seldom (schemas). A value is one entry of a
ledger that is closed before its id is given, so nobody ever recovers it. Whoever puts a value keeps
its id, or deletes it again.
"""

from __future__ import annotations

from collections.abc import Mapping

from magnetar.ledger.client import LedgerClient
from magnetar.model.errors import LedgerError, MagnetarError


class LedgerValues:
    """Values of one cluster."""

    def __init__(self, ledgers: LedgerClient) -> None:
        self._ledgers = ledgers

    async def put(self, value: bytes, about: Mapping[str, bytes]) -> int:
        """Store ``value``; returns the id of its ledger once it is durable. ``about`` is kept with
        the ledger's metadata, for people and tools. Raises ``LedgerError``, ``MetadataError``."""
        writer = await self._ledgers.create(about)
        try:
            await writer.add([value])
            await writer.close()
        except MagnetarError:
            await self._ledgers.delete(writer.ledger_id, missing_ok=True)
            raise
        return writer.ledger_id

    async def get(self, ledger_id: int) -> bytes:
        """Raises ``NoSuchLedgerError``, ``LedgerError``."""
        reader = await self._ledgers.open(ledger_id)
        if reader.last_add_confirmed < 0:
            raise LedgerError(f"ledger {ledger_id} holds no value: it has no entry")
        entries = await reader.read(0, 1, 1)
        return bytes(entries[0].payload)

    async def delete(self, ledger_id: int) -> None:
        """A value that is gone is no error."""
        await self._ledgers.delete(ledger_id, missing_ok=True)
