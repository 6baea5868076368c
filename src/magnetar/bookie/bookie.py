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

Bounds: bytes waiting for a journal, both halves of the write cache, adds parked while both are
full (bytes and time), reads under way. Past them: ``TooManyRequestsError``.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import structlog

from magnetar.bookie.flusher import Flusher
from magnetar.bookie.journal import Done, Journal, Request
from magnetar.bookie.journal_files import JournalDirectory
from magnetar.bookie.journal_format import (
    DELETE,
    ENTRY,
    LAC,
    LEDGER,
    encode_delete,
    encode_lac,
    encode_ledger,
)
from magnetar.bookie.ledger_record import MASTER_KEY_BYTES
from magnetar.bookie.ledger_state import (
    LAC_BODY_BYTES_MAX,
    LedgerState,
    inspect_entries,
)
from magnetar.bookie.ledger_table import LedgerTable
from magnetar.bookie.location_index import LocationIndex
from magnetar.bookie.parking import Add, Parking
from magnetar.bookie.read_cache import ReadCache
from magnetar.bookie.read_pace import ReadPace
from magnetar.bookie.replay import StartReport, replay_all
from magnetar.bookie.storage import LedgerStorage
from magnetar.bookie.upkeep import Upkeep
from magnetar.config import BookieConfig
from magnetar.env.disk import Disk, RealDisk
from magnetar.metrics import Metrics
from magnetar.model.entry import LacReply
from magnetar.model.errors import (
    BadRequestError,
    BookieError,
    BookieIOError,
    ConfigError,
    FencedError,
    MagnetarError,
    NoEntryError,
    NoLedgerError,
    ReadOnlyBookieError,
    TooManyRequestsError,
    UnauthorizedError,
    UnknownLedgerStateError,
)
from magnetar.model.ids import BookieId

log = structlog.get_logger(__name__)

RECOVERY = 1
"""Add flag: allowed on a fenced ledger."""
DEFERRED_SYNC = 4
"""Add flag: answered once accepted; durable after ``force``."""
FENCE = 1
"""Read flag: fence before reading."""

