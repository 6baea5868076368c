"""A log as a chain of ledgers: the parts put together behind ``log.seam.WritableLog``.

Owns: the chain and its record (``chain_store``), the writing end (``appender``), reading
(``catch_up``), the cursors (``cursors``), trimming, and the tasks of all of them.

Invariants beside those of the seam:

* The record of the log was written by this process last; a lost write or a fenced ledger closes
  the log here (``LogFencedError`` to everything that is open).
* A ledger is deleted only when every durable cursor has *stored* a mark-delete position at or
  past its end, the log's checkpoint (if it has one) counts all of it, no reader holds it, and
  retention lets it go, or all its records were deleted (``front``); the open ledger never is.
* Of a log with a table only ledgers that are in it are deleted, and stay in the chain
  (``rules.past_bookies``): they are read from there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field

import structlog

from magnetar.env.tasks import TaskScope, defect, fails
from magnetar.log.managed.appender import AppendBounds, Appender, AppenderEvents
from magnetar.log.managed.catch_up import CatchUp
from magnetar.log.managed.chain import LedgerInfo
from magnetar.log.managed.chain_store import ChainStore
from magnetar.log.managed.compaction import CompactionEvents, LogCompaction
from magnetar.log.managed.cursor_search import FoundCursor
from magnetar.log.managed.cursors import ChainCursors, CursorContext, CursorEvents, ManagedCursors
from magnetar.log.managed.front import EpochsOfLedgers, FrontEvents, LedgersFront
from magnetar.log.managed.header_search import HeaderSearch
from magnetar.log.managed.history import History, NoHistory
from magnetar.log.managed.holds import HoldEvents, LogHolds
from magnetar.log.managed.ledgers import ChainReader, Ledgers
from magnetar.log.managed.positions import ChainPositions
from magnetar.log.managed.read_ahead import ReadAheadCache
from magnetar.log.managed.records import HandedCursor, closed_stats
from magnetar.log.managed.rules import deletable, frees_later, past_bookies
from magnetar.log.managed.tabled import LogTabled, TabledEvents
from magnetar.log.managed.tail_cache import TailCache
from magnetar.log.policy import UNLIMITED, LogPolicy
from magnetar.log.seam import (
    Checkpoints,
    Cursors,
    Holds,
    KeyCompaction,
    LedgerStats,
    LogEnd,
    LogEpochs,
    LogFront,
    LogProducers,
    LogStats,
    Opening,
    Positions,
    StoredAt,
    TabledLedgers,
    Termination,
)
from magnetar.log.watching import ReadableWatch
from magnetar.log.whole import Whole
from magnetar.model.entry import Entry
from magnetar.model.errors import (
    LogClosedError,
    LogError,
    LogFencedError,
    MagnetarError,
    MetadataError,
)
from magnetar.model.ids import Position

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class LogContext:
    """What all logs of a process share."""

    ledgers: Ledgers
    tail_cache: TailCache
    read_ahead: ReadAheadCache
    cursors: CursorContext
    policy: LogPolicy
    """Of a log that is opened without one."""
    append_bounds: AppendBounds
    now_ms: Callable[[], int]
    history: History = field(default_factory=NoHistory)
    tabled_ms_least: int = 0


class ManagedLog:
    """Implements ``log.seam.WritableLog``. Made by ``ManagedLogStore.open``."""

    followable = True
    owns_sequences = False
    producers: LogProducers | None = None
    opening: Opening = Whole()

    def __init__(
        self, name: str, context: LogContext, store: ChainStore, policy: LogPolicy | None = None
    ) -> None:
        self.name = name
        self.epoch = store.leader_epoch
        self.lost: LogFencedError | None = None
        self._context = context
        self._store = store
        self._chain = store.chain
        self._scope = TaskScope(f"log/{name}", fails(self._task_failed))
        self._tail = context.tail_cache.tail()
        self._watch = ReadableWatch()
        # Bound once for all parts: logs are many.
        trim, lost, open_only = self._maybe_trim, self._on_lost, self._require_open
        events = AppenderEvents(self._watch.grew, lost, self._on_rolled)
        self._appender = Appender(
            store,
            context.ledgers,
            self._tail,
            self._scope,
            events,
            policy=policy or context.policy,
            bounds=context.append_bounds,
            now_ms=context.now_ms,
        )
        self.end: LogEnd = self._appender
        self.termination: Termination = self._appender
        self.append = self._appender.append  # bound here: a call less for every append
        self._catch_up = CatchUp(
            name,
            self._chain,
            context.ledgers,
            self._tail,
            context.read_ahead,
            self._scope,
            self._open_reader,
            self._open_history,
        )
        self._search = HeaderSearch(self._chain, self.read)
        self.positions: Positions = ChainPositions(self._chain, self._search)
        cursor_events = CursorEvents(trim, lost, open_only, store.confirm_owned)
        self._cursors = ManagedCursors(
            name, ChainCursors(self._chain), context.cursors, self._scope, cursor_events
        )
        self.cursors: Cursors = self._cursors
        self.checkpoints: Checkpoints = store
        hold_events = HoldEvents(trim, lost, open_only)
        self._holds = LogHolds(store, context.now_ms, hold_events)
        self.holds: Holds = self._holds
        tabled_events = TabledEvents(
            trim, self._forget_read, lambda: self._compaction.needed_after(), lost, open_only
        )
        self.tabled: TabledLedgers = LogTabled(store, tabled_events)
        self.epochs: LogEpochs = EpochsOfLedgers(self.epoch, lambda: self.positions.end_offset)
        self._compaction = self._make_compaction(CompactionEvents(trim, lost, open_only))
        self.compaction: KeyCompaction = self._compaction
        front_events = FrontEvents(
            self._begins_later, lambda: self._compaction.in_use, lost, open_only
        )
        self.front: LogFront = LedgersFront(store, self.positions, front_events)
        self._lost_watchers: list[Callable[[LogFencedError], None]] = []
        self._trimming = False
        self._closed = False

    def _make_compaction(self, events: CompactionEvents) -> LogCompaction:
        return LogCompaction(
            self,
            self._chain,
            self._store,
            self._context.ledgers,
            lambda: self._appender.policy,
            self._context.now_ms,
            events,
            self._holds.all,
        )

    # -- appending ----------------------------------------------------------------------------

    @property
    def pending_bytes(self) -> int:
        return self._appender.pending_bytes

    async def check_space(self) -> None:
        """As ``log.seam.LogStore.check_space``."""
        writer, policy = self._appender.writer, self._appender.policy
        ledger_id = None if writer is None else writer.ledger_id
        try:
            await self._context.ledgers.check_space(policy.quorums, ledger_id)
        except MetadataError as error:
            log.info("not known whether there is space", log=self.name, error=str(error))

    def set_policy(self, policy: LogPolicy) -> None:
        self._appender.policy = policy
        self._appender.tick()
        self._maybe_trim()

    def _on_lost(self, error: LogFencedError) -> None:
        """Another broker owns the log."""
        self.lost = error
        self._appender.lose(error)
        self._tell_lost(error)

    def _task_failed(self, task: str, error: BaseException) -> None:
        """What it did for the log is not done any more (a ledger to append to, cursors that are
        stored): the log ends as if it were taken from us, and whoever opens it again recovers
        it."""
        self._on_lost(LogFencedError(f"log {self.name} ends: {defect(task, error)}"))

    def watch_lost(self, lost: Callable[[LogFencedError], None]) -> None:
        self._lost_watchers.append(lost)
        if self.lost is not None:
            self._tell_lost(self.lost)

    def _tell_lost(self, error: LogFencedError) -> None:
        watchers, self._lost_watchers = self._lost_watchers, []
        for lost in watchers:
            asyncio.get_running_loop().call_soon(lost, error)

    def watch_readable(self, grown: Callable[[], None]) -> Callable[[], None]:
        return self._watch.watch(grown)

    # -- reading ------------------------------------------------------------------------------

    def read_cached(self, start: Position, max_entries: int, max_bytes: int) -> list[Entry] | None:
        if self._closed:
            return None  # ``read`` says so
        return self._catch_up.read_cached(start, max_entries, max_bytes)

    async def read(self, start: Position, max_entries: int, max_bytes: int) -> list[Entry]:
        if self._closed:
            raise LogClosedError(f"log {self.name} is closed")
        return await self._catch_up.read(start, max_entries, max_bytes)

    async def first_at(self, time_ms: int) -> Position:
        return await self._search.first_at(time_ms)

    def _open_reader(self, ledger_id: int) -> ChainReader | None:
        writer = self._appender.writer
        return writer.reader() if writer is not None and writer.ledger_id == ledger_id else None

    async def _open_history(self, info: LedgerInfo) -> ChainReader:
        table = self._store.stored_table
        where = "" if table is None else table.where
        return await self._context.history.open(self.name, where, info)

    def _forget_read(self, ledger_ids: list[int]) -> None:
        """What is in memory of these ledgers is no longer what they hold."""
        self._catch_up.read_anew(ledger_ids)
        self._tail.clear()

    # -- trimming -----------------------------------------------------------------------------

    def _on_rolled(self) -> None:
        self._maybe_trim(leftovers=True)

    def tick(self) -> None:
        """Some time has passed. A failure is this log's, not of those that come after it."""
        self._scope.guard(self._tick, "tick")

    def _tick(self) -> None:
        """Roll an old ledger, trim what retention no longer keeps, finish
        deletions that failed."""
        if not self._closed and self.lost is None:
            self._appender.tick()
            self._compaction.clean_up()
            self._maybe_trim(leftovers=True)
            self._cursors.clean_up_nowait()

    def _past_bookies(self) -> list[LedgerInfo]:
        """Of a log with a table: see ``rules.past_bookies``."""
        table = self._store.table
        if table is None:
            return []
        return past_bookies(
            self._chain.ledgers,
            self._needed_after(),
            [
                *self._holds.needed_after(),
                *self._compaction.reads_after(),
                *self._cursors.noted_until(),
                *self._counted_until(),
            ],
            self._appender.policy.retention,
            table,
            self._context.tabled_ms_least,
            self._context.now_ms(),
        )

    def _droppable(self) -> list[int]:
        """Ledgers at the front that bookies may delete, since the record has them in the table."""
        found = []
        for info in self._past_bookies():
            if info.stored is not StoredAt.BOTH:
                break  # those behind it wait, too: so what bookies have is one piece
            found.append(info.ledger_id)
        return found

    def _deletable(self) -> int:
        ledgers = self._chain.ledgers
        if not ledgers or not ledgers[0].closed or self._store.table is not None:
            return 0  # most logs have but their open ledger, and are asked every few seconds
        return deletable(
            ledgers,
            [*self._needed_after(), *self._holds.needed_after()],
            self._appender.policy.retention,
            self._context.now_ms(),
            self._chain.front.position,
        )

    def _begins_later(self) -> None:
        """Records were deleted at the front."""
        self._cursors.pass_over(self._chain.front.position)
        self._maybe_trim()

    def _needed_after(self) -> list[Position]:
        """Positions after which somebody still needs what the log holds, as long as may be."""
        marks = [store.stored_mark_delete for store in self._cursors.stores()]
        marks += self._compaction.needed_after()
        return [*marks, *self._counted_until()]

    def _counted_until(self) -> list[Position]:
        checkpoint = self._store.checkpoint  # as the write before the deletion stores it
        return [] if checkpoint is None else [checkpoint.position]

    def _frees_later(self, stored_bytes: int) -> bool:
        """See ``LogStats``."""
        if not self._chain.ledgers or self._closed or self.lost is not None:
            return False
        if self._store.table is not None:
            return self._store.any_left or self._drops_later()
        first = self._chain.ledgers[0].ledger_id
        return self._store.any_left or frees_later(
            Position(first, self._chain.last_entry(first)),
            self._needed_after(),
            stored_bytes,
            self._appender.policy.retention,
            self._chain.front.position,
        )

    def _drops_later(self) -> bool:
        """Of a log with a table: time alone lets bookies delete what is in it."""
        table, retention = self._store.table, self._appender.policy.retention
        assert table is not None
        kept_ms = (
            retention.kept_ms if table.kept_ms == table.kept_bytes == UNLIMITED else table.kept_ms
        )
        return kept_ms != UNLIMITED and any(i.stored is StoredAt.BOTH for i in self._chain.ledgers)

    def _maybe_trim(self, leftovers: bool = False) -> None:
        """``leftovers``: also delete what left the chain otherwise (a ledger that failed before
        it held anything), or could not be deleted before."""
        if self._trimming or self._closed or self.lost is not None:
            return
        if self._deletable() > 0 or self._droppable() or (leftovers and self._store.any_left):
            self._trimming = True
            self._scope.spawn(self._trim(), "trim")

    async def _trim(self) -> None:
        try:
            gone = [info.ledger_id for info in self._chain.trim(self._deletable())]
            dropped = self._droppable()
            self._chain.store(StoredAt.TABLE, dropped)
            for ledger_id in (*gone, *dropped):
                self._store.leave(ledger_id)
            self._catch_up.forget(gone)
            self._catch_up.read_anew(dropped)  # something of them may have been erased
            await self._store.save()
            await self._store.delete_left()
        except LogFencedError as error:
            self._on_lost(error)
        except MagnetarError as error:
            log.warning("trimming is not finished", log=self.name, error=str(error))
        finally:
            self._trimming = False

    def delete_left_nowait(self) -> None:
        """Finish deletions that a former owner left (after opening)."""
        self._scope.spawn(self._store.delete_left(), "delete-left")

    # -- stats, ending ------------------------------------------------------------------------

    def stats(self) -> LogStats:
        writer = self._appender.writer
        ledgers = [closed_stats(info) for info in self._chain.ledgers if info.closed]
        if self._store.table is not None:
            recorded = self._store.stored_at
            ledgers = [
                each._replace(stored=recorded.get(each.ledger_id, StoredAt.LEDGER))
                for each in ledgers
            ]
        opened = self._chain.open_ledger_id
        if opened is not None:
            here = writer is not None and writer.ledger_id == opened
            size = writer.length if writer is not None and here else 0
            times_ms = self._appender.published_ms if here else (0, 0)
            entries = self._chain.last_entry(opened) + 1
            ledgers.append(LedgerStats(opened, entries, size, "open", *times_ms))
        stored_bytes = sum(ledger.stored_bytes for ledger in ledgers)
        return LogStats(
            self.name,
            self._chain.entries,
            stored_bytes,
            tuple(ledgers),
            self._chain.confirmed,
            {name: cursor.mark_delete for name, cursor in self._cursors.durable().items()},
            self._chain.deleted,
            self._store.created_ms,
            self._holds.all(),
            self._frees_later(stored_bytes),
            self._store.stored_table,
            tuple(
                info.ledger_id for info in self._past_bookies() if info.stored is StoredAt.LEDGER
            ),
        )

    def _require_open(self) -> None:
        if self.lost is not None:
            raise self.lost
        if self._closed:
            raise LogClosedError(f"log {self.name} is closed")

    @property
    def closed(self) -> bool:
        return self._closed

    async def recover_cursors(self, names: Sequence[str], found: Mapping[str, FoundCursor]) -> None:
        """Load the cursors that the metadata store has (while opening)."""
        await self._cursors.recover(names, found)
        self._cursors.pass_over(self._chain.front.position)

    async def take_cursors(self, handed: Sequence[HandedCursor]) -> None:
        """Load the cursors that the last owner has handed over (while opening)."""
        await self._cursors.take_handed(handed)
        self._cursors.pass_over(self._chain.front.position)

    async def abandon(self) -> None:
        """End without finishing anything (opening failed)."""
        self._closed = True
        await self._scope.close()

    async def close(self) -> None:
        """See the seam. Raises what could not be finished, after everything was tried.

        The log's record is written last, and hands the cursors over: nothing of this process writes
        to any of them afterwards, so the next owner need not take them from it one by one."""
        if self._closed:
            return
        self._closed = True
        try:
            await self._finish()
        except asyncio.CancelledError:
            # Given up: nothing runs on, or is begun, over what its owner closes next.
            if self.lost is None:
                self._on_lost(LogFencedError(f"log {self.name} was given up here; ask another"))
            self._scope.cancel()
            raise

    async def _finish(self) -> None:
        # Side by side: each is some round trips, whoever closes a log has clients that wait, and
        # what a cursor stores does not depend on the last ledger being closed.
        storing = asyncio.gather(*(_error_of(store.close()) for store in self._cursors.stores()))
        storing.add_done_callback(_seen)  # nobody asks for it when this is cancelled
        try:
            unfinished = await _error_of(self._appender.close())
            found = [unfinished, *await storing]
        finally:
            storing.cancel()
        await self._scope.close()
        self._tail.clear()
        errors = [each for each in found if each is not None]
        if unfinished is None and self.lost is None:
            errors += await self._hand_over(bool(errors))
        if errors and self.lost is None:
            raise LogError(
                f"log {self.name} was not closed cleanly; the next opening recovers it: "
                + "; ".join(str(error) for error in errors)
            ) from errors[0]

    async def _hand_over(self, doubtful: bool) -> list[MagnetarError]:
        """Write the record for the last time; without the cursors, if they are ``doubtful``."""
        try:
            await self._store.hand_over(None if doubtful else await self._cursors.handed_over())
        except LogFencedError as error:
            self.lost = error  # it is another's by now, who has found what is stored
        except MagnetarError as error:
            return [error]
        return []


def _seen(ended: asyncio.Future[list[MagnetarError | None]]) -> None:
    """What it was cancelled with is nobody's defect."""
    if not ended.cancelled():
        ended.exception()


async def _error_of(closing: Awaitable[None]) -> MagnetarError | None:
    """What it failed with."""
    try:
        await closing
    except MagnetarError as error:
        return error
    return None
