"""A partition as ``log.seam.WritableLog``: what its leader's replica holds, as entries.

Owns the way of appends (wrapped or as they came, placed by the lane, answered when they are
committed), reading, retention, and the end of it all when another leads.

Invariants beside those of the seam:

* What may be read is what is committed: ``places`` grows with the high watermark, and with nothing
  else.
* Outcomes come in the order of the appends, though what was refused is known before what waits for
  followers. What comes behind a refused one before that was told is refused too.
* Appends that wait for this replica alone (``Content.awaits_all``) are told as soon as it has
  stored them, whatever those before them wait for: they may be lost with it.
* It leads one epoch. When the replica leads another one, or none, the log is lost
  (``LogFencedError``), whoever opened it again.

Why: docs/adr/0111-partitions-behind-the-seam.md,
docs/adr/0199-nothing-is-appended-behind-a-refusal.md.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, Protocol

import structlog

from magnetar.env.tasks import TaskScope, defect, fails
from magnetar.log.ack_store import AckStore
from magnetar.log.partition.batch_header import read_header
from magnetar.log.partition.group_append import FULL, Outcome
from magnetar.log.partition.hosting import HostedReplica, Rewritten
from magnetar.log.partition.limits import Kept
from magnetar.log.partition.local_log import Appended
from magnetar.log.partition.replication.leader import AppendOutcome
from magnetar.log.partition.serving.envelopes import ENVELOPE, just_wrapped, wrap
from magnetar.log.partition.serving.epochs import PartitionEpochs
from magnetar.log.partition.serving.front import PartitionFront
from magnetar.log.partition.serving.keeping import kept_of
from magnetar.log.partition.serving.no_table import NoCompaction, NoTable, NoTermination
from magnetar.log.partition.serving.opening import PartitionOpening
from magnetar.log.partition.serving.positions import PartitionPositions
from magnetar.log.partition.serving.producers import PartitionProducers
from magnetar.log.partition.serving.stored_entries import HeldEntries, read_entries
from magnetar.log.partition.serving.tail import PartitionTail
from magnetar.log.policy import LogPolicy
from magnetar.log.seam import (
    AppendDone,
    Buffer,
    Checkpoints,
    Content,
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
    Run,
    Stamp,
    TabledLedgers,
    Termination,
)
from magnetar.log.watching import ReadableWatch
from magnetar.model.entry import Entry
from magnetar.model.errors import (
    CorruptBatchError,
    EntryDamagedError,
    ImplausibleMessageError,
    LogClosedError,
    LogError,
    LogFencedError,
    MagnetarError,
    NoEntryError,
    NoSpaceError,
    NotEnoughReplicasAfterAppendError,
    OffsetOutOfRangeError,
    ServiceNotReadyError,
)
from magnetar.model.ids import Position

log = structlog.get_logger(__name__)

READ_BYTES_LEAST: Final = 64 << 10
"""What is read of a file at once, however little is asked for: whoever reads on finds it cached by
the system."""
DRAIN_S: Final = 5.0
"""How long a log that is closed waits for its followers."""


class LogCompany(Protocol):
    """What belongs to a log beside its entries, whatever its engine: kept by who opened it."""

    cursors: Cursors
    checkpoints: Checkpoints
    holds: Holds

    def stores(self) -> Iterable[AckStore]:
        """Of the durable cursors."""
        ...

    def needed_from(self, *, counted: bool) -> list[Position]:
        """Positions at or after which somebody still needs what the log holds: ``counted``, by the
        checkpoint that a later owner would find, else by that of now."""
        ...

    async def count(self) -> None:
        """The checkpoint of now is stored when it returns. Raises ``LogFencedError``,
        ``MetadataError``."""
        ...

    def pass_over(self, front: Position) -> None:
        """What is before ``front`` was deleted, whoever had acknowledged it."""
        ...

    def passed(self, first: int, end: int) -> None:
        """Between these offsets batches were taken out of the log."""
        ...

    @property
    def created_ms(self) -> int: ...

    def tick(self) -> None:
        """Some time has passed."""
        ...

    async def close(self, lost: bool) -> list[MagnetarError]:
        """Store the cursors, hand them over. What could not be done; nothing is written if the log
        is ``lost``."""
        ...


@dataclass(slots=True, eq=False)
class _Append:
    """One on its way. ``last_offset``: of what was placed, inclusive."""

    done: AppendDone
    stamp: Stamp | None
    sizes: Sequence[int]
    """Of its payloads, in bytes; ``size``: in all."""
    size: int
    awaits_all: bool
    placed: bool = False
    refused: bool = False
    """Nothing could be appended then: whatever it was, not for what was in it."""
    last_offset: int = -1
    runs: tuple[Run, ...] = ()
    error: MagnetarError | None = None


class PartitionLog:
    """Implements ``log.seam.WritableLog``. Made by ``engines.PartitionLogStore``."""

    followable = False
    owns_sequences = True

    def __init__(
        self,
        name: str,
        hosted: HostedReplica,
        epoch: int,
        found: HeldEntries,
        tail: PartitionTail,
        policy: LogPolicy,
        now_ms: Callable[[], int],
    ) -> None:
        self.name = name
        self.epoch = epoch
        self.lost: LogFencedError | None = None
        self.places = found.places
        self.positions: Positions = PartitionPositions(found.places)
        self.tabled: TabledLedgers = NoTable(name)
        self.termination: Termination = NoTermination(name)
        self.end: LogEnd = self.termination
        self.compaction: KeyCompaction = NoCompaction(self)
        self.front: LogFront = PartitionFront(
            hosted, found.places, self.require_open, self._count_before, self._begins_later
        )
        self.epochs: LogEpochs = PartitionEpochs(hosted, self.require_open)
        self.producers: LogProducers | None = PartitionProducers(hosted, self.require_open)
        self.opening: Opening = PartitionOpening(hosted, found.places, self.require_open)
        self.cursors: Cursors
        self.checkpoints: Checkpoints
        self.holds: Holds
        self._company: LogCompany
        """Joins before anybody has the log."""
        self._hosted = hosted
        self._uncommitted = deque(found.uncommitted)
        self._tail = tail
        self.scope = TaskScope(f"log/{name}", fails(self.task_failed))
        self._policy = policy
        self._limits = hosted.source.limits
        self._now_ms = now_ms
        self._watch = ReadableWatch()
        self._lost_watchers: list[Callable[[LogFencedError], None]] = []
        self._appends: deque[_Append] = deque()
        self._alone: dict[_Append, None] = {}
        """Those that wait for this replica's own copy, in the order of the appends."""
        self._told_alone = False
        self._pending_bytes = 0
        self._drained = asyncio.Event()
        self._drained.set()
        self._closed = False
        self._trimming = False
        self._loop = asyncio.get_running_loop()
        self._unwatch = hosted.watch(self._advance)
        hosted.told_rewritten = self._rewritten
        self.watch_readable = self._watch.watch
        self._cut_segments()
        self._advance()

    def join(self, company: LogCompany) -> None:
        """What belongs to the log beside its entries."""
        self._company = company
        self.cursors = company.cursors
        self.checkpoints = company.checkpoints
        self.holds = company.holds

    # -- appending ----------------------------------------------------------------------------

    @property
    def pending_bytes(self) -> int:
        return self._pending_bytes

    def append(
        self, payloads: Sequence[Buffer], done: AppendDone, content: Content | None = None
    ) -> None:
        """See the seam."""
        stamp = None if content is None else content.stamp
        awaits_all = content is None or content.awaits_all
        sizes = list(map(len, payloads))
        append = _Append(done, stamp, sizes, sum(sizes), awaits_all)
        before = self._appends[-1] if self._appends else None
        if awaits_all:
            self._appends.append(append)
        else:
            self._alone[append] = None
        self._pending_bytes += append.size
        self._drained.clear()
        try:
            self._check_append(append, before)
            batches = self._batches(payloads, content)
        except MagnetarError as error:
            append.placed, append.error = True, error
            # behind those that came before it
            self._loop.call_soon(*((self._answer,) if awaits_all else (self._told, append)))
            return
        self._hosted.append(batches, self.epoch, partial(self._placed, append, batches))

    def _check_append(self, append: _Append, before: _Append | None) -> None:
        """Raises why nothing can be appended now. One that is refused may have to wait for its
        turn to be told so; until then its producer sends on, and what comes behind it is refused
        with it. Else the log would hold the later ones without it, and it, which is sent again,
        behind them."""
        try:
            self.require_open()
            if append.awaits_all and before is not None and before.refused:
                assert before.error is not None, "a refusal says why"
                raise before.error
            self._hosted.room.check()
            leader = self._hosted.machine.leader
            if leader is not None and append.awaits_all:
                leader.check_append()
            elif leader is not None:
                self._warn(len(leader.state.replicas))
        except MagnetarError:
            append.refused = True
            raise

    def _warn(self, replicas: int) -> None:
        """Once: what a producer has chosen is nobody's secret."""
        if replicas > 1 and not self._told_alone:
            self._told_alone = True
            log.warning(
                "a producer waits for this broker's copy alone (acks 0 or 1): what it is told is "
                "stored is lost if this broker is lost before a follower has fetched it",
                log=self.name,
                replicas=replicas,
            )

    def _batches(self, payloads: Sequence[Buffer], content: Content | None) -> list[bytearray]:
        """Copies, since the buffers are valid during the call only."""
        if content is not None and content.stamp is not None:
            batch = bytearray(payloads[0])
            if read_header(batch).attributes & ENVELOPE:
                raise ImplausibleMessageError("a batch has attributes that no producer sets")
            return [batch]
        now_ms = self._now_ms()
        if content is None:
            return [wrap(payload, 1, now_ms) for payload in payloads]
        return [
            wrap(payload, messages, time_ms or now_ms)
            for payload, messages, time_ms in zip(
                payloads, content.messages, content.publish_times_ms, strict=True
            )
        ]

    def _placed(
        self, append: _Append, batches: Sequence[bytearray], outcomes: Sequence[Outcome]
    ) -> None:
        """The lane has them, or has refused them."""
        runs: list[list[int]] = []
        run = [-1, -1, 0]
        offsets: list[int] = []
        entries: list[Entry] = []
        position = self.places.position
        for batch, size, outcome in zip(batches, append.sizes, outcomes, strict=True):
            if not isinstance(outcome, Appended):
                append.error = append.error or outcome
                append.refused = append.refused or isinstance(outcome, NoSpaceError)
                continue
            first, last, repeated, time_ms = outcome
            append.last_offset = max(append.last_offset, last)
            ledger_id, entry_id = position(first)
            if append.error is None:
                if ledger_id != run[0] or entry_id != run[1] + run[2]:
                    run = [ledger_id, entry_id, 0]
                    runs.append(run)
                run[2] += 1
            data, start = memoryview(batch), 0
            if append.stamp is not None:
                append.stamp.base_offset = first
                append.stamp.leader_epoch = self.epoch
                append.stamp.repeated_ms = time_ms
            else:
                data, start = just_wrapped(batch, size)
            if not repeated:
                self._uncommitted.append((first, last + 1))
                offsets.append(first)
                entries.append(Entry(ledger_id, entry_id, data, start))
        if entries:
            self._tail.add(offsets, entries)
        append.runs = tuple([Run(*each) for each in runs])
        append.placed = True
        if not append.awaits_all:
            leader = self._hosted.machine.leader
            stored = leader is not None and leader.stored_here(append.last_offset)
            assert stored or append.error is not None, "a group is told when it is stored"
            self._told(append)

    def _told(self, append: _Append) -> None:
        """Of one that waits for this replica's own copy."""
        if append in self._alone:  # else it was told that the log is lost
            del self._alone[append]
            self._pending_bytes -= append.size
            append.done(append.error, append.runs)
            self._tell_drained()

    def _tell_drained(self) -> None:
        if not (self._appends or self._alone):
            self._drained.set()

    def _advance(self) -> None:
        """The high watermark may have moved, or another leads."""
        if self.lost is None and self._hosted.leader_epoch != self.epoch:
            self._lose(
                LogFencedError(
                    f"log {self.name} is led in another epoch than {self.epoch}: another broker "
                    "owns it, or it was opened again"
                )
            )
            return
        committed = self._hosted.high_watermark
        grew = False
        waiting = self._uncommitted
        while waiting and waiting[0][1] <= committed:
            self.places.add(*waiting.popleft())
            grew = True
        self._answer()
        if grew:
            self._watch.grew()

    def _answer(self) -> None:
        """Those whose outcome is known, and all of those before them."""
        appends, end = self._appends, self.places.end
        while appends and appends[0].placed:
            append = appends[0]
            if append.last_offset >= end and not self._too_few(append):
                break
            appends.popleft()
            self._pending_bytes -= append.size
            append.done(append.error, append.runs)
        self._tell_drained()

    def _too_few(self, append: _Append) -> bool:
        leader = self._hosted.machine.leader
        if leader is None or leader.outcome(append.last_offset) is not AppendOutcome.TOO_FEW:
            return False
        append.runs = ()
        append.error = NotEnoughReplicasAfterAppendError(
            f"log {self.name}: appended, and too few replicas are in sync; it may be lost"
        )
        return True

    # -- being lost ---------------------------------------------------------------------------

    def lose(self, error: LogFencedError) -> None:
        """Another broker owns the log, as something beside its entries has shown."""
        if self.lost is None:
            self._lose(error)

    def _lose(self, error: LogFencedError) -> None:
        self.lost = error
        self._unwatch()
        self._give_up(error)
        watchers, self._lost_watchers = self._lost_watchers, []
        for lost in watchers:
            self._loop.call_soon(lost, error)

    def _give_up(self, error: LogError) -> None:
        """Whoever waits is told that the outcome is not known here."""
        appends = [*self._appends, *self._alone]
        self._appends.clear()
        self._alone.clear()
        self._pending_bytes = 0
        self._drained.set()
        for append in appends:
            append.error = append.error or error
            self._loop.call_soon(append.done, append.error, ())

    def watch_lost(self, lost: Callable[[LogFencedError], None]) -> None:
        """See the seam."""
        if self.lost is not None:
            self._loop.call_soon(lost, self.lost)
        else:
            self._lost_watchers.append(lost)

    def task_failed(self, task: str, error: BaseException) -> None:
        """Something that the log needs has ended: the log ends as if it were taken from us."""
        self.lose(LogFencedError(f"log {self.name} ends: {defect(task, error)}"))

    def require_open(self) -> None:
        """Raises ``LogFencedError``, ``LogClosedError``."""
        if self.lost is not None:
            raise self.lost
        if self._closed:
            raise LogClosedError(f"log {self.name} is closed")

    # -- reading ------------------------------------------------------------------------------

    def read_cached(self, start: Position, max_entries: int, max_bytes: int) -> list[Entry] | None:
        """See the seam."""
        places = self.places
        if self._closed:
            return None  # ``read`` says so
        offset = places.following(places.offset(start))
        if offset >= places.end or max_entries <= 0:
            return []
        return self._tail.read(offset, places.end, max_entries, max_bytes)

    async def read(self, start: Position, max_entries: int, max_bytes: int) -> list[Entry]:
        """See the seam. Raises ``LogClosedError``, ``NoEntryError``, ``EntryDamagedError``,
        ``LogError``."""
        places, source = self.places, self._hosted.source
        while True:
            if self._closed:
                raise LogClosedError(f"log {self.name} is closed")
            found = self.read_cached(start, max_entries, max_bytes)
            if found is not None:
                return found
            offset, end = places.following(places.offset(start)), places.end
            try:
                found = await self._hosted.run(
                    partial(read_entries, source, places, offset, end, max_entries, max_bytes)
                )
            except OffsetOutOfRangeError as error:
                if offset >= source.first_base:
                    raise NoEntryError(f"log {self.name}: {error}") from error
                places.trim(source.first_base)  # it was trimmed meanwhile
                continue
            except (OSError, CorruptBatchError) as error:
                damaged = isinstance(error, CorruptBatchError)
                kind = EntryDamagedError if damaged else LogError
                raise kind(f"log {self.name} cannot be read at {offset}: {error}") from error
            if found:
                return found
            if places.following(places.offset(start)) == offset:
                raise NoEntryError(f"log {self.name}: nothing was read at offset {offset}")

    async def first_at(self, time_ms: int) -> Position:
        """See the seam."""
        places, source = self.places, self._hosted.source
        if self._closed:
            raise LogClosedError(f"log {self.name} is closed")
        if time_ms <= 0:
            return self.positions.first
        beyond = places.end  # what comes while a thread reads may not have been looked at
        try:
            header = await self._hosted.run(partial(source.first_at, time_ms))
        except (OSError, CorruptBatchError) as error:
            raise LogError(f"log {self.name} cannot be searched: {error}") from error
        if header is None:
            return places.position(beyond)
        if header.base_offset >= places.end:
            return places.position(places.end)
        return places.position(places.following(header.base_offset))

    # -- what is kept -------------------------------------------------------------------------

    def set_policy(self, policy: LogPolicy) -> None:
        """See the seam."""
        self._policy = policy
        self._cut_segments()
        self.trim_nowait()

    def _cut_segments(self) -> None:
        """As the policy says, from the appends on that come now. (Followers cut theirs as they are
        configured, until they lead.)"""
        source, said = self._hosted.source, self._policy.pieces
        limits = source.policy.segments.with_bounds(said.bytes_max, said.age_ms_max)
        if limits != self._limits and not self._closed and self.lost is None:
            self._limits = limits
            self._hosted.lane.submit(partial(source.cut_by, limits))

    def tick(self) -> None:
        """Some time has passed."""
        if not self._closed and self.lost is None:
            self.trim_nowait()
            self._company.tick()

    def trim_nowait(self) -> None:
        """Let go what neither retention nor anybody who reads needs any more."""
        retention = self._policy.retention
        unused = self._closed or self._trimming or self.lost is not None or not self.places.entries
        if unused or retention.everything or not self._policy.cleanup.deletes:
            return
        self._trimming = True
        self.scope.spawn(self._trim(), "trim")

    def _needed_end(self, *, counted: bool) -> int:
        """Nobody needs what is before it."""
        needed = map(self.places.offset, self._company.needed_from(counted=counted))
        return min([self.places.end, *needed])

    async def _count(self, kept: Kept, now_ms: int) -> None:
        """What is about to go is counted first by the checkpoint that a later owner would find:
        else it would look for that in vain. (Nothing else writes it all the time.)"""
        source, end = self._hosted.source, self._needed_end(counted=False)
        if end <= self._needed_end(counted=True):
            return
        if await self._hosted.run(lambda: source.lets_go(kept, committed_end=end, now_ms=now_ms)):
            try:
                await self._company.count()
            except LogFencedError as error:
                self.lose(error)
            except MagnetarError as error:  # what it counts already goes
                log.info("checkpoint not stored", log=self.name, error=str(error))

    async def _count_before(self, offset: int) -> None:
        """Records before it are to be deleted; as ``_count``. Raises what storing does, and
        ``ServiceNotReadyError``: some are still to be counted."""
        if self.checkpoints.stored is None:
            return
        try:
            await self._company.count()
        except LogFencedError as error:
            self.lose(error)
            raise
        stored, places = self.checkpoints.stored, self.places
        if stored is not None and places.following(places.offset(stored.position) + 1) < offset:
            raise ServiceNotReadyError(
                f"log {self.name} is taking in what queries have staged, from {stored.position} "
                "on; delete records again in a moment"
            )

    async def _trim(self) -> None:
        source, now_ms = self._hosted.source, self._now_ms()
        kept = kept_of(self._policy)
        try:
            await self._count(kept, now_ms)
            end = self._needed_end(counted=True)
            await self._hosted.run(lambda: source.let_go(kept, committed_end=end, now_ms=now_ms))
        except OSError as error:
            if error.errno not in FULL:
                self._hosted.fail(error)
                return
            log.warning("trimming is not finished", log=self.name, error=str(error))
        finally:
            self._trimming = False
        self._trimmed()

    def _rewritten(self, what: Rewritten) -> None:
        """Compaction has taken batches."""
        if self._closed or self.lost is not None:
            return
        self.places.replace(what.first, what.end, what.starts)
        if self._tail.begins_before(what.end):
            self._tail.clear()  # it has what is gone
        self._company.passed(what.first, what.end)

    def _begins_later(self) -> None:
        """Records were deleted."""
        self._trimmed()
        self._company.pass_over(self.positions.first)

    def _trimmed(self) -> None:
        source, leader = self._hosted.source, self._hosted.machine.leader
        self.places.trim(source.first_base)
        if leader is not None:
            leader.trimmed(source.first_base)

    # -- stats, ending ------------------------------------------------------------------------

    def stats(self) -> LogStats:
        """See the seam. What it calls ledgers are spans of offsets."""
        source, places = self._hosted.source, self.places
        stored_bytes = source.byte_count if places.entries else 0
        times = [each.greatest[0] for each in source.segments]
        spans = places.entries_by_ledger()
        ledgers = tuple(
            LedgerStats(
                ledger,
                entries,
                stored_bytes // len(spans),
                "open" if ledger == spans[-1][0] else "closed",
                0,  # nothing keeps it: a segment knows the time of its first batch, not the least
                max(times, default=0),
            )
            for ledger, entries in spans
        )
        deletes = self._policy.cleanup.deletes and not self._policy.retention.everything
        return LogStats(
            self.name,
            places.entries,
            stored_bytes,
            ledgers,
            self.positions.readable,
            {name: each.mark_delete for name, each in self.cursors.durable().items()},
            places.position(places.start - 1),
            self._company.created_ms,
            self.holds.all(),
            deletes and places.entries > 0 and not self._closed,
            on_ledgers=False,
        )

    @property
    def closed(self) -> bool:
        return self._closed

    async def abandon(self) -> None:
        """End without finishing anything (opening failed)."""
        self._closed = True
        self._unwatch()
        await self.scope.close()

    async def close(self) -> None:
        """See the seam. Raises what could not be finished, after everything was tried."""
        if self._closed:
            return
        self._closed = True  # from here on appends are refused; those before have their outcomes
        try:
            await self._finish()
        except asyncio.CancelledError:
            # Given up: nothing runs on, or is begun, over what its owner closes next.
            self.lose(LogFencedError(f"log {self.name} was given up here; ask another"))
            self.scope.cancel()
            raise

    async def _finish(self) -> None:
        try:
            async with asyncio.timeout(DRAIN_S):
                await self._drained.wait()
        except TimeoutError:
            # Followers are away, or the disk hangs. Whoever is to have the topic next must not wait
            # for them: it decides what is committed.
            self._give_up(
                LogClosedError(
                    f"log {self.name} is closed here, and what was appended was not on all "
                    f"replicas in sync within {DRAIN_S:.0f} s: it may be stored or not; send it "
                    "again"
                )
            )
        self._unwatch()
        errors = await self._company.close(self.lost is not None)
        await self.scope.close()
        self._tail.clear()
        if errors and self.lost is None:
            raise LogError(
                f"log {self.name} was not closed cleanly; the next opening recovers it: "
                + "; ".join(str(error) for error in errors)
            ) from errors[0]