READS_MAX = 1024


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
        self._read_cache = ReadCache(config.read_cache_bytes)
        self._read_pace = ReadPace()
        self._reads: dict[tuple[int, int], asyncio.Future[list[tuple[int, bytes]]]] = {}
        self._closed = True
        self.read_only_changed: Callable[[bool], None] = lambda read_only: None
        """Called on the loop; set by whoever registers the bookie."""
        self._writes_refused = False
        self._told_read_only = False
        self.report: StartReport | None = None

    # -- start and end ------------------------------------------------------------------------

    async def start(self) -> StartReport:
        """Open the directories, replay the journals. Raises ``ConfigError``, ``BookieIOError``."""
        self._loop = asyncio.get_running_loop()
        config, disk = self._config, self._disk
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
        self._table = LedgerTable(self._storages, self._journals)
        self._parkings = [
            Parking(config.journal.pending_bytes_max, self._add_parked) for _ in self._storages
        ]
        self._upkeep = Upkeep(
            self._storages,
            self._journals,
            config,
            disk,
            self._metrics,
            self._tell_read_only,
            self._loop.time,
        )
        self._flusher = Flusher(self._table, self._parkings, config, self._metrics, self._upkeep)
        try:
            self.report = report = await self._storages[0].flush_lane.run(
                lambda: replay_all(self._table, directories, self._metrics)
            )
        except MagnetarError:
            await self._close_parts()
            raise
        except OSError as error:
            await self._close_parts()
            raise BookieIOError(
                f"the bookie cannot open its directories: {error}; see that they are mounted, "
                "writable and not full"
            ) from error
        self._closed = False
        self._upkeep.start()
        self._flusher.start()
        if report.files > len(self._journals):
            self._flusher.want()
        return report

    async def close(self) -> None:
        """Commit and flush everything, then end. Idempotent."""
        if self._closed:
            return
        self._closed = True
        await self._flusher.stop()
        await self._upkeep.stop()
        for parking in self._parkings:
            parking.refuse_all(BookieIOError("the bookie is closing"))
        try:
            for journal in self._journals:
                await journal.barrier()
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
        return self._writes_refused or self._upkeep.read_only

    def refuse_writes(self, refuse: bool) -> None:
        """An operator's word; the bookie is also read-only while a disk is nearly full."""
        self._writes_refused = refuse
        self._tell_read_only()

    def _tell_read_only(self) -> None:
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
        try:
            self._add(ledger_id, master_key, entry_ids, entries, flags, done)
        except MagnetarError as error:
            self._loop.call_soon(done, error, entry_ids)

    def _add(
        self,
        ledger_id: int,
        master_key: bytes,
        entry_ids: Sequence[int],
        entries: Sequence[bytes],
        flags: int,
        done: Done,
        parked: bool = False,
    ) -> None:
        size, lac, last = inspect_entries(
            ledger_id, entry_ids, entries, self._config.entry_bytes_max
        )
        ledger = self._table.get_loaded(ledger_id) or self._table.find(ledger_id)
        self._check_writable(ledger_id, ledger, master_key, flags)
        storage = self._table.storage_of(ledger_id) if ledger is None else ledger.storage
        if storage.marks.limbo and not flags & RECOVERY:
            _check_certain(ledger_id, ledger, entry_ids[0])
        if not parked and (storage.cache.full or self._parkings[storage.index]):
            add = Add(ledger_id, master_key, entry_ids, entries, flags, done)
            self._parkings[storage.index].park(add, size)
            self._flusher.want()
            return
        self._check_journal(ledger_id, size)
        if ledger is None or not ledger.master_key:
            begins = not flags & RECOVERY and entry_ids[0] == 0
            ledger = self._bind(ledger_id, ledger, master_key, begins)
        if min(entry_ids) <= ledger.last_entry_id:  # added again: the newer bytes count
            self._read_cache.drop_entries(ledger_id, entry_ids)
        if last > ledger.last_entry_id:
            ledger.last_entry_id = last
        if lac > ledger.lac:
            ledger.lac = lac
        half = storage.cache.active
        half.put(ledger_id, entry_ids, entries, size)
        storage.dirty[ledger_id] = ledger
        when_durable: Done | None = done
        if flags & DEFERRED_SYNC and not self._behind(ledger.journal):
            self._loop.call_soon(done, ledger.journal.broken, entry_ids)
            when_durable = None
        ledger.journal.append(Request(ENTRY, entries, size, when_durable, entry_ids))
        if half.byte_count >= self._flusher.flush_bytes:
            self._flusher.want()

    def _behind(self, journal: Journal) -> bool:
        """Whether so much waits for the journal that adds with deferred sync wait as well: their
        answers are what slows a writer down."""
        return journal.pending_bytes > self._config.journal.pending_bytes_max // 4

    def _add_parked(self, add: Add) -> None:
        self._add(*add, parked=True)

    def _check_writable(
        self, ledger_id: int, ledger: LedgerState | None, master_key: bytes, flags: int
    ) -> None:
        if self._closed:
            raise BookieIOError("the bookie is closed")
        self._check_takes(ledger_id, bool(flags & RECOVERY))
        if ledger is None:
            _check_key_length(ledger_id, master_key)
            return
        if ledger.deleted:
            if flags & RECOVERY:
                raise NoLedgerError(f"ledger {ledger_id} was deleted here")
            raise FencedError(f"ledger {ledger_id} was deleted; this writer must stop")
        _check_key(ledger, master_key)
        if ledger.fenced and not flags & RECOVERY:
            raise FencedError(f"ledger {ledger_id} is fenced; this writer must stop")

    def _check_takes(self, ledger_id: int, recovery: bool) -> None:
        reason = self._upkeep.refusal(recovery)
        if reason is None and self._writes_refused and not recovery:
            reason = "an operator said so"
        if reason is not None:
            raise ReadOnlyBookieError(
                f"add to ledger {ledger_id}: the bookie is read-only: {reason}; write elsewhere"
            )

    def _check_journal(self, ledger_id: int, size: int) -> None:
        journal = self._journals[ledger_id % len(self._journals)]
        limit = self._config.journal.pending_bytes_max
        if journal.pending_bytes + size > limit and journal.pending_bytes:
            raise TooManyRequestsError(
                f"add to ledger {ledger_id}: {journal.pending_bytes} bytes wait for the journal "
                f"(journal.pending_bytes_max is {limit}); try again later"
            )

    def _bind(
        self, ledger_id: int, ledger: LedgerState | None, master_key: bytes, begins: bool = False
    ) -> LedgerState:
        """Bind the master key: in the journal before whatever depends on it. ``begins``: this is
        the ledger's first entry, so nothing of it can have been lost before."""
        if ledger is None:
            ledger = self._table.create(ledger_id, master_key)
            ledger.epoch = ledger.storage.marks.epoch if begins else 0
        ledger.master_key = master_key
        ledger.storage.dirty[ledger_id] = ledger
        record = encode_ledger(ledger_id, master_key, ledger.fenced)
        ledger.journal.append(Request(LEDGER, (record,), len(record), None, ()))
        return ledger

    # -- fencing, last add confirmed, barriers ------------------------------------------------

    async def _fence(self, ledger_id: int, master_key: bytes) -> LedgerState:
        """Fence the ledger, durably; it is created if it is unknown."""
        if self._closed:
            raise BookieIOError("the bookie is closed")
        ledger = self._table.find(ledger_id)
        if ledger is None:
            _check_key_length(ledger_id, master_key)
            ledger = self._table.create(ledger_id, master_key)
        elif ledger.deleted:
            raise NoLedgerError(f"ledger {ledger_id} was deleted here")
        else:
            _check_key(ledger, master_key)
        if not ledger.fenced:
            ledger.fenced = True
            self._bind(ledger_id, ledger, master_key)
        if not ledger.fence_durable:
            await ledger.journal.barrier()
            ledger.fence_durable = True
        return ledger

    async def write_lac(self, ledger_id: int, master_key: bytes, lac: int, body: bytes) -> None:
        """Remember an explicit LAC, durably. Raises ``BadRequestError`` for a large ``body``."""
        if len(body) > LAC_BODY_BYTES_MAX:
            raise BadRequestError(f"LAC of ledger {ledger_id}: body of {len(body)} bytes")
        ledger = self._table.find(ledger_id)
        self._check_writable(ledger_id, ledger, master_key, RECOVERY)
        if ledger is None or not ledger.master_key:
            ledger = self._bind(ledger_id, ledger, master_key)
        if lac > ledger.explicit_lac:
            ledger.explicit_lac, ledger.lac_body = lac, bytes(body)
            ledger.storage.dirty[ledger_id] = ledger
        await ledger.journal.write(LAC, encode_lac(ledger_id, lac, body))

    async def read_lac(self, ledger_id: int, flags: int = 0, master_key: bytes = b"") -> LacReply:
        """The highest LAC heard of and the entry of highest id. Raises ``NoLedgerError`` (not
        with FENCE)."""
        if flags & FENCE:
            ledger = await self._fence(ledger_id, master_key)
        else:
            ledger = self._known(ledger_id)
        last = None
        if ledger.last_entry_id >= 0:
            last = await self.read_entry(ledger_id, ledger.last_entry_id)
        return LacReply(max(ledger.lac, ledger.explicit_lac), last, ledger.lac_body or None)

    def explicit_lac_body(self, ledger_id: int) -> bytes:
        """What came with the highest explicit LAC; empty if none came. Raises ``NoLedgerError``."""
        return self._known(ledger_id).lac_body

    async def force(self, ledger_id: int) -> None:
        """Return when everything added to the ledger before is on the device."""
        await self._journals[ledger_id % len(self._journals)].barrier()

    # -- reading ------------------------------------------------------------------------------

    def _known(self, ledger_id: int) -> LedgerState:
        """The ledger's state. Raises ``NoLedgerError`` if it is certain that there is none."""
        if self._closed:
            raise BookieIOError("the bookie is closed")
        ledger = self._table.find(ledger_id)
        if ledger is not None and not ledger.deleted:
            return ledger
        if ledger is None and self._table.storage_of(ledger_id).marks.limbo:
            raise _unknown(f"ledger {ledger_id}")
        raise NoLedgerError(f"ledger {ledger_id} is not on this bookie")

    def read_cached(self, ledger_id: int, entry_id: int) -> bytes | None:
        """The entry if it is in memory; None says nothing. Entry -1: the one of highest id."""
        ledger = self._table.get_loaded(ledger_id)
        if ledger is None:
            return self._read_cache.get(ledger_id, entry_id)
        if ledger.deleted:
            return None
        if entry_id < 0:
            entry_id = ledger.last_entry_id
        entry = ledger.storage.cache.get(ledger_id, entry_id)
        return entry if entry is not None else self._read_cache.get(ledger_id, entry_id)

    async def read_entry(
        self, ledger_id: int, entry_id: int, flags: int = 0, master_key: bytes = b""
    ) -> bytes:
        """The whole entry; -1 is the one of highest id. Raises ``NoEntryError``,
        ``NoLedgerError``, ``UnknownLedgerStateError``, ``BookieIOError``."""
        if flags & FENCE:
            ledger = await self._fence(ledger_id, master_key)
        else:
            ledger = self._known(ledger_id)
        if entry_id < 0:
            entry_id = ledger.last_entry_id
        entry = self.read_cached(ledger_id, entry_id)
        if entry is not None:
            return entry
        if 0 <= entry_id <= ledger.last_entry_id:
            found = await self._fetch(ledger, entry_id)
            if found:
                return found[0][1]
        if not ledger.certain:
            raise _unknown(f"entry {ledger_id}:{entry_id}")
        raise NoEntryError(f"entry {ledger_id}:{entry_id} is not on this bookie")

    async def read_batch(
        self,
        ledger_id: int,
        first_entry_id: int,
        max_entries: int,
        max_bytes: int,
        flags: int = 0,
        master_key: bytes = b"",
    ) -> list[bytes]:
        """Consecutive entries, at least one, at most ``max_entries`` and (but for the first)
        ``max_bytes``; stops before the first that is missing or damaged. Fences first if asked
        to. Raises as ``read_entry``."""
        entries = [await self.read_entry(ledger_id, first_entry_id, flags, master_key)]
        size = len(entries[0])
        for entry_id in range(first_entry_id + 1, first_entry_id + max_entries):
            entry = self.read_cached(ledger_id, entry_id)
            if entry is None:
                try:
                    entry = await self.read_entry(ledger_id, entry_id)
                except BookieError:
                    break
            size += len(entry)
            if size > max_bytes:
                break
            entries.append(entry)
        return entries

    async def _fetch(self, ledger: LedgerState, entry_id: int) -> list[tuple[int, bytes]]:
        """Read from the entry log, ahead; readers of the same entry share one read."""
        key = (ledger.ledger_id, entry_id)
        if key not in self._reads:
            appended_bytes = sum([journal.appended_bytes for journal in self._journals])
            rest_s = self._read_pace.rest_s(*key, appended_bytes, self._loop.time())
            if rest_s:
                await asyncio.sleep(rest_s)
        future = shared = self._reads.get(key)
        if future is None:
            if len(self._reads) >= READS_MAX:
                raise TooManyRequestsError(
                    f"read of entry {key[0]}:{key[1]}: {READS_MAX} reads are under way; "
                    "try again later"
                )
            config = self._config
            future = self._reads[key] = ledger.storage.read(
                *key, config.read_ahead_entries, config.read_ahead_bytes
            )
            future.add_done_callback(self._fetched(ledger, entry_id))
        found = await asyncio.shield(future)
        if not found and shared is not None:  # it may have looked before the entry came
            return await self._fetch(ledger, entry_id)
        return found

    def _fetched(
        self, ledger: LedgerState, entry_id: int
    ) -> Callable[[asyncio.Future[list[tuple[int, bytes]]]], None]:
        started_s = self._loop.time()

        def fetched(future: asyncio.Future[list[tuple[int, bytes]]]) -> None:
            self._reads.pop((ledger.ledger_id, entry_id), None)
            if future.cancelled() or future.exception() is not None or ledger.deleted:
                return
            found = future.result()
            self._read_cache.put(ledger.ledger_id, found)
            if found:
                now_s = self._loop.time()
                following = found[-1][0] + 1
                self._read_pace.read(ledger.ledger_id, following, now_s - started_s, now_s)

        return fetched

    async def list_entries(self, ledger_id: int) -> list[int]:
        """The ids of the ledger's entries here, ascending. Raises ``NoLedgerError``."""
        return await self._known(ledger_id).storage.entry_ids(ledger_id)

    async def ledgers(self) -> list[int]:
        """The ids of the ledgers here, ascending; deleted ones left out."""
        found: dict[int, bool] = {}
        for storage in self._storages:
            found.update(await storage.ledgers())
        found.update({state.ledger_id: state.deleted for state in self._table.loaded()})
        return sorted(ledger_id for ledger_id, deleted in found.items() if not deleted)

    def info(self) -> BookieInfo:
        spaces = [self._disk.space(storage.path) for storage in self._storages]
        return BookieInfo(
            sum(space.total_bytes for space in spaces),
            sum(space.free_bytes for space in spaces),
            self.read_only,
            any(storage.marks.limbo for storage in self._storages),
            sum(storage.cache.byte_count for storage in self._storages),
            self._read_cache.byte_count,
            sum(journal.pending_bytes for journal in self._journals),
            tuple(self._upkeep.failed_directories),
        )

    async def delete_ledger(self, ledger_id: int) -> None:
        """Forget the ledger's entries, durably; it refuses writers and readers from now on. The
        index follows with the next flush. Idempotent."""
        if self._closed:
            raise BookieIOError("the bookie is closed")
        ledger = self._table.find(ledger_id)
        if ledger is None or (ledger.deleted and ledger_id not in ledger.storage.deleted):
            return
        ledger.deleted = True
        ledger.storage.cache.drop_ledger(ledger_id)
        ledger.storage.dirty[ledger_id] = ledger
        ledger.storage.deleted[ledger_id] = None
        self._read_cache.drop_ledger(ledger_id)
        await ledger.journal.write(DELETE, encode_delete(ledger_id))
        ledger.storage.deletion_journaled(ledger_id)

    async def leave_limbo(self) -> None:
        """An operator's word that what this bookie lost has been restored from others: "no" is
        certain again."""
        for storage in self._storages:
            await storage.leave_limbo()


