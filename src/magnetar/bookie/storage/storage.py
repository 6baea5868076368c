"""One ledger directory: write cache, flushes, entry logs, location index, reads.

The way of an entry through here: ``put`` (loop) -> active half -> ``flush``: the half is swapped
on the loop, then the flush lane appends its entries to the entry log, sorted, syncs it, writes
their locations and the ledgers' records to the index, syncs that, moves the mark -> the half is
let go.

Invariants:

* Everything queued to a journal was put here (entries, dirty ledgers, deletions) before that
  journal's ``committed`` could pass it. ``flush`` takes the positions and the state in the same
  turn of the loop, so a mark never passes what is not flushed, in this directory or (each has its
  own marks) in any other.
* A flush with no entries still writes dirty ledgers before it moves the mark: fences and master
  keys of empty ledgers survive.
* One flush at a time. One that failed is repeated with the same half. If it failed in the entry
  log, into a new one: after a failed sync nothing written to the old one is trusted. If all of it
  was in entry logs, durably, only what comes after that is repeated, as long as these logs are not
  settled.
"""

from __future__ import annotations

import asyncio
import time
from bisect import bisect_left
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import NamedTuple, Protocol, TypeVar

import structlog

from magnetar.bookie.journal.journal_format import JournalPosition
from magnetar.bookie.storage.entry_log import EntryLogReader, EntryLogWriter, LogIds
from magnetar.bookie.storage.entry_log_format import RECORD_HEADER_BYTES, log_path
from magnetar.bookie.storage.entry_runs import NO_ENTRIES, RecordRun
from magnetar.bookie.storage.ledger_record import decode_record, record_deleted
from magnetar.bookie.storage.location_index import (
    BATCH_ENTRIES_MAX,
    BATCH_MAX,
    LocationIndex,
)
from magnetar.bookie.storage.location_runs import LocationRun, batches, runs_of
from magnetar.bookie.storage.lookups import Found, Lookups
from magnetar.bookie.storage.marks import MarkFile, Marks
from magnetar.bookie.storage.page_window import PageWindow
from magnetar.bookie.storage.reclaim import Reclaimer
from magnetar.bookie.storage.write_cache import EntryColumns, WriteCache, WriteHalf
from magnetar.config import BookieConfig
from magnetar.env.files.disk import Disk
from magnetar.model.errors import BookieIOError
from magnetar.wire.bookie.availability import Condenser, Group

log = structlog.get_logger(__name__)

T = TypeVar("T")

READ_LANES = 2
CHUNK_BYTES_MAX = 256 << 10
PACED_FILL_MAX = 0.5
"""A flush rests while it is on its way to end before the active half is so full: before the next
flush is due."""
REST_SHARE = 8
"""Times as long as it has worked: it needs the interpreter, as the loop does, which may have three
quarters of it at work."""
REST_S_MAX = 0.02
"""After a slow sync a flush looks again soon whether there is still time to rest."""
SYNC_BYTES = 4 << 20
"""Written between syncs of an entry log: one large sync would hold up the journal's on the same
device."""
RANDOM_READ_BYTES = 64 << 10
"""Read ahead for a reader that is not known to move forward, or while it is not known how large
the ledger's entries are."""
LISTED_AT_ONCE = 1000
ENTRIES_LISTED_AT_ONCE = 4000
"""Of one ledger; a read that comes meanwhile waits for one piece, some milliseconds."""
LOCATED_AT_ONCE = 200
"""Ledgers; a read that comes meanwhile waits for one piece, 2 ms."""
FREED_AT_ONCE = 2000
"""Ledgers of a flush."""
ENCODED_AT_ONCE = 200
"""Records of ledgers in one turn of the loop: half a millisecond, a whole one of what is not in the
core's caches."""
ENCODE_PAUSE_S = 0.002
"""Between two such turns."""
SORTED_AT_ONCE = 2000
"""Entries of a flush; a ledger that has more is sorted whole."""
READERS_KEPT_MAX = 256
"""Expected next reads, and sizes of a ledger's entries, that a lane remembers."""


_GOLDEN = 0x9E3779B97F4A7C15


def read_lane(ledger_id: int) -> int:
    """Which of a directory's read lanes serves the ledger. The id is mixed (Fibonacci hashing,
    Knuth 6.4), for a directory holds the ids of one remainder: with an even number of directories
    all of them are odd, or all even, and ``% READ_LANES`` would leave a lane without work."""
    return ((ledger_id * _GOLDEN & 0xFFFFFFFFFFFFFFFF) >> 32) % READ_LANES


