"""Entry logs: where entries lie for good. One file holds entries of many ledgers, sorted by
(ledger, entry) within each flush.

``docs/formats/entry-log.md`` is the byte-by-byte description; in short::

    file   = header (64) | record | ... | footer (ledgers of the file, when it was closed in order)
    record = length 4 | crc32c 4 | entry

Rules: the checksum covers the length and the entry and is seeded with the log's id. A log is
only appended to, and only by its directory's flush; after a restart, or after a failed sync, a
new one is begun. Records become visible to readers through the index, which is written after
``sync``.
"""

from __future__ import annotations

import struct
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path

from crc32c import crc32c

from magnetar.env.disk import Disk, DiskFile
from magnetar.model.entry import ENTRY_HEADER_BYTES
from magnetar.model.errors import BookieIOError

HEADER_BYTES = 64
RECORD_HEADER_BYTES = 8
LOG_SUFFIX = ".log"
OPEN_LOGS_MAX = 64
JOIN_BYTES_MAX = 16 << 10
OFFSET_MAX = (1 << 32) - 1

_MAGIC, _FOOTER_MAGIC = b"MGEL", b"MGEF"
_VERSION = 1
_HEADER = struct.Struct(">4sIQ")
_RECORD = struct.Struct(">II")
_WORD = struct.Struct(">I")
_FOOTER_ROW = struct.Struct(">qQQ")
_TRAILER = struct.Struct(">QI4s")
_entry_ids = struct.Struct(">qq").unpack_from


def seed_of(log_id: int) -> int:
    return crc32c(log_id.to_bytes(8, "big"))


def log_path(directory: Path, log_id: int) -> Path:
    return directory / f"{log_id:08x}{LOG_SUFFIX}"


def log_ids(names: Sequence[str]) -> list[int]:
    """Ids out of a directory's names, ascending."""
    stems = [name.removesuffix(LOG_SUFFIX) for name in names if name.endswith(LOG_SUFFIX)]
    return sorted(int(stem, 16) for stem in stems if not set(stem) - set("0123456789abcdef"))


class EntryLogWriter:
    """The log that flushes append to. Blocking; raises ``OSError``. Used by the flush lane."""

    def __init__(self, disk: Disk, directory: Path, log_bytes_max: int) -> None:
        self._disk = disk
        self._directory = directory
        self._log_bytes_max = min(log_bytes_max, OFFSET_MAX - (1 << 29))
        self._file: DiskFile | None = None
        self._next_id = max(log_ids(disk.list(directory)), default=0) + 1
        self._log_id = 0
        self._seed = 0
        self._offset = 0
        self._ledgers: dict[int, list[int]] = {}  # ledger id -> [entries, bytes]

    @property
    def current_id(self) -> int:
        """The log being written or, between logs, the next one: all below are closed."""
        return self._log_id if self._file is not None else self._next_id

    def append(self, entries: Sequence[tuple[int, int, bytes]]) -> list[tuple[int, int, int, int]]:
        """Write (ledger id, entry id, entry) rows, a few hundred at a time; returns (ledger id,
        entry id, log id, offset) rows. Not durable before ``sync``."""
        if self._file is None or self._offset >= self._log_bytes_max:
            self._begin()
        assert self._file is not None
        parts: list[bytes] = []
        rows = []
        start = offset = self._offset
        log_id, seed, pack = self._log_id, self._seed, _RECORD.pack
        for ledger_id, entry_id, data in entries:
            length = len(data)
            parts.append(pack(length, crc32c(data, crc32c(_WORD.pack(length), seed))))
            parts.append(data)
            rows.append((ledger_id, entry_id, log_id, offset))
            offset += RECORD_HEADER_BYTES + length
        if (offset - start) // len(parts) < JOIN_BYTES_MAX:
            parts = [b"".join(parts)]  # a copy is cheaper than many short iovecs
        self._file.pwritev(parts, start)
        self._count(entries)
        self._offset = offset
        return rows

    def _count(self, entries: Sequence[tuple[int, int, bytes]]) -> None:
        for ledger_id, _, data in entries:
            counts = self._ledgers.setdefault(ledger_id, [0, 0])
            counts[0] += 1
            counts[1] += len(data)

    def sync(self) -> None:
        if self._file is not None:
            self._file.datasync()

    def _begin(self) -> None:
        self.finish()
        log_id, self._next_id = self._next_id, self._next_id + 1
        file = self._disk.open(log_path(self._directory, log_id), create=True)
        self._file = file
        file.pwritev([encode_header(log_id)], 0)
        self._disk.sync_dir(self._directory)
        self._log_id, self._seed, self._offset = log_id, seed_of(log_id), HEADER_BYTES
        self._ledgers = {}

    def finish(self) -> None:
        """Write the footer and close: the log takes no more."""
        if self._file is None:
            return
        self._file.pwritev([encode_footer(self._log_id, self._offset, self._ledgers)], self._offset)
        self._file.datasync()
        self.abandon()

    def abandon(self) -> None:
        """Close without a footer; the next append begins a new log."""
        if self._file is not None:
            self._file.close()
            self._file = None


