"""What staged writes ask of the ledger client (``ledger.client`` implements it)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol, TypeAlias

from magnetar.model.entry import Entry
from magnetar.model.ledger import LedgerMetadata

Buffer: TypeAlias = bytes | bytearray | memoryview


class StagedLedgerWriter(Protocol):
    @property
    def ledger_id(self) -> int: ...

    async def add(self, payloads: Sequence[Buffer]) -> object:
        """Append; returns when all are confirmed."""
        ...

    async def close(self) -> object: ...

    async def abandon(self) -> None: ...


class StagedLedgerReader(Protocol):
    metadata: LedgerMetadata

    @property
    def closed(self) -> bool: ...

    @property
    def last_add_confirmed(self) -> int: ...

    async def read(self, first_entry_id: int, max_entries: int, max_bytes: int) -> list[Entry]:
        """Consecutive entries from ``first_entry_id`` on, at least one."""
        ...


class StagedLedgers(Protocol):
    """What those who write ask; see ``ledger.client.CatalogClient``."""

    async def create(self, custom: Mapping[str, bytes] | None = None) -> StagedLedgerWriter: ...

    async def delete(self, ledger_id: int, *, missing_ok: bool = False) -> None: ...


class ReadableStagedLedgers(StagedLedgers, Protocol):
    """What brokers ask as well; see ``ledger.client.LedgerClient``."""

    async def open_no_recovery(self, ledger_id: int, *, urgent: bool = False) -> StagedLedgerReader:
        """``urgent``: bookies do not let its reads yield to adds."""
        ...

    async def read_metadata(self, ledger_id: int) -> LedgerMetadata: ...
