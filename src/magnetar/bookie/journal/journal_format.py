"""The journal's bytes: encoding group commits.

Pure. ``docs/formats/journal.md`` is the byte-by-byte description; in short::

    file    = header block (512) | commit | commit | ...
    commit  = COMMIT record | record | ... | zeros | table; in blocks of 512, each of them stamped
    record  = kind 4 bits, length 28 bits | crc32c 4 | payload

``journal_blocks`` has the stamps and the table, ``journal_scan`` the way back.

Invariants:

* The checksum of a record covers its length word and payload and is seeded with the file's id.
  CRC is a bijection in its seed, so a record of another life of a recycled file never passes.
* Each commit starts on a 512-byte boundary: writing one never touches a sector that holds an
  earlier, acknowledged one, and a reader that has lost its way finds the next commit there.
* A commit is written only after the one before it is durable.
* Each of its blocks carries its stamp, so that one which is not there is known from one that is
  damaged.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

from magnetar.bookie.journal.journal_blocks import BLOCK_BYTES, blocks_of, stamp
from magnetar.speedups import crc32c, join_records

RECORD_HEADER_BYTES = 8
PAYLOAD_BYTES_MAX = (1 << 28) - 1
FORMAT_VERSION = 2
READABLE_VERSIONS = frozenset((1, FORMAT_VERSION))

UNSTAMPED_COMMIT, ENTRY, LEDGER, LAC, DELETE, NOOP, COMMIT, REVIVE = 1, 2, 3, 4, 5, 6, 7, 8
KINDS = frozenset((ENTRY, LEDGER, LAC, DELETE, NOOP, REVIVE))
"""Of the records in a commit."""

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
COMMIT_WORD = _WORD.pack(COMMIT << 28 | _COMMIT.size)
UNSTAMPED_COMMIT_WORD = _WORD.pack(UNSTAMPED_COMMIT << 28 | _COMMIT.size)
"""What commits of version 1 begin with, whose blocks are not stamped."""


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
    if magic != _MAGIC or version not in READABLE_VERSIONS or found != file_id:
        return None
    if crc != crc32c(block[:size]):
        return None
    return FileHeader(found, previous_id, previous_end)


def encode_commit(
    groups: Sequence[tuple[int, Sequence[bytes]]],
    sequence: int,
    seed: int,
    block: int,
    attempt: int = 0,
) -> bytearray:
    """One commit, a multiple of 512 bytes.

    ``groups`` gives (kind, payloads) pairs; ``sequence`` counts the commits of the file, the
    first of whose blocks is to be ``block``; ``attempt`` counts the writes that failed there.
    """
    count = sum([len(payloads) for _, payloads in groups])
    size = sum([sum(map(len, payloads)) for _, payloads in groups]) + count * RECORD_HEADER_BYTES
    body = _COMMIT.pack(sequence, size, count)
    crc = crc32c(body, crc32c(COMMIT_WORD, seed))
    size += COMMIT_BYTES
    commit = join_records(groups, seed, COMMIT_BYTES, blocks_of(size) * BLOCK_BYTES - size)
    commit[:COMMIT_BYTES] = COMMIT_WORD + _WORD.pack(crc) + body
    stamp(commit, seed, block, attempt)
    return commit


def commit_bytes(record_count: int, payload_bytes: int) -> int:
    """The size of a commit, all included."""
    size = COMMIT_BYTES + record_count * RECORD_HEADER_BYTES + payload_bytes
    return blocks_of(size) * BLOCK_BYTES


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


def encode_revive(ledger_id: int) -> bytes:
    return _DELETE.pack(ledger_id)


def decode_revive(payload: bytes) -> int:
    return decode_delete(payload)
