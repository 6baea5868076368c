"""Markers: what a control batch says of a transaction.

Pure. A marker is a batch with one record, which is never compressed: after the head come length,
attributes 1, time delta, offset delta, key length (all but the attributes zigzag varints), then the
key: version 2, kind 2 (0 abort, 1 commit); value length (varint), then the value: version 2,
coordinator epoch 4. Source: Kafka's ``EndTransactionMarker``.
"""

from __future__ import annotations

import struct
from typing import Final

from magnetar.log.partition.batch_header import HEADER_BYTES, STAMP_BYTES, BatchHead, Buffer
from magnetar.model.errors import CorruptBatchError

_KEY: Final = struct.Struct(">hh")
_VALUE: Final = struct.Struct(">hi")
_COMMIT: Final = 1
_RECORD_AT: Final = HEADER_BYTES - STAMP_BYTES


def read_marker(header: BatchHead, data: Buffer) -> tuple[bool, int]:
    """(whether it commits, coordinator epoch). ``data``: the batch, with or without its first
    ``STAMP_BYTES``. Raises ``CorruptBatchError``."""
    view = memoryview(data)[len(data) - header.byte_count + STAMP_BYTES + _RECORD_AT :]
    try:
        at = 0
        _, at = signed_varint(view, at)  # length
        at += 1  # attributes
        _, at = signed_varint(view, at)  # time delta
        _, at = signed_varint(view, at)  # offset delta
        key_bytes, at = signed_varint(view, at)
        _, kind = _KEY.unpack_from(view, at)
        value_bytes, at = signed_varint(view, at + key_bytes)
        _, epoch = _VALUE.unpack_from(view, at) if value_bytes >= _VALUE.size else (0, -1)
    except (IndexError, struct.error) as error:
        raise CorruptBatchError(f"the marker at offset {header.base_offset} is cut") from error
    return kind == _COMMIT, epoch


def signed_varint(view: Buffer, at: int) -> tuple[int, int]:
    """A zigzag varint and where it ends. Raises ``IndexError`` past the end."""
    value = shift = 0
    while True:
        byte = view[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), at
        shift += 7
