"""Entries as clients write them, for tests of the decoder, and what must come out of them."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from magnetar.pipeline.brokers.topic_reader import StoredEntry
from magnetar.pipeline.places import Place, after
from magnetar.wire.pulsar.batches import ChunkAssembler, MessageInfo, iterate_messages
from magnetar.wire.pulsar.broker_metadata import Stamper
from magnetar.wire.pulsar.codes import Compression
from magnetar.wire.pulsar.metadata import entry_metadata
from magnetar.wire.pulsar.pulsar_pb2 import MessageMetadata, SingleMessageMetadata

ALL_COLUMNS = (
    "key", "value", "topic", "partition", "message_id", "publish_time", "event_time", "properties",
)  # fmt: skip
TOPIC = "persistent://public/default/orders-partition-3"


@dataclass(frozen=True)
class Message:
    value: bytes = b"v"
    key: str | None = None
    properties: tuple[tuple[str, str], ...] = ()
    event_time_ms: int = 0
    sequence_id: int | None = None
    ordering_key: bytes | None = None
    null: bool = False
    compacted_out: bool = False
    key_is_base64: bool = False


@dataclass(frozen=True)
class Layout:
    """How an entry is written."""

    compression: Compression = Compression.NONE
    checksum: bool = True
    header: bool = False
    publish_time_ms: int = 1_790_000_000_000
    fields: dict[str, Any] = field(default_factory=dict)


def batch_data(messages: Sequence[Message]) -> bytes:
    parts = []
    for message in messages:
        single = SingleMessageMetadata(payload_size=len(message.value))
        _describe(single, message)
        if message.compacted_out:
            single.compacted_out = True
        data = single.SerializeToString()
        parts += [len(data).to_bytes(4, "big"), data, message.value]
    return b"".join(parts)


def _describe(metadata: SingleMessageMetadata | MessageMetadata, message: Message) -> None:
    if message.key is not None:
        metadata.partition_key = message.key
    if message.key_is_base64:
        metadata.partition_key_b64_encoded = True
    for key, value in message.properties:
        metadata.properties.add(key=key, value=value)
    if message.event_time_ms:
        metadata.event_time = message.event_time_ms
    if message.sequence_id is not None:
        metadata.sequence_id = message.sequence_id
    if message.ordering_key is not None:
        metadata.ordering_key = message.ordering_key
    if message.null:
        metadata.null_value = True


def batch(messages: Sequence[Message], layout: Layout | None = None) -> bytes:
    layout = layout or Layout()
    metadata = _metadata(layout)
    metadata.num_messages_in_batch = len(messages)
    return _written(metadata, batch_data(messages), layout)


def single(message: Message, layout: Layout | None = None) -> bytes:
    layout = layout or Layout()
    metadata = _metadata(layout)
    _describe(metadata, message)
    return _written(metadata, message.value, layout)


def chunks(message: Message, count: int, uuid: str, layout: Layout | None = None) -> list[bytes]:
    layout = layout or Layout()
    whole = compress(message.value, layout.compression)
    size = max(1, -(-len(whole) // count))
    parts = [whole[n * size : (n + 1) * size] for n in range(count)]
    entries = []
    for number, part in enumerate(parts):
        metadata = _metadata(layout)
        _describe(metadata, message)
        metadata.uuid, metadata.chunk_id = uuid, number
        metadata.num_chunks_from_msg, metadata.total_chunk_msg_size = count, len(whole)
        metadata.compression = int(layout.compression)  # type: ignore[assignment]
        metadata.uncompressed_size = len(message.value)
        entries.append(framed(metadata, part, layout))
    return entries


def _metadata(layout: Layout) -> MessageMetadata:
    return MessageMetadata(
        producer_name="standalone-0-1",
        sequence_id=7,
        publish_time=layout.publish_time_ms,
        **layout.fields,
    )


def _written(metadata: MessageMetadata, data: bytes, layout: Layout) -> bytes:
    if layout.compression:
        metadata.compression = int(layout.compression)  # type: ignore[assignment]
        metadata.uncompressed_size = len(data)
    return framed(metadata, compress(data, layout.compression), layout)


def framed(metadata: MessageMetadata, data: bytes, layout: Layout | None = None) -> bytes:
    layout = layout or Layout()
    head = metadata.SerializePartialToString()
    before = Stamper(5, 9).header(11, 1, 12) if layout.header else b""
    checksum = b"\x0e\x01abcd" if layout.checksum else b""
    return before + checksum + len(head).to_bytes(4, "big") + head + data


def compress(data: bytes, how: Compression) -> bytes:
    if how == Compression.NONE:
        return data
    if how == Compression.ZLIB:
        return zlib.compress(data)
    name = {
        Compression.LZ4: "lz4_raw",
        Compression.ZSTD: "zstd",
        Compression.SNAPPY: "snappy",
    }[how]
    return bytes(pa.Codec(name).compress(data, asbytes=True))


def stored(payloads: Sequence[bytes], ledger_id: int = 5, first_id: int = 0) -> list[StoredEntry]:
    return [
        StoredEntry(ledger_id, first_id + number, memoryview(payload), 1)
        for number, payload in enumerate(payloads)
    ]


def rows_one_by_one(
    entries: Sequence[StoredEntry], start: Place, end: Place
) -> Iterator[dict[str, Any]]:
    """The rows that must come out, read with protobuf, message by message."""
    assembler = ChunkAssembler()
    for entry in entries:
        meta = entry_metadata(entry.payload)
        found: list[tuple[MessageInfo, Any]]
        if meta.num_chunks > 1:
            whole = assembler.add(entry.payload, meta)
            found = [] if whole is None else [whole]
        else:
            found = list(iterate_messages(entry.payload, meta))
        for info, value in found:
            place = after(entry.ledger_id, entry.entry_id, info.batch_index)
            if not info.compacted_out and start < place <= end:
                yield _row(entry, meta.publish_time_ms, info, bytes(value))


def _row(
    entry: StoredEntry, publish_time_ms: int, info: MessageInfo, value: bytes
) -> dict[str, Any]:
    return {
        "key": info.key,
        "value": None if info.null_value else value,
        "topic": TOPIC,
        "partition": 3,
        "message_id": {
            "ledger_id": entry.ledger_id,
            "entry_id": entry.entry_id,
            "batch_index": info.batch_index,
        },
        "publish_time": publish_time_ms * 1000,
        "event_time": info.event_time_ms * 1000 or None,
        "properties": list(info.properties.items()),
    }
