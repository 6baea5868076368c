"""A ledger that is read from its log's table, whoever knows how tables are reached. Implements
``log.managed.ledgers.ChainReader``.

Rules:

* Which files hold a ledger is asked when the ledger is opened, and again when a file is not there
  any more: tables are compacted, and snapshots expire, while they are read.
* A reader goes on where it ended, mostly: the entries of the last parts are kept for it.

Why: docs/adr/0126-consumers-are-served-from-the-table.md,
docs/adr/0171-tables-are-taken-and-read-by-seams.md.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Generic, Protocol, TypeVar

from magnetar.model.entry import Entry
from magnetar.model.errors import ConfigError, TableError
from magnetar.tables.layout import TablePlace

KEPT_BYTES_MAX: Final = 16 << 20
"""Of entries that one reader keeps beside those that it gives."""

KEPT_S: Final = 60.0
"""For so long what was read is served again, and files are where they were: messages may be erased
from a table, and a process that only follows a log is not told."""

Found = TypeVar("Found")


class TabledLedger(Protocol):
    """What a log knows of a ledger (``log.managed.chain.LedgerInfo``)."""

    @property
    def ledger_id(self) -> int: ...

    @property
    def entries(self) -> int: ...

    @property
    def stored_bytes(self) -> int: ...


class TableFiles(Protocol[Found]):
    """Knows how to reach tables. ``Found``: where a ledger's rows lie. Both raise
    ``TableError``."""

    async def find(self, log: str, place: TablePlace, ledger: TabledLedger) -> Found:
        """Ask the catalog."""
        ...

    async def load(
        self, log: str, place: TablePlace, ledger: TabledLedger, found: Found, first: int
    ) -> list[Entry]:
        """Consecutive entries from ``first`` on, at least one. One of which nothing is left is
        there without bytes."""
        ...


class TableLedgerReader(Generic[Found]):
    """Made by ``open_ledger``. ``clock_s``: seconds, from anywhere on."""

    def __init__(
        self,
        files: TableFiles[Found],
        log: str,
        place: TablePlace,
        ledger: TabledLedger,
        found: Found,
        clock_s: Callable[[], float],
    ) -> None:
        self._files = files
        self._log = log
        self._place = place
        self._ledger = ledger
        self._found = found
        self._clock_s = clock_s
        self._looked_s = clock_s()
        self._kept: list[Entry] = []
        self.last_add_confirmed = ledger.entries - 1
        self.length = ledger.stored_bytes

    async def _look(self) -> None:
        self._kept = []
        self._looked_s = self._clock_s()
        self._found = await self._files.find(self._log, self._place, self._ledger)

    async def read(self, first_entry_id: int, max_entries: int, max_bytes: int) -> list[Entry]:
        """See ``ChainReader``. Raises ``TableError``."""
        if self._clock_s() - self._looked_s > KEPT_S:
            await self._look()
        kept = self._from_kept(first_entry_id, max_entries, max_bytes)
        if kept:
            return kept
        try:
            entries = await self._load(first_entry_id)
        except TableError:
            await self._look()  # the file may have been replaced by others
            entries = await self._load(first_entry_id)
        size = sum(len(entry.data) for entry in entries)
        self._kept = entries if size <= KEPT_BYTES_MAX else entries[: max(1, max_entries)]
        return self._from_kept(first_entry_id, max_entries, max_bytes)

    async def _load(self, first: int) -> list[Entry]:
        return await self._files.load(self._log, self._place, self._ledger, self._found, first)

    def _from_kept(self, first: int, max_entries: int, max_bytes: int) -> list[Entry]:
        kept = self._kept
        at = first - kept[0].entry_id if kept else -1
        if not 0 <= at < len(kept):
            return []
        stop = at
        for entry in kept[at : at + max_entries]:
            max_bytes -= len(entry.data)
            if max_bytes < 0 and stop > at:
                break
            stop += 1
        # New objects: whoever reads moves an entry's begin behind its header.
        return [Entry(entry.ledger_id, entry.entry_id, entry.data, 0) for entry in kept[at:stop]]


async def open_ledger(
    files: TableFiles[Found],
    log: str,
    where: str,
    ledger: TabledLedger,
    clock_s: Callable[[], float],
) -> TableLedgerReader[Found]:
    """See ``log.managed.history``. Raises ``TableError``."""
    try:
        place = TablePlace.from_text(where)
    except ConfigError as error:
        raise TableError(f"log {log}: {error}") from error
    found = await files.find(log, place, ledger)
    return TableLedgerReader(files, log, place, ledger, found, clock_s)
