"""Where the messages of batches begin, many batches at once.

A batch repeats ``[metadata size u32][SingleMessageMetadata][value]``; where a message begins is
known only when the one before it was read. So candidates are looked for instead, all at once: a
small big-endian size and the tag of a field that metadata begins with. The metadata of every
candidate is read by columns. Where each says that the next candidate follows it, from a batch's
first byte to its last, and they are as many as the batch has messages, they are the messages:
that is certain, whatever the values hold. Other batches (a value looks like a message, metadata is
long or begins otherwise) are walked message by message, as are batches of large messages, where
looking at every byte costs more than a walk.
"""

from __future__ import annotations

import struct
from collections.abc import Collection
from typing import Final, NamedTuple

import numpy as np

from magnetar.pipeline.columns.protobuf_columns import (
    Bytes,
    FieldKind,
    Fields,
    FieldTable,
    Flags,
    Ints,
    read_fields,
)

WALK_BYTES: Final = 1500
"""From so many bytes a message on a walk is cheaper: ``bench/entry_decoding.py``."""

SCAN_BYTES: Final = 128 << 10
"""Looked at in one go: what is made of them stays in a core's own cache."""

_NEEDED: Final[dict[str, tuple[int, FieldKind]]] = {
    "payload_size": (3, FieldKind.INT),
    "compacted_out": (4, FieldKind.INT),
    "null_value": (9, FieldKind.INT),
}
_OPTIONAL: Final[dict[str, tuple[int, FieldKind]]] = {
    "properties": (1, FieldKind.SPANS),
    "key": (2, FieldKind.SPAN),
    "event_time": (5, FieldKind.INT),
    "key_is_base64": (6, FieldKind.INT),
}

_PROPERTIES, _KEY, _PAYLOAD_SIZE, _ORDERING_KEY = 0x0A, 0x12, 0x18, 0x3A
_U32 = struct.Struct(">I").unpack_from


class Batches(NamedTuple):
    """Where batches lie, and how many messages each says it has."""

    at: Ints
    stop: Ints
    counts: Ints


class Records(NamedTuple):
    """The messages of the batches that are not in ``odd``, in order: their metadata, and where
    the values begin. Those of the odd ones are not among them."""

    odd: Flags
    fields: Fields
    values_at: Ints
    values_length: Ints


def single_metadata(columns: Collection[str]) -> FieldTable:
    """The fields of SingleMessageMetadata that are needed for these columns."""
    return FieldTable(_NEEDED | {name: _OPTIONAL[name] for name in _OPTIONAL if name in columns})


def find_records(bytes_: Bytes, batches: Batches, table: FieldTable) -> Records:
    """Take the batches, of which there is at least one, apart. ``table``: of ``single_metadata``.
    ``odd`` are those that protobuf must read."""
    odd: Flags = np.zeros(len(batches.at), np.bool_)
    begin, end = int(batches.at.min()), int(batches.stop.max())
    mean = (end - begin) // max(1, int(batches.counts.sum()))
    if mean < WALK_BYTES:
        starts, clean = _scan(bytes_, batches, table, begin, end)
        if clean is not None:
            return Records(odd, *clean)
    else:
        starts = [None] * len(odd)
    return _walked(bytes_, batches, table, starts, odd)


class _Parsed(NamedTuple):
    fields: Fields
    values_at: Ints
    values_length: Ints


def _parse(bytes_: Bytes, starts: Ints, table: FieldTable) -> _Parsed:
    """The metadata of what may begin at ``starts``."""
    at = starts + 4
    stop = at + bytes_.big_endian_u32(starts)
    beyond = stop > bytes_.size
    fields = read_fields(bytes_, at, np.where(beyond, at, stop), table)
    fields.odd |= beyond
    sizes = fields.ints["payload_size"]
    fields.odd |= sizes < 0
    return _Parsed(fields, stop, np.where(fields.odd, 0, sizes))


def candidates(bytes_: Bytes, begin: int, end: int) -> Ints:
    """Where a message may begin: three zero bytes, one that is not, and a known tag.

    Of three bytes two are a pair that begins at an even place, so a look at every pair finds them:
    a third of the work of a look at every byte."""
    parts = [
        _candidates_in(bytes_, at, min(at + SCAN_BYTES, end + 1))
        for at in range(begin & ~1, end + 1, SCAN_BYTES)
    ]
    found = np.concatenate(parts)
    return found[(found >= begin) & (found < end)]


def _candidates_in(bytes_: Bytes, begin: int, end: int) -> Ints:
    """Those whose pair begins from ``begin`` on, which is even, and before ``end``: at the pair, or
    a byte before it."""
    u8 = bytes_.u8
    pairs = u8[begin : begin + (end - begin + 1 & ~1)].view(np.uint16)
    found: Ints = np.flatnonzero(pairs == 0) * 2 + begin
    found -= u8[found + 2] != 0
    found = found[(u8[found] == 0) & (u8[found + 3] != 0)]
    tags = u8[found + 4]
    known: Ints = found[(tags == _KEY) | (tags == _PAYLOAD_SIZE) | (tags == _PROPERTIES)]
    return known