class EntryLogReader:
    """Reads entries, with those that follow. Used by one lane; keeps a few logs open."""

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
    ) -> list[tuple[int, bytes]]:
        """The entry at ``offset`` and, as far as they lie behind it within ``bytes_max``, the
        next ones of its ledger: (entry id, entry) pairs, the ids consecutive.

        Raises ``BookieIOError``, naming file and offset, if the first is not whole.
        """
        file, seed = self._file(log_id)
        data = file.pread(max(bytes_max, RECORD_HEADER_BYTES), offset)
        need = RECORD_HEADER_BYTES
        if len(data) >= need:
            need += _WORD.unpack_from(data)[0]
            if len(data) < need <= RECORD_HEADER_BYTES + (1 << 28):
                data += file.pread(need - len(data), offset + len(data))
        entry = _record_at(data, 0, seed)
        if entry is None or _entry_ids(entry) != (ledger_id, entry_id):
            raise BookieIOError(
                f"entry {ledger_id}:{entry_id} is damaged in {file.path} at offset {offset}; "
                "read it from another bookie and let re-replication restore this copy"
            )
        found = [(entry_id, entry)]
        pos = need
        while len(found) < entries_max:
            following = _record_at(data, pos, seed)
            entry_id += 1
            if following is None or _entry_ids(following) != (ledger_id, entry_id):
                break
            found.append((entry_id, following))
            pos += RECORD_HEADER_BYTES + len(following)
        return found

    def _file(self, log_id: int) -> tuple[DiskFile, int]:
        known = self._open.get(log_id)
        if known is not None:
            self._open.move_to_end(log_id)
            return known
        path = log_path(self._directory, log_id)
        try:
            file = self._disk.open(path)
        except FileNotFoundError as error:
            raise BookieIOError(f"entry log {path} is missing; the index refers to it") from error
        if file.pread(HEADER_BYTES, 0) != encode_header(log_id):
            file.close()
            raise BookieIOError(f"{path} does not begin as entry log {log_id} does")
        self._open[log_id] = file, seed_of(log_id)
        if len(self._open) > OPEN_LOGS_MAX:
            self._open.popitem(last=False)[1][0].close()
        return self._open[log_id]

    def close(self) -> None:
        for file, _ in self._open.values():
            file.close()
        self._open.clear()


def _record_at(data: bytes, pos: int, seed: int) -> bytes | None:
    """The entry of the record at ``pos``, or None if there is no whole one."""
    start = pos + RECORD_HEADER_BYTES
    if len(data) < start:
        return None
    length, crc = _RECORD.unpack_from(data, pos)
    entry = data[start : start + length]
    if len(entry) < length or length < ENTRY_HEADER_BYTES:
        return None
    if crc32c(entry, crc32c(_WORD.pack(length), seed)) != crc:
        return None
    return entry


def encode_header(log_id: int) -> bytes:
    body = _HEADER.pack(_MAGIC, _VERSION, log_id)
    return (body + _WORD.pack(crc32c(body))).ljust(HEADER_BYTES, b"\0")


def encode_footer(log_id: int, offset: int, ledgers: dict[int, list[int]]) -> bytes:
    """Rows of (ledger id, entries, bytes) and a trailer that says where they start."""
    rows = b"".join(
        _FOOTER_ROW.pack(ledger_id, *counts) for ledger_id, counts in sorted(ledgers.items())
    )
    return rows + _TRAILER.pack(offset, crc32c(rows, seed_of(log_id)), _FOOTER_MAGIC)


def decode_footer(log_id: int, tail: bytes, tail_offset: int) -> dict[int, tuple[int, int]] | None:
    """Ledger id -> (entries, bytes) out of ``tail``, the file's bytes from ``tail_offset`` to its
    end; None if the file has no whole footer there."""
    if len(tail) < _TRAILER.size:
        return None
    offset, crc, magic = _TRAILER.unpack(tail[-_TRAILER.size :])
    rows = tail[offset - tail_offset : -_TRAILER.size] if offset >= tail_offset else b""
    if magic != _FOOTER_MAGIC or len(rows) % _FOOTER_ROW.size:
        return None
    if crc32c(rows, seed_of(log_id)) != crc:
        return None
    return {row[0]: (row[1], row[2]) for row in _FOOTER_ROW.iter_unpack(rows)}
