"""Keeps one cursor's acknowledgements durable, in a ledger of its own.

Owns the cursor's ledger and its metadata node. What is stored, in order of size: nothing (the
mark-delete position in the node says it all), DELTA records (what changed since the last store),
SNAPSHOT records (everything).

Rules:

* One store is under way at a time; what changes meanwhile goes with the next one.
* The first record of a cursor ledger is a whole snapshot, confirmed *before* the node points at
  the ledger; the former ledger is deleted *after* that. A crash between any two steps leaves a
  node that points at a ledger holding everything that was ever reported as stored.
* Nothing that was stored lies before the node's mark-delete position: a reset, which may go back,
  takes a new ledger. So who cannot read a ledger goes on from there and skips nothing.
* After a failed store the ledger is given up: the next attempt writes a snapshot to a new one.
* A ledger that may be left over is named in the node (``deleting``) before it can be forgotten.
* A deletion that the node may or may not say is taken back by the next store, which writes the
  node; so what is acknowledged after a deletion that failed is as durable as ever.
* No task per acknowledgement: a task runs only while a ledger is being changed.

    IDLE --flush, ledger usable--> STORING --confirmed--> IDLE
    IDLE --flush, no ledger, full, or reset--> ROLLING --node written--> IDLE
    STORING, ROLLING --error--> IDLE without a ledger, retried after a growing number of ticks
    any --fenced, or a defect--> LOST
    IDLE --close, mark-delete says all--> the node has it, the ledger is to be deleted
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace

import structlog

from magnetar.env.flush_timer import FlushTimer
from magnetar.env.metadata import Versioned
from magnetar.env.tasks import TaskScope, defect, fails, nothing
from magnetar.log.acknowledgements import AckImage, AckState
from magnetar.log.managed.cursor_format import CHUNK_BYTES_MAX, encode_delta, encode_snapshot
from magnetar.log.managed.ledgers import ChainWriter, Ledgers
from magnetar.log.managed.node import RecordNode
from magnetar.log.managed.records import CursorRecord
from magnetar.log.seam import Binding
from magnetar.model.errors import (
    LedgerFencedError,
    LogClosedError,
    LogFencedError,
    MagnetarError,
    MetadataError,
    NoSuchLedgerError,
)
from magnetar.model.ids import Position
from magnetar.model.ledger import CURSOR_KEY

log = structlog.get_logger(__name__)

RETRY_TICKS_MAX = 64


@dataclass(frozen=True, slots=True)
class CursorLimits:
    """When a cursor writes a snapshot into its ledger, and when it takes a new ledger; how large
    a record's body is at most."""

    snapshot_deltas: int = 1_000
    snapshot_delta_bytes_least: int = 1 << 20
    ledger_records_max: int = 50_000
    ledger_bytes_max: int = 64 << 20
    chunk_bytes_max: int = CHUNK_BYTES_MAX