def _scan(
    bytes_: Bytes, batches: Batches, table: FieldTable, begin: int, end: int
) -> tuple[list[Ints | None], _Parsed | None]:
    """The starts in each batch, None where candidates are not certain; and all that was read of
    them if every batch is."""
    found = candidates(bytes_, begin, end)
    first = np.searchsorted(found, batches.at)
    last = np.searchsorted(found, batches.stop)
    counts = last - first
    right = counts == batches.counts
    starts = found[_ranges(first, counts)]
    parsed = _parse(bytes_, starts, table)
    after = parsed.values_at + parsed.values_length
    follows = np.empty_like(starts)  # where the next candidate, or the batch's end, is
    follows[:-1] = starts[1:]
    ends = np.cumsum(counts)
    some = counts > 0
    follows[ends[some] - 1] = batches.stop[some]
    wrong = (after != follows) | parsed.fields.odd
    right[some] &= starts[(ends - counts)[some]] == batches.at[some]
    if right.all() and not wrong.any():
        return [], parsed
    wrong_in = np.add.reduceat(np.append(wrong, False), ends - counts) if len(wrong) else counts
    certain = right & (wrong_in == 0) & some
    parts = np.split(starts, ends[:-1])
    return [part if sure else None for part, sure in zip(parts, certain, strict=True)], None


def _ranges(first: Ints, counts: Ints) -> Ints:
    """``first[0], first[0] + 1, ...`` of each range, side by side."""
    numbers: Ints = np.arange(int(counts.sum()), dtype=np.int64)
    numbers += np.repeat(first - (np.cumsum(counts) - counts), counts)
    return numbers


def _walked(
    bytes_: Bytes, batches: Batches, table: FieldTable, known: list[Ints | None], odd: Flags
) -> Records:
    """Walk the batches whose starts are not known, then read all metadata."""
    found: list[Ints] = []
    for number, starts in enumerate(known):
        if starts is None:
            at, stop, count = (int(column[number]) for column in batches)
            starts = walk(bytes_.data, at, stop, count)
        if starts is None:
            odd[number] = True
            starts = np.zeros(0, np.int64)
        found.append(starts)
    counts = np.array([len(starts) for starts in found], np.int64)
    starts = np.concatenate(found)
    parsed = _parse(bytes_, starts, table)
    owners = np.repeat(np.arange(len(odd)), counts)
    after = parsed.values_at + parsed.values_length
    follows = np.append(starts[1:], 0)
    ends = np.cumsum(counts)[counts > 0] - 1
    follows[ends] = after[ends]  # bytes behind the last message mean nothing
    wrong = (after != follows) | parsed.fields.odd | (after > batches.stop[owners])
    if not wrong.any():
        return Records(odd, *parsed)
    odd[owners[wrong]] = True
    return Records(odd, *_parse(bytes_, starts[~odd[owners]], table))


def walk(data: bytes, at: int, stop: int, count: int) -> Ints | None:
    """Where each of ``count`` messages begins; None if they are not as clients write them.

    A size is looked for where it stood in metadata of the same length before: it may be something
    else there, and then what is found does not follow from the metadata, which ``_walked`` sees.
    """
    starts: list[int] = []
    size_at: dict[int, int] = {}  # length of metadata -> where in it the size stands
    for _ in range(count):
        first = at + 4
        if first > stop:
            return None
        length = _U32(data, at)[0]
        values_at = first + length
        starts.append(at)
        if values_at > stop:
            return None
        place = size_at.get(length, -1)
        size = _short_size(data, first + place) if place >= 0 else -1
        if size < 0:
            size, place = _payload_size(data, first, values_at)
            size_at[length] = place - first
        at = values_at + size
        if size < 0 or at > stop:
            return None
    return np.array(starts, np.int64)


def _short_size(data: bytes, at: int) -> int:
    """The size whose tag stands there, of one or two bytes; -1 if there is none."""
    if data[at] != _PAYLOAD_SIZE:
        return -1
    low, high = data[at + 1], data[at + 2]
    if low < 0x80:
        return low
    return low & 0x7F | high << 7 if high < 0x80 else -1


def _payload_size(data: bytes, at: int, stop: int) -> tuple[int, int]:
    """The size of the value, out of the metadata before it, and where its tag stands; -1 if it is
    not found."""
    while at < stop:
        tag, tag_at = data[at], at
        value, shift = 0, 0
        while True:
            at += 1
            byte = data[at]
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                break
            if shift > 28:
                return -1, tag_at
        at += 1
        if tag == _PAYLOAD_SIZE:
            return value, tag_at
        if tag in (_PROPERTIES, _KEY, _ORDERING_KEY):
            at += value
        elif tag & 0x87:
            return -1, tag_at
    return -1, at
