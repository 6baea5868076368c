"""The journal's bytes: encoding group commits, and finding what survives in a file.

Pure. ``docs/formats/journal.md`` is the byte-by-byte description; in short::

    file    = header block (512) | commit | commit | ...
    commit  = COMMIT record | record | ... | zeros up to the next multiple of 512
    record  = kind 4 bits, length 28 bits | crc32c 4 | payload

Invariants:

* The checksum of a record covers its length word and payload and is seeded with the file's id.
  CRC is a bijection in its seed, so a record of another life of a recycled file never passes.
* Each commit starts on a 512-byte boundary: writing one never touches a sector that holds an
  earlier, acknowledged one, and a reader that has lost its way finds the next commit there.
* A commit was written only after the one before it was durable. So damage with a whole commit
  after it is corruption; damage with none after it is the torn tail of a crash.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from crc32c import crc32c

BLOCK_BYTES = 512
RECORD_HEADER_BYTES = 8
PAYLOAD_BYTES_MAX = (1 << 28) - 1
FORMAT_VERSION = 1

COMMIT, ENTRY, LEDGER, LAC, DELETE, NOOP = 1, 2, 3, 4, 5, 6
KINDS = frozenset((COMMIT, ENTRY, LEDGER, LAC, DELETE, NOOP))

LEDGER_FENCED = 1

_MAGIC = b"MGJL"
_FILE_HEADER = struct.Struct(">4sIQQQ")
_RECORD = struct.Struct(">II")
_WORD = struct.Struct(">I")
_COMMIT = struct.Struct(">QII")
_LEDGER = struct.Struct(">qB20s")
_LAC = struct.Struct(">qq")
_DELETE = struct.Struct(">q")

COMMIT_BYTES = RECORD_HEADER_BYTES + _COMMIT.size
_COMMIT_WORD = _WORD.pack(COMMIT << 28 | _COMMIT.size)


class JournalPosition(NamedTuple):
    """A place in a journal: a file and an offset in it. Orders as tuples do."""

    file_id: int
    offset: int


class FileHeader(NamedTuple):
    """``previous_end`` is where the commits of file ``previous_id`` end if that file was rolled
    in good order, else 0 (the process died, or there is no previous file)."""

    file_id: int
    previous_id: int
    previous_end: int


class Record(NamedTuple):
    kind: int
    payload: bytes
    offset: int


class Damage(NamedTuple):
    """Bytes ``[start, end)`` of a journal file that hold no readable record. ``torn``: the tail
    of a crash, nothing in it was ever acknowledged."""

    file_id: int
    start: int
    end: int
    torn: bool


def seed_of(file_id: int) -> int:
    """The checksum seed of a file: distinct for ids that differ in their low 32 bits."""
    return crc32c(file_id.to_bytes(8, "big"))


def encode_file_header(header: FileHeader) -> bytes:
    """The header block, 512 bytes."""
    body = _FILE_HEADER.pack(_MAGIC, FORMAT_VERSION, *header)
    return (body + _WORD.pack(crc32c(body))).ljust(BLOCK_BYTES, b"\0")


def decode_file_header(block: bytes, file_id: int) -> FileHeader | None:
    """The header, or None if ``block`` is not the header of file ``file_id`` (never begun, torn,
    or left over from another life of the file)."""
    size = _FILE_HEADER.size
    if len(block) < BLOCK_BYTES:
        return None
    magic, version, found, previous_id, previous_end = _FILE_HEADER.unpack_from(block)
    crc = _WORD.unpack_from(block, size)[0]
    if magic != _MAGIC or version != FORMAT_VERSION or found != file_id:
        return None
    if crc != crc32c(block[:size]):
        return None
    return FileHeader(found, previous_id, previous_end)


def encode_commit(
    groups: Iterable[tuple[int, Sequence[bytes]]], sequence: int, seed: int
) -> tuple[list[bytes], int]:
    """One commit as the parts to write, and their size (a multiple of 512).

    ``groups`` gives (kind, payloads) pairs; ``sequence`` counts the commits of the file.
    """
    parts: list[bytes] = [b""]
    append, pack = parts.append, _RECORD.pack
    size = count = 0
    last_word = word_crc = -1
    for kind, payloads in groups:
        high = kind << 28
        for payload in payloads:
            length = len(payload)
            word = high | length
            if word != last_word:
                last_word = word
                word_crc = crc32c(_WORD.pack(word), seed)
            append(pack(word, crc32c(payload, word_crc)))
            append(payload)
            size += length
        count += len(payloads)
    size += count * RECORD_HEADER_BYTES
    body = _COMMIT.pack(sequence, size, count)
    crc = crc32c(body, crc32c(_COMMIT_WORD, seed))
    parts[0] = _COMMIT_WORD + _WORD.pack(crc) + body
    size += COMMIT_BYTES
    padding = -size % BLOCK_BYTES
    if padding:
        append(bytes(padding))
    return parts, size + padding


def commit_bytes(record_count: int, payload_bytes: int) -> int:
    """The size of a commit, padding included."""
    size = COMMIT_BYTES + record_count * RECORD_HEADER_BYTES + payload_bytes
    return size + -size % BLOCK_BYTES


def encode_ledger(ledger_id: int, master_key: bytes, fenced: bool) -> bytes:
    """A LEDGER record's payload: binds the master key (20 bytes), fences."""
    return _LEDGER.pack(ledger_id, LEDGER_FENCED if fenced else 0, master_key)


