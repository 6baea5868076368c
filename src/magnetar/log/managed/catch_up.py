"""Reading a log: out of memory where possible, else from the bookies, with read-ahead.

A reader that goes on where a read ended is sequential: it gets windows of its share of the budget,
the next one loaded while it works through the last. Any other read fetches what was asked for; so
does one that asks for more than its share.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import structlog

from magnetar.env.tasks import TaskScope
from magnetar.log.managed.chain import Chain, LedgerInfo
from magnetar.log.managed.ledgers import ChainReader, Ledgers
from magnetar.log.managed.read_ahead import (
    WINDOW_ENTRIES,
    ReadAheadCache,
    Window,
)
from magnetar.log.managed.stamping import behind_header
from magnetar.log.managed.tail_cache import LogTail
from magnetar.log.seam import StoredAt
from magnetar.model.entry import Entry
from magnetar.model.errors import MagnetarError, NoEntryError, NoSuchLedgerError
from magnetar.model.ids import Position

log = structlog.get_logger(__name__)

READERS_MAX = 8
SEQUENTIAL_READS_MAX = 16


class CatchUp:
    """Reads one log's confirmed entries.

    ``open_reader`` gives a reader of the open ledger that knows at least what the chain has
    confirmed of it, if this process has the ledger of that id open; else None. ``open_history``
    gives one of a ledger that is in the log's table only.
    """

    def __init__(
        self,
        name: str,
        chain: Chain,
        ledgers: Ledgers,
        tail: LogTail,
        ahead: ReadAheadCache,
        scope: TaskScope,
        open_reader: Callable[[int], ChainReader | None],
        open_history: Callable[[LedgerInfo], Awaitable[ChainReader]],
    ) -> None:
        self._name = name
        self._chain = chain
        self._ledgers = ledgers
        self._tail = tail
        self._ahead = ahead
        self._scope = scope
        self._open_reader = open_reader
        self._open_history = open_history
        self._readers: dict[int, ChainReader] = {}
        """By ledger, the one used last at the end."""
        self._ends: list[Position] = []  # the latest last, SEQUENTIAL_READS_MAX of them at most
        self._loading: dict[Position, asyncio.Task[None]] = {}
        """Read-aheads under way by the position that they bring; nobody reads those twice."""
        self._entry_bytes = 0
        """Of the entries fetched last, on average."""
        self._rewrites = 0
        """Of ledgers: what is on its way by then is read, and not kept."""

    def read_cached(self, start: Position, max_entries: int, max_bytes: int) -> list[Entry] | None:
        """See ``log.seam.ReadableLog``."""
        chain = self._chain
        position = chain.settle(start)
        if position > chain.confirmed or max_entries <= 0:
            return []
        ledger_id, first = position
        last = chain.last_entry(ledger_id)
        found = self._tail.read(ledger_id, first, last, max_entries, max_bytes)
        if found is None:
            found = self._read_window(position, max_entries, max_bytes)
        return found

    def _read_window(
        self, position: Position, max_entries: int, max_bytes: int
    ) -> list[Entry] | None:
        window = self._ahead.find(*position)
        if window is None:
            return None
        found = window.read(position.entry_id, max_entries, max_bytes)
        if window.wants_more:
            self._load_more(window)
        if window.served == len(window.entries):
            self._read_until(found[-1])
        return found

    async def read(self, start: Position, max_entries: int, max_bytes: int) -> list[Entry]:
        """See ``log.seam.ReadableLog``. Raises ``LedgerError``, ``NoEntryError``."""
        while True:
            found = self.read_cached(start, max_entries, max_bytes)
            if found is not None:
                return found
            position = self._chain.settle(start)
            stored = self._chain.stored(position.ledger_id)
            loading = self._loading.get(position)
            if loading is not None:
                await asyncio.wait([loading])
                continue  # what it brought, or nothing: then it is our turn
            try:
                return await self._read_stored(position, max_entries, max_bytes)
            except (NoSuchLedgerError, NoEntryError):
                if self._chain.settle(start) != position:
                    continue  # it was trimmed meanwhile
                if self._chain.stored(position.ledger_id) is stored:
                    raise  # and not because bookies left it to the table

    async def _read_stored(
        self, position: Position, max_entries: int, max_bytes: int
    ) -> list[Entry]:
        sequential = position in self._ends
        if sequential:
            self._ends.remove(position)
        share = self._ahead.share_bytes(None)
        asked_bytes = min(max_bytes, max_entries * self._entry_bytes)
        if not sequential or asked_bytes > share:
            found = await self._fetch(position, max_entries, max_bytes)
            self._read_until(found[-1])
            return found
        rewrites = self._rewrites
        found = await self._fetch(position, WINDOW_ENTRIES, share)
        window = Window(position.ledger_id, found)
        served = window.read(position.entry_id, max_entries, max_bytes)
        # One that is served whole (an entry or two of large batches) is kept for what comes after
        # it: else such a reader waits for each of its reads. Not if it is past its share.
        kept = len(served) < len(found) or window.held_bytes <= share
        # The log may have been closed while the bookies were asked: nothing is kept for it then.
        if kept and rewrites == self._rewrites and not self._scope.closed:
            self._ahead.account(window)
            if window.wants_more:
                self._load_more(window)
        self._read_until(served[-1])
        return served

    def _read_until(self, entry: Entry) -> None:
        """A read ended with ``entry``: whoever goes on after it is sequential."""
        self._ends.append(self._chain.next_position(entry.position))
        del self._ends[:-SEQUENTIAL_READS_MAX]

    def _load_more(self, window: Window) -> None:
        if window.end > self._chain.last_entry(window.ledger_id):
            if window.served == len(window.entries):
                self._ahead.drop(window)
            return
        position = Position(window.ledger_id, window.end)
        if position in self._loading:
            return  # for another window, in which readers will go on
        window.loading = True
        load = self._scope.spawn(self._extend(window), f"read-ahead/{self._name}")
        self._loading[position] = load
        load.add_done_callback(lambda _: self._loading.pop(position, None))

    async def _extend(self, window: Window) -> None:
        position = Position(window.ledger_id, window.end)
        try:
            found = await self._fetch(position, WINDOW_ENTRIES, self._ahead.share_bytes(window))
        except MagnetarError as error:
            # The reader will come to the place itself and be told.
            log.info("read-ahead failed", log=self._name, at=str(position), error=str(error))
            self._ahead.drop(window)
            return
        window.loading = False
        if self._ahead.holds(window):
            window.extend(found)
            self._ahead.account(window)

    async def _fetch(self, position: Position, max_entries: int, max_bytes: int) -> list[Entry]:
        """From the bookies; never past what is confirmed."""
        ledger_id, first = position
        last = self._chain.last_entry(ledger_id)
        reader = await self._reader(ledger_id, last)
        try:
            found = await reader.read(first, min(max_entries, last - first + 1), max_bytes)
        except MagnetarError:
            # The ledger may have moved to other bookies: whoever tries again asks where it lies.
            if self._readers.get(ledger_id) is reader:
                del self._readers[ledger_id]
            raise
        behind_header(found)
        if not found:
            raise NoEntryError(f"log {self._name}: nothing was read at {position}")
        self._entry_bytes = sum(len(entry.data) for entry in found) // len(found)
        return found

    async def _reader(self, ledger_id: int, last: int) -> ChainReader:
        reader = self._readers.get(ledger_id)
        if reader is not None and reader.last_add_confirmed >= last:
            self._readers[ledger_id] = self._readers.pop(ledger_id)
            return reader
        info, rewrites = self._chain.info(ledger_id), self._rewrites
        reader = self._open_reader(ledger_id)
        if info is not None and info.stored is StoredAt.TABLE:
            reader = await self._open_history(info)
        elif reader is None:
            reader = await self._ledgers.open_no_recovery(ledger_id)
        if rewrites != self._rewrites:
            return reader  # for this once: it may know what was true before
        self._readers.pop(ledger_id, None)
        self._readers[ledger_id] = reader
        while len(self._readers) > READERS_MAX:
            del self._readers[next(iter(self._readers))]
        return reader

    def forget(self, ledger_ids: list[int]) -> None:
        """These ledgers left the log, or lie elsewhere now."""
        for ledger_id in ledger_ids:
            self._readers.pop(ledger_id, None)
        self._ahead.drop_ledgers(ledger_ids)

    def read_anew(self, ledger_ids: list[int]) -> None:
        """These ledgers may hold something else now. Whoever has begun to read them gets what was
        there; whoever comes later does not."""
        if ledger_ids:
            self._rewrites += 1
            self.forget(ledger_ids)
