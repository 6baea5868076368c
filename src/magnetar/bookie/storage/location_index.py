"""The location index: where each entry lies, and what is known of each ledger. RocksDB.

Keys and values are described in ``docs/formats/index.md``: family ``locations`` maps
ledger|entry (16 bytes, big-endian) to (entry log << 32) | offset (8 bytes); family ``ledgers``
maps the ledger id (8 bytes) to a ledger record.

Rules: writes go through RocksDB's own log without a sync each; ``sync`` makes all of them durable
and is called before a mark moves. A write holds the interpreter, so a batch has at most
``BATCH_MAX`` keys. Reads may come from any thread.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

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

from magnetar.model.errors import BookieIOError

log = structlog.get_logger(__name__)

BATCH_MAX = 500
BLOCK_CACHE_BYTES = 8 << 20
WRITE_BUFFER_BYTES = 4 << 20
WAL_BYTES_MAX = 16 << 20

_KEY = struct.Struct(">qq")
_LEDGER_KEY = struct.Struct(">q")
_LOCATION = struct.Struct(">II")


class LocationIndex:
    """One RocksDB database. Blocking; raises ``BookieIOError`` where RocksDB fails."""

    synced_sequence = 0
    """What ``sequence`` was at the last ``sync`` of this opening."""

    def __init__(self, path: Path) -> None:
        self.path = path
        families = {"locations": _options(), "ledgers": _options()}
        self._db = self._checked(
            lambda: Rdict(str(path), options=_options(), column_families=families)
        )
        self._locations = self._db.get_column_family("locations")
        self._ledgers = self._db.get_column_family("ledgers")
        self._locations_handle = self._db.get_column_family_handle("locations")
        self._ledgers_handle = self._db.get_column_family_handle("ledgers")

    def _checked(self, call: Callable[[], Rdict]) -> Rdict:
        """RocksDB's binding raises bare ``Exception``: give it our name and the path."""
        try:
            return call()
        except Exception as error:  # the binding has no narrower type
            raise BookieIOError(f"location index {self.path}: {error}") from error

    # -- reading ------------------------------------------------------------------------------

    def location(self, ledger_id: int, entry_id: int) -> tuple[int, int] | None:
        """(entry log id, offset), or None: the index has no such entry."""
        try:
            value = self._locations.get(_KEY.pack(ledger_id, entry_id))
        except Exception as error:  # the binding has no narrower type
            raise BookieIOError(f"location index {self.path}: {error}") from error
        if value is None:
            return None
        log_id, offset = _LOCATION.unpack(value)
        return log_id, offset

    def entry_ids(self, ledger_id: int) -> list[int]:
        """Every entry of the ledger, ascending."""
        found = []
        prefix = _LEDGER_KEY.pack(ledger_id)
        rows = self._locations.iter()
        rows.seek(prefix)
        while rows.valid():
            key: bytes = rows.key()
            if not key.startswith(prefix):
                break
            found.append(_KEY.unpack(key)[1])
            rows.next()
        self._check_whole(rows)
        return found

    def ledger(self, ledger_id: int) -> bytes | None:
        """The ledger's record."""
        try:
            value: bytes | None = self._ledgers.get(_LEDGER_KEY.pack(ledger_id))
        except Exception as error:  # the binding has no narrower type
            raise BookieIOError(f"location index {self.path}: {error}") from error
        return value

    def ledgers(self) -> Iterator[tuple[int, bytes]]:
        """(ledger id, record), ascending."""
        rows = self._ledgers.iter()
        rows.seek_to_first()
        while rows.valid():
            yield _LEDGER_KEY.unpack(rows.key())[0], rows.value()
            rows.next()
        self._check_whole(rows)

    def located(self) -> Iterator[int]:
        """The ledgers that have entries here, ascending, whether they have a record or not. A
        seek for each."""
        rows = self._locations.iter()
        rows.seek_to_first()
        while rows.valid():
            ledger_id = _KEY.unpack(rows.key())[0]
            yield ledger_id
            rows.seek(_KEY.pack(ledger_id + 1, 0))
        self._check_whole(rows)

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
        ledger_ids, entry_ids, log_ids, offsets = zip(*rows, strict=True)
        batch = WriteBatch(raw_mode=True)
        batch.set_default_column_family(self._locations_handle)
        keys = map(_KEY.pack, ledger_ids, entry_ids)
        places = map(_LOCATION.pack, log_ids, offsets)
        deque(map(batch.put, keys, places), maxlen=0)  # a loop of the interpreter's own
        self._write(batch)

    def put_ledgers(self, rows: Sequence[tuple[int, bytes]]) -> None:
        """At most ``BATCH_MAX`` of (ledger id, record)."""
        assert len(rows) <= BATCH_MAX
        batch = WriteBatch(raw_mode=True)
        for ledger_id, record in rows:
            batch.put(_LEDGER_KEY.pack(ledger_id), record, self._ledgers_handle)
        self._write(batch)

    def delete_locations(self, ledger_id: int) -> None:
        """Forget where the ledger's entries lie."""
        batch = WriteBatch(raw_mode=True)
        first, behind = _KEY.pack(ledger_id, 0), _KEY.pack(ledger_id, (1 << 63) - 1)
        batch.delete_range(first, behind, self._locations_handle)
        self._write(batch)

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
        parts = [self._db, self._ledgers, self._locations]
        del self._db, self._ledgers, self._locations
        while parts:
            try:
                parts.pop().close()  # and with the last reference the lock goes, whatever it says
            except Exception as error:  # noqa: BLE001 - the binding has no narrower type
                # RocksDB met a full disk and has not come round: the journal has what it lacks.
                log.error("index not closed in order", path=str(self.path), error=str(error))


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