class CursorStore:
    """Implements ``log.ack_store.AckStore``: keeps ``state`` in a ledger, at the ticks of
    ``timer``."""

    durable = True

    def __init__(
        self,
        name: str,
        state: AckState,
        node: RecordNode[CursorRecord],
        ledgers: Ledgers,
        scope: TaskScope,
        *,
        timer: FlushTimer,
        limits: CursorLimits,
        on_stored: Callable[[], None],
        on_lost: Callable[[LogFencedError], None],
        confirm_owned: Callable[[], Awaitable[None]],
    ) -> None:
        self.name = name
        self._confirm_owned = confirm_owned
        self._owned_for = 0  # of ``out_of_log``
        self._stored_mark_delete = state.mark_delete
        self._state = state
        self._node = node
        self._ledgers = ledgers
        self._scope = scope.part(f"cursor/{name}", fails(self._task_failed))
        self._flush = self._scope.guarded(self.flush_nowait, "flush")
        self._timer = timer
        self._limits = limits
        self._on_stored = on_stored
        self._on_lost = on_lost
        self._stored_version = state.version
        self._writer: ChainWriter | None = None
        self._busy = False
        self._closed = False
        self._doubtful = False  # the node may say that the cursor is deleted
        self._lost: LogFencedError | None = None
        self._waiters: list[tuple[int, asyncio.Future[None]]] = []
        self._idle_waiters: list[asyncio.Future[None]] = []
        self._failures = 0
        self._ticks_to_skip = 0
        # Ledgers to delete: former ones, and new ones until the node is known to point at them.
        self._leaving: dict[int, None] = dict.fromkeys(node.record.deleting)
        self._base = -1  # of the last whole snapshot in the ledger
        self._snapshot_bytes = 0
        self._deltas = 0  # since that snapshot
        self._delta_bytes = 0
        self._flight: _Flight | None = None

    # -- for the cursor and the timer ---------------------------------------------------------

    @property
    def stored_mark_delete(self) -> Position:
        # A reset counts before it is stored: what it goes back to must not be deleted meanwhile,
        # and a store of before it may still be under way.
        return min(self._stored_mark_delete, self._state.mark_delete)

    def mark_dirty(self) -> None:
        self._timer.add(self)

    @property
    def dirty(self) -> bool:
        """True while something is not stored that could be."""
        return (
            not self._closed and self._lost is None and self._stored_version < self._state.version
        )

    def tick(self) -> None:
        """The flush interval has passed."""
        if self._ticks_to_skip > 0:
            self._ticks_to_skip -= 1
        else:
            self._flush()  # guarded: the timer has cursors of other logs after this one

    def flush_nowait(self) -> None:
        """Start to store what changed, if nothing is being stored now."""
        if self._busy or not self.dirty:
            return
        self._busy = True
        writer = self._writer
        if writer is None or self._doubtful or self._reset or self._ledger_full(writer):
            self._scope.spawn(self._roll(), "roll")
        else:
            self._store(writer)

    async def wait_stored(self) -> None:
        """Wait until all that changed before the call is durable. Raises what the attempt to
        store it failed with; it will be tried again with the next flush."""
        if self._lost is not None:
            raise self._lost
        if self._owned_for < self._state.out_of_log:
            await self._check_owned()
        if self._stored_version >= self._state.version:
            return
        if self._closed:
            raise LogClosedError(f"cursor {self.name} is closed")
        loop = asyncio.get_running_loop()
        waiter = loop.create_future()
        self._waiters.append((self._state.version, waiter))
        if len(self._waiters) == 1 and self._ticks_to_skip == 0:
            loop.call_soon(self._flush)
        await waiter

    async def _check_owned(self) -> None:
        """Something was acknowledged that our log does not hold. There is nothing to store for it,
        and so nothing that a later owner's fence could stop; but it may be that owner's, who has
        delivered it, and whose log this is by now. Raises ``LogFencedError``, ``MetadataError``."""
        asked_for = self._state.out_of_log  # others may wait for the same, and more may come
        try:
            await self._confirm_owned()
        except LogFencedError as error:
            self._on_lost(error)
            raise
        self._owned_for = max(self._owned_for, asked_for)

    # -- storing in the ledger at hand --------------------------------------------------------

    @property
    def _reset(self) -> bool:
        """It was reset, and the node does not say so yet."""
        return self._state.reset_epoch > self._node.record.reset_epoch

    def _ledger_full(self, writer: ChainWriter) -> bool:
        limits = self._limits
        return (
            writer.last_add_pushed + 1 >= limits.ledger_records_max
            or writer.length >= limits.ledger_bytes_max
        )

    def _snapshot_due(self) -> bool:
        least = self._limits.snapshot_delta_bytes_least
        return self._deltas >= self._limits.snapshot_deltas or self._delta_bytes > max(
            least, 4 * self._snapshot_bytes
        )

    def _store(self, writer: ChainWriter) -> None:
        state = self._state
        changes = state.take_changes()
        delta = None
        if changes is not None and not self._snapshot_due():
            delta = encode_delta(changes, self._base, self._limits.chunk_bytes_max)
        records = self._snapshot_records() if delta is None else [delta]
        first = writer.last_add_pushed + 1
        self._flight = _Flight(
            state.version, state.mark_delete, len(records), first, sum(map(len, records)), delta
        )
        writer.append(records, self._appended)

    def _snapshot_records(self) -> list[bytes]:
        limits = self._limits
        return encode_snapshot(self._state.snapshot(), self._base, limits.chunk_bytes_max)

    def _appended(
        self, error: MagnetarError | None, ledger_id: int, first: int, count: int
    ) -> None:
        flight = self._flight
        if flight is None:
            return
        if error is not None:
            self._flight = None
            self._failed(error)
            return
        flight.open_records -= count
        if flight.open_records > 0:
            return
        self._flight = None
        if flight.delta is None:
            self._base = flight.first
            self._snapshot_bytes, self._deltas, self._delta_bytes = flight.record_bytes, 0, 0
        else:
            self._deltas += 1
            self._delta_bytes += flight.record_bytes
        self._stored(flight.version, flight.mark_delete)

    # -- taking a new ledger ------------------------------------------------------------------

    async def _roll(self) -> None:
        try:
            await self._roll_ledger()
        except MagnetarError as error:
            self._failed(error)
        except asyncio.CancelledError:
            # Its scope has ended, or the process does: nobody else tells whoever waits for it, and
            # who closes this cursor would wait for ever.
            self._fail_waiters(LogClosedError(f"cursor {self.name} has ended unstored"))
            self._now_idle()
            raise

    async def _roll_ledger(self) -> None:
        former, self._writer = self._writer, None
        writer = await self._ledgers.create(custom={CURSOR_KEY: self.name.encode()})
        self._leaving[writer.ledger_id] = None
        self._state.take_changes()
        version, image = self._state.version, self._state.snapshot()
        records = encode_snapshot(image, -1, self._limits.chunk_bytes_max)
        await append_all(writer, records)
        try:
            await self._point_at(writer.ledger_id, image)
        except LogFencedError:
            await self._discard(writer.ledger_id)
            raise
        self._writer, self._base = writer, 0
        self._snapshot_bytes, self._deltas, self._delta_bytes = sum(map(len, records)), 0, 0
        self._stored(version, image.mark_delete)
        if former is not None:
            await self._retire(former)
        await self._delete_leftovers()

    async def _point_at(self, ledger_id: int, image: AckImage) -> None:
        def change(record: CursorRecord) -> CursorRecord:
            if record.ledger_id is not None:
                self._leaving[record.ledger_id] = None
            changed = replace(
                record,
                ledger_id=ledger_id,
                mark_delete=image.mark_delete,
                reset_epoch=image.reset_epoch,
                deleted=False,
            )
            return self._naming_leftovers(changed)

        await self._node.update(change)
        self._doubtful = False
        self._leaving.pop(ledger_id, None)

    def _naming_leftovers(self, record: CursorRecord) -> CursorRecord:
        """``record`` with what is to be deleted; never the ledger that it points at."""
        left = tuple(leaving for leaving in self._leaving if leaving != record.ledger_id)
        return replace(record, deleting=left)

    async def _discard(self, ledger_id: int) -> None:
        """The node was found to have another owner before it pointed at this new ledger: nobody
        else will delete it."""
        try:
            await delete_ledgers(self._ledgers, [ledger_id])
        except MagnetarError as error:
            log.warning(
                "cursor ledger left over", cursor=self.name, ledger=ledger_id, error=str(error)
            )

    async def _retire(self, writer: ChainWriter) -> None:
        """End the writer of a ledger that is about to be deleted."""
        try:
            await writer.close()
        except MagnetarError as error:
            log.info("former cursor ledger not closed", cursor=self.name, error=str(error))

    async def _delete_leftovers(self) -> None:
        """Delete the ledgers that the node says are left over. What fails stays named there;
        what is gone is left out of the node's next version."""
        for ledger_id in self._node.record.deleting:
            try:
                await delete_ledgers(self._ledgers, [ledger_id])
            except MagnetarError as error:
                log.warning(
                    "cursor ledger not deleted yet",
                    cursor=self.name,
                    ledger=ledger_id,
                    error=str(error),
                )
            else:
                self._leaving.pop(ledger_id, None)

    async def forget_leftovers(self) -> None:
        """Delete what a former owner, or opening, left over, and say so in the node. Nothing is
        stored meanwhile: a ledger that is about to be taken may be named as left over."""
        await self._wait_idle()
        if self._closed or self._lost is not None:
            return
        self._busy = True
        try:
            await self._delete_leftovers()
            await self._node.update(self._naming_leftovers)
        except LogFencedError as error:
            self._on_lost(error)
        except MagnetarError as error:
            log.warning("leftovers not forgotten yet", cursor=self.name, error=str(error))
        finally:
            self._now_idle()
            if self._waiters:
                self._flush()

    @property
    def any_left(self) -> bool:
        """The node names ledgers that may still be there."""
        return any(ledger_id in self._leaving for ledger_id in self._node.record.deleting)

    @property
    def stored_node(self) -> Versioned | None:
        """What the node holds; None if that is not known for certain."""
        doubtful = self._doubtful or self._lost is not None
        return None if doubtful else self._node.stored

    # -- who serves the subscription ----------------------------------------------------------

    @property
    def binding(self) -> Binding:
        return self._node.record.binding

    @property
    def term(self) -> int:
        """Each opening writes the node with an epoch of its own, but for one that was handed over,
        with all that its last owner had."""
        return self._node.record.epoch

    async def bind(self, binding: Binding) -> None:
        """Store ``binding`` in the node, beside whatever is being stored of the state."""
        if self._lost is not None:
            raise self._lost
        if self._closed:
            raise LogClosedError(f"cursor {self.name} is closed")
        try:
            await self._node.update(lambda record: replace(record, binding=binding))
        except LogFencedError as error:
            self._on_lost(error)
            raise

    # -- outcomes -----------------------------------------------------------------------------

    def _stored(self, version: int, mark_delete: Position) -> None:
        self._failures = 0
        self._stored_version = version
        self._stored_mark_delete = mark_delete
        self._now_idle()
        waiters, self._waiters = self._waiters, []
        for wanted, waiter in waiters:
            if waiter.done():
                continue
            if wanted <= version:
                waiter.set_result(None)
            else:
                self._waiters.append((wanted, waiter))
        self._on_stored()
        if self._waiters:
            self._flush()

    def _failed(self, error: MagnetarError) -> None:
        self._writer = None
        self._failures += 1
        self._ticks_to_skip = min(2**self._failures, RETRY_TICKS_MAX)
        log.warning("cursor not stored, will be retried", cursor=self.name, error=str(error))
        if isinstance(error, LedgerFencedError | LogFencedError):
            error = LogFencedError(f"cursor {self.name} belongs to another broker now: {error}")
            self._lost = error
            self._on_lost(error)
        self._fail_waiters(error)
        self._now_idle()

    def _task_failed(self, task: str, error: BaseException) -> None:
        """Storing has failed by a defect, in the middle of something: this cursor stores nothing
        more, and whoever waits for it is told, the log's end above all. Whoever opens the log again
        recovers what was stored."""
        self._lost = LogFencedError(f"cursor {self.name} ends: {defect(task, error)}")
        self._flight = None
        self._fail_waiters(self._lost)
        self._now_idle()
        self._on_lost(self._lost)

    def _now_idle(self) -> None:
        self._busy = False
        waiters, self._idle_waiters = self._idle_waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def _wait_idle(self) -> None:
        while self._busy:
            waiter = asyncio.get_running_loop().create_future()
            self._idle_waiters.append(waiter)
            await waiter

    # -- ending -------------------------------------------------------------------------------

    async def close(self) -> None:
        """Store what changed, in the ledger or in the node. Raises what failed."""
        try:
            if self._lost is None:
                self._ticks_to_skip = 0
                if not await self._stored_in_node():
                    await self.wait_stored()
        finally:
            self._closed = True
            await self._wait_idle()
            self._fail_waiters(LogClosedError(f"cursor {self.name} is closed"))
            writer, self._writer = self._writer, None
            if writer is not None and self._lost is None:
                await writer.close()
            self._let_go()

    async def _stored_in_node(self) -> bool:
        """At the end: a state that the mark-delete position says wholly goes into the node, so that
        the next owner, whose clients wait for it, has no ledger to open and to read. False if it
        says more, or if that fails: the ledger is there still."""
        await self._wait_idle()
        state, node = self._state, self._node
        if not state.simple or self._lost is not None:
            return False
        if node.record.ledger_id is None and not self.dirty:
            return True
        self._busy = True
        version, mark_delete, epoch = state.version, state.mark_delete, state.reset_epoch

        def change(record: CursorRecord) -> CursorRecord:
            if record.ledger_id is not None:
                self._leaving[record.ledger_id] = None
            # Closed by now: by a deletion, which holds unless it failed.
            deleted = record.deleted and self._closed
            changed = replace(record, mark_delete=mark_delete, reset_epoch=epoch, deleted=deleted)
            return self._naming_leftovers(replace(changed, ledger_id=None))

        writer, self._writer = self._writer, None
        retiring = [] if writer is None else [self._retire(writer)]
        try:
            outcome, *_ = await asyncio.gather(
                node.update(change), *retiring, return_exceptions=True
            )
            if isinstance(outcome, BaseException):
                raise outcome
        except MetadataError as error:
            log.info("cursor not stored in its node", cursor=self.name, error=str(error))
            self._now_idle()
            return False
        except LogFencedError as error:
            self._failed(error)
            raise
        except BaseException:  # cancelled: whoever waits until nothing is under way waits no longer
            self._now_idle()
            raise
        self._doubtful = False
        self._stored(version, mark_delete)
        return True

    async def mark_deleted(self) -> None:
        """Say in the node that the cursor is deleted; nothing is stored any more. When this fails
        the cursor goes on, and has something to store (see the module's text)."""
        was_closed, self._closed = self._closed, True
        try:
            await self._wait_idle()
            await self._node.update(lambda record: replace(record, deleted=True))
        except BaseException:
            self._closed, self._doubtful = was_closed, True
            self._stored_version = -1
            if self.dirty:
                self.mark_dirty()
            raise
        self._writer = None
        self._fail_waiters(LogClosedError(f"cursor {self.name} was deleted"))
        self._let_go()

    def _let_go(self) -> None:
        """Nothing is stored any more: what leads back here would be a cycle."""
        self._flush = nothing
        self._scope.release()

    async def finish_deletion(self) -> None:
        """After ``mark_deleted``: delete the cursor's ledgers, then its node. May be repeated."""
        await finish_deletion(self._ledgers, self._node, self._node.record, tuple(self._leaving))

    def _fail_waiters(self, error: MagnetarError) -> None:
        waiters, self._waiters = self._waiters, []
        for _, waiter in waiters:
            if not waiter.done():
                waiter.set_exception(error)


