"""What compaction needs of a stored entry: the keys of its messages, and the entry without some.

A message that compaction takes out of a batch leaves its place: an empty message that says
``compacted_out``, so that the others keep their indexes, and with them their message ids. The rest
of the entry stays as it is; the batch is compressed anew, or not at all where the library for it is
missing.

Errors: ``ProtocolError`` on bytes that are no entry.

Source: Pulsar's ``SingleMessageMetadata.compacted_out``, as ``RawBatchConverter`` writes it.
"""

from __future__ import annotations

import struct
from collections.abc import Container
from typing import Final

from magnetar.model.errors import ConfigError
from magnetar.model.keyed import ChunkOf, KeyedEntry, KeyedMessage
from magnetar.wire.checksum import crc32c
from magnetar.wire.pulsar.batches import split_entry
from magnetar.wire.pulsar.broker_metadata import header_bytes
from magnetar.wire.pulsar.codes import Compression
from magnetar.wire.pulsar.compression import find_compressor
from magnetar.wire.pulsar.metadata import (
    MAGIC_CRC32C,
    Buffer,
    EntryMetadata,
    entry_metadata,
    parse_metadata,
)
from magnetar.wire.pulsar.pulsar_pb2 import CompressionType, SingleMessageMetadata
from magnetar.wire.pulsar.writing import GONE_MESSAGE

_MAGIC: Final = MAGIC_CRC32C.to_bytes(2, "big")
_U32: Final = struct.Struct(">I")
_PLAIN, _BASE64 = b"p", b"b"


def keyed_entry(payload: Buffer) -> KeyedEntry:
    """What the entry's messages are kept by. Messages that compaction took out are left out, and so
    are those that were erased from a table: of an entry of which nothing else was there, its place
    is left."""
    if len(payload) == header_bytes(payload):
        return KeyedEntry((), 0)
    meta = entry_metadata(payload)
    if meta.num_chunks > 1:
        chunk = ChunkOf(meta.chunk_uuid, meta.chunk_id == meta.num_chunks - 1)
        return KeyedEntry((KeyedMessage(-1, _key(meta), False),), chunk=chunk)
    if not meta.batched:
        empty = meta.null_value or not _size(payload, meta)
        return KeyedEntry((KeyedMessage(-1, _key(meta), empty),))
    if meta.encrypted:
        return KeyedEntry((), meta.num_messages, sealed=True)
    found = split_entry(payload, meta)
    assert found.singles is not None
    messages = [
        KeyedMessage(index, _single_key(single), single.null_value or not single.payload_size)
        for index, single in zip(found.indexes, found.singles, strict=True)
        if not single.compacted_out
    ]
    return KeyedEntry(messages, meta.num_messages)


def _size(payload: Buffer, meta: EntryMetadata) -> int:
    """Bytes of a plain message's value."""
    if meta.compression is not Compression.NONE and not meta.encrypted:
        return meta.uncompressed_size
    return len(payload) - meta.data_start


def _key(meta: EntryMetadata) -> bytes | None:
    if meta.partition_key is None:
        return None
    return (_BASE64 if meta.partition_key_b64_encoded else _PLAIN) + meta.partition_key.encode()


def _single_key(single: SingleMessageMetadata) -> bytes | None:
    if not single.HasField("partition_key"):
        return None
    mark = _BASE64 if single.partition_key_b64_encoded else _PLAIN
    return mark + single.partition_key.encode()


def without_others(payload: Buffer, kept: Container[int]) -> bytes:
    """The entry, a batch, with no messages but those of the indexes ``kept``."""
    meta, _ = parse_metadata(payload)
    found = split_entry(payload, entry_metadata(payload))
    assert found.singles is not None, "a batch"
    parts: list[bytes | memoryview] = []
    for index, single, value in zip(found.indexes, found.singles, found.values, strict=True):
        if index in kept:
            head = single.SerializeToString()
            parts += [_U32.pack(len(head)), head, value]
        else:
            parts.append(GONE_MESSAGE)
    data = b"".join(parts)
    meta.uncompressed_size = len(data)
    try:
        data = find_compressor(Compression(meta.compression))(data)
    except ConfigError:  # its library is missing, and every reader can do without
        meta.compression = CompressionType.NONE
    text = meta.SerializeToString()
    body = _U32.pack(len(text)) + text + data
    header = bytes(payload[: header_bytes(payload)])
    return header + _MAGIC + _U32.pack(crc32c(body)) + body
