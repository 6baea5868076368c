"""Entries that are no record batches, as batches: what clients of another protocol store.

Pure. A partition's files hold batches of format 2 and nothing else. An entry of another protocol is
the value of the one record of a batch which counts as many offsets as the entry has messages; bit
14 of the attributes says so, far from those that Kafka uses (0 to 6) or will use next. Nobody but
this module knows; who reads gets the entry's bytes back, as a view.

The record: length (zigzag varint), attributes 1, time and offset delta 0, no key, value length
(zigzag varint), the value, no headers (one byte 0).

Why: docs/adr/0111-partitions-behind-the-seam.md.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from magnetar.log.partition.batch_header import HEADER_BYTES, Buffer
from magnetar.log.partition.markers import signed_varint
from magnetar.wire.checksum import crc32c
from magnetar.wire.kafka.batches import BATCH_HEADER_BYTES, MAGIC, NO_PRODUCER, TIMESTAMP_MAX
from magnetar.wire.varint import varint

ENVELOPE: Final = 1 << 14
_HEAD: Final = struct.Struct(">qiibIhiqqqhii")
_CRC: Final = struct.Struct(">I")
_CRC_AT: Final = 17
_CHECKED_FROM: Final = 21
_LENGTH_END: Final = 12
_NO_KEY: Final = b"\x01"
_END: Final = 1
"""The byte behind the value: no headers."""


class Enclosed(NamedTuple):
    """Where the entry lies in its batch."""

    start: int
    end: int


def wrap(payload: Buffer, messages: int, time_ms: int) -> bytearray:
    """A batch of ``messages`` offsets, at offset 0 and of no epoch: the log stamps both. Producers
    of Pulsar's may say times that a batch has no place for."""
    time_ms = min(time_ms, TIMESTAMP_MAX)
    size = len(payload)
    value_head = b"\0\0\0" + _NO_KEY + varint(size << 1)
    record_size = len(value_head) + size + _END
    head = varint(record_size << 1) + value_head
    start = BATCH_HEADER_BYTES + len(head)
    batch = bytearray(start + size + _END)
    _HEAD.pack_into(
        batch,
        0,
        0,
        len(batch) - _LENGTH_END,
        -1,
        MAGIC,
        0,
        ENVELOPE,
        messages - 1,
        time_ms,
        time_ms,
        NO_PRODUCER,
        -1,
        -1,
        1,
    )
    batch[BATCH_HEADER_BYTES:start] = head
    batch[start : start + size] = payload  # the only copy of it
    _CRC.pack_into(batch, _CRC_AT, crc32c(memoryview(batch)[_CHECKED_FROM:]))
    return batch


def just_wrapped(batch: bytearray, payload_bytes: int) -> tuple[memoryview, int]:
    """The entry in a batch that ``wrap`` has made: bytes up to its end, and where it starts."""
    end = len(batch) - _END
    return memoryview(batch)[:end], end - payload_bytes


def enclosed(batch: Buffer) -> Enclosed:
    """Of a batch that is an envelope."""
    _, at = signed_varint(batch, HEADER_BYTES)
    size, start = signed_varint(batch, at + 4)
    return Enclosed(start, start + size)
