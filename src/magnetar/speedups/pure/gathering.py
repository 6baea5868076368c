"""Stored entries of Pulsar's clients -> columns, as Arrow lays them out.

Source: Pulsar's ``PulsarApi.proto`` (``BrokerEntryMetadata``, ``MessageMetadata``,
``SingleMessageMetadata``); Arrow's columnar format: offsets of 32 bits, bits of what is there, the
lowest first, all in the machine's order of bytes.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple, TypeAlias

WANT_VALUES: Final = 1
WANT_KEYS: Final = 2
WANT_EVENT_TIMES: Final = 4
WANT_KEYS_ENCODED: Final = 8
WANT_PROPERTIES: Final = 16

TIME_MS_MAX: Final = (2**63 - 1) // 1000
_INT32_MAX: Final = 2**31 - 1
_VERSION_BYTES: Final = 8

BytesColumn: TypeAlias = tuple[bytes, bytes, bytes | None]
Gathered: TypeAlias = tuple[
    bytes, BytesColumn | None, BytesColumn | None, bytes | None, bytes | None
]


class _UnusualError(Exception):
    """An entry that is left to the caller."""


class _Row(NamedTuple):
    """A message. ``value`` and ``key`` are None for none."""

    value: memoryview | None
    key: memoryview | None
    event_time_ms: int
    key_encoded: int


def gather_messages(
    payloads: Sequence[bytes | memoryview], wanted: int, bytes_max: int
) -> Gathered:
    """The messages of the first of ``payloads``, entries as they were stored, by columns. It stops
    before an entry that is not of the usual shape (compressed, encrypted, in chunks, compacted, or
    not sound), one with which values and keys were more than ``bytes_max`` bytes together, and,
    where properties are ``wanted``, one whose messages have any.

    Returns (entries, values, keys, event times, whether keys are base64). Entries: four numbers of
    64 bits of each that was taken: how many messages its batch has (-1: it is none, but a message),
    when it was published in ms, the offset of its last message and the version of its schema (-1:
    it does not say). Values and keys: offsets, bytes, and bits of those that are there, or None if
    all are. Event times: numbers of 64 bits, 0 without one; keys: a byte each. Columns that are not
    wanted are None. Raises ``ValueError`` if ``bytes_max`` is more than 2^31 - 1.
    """
    if not 0 <= bytes_max <= _INT32_MAX:
        raise ValueError("bytes_max is not within what offsets of 32 bits say")
    heads, rows = array("q"), list[_Row]()
    for payload in payloads:
        try:
            head, found = _entry(memoryview(payload), wanted, bytes_max)
        except _UnusualError:
            break
        size = sum(len(part) for row in found for part in row[:2] if part is not None)
        if size > bytes_max:
            break
        bytes_max -= size
        heads.extend(head)
        rows += found
    return (
        heads.tobytes(),
        _bytes_column([row.value for row in rows]) if wanted & WANT_VALUES else None,
        _bytes_column([row.key for row in rows]) if wanted & WANT_KEYS else None,
        array("q", [row.event_time_ms for row in rows]).tobytes()
        if wanted & WANT_EVENT_TIMES
        else None,
        bytes([row.key_encoded for row in rows]) if wanted & WANT_KEYS_ENCODED else None,
    )


def _bytes_column(items: Sequence[memoryview | None]) -> BytesColumn:
    offsets, offset, present = array("i", [0]), 0, bytearray((len(items) + 7) // 8)
    for number, item in enumerate(items):
        if item is not None:
            offset += len(item)
            present[number // 8] |= 1 << number % 8
        offsets.append(offset)
    data = b"".join(item for item in items if item is not None)
    return offsets.tobytes(), data, bytes(present) if None in items else None


def _entry(view: memoryview, wanted: int, bytes_max: int) -> tuple[list[int], list[_Row]]:
    """What holds for all messages of an entry, and these."""
    at, end, last_offset = 0, len(view), -1
    if end >= 6 and bytes(view[:2]) == b"\x0e\x02":
        size, at = _u32(view, 2), 6
        if size > end - at:
            raise _UnusualError
        for tag, value, _ in _fields(view, at, at + size):
            if tag == 2 << 3:
                last_offset = value
        at += size
    if end - at >= 10 and bytes(view[at : at + 2]) == b"\x0e\x01":
        at += 6
    data_at = _after_sized(view, at, end)
    messages, published_ms, version, row = _metadata(view, at + 4, data_at, wanted)
    if messages < 0:
        rows = [row]
    else:
        rows, at, size = [], data_at, 0
        for _ in range(messages):
            at, row = _message(view, at, end, wanted)
            size += sum(len(part) for part in row[:2] if part is not None)
            if size > bytes_max:
                raise _UnusualError
            rows.append(row)
    return [messages, published_ms, last_offset, version], rows


def _metadata(view: memoryview, at: int, end: int, wanted: int) -> tuple[int, int, int, _Row]:
    """Of an entry. The row is that of a message that is an entry of its own."""
    named = numbered = False
    messages = published_ms = version = -1
    value: memoryview | None = view[end:]
    key, event_time_ms, key_encoded = None, 0, 0
    odd = False
    for tag, number, item in _fields(view, at, end):
        match tag:
            case 0x0A:
                named = True
            case 0x10:
                numbered = True
            case 0x18:
                published_ms = number
                odd |= number > TIME_MS_MAX
            case 0x22:
                odd |= bool(wanted & WANT_PROPERTIES)
            case 0x32:
                key = item
            case 0x40:
                odd |= number != 0
            case 0x58:
                messages = number
                odd |= not 0 < number <= _INT32_MAX
            case 0x60:
                event_time_ms = number
                odd |= number > TIME_MS_MAX
            case 0x6A | 0x72 | 0x68 | 0x70 | 0xFA | 0xF8:
                odd = True
            case 0x82:
                whole = number == _VERSION_BYTES
                version = int.from_bytes(item, "big", signed=True) if whole else -1
                odd |= version < -1
            case 0x88:
                key_encoded = int(number != 0)
            case 0xC8:
                value = None if number else view[end:]
            case 0xD8:
                odd |= number > 1
    if odd or not named or not numbered or published_ms < 0:
        raise _UnusualError
    return messages, published_ms, version, _Row(value, key, event_time_ms, key_encoded)


def _message(view: memoryview, at: int, end: int, wanted: int) -> tuple[int, _Row]:
    """Of a batch; where the next one begins."""
    value_at = _after_sized(view, at, end)
    size, null = -1, False
    key, event_time_ms, key_encoded = None, 0, 0
    odd = False
    for tag, number, item in _fields(view, at + 4, value_at):
        match tag:
            case 0x0A:
                odd |= bool(wanted & WANT_PROPERTIES)
            case 0x12:
                key = item
            case 0x18:
                size = number if number <= end - value_at else -1
            case 0x20:
                odd |= number != 0
            case 0x28:
                event_time_ms = number
                odd |= number > TIME_MS_MAX
            case 0x30:
                key_encoded = int(number != 0)
            case 0x48:
                null = number != 0
    if odd or size < 0:
        raise _UnusualError
    value = None if null else view[value_at : value_at + size]
    return value_at + size, _Row(value, key, event_time_ms, key_encoded)


def _u32(view: memoryview, at: int) -> int:
    return int.from_bytes(view[at : at + 4], "big")


def _after_sized(view: memoryview, at: int, end: int) -> int:
    """Where what has its size before it, at ``at``, ends."""
    if end - at < 4 or _u32(view, at) > end - at - 4:
        raise _UnusualError
    return at + 4 + _u32(view, at)


def _fields(view: memoryview, at: int, end: int) -> Iterator[tuple[int, int, memoryview]]:
    """Tag, number (or length) and bytes of every field of a message."""
    while at < end:
        tag, at = _varint(view, at, end, 5)
        if tag < 8 or tag > 0xFFFF_FFFF:
            raise _UnusualError
        kind, value, begin = tag & 7, 0, at
        if kind == 0:
            value, at = _varint(view, at, end, 9)
        elif kind == 2:
            value, begin = _varint(view, at, end, 9)
            at = begin + value
        elif kind in (1, 5):
            at += 8 if kind == 1 else 4
        else:
            raise _UnusualError
        if at > end:
            raise _UnusualError
        yield tag, value, view[begin:at]


def _varint(view: memoryview, at: int, end: int, bytes_max: int) -> tuple[int, int]:
    value = 0
    for shift in range(bytes_max):
        if at >= end:
            break
        byte = view[at]
        at += 1
        value |= (byte & 127) << 7 * shift
        if byte < 128:
            return value, at
    raise _UnusualError