def decode_ledger(payload: bytes) -> tuple[int, bytes, bool]:
    """(ledger id, master key, fenced)."""
    ledger_id, flags, master_key = _LEDGER.unpack(payload)
    return ledger_id, master_key, bool(flags & LEDGER_FENCED)


def encode_lac(ledger_id: int, lac: int, body: bytes) -> bytes:
    """A LAC record's payload: an explicit last add confirmed and the bytes that came with it."""
    return _LAC.pack(ledger_id, lac) + body


def decode_lac(payload: bytes) -> tuple[int, int, bytes]:
    """(ledger id, LAC, body)."""
    ledger_id, lac = _LAC.unpack_from(payload)
    return ledger_id, lac, payload[_LAC.size :]


def encode_delete(ledger_id: int) -> bytes:
    return _DELETE.pack(ledger_id)


def decode_delete(payload: bytes) -> int:
    ledger_id: int = _DELETE.unpack(payload)[0]
    return ledger_id


class FileScan:
    """What survives in ``data``, a journal file's bytes from ``base`` (a multiple of 512, at
    least 512) to its end. Iterate ``records()`` once; ``end`` and ``damages`` count after it.
    """

    def __init__(self, data: bytes, base: int, file_id: int) -> None:
        self._data = data
        self._base = base
        self._file_id = file_id
        self._seed = seed_of(file_id)
        self._commit_end = 0  # where the records of the last whole COMMIT end
        self.end = base
        """Offset after the last whole record, rounded up to a commit's boundary."""
        self.damages: list[Damage] = []

    def records(self) -> Iterator[Record]:
        """Every whole record, in order. COMMIT records are left out."""
        data, size, base, seed = self._data, len(self._data), self._base, self._seed
        pos = 0
        unpack = _RECORD.unpack_from
        last_word = word_crc = -1
        resumed: int | None
        while pos + RECORD_HEADER_BYTES <= size:
            word, crc = unpack(data, pos)
            start = pos + RECORD_HEADER_BYTES
            stop = start + (word & PAYLOAD_BYTES_MAX)
            if word != last_word:
                last_word, word_crc = word, crc32c(_WORD.pack(word), seed)
            payload = data[start:stop]
            if word and stop <= size and word >> 28 in KINDS and crc32c(payload, word_crc) == crc:
                if word >> 28 == COMMIT:
                    self._commit_end = stop + _COMMIT.unpack(payload)[1]
                else:
                    yield Record(word >> 28, payload, base + pos)
                pos = stop
            elif (resumed := self._after_gap(pos)) is not None:
                pos = resumed
            else:
                break
        self.end = base + pos + -pos % BLOCK_BYTES

    def _after_gap(self, pos: int) -> int | None:
        """Where to go on after the bytes at ``pos``, which are no record; notes damage."""
        aligned = pos + -pos % BLOCK_BYTES
        if pos >= self._commit_end and aligned != pos and not any(self._data[pos:aligned]):
            return aligned  # padding
        commit = self._next_commit(aligned)
        following = self._following_record(pos, commit)
        going_on = commit if following is None else following
        if going_on is not None:
            self._note_damage(pos, going_on, torn=commit is None)
        elif pos < self._commit_end:
            self._note_damage(pos, self._commit_end, torn=True)
        return going_on

    def _note_damage(self, start: int, end: int, torn: bool) -> None:
        base = self._base
        self.damages.append(Damage(self._file_id, base + start, base + end, torn))

    def _following_record(self, pos: int, limit: int | None) -> int | None:
        """The record after the damaged one at ``pos``: where its length word says, or, at a
        commit's boundary, after what must have been the COMMIT record."""
        candidates = [pos + COMMIT_BYTES] if pos % BLOCK_BYTES == 0 else []
        if pos + RECORD_HEADER_BYTES <= len(self._data):
            word = _RECORD.unpack_from(self._data, pos)[0]
            candidates.append(pos + RECORD_HEADER_BYTES + (word & PAYLOAD_BYTES_MAX))
        for following in candidates:
            if (limit is None or following <= limit) and self._whole_at(following):
                return following
        return None

    def _whole_at(self, pos: int) -> bool:
        data = self._data
        if pos + RECORD_HEADER_BYTES > len(data):
            return False
        word, crc = _RECORD.unpack_from(data, pos)
        stop = pos + RECORD_HEADER_BYTES + (word & PAYLOAD_BYTES_MAX)
        if word >> 28 not in KINDS or stop > len(data):
            return False
        payload = data[pos + RECORD_HEADER_BYTES : stop]
        return bool(crc32c(payload, crc32c(_WORD.pack(word), self._seed)) == crc)

    def _next_commit(self, pos: int) -> int | None:
        """The first whole COMMIT record of this life of the file, at or after ``pos``, which is
        the start of a block. Looks at the first byte of each block only."""
        firsts = self._data[pos::BLOCK_BYTES]
        block = firsts.find(_COMMIT_WORD[0])
        while block >= 0:
            candidate = pos + block * BLOCK_BYTES
            if self._data.startswith(_COMMIT_WORD, candidate) and self._whole_at(candidate):
                return candidate
            block = firsts.find(_COMMIT_WORD[0], block + 1)
        return None
