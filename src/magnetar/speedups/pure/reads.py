"""Entries that are read back: out of an entry log, into an answer, out of it, and verified.

A record is ``length 4 | crc32c 4 | entry``; its checksum covers length and entry
(``bookie.storage.entry_log_format``). In an answer an entry is ``size 4 | entry``
(``wire.bookie.v2``), and an entry with CRC-32C is ``ledger id 8 | entry id 8 | 16 more | crc32c 4 |
payload``, where the checksum covers all but itself (``wire.bookie.digest``).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final

from crc32c import crc32c

_RECORD_HEADER_BYTES: Final = 8
_ENTRY_HEADER_BYTES: Final = 32
_PAYLOAD_AT: Final = _ENTRY_HEADER_BYTES + 4

_record_head: Final = struct.Struct(">IIqq").unpack_from
_ids: Final = struct.Struct(">qq").unpack_from
_size: Final = struct.Struct(">I").unpack_from
_pack_int: Final = struct.Struct(">I").pack


def check_records(
    data: bytes, seed: int, ledger_id: int, entry_id: int, entries_max: int
) -> list[int]:
    """Where the whole, sound records at the beginning of ``data`` begin and end, as long as they
    are the ledger's entries from ``entry_id`` on without a gap, at most ``entries_max``: 0, and the
    end of each. Checksums begin with ``seed``."""
    bounds = [0]
    pos, end = 0, len(data)
    last_length = length_crc = -1
    for expected in range(entry_id, entry_id + entries_max):
        if end - pos < _RECORD_HEADER_BYTES + _ENTRY_HEADER_BYTES:
            break
        length, crc, held_ledger_id, held_entry_id = _record_head(data, pos)
        start = pos + _RECORD_HEADER_BYTES
        pos = start + length
        if held_entry_id != expected or held_ledger_id != ledger_id:
            break
        if pos > end or length < _ENTRY_HEADER_BYTES:
            break
        if length != last_length:  # neighbours are mostly of one length
            last_length = length
            length_crc = crc32c(_pack_int(length), seed)
        if crc32c(data[start:pos], length_crc) != crc:
            break
        bounds.append(pos)
    return bounds


def frame_records(data: bytes, start: int, end: int, before: int) -> bytearray:
    """The entries of the records that are ``data[start:end]``, each behind its size, with so many
    zeros before them."""
    return join_entries(split_entries(memoryview(data), start, end, 4)[0], before)


def join_entries(entries: Sequence[bytes], before: int) -> bytearray:
    """Each entry behind its size, one behind the other, with so many zeros before them."""
    parts = [bytes(before)]
    for entry in entries:
        parts += (_pack_int(len(entry)), entry)
    return bytearray().join(parts)


def split_entries(view: memoryview, start: int, end: int, gap: int) -> tuple[list[bytes], int]:
    """The entries at the front of ``view[start:end]``, each behind its size and ``gap`` bytes more,
    and where they end: before one that is not whole. Entries are copied."""
    found: list[bytes] = []
    while end - start >= 4 + gap:
        (size,) = _size(view, start)
        first = start + 4 + gap
        stop = first + size
        if stop > end:
            break
        found.append(view[first:stop].tobytes())
        start = stop
    return found, start


def count_sound(entries: Sequence[bytes], ledger_id: int, first_entry_id: int) -> int:
    """How many entries are sound before the first that is not: they are the ledger's, of
    consecutive ids, and have the CRC-32C that they say."""
    for place, data in enumerate(entries):
        if len(data) < _PAYLOAD_AT or _ids(data) != (ledger_id, first_entry_id + place):
            return place
        crc = crc32c(memoryview(data)[_PAYLOAD_AT:], crc32c(data[:_ENTRY_HEADER_BYTES]))
        if _size(data, _ENTRY_HEADER_BYTES)[0] != crc:
            return place
    return len(entries)
