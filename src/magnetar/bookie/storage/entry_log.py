"""Entry logs: where entries lie for good. One file holds entries of many ledgers, sorted by
(ledger, entry) within each flush. The bytes: ``entry_log_format.py``.

Rules: a log is only appended to, and only by one writer: its directory's flush, or a compaction;
after a restart, or after a failed sync, a new one is begun. Records become visible to readers
through the index, which is written after ``sync``.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate, groupby, repeat
from pathlib import Path
from typing import TypeAlias

from magnetar.bookie.storage.entry_log_format import (
    HEADER_BYTES,
    RECORD_HEADER_BYTES,
    encode_footer,
    encode_header,
    encode_record_headers,
    log_ids,
    log_path,
    record_length,
    seed_of,
)
from magnetar.bookie.storage.entry_runs import RecordRun
from magnetar.env.files.disk import Buffer, Disk, DiskFile
from magnetar.model.errors import BookieIOError
from magnetar.speedups import check_records, join_records

OPEN_LOGS_MAX = 64
JOIN_BYTES_MAX = 16 << 10
OFFSET_MAX = (1 << 32) - 1
ENTRY_BYTES_MAX = 1 << 28

Finished: TypeAlias = Callable[[int, int, Mapping[int, Sequence[int]]], None]
"""``finished(log id, bytes of records, ledger id -> (entries, bytes))``: a log takes no more."""


def log_bytes_limit(log_bytes_max: int) -> int:
    """What is left of a log's largest size, as it was set, so that offsets have room."""
    return min(log_bytes_max, OFFSET_MAX - (1 << 29))


class LogIds:
    """Gives out the ids of a directory's logs; any thread may take one."""

    def __init__(self, highest: int) -> None:
        self._lock = threading.Lock()
        self._next = highest + 1

    @property
    def next_id(self) -> int:
        """The id that will be given out next: every log that exists has a smaller one."""
        return self._next

    def take(self) -> int:
        with self._lock:
            log_id, self._next = self._next, self._next + 1
        return log_id


class EntryLogWriter:
    """Appends to one log after the other. Blocking; raises ``OSError``. Used by one lane.

    ``ids``: given by whoever has several writers in one directory. ``sources``: the logs that what
    is written here replaces (a compaction's: one log, however large), none for a flush's.
    """

    def __init__(
        self,
        disk: Disk,
        directory: Path,
        log_bytes_max: int,
        ids: LogIds | None = None,
        finished: Finished = lambda log_id, byte_count, ledgers: None,
        sources: Sequence[int] = (),
    ) -> None:
        self._disk = disk
        self._directory = directory
        self._log_bytes_max = log_bytes_limit(log_bytes_max)
        self._ids = ids or LogIds(max(log_ids(disk.list(directory)), default=0))
        self._finished = finished
        self._sources = sources
        self._file: DiskFile | None = None
        self._log_id = 0
        self._seed = 0
        self._offset = 0
        self._ledgers: dict[int, list[int]] = {}  # ledger id -> [entries, bytes]

    @property
    def log_id(self) -> int:
        """The log written last."""
        return self._log_id

    @property
    def path(self) -> Path:
        """Of the log that is open."""
        assert self._file is not None
        return self._file.path

    @property
    def end(self) -> int:
        """Where its records end."""
        return self._offset

    @property
    def settled_id(self) -> int:
        """No log below this id is written by this writer any more."""
        return self._log_id if self._file is not None else self._ids.next_id

    @property
    def held(self) -> tuple[int, Mapping[int, Sequence[int]]]:
        """(bytes of records, ledger id -> (entries, bytes)) of the log that is open; (0, nothing)
        if none is."""
        return (self._offset - HEADER_BYTES, self._ledgers) if self._file is not None else (0, {})

    def append(self, entries: Sequence[tuple[int, int, bytes]]) -> list[tuple[int, int, int, int]]:
        """Write (ledger id, entry id, entry) rows, a few hundred at a time; returns (ledger id,
        entry id, log id, offset) rows. Not durable before ``sync``."""
        ledger_ids, entry_ids, data = zip(*entries, strict=True)
        spans = [(ledger_id, len(list(same))) for ledger_id, same in groupby(ledger_ids)]
        offsets = self.append_spans(spans, data)
        return list(zip(ledger_ids, entry_ids, repeat(self._log_id), offsets, strict=False))

    def append_spans(self, spans: Sequence[tuple[int, int]], entries: Sequence[bytes]) -> list[int]:
        """Write entries, a few hundred at a time; ``spans`` are (ledger id, how many follow).
        Returns their offsets in ``log_id``. Not durable before ``sync``.

        Works on columns rather than row by row: the loops are the interpreter's own.
        """
        if self._file is None or (self._offset >= self._log_bytes_max and not self._sources):
            self._begin()
        assert self._file is not None
        start = self._offset
        sizes = map(RECORD_HEADER_BYTES.__add__, map(len, entries))
        offsets = list(accumulate(sizes, initial=start))
        end = offsets[-1]
        parts: list[Buffer] = [b""] * (2 * len(entries))
        if (end - start) // len(parts) < JOIN_BYTES_MAX:  # a copy is cheaper than short iovecs
            parts = [join_records(((0, entries),), self._seed, 0, 0)]
        else:
            parts[::2] = encode_record_headers(entries, self._seed)
            parts[1::2] = entries
        self._file.pwritev(parts, start)
        at = 0
        for ledger_id, count in spans:
            counts = self._ledgers.setdefault(ledger_id, [0, 0])
            counts[0] += count
            counts[1] += offsets[at + count] - offsets[at] - count * RECORD_HEADER_BYTES
            at += count
        assert at == len(entries)
        self._offset = offsets.pop()
        return offsets

    def sync(self) -> None:
        if self._file is not None:
            self._file.datasync()

    def _begin(self) -> None:
        self.finish()
        log_id = self._ids.take()
        file = self._disk.open(log_path(self._directory, log_id), create=True)
        self._file = file
        self._log_id, self._seed, self._offset = log_id, seed_of(log_id), HEADER_BYTES
        self._ledgers = {}
        file.pwritev([encode_header(log_id, self._sources)], 0)
        self._disk.sync_dir(self._directory)

    def finish(self) -> None:
        """Write the footer and close: the log takes no more. What was appended must be synced."""
        if self._file is None:
            return
        self._file.pwritev([encode_footer(self._log_id, self._offset, self._ledgers)], self._offset)
        self._file.datasync()
        self.abandon()

    def abandon(self) -> None:
        """Close without a footer; the next append begins a new log."""
        file, self._file = self._file, None
        if file is not None:
            try:
                file.close()
            finally:  # it takes no more, whatever the disk says
                self._finished(self._log_id, self._offset, self._ledgers)


