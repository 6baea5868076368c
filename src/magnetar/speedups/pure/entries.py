"""Frames, entries and records: lengths, checksums, and the one copy of a payload."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final, TypeAlias

from crc32c import crc32c

__all__ = ["build_entries", "crc32c", "find_frames", "join_records"]

Buffer: TypeAlias = bytes | bytearray | memoryview

_size: Final = struct.Struct(">I").unpack_from
_pack_header: Final = struct.Struct(">qqqq").pack
_pack_int: Final = struct.Struct(">I").pack
_pack_record: Final = struct.Struct(">II").pack


def find_frames(
    view: memoryview, start: int, end: int, frame_bytes_max: int
) -> tuple[list[tuple[int, int]], int]:
    """The bodies of the whole frames ``[size u32][body]`` at the front of ``view[start:end]``, as
    (start, end), and where those frames end: before one that is not whole, or too large."""
    bounds = []
    while end - start >= 4:
        (size,) = _size(view, start)
        stop = start + 4 + size
        if stop > end or size > frame_bytes_max:
            break
        bounds.append((start + 4, stop))
        start = stop
    return bounds, start


def build_entries(
    ledger_id: int,
    entry_id: int,
    lac: int,
    length: int,
    payloads: Sequence[Buffer],
    prefixes: Sequence[bytes],
) -> tuple[list[bytes], int]:
    """Entries of a ledger with CRC-32C (``wire.bookie.digest``), of consecutive ids from
    ``entry_id`` on; ``length`` is the ledger's before them. ``prefixes``, one each if there are
    any, are what the payloads begin with. Returns them and the length after them."""
    if len(prefixes) == 1:  # most appends; a loop costs a fifth more to begin
        (prefix,), (payload,) = prefixes, payloads
        length += len(prefix) + len(payload)
        header = _pack_header(ledger_id, entry_id, lac, length)
        found = _pack_int(crc32c(payload, crc32c(header + prefix)))
        return [b"".join((header, found, prefix, payload))], length
    entries = []
    if prefixes:
        for prefix, payload in zip(prefixes, payloads, strict=True):
            length += len(prefix) + len(payload)
            header = _pack_header(ledger_id, entry_id, lac, length)
            found = _pack_int(crc32c(payload, crc32c(header + prefix)))
            entries.append(b"".join((header, found, prefix, payload)))
            entry_id += 1
        return entries, length
    for payload in payloads:
        length += len(payload)
        header = _pack_header(ledger_id, entry_id, lac, length)
        found = _pack_int(crc32c(payload, crc32c(header)))
        entries.append(b"".join((header, found, payload)))
        entry_id += 1
    return entries, length


def join_records(
    groups: Sequence[tuple[int, Sequence[bytes]]], seed: int, before: int, after: int
) -> bytearray:
    """Records one behind the other, with so many zeros before and after them. Each is::

        kind 4 bits, length 28 bits | crc32c 4, of that word and the payload | payload

    ``groups`` are (kind, payloads); the checksum begins with ``seed``. With kind 0 a length may
    take all 32 bits."""
    parts: list[bytes] = [bytes(before)]
    append = parts.append
    last_word = word_crc = -1
    for kind, payloads in groups:
        high = kind << 28
        for payload in payloads:
            word = high | len(payload)
            if word != last_word:  # neighbours are mostly of one length
                last_word = word
                word_crc = crc32c(_pack_int(word), seed)
            append(_pack_record(word, crc32c(payload, word_crc)))
            append(payload)
    append(bytes(after))
    return bytearray().join(parts)
