"""Heads of record batches, as far as storage needs them: where a batch ends, what it holds, whether
it is whole. What is in it stays closed.

Owns Kafka's batch format 2 up to the first record. Pure.

Rules:

* A batch is stored as its producer made it. Only the first 16 bytes are the broker's: base offset,
  length and leader epoch. The checksum begins behind them (and behind itself), so that they are
  stamped without reading the rest.
* ``whole_batches`` believes nothing: what it gives has a plausible head, all its bytes, and (with
  ``checked``) its checksum. What does not is a ``CorruptBatchError`` that says where and why.

Layout, big-endian, 61 bytes: base offset 8, length 4 (of what follows it), leader epoch 4, magic 1,
CRC-32C 4 (of all that follows it), attributes 2, last offset delta 4, base time 8, greatest time 8,
producer id 8, producer epoch 2, base sequence 4, count 4. Source: Kafka's protocol guide,
"Record Batch".
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final, NamedTuple, TypeAlias

from magnetar.model.errors import CorruptBatchError
from magnetar.wire.checksum import crc32c

Buffer: TypeAlias = bytes | bytearray | memoryview

_HEADER: Final = struct.Struct(">qiibIhiqqqhii")
_STAMP: Final = struct.Struct(">qii")
HEADER_BYTES: Final = _HEADER.size
STAMP_BYTES: Final = _STAMP.size
LENGTH_END: Final = 12
"""The length counts what lies behind it."""
MAGIC: Final = 2
_CHECKED_FROM: Final = 21
_TRANSACTIONAL, _CONTROL = 0x10, 0x20
_CODEC = 0x07
NO_PRODUCER: Final = -1
NO_TIME: Final = -1


class BatchHead(NamedTuple):
    """Times are milliseconds since 1970. ``producer_id`` -1: no idempotent producer."""

    base_offset: int
    length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_time_ms: int
    greatest_time_ms: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    records: int

    @property
    def byte_count(self) -> int:
        """Of the whole batch."""
        return LENGTH_END + self.length

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        return self.base_offset + self.last_offset_delta + 1

    @property
    def last_sequence(self) -> int:
        """Sequences go round after 2^31 - 1."""
        return (self.base_sequence + self.last_offset_delta) & 0x7FFF_FFFF

    @property
    def transactional(self) -> bool:
        return bool(self.attributes & _TRANSACTIONAL)

    @property
    def control(self) -> bool:
        """It is a marker, not a client's."""
        return bool(self.attributes & _CONTROL)

    @property
    def codec(self) -> int:
        """0 none, 1 gzip, 2 snappy, 3 lz4, 4 zstd."""
        return self.attributes & _CODEC


def read_header(data: Buffer, at: int = 0) -> BatchHead:
    """The head at ``at``, which must lie in ``data`` whole. Nothing is checked."""
    return BatchHead._make(_HEADER.unpack_from(data, at))


def implausible(header: BatchHead) -> str | None:
    """Why ``header`` cannot be one, in words."""
    if header.magic != MAGIC:
        return f"format {header.magic}, not {MAGIC}"
    if header.length < HEADER_BYTES - LENGTH_END:
        return f"a length of {header.length} bytes, less than its head"
    if header.base_offset < 0 or header.last_offset_delta < 0:
        return f"offsets {header.base_offset} + {header.last_offset_delta}"
    return None


def whole_batches(data: Buffer, *, checked: bool) -> Iterator[tuple[int, BatchHead]]:
    """(place in ``data``, head) of each batch, one after the other; ``checked``: its checksum too.
    Raises ``CorruptBatchError`` at the first that is not whole, when it is reached."""
    view = memoryview(data)
    at, end = 0, len(view)
    while at < end:
        if end - at < HEADER_BYTES:
            raise CorruptBatchError(f"{end - at} bytes at {at} are no batch: too few for its head")
        header = read_header(view, at)
        if why := implausible(header):
            raise CorruptBatchError(f"the batch at byte {at} is none: {why}")
        if header.byte_count > end - at:
            raise CorruptBatchError(
                f"the batch at byte {at} has {end - at} of its {header.byte_count} bytes"
            )
        if checked and crc32c(view[at + _CHECKED_FROM : at + header.byte_count]) != header.crc:
            raise CorruptBatchError(
                f"the batch at byte {at} (offset {header.base_offset}) fails its checksum"
            )
        yield at, header
        at += header.byte_count


def stamp(header: BatchHead, base_offset: int, leader_epoch: int) -> bytes:
    """The first ``STAMP_BYTES`` of a batch, as the broker writes them."""
    return _STAMP.pack(base_offset, header.length, leader_epoch)


def renumbered(header: BatchHead, base_offset: int, leader_epoch: int) -> BatchHead:
    """``header`` as ``stamp`` makes it."""
    return header._replace(base_offset=base_offset, leader_epoch=leader_epoch)
