"""The bookie: the storage server's core, which both the TCP server and the in-process client
call. Its methods have the signatures of the ledger client's seam; flags are plain ints.

Rules (see ``docs/adr/0010-bookie-storage.md``):

* An entry is acknowledged after the journal's sync, and readable from the moment it is accepted.
  Only a ledger whose writer asked for it (DEFERRED_SYNC) is answered before; ``force`` makes up
  for it.
* The first add or fence of a ledger binds its master key; both are in the journal before any
  entry or answer that depends on them.
* Fence check and insert happen in one turn of the loop: after a fence, no add without RECOVERY is
  accepted, and every one accepted before it is found by the fencing reader.
* A fence is durable before it is answered, by whichever reader.
* "No entry" and "no ledger" are said only when certain: never in limbo, never for damage.
* Adding an entry again is fine, in any order.
* The loop waits for no disk: a ledger that is not in memory is looked up in a thread.

Bounds: bytes waiting for a journal, both halves of the write cache, adds parked while both are
full and adds whose ledger is looked up (bytes and time), reads under way. Past them:
``TooManyRequestsError``.
"""

from __future__ import annotations

import asyncio
import time
from bisect import bisect_left
from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import structlog

from magnetar.bookie.core import LacSource, RunsDone
from magnetar.bookie.disk_fit import fitted
from magnetar.bookie.journal.journal import Done, Journal
from magnetar.bookie.journal.journal_files import JournalDirectory
from magnetar.bookie.ledgers.adds import DEFERRED_SYNC, Adds
from magnetar.bookie.ledgers.admission import RECOVERY, Admission, unknown_state
from magnetar.bookie.ledgers.fences import Fences
from magnetar.bookie.ledgers.flusher import Flusher
from magnetar.bookie.ledgers.ledger_state import HeldLedger
from magnetar.bookie.ledgers.ledger_table import LOOKED_AT_ONCE, LedgerTable
from magnetar.bookie.ledgers.read_failures import ReadFailures
from magnetar.bookie.ledgers.reads import EntryReads
from magnetar.bookie.places import directory_states, journal_states
from magnetar.bookie.replay import StartReport, replay_all
from magnetar.bookie.space.upkeep import Upkeep
from magnetar.bookie.storage.entry_runs import EntryRuns, count_within, size_of
from magnetar.bookie.storage.location_index import LocationIndex
from magnetar.bookie.storage.storage import LedgerStorage
from magnetar.config import BookieConfig
from magnetar.env.files.disk import Disk, RealDisk
from magnetar.metrics import Metrics
from magnetar.model.bookie_state import DirectoryState, JournalState
from magnetar.model.entry import LacReply
from magnetar.model.errors import (
    BookieError,
    BookieIOError,
    ConfigError,
    MagnetarError,
    NoEntryError,
    NoLedgerError,
    ReadOnlyBookieError,
)
from magnetar.model.ids import NO_ENTRY, BookieId
from magnetar.wire.bookie.availability import Group
from magnetar.wire.bookie.messages import AddRun

log = structlog.get_logger(__name__)

__all__ = ("DEFERRED_SYNC", "FENCE", "RECOVERY", "Bookie", "BookieInfo")

FENCE = 1
"""Read flag: fence before reading."""

HIGH_PRIORITY = 2
"""Read flag: do not let it yield to adds."""

STORED = 4
"""Read flag of ``read_batch``: read it from the entry log, though it is cached."""

AT_HAND_MAX = 1000
"""Entries taken from memory at once: whoever sets no number mostly wants fewer than lie there."""
PACED_BYTES = 1 << 20
"""Of one answer, while entries are being added: it is made of pieces with rests between."""


class BookieInfo(NamedTuple):
    """Of the ledger directories' file systems, and what the bookie is up to."""

    total_bytes: int
    free_bytes: int
    read_only: bool
    limbo: bool
    write_cache_bytes: int
    read_cache_bytes: int
    journal_pending_bytes: int
    failed_directories: tuple[str, ...]