class Encodable(Protocol):
    """What a flush knows of a ledger: its record."""

    def encode(self) -> bytes: ...


class FlushWork(NamedTuple):
    """What one flush takes with it."""

    half: WriteHalf
    records: list[tuple[int, bytes]]
    deleted: list[int]
    revived: list[tuple[int, bytes]]


class _Appended(NamedTuple):
    """A half that lies in entry logs, durably, as ``runs`` say."""

    half: WriteHalf
    runs: list[LocationRun]


class LedgerStorage:
    """A ledger directory. Methods are called on the loop unless they say otherwise."""

    def __init__(
        self,
        index: int,
        path: Path,
        disk: Disk,
        config: BookieConfig,
        half_bytes_max: int,
        open_index: Callable[[Path], LocationIndex] = LocationIndex,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.index = index
        self.path = path
        self.cache = WriteCache(half_bytes_max)
        self.dirty: dict[int, Encodable] = {}
        """Ledgers whose records changed since the last flush, but those in ``_encoded``."""
        self._encoded: dict[int, bytes] = {}
        """Records as the next flush writes them, of ledgers that have not changed since."""
        self._writing: dict[int, bytes] = {}
        """Records of a flush that is under way or has failed."""
        self.deleted: dict[int, None] = {}
        self.revived: dict[int, Encodable] = {}
        """Ledgers that were deleted, and brought back since the last flush."""
        self._journaled: dict[int, None] = {}
        """Those of them of which the journal knows, durably, and those of a flush under way."""
        self.strays: frozenset[int] | None = None
        """Ledgers with entries in the index and no record, as the last life left them: a flush that
        a crash cut short had written entries that no journal has. None: not looked for yet."""
        self.flush_lane = disk.lane(f"flush-{index}")
        self.settled_id = 0
        """Logs with smaller ids are closed, and all of them that is of use is in the index. The
        flush lane's."""
        self._disk = disk
        self._config = config
        self._open_index = open_index
        self._sleep = sleep
        self.hurried = False
        """The bookie is about to end: no flush rests any more."""
        self._mark_file = MarkFile(disk, path)
        self._opened = self._closed = False
        self._work: FlushWork | None = None
        self._flushing: asyncio.Future[None] | None = None
        """The job of ``_work`` in the flush lane, while it is under way."""
        self._appended: _Appended | None = None
        """Of a flush that failed behind its entry logs: what is repeated of it is the rest, or each
        try would fill the disk further. The flush lane's."""
        self._in_vain: set[int] = set()
        """Logs of flushes that failed, which could not be removed yet. The flush lane's."""
        self._read_lanes = [disk.lane(f"read-{index}-{n}") for n in range(READ_LANES)]
        self._readers = [EntryLogReader(disk, path) for _ in range(READ_LANES)]
        self._lookup_lane = disk.lane(f"lookup-{index}")
        self._lookups = Lookups(
            self._lookup_lane, lambda ledger_id: self.location_index.ledger(ledger_id)
        )
        self._following: list[dict[tuple[int, int], None]] = [{} for _ in range(READ_LANES)]
        self._entry_bytes: list[dict[int, int]] = [{} for _ in range(READ_LANES)]

    def open(self, count: int, journals: int) -> None:
        """Blocking. ``count``: ledger directories; ``journals``: journal directories."""
        self._disk.make_dir(self.path)
        self.marks: Marks = self._mark_file.load(self.index, count, journals)
        self.location_index = self._open_index(self.path / "index")
        try:
            self._check_index()
            # Before anything is written to the index: it would look as if nothing was missing.
            self._mark_file.store(self.marks)
            if moved := self.location_index.separate_deleted():
                log.info("records of deleted ledgers set apart", path=str(self.path), count=moved)
            self._open_logs()
        except BaseException:
            self.location_index.close()
            raise
        self._opened = True

    def _open_logs(self) -> None:
        self._pages = PageWindow(self._disk, self._config.entry_log_cached_bytes_max)
        self.reclaimer = Reclaimer(self._disk, self.path, self.location_index, self._close_removed)
        self.log_ids = LogIds(self.reclaimer.open())
        self.settled_id = self.log_ids.next_id
        self._log = EntryLogWriter(
            self._disk,
            self.path,
            self._config.entry_log_bytes_max,
            self.log_ids,
            self.reclaimer.add,
        )

    def _check_index(self) -> None:
        """Is the index the one that the mark was written with, and whole? What it lacks is
        denied, and fences are forgotten, so a directory that lost some of it goes into limbo.
        Raises ``BookieIOError`` if it lost all."""
        index, marks = self.location_index, self.marks
        empty = index.empty
        if empty and marks.index_sequence:
            raise BookieIOError(
                f"the location index {index.path} is empty, but {self.path} is in use: it was "
                "removed or replaced, and without it the bookie would deny entries that it "
                "acknowledged. Restore it; if it is lost, have it repaired from the others "
                "(magnetar bookie recover), then start an empty bookie"
            )
        if marks.index_sequence > index.sequence:
            log.error(
                "location index damaged: it lacks changes that were durable; negative answers are "
                "withheld until the bookie is repaired",
                path=str(index.path),
                changes=index.sequence,
                durable_changes=marks.index_sequence,
            )
        elif empty or self._mark_file.whole:
            return
        else:
            log.error(
                "lastmark damaged or gone: what it said of losses is not known; negative answers "
                "are withheld until the bookie is repaired",
                path=str(self._mark_file.path),
            )
        epochs = [decode_record(*row).epoch for row in index.ledgers()]
        marks = replace(marks, index_sequence=index.sequence)
        self.marks = marks.in_limbo(max(epochs, default=0) + 1)

    def enter_limbo(self) -> None:
        """Blocking. Remember durably that "no" is not certain any more."""
        self.marks = self.marks.in_limbo()
        self._mark_file.store(self.marks)

    async def leave_limbo(self) -> None:
        """What was lost has been restored from other bookies."""
        await self.flush_lane.run(self._leave_limbo)

    def _leave_limbo(self) -> None:
        self.marks = self.marks.repaired()
        self._mark_file.store(self.marks)

    async def close(self) -> None:
        self._closed = True
        for lane in (*self._read_lanes, self._lookup_lane):
            await lane.close()
        if self._opened:
            await self.flush_lane.run(self._close_files)
        await self.flush_lane.close()

    def _close_files(self) -> None:
        for reader in self._readers:
            reader.close()
        try:
            self._log.finish()
        except (OSError, BookieIOError) as error:  # the footer only saves reading the log through
            log.error("entry log closed without its footer", path=str(self.path), error=str(error))
            self._log.abandon()
        if self._work is None:  # else the log has what a flush that failed has left in it
            self.reclaimer.settle(self.log_ids.next_id)
        self.location_index.close()

    # -- flushing -----------------------------------------------------------------------------

    async def flush(self, positions: Sequence[JournalPosition]) -> None:
        """Write what the cache holds, then move the marks to ``positions``, which the caller
        took in this same turn of the loop. Raises ``BookieIOError``; what was not flushed stays
        in the cache and the marks stay."""
        if self._work is not None:  # the last flush failed: that half goes first, marks stay
            await self._flush_work(self._work, None)
        else:
            self._work = self.take_work()
            await self._flush_work(self._work, positions)

    @property
    def has_failed_work(self) -> bool:
        """A flush failed or was cut short; the next one repeats it and does nothing else."""
        return self._work is not None

    def unwritten(self) -> set[int]:
        """Ledgers whose records are not in the index as they are now: those that changed since the
        last flush, and those of a flush that is under way or has failed."""
        return {*self.dirty, *self._encoded, *self._writing}

    def is_unwritten(self, ledger_id: int) -> bool:
        """Whether it is one of ``unwritten``."""
        return ledger_id in self.dirty or ledger_id in self._encoded or ledger_id in self._writing

    def deletions(self) -> set[int]:
        """Ledgers of whose deletion the index has yet to hear."""
        return {*self.deleted, *(self._work.deleted if self._work is not None else ())}

    async def encode_ahead(self) -> None:
        """Before a flush: encode the records of the ledgers that have changed, in turns of the
        loop. The flush takes positions and state in one turn, which then has left to do what has
        changed meanwhile."""
        for _ in range(len(self.dirty) // ENCODED_AT_ONCE):
            for ledger_id in list(islice(self.dirty, ENCODED_AT_ONCE)):
                self._encoded[ledger_id] = self.dirty.pop(ledger_id).encode()
            await asyncio.sleep(0 if self.hurried else ENCODE_PAUSE_S)

    def take_work(self) -> FlushWork:
        for ledger_id, state in self.dirty.items():  # one that was encoded has changed since
            self._encoded[ledger_id] = state.encode()
        self._writing, self._encoded = self._encoded, {}
        records = list(self._writing.items())
        deleted = list(self.deleted)
        revived = [(ledger_id, state.encode()) for ledger_id, state in self.revived.items()]
        self.dirty.clear()
        self.deleted.clear()
        self.revived.clear()
        return FlushWork(self.cache.swap(), records, deleted, revived)

    def deletes(self, ledger_id: int) -> bool:
        """Whether the index has yet to hear of the ledger's deletion."""
        work = self._work
        return ledger_id in self.deleted or (work is not None and ledger_id in work.deleted)

    async def _flush_work(
        self, work: FlushWork, positions: Sequence[JournalPosition] | None
    ) -> None:
        job = self._flushing
        if job is None or (job.done() and job.exception() is not None):
            job = self.flush_lane.run(lambda: self.write(work, positions, paced=True))
            self._flushing = job
        # Whoever is cancelled here leaves it under way, and who flushes next waits for it: made
        # again it would write all of the half once more, and both copies would count as live.
        await asyncio.shield(job)
        self._flushing = None
        self._work = None
        self.cache.flushed()
        self._let_go(work)
        self.deletions_flushed(work.deleted)

    def _let_go(self, work: FlushWork) -> None:
        """To free what many ledgers had in memory takes its time, 10 ms for 100 000, and in one
        piece if the last reference goes: the lane takes it apart."""
        writing, self._writing = self._writing, {}
        if len(writing) > FREED_AT_ONCE:
            self.flush_lane.submit(partial(_take_apart, work, writing))

    def write(
        self, work: FlushWork, positions: Sequence[JournalPosition] | None, paced: bool
    ) -> None:
        """In the flush lane (or, before the lanes run, in the replay's thread)."""
        try:
            # The order is the guarantee; each step may be the last before a power cut.
            # 0. Ledgers that were brought back are living ones before their entries lie in a log: a
            #    log that is closed meanwhile counts what its ledgers' records say.
            self._put_records(work.revived)
            # 1. Entries, synced: the index must never name bytes that are not there.
            self._write_entries(work.half, paced)
            # 2. Records of ledgers (fences, keys) before the mark: behind it the journal is not
            #    replayed, and a fence that only it knew would be forgotten.
            gone = set(work.deleted)
            self._put_records([row for row in work.records if row[0] not in gone], paced)
            # 3. Deletions after entries: a ledger that has both was deleted last. Its locations and
            #    its shares of logs go before its record says so: the journal may be broken and know
            #    nothing of it, and who is found deleted is not looked for again.
            self.reclaimer.stored.take(work.deleted)
            self._put_records([row for row in work.records if row[0] in gone])
            if work.half.entry_count or work.records or work.deleted:
                self.location_index.sync()
            # 4. The mark, after all that it lets the journal forget is durable. It carries the
            #    index's sequence, so that an index that lost something is noticed at start.
            marks = self._moved_marks(positions)
            if marks != self.marks:
                self._mark_file.store(marks)
                self.marks = marks
            # 5. Only now: what compaction or removal takes away must be named by no replay.
            self.reclaimer.stored.apply()
            self._settle_logs()
            if work.deleted:
                self.reclaimer.remove_dead(self.settled_id)
        except OSError as error:
            self._log.abandon()
            raise BookieIOError(f"cannot flush {self.path}: {error}") from error

    def _put_records(self, records: Sequence[tuple[int, bytes]], paced: bool = False) -> None:
        for start in range(0, len(records), BATCH_MAX):
            started = time.perf_counter()
            self.location_index.put_ledgers(records[start : start + BATCH_MAX])
            self._rest(started, 1 if paced else 0)

    def _settle_logs(self) -> None:
        """From here on closed logs may be compacted; what no index knows of them is given up."""
        self._appended = None
        self.settled_id = self._log.settled_id
        self._remove_in_vain(self._in_vain)
        self.reclaimer.settle(self.settled_id)

    def _moved_marks(self, positions: Sequence[JournalPosition] | None) -> Marks:
        if positions is None:
            return self.marks
        return self.marks.moved(positions, self.location_index.synced_sequence)

    def begin_marks(self, journal: int, position: JournalPosition) -> None:
        """Blocking. Remember the first file of a journal: if it is gone, a start notices."""
        marks = self.marks.begun(journal, position)
        if marks != self.marks:
            self._mark_file.store(marks)
            self.marks = marks

    def deletion_journaled(self, ledger_id: int) -> None:
        """It is in the journal, durably, that the ledger was deleted."""
        if ledger_id in self.deleted or (self._work and ledger_id in self._work.deleted):
            self._journaled[ledger_id] = None

    def deletions_flushed(self, ledger_ids: Sequence[int]) -> None:
        """The index knows of these deletions, durably: a repair may bring the ledgers back."""
        for ledger_id in ledger_ids:
            self._journaled.pop(ledger_id, None)

    async def free_deleted(self) -> None:
        """Remove the logs that are dead by deletions that only the journal knows: the flush that
        would write them to the index may be waiting for that very space. Nothing is written here,
        so it works on a disk without a free byte. Raises ``OSError``, ``BookieIOError``."""
        ids = list(self._journaled)
        if ids:
            await self.flush_lane.run(lambda: self._free_deleted(ids))
        for ledger_id in ids:  # else the next failure of a flush tries again
            self._journaled.pop(ledger_id, None)

    def _free_deleted(self, ids: list[int]) -> None:
        self.reclaimer.stored.forget_early(ids)
        self.reclaimer.remove_dead(self.settled_id)

    def end_log(self, share: float) -> None:
        """In the flush lane. If less than ``share`` of the log that flushes write to is of use, it
        takes no more, so that its space can be given back: on a disk that is nearly full no add
        comes that would fill it. (What a flush that failed has left in it is of no use then: all of
        that flush is repeated, with the same half.)"""
        byte_count, ledgers = self._log.held
        if self.reclaimer.live_bytes(ledgers) >= share * byte_count:
            return
        try:
            self._log.finish()
        except OSError as error:  # no room for the footer, which only saves reading the log through
            log.warning("entry log without footer", path=str(self.path), error=str(error))
            self._log.abandon()
        self._settle_logs()

    def _close_removed(self, log_ids: Sequence[int]) -> None:
        """In the flush lane: readers let go of logs that were removed."""
        for lane, reader in zip(self._read_lanes, self._readers, strict=True):
            lane.submit(partial(reader.forget, log_ids))

    def _write_entries(self, half: WriteHalf, paced: bool) -> None:
        appended = self._appended
        if appended is None or appended.half is not half:
            appended = self._appended = self._append_half(half, paced)
        for runs in batches(appended.runs, BATCH_MAX, BATCH_ENTRIES_MAX):
            started = time.perf_counter()
            self.location_index.put_runs(runs)
            self._rest(started, 1 if paced else 0)

    def _append_half(self, half: WriteHalf, paced: bool) -> _Appended:
        appended = _Appended(half, [])
        before = self._log.log_id
        try:
            self._append_all(half, half.byte_count if paced else 0, appended.runs)
        except OSError:
            begun = {self._log.log_id, *(run.log_id for run in appended.runs)}
            self._take_back(begun - {before})
            raise
        return appended

    def _append_all(self, half: WriteHalf, paced_bytes: int, runs: list[LocationRun]) -> None:
        """Write the entries, durably. ``paced_bytes``: of all; 0: there is no time to rest."""
        unsynced_bytes = written_bytes = 0
        started = time.perf_counter()
        for chunk in _chunks(half):
            chunk_bytes = self._append(chunk, runs)
            unsynced_bytes += chunk_bytes
            written_bytes += chunk_bytes
            if unsynced_bytes >= SYNC_BYTES:
                self._sync_log()
                unsynced_bytes = 0
            self._rest(started, written_bytes / paced_bytes if paced_bytes else 0)
            started = time.perf_counter()
        if runs:
            self._sync_log()

    def _take_back(self, begun: set[int]) -> None:
        """The disk was full, or has failed, before a flush was written, and nothing refers to the
        logs that it has begun: each try would leave as much as has found room."""
        self._in_vain |= begun
        self._log.abandon()
        self._remove_in_vain(begun)

    def _remove_in_vain(self, log_ids: set[int]) -> None:
        """What a failing disk keeps is removed behind the next flush that works: it counts as live,
        so nobody else would."""
        if not log_ids:
            return
        try:
            self.reclaimer.remove(sorted(log_ids))
        except OSError as error:
            path = str(self.path)
            log.warning("entry logs of a failed flush stay for now", path=path, error=str(error))
        else:
            self._in_vain = self._in_vain - log_ids

    def _append(self, chunk: EntryColumns, runs: list[LocationRun]) -> int:
        """Write entries to the entry log; how many bytes. ``runs`` takes where they are."""
        offsets = self._log.append_spans(chunk.spans, chunk.entries)
        log_id, at = self._log.log_id, 0
        for ledger_id, count in chunk.spans:
            stop = at + count
            runs += runs_of(ledger_id, chunk.entry_ids[at:stop], log_id, offsets[at:stop])
            at = stop
        self._pages.written(self._log.path, offsets[0], self._log.end)
        return self._log.end - offsets[0]

    def _sync_log(self) -> None:
        self._log.sync()
        self._pages.synced()

    def _rest(self, started: float, share: float) -> None:
        """``share`` of the flush is done; 0: there is no time to rest."""
        cache = self.cache
        if self.hurried:
            return
        if share and cache.active.byte_count < cache.half_bytes_max * PACED_FILL_MAX * share:
            self._sleep(min(REST_SHARE * (time.perf_counter() - started), REST_S_MAX))

    # -- reading ------------------------------------------------------------------------------

    def look_up(self, ledger_id: int, found: Found) -> None:
        """Ask the index for the ledger's record. ``found`` is called on the loop, later, once.
        Raises ``BookieIOError`` if the directory is closed."""
        self._check_open()
        self._lookups.ask(ledger_id, found)

    def _check_open(self) -> None:
        if self._closed:
            raise BookieIOError(f"{self.path} is closed: the bookie has ended; read elsewhere")

    def read(
        self, ledger_id: int, entry_id: int, entries_max: int, bytes_max: int, ahead: bool = False
    ) -> asyncio.Future[RecordRun]:
        """The entry and some that follow it without a gap, from the entry log; empty: not in the
        index. ``ahead``: only the first was asked for, so if the reader is not known to move
        forward less is read. Raises and fails with ``BookieIOError``."""
        lane = read_lane(ledger_id)
        return self._in_read_lane(
            lane, lambda: self._read(lane, ledger_id, entry_id, entries_max, bytes_max, ahead)
        )

    def _in_read_lane(self, lane: int, job: Callable[[], T]) -> asyncio.Future[T]:
        self._check_open()
        return self._read_lanes[lane].run(job)

    def _read(
        self,
        lane: int,
        ledger_id: int,
        entry_id: int,
        entries_max: int,
        bytes_max: int,
        ahead: bool,
    ) -> RecordRun:
        location = self.location_index.location(ledger_id, entry_id)
        if location is None:
            return NO_ENTRIES
        following, sizes = self._following[lane], self._entry_bytes[lane]
        known_bytes = sizes.pop(ledger_id, 0)
        forward = following.pop((ledger_id, entry_id), False) is None
        if not known_bytes or (ahead and not forward):
            bytes_max = min(bytes_max, RANDOM_READ_BYTES)
        if known_bytes:  # whole records only: what is cut off would be read again
            whole = max(1, min(entries_max, bytes_max // known_bytes))
            bytes_max = whole * (RECORD_HEADER_BYTES + known_bytes)
        found = self._read_at(location, lane, ledger_id, entry_id, entries_max, bytes_max)
        if len(found) > 1:
            found = self._named(found, ledger_id, entry_id, location)
        sizes[ledger_id] = max(found.size_of(0), found.size_of(-1))
        following[ledger_id, entry_id + len(found)] = None
        for remembered in (following, sizes):
            if len(remembered) > READERS_KEPT_MAX:
                del remembered[next(iter(remembered))]  # type: ignore[arg-type]
        return found

    def _named(
        self, found: RecordRun, ledger_id: int, entry_id: int, location: tuple[int, int]
    ) -> RecordRun:
        """``found``, which lies at ``location``, as far as the index names it: an entry that was
        added again lies elsewhere as well, and the newer bytes count."""
        log_id, offset = location
        count = 0
        with suppress(BookieIOError):  # a row behind it does not keep an entry from its reader
            for row in self.location_index.runs(ledger_id, entry_id):
                if row.place(entry_id + count) != (log_id, offset + found.begin_of(count)):
                    break
                count = row.last + 1 - entry_id
                if count >= len(found):
                    return found
        return found[: max(1, count)]

    def _read_at(
        self,
        location: tuple[int, int],
        lane: int,
        ledger_id: int,
        entry_id: int,
        entries_max: int,
        bytes_max: int,
    ) -> RecordRun:
        """At ``location``, or where compaction has put it since the index was asked."""
        reader = self._readers[lane]
        while True:
            try:
                return reader.read(*location, ledger_id, entry_id, entries_max, bytes_max)
            except OSError as error:
                moved = self.location_index.location(ledger_id, entry_id)
                if isinstance(error, FileNotFoundError) and moved not in (None, location):
                    location = moved
                    continue
                path = log_path(self.path, location[0])
                raise BookieIOError(
                    f"entry {ledger_id}:{entry_id} should lie in {path} at offset {location[1]}: "
                    f"{error}; read it from another bookie"
                ) from error

    async def entry_groups(self, ledger_id: int) -> list[Group]:
        """Every entry of the ledger in this directory, condensed: in steps, since a ledger may have
        many millions."""
        # Before the index: a flush moves them there.
        cached = sorted(self.cache.entry_ids(ledger_id))
        condenser = Condenser()

        def step(first: int) -> int | None:
            """Returns where the next begins; None: there is none."""
            ids = self.location_index.entry_ids(ledger_id, first, ENTRIES_LISTED_AT_ONCE)
            following = ids[-1] + 1 if len(ids) == ENTRIES_LISTED_AT_ONCE else None
            behind = len(cached) if following is None else bisect_left(cached, following)
            if fresh := cached[bisect_left(cached, first) : behind]:
                ids = sorted({*ids, *fresh})
            condenser.add(ids)
            return following

        following: int | None = 0
        while following is not None:
            following = await self._in_read_lane(read_lane(ledger_id), partial(step, following))
        return condenser.groups()

    async def ledgers(self, first: int, behind: int) -> AsyncIterator[list[int]]:
        """Those of the index that are not deleted, in pieces, ascending; ids in [first, behind).
        Strays come first, and again once they have a record."""
        if self.strays is None:
            self.strays = frozenset(await self._find_strays())
        strays = sorted(each for each in self.strays if first <= each < behind)
        if strays:
            yield await self._in_read_lane(0, partial(self._not_deleted, strays))
        while first < behind:
            some = await self._in_read_lane(0, partial(self._ledgers, first, behind))
            yield some
            first = some[-1] + 1 if len(some) == LISTED_AT_ONCE else behind

    def _not_deleted(self, ledger_ids: Sequence[int]) -> list[int]:
        """Those of them of whose deletion the index does not know."""
        records = ((ledger_id, self.location_index.ledger(ledger_id)) for ledger_id in ledger_ids)
        return [ledger_id for ledger_id, row in records if row is None or not record_deleted(row)]

    def _ledgers(self, first: int, behind: int) -> list[int]:
        rows = self.location_index.ledgers(first, behind)
        return [row[0] for row in islice(rows, LISTED_AT_ONCE)]

    async def _find_strays(self) -> list[int]:
        """Goes over all ledgers of the index, once in a life."""
        found: list[int] = []
        first: int | None = 0
        while first is not None:
            first = await self._in_read_lane(0, partial(self._find_some_strays, first, found))
        return found

    def _find_some_strays(self, first: int, found: list[int]) -> int | None:
        """Where to go on; None: nowhere."""
        index = self.location_index
        located = list(islice(index.located(first), LOCATED_AT_ONCE))
        found += [ledger_id for ledger_id in located if index.ledger(ledger_id) is None]
        return located[-1] + 1 if len(located) == LOCATED_AT_ONCE else None


def _chunks(half: WriteHalf) -> Iterator[EntryColumns]:
    """All entries, by ledger and id."""
    for columns in half.sorted_columns(SORTED_AT_ONCE):
        yield from columns.chunks(BATCH_MAX, CHUNK_BYTES_MAX)


def _take_apart(work: FlushWork, writing: dict[int, bytes]) -> None:
    """Nobody looks at it any more. One by one, so that the loop gets the interpreter between."""
    while writing:
        writing.popitem()
    while work.records:
        work.records.pop()
    while work.half.ledgers:
        work.half.ledgers.popitem()
