"""Kafka's record batches as entries of Pulsar's, for Pulsar's consumers.

A batch of n records becomes a batch of n messages, so positions, batch indexes and ack sets mean
the same messages in both. What corresponds:

=====================  ======================================================================
record                 message
=====================  ======================================================================
key                    partition key: its text, or base64 where it is not UTF-8
value, null value      payload, null value
timestamp              event time; of the newest record also the publish time of the batch
headers                properties: text, or base64 where a value is not UTF-8; of several headers
                       of one name the last
compression            the same, but for gzip, which is zlib
=====================  ======================================================================

A batch that cannot be taken apart is one message with the batch as its payload (``sealed_entry``):
Pulsar's clients drop the connection, with all that is on it, over bytes that are no entry.

Pure, but for the codecs' libraries.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final

from magnetar.wire.kafka.batches import CODEC_MASK, BatchHeader, read_batch_header
from magnetar.wire.kafka.compression import UNCOMPRESSED_BYTES_MAX, Codec
from magnetar.wire.kafka.records import KafkaRecord, RecordHeader, read_batch, timestamp_of
from magnetar.wire.pulsar.codes import Compression
from magnetar.wire.pulsar.compression import find_compressor
from magnetar.wire.pulsar.writing import Columns, EntryBuilder, Head, Properties

CODECS: Final[Mapping[Codec, Compression]] = MappingProxyType(
    {
        Codec.NONE: Compression.NONE,
        Codec.GZIP: Compression.ZLIB,
        Codec.SNAPPY: Compression.SNAPPY,
        Codec.LZ4: Compression.LZ4,
        Codec.ZSTD: Compression.ZSTD,
    }
)

NOT_CONVERTED: Final = "magnetar.not_converted"
"""The property that says why a message's payload is a record batch, and not a record's value."""


def pulsar_entry(
    batch: memoryview,
    *,
    compressed: bool = True,
    every_header: bool = False,
    uncompressed_bytes_max: int = UNCOMPRESSED_BYTES_MAX,
) -> bytes:
    """The entry that a producer of Pulsar's would have sent, ``compressed`` as the batch is; with
    ``every_header`` there are several properties of a name where there are several headers. Raises
    ``ProtocolError`` for a batch that cannot be taken apart, ``ConfigError`` if its codec's library
    is not installed."""
    header, records = read_batch(batch, uncompressed_bytes_max)
    codec = Codec(header.attributes & CODEC_MASK) if compressed else Codec.NONE
    compression = CODECS[codec]
    builder = EntryBuilder(compression, find_compressor(compression))
    head = _head(header)
    if len(records) <= header.last_offset_delta:  # compaction took some
        return builder.sparse_entry(head, *_with_gaps(header, records, every_header))
    times = [max(0, timestamp_of(header, record)) for record in records]
    return builder.entry(head, _columns(records, times, every_header))


def _with_gaps(
    header: BatchHeader, records: Sequence[KafkaRecord], every_header: bool
) -> tuple[Columns, Sequence[int | None]]:
    """What is left, and which of it each message of the batch is."""
    times = [max(0, timestamp_of(header, record)) for record in records]
    rows: list[int | None] = [None] * (header.last_offset_delta + 1)
    for row, record in enumerate(records):
        rows[record.offset_delta] = row
    return _columns(records, times, every_header), rows


def sealed_entry(batch: memoryview, why: str) -> bytes:
    """The entry of a batch that ``pulsar_entry`` refuses. It has as many messages as the batch has
    offsets, since that many were counted; all but the first say that they are not there."""
    header = read_batch_header(batch)
    builder = EntryBuilder(Compression.ZLIB, find_compressor(Compression.ZLIB))
    one = Columns([bytes(batch)], properties=[{NOT_CONVERTED: why}])
    return builder.entry(_head(header), one, gone=header.last_offset_delta)


def _head(header: BatchHeader) -> Head:
    name = f"kafka-{header.producer_id}" if header.producer_id >= 0 else "kafka"
    return Head(name, max(0, header.base_offset), max(0, header.max_timestamp_ms))


def _columns(
    records: Sequence[KafkaRecord], times_ms: Sequence[int], every_header: bool
) -> Columns:
    return Columns(
        [record.value for record in records],
        [record.key for record in records],
        times_ms,
        [_properties(record.headers, every_header) for record in records],
    )


def _properties(headers: Sequence[RecordHeader], every: bool) -> Properties | None:
    if not headers:
        return None
    pairs = [(key, text_of(value)) for key, value in headers]
    return pairs if every else dict(pairs)


def text_of(value: bytes | None) -> str | None:
    """What a key, or a header's value, is as text."""
    if value is None:
        return None
    try:
        return value.decode()
    except UnicodeDecodeError:
        return b64encode(value).decode()
