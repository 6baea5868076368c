"""Record batches (version 2): their header, and what is checked before one is stored.

Layout (big-endian)::

    0  base offset 8      12 leader epoch 4    21 attributes 2        35 max timestamp 8
    8  length 4           16 magic 1           23 last offset delta 4 43 producer id 8
       (of what follows)  17 CRC-32C 4         27 base timestamp 8    51 producer epoch 2
                             (from 21 on)                             53 base sequence 4
                                                                      57 record count 4
    61 records, compressed together as the attributes say

Attributes: bits 0-2 codec, 3 timestamp type (1: when it was appended), 4 transactional, 5 control.
The checksum begins at the attributes, so the log stamps offset and epoch without computing it.

Source: Kafka's documentation, "Message format".
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final, NamedTuple, TypeVar

import crc32c

from magnetar.model.errors import ChecksumError, ImplausibleMessageError, ProtocolError
from magnetar.wire.kafka.primitives import Buffer

BATCH_HEADER_BYTES: Final = 61
STAMP_BYTES: Final = 16
"""Base offset, length, leader epoch: what stands before the first byte that a producer fixes."""
MAGIC: Final = 2
MAGIC_AT: Final = 16
RECORD_BYTES_LEAST: Final = 7
RECORDS_MAX: Final = 1 << 20
"""Of a compressed batch, whose size says little about its number of records."""

CODEC_MASK: Final = 0x07
CODEC_LAST: Final = 4
"""zstd. Why it matters: a log with one batch of a later number is read up to there, and no
further."""
APPEND_TIME: Final = 0x08
TRANSACTIONAL: Final = 0x10
CONTROL: Final = 0x20

TIMESTAMP_MAX: Final = (1 << 63) - 1
"""Milliseconds; producers of Pulsar's may say more, up to 64 bits."""
TIMESTAMP_MIN: Final = -(1 << 63)
NO_PRODUCER: Final = -1
NO_SEQUENCE: Final = -1

_HEADER: Final = struct.Struct(">qiibIhiqqqhii")
_CHECKED: Final = struct.Struct(">hiqqqhii")
_BASE: Final = struct.Struct(">qii")
_EPOCH: Final = struct.Struct(">i")
_OFFSET: Final = struct.Struct(">q")
_CRC: Final = struct.Struct(">I")
_CRC_AT, _CHECKED_FROM, _ATTRIBUTES_LOW, _MAX_TIMESTAMP_AT, _PRODUCER_AT = 17, 21, 22, 35, 43


class BatchHeader(NamedTuple):
    """The header's fields, as they are stored."""

    base_offset: int
    length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp_ms: int
    max_timestamp_ms: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def last_sequence(self) -> int:
        """Sequences go round after 2^31 - 1."""
        return (self.base_sequence + self.last_offset_delta) & 0x7FFFFFFF

    @property
    def append_time_ms(self) -> int:
        """Of all records, when they were appended; -1: they have their producer's times."""
        return self.max_timestamp_ms if self.attributes & APPEND_TIME else -1

    @property
    def next_offset(self) -> int:
        return self.base_offset + self.last_offset_delta + 1


Head = TypeVar("Head", bound=BatchHeader)


def read_batch_header(view: Buffer, at: int = 0) -> BatchHeader:
    """Raises ``ProtocolError`` if ``view`` has no whole header there."""
    return read_head(BatchHeader, view, at)


def read_head(kind: type[Head], view: Buffer, at: int) -> Head:
    """As ``read_batch_header``, as a kind of its own."""
    if len(view) - at < BATCH_HEADER_BYTES:
        raise ProtocolError(f"{len(view) - at} bytes are no record batch")
    return tuple.__new__(kind, _HEADER.unpack_from(view, at))


def producer_of(batch: Buffer) -> int:
    """Its producer's id, or ``NO_PRODUCER``."""
    return int(_OFFSET.unpack_from(batch, _PRODUCER_AT)[0])


def is_batch(payload: Buffer) -> bool:
    """Whether an entry's payload is a record batch: by its magic byte, and a length that ends with
    the payload. (In an entry of Pulsar's these bytes are in the middle of its metadata.)"""
    if len(payload) < BATCH_HEADER_BYTES or payload[16] != MAGIC:
        return False
    return int(_BASE.unpack_from(payload)[1]) == len(payload) - 12


