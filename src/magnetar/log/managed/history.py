"""Ledgers that are in a log's table only, as the log reads them: the seam to whoever knows tables.

A reader of such a ledger gives the entries that the bookies had, under the same ids, each with the
header that the log gave it. What the messages say is unchanged; how an entry is packed may not be.
"""

from __future__ import annotations

from typing import Protocol

from magnetar.log.managed.chain import LedgerInfo
from magnetar.log.managed.ledgers import ChainReader
from magnetar.model.errors import LogError


class History(Protocol):
    """Knows how to read tables."""

    async def open(self, log: str, where: str, ledger: LedgerInfo) -> ChainReader:
        """The ledger, as it lies in the table ``where`` of the log. Raises ``LogError`` when the
        table cannot be reached or read."""
        ...


class ProcessHistory(History, Protocol):
    """That of a whole process, which ends it."""

    async def close(self) -> None: ...


class NoHistory:
    """Of a process that knows no tables. Implements ``ProcessHistory``."""

    async def open(self, log: str, where: str, ledger: LedgerInfo) -> ChainReader:
        raise LogError(
            f"log {log}: ledger {ledger.ledger_id} is in the table {where} only, and this process "
            "does not read tables; install magnetar[tables] where it runs"
        )

    async def close(self) -> None:
        """Nothing was begun."""