class EntryLogReader:
    """Reads entries, with those that follow. Used by one lane; keeps a few logs open.

    Headers are not looked at: each record is sealed with its log's id, and one that is whole is not
    to be lost with a header that is not."""

    def __init__(self, disk: Disk, directory: Path) -> None:
        self._disk = disk
        self._directory = directory
        self._open: OrderedDict[int, tuple[DiskFile, int]] = OrderedDict()

    def read(
        self,
        log_id: int,
        offset: int,
        ledger_id: int,
        entry_id: int,
        entries_max: int,
        bytes_max: int,
    ) -> RecordRun:
        """The entry at ``offset`` and, as far as they lie behind it within ``bytes_max``, the
        next ones of its ledger; their ids are consecutive.

        Raises ``BookieIOError``, naming file and offset, if the first is not whole or cannot be
        read, and ``FileNotFoundError`` if there is no such log.
        """
        file, seed = self._file(log_id)
        try:
            data = _read_some(file, offset, max(bytes_max, RECORD_HEADER_BYTES))
        except OSError as error:
            raise BookieIOError(
                f"entry {ledger_id}:{entry_id} cannot be read from {file.path} at offset "
                f"{offset}: {error}; read it from another bookie, and look at the disk"
            ) from error
        bounds = check_records(data, seed, ledger_id, entry_id, entries_max)
        if bounds[-1] < len(data) * 3 // 4:
            data = data[: bounds[-1]]  # what a run keeps is counted by its entries
        found = RecordRun(data, bounds)
        if not found:
            raise BookieIOError(
                f"entry {ledger_id}:{entry_id} is damaged in {file.path} at offset {offset}; "
                "read it from another bookie, and have this one's ledgers copied from the others "
                "(magnetar bookie decommission)"
            )
        return found

    def _file(self, log_id: int) -> tuple[DiskFile, int]:
        known = self._open.get(log_id)
        if known is not None:
            self._open.move_to_end(log_id)
            return known
        file = self._disk.open(log_path(self._directory, log_id))
        self._open[log_id] = file, seed_of(log_id)
        if len(self._open) > OPEN_LOGS_MAX:
            self._open.popitem(last=False)[1][0].close()
        return self._open[log_id]

    def forget(self, removed: Sequence[int]) -> None:
        """Close logs that were removed: an open file keeps its space."""
        for log_id in removed:
            known = self._open.pop(log_id, None)
            if known is not None:
                known[0].close()

    def close(self) -> None:
        for file, _ in self._open.values():
            file.close()
        self._open.clear()


def _read_some(file: DiskFile, offset: int, byte_count: int) -> bytes:
    """At least the whole record at ``offset``. A place behind it that the disk cannot read does
    not keep it from its reader. Raises ``OSError``."""
    try:
        data = file.pread(byte_count, offset)
    except OSError:
        data = file.pread(RECORD_HEADER_BYTES, offset)
    if len(data) >= RECORD_HEADER_BYTES:
        missing = RECORD_HEADER_BYTES + record_length(data) - len(data)
        if 0 < missing <= ENTRY_BYTES_MAX:
            data += file.pread(missing, offset + len(data))
    return data
