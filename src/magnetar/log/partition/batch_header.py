"""Record batches, as far as storage needs them: where one ends, whether it is whole, what it says
of itself. What is in it stays closed. Pure.

The layout, and the fields of the head: ``wire.kafka.batches``.

Rules:

* A batch is stored as its producer made it. Only the first 16 bytes are the broker's: base offset,
  length and leader epoch. The checksum begins behind them (and behind itself), so that they are
  stamped without reading the rest.
* ``whole_batches`` believes nothing: what it gives has a plausible head, all its bytes, and (with
  ``checked``) its checksum. What does not is a ``CorruptBatchError`` that says where and why.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, TypeAlias

from magnetar.model.errors import CorruptBatchError
from magnetar.wire.checksum import crc32c
from magnetar.wire.kafka import batches
from magnetar.wire.kafka.batches import (
    BATCH_HEADER_BYTES,
    CODEC_MASK,
    CONTROL,
    MAGIC,
    TRANSACTIONAL,
    BatchHeader,
    read_head,
)

Buffer: TypeAlias = bytes | bytearray | memoryview

HEADER_BYTES: Final = BATCH_HEADER_BYTES
STAMP_BYTES: Final = batches.STAMP_BYTES
LENGTH_END: Final = 12
"""The length counts what lies behind it."""
CHECKED_FROM: Final = 21


class BatchHead(BatchHeader):
    """With what follows from the fields. Times are milliseconds since 1970."""

    __slots__ = ()

    @property
    def byte_count(self) -> int:
        """Of the whole batch."""
        return LENGTH_END + self.length

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def transactional(self) -> bool:
        return bool(self.attributes & TRANSACTIONAL)

    @property
    def control(self) -> bool:
        """It is a marker, not a client's."""
        return bool(self.attributes & CONTROL)

    @property
    def codec(self) -> int:
        return self.attributes & CODEC_MASK


def read_header(data: Buffer, at: int = 0) -> BatchHead:
    """The head at ``at``, which must lie in ``data`` whole. Nothing is checked."""
    return read_head(BatchHead, data, at)


def implausible(header: BatchHead) -> str | None:
    """Why ``header`` cannot be one, in words."""
    if header.magic != MAGIC:
        return f"format {header.magic}, not {MAGIC}"
    if header.length < HEADER_BYTES - LENGTH_END:
        return f"a length of {header.length} bytes, less than its head"
    if header.base_offset < 0 or header.last_offset_delta < 0:
        return f"offsets {header.base_offset} + {header.last_offset_delta}"
    return None


def has_its_checksum(view: memoryview, at: int, header: BatchHead) -> bool:
    """Of a batch at ``at``, all of which is there."""
    return crc32c(view[at + CHECKED_FROM : at + header.byte_count]) == header.crc


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
        if checked and not has_its_checksum(view, at, header):
            raise CorruptBatchError(
                f"the batch at byte {at} (offset {header.base_offset}) fails its checksum"
            )
        yield at, header
        at += header.byte_count


def stamp(header: BatchHead, base_offset: int, leader_epoch: int) -> bytes:
    """The first ``STAMP_BYTES`` of a batch, as the broker writes them."""
    return batches.stamp(base_offset, header.length, leader_epoch)


def renumbered(header: BatchHead, base_offset: int, leader_epoch: int) -> BatchHead:
    """``header`` as ``stamp`` makes it."""
    return BatchHead._make((base_offset, header.length, leader_epoch, *header[3:]))
