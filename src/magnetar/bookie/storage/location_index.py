"""The location index: where each entry lies, and what is known of each ledger and log. RocksDB.

Keys and values are described in ``docs/formats/index.md``: ``locations`` has a row per run of
entries (``location_runs.py``); ``ledgers`` and ``deleted`` map the ledger id (8 bytes) to a ledger
record; ``shares`` and ``logs`` say how much of each entry log is of use (``usage_store.py``).

Rules:

* Writes go through RocksDB's own log without a sync each; ``sync`` makes all of them durable and
  is called before a mark moves. What a power cut leaves is the writes up to one of them, over all
  families; a batch is there or not.
* A write holds the interpreter, so a batch has at most ``BATCH_MAX`` keys, and what one run of
  entries replaces. Reads may come from any thread; locations are written by one, the flush lane's,
  which looks what is there before it writes.
* A run is put without a look if it is known that nothing of its ledger lies as far back
  (``_ends``): a look costs five times a put, and a ledger of runs of one entry would pay it for
  each. What is known is forgotten before a write and known again after it: of one that failed
  nobody knows what is there.
* A ledger has its record in ``ledgers`` or, once it is deleted, in ``deleted``: whoever lists the
  ledgers that are here does not pay for all that ever were. If both have one, ``ledgers`` counts.
* A read pays for the range deletions in RocksDB's memory each time that one was added, so they are
  written out, ``RANGE_DELETIONS_MAX`` at most.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import structlog
from rocksdict import (
    BlockBasedOptions,
    Cache,
    DBCompressionType,
    Options,
    Rdict,
    RdictIter,
    WriteBatch,
)

from magnetar.bookie.storage.ledger_record import record_deleted
from magnetar.bookie.storage.location_runs import RUN_ENTRIES_MAX, LocationRun, gathered, replacing
from magnetar.model.errors import BookieIOError

log = structlog.get_logger(__name__)

BATCH_MAX = 500
BLOCK_CACHE_BYTES = 8 << 20
WRITE_BUFFER_BYTES = 4 << 20
WAL_BYTES_MAX = 16 << 20
BATCH_ENTRIES_MAX = 16 * RUN_ENTRIES_MAX
"""Of all runs in a batch: 32 KiB."""
ENDS_KNOWN_MAX = 50_000
"""Ledgers; some 100 bytes each."""
ID_MAX = (1 << 63) - 1
"""Of ledgers and entries."""
RANGE_DELETIONS_MAX = 1000
"""Of them the next read of a location costs 2.5 ms, of 20 000 it would 55."""

_KEY = struct.Struct(">qq")
_LEDGER_KEY = struct.Struct(">q")
_SHARE_KEY = struct.Struct(">qI")
_SHARE = struct.Struct(">Q")
_LOG_KEY = struct.Struct(">I")
_LOG = struct.Struct(">QQ")
_HIGHEST_KEY, _SEPARATED_KEY = b"highest", b"separated"
_DAMAGE = ("Corruption", "No such file")
"""What RocksDB says then."""
_NEWER = "Column families not opened"
"""What it says of a database with a family that this version does not know (``_FAMILIES``)."""
_FAMILIES = ("locations", "ledgers", "deleted", "shares", "logs", "runs")
"""``runs`` is empty. RocksDB opens no database with a family that it was not told of, so a version
that would take a run for one entry is refused."""


class Share(NamedTuple):
    """``byte_count``: of a ledger's records in a log, what stands before each included."""

    log_id: int
    byte_count: int


class StoredLog(NamedTuple):
    """``byte_count``: of a log's records; ``live_bytes``: of all ``Share`` rows of the log."""

    log_id: int
    byte_count: int
    live_bytes: int


class UsageChange(NamedTuple):
    """One batch. ``shares``: (ledger id, log id, bytes); ``no_shares``: (ledger id, log id);
    ``no_locations``: ledgers whose entries are forgotten; ``highest``: no log has an id above."""

    shares: Sequence[tuple[int, int, int]] = ()
    no_shares: Sequence[tuple[int, int]] = ()
    logs: Sequence[StoredLog] = ()
    no_logs: Sequence[int] = ()
    no_locations: Sequence[int] = ()
    highest: int | None = None

    @property
    def keys(self) -> int:
        """How many keys it changes."""
        return (
            len(self.shares)
            + len(self.no_shares)
            + len(self.logs)
            + len(self.no_logs)
            + len(self.no_locations)
        )


def _advice(path: Path, error: Exception) -> str:
    """What to do about a database that does not open; nothing for a full disk, a lock, ..."""
    if _NEWER in str(error):
        return (
            " (A newer version of Magnetar wrote it, in a format that this one does not know; use "
            "the release that wrote it or a newer one)"
        )
    if any(sign in str(error) for sign in _DAMAGE):
        return (
            f" (Restore all of {path.parent} from a copy. If there is none, what it holds has to "
            "come from other bookies: remove this one's directories, magnetar bookie recover, and "
            "start it anew)"
        )
    return ""