@dataclass(slots=True)
class _Flight:
    """A store under way."""

    version: int
    mark_delete: Position
    open_records: int
    first: int
    record_bytes: int
    delta: bytes | None


async def append_all(writer: ChainWriter, records: Sequence[bytes]) -> None:
    """Append ``records`` and wait until all are confirmed."""
    finished = asyncio.get_running_loop().create_future()
    left = len(records)

    def done(error: MagnetarError | None, ledger_id: int, first: int, count: int) -> None:
        nonlocal left
        left -= count
        if finished.done():
            return
        if error is not None:
            finished.set_exception(error)
        elif left <= 0:
            finished.set_result(None)

    writer.append(records, done)
    await finished


async def delete_ledgers(ledgers: Ledgers, ledger_ids: Sequence[int]) -> None:
    """Delete ledgers that may be gone already."""
    for ledger_id in ledger_ids:
        try:
            await ledgers.delete(ledger_id)
        except NoSuchLedgerError:
            continue


async def finish_deletion(
    ledgers: Ledgers,
    node: RecordNode[CursorRecord],
    record: CursorRecord,
    others: Sequence[int] = (),
) -> None:
    """Delete a cursor whose node says that it is deleted."""
    own = () if record.ledger_id is None else (record.ledger_id,)
    await delete_ledgers(ledgers, (*record.deleting, *own, *others))
    await node.delete()
