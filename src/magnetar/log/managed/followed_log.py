"""A log that another process owns, followed: its record watched, its open ledger tailed.

Owns: a chain of its own, made of what the record says and of what the open ledger's bookies say
is confirmed; two tasks, one for each of these.

Rules:

* Nothing is written and nothing is fenced: the record is read, ledgers are opened without
  recovery. The owner does not know that it is followed.
* The record says which ledgers there are and how long the closed ones are; only of its last
  ledger, while that is open, the bookies are asked. One long poll per bookie of its last fragment
  is under way, so one tailing reader per log.
* The watch of the record is set before the record is read, and a watch is told of at least once
  after the last change, a lost session included: no change is missed for good. A record that could
  not be read is read again.
* The owner deletes a ledger after the record says that it has left. So whoever finds no ledger
  reads the record again before an error is believed.
* What is readable here trails the owner by as much as a tailing reader does, or, where the owner
  tells of its end (``told_end``), by the time that takes.
* A log that was deleted, perhaps made anew under its name, ends here: watchers are called once
  more, reads raise ``NoSuchLogError``.

Why: docs/adr/0057-followed-logs.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import NamedTuple

import structlog

from magnetar.env.metadata import MetadataStore
from magnetar.env.tasks import TaskScope, defect, fails
from magnetar.log.managed.catch_up import CatchUp
from magnetar.log.managed.chain import Chain, LedgerInfo
from magnetar.log.managed.followed_cursors import CursorsOfFollowed
from magnetar.log.managed.following import (
    TAKEN_BYTES_MAX,
    Known,
    News,
    end_offset_by,
    first_to_take,
    news,
)
from magnetar.log.managed.header_search import HeaderSearch
from magnetar.log.managed.history import History, NoHistory
from magnetar.log.managed.ledgers import ChainReader, ChainTail, Ledgers
from magnetar.log.managed.node import stored_record
from magnetar.log.managed.positions import ChainPositions
from magnetar.log.managed.read_ahead import ReadAheadCache
from magnetar.log.managed.records import closed_stats, decode_log, log_path
from magnetar.log.managed.stamping import behind_header
from magnetar.log.managed.tail_cache import TailCache
from magnetar.log.policy import Engine
from magnetar.log.seam import FollowedCursors, LedgerStats, LogEnd, LogStats, Positions
from magnetar.log.watching import ReadableWatch
from magnetar.model.entry import Entry
from magnetar.model.errors import (
    LogClosedError,
    LogError,
    MagnetarError,
    NoEntryError,
    NoNodeError,
    NoSuchLedgerError,
    NoSuchLogError,
    OtherEngineError,
)
from magnetar.model.ids import Position

log = structlog.get_logger(__name__)

RETRY_FIRST_S = 0.05
RETRY_MAX_S = 5.0


class RecordedEnd(NamedTuple):
    """Implements ``log.seam.LogEnd``: what the record says."""

    terminated: bool


class FollowedLog:
    """Implements ``log.seam.FollowedReadableLog``. Made by ``ManagedLogStore.follow``.

    ``closed`` is called when it is closed.
    """

    def __init__(
        self,
        name: str,
        metadata: MetadataStore,
        ledgers: Ledgers,
        tail_cache: TailCache,
        read_ahead: ReadAheadCache,
        closed: Callable[[], object],
        history: History | None = None,
    ) -> None:
        self.name = name
        self._metadata = metadata
        self._ledgers = ledgers
        self._path = log_path(name)
        self._on_closed = closed
        self._chain = Chain()
        self._known: Known | None = None
        self.end: LogEnd = RecordedEnd(False)
        self._scope = TaskScope(f"followed-log/{name}", fails(self._task_failed))
        self._tail = tail_cache.tail()
        self._watch = ReadableWatch()
        self._history = history or NoHistory()
        self._catch_up = CatchUp(
            name,
            self._chain,
            ledgers,
            self._tail,
            read_ahead,
            self._scope,
            self._open_reader,
            self._open_history,
        )
        self._search = HeaderSearch(self._chain, self.read)
        self.positions: Positions = ChainPositions(self._chain, self._search)
        self.cursors: FollowedCursors = CursorsOfFollowed(self._chain, self.wait_seen)
        self._ended_watchers: list[Callable[[LogError], None]] = []
        self._reader: tuple[int, ChainTail] | None = None  # of the ledger that is followed
        self._ended: LogError | None = None
        self._closed = False
        self._record_changed = asyncio.Event()
        self._chain_changed = asyncio.Event()
        self._looked = asyncio.Event()  # at the open ledger, whatever came of it
        self._end_watch: Callable[[], None] | None = None
        self._end_task: asyncio.Task[None] | None = None

    async def begin(self) -> None:
        """Read the record and look at the open ledger. When its bookies do not answer, what is
        before it can be read all the same. Raises ``NoSuchLogError``, ``LogError``,
        ``MetadataError``."""
        # Before the read: a change after what is read is told of, whenever it comes.
        self._end_watch = self._metadata.watch_value(
            self._path, lambda _: self._record_changed.set()
        )
        # Else a server that lags may tell of a log that was deleted, and its entries be served.
        await self._metadata.sync()
        await self._read_record()
        self._scope.spawn(self._follow_record(), "record")
        self._end_task = self._scope.spawn(self._follow_end(), "end")
        await self._looked.wait()
        if self._ended is not None:
            raise self._ended

    async def wait_seen(self, position: Position) -> None:
        """Until the log is seen up to ``position``, if it reaches there. Raises ``LogClosedError``,
        ``LogError``."""
        grown = asyncio.Event()
        end_watch = self._watch.watch(grown.set)
        try:
            while position.entry_id >= 0 and self._chain.confirmed < position:
                if self._ended is not None:
                    raise self._ended
                await grown.wait()
                grown.clear()
        finally:
            end_watch()

    def told_end(self, last: Position) -> None:
        followed = self._reader
        # A ledger that is not followed yet: its record is on its way.
        if followed is not None and followed[0] == last.ledger_id:
            followed[1].told(last.entry_id)

    # -- reading ------------------------------------------------------------------------------

    def watch_readable(self, grown: Callable[[], None]) -> Callable[[], None]:
        return self._watch.watch(grown)

    def read_cached(self, start: Position, max_entries: int, max_bytes: int) -> list[Entry] | None:
        if self._ended is not None:
            return None  # ``read`` says why
        return self._catch_up.read_cached(start, max_entries, max_bytes)

    async def read(self, start: Position, max_entries: int, max_bytes: int) -> list[Entry]:
        while True:
            if self._ended is not None:
                raise self._ended
            position = self._chain.settle(start)
            stored = self._chain.stored(position.ledger_id)
            try:
                return await self._catch_up.read(start, max_entries, max_bytes)
            except (NoSuchLedgerError, NoEntryError):
                await self._metadata.sync()
                await self._read_record()
                if self._chain.settle(start) != position:
                    continue  # the owner trimmed it meanwhile
                if self._chain.stored(position.ledger_id) is stored:
                    raise  # and not because bookies left it to the table

    async def first_at(self, time_ms: int) -> Position:
        return await self._search.first_at(time_ms)

    def stats(self) -> LogStats:
        """See the seam. An open ledger has 0 bytes: nobody but its writer knows how many."""
        chain = self._chain
        ledgers = tuple(
            closed_stats(info)
            if info.closed
            else LedgerStats(info.ledger_id, chain.last_entry(info.ledger_id) + 1, 0, "open")
            for info in chain.ledgers
        )
        return LogStats(
            self.name,
            chain.entries,
            sum(ledger.stored_bytes for ledger in ledgers),
            ledgers,
            chain.confirmed,
            {},
            chain.deleted,
            0 if self._known is None else self._known.record.created_ms,
            table=None if self._known is None else self._known.record.table,
        )

    def _open_reader(self, ledger_id: int) -> ChainReader | None:
        followed = self._reader
        return followed[1] if followed is not None and followed[0] == ledger_id else None

    async def _open_history(self, info: LedgerInfo) -> ChainReader:
        table = None if self._known is None else self._known.record.table
        return await self._history.open(self.name, "" if table is None else table.where, info)

    # -- following the record -----------------------------------------------------------------

    async def _follow_record(self) -> None:
        retry_s = RETRY_FIRST_S
        while self._ended is None:
            await self._record_changed.wait()
            self._record_changed.clear()  # before the read: what changes during it is told anew
            try:
                await self._read_record()
                retry_s = RETRY_FIRST_S
            except NoSuchLogError:
                return
            except MagnetarError as error:
                log.warning("a followed log's record is not read", log=self.name, error=str(error))
                self._record_changed.set()  # nobody tells of this change again
                await asyncio.sleep(retry_s)
                retry_s = min(2 * retry_s, RETRY_MAX_S)

    async def _read_record(self) -> None:
        """Take over what the record says. Raises ``NoSuchLogError``, which ends the following,
        ``LogError``, ``MetadataError``."""
        try:
            stored = await stored_record(self._metadata, self._path)
        except NoNodeError:
            raise self._end(self._no_such_log()) from None
        read = Known(decode_log(self.name, stored.value), stored.version)
        if read.record.engine is not Engine.LEDGER:
            raise self._end(
                OtherEngineError(f"log {self.name} is on the engine {read.record.engine.value}")
            )
        told = news(self._known, read)
        if told is News.GONE:
            raise self._end(self._no_such_log())
        if told is News.NEW:
            if self._chain.loses_end(read.record.ledgers, read.record.first_offset):
                raise self._end(
                    LogError(
                        f"log {self.name} has lost entries of its end that were seen here: "
                        "follow it again"
                    )
                )
            self._known = read
            self._take_chain(read)

    def _take_chain(self, known: Known) -> None:
        record, before = known.record, self._chain.confirmed
        ended, self.end = self.end, RecordedEnd(record.terminated)
        self._catch_up.forget(
            self._chain.follow(record.ledgers, record.trimmed, record.first_offset, record.front)
        )
        self._chain_changed.set()
        if self._chain.confirmed > before or self.end != ended:
            self._watch.grew()

    def _no_such_log(self) -> NoSuchLogError:
        if self._known is None:
            return NoSuchLogError(f"there is no log {self.name}; open it for appending to make it")
        return NoSuchLogError(f"log {self.name} was deleted; if it was made anew, follow it again")

    # -- following the open ledger ------------------------------------------------------------

    async def _follow_end(self) -> None:
        """Follow the last ledger, while it is open, and the one after it."""
        ended, retry_s = None, RETRY_FIRST_S
        while self._ended is None:
            self._chain_changed.clear()
            ledger_id = self._chain.open_ledger_id
            if ledger_id is None or ledger_id == ended:  # the record will say what comes next
                self._looked.set()
                await self._chain_changed.wait()
                continue
            before = self._chain.confirmed
            try:
                await self._follow_ledger(ledger_id)
                ended, retry_s = ledger_id, RETRY_FIRST_S
            except MagnetarError as error:
                log.warning(
                    "a followed log's end is not seen",
                    log=self.name,
                    ledger=ledger_id,
                    error=str(error),
                )
                self._looked.set()
                retry_s = RETRY_FIRST_S if self._chain.confirmed > before else retry_s
                await self._wait_changed(retry_s)
                retry_s = min(2 * retry_s, RETRY_MAX_S)

    async def _wait_changed(self, at_most_s: float) -> None:
        """The ledger may have failed because it is gone: then the record tells of another."""
        try:
            async with asyncio.timeout(at_most_s):
                await self._chain_changed.wait()
        except TimeoutError:
            pass  # time to try again

    async def _follow_ledger(self, ledger_id: int) -> None:
        """Until it is closed, or the record says so. Raises ``LedgerError``, ``MetadataError``,
        ``NoEntryError``, ``LogError``."""
        chain = self._chain
        reader = await self._ledgers.open_no_recovery(ledger_id)
        self._reader = ledger_id, reader
        try:
            while chain.open_ledger_id == ledger_id:
                if reader.last_add_confirmed > chain.last_confirmed_entry:
                    await self._take_entries(reader, ledger_id, reader.last_add_confirmed)
                    continue
                self._looked.set()
                if reader.closed:
                    return
                await reader.wait_past(chain.last_confirmed_entry)
        finally:
            self._reader = None
            reader.close()

    async def _take_entries(self, reader: ChainReader, ledger_id: int, confirmed: int) -> None:
        """Entries of the open ledger up to ``confirmed`` become readable."""
        chain = self._chain
        known = chain.last_confirmed_entry
        first = first_to_take(known, confirmed, at_start=not self._looked.is_set())
        taken = await reader.read(first, confirmed - first + 1, TAKEN_BYTES_MAX)
        if taken[-1].entry_id < confirmed:  # too many bytes: who wants them reads them
            taken = await reader.read(confirmed, 1, 1)
        if chain.open_ledger_id != ledger_id:
            return  # the record has said meanwhile where the ledger ends
        behind_header(taken)
        end_offset = end_offset_by(chain, taken, f"log {self.name}, ledger {ledger_id}")
        self._cache(taken)
        chain.confirm(confirmed, end_offset)
        self._watch.grew()

    def _cache(self, taken: list[Entry]) -> None:
        """Keep the log's newest entries in memory; the cache has a budget for all logs."""
        first = taken[0]
        offset = first.payload_offset
        if any(entry.payload_offset != offset for entry in taken):
            return  # headers of several lengths: not of our writing
        data = [bytes(entry.data) for entry in taken]
        self._tail.add(first.ledger_id, first.entry_id, data, sum(map(len, data)), offset)

    # -- ending -------------------------------------------------------------------------------

    def watch_ended(self, ended: Callable[[LogError], None]) -> None:
        self._ended_watchers.append(ended)
        if self._ended is not None:
            self._tell_ended(self._ended)

    def _tell_ended(self, error: LogError) -> None:
        watchers, self._ended_watchers = self._ended_watchers, []
        for ended in watchers:
            asyncio.get_running_loop().call_soon(ended, error)

    def _task_failed(self, task: str, error: BaseException) -> None:
        self._end(LogError(f"following log {self.name} ends: {defect(task, error)}"))

    def _end(self, error: LogError) -> LogError:
        """Nothing more will be seen; whoever waits for the log to grow is told."""
        if self._ended is None:
            self._ended = error
            self._tell_ended(error)
            self._looked.set()
            self._watch.grew()
            self._record_changed.set()  # so that its task sees the end
            if self._end_watch is not None:
                self._end_watch()
            if self._end_task is not None:
                self._end_task.cancel()  # it would wait for a ledger that nobody writes
        return error

    async def close(self) -> None:
        self._ended_watchers.clear()
        self._end(LogClosedError(f"log {self.name} is closed"))
        await self._scope.close()
        self._tail.clear()
        if not self._closed:
            self._closed = True
            self._on_closed()
