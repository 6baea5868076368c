"""Ledgers that bookies keep no more, read from the log's table. Implements
``log.managed.history.History``.

Rule: what is asked of tables is asked in threads of this package's own, a few for the whole
process: a slow object storage holds up no loop, and no more memory than a few parts of files.

What is kept, and asked again: ``ledger_reader``.

Why: docs/adr/0126-consumers-are-served-from-the-table.md.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from magnetar.model.entry import Entry
from magnetar.tables.layout import TablePlace, check_tables, partition_of
from magnetar.tables.ledger_reader import TabledLedger, TableLedgerReader, open_ledger
from magnetar.tables.warehouse import CATALOGS, Catalogs, table_errors

if TYPE_CHECKING:
    from pyiceberg.io import FileIO
    from pyiceberg.table import Table

    from magnetar.tables.parts import FilePart

THREADS: Final = 4

R = TypeVar("R")


class Places(NamedTuple):
    """Where a ledger's rows lie: by table, how its files are opened, and the parts of them."""

    tables: tuple[tuple[FileIO, Sequence[FilePart]], ...]


class TableHistory:
    """Reads the tables of all logs of a process. Implements ``ledger_reader.TableFiles``. Close
    it."""

    def __init__(self, catalogs: Catalogs = CATALOGS) -> None:
        self._catalogs = catalogs
        self._threads: ThreadPoolExecutor | None = None  # most processes never read a table

    async def open(self, log: str, where: str, ledger: TabledLedger) -> TableLedgerReader[Places]:
        """See ``log.managed.history``."""
        return await open_ledger(self, log, where, ledger, time.monotonic)

    async def find(self, log: str, place: TablePlace, ledger: TabledLedger) -> Places:
        """See ``TableFiles``."""
        return await self._run(lambda: self.places(log, place, ledger))

    async def load(
        self, log: str, place: TablePlace, ledger: TabledLedger, found: Places, first: int
    ) -> list[Entry]:
        """See ``TableFiles``."""
        return await self._run(lambda: _load(log, place, ledger, found, first))

    async def _run(self, work: Callable[[], R]) -> R:
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
        """The log's table and, if there is one, its side table."""
        main = self._catalogs.table(place, place.table)
        side = None if main is None else self._catalogs.table(place, place.side)
        properties = None if main is None else main.properties
        check_tables(log, place, properties, side is not None, ledger_id)
        return [each for each in (main, side) if each is not None]

    async def close(self) -> None:
        threads, self._threads = self._threads, None
        if threads is not None:
            await asyncio.to_thread(threads.shutdown, True, cancel_futures=True)


def _load(
    log: str, place: TablePlace, ledger: TabledLedger, found: Places, first: int
) -> list[Entry]:
    """Blocking: the entries of the parts in which ``first`` lies, from it on."""
    import pyarrow as pa

    from magnetar.tables.ledger_files import read_parts
    from magnetar.tables.parts import window
    from magnetar.tables.rebuilding import rebuilt

    ledger_id, entries = ledger.ledger_id, ledger.entries
    every = [part for _, parts in found.tables for part in parts]
    chosen, stop = window(every, first, entries)
    with table_errors(f"log {log}: ledger {ledger_id} in table {place.table}"):
        rows = [
            read_parts(io, mine, ledger_id)
            for io, parts in found.tables
            if (mine := [part for part in parts if part in chosen])
        ]
        if not rows:
            return [Entry(ledger_id, number, b"", 0) for number in range(first, stop)]
        whole = pa.concat_tables(rows, promote_options="permissive")
        return rebuilt(ledger_id, whole, first, stop)
