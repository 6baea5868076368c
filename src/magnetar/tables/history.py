"""Ledgers that bookies keep no more, read from the log's table. Implements
``log.managed.history.History``.

Rules:

* What is asked of tables is asked in threads of this package's own, a few for the whole process: a
  slow object storage holds up no loop, and no more memory than a few parts of files.
* Which files hold a ledger is asked of the catalog when the ledger is opened, and again when a file
  is not there any more: tables are compacted, and snapshots expire, while they are read.
* A reader goes on where it ended, mostly: the entries of the last parts are kept for it.

Why: docs/adr/0126-consumers-are-served-from-the-table.md.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, TypeVar

from magnetar.model.entry import Entry
from magnetar.model.errors import ConfigError, TableError
from magnetar.tables.layout import TAKEN, UNFIT, TablePlace, ledger_told, partition_of
from magnetar.tables.warehouse import CATALOGS, Catalogs, table_errors

if TYPE_CHECKING:
    from pyiceberg.io import FileIO
    from pyiceberg.table import Table

    from magnetar.tables.ledger_files import FilePart

THREADS: Final = 4
KEPT_BYTES_MAX: Final = 16 << 20
"""Of entries that one reader keeps beside those that it gives."""

KEPT_S: Final = 60.0
"""For so long what was read is served again, and files are where they were: messages may be erased
from a table, and a process that only follows a log is not told."""

R = TypeVar("R")


class TabledLedger(Protocol):
    """What a log knows of a ledger (``log.managed.chain.LedgerInfo``)."""

    @property
    def ledger_id(self) -> int: ...

    @property
    def entries(self) -> int: ...

    @property
    def stored_bytes(self) -> int: ...


class TableHistory:
    """Reads the tables of all logs of a process. Close it."""

    def __init__(self, catalogs: Catalogs = CATALOGS) -> None:
        self._catalogs = catalogs
        self._threads: ThreadPoolExecutor | None = None  # most processes never read a table

    async def open(self, log: str, where: str, ledger: TabledLedger) -> TableLedgerReader:
        """See ``log.managed.history``."""
        try:
            place = TablePlace.from_text(where)
        except ConfigError as error:
            raise TableError(f"log {log}: {error}") from error
        reader = TableLedgerReader(self, log, place, ledger)
        await reader.look()
        return reader

    async def run(self, work: Callable[[], R]) -> R:
        """``work`` in one of the threads."""
        if self._threads is None:
            self._threads = ThreadPoolExecutor(THREADS, "magnetar-tables")
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    def places(self, log: str, place: TablePlace, ledger: TabledLedger) -> Places:
        """Blocking. Raises ``TableError``."""
        from magnetar.tables.ledger_files import parts_of

        partition = partition_of(log)
        found: list[tuple[FileIO, Sequence[FilePart]]] = []
        with table_errors(f"log {log}: ledger {ledger.ledger_id} in table {place.table}"):
            for table in self._tables(log, place, ledger.ledger_id):
                parts = parts_of(table, partition, ledger.ledger_id, ledger.entries)
                found.append((table.io, parts))
        return Places(tuple(found))

    def _tables(self, log: str, place: TablePlace, ledger_id: int) -> list[Table]:
        """The log's table and, if there is one, its side table. What is not in them is taken for
        erased, so they must be those that took the ledger, and not others of their names."""
        main = self._catalogs.table(place, place.table)
        if main is None:
            raise TableError(
                f"log {log}: its table {place.table} is not in catalog {place.catalog}; "
                "was it dropped or renamed? Bring it back under that name"
            )
        taken = ledger_told(main.properties, TAKEN, log)
        if taken is None or taken < ledger_id:
            raise TableError(
                f"log {log}: table {place.table} never took ledger {ledger_id} "
                f"(property {TAKEN}...: {taken}); was the table that did dropped, and made anew? "
                "Bring that one back under this name"
            )
        side = self._catalogs.table(place, place.side)
        unfit = ledger_told(main.properties, UNFIT, log)
        if side is not None:
            return [main, side]
        if unfit is not None and ledger_id <= unfit:
            raise TableError(
                f"log {log}: table {place.side}, which has entries of ledgers up to {unfit}, is "
                f"not in catalog {place.catalog}; was it dropped or renamed? Bring it back under "
                f"that name, or remove property {UNFIT}... of {place.table}: then consumers pass "
                "over what was in it"
            )
        return [main]

    async def close(self) -> None:
        threads, self._threads = self._threads, None
        if threads is not None:
            await asyncio.to_thread(threads.shutdown, True, cancel_futures=True)


class Places(NamedTuple):
    """Where a ledger's rows lie: by table, how its files are opened, and the parts of them."""

    tables: tuple[tuple[FileIO, Sequence[FilePart]], ...]


class TableLedgerReader:
    """Implements ``log.managed.ledgers.ChainReader``."""

    def __init__(
        self, history: TableHistory, log: str, place: TablePlace, ledger: TabledLedger
    ) -> None:
        self._history = history
        self._log = log
        self._place = place
        self._ledger = ledger
        self._places = Places(())
        self._kept: list[Entry] = []
        self._looked_s = 0.0
        self.last_add_confirmed = ledger.entries - 1
        self.length = ledger.stored_bytes

    async def look(self) -> None:
        """Ask the catalog where the ledger is. Raises ``TableError``."""
        self._kept = []
        self._looked_s = time.monotonic()
        self._places = await self._history.run(
            lambda: self._history.places(self._log, self._place, self._ledger)
        )

    async def read(self, first_entry_id: int, max_entries: int, max_bytes: int) -> list[Entry]:
        """See ``ChainReader``. Raises ``TableError``."""
        if time.monotonic() - self._looked_s > KEPT_S:
            await self.look()
        kept = self._from_kept(first_entry_id, max_entries, max_bytes)
        if kept:
            return kept
        try:
            entries = await self._history.run(lambda: self._load(first_entry_id))
        except TableError:
            await self.look()  # the file may have been replaced by others
            entries = await self._history.run(lambda: self._load(first_entry_id))
        size = sum(len(entry.data) for entry in entries)
        self._kept = entries if size <= KEPT_BYTES_MAX else entries[: max(1, max_entries)]
        return self._from_kept(first_entry_id, max_entries, max_bytes)

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

    def _load(self, first: int) -> list[Entry]:
        """Blocking: the entries of the parts in which ``first`` lies, from it on."""
        import pyarrow as pa

        from magnetar.tables.ledger_files import read_parts, window
        from magnetar.tables.rebuilding import rebuilt

        ledger_id, entries = self._ledger.ledger_id, self._ledger.entries
        every = [part for _, parts in self._places.tables for part in parts]
        chosen, stop = window(every, first, entries)
        with table_errors(f"log {self._log}: ledger {ledger_id} in table {self._place.table}"):
            rows = [
                read_parts(io, mine, ledger_id)
                for io, parts in self._places.tables
                if (mine := [part for part in parts if part in chosen])
            ]
            if not rows:
                return [Entry(ledger_id, number, b"", 0) for number in range(first, stop)]
            whole = pa.concat_tables(rows, promote_options="permissive")
            return rebuilt(ledger_id, whole, first, stop)
