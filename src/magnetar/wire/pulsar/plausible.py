"""Whether the numbers in a message's metadata can be true of its bytes.

Clients trust them: they walk a batch as far as its count says, whatever bytes are there (the C++
client ends with a segmentation fault), and allocate what ``uncompressed_size`` and
``total_chunk_msg_size`` say before they look at a byte. Such an entry would end every consumer that
gets it, again and again, as nobody acknowledges it. So every number that a client takes for a size
is held against the bytes that are there, before the entry is stored and before it is sent.

No well-behaved client's message is refused: each bound is what the format or the compression can
reach at most. What needs a look into the data (the sizes inside of a batch, or whether compressed
data is what it says) is not checked here.
"""

from __future__ import annotations

from typing import Final

from magnetar.speedups.pure.sends import SINGLE_BYTES_MIN, batch_fits
from magnetar.wire.pulsar.codes import Compression
from magnetar.wire.pulsar.pulsar_pb2 import MessageMetadata

__all__ = ["SINGLE_BYTES_MIN", "batch_fits", "implausible"]

RATIO_MAX: Final[dict[int, int]] = {
    Compression.NONE: 1,
    Compression.LZ4: 255,  # a byte of match length stands for 255
    Compression.ZLIB: 1032,  # two bits stand for 258
    Compression.ZSTD: 1 << 15,  # a block of four bytes stands for 128 KiB
    Compression.SNAPPY: 32,  # three bytes stand for 64
}
"""How many bytes one compressed byte can stand for at most."""

RATIO_SLACK_BYTES: Final = 1 << 17
"""Above the ratio, for data that is shorter than one block of its compression."""

CHUNKS_MAX: Final = 1 << 16
"""Clients keep a table of that size for the message; with the usual largest message, 300 GiB."""


def implausible(meta: MessageMetadata, data_bytes: int) -> str | None:
    """What cannot be true of an entry with ``data_bytes`` after its metadata; None if all can."""
    whole_bytes = data_bytes
    if meta.num_chunks_from_msg > 1:
        wrong = _implausible_chunk(meta, data_bytes)
        if wrong is not None:
            return wrong
        whole_bytes = meta.total_chunk_msg_size
    if meta.compression:
        ratio = RATIO_MAX[meta.compression]
        if meta.uncompressed_size > whole_bytes * ratio + RATIO_SLACK_BYTES:
            return f"{meta.uncompressed_size} bytes uncompressed out of {whole_bytes}"
        whole_bytes = meta.uncompressed_size
    if meta.HasField("num_messages_in_batch"):
        count = meta.num_messages_in_batch
        if not batch_fits(count, whole_bytes):
            return f"a batch of {count} messages in {whole_bytes} bytes"
    return None


def _implausible_chunk(meta: MessageMetadata, data_bytes: int) -> str | None:
    """All chunks but the last have the same size, so each of them bounds the whole message."""
    chunks, index, total = meta.num_chunks_from_msg, meta.chunk_id, meta.total_chunk_msg_size
    if not 0 <= index < chunks <= CHUNKS_MAX:
        return f"chunk {index} of {chunks}; at most {CHUNKS_MAX} are possible"
    last = index == chunks - 1
    if total < chunks or (not last and total > chunks * data_bytes):
        return f"a message of {total} bytes in {chunks} chunks, one of which has {data_bytes}"
    return None
