"""What a ledger client asks of the metadata of ledgers.

Implementations: ``catalog.metadata.LedgerManager`` (in the metadata store itself) and, for writers
that no metadata store is in reach of, ``pipeline.broker_catalog`` (a broker answers).
"""

from __future__ import annotations

from typing import Protocol

from magnetar.model.ledger import LedgerMetadata


class LedgerCatalog(Protocol):
    """Ledgers by id. All methods may raise ``MetadataError``."""

    async def create_new(self, metadata: LedgerMetadata) -> tuple[LedgerMetadata, int]:
        """Store a new ledger under an id that no ledger had before, in place of the one that it
        has; returns it as it is stored, with its version."""
        ...

    async def read(self, ledger_id: int) -> tuple[LedgerMetadata, int]:
        """The metadata and the version to write against. Raises ``NoSuchLedgerError``."""
        ...

    async def write(self, metadata: LedgerMetadata, version: int) -> int:
        """Compare-and-set; returns the new version. Raises ``BadVersionError``,
        ``NoSuchLedgerError``."""
        ...

    async def delete(self, ledger_id: int, version: int = -1) -> None:
        """Forget a ledger. Raises ``BadVersionError``, ``NoSuchLedgerError``."""
        ...