def split(records: memoryview) -> Iterator[memoryview]:
    """The batches that follow one another in a produce request or a fetch response, the last one
    perhaps cut off, which is left out. Raises ``ProtocolError``."""
    at = 0
    while len(records) - at >= BATCH_HEADER_BYTES:
        length = int(_BASE.unpack_from(records, at)[1])
        if length < BATCH_HEADER_BYTES - 12:
            raise ProtocolError(f"a record batch of {length} bytes; {BATCH_HEADER_BYTES} at least")
        stop = at + 12 + length
        if stop > len(records):
            return
        yield records[at:stop]
        at = stop


def check_produced(records: memoryview) -> BatchHeader:
    """What a producer sends for one partition: exactly one sound batch. Raises ``ProtocolError``
    and its kinds ``ChecksumError``, ``ImplausibleMessageError``."""
    if len(records) < BATCH_HEADER_BYTES or records[16] != MAGIC:
        raise ImplausibleMessageError(
            "not a record batch of version 2; producers of Kafka 0.11 and later send it"
        )
    header = read_batch_header(records)
    if header.length != len(records) - 12:
        raise ImplausibleMessageError(
            f"a batch of {header.length + 12} bytes in a field of {len(records)}; one batch per "
            "partition and request is taken"
        )
    if crc32c.crc32c(records[21:]) != header.crc:
        raise ChecksumError("the checksum of a record batch does not match its bytes")
    count, size = header.record_count, len(records) - BATCH_HEADER_BYTES
    most = RECORDS_MAX if header.attributes & CODEC_MASK else size // RECORD_BYTES_LEAST
    if not 1 <= count <= most or header.last_offset_delta != count - 1:
        raise ImplausibleMessageError(
            f"a batch claims {count} records and offsets up to {header.last_offset_delta} in "
            f"{size} bytes"
        )
    if header.attributes & CODEC_MASK > CODEC_LAST:
        raise ImplausibleMessageError(
            f"records compressed with codec {header.attributes & CODEC_MASK}, which is none of "
            "Kafka's: no consumer could read them"
        )
    if header.attributes & CONTROL:
        raise ImplausibleMessageError("control batches are the broker's own; a producer sent one")
    if header.attributes & TRANSACTIONAL and header.producer_id < 0:
        raise ImplausibleMessageError("a batch of a transaction without a producer id")
    if header.producer_id >= 0 and (header.base_sequence < 0 or header.producer_epoch < 0):
        raise ImplausibleMessageError(
            f"producer {header.producer_id} sent no sequence or epoch with its batch"
        )
    return header


def stamp(base_offset: int, length: int, leader_epoch: int) -> bytes:
    """The first ``STAMP_BYTES`` of a batch, as the log writes them."""
    return _BASE.pack(base_offset, length, leader_epoch)


def stamp_in_place(batch: bytearray, base_offset: int, leader_epoch: int) -> None:
    """As ``stamp``, into the batch itself."""
    _OFFSET.pack_into(batch, 0, base_offset)
    _EPOCH.pack_into(batch, 12, leader_epoch)


def appended_at(batch: Buffer, time_ms: int) -> bytearray:
    """A copy of a sound batch, all records of which have that time: it stands once, as the greatest
    one, and the attributes say so. What the records say of themselves stays.

    Why: docs/adr/0175-records-have-the-time-of-their-append.md."""
    stamped = bytearray(batch)
    stamped[_ATTRIBUTES_LOW] |= APPEND_TIME
    _OFFSET.pack_into(stamped, _MAX_TIMESTAMP_AT, time_ms)
    with memoryview(stamped) as view:
        _CRC.pack_into(stamped, _CRC_AT, crc32c.crc32c(view[_CHECKED_FROM:]))
    return stamped


def build_batch(
    records: bytes,
    *,
    count: int,
    last_offset_delta: int,
    attributes: int = 0,
    base_timestamp_ms: int = 0,
    max_timestamp_ms: int = 0,
    producer_id: int = NO_PRODUCER,
    producer_epoch: int = -1,
    base_sequence: int = NO_SEQUENCE,
    base_offset: int = 0,
    leader_epoch: int = -1,
) -> bytes:
    """A batch around ``records``, which are compressed already if ``attributes`` say so."""
    checked = (
        _CHECKED.pack(
            attributes,
            last_offset_delta,
            base_timestamp_ms,
            max_timestamp_ms,
            producer_id,
            producer_epoch,
            base_sequence,
            count,
        )
        + records
    )
    crc = crc32c.crc32c(checked)
    head = _BASE.pack(base_offset, len(checked) + 9, leader_epoch)
    return head + struct.pack(">bI", MAGIC, crc) + checked