class LocationIndex:
    """One RocksDB database. Blocking; raises ``BookieIOError`` where RocksDB fails."""

    synced_sequence = 0
    """What ``sequence`` was at the last ``sync`` of this opening."""

    def __init__(self, path: Path) -> None:
        self.path = path
        families = {name: _options() for name in _FAMILIES}
        try:
            self._db = Rdict(str(path), options=_options(), column_families=families)
        except Exception as error:  # as in ``_checked``
            said = " ".join(str(error).split())  # RocksDB's own may have several lines
            raise BookieIOError(f"location index {path}: {said}{_advice(path, error)}") from error
        self._families = {name: self._db.get_column_family(name) for name in _FAMILIES}
        self._handles = {name: self._db.get_column_family_handle(name) for name in _FAMILIES}
        self._locations, self._ledgers, self._deleted, self._shares, self._logs = (
            self._families[name] for name in _FAMILIES[:5]
        )
        self._locations_handle, self._ledgers_handle = (
            self._handles["locations"],
            self._handles["ledgers"],
        )
        self._range_deletions = 0
        self._ends: dict[int, int] = {}
        """Ledger -> its last entry here, as far as that is known."""

    def _checked(self, call: Callable[[], Rdict]) -> Rdict:
        """RocksDB's binding raises bare ``Exception``: give it our name and the path."""
        try:
            return call()
        except Exception as error:  # the binding has no narrower type
            raise BookieIOError(f"location index {self.path}: {error}") from error

    # -- reading ------------------------------------------------------------------------------

    def location(self, ledger_id: int, entry_id: int) -> tuple[int, int] | None:
        """(entry log id, offset), or None: the index has no such entry."""
        run = self.run(ledger_id, entry_id)
        return None if run is None else run.place(entry_id)

    def run(self, ledger_id: int, entry_id: int) -> LocationRun | None:
        """The row that has the entry; None: there is none."""
        for run in self.runs(ledger_id, entry_id):
            return run if run.first <= entry_id else None
        return None

    def runs(self, ledger_id: int, first: int) -> Iterator[LocationRun]:
        """The ledger's rows, ascending, from the one on that has ``first`` or lies behind it."""
        prefix = _LEDGER_KEY.pack(ledger_id)
        rows = self._locations.iter()
        rows.seek(_KEY.pack(ledger_id, first))
        while rows.valid():
            key: bytes = rows.key()
            if not key.startswith(prefix):
                break
            yield LocationRun(ledger_id, _KEY.unpack(key)[1], rows.value())
            rows.next()
        self._check_whole(rows)

    def entry_ids(self, ledger_id: int, first: int = 0, at_most: int = 1 << 62) -> list[int]:
        """The ledger's entries from ``first`` on, ascending. A ledger may have many millions:
        without ``at_most`` only of one that is known to be small."""
        found: list[int] = []
        if first > ID_MAX:  # behind the last one that there can be
            return found
        for run in self.runs(ledger_id, first):
            start = max(run.first, first)
            found += range(start, min(run.last + 1, start + at_most - len(found)))
            if len(found) == at_most:
                break
        return found

    def ledger(self, ledger_id: int) -> bytes | None:
        """The ledger's record, be it a deleted one."""
        key = _LEDGER_KEY.pack(ledger_id)
        try:
            value: bytes | None = self._ledgers.get(key)
            if value is None:
                value = self._deleted.get(key)
        except Exception as error:  # the binding has no narrower type
            raise BookieIOError(f"location index {self.path}: {error}") from error
        return value

    def ledgers(self, first: int = 0, behind: int = 1 << 63) -> Iterator[tuple[int, bytes]]:
        """(ledger id, record) of those that are not deleted, ascending; ids in [first, behind)."""
        rows = self._ledgers.iter()
        rows.seek(_LEDGER_KEY.pack(first))
        while rows.valid():
            ledger_id = _LEDGER_KEY.unpack(rows.key())[0]
            if ledger_id >= behind:
                break
            yield ledger_id, rows.value()
            rows.next()
        self._check_whole(rows)

    @property
    def empty(self) -> bool:
        """Whether it has never heard of a ledger."""
        for family in (self._ledgers, self._deleted):
            rows = family.iter()
            rows.seek_to_first()
            if rows.valid():
                return False
            self._check_whole(rows)
        return True

    def located(self, first: int = 0, behind: int = 1 << 63) -> Iterator[int]:
        """The ledgers that have entries here, ascending, whether they have a record or not; ids in
        [first, behind). A seek for each."""
        rows = self._locations.iter()
        rows.seek(_KEY.pack(first, 0))
        while rows.valid():
            ledger_id = _KEY.unpack(rows.key())[0]
            if ledger_id >= behind:
                break
            yield ledger_id
            rows.seek(_behind(ledger_id))
        self._check_whole(rows)

    def shares(self, ledger_id: int) -> list[Share]:
        """What the ledger has in the logs whose use is stored."""
        found = []
        prefix = _LEDGER_KEY.pack(ledger_id)
        rows = self._shares.iter()
        rows.seek(prefix)
        while rows.valid():
            key: bytes = rows.key()
            if not key.startswith(prefix):
                break
            found.append(Share(_SHARE_KEY.unpack(key)[1], *_SHARE.unpack(rows.value())))
            rows.next()
        self._check_whole(rows)
        return found

    def logs(self) -> tuple[list[StoredLog], int]:
        """The logs whose use is stored, ascending, and the highest id of those that were given up
        (0: none)."""
        found = []
        highest = 0
        rows = self._logs.iter()
        rows.seek_to_first()
        while rows.valid():
            key: bytes = rows.key()
            if key == _HIGHEST_KEY:
                highest = _LOG_KEY.unpack(rows.value())[0]
            elif len(key) == _LOG_KEY.size:
                found.append(StoredLog(*_LOG_KEY.unpack(key), *_LOG.unpack(rows.value())))
            rows.next()
        self._check_whole(rows)
        return found, highest

    def _check_whole(self, rows: RdictIter) -> None:
        """Rows that meet damage end as if there were no more."""
        try:
            rows.status()
        except Exception as error:  # the binding has no narrower type
            raise BookieIOError(f"location index {self.path}: {error}") from error

    # -- writing ------------------------------------------------------------------------------

    def put_locations(self, rows: Sequence[tuple[int, int, int, int]]) -> None:
        """At most ``BATCH_MAX`` of (ledger id, entry id, entry log id, offset), at least one."""
        assert 0 < len(rows) <= BATCH_MAX
        self.put_runs(gathered(rows))

    def put_runs(self, runs: Sequence[LocationRun]) -> None:
        """Ascending, none overlaps another; at most ``BATCH_MAX``, and of ``BATCH_ENTRIES_MAX``
        entries together. From then on they count for their entries."""
        assert 0 < len(runs) <= BATCH_MAX
        known: dict[int, int] = {}  # what ``_ends`` will say
        gone: list[tuple[int, int]] = []
        new: list[LocationRun] = []
        for run in runs:
            ledger_id, last, _ = run
            end = known.pop(ledger_id, None)
            if end is None:
                end = self._ends.pop(ledger_id, None)
            if end is not None and end < run.first:
                new.append(run)
                known[ledger_id] = last
                continue
            replaced, more = self._look(run)
            gone += [(ledger_id, row.last) for row in replaced]
            new += (*replacing(replaced, run), run)
            if not more:
                known[ledger_id] = last
            elif replaced and replaced[-1].last > last:
                # What is left of it lies behind: the next run may overlap that, and is to see it.
                self._write_runs(gone, new)
                gone, new = [], []
        if new:
            self._write_runs(gone, new)
        self._ends.update(known)
        while len(self._ends) > ENDS_KNOWN_MAX:
            del self._ends[next(iter(self._ends))]

    def _look(self, run: LocationRun) -> tuple[list[LocationRun], bool]:
        """The rows that the run overlaps, and whether the ledger has entries behind it."""
        replaced: list[LocationRun] = []
        for row in self.runs(run.ledger_id, run.first):
            if row.first > run.last:
                return replaced, True
            replaced.append(row)
            if row.last > run.last:
                return replaced, True
        return replaced, False

    def _write_runs(self, gone: Sequence[tuple[int, int]], new: Sequence[LocationRun]) -> None:
        """In one batch: rows (ledger id, last entry) that go, then those that come."""
        batch = WriteBatch(raw_mode=True)
        batch.set_default_column_family(self._locations_handle)
        for key in gone:
            batch.delete(_KEY.pack(*key))
        for ledger_id, last, value in new:
            batch.put(_KEY.pack(ledger_id, last), value)
        self._write(batch)

    def put_ledgers(self, rows: Sequence[tuple[int, bytes]]) -> None:
        """At most ``BATCH_MAX`` of (ledger id, record)."""
        assert len(rows) <= BATCH_MAX
        batch = WriteBatch(raw_mode=True)
        for ledger_id, record in rows:
            key = _LEDGER_KEY.pack(ledger_id)
            if record_deleted(record):
                batch.put(key, record, self._handles["deleted"])
                batch.delete(key, self._ledgers_handle)
            else:
                batch.put(key, record, self._ledgers_handle)
        self._write(batch)

    def change_usage(self, change: UsageChange) -> None:
        """All of it or nothing; at most ``BATCH_MAX`` keys, and those of one ledger."""
        batch = WriteBatch(raw_mode=True)
        shares, logs = self._handles["shares"], self._handles["logs"]
        for ledger_id in change.no_locations:
            self._ends.pop(ledger_id, None)
            first = _KEY.pack(ledger_id, 0)
            batch.delete_range(first, _behind(ledger_id), self._locations_handle)
        for ledger_id, log_id in change.no_shares:
            batch.delete(_SHARE_KEY.pack(ledger_id, log_id), shares)
        for ledger_id, log_id, byte_count in change.shares:
            batch.put(_SHARE_KEY.pack(ledger_id, log_id), _SHARE.pack(byte_count), shares)
        for log_id, byte_count, live_bytes in change.logs:
            batch.put(_LOG_KEY.pack(log_id), _LOG.pack(byte_count, live_bytes), logs)
        for log_id in change.no_logs:
            batch.delete(_LOG_KEY.pack(log_id), logs)
        if change.highest is not None:
            batch.put(_HIGHEST_KEY, _LOG_KEY.pack(change.highest), logs)
        self._write(batch)
        self._range_deletions += len(change.no_locations)
        if self._range_deletions >= RANGE_DELETIONS_MAX:
            self._write_out()

    def _write_out(self) -> None:
        try:
            self._locations.flush()
        except Exception as error:  # the binding has no narrower type
            raise BookieIOError(f"location index {self.path}: {error}") from error
        self._range_deletions = 0

    def separate_deleted(self) -> int:
        """Of an index that an older version wrote, with the records of deleted ledgers among the
        others: they go where they belong. Goes over all records, once; returns how many went."""
        if self._logs.get(_SEPARATED_KEY) is not None:
            return 0
        moved = 0
        rows: list[tuple[int, bytes]] = []
        for row in self.ledgers():
            if record_deleted(row[1]):
                rows.append(row)
                moved += 1
            if len(rows) == BATCH_MAX:
                self.put_ledgers(rows)
                rows.clear()
        self.put_ledgers(rows)
        batch = WriteBatch(raw_mode=True)
        batch.put(_SEPARATED_KEY, b"", self._handles["logs"])
        self._write(batch)
        return moved

    def _write(self, batch: WriteBatch) -> None:
        try:
            self._db.write(batch)
        except Exception as error:  # the binding has no narrower type
            raise BookieIOError(f"location index {self.path}: {error}") from error

    def sync(self) -> None:
        """Everything written so far is durable on return."""
        try:
            sequence = self.sequence
            self._db.flush_wal(True)
        except Exception as error:  # the binding has no narrower type
            raise BookieIOError(f"location index {self.path}: {error}") from error
        self.synced_sequence = sequence

    @property
    def sequence(self) -> int:
        """The number of changes ever made: an index that is behind one that was synced has lost
        some (RocksDB drops what follows a damaged record of its own log without a word)."""
        number: int = self._db.latest_sequence_number()
        return number

    def close(self) -> None:
        """Give the directory free for another opening, also in this process."""
        del self._locations_handle, self._ledgers_handle  # they would keep RocksDB's lock
        parts = [self._db, *self._families.values()]
        del self._db, self._families, self._handles
        del self._ledgers, self._locations, self._deleted, self._shares, self._logs
        while parts:
            try:
                parts.pop().close()  # and with the last reference the lock goes, whatever it says
            except Exception as error:  # noqa: BLE001 - the binding has no narrower type
                # RocksDB met a full disk and has not come round: the journal has what it lacks.
                log.error("index not closed in order", path=str(self.path), error=str(error))


def _behind(ledger_id: int) -> bytes:
    """Behind all keys of the ledger, before those of others; ``ID_MAX`` is one of them."""
    return (ledger_id + 1).to_bytes(8, "big")


def _options() -> Options:
    """Small: a bookie's working set of locations lies in a few recent blocks."""
    table = BlockBasedOptions()
    table.set_block_cache(Cache(BLOCK_CACHE_BYTES))
    table.set_bloom_filter(10, False)
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    options.create_missing_column_families(True)
    options.set_block_based_table_factory(table)
    options.set_compression_type(DBCompressionType.none())
    options.set_write_buffer_size(WRITE_BUFFER_BYTES)
    options.set_max_write_buffer_number(2)
    options.set_max_total_wal_size(WAL_BYTES_MAX)
    options.set_max_background_jobs(2)
    options.set_keep_log_file_num(2)
    options.set_max_open_files(256)
    return options
