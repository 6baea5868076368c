"""A batch with its records compressed otherwise, as a topic's ``compression.type`` wants them.

Everything else of the batch stays: offsets, times, producer, sequence, attributes but the codec.
The checksum is held against the bytes that came before a new one is made: what was damaged on its
way must not look sound afterwards.

Why: docs/adr/0166-batches-are-compressed-as-a-topic-says.md.
"""

from __future__ import annotations

from magnetar.model.errors import ImplausibleMessageError, ProtocolError
from magnetar.wire.kafka.batches import (
    BATCH_HEADER_BYTES,
    CODEC_MASK,
    MAGIC,
    build_batch,
    check_produced,
)
from magnetar.wire.kafka.compression import Codec, compress, decompress
from magnetar.wire.kafka.primitives import Buffer

_ATTRIBUTES_LOW = 22
"""Where the byte of the header is that has the codec."""


def is_compressed_by(codec: Codec, batch: Buffer) -> bool:
    """By the header alone; True of what is no batch, which is refused as it is."""
    if len(batch) < BATCH_HEADER_BYTES or batch[16] != MAGIC:
        return True
    return batch[_ATTRIBUTES_LOW] & CODEC_MASK == codec


def recompressed(codec: Codec, batch: memoryview) -> bytes:
    """``batch``: what a producer sends for one partition. Takes CPU in proportion to its size: call
    it on a thread. Raises as ``check_produced``, ``ImplausibleMessageError`` for records that are
    not of the codec that the batch names, and ``ConfigError`` if no installed library knows one of
    both codecs."""
    header = check_produced(batch)
    try:
        records = decompress(Codec(header.attributes & CODEC_MASK), batch[BATCH_HEADER_BYTES:])
    except ProtocolError as error:
        raise ImplausibleMessageError(str(error)) from error
    return build_batch(
        compress(codec, records),
        count=header.record_count,
        last_offset_delta=header.last_offset_delta,
        attributes=header.attributes & ~CODEC_MASK | codec,
        base_timestamp_ms=header.base_timestamp_ms,
        max_timestamp_ms=header.max_timestamp_ms,
        producer_id=header.producer_id,
        producer_epoch=header.producer_epoch,
        base_sequence=header.base_sequence,
        base_offset=header.base_offset,
        leader_epoch=header.leader_epoch,
    )