def _check_certain(ledger_id: int, ledger: LedgerState | None, first_entry_id: int) -> None:
    """In limbo: a ledger that is not known to have begun since may have been fenced here, and its
    fence lost with the rest."""
    if not ledger.certain if ledger is not None else first_entry_id != 0:
        raise UnknownLedgerStateError(
            f"add to ledger {ledger_id}: this bookie has lost entries and perhaps the ledger's "
            "fence; write elsewhere, and repair this bookie"
        )


def _check_key_length(ledger_id: int, master_key: bytes) -> None:
    if len(master_key) != MASTER_KEY_BYTES or ledger_id < 0:
        raise UnauthorizedError(
            f"ledger {ledger_id}: a master key has {MASTER_KEY_BYTES} bytes, not "
            f"{len(master_key)}, and a ledger id is not negative"
        )


def _check_key(ledger: LedgerState, master_key: bytes) -> None:
    if ledger.master_key == master_key:
        return
    if ledger.master_key:
        raise UnauthorizedError(
            f"ledger {ledger.ledger_id}: the master key is not the ledger's; is the password right?"
        )
    _check_key_length(ledger.ledger_id, master_key)


def _unknown(what: str) -> UnknownLedgerStateError:
    return UnknownLedgerStateError(
        f"{what}: this bookie may have lost acknowledged entries and cannot say; ask another "
        "bookie, and repair this one"
    )
