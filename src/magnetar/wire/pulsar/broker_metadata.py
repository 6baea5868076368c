"""The header that the broker puts before a stored payload: which messages the entry holds.

Layout (Pulsar's broker entry metadata, big-endian)::

    0x0e02 u16 | size u32 | BrokerEntryMetadata | the producer's bytes

``BrokerEntryMetadata`` is a message of three integers::

    1   broker timestamp   when it was appended, milliseconds since 1970
    2   index              the offset of the entry's *last* message in its log
    15  greatest           the greatest publish time of the ledger up to this entry, milliseconds

Field 15 is Magnetar's own (a reader that does not know it skips it): it never falls within a
ledger, so the first entry from a time on is found by bisection, whatever the producers' clocks
say.

Headers that this module writes are ``HEADER_BYTES`` long, always: integers are padded varints (a
trailing group of zero is allowed), so whoever knows that an entry has one need not look at it. Any
other size is read as well. ``header_bytes`` is the one place that says where a payload begins.

Source: Pulsar's ``PulsarApi.proto`` and ``Commands.skipBrokerEntryMetadataIfExist``; the varints
are Protocol Buffers'.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import lru_cache
from typing import Final, NamedTuple, TypeAlias

from magnetar.model.errors import ProtocolError

Buffer: TypeAlias = bytes | bytearray | memoryview

MAGIC_BROKER_METADATA: Final = 0x0E02
HEADER_BYTES: Final = 30
TIME_MS_MAX: Final = (1 << 42) - 1
"""Six groups of seven bits: the year 2109. What is said to be later counts as this."""

_BODY_BYTES: Final = HEADER_BYTES - 6
_HEAD: Final = struct.Struct(">HI")
_PREFIX: Final = _HEAD.pack(MAGIC_BROKER_METADATA, _BODY_BYTES) + b"\x08"
_INDEX_GROUPS: Final = 9
_TIME_GROUPS: Final = 6
_FIELDS: Final = {0x08: 0, 0x10: 1, 0x78: 2}
_LOW: Final = tuple(bytes((0x80 | low,)) for low in range(128))


class BrokerMetadata(NamedTuple):
    """What a header says; -1 for what it does not say."""

    timestamp_ms: int
    last_offset: int
    greatest_ms: int


def _padded(value: int, groups: int) -> bytes:
    """``value`` as a varint of exactly that many bytes."""
    parts = bytearray()
    for _ in range(groups - 1):
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    parts.append(value)
    return bytes(parts)


def _padded_time(time_ms: int) -> bytes:
    return _LOW[time_ms & 0x7F] + _time_high(time_ms >> 7)


@lru_cache(maxsize=64)
def _time_high(block: int) -> bytes:
    """All but the lowest group: the same for 128 ms, of our clock or of a producer's."""
    return _padded(block, _TIME_GROUPS - 1)


class Stamper:
    """Writes the headers of consecutive entries.

    ``next_offset`` is that of the next message; ``greatest_ms`` is the greatest publish time so
    far. Of an index only the two lowest groups are written each time. What stands before them is
    kept for a millisecond, what follows for 16 384 messages and while no publish time is greater:
    so a header costs two lookups and three concatenations, also where each entry holds a hundred
    messages.
    """

    __slots__ = (
        "_after_index",
        "_before_index",
        "_block",
        "_greatest",
        "_index_high",
        "_now_ms",
        "greatest_ms",
        "next_offset",
    )

    def __init__(self, next_offset: int, greatest_ms: int) -> None:
        self.next_offset = next_offset
        self.greatest_ms = greatest_ms
        self._now_ms = -1  # what ``_before_index`` says
        self._before_index = b""
        self._block = -1  # what ``_index_high`` says
        self._index_high = b""
        self._greatest = -1  # what ``_after_index`` says beside it
        self._after_index = b""

    def headers(self, now_ms: int, messages: Sequence[int], times_ms: Sequence[int]) -> list[bytes]:
        """For entries with that many messages each, published at those times."""
        if now_ms != self._now_ms:
            self._set_now(now_ms)
        before, low, headers = self._before_index, _LOW, []
        offset, greatest = self.next_offset, self.greatest_ms
        block = self._block if greatest == self._greatest else -1
        after = self._after_index
        for count, time_ms in zip(messages, times_ms, strict=True):
            offset += count
            index = offset - 1
            if time_ms > greatest:
                greatest, block = min(time_ms, TIME_MS_MAX), -1
            if index >> 14 != block:
                block = index >> 14
                after = self._after(block, greatest)
            headers.append(before + low[index & 0x7F] + low[index >> 7 & 0x7F] + after)
        self.next_offset, self.greatest_ms = offset, greatest
        return headers

    def header(self, now_ms: int, count: int, time_ms: int) -> bytes:
        """For one entry, as ``headers``: what a loop needs to begin costs as much again."""
        if now_ms != self._now_ms:
            self._set_now(now_ms)
        index = self.next_offset + count - 1
        self.next_offset = index + 1
        greatest = self.greatest_ms
        if time_ms > greatest:
            self.greatest_ms = greatest = min(time_ms, TIME_MS_MAX)
        if index >> 14 != self._block or greatest != self._greatest:
            self._after(index >> 14, greatest)
        return self._before_index + _LOW[index & 0x7F] + _LOW[index >> 7 & 0x7F] + self._after_index

    def _set_now(self, now_ms: int) -> None:
        self._now_ms = now_ms
        self._before_index = _PREFIX + _padded_time(min(now_ms, TIME_MS_MAX)) + b"\x10"

    def _after(self, block: int, greatest_ms: int) -> bytes:
        """What follows the two lowest groups of an index in ``block``; kept."""
        if block != self._block:
            self._block = block
            self._index_high = _padded(block, _INDEX_GROUPS - 2) + b"\x78"
        self._greatest = greatest_ms
        self._after_index = after = self._index_high + _padded_time(greatest_ms)
        return after


def header_bytes(data: Buffer, start: int = 0) -> int:
    """How many bytes before the producer's are the broker's; 0 if there is no header at
    ``start``. Raises ``ProtocolError`` if it is cut off."""
    if len(data) - start < 6 or data[start] != 0x0E or data[start + 1] != 0x02:
        return 0
    size = 6 + int(_HEAD.unpack_from(data, start)[1])
    if start + size > len(data):
        raise ProtocolError(f"broker metadata of {size} bytes, {len(data) - start} are left")
    return size


def header_before(data: Buffer, payload_start: int) -> BrokerMetadata | None:
    """What the header of an entry says whose payload, the header skipped, begins there; None if
    it has none."""
    start = payload_start - HEADER_BYTES
    if start < 0 or _HEAD.unpack_from(data, start) != (MAGIC_BROKER_METADATA, _BODY_BYTES):
        return None
    return read_header(data, start)


def read_header(data: Buffer, start: int = 0) -> BrokerMetadata | None:
    """What the header at ``start`` says; None if there is none. Raises ``ProtocolError``."""
    size = header_bytes(data, start)
    if size == 0:
        return None
    found = [-1, -1, -1]
    body = bytes(data[start + 6 : start + size])
    at = 0
    while at < len(body):
        tag, at = _varint(body, at)
        if tag & 7:
            raise ProtocolError(f"broker metadata has field {tag >> 3} of wire type {tag & 7}")
        value, at = _varint(body, at)
        place = _FIELDS.get(tag)
        if place is not None:
            found[place] = value
    return BrokerMetadata(*found)


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(data) and shift < 70:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
    raise ProtocolError("broker metadata with a broken varint")
