"""The bytes of an entry log; ``docs/formats/entry-log.md`` describes them one by one.

    file   = header (64) | record | ... | footer (ledgers of the file, when it was closed in order)
    record = length 4 | crc32c 4 | entry

The checksum of a record covers its length and its entry and is seeded with the log's id. A header
of version 2 belongs to a log that compaction wrote and names the logs that it replaces.

Where entries of deleted ledgers were given back in place (``holes.py``), one *hole* stands for all
of them: a head in the first one's place that says how far it goes, and anything behind it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from magnetar.env.files.disk import DiskFile
from magnetar.model.entry import ENTRY_HEADER_BYTES
from magnetar.speedups import crc32c

HEADER_BYTES = 64
RECORD_HEADER_BYTES = 8
LOG_SUFFIX = ".log"
SOURCES_MAX = 10
WALK_BYTES = 256 << 10

_MAGIC, _FOOTER_MAGIC = b"MGEL", b"MGEF"
_PLAIN, _COMPACTED = 1, 2
_HEADER = struct.Struct(">4sIQ")
_RECORD = struct.Struct(">II")
_WORD = struct.Struct(">I")
_FOOTER_ROW = struct.Struct(">qQQ")
_TRAILER = struct.Struct(">QI4s")
_record_head = struct.Struct(">IIqq").unpack_from
_RECORD_HEAD_BYTES = 24
_HOLE_MARK = struct.pack(">q8s", -1, b"MGELHOLE")  # where a record has its ledger and entry
HOLE_HEAD_BYTES = RECORD_HEADER_BYTES + len(_HOLE_MARK)


def seed_of(log_id: int) -> int:
    return crc32c(log_id.to_bytes(8, "big"))


def log_path(directory: Path, log_id: int) -> Path:
    return directory / f"{log_id:08x}{LOG_SUFFIX}"


def log_ids(names: Sequence[str]) -> list[int]:
    """Ids out of a directory's names, ascending."""
    stems = [name.removesuffix(LOG_SUFFIX) for name in names if name.endswith(LOG_SUFFIX)]
    return sorted(int(stem, 16) for stem in stems if not set(stem) - set("0123456789abcdef"))


# -- header ---------------------------------------------------------------------------------------


def encode_header(log_id: int, sources: Sequence[int] = ()) -> bytes:
    """``sources``: the logs that this one replaces, ``SOURCES_MAX`` at most."""
    assert len(sources) <= SOURCES_MAX
    body = _HEADER.pack(_MAGIC, _COMPACTED if sources else _PLAIN, log_id)
    if not sources:
        return (body + _WORD.pack(crc32c(body))).ljust(HEADER_BYTES, b"\0")
    rest = b"".join(_WORD.pack(word) for word in (len(sources), *sources))
    rest = rest.ljust(HEADER_BYTES - len(body) - _WORD.size, b"\0")
    return body + _WORD.pack(crc32c(rest, crc32c(body))) + rest


def decode_header(data: bytes, log_id: int) -> tuple[int, ...] | None:
    """The logs that this one replaces (none: written by flushes); None if ``data`` is not a whole
    header of that log."""
    if data == encode_header(log_id):
        return ()
    if len(data) != HEADER_BYTES:
        return None
    count = _WORD.unpack_from(data, _HEADER.size + _WORD.size)[0]
    if not 0 < count <= SOURCES_MAX:
        return None
    start = _HEADER.size + 2 * _WORD.size
    sources = struct.unpack_from(f">{count}I", data, start)
    return sources if data == encode_header(log_id, sources) else None


# -- records --------------------------------------------------------------------------------------


def encode_record_headers(entries: Sequence[bytes], seed: int) -> list[bytes]:
    """What stands before each entry. Neighbours are mostly of one length, whose part of the
    checksum is worked out once (0.16 instead of 0.24 us an entry)."""
    headers: list[bytes] = []
    append, pack = headers.append, _RECORD.pack
    last_length = length_crc = -1
    for entry in entries:
        length = len(entry)
        if length != last_length:
            last_length = length
            length_crc = crc32c(_WORD.pack(length), seed)
        append(pack(length, crc32c(entry, length_crc)))
    return headers


def record_length(data: bytes) -> int:
    """The entry's length, as the record at the beginning of ``data`` says."""
    length: int = _WORD.unpack_from(data)[0]
    return length


def record_at(data: bytes, pos: int, seed: int) -> bytes | None:
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


def encode_hole(byte_count: int, seed: int) -> bytes:
    """The head of a hole that takes ``byte_count``, the head included."""
    length = byte_count - RECORD_HEADER_BYTES
    return _RECORD.pack(length, crc32c(_HOLE_MARK, crc32c(_WORD.pack(length), seed))) + _HOLE_MARK