class Bookie:
    """See the module's text. Directories come from ``config``; call ``start`` first.

    ``disk``, ``open_index`` and ``sleep`` (of the disk's threads) are the outside world."""

    def __init__(
        self,
        config: BookieConfig,
        metrics: Metrics,
        disk: Disk | None = None,
        open_index: Callable[[Path], LocationIndex] = LocationIndex,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        if not config.ledger_directories or not config.journal.directories:
            raise ConfigError(
                "a bookie needs bookie.ledger_directories and bookie.journal.directories; "
                "name at least one directory each"
            )
        self.bookie_id = BookieId(config.bookie_id or f"{config.host}:{config.port}")
        """Whoever lets the server take a free port sets the name after it has."""
        self._config = config
        self._metrics = metrics
        self._disk: Disk = disk or RealDisk()
        self._open_index = open_index
        self._sleep = sleep
        self.read_failures = ReadFailures(metrics)
        self._reads = EntryReads(config, self._appended_bytes, self.read_failures)
        self._admission = Admission(lambda recovery: self._upkeep.refusal(recovery))
        self.read_only_changed: Callable[[bool], None] = lambda read_only: None
        """Called on the loop; set by whoever registers the bookie."""
        self.failed: Callable[[MagnetarError], None] = lambda error: None
        """Called when the bookie must not go on; it takes nothing any more. Set by its role."""
        self._told_read_only = False
        self.report: StartReport | None = None

    # -- start and end ------------------------------------------------------------------------

    async def start(self, older: Collection[Path] = ()) -> StartReport:
        """Open the directories, replay the journals. ``older``: ledger directories that were put
        back from an older copy, and lack what was acknowledged since. Raises ``ConfigError``,
        ``BookieIOError``."""
        self._loop = asyncio.get_running_loop()
        disk = self._disk
        config = self._config = self._fitted()
        if not config.journal.sync:
            log.warning(
                "journal sync is OFF: a power loss loses acknowledged entries",
                setting="bookie.journal.sync",
            )
        half = config.write_cache_bytes // (2 * len(config.ledger_directories))
        self._storages = [
            LedgerStorage(index, path, disk, config, half, self._open_index, self._sleep)
            for index, path in enumerate(config.ledger_directories)
        ]
        size, kept = config.journal.file_bytes, config.journal.recycled_files_max
        directories = [
            JournalDirectory(disk, path, size, kept, self._sleep)
            for path in config.journal.directories
        ]
        self._journals = [
            Journal(index, directory, disk, config.journal, self._metrics, self._sleep)
            for index, directory in enumerate(directories)
        ]
        self._table = LedgerTable(self._storages, self._journals, config.ledgers_kept_max)
        self._fences = Fences(self._table, self._admission, self._reads)
        self._adds = Adds(self._table, self._admission, self._fences, self._reads, config)
        self._upkeep = Upkeep(
            self._storages,
            self._journals,
            config,
            disk,
            self._metrics,
            self._tell_read_only,
            self._loop.time,
            lambda error: self.failed(error),
        )
        self._flusher = Flusher(
            self._table, self._adds.parkings, config, self._metrics, self._upkeep
        )
        self._adds.flusher = self._flusher
        try:
            self.report = report = await self._storages[0].flush_lane.run(
                lambda: replay_all(self._table, directories, self._metrics, older)
            )
        except MagnetarError:
            await self._close_parts()
            raise
        except OSError as error:
            await self._close_parts()
            raise _cannot_open(error) from error
        self._admission.closed = False
        self._upkeep.start()
        self._flusher.start()
        if report.files > len(self._journals):
            self._flusher.want()
        return report

    def _fitted(self) -> BookieConfig:
        """The settings, with sizes that fit the disks. Raises ``BookieIOError``."""
        config, disk = self._config, self._disk
        directories = (config.ledger_directories, config.journal.directories)
        try:
            for path in (*directories[0], *directories[1]):
                disk.make_dir(path)
            ledgers, journals = ([disk.space(path) for path in paths] for paths in directories)
        except OSError as error:
            raise _cannot_open(error) from error
        found = fitted(config, ledgers, journals)
        if found != config:
            log.info(
                "a small disk: sizes are fitted to it",
                write_cache_bytes=found.write_cache_bytes,
                journal_file_bytes=found.journal.file_bytes,
                entry_log_bytes_max=found.entry_log_bytes_max,
            )
        return found

    async def close(self) -> None:
        """Commit and flush everything, then end. Idempotent."""
        if self._admission.closed:
            return
        self._admission.closed = True
        self._admission.look()
        await self._flusher.stop()
        await self._upkeep.stop()
        self._adds.refuse_waiting(BookieIOError("the bookie is closing"))
        for journal in self._journals:
            try:
                await journal.barrier()
            except BookieError as error:
                log.error("journal without its last commit", error=str(error))
        try:
            await self._flusher.flush_all()
        except BookieIOError as error:
            log.error("last flush failed; the next start replays the journal", error=str(error))
        await self._close_parts()

    async def _close_parts(self) -> None:
        for journal in self._journals:
            await journal.close()
        for storage in self._storages:
            await storage.close()

    @property
    def read_only(self) -> bool:
        """No new entries are taken; recovery may write."""
        return self._admission.writes_refused or self._upkeep.read_only

    @property
    def refusal(self) -> str | None:
        """Why new entries are refused, and what to do; None: they are taken."""
        if self._admission.writes_refused:
            return "an operator said so (magnetar bookie decommission, or read-only)"
        return self._upkeep.refusal(recovery=False)

    @property
    def lacks_space(self) -> bool:
        """Whether it is for want of space on its disks."""
        return self._upkeep.lacks_space

    @property
    def writes_refused(self) -> bool:
        """By an operator's word."""
        return self._admission.writes_refused

    def refuse_writes(self, refuse: bool) -> None:
        """An operator's word; the bookie is also read-only while a disk is nearly full."""
        self._admission.writes_refused = refuse
        self._tell_read_only()

    def _tell_read_only(self) -> None:
        self._admission.look()
        read_only = self.read_only
        if read_only != self._told_read_only:
            self._told_read_only = read_only
            self.read_only_changed(read_only)

    # -- adding -------------------------------------------------------------------------------

    def add_entries(
        self,
        ledger_id: int,
        master_key: bytes,
        entry_ids: Sequence[int],
        entries: Sequence[bytes],
        flags: int,
        done: Done,
    ) -> None:
        """Store whole entries, ``entries[i]`` under ``entry_ids[i]``; ``done(error, entry_ids)``
        is called on the loop, later, once. Never blocks, never raises for the world's faults."""
        self._adds.add_entries(ledger_id, master_key, entry_ids, entries, flags, done)

    def add_runs(self, runs: Sequence[AddRun], done: RunsDone) -> None:
        """As ``add_entries`` for each of a chunk's runs, in order, with one answer for those that
        become durable together: ``done(error, runs, entry_ids)`` is called with runs all of whose
        entries have this answer (no ids), or with one and those of its entries that have it."""
        self._adds.add_runs(runs, done)

    # -- fencing, last add confirmed, barriers ------------------------------------------------

    async def write_lac(self, ledger_id: int, master_key: bytes, lac: int, body: bytes) -> None:
        """See ``BookieCore.write_lac``. Raises ``BadRequestError`` for a large ``body``."""
        await self._fences.write_lac(ledger_id, master_key, lac, body)

    def add_lac_source(self, source: LacSource) -> None:
        """See ``LocalCore.add_lac_source``."""
        self._fences.lac_sources.append(source)

    def remove_lac_source(self, source: LacSource) -> None:
        """See ``LocalCore.remove_lac_source``."""
        self._fences.lac_sources.remove(source)

    async def read_lac(self, ledger_id: int, flags: int = 0, master_key: bytes = b"") -> LacReply:
        """The highest LAC heard of and the entry of highest id. Raises ``NoLedgerError`` (not
        with FENCE)."""
        if flags & FENCE:
            ledger = await self._fences.fence(ledger_id, master_key)
        else:
            ledger = await self._known(ledger_id)
        last = None
        if ledger.last_entry_id >= 0:
            last = await self.read_entry(ledger_id, ledger.last_entry_id)
        self._fences.ask_for_lac(ledger)
        return LacReply(max(ledger.lac, ledger.explicit_lac), last, ledger.lac_body or None)

    async def force(self, ledger_id: int) -> None:
        """Return when everything added to the ledger before is on the device. Raises
        ``ReadOnlyBookieError`` if the journal has had no room for some of it, else
        ``BookieIOError``."""
        if self._adds.waits_for_lookup(ledger_id):
            await self._table.load(ledger_id)  # behind those adds
        await self._table.journal_of(ledger_id).barrier()
        ledger = self._table.get_loaded(ledger_id)  # of one not loaded, all is in the index
        if ledger is not None and ledger.unforced:
            raise ReadOnlyBookieError(
                f"the journal had no room for entries of ledger {ledger_id} that were answered "
                "before they were durable; write to a new ledger"
            )

    # -- reading ------------------------------------------------------------------------------

    def _appended_bytes(self) -> int:
        return sum([journal.appended_bytes for journal in self._journals])

    async def _known(self, ledger_id: int) -> HeldLedger:
        """The ledger's state. Raises ``NoLedgerError`` if it is certain that there is none."""
        ledger = await self._table.load(ledger_id)
        self._admission.check_open()
        if ledger is not None and not ledger.deleted:
            return ledger
        if ledger is None and self._table.storage_of(ledger_id).marks.limbo:
            raise unknown_state(f"ledger {ledger_id}")
        raise NoLedgerError(f"ledger {ledger_id} is not on this bookie")

    def read_cached(self, ledger_id: int, entry_id: int) -> bytes | None:
        """The entry if it is in memory; None says nothing. Entry -1: the one of highest id."""
        ledger = self._table.get_loaded(ledger_id)
        if ledger is None:
            return self._reads.cached(ledger_id, entry_id)
        if ledger.deleted:
            return None
        if entry_id < 0:
            entry_id = ledger.last_entry_id
        entry = ledger.storage.cache.get(ledger_id, entry_id)
        return entry if entry is not None else self._reads.cached(ledger_id, entry_id)

    async def read_entry(
        self, ledger_id: int, entry_id: int, flags: int = 0, master_key: bytes = b""
    ) -> bytes:
        """The whole entry; -1 is the one of highest id. Raises ``NoEntryError``,
        ``NoLedgerError``, ``UnknownLedgerStateError``, ``BookieIOError``."""
        if flags & FENCE:
            ledger = await self._fences.fence(ledger_id, master_key)
        else:
            ledger = await self._known(ledger_id)
        if entry_id < 0:
            entry_id = ledger.last_entry_id
        entry = self.read_cached(ledger_id, entry_id)
        if entry is not None:
            return entry
        if 0 <= entry_id <= ledger.last_entry_id:
            ahead, urgent = self._config.read_ahead_bytes, bool(flags & HIGH_PRIORITY)
            found = await self._reads.fetch(ledger, entry_id, 1, ahead, urgent=urgent)
            if found:
                return found[0]
        raise _absent(ledger, entry_id)

    async def read_batch(
        self,
        ledger_id: int,
        first_entry_id: int,
        max_entries: int,
        max_bytes: int,
        flags: int = 0,
        master_key: bytes = b"",
    ) -> EntryRuns:
        """Consecutive entries, at least one, at most ``max_entries`` and (but for the first)
        ``max_bytes``; stops before the first that is missing or damaged. Fences first if asked
        to. Raises as ``read_entry``."""
        if flags & FENCE:
            ledger = await self._fences.fence(ledger_id, master_key)
        else:
            ledger = await self._known(ledger_id)
        found = EntryRuns()
        room = max_bytes
        while len(found) < max_entries and not ledger.deleted and (room > 0 or not found):
            following, left = first_entry_id + len(found), max_entries - len(found)
            try:
                run = await self._read_run(ledger, following, left, max(room, 1), flags)
            except BookieError:
                if found:
                    break
                raise
            if not run:
                break
            count = count_within(run, room, 0)
            found.append(run[: max(count, 0 if found else 1)][:left])
            if count < len(run):
                break
            room -= size_of(run)
            # Who rests between its pieces answers before its reader takes it for dead.
            if max_bytes - room >= PACED_BYTES and not flags & HIGH_PRIORITY and self._reads.cut:
                break
        if not found:
            raise _absent(ledger, first_entry_id)
        return found

    async def _read_run(
        self, ledger: HeldLedger, first_entry_id: int, count: int, bytes_max: int, flags: int
    ) -> Sequence[bytes]:
        """Some entries from the first on; none if it is not here."""
        count = min(count, ledger.last_entry_id - first_entry_id + 1)
        if count <= 0:
            return ()
        # Who asks whether it can be read from the disk is not told what was read from it before.
        memory = self._reads.not_flushed if flags & STORED else self._reads.at_hand
        run = memory(ledger, first_entry_id, min(count, AT_HAND_MAX))
        if run:
            return run
        urgent = bool(flags & HIGH_PRIORITY)
        return await self._reads.fetch(ledger, first_entry_id, count, bytes_max, urgent=urgent)

    async def list_entries(self, ledger_id: int) -> list[Group]:
        """The ids of the ledger's entries here, condensed. Raises ``NoLedgerError``."""
        if ledger_id in self._adds.giving_up:  # who asks may name this bookie for what is here
            self._adds.giving_up[ledger_id] = True
        storage = (await self._known(ledger_id)).storage
        try:
            groups = await storage.entry_groups(ledger_id)
        except BookieIOError as error:
            now_s = asyncio.get_running_loop().time()
            self.read_failures.failed(ledger_id, NO_ENTRY, error, now_s)
            raise
        self.read_failures.sound(ledger_id, [NO_ENTRY])
        return groups

    async def read_failed_again(self) -> None:
        """Some of what could not be read: what has passed is told no more."""
        for ledger_id, entry_id in self.read_failures.again(asyncio.get_running_loop().time()):
            try:
                if entry_id == NO_ENTRY:
                    await self.list_entries(ledger_id)
                else:
                    await self.read_entry(ledger_id, entry_id)
            except BookieError:
                continue  # it stays listed
            self.read_failures.sound(ledger_id, [entry_id])

    async def ledgers(self, first: int = 0, behind: int = 1 << 63) -> list[int]:
        """The ids of the ledgers here, ascending; deleted ones left out. Ids in [first, behind)."""
        # What the index does not know yet. It may be flushed while the index is read, and gone from
        # memory behind that: so it is asked for now, too, of all directories in one turn.
        fresh = sorted(set[int]().union(*(each.unwritten() for each in self._storages)))
        deleted = set[int]().union(*(each.deletions() for each in self._storages))
        found = fresh[bisect_left(fresh, first) : bisect_left(fresh, behind)]
        for storage in self._storages:
            async for some in storage.ledgers(first, behind):
                found += some
        found.sort()  # runs that are sorted: they are merged
        left: list[int] = []
        for start in range(0, len(found), LOOKED_AT_ONCE):
            if start:
                await asyncio.sleep(0)
            some = found[start : start + LOOKED_AT_ONCE]
            known = dict.fromkeys(some)
            if left:
                known.pop(left[-1], None)
            left += [each for each in known if each not in deleted and not self._deleted(each)]
        return left

    def _deleted(self, ledger_id: int) -> bool:
        """Of a ledger that the index has: whether it was deleted since."""
        state = self._table.get_loaded(ledger_id)
        return state is not None and state.deleted

    def info(self) -> BookieInfo:
        """Raises ``BookieIOError`` if a ledger directory's disk cannot tell its space."""
        try:
            spaces = [self._disk.space(storage.path) for storage in self._storages]
        except OSError as error:
            raise BookieIOError(
                f"the space of the ledger directories cannot be told: {error}; are they mounted?"
            ) from error
        return BookieInfo(
            sum(space.total_bytes for space in spaces),
            sum(space.free_bytes for space in spaces),
            self.read_only,
            any(storage.marks.limbo for storage in self._storages),
            sum(storage.cache.byte_count for storage in self._storages),
            self._reads.byte_count,
            sum(journal.pending_bytes for journal in self._journals),
            tuple(self._upkeep.failed_directories),
        )

    def directories(self) -> tuple[DirectoryState, ...]:
        """Raises ``BookieIOError`` if a disk cannot tell its space."""
        return directory_states(self._storages, self._disk)

    def journals(self) -> tuple[JournalState, ...]:
        return journal_states(self._journals)

    @property
    def reclaimable_bytes(self) -> int:
        """In complete entry logs, of what is not live any more."""
        return sum(storage.reclaimer.usage.dead_bytes for storage in self._storages)

    async def delete_ledger(self, ledger_id: int) -> None:
        """Forget the ledger's entries, durably; it refuses writers and readers from now on. The
        index follows with the next flush. Idempotent."""
        await self.delete_ledgers((ledger_id,))

    async def delete_ledgers(self, ledger_ids: Sequence[int]) -> None:
        """As ``delete_ledger``, in one commit of each journal. All are marked in one turn of the
        loop: give no more than ``collector.DELETE_BATCH``."""
        await self._fences.delete(ledger_ids)

    @contextmanager
    def giving_up(self, ledger_id: int) -> Iterator[Callable[[], Awaitable[bool]]]:
        """For who is about to find out whether this bookie's copies of a ledger are superfluous.
        Gives the function that deletes them, unless somebody has added to the ledger meanwhile, or
        asked what is here of it: it returns whether it did."""
        watched = self._adds.giving_up
        assert ledger_id not in watched, f"ledger {ledger_id} is being given up twice"
        watched[ledger_id] = False

        async def delete() -> bool:
            # Who has come is asked once the ledger is in memory: behind that it is refused to
            # others before anything is waited for.
            return await self._fences.delete((ledger_id,), unless=lambda: watched[ledger_id])

        try:
            yield delete
        finally:
            del watched[ledger_id]

    def ledgers_are_new_from(self, ledger_id: int) -> None:
        """Ledgers with this id and those above were made after this bookie's last loss."""
        self._table.new_from = ledger_id

    async def leave_limbo(self) -> None:
        """An operator's word that what this bookie lost has been restored from others: "no" is
        certain again."""
        for storage in self._storages:
            await storage.leave_limbo()


def _cannot_open(error: OSError) -> BookieIOError:
    return BookieIOError(
        f"the bookie cannot open its directories: {error}; see that they are mounted, writable and "
        "not full"
    )


def _absent(ledger: HeldLedger, entry_id: int) -> BookieError:
    """What to say of an entry that is not here."""
    what = f"entry {ledger.ledger_id}:{entry_id}"
    return NoEntryError(f"{what} is not on this bookie") if ledger.certain else unknown_state(what)