def hole_bytes(data: bytes, pos: int, seed: int) -> int:
    """How much the hole at ``pos`` takes; 0: there is none. No record looks like one: ledger ids
    are not negative."""
    head = data[pos : pos + HOLE_HEAD_BYTES]
    if head[RECORD_HEADER_BYTES:] != _HOLE_MARK:
        return 0
    byte_count = record_length(head) + RECORD_HEADER_BYTES
    return byte_count if encode_hole(byte_count, seed) == head else 0


class RecordPlace(NamedTuple):
    """What a record's first bytes say, not verified. ``length``: the entry's, bytes."""

    ledger_id: int
    entry_id: int
    offset: int
    length: int


class RecordWalk:
    """Goes over the records of a log by their lengths, without verifying them, and past its holes.

    ``end``: where the records end: the footer's offset, or the file's size. ``pos``: how far it
    has come; whoever gets nothing more looks whether that is ``end``: a length that is damaged
    hides all that follows.
    """

    def __init__(self, file: DiskFile, log_id: int, end: int) -> None:
        self._file = file
        self._seed = seed_of(log_id)
        self.pos = HEADER_BYTES
        self.end = max(end, self.pos)  # a log may have been cut off before its header

    @property
    def whole(self) -> bool:
        """All has been gone over, and nothing was hidden."""
        return self.pos == self.end

    def step(self) -> tuple[bytes, int, list[RecordPlace]]:
        """(bytes read, their offset, the records that begin and end in them or, if it is only
        one, that begin there); no records: the end, or damage. Raises ``OSError``."""
        while True:
            start = self.pos
            data, places = self._step()
            if places or self.pos == start:
                return data, start, places

    def _step(self) -> tuple[bytes, list[RecordPlace]]:
        """No records though ``pos`` has moved: nothing but holes."""
        start = self.pos
        data = self._file.pread(min(WALK_BYTES, self.end - start), start)
        places: list[RecordPlace] = []
        pos = 0
        while pos + _RECORD_HEAD_BYTES <= len(data):
            length, _, ledger_id, entry_id = _record_head(data, pos)
            behind = pos + RECORD_HEADER_BYTES + length
            if start + behind > self.end:
                break
            if ledger_id < 0:
                if not hole_bytes(data, pos, self._seed):
                    break
            elif length < ENTRY_HEADER_BYTES:
                break
            else:
                if behind > len(data):
                    if places:
                        break
                    data += self._file.pread(behind - len(data), start + len(data))
                places.append(RecordPlace(ledger_id, entry_id, start + pos, length))
            pos = behind
        self.pos = start + pos
        return data, places

    def __iter__(self) -> Iterator[RecordPlace]:
        while places := self.step()[2]:
            yield from places


# -- footer ---------------------------------------------------------------------------------------


class Footer(NamedTuple):
    """``offset``: its first byte; ``ledgers``: ledger id -> (entries, bytes)."""

    offset: int
    ledgers: dict[int, tuple[int, int]]


def encode_footer(log_id: int, offset: int, ledgers: Mapping[int, Sequence[int]]) -> bytes:
    """Rows of (ledger id, entries, bytes) and a trailer that says where they start."""
    rows = b"".join(
        _FOOTER_ROW.pack(ledger_id, *counts) for ledger_id, counts in sorted(ledgers.items())
    )
    return rows + _TRAILER.pack(offset, crc32c(rows, seed_of(log_id)), _FOOTER_MAGIC)


def decode_footer(log_id: int, tail: bytes, tail_offset: int) -> Footer | None:
    """``tail``: the file's bytes from ``tail_offset`` to its end; None: no whole footer there."""
    if len(tail) < _TRAILER.size:
        return None
    offset, crc, magic = _TRAILER.unpack(tail[-_TRAILER.size :])
    rows = tail[offset - tail_offset : -_TRAILER.size] if offset >= tail_offset else b""
    if magic != _FOOTER_MAGIC or len(rows) % _FOOTER_ROW.size:
        return None
    if crc32c(rows, seed_of(log_id)) != crc:
        return None
    return Footer(offset, {row[0]: (row[1], row[2]) for row in _FOOTER_ROW.iter_unpack(rows)})


def read_footer(file: DiskFile, log_id: int, size: int) -> Footer | None:
    """``size``: the file's bytes. Raises ``OSError``."""
    if size < HEADER_BYTES + _TRAILER.size:
        return None
    offset, _, magic = _TRAILER.unpack(file.pread(_TRAILER.size, size - _TRAILER.size))
    if magic != _FOOTER_MAGIC or not HEADER_BYTES <= offset < size:
        return None
    return decode_footer(log_id, file.pread(size - offset, offset), offset)
