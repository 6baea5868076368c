"""What a stored entry says of itself: its MessageMetadata.

A stored payload is what its producer sent, unmodified::

    [0x0e01 u16][crc32c u32]          absent from very old producers
    [metadata size u32][MessageMetadata]
    [data]                            compressed; a batch when num_messages_in_batch is *present*

A broker's header may stand before it (``broker_metadata``); it is skipped. Nothing here verifies
checksums (``hot.verify_checksum`` does) or takes a batch apart (``batches``).

Errors: ``ProtocolError`` on any bytes that are no such payload.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple, TypeAlias

from google.protobuf.message import DecodeError

from magnetar.model.errors import ImplausibleMessageError, ProtocolError
from magnetar.wire.pulsar.broker_metadata import header_bytes
from magnetar.wire.pulsar.codes import Compression
from magnetar.wire.pulsar.plausible import implausible
from magnetar.wire.pulsar.pulsar_pb2 import KeyValue, MessageMetadata

Buffer = bytes | bytearray | memoryview

MAGIC_CRC32C: Final = 0x0E01

_U16 = struct.Struct(">H").unpack_from
_U32 = struct.Struct(">I").unpack_from
_HEAD = struct.Struct(">H4xI").unpack_from  # magic, checksum, metadata size


class EntryMetadata(NamedTuple):
    """An entry's metadata. Times are milliseconds since 1970; 0 stands for "none".

    ``batched`` tells a batch (even of one) from a plain message; ``num_messages`` is 1 for the
    latter. ``data_start`` is where the data begins in the payload that was read.
    ``num_chunks`` is above 1 when the entry is one of the chunks of a large message.
    ``retained_indexes`` names the messages that compaction left in a batch; empty means all.
    """

    producer_name: str
    sequence_id: int
    highest_sequence_id: int
    publish_time_ms: int
    event_time_ms: int
    deliver_at_time_ms: int
    batched: bool
    num_messages: int
    compression: Compression
    uncompressed_size: int
    partition_key: str | None
    partition_key_b64_encoded: bool
    ordering_key: bytes | None
    properties: Mapping[str, str]
    schema_version: bytes | None
    null_value: bool
    encrypted: bool
    replicated_from: str | None
    marker_type: int | None
    chunk_uuid: str
    chunk_id: int
    num_chunks: int
    chunked_message_bytes: int
    retained_indexes: tuple[int, ...]
    data_start: int


def metadata_bounds(payload: Buffer) -> tuple[int, int]:
    """Where the MessageMetadata of ``payload`` starts and stops; the data follows it."""
    if len(payload) >= 10:
        magic, size = _HEAD(payload)
        if magic == MAGIC_CRC32C and size <= len(payload) - 10:
            return 10, 10 + size
    return _any_metadata_bounds(payload)


def _any_metadata_bounds(payload: Buffer) -> tuple[int, int]:
    start = header_bytes(payload)
    left = len(payload) - start
    if left >= 10 and _U16(payload, start)[0] == MAGIC_CRC32C:
        start += 6
    elif left < 4:
        raise ProtocolError(f"entry of {len(payload)} bytes has no metadata")
    first = start + 4
    stop = first + int(_U32(payload, start)[0])
    if stop > len(payload):
        raise ProtocolError(
            f"truncated entry: metadata of {stop - first} bytes, {len(payload) - first} are left"
        )
    return first, stop


def parse_metadata(payload: Buffer) -> tuple[MessageMetadata, int]:
    """The raw MessageMetadata and where the data starts; for those who need every field.

    Required fields and strings are not checked; ``entry_metadata`` does.
    """
    first, stop = metadata_bounds(payload)
    try:
        return MessageMetadata.FromString(bytes(payload[first:stop])), stop
    except DecodeError as error:
        raise ProtocolError(f"undecodable metadata of {stop - first} bytes: {error}") from error


def _check_required(meta: MessageMetadata) -> None:
    if not meta.IsInitialized():
        raise ProtocolError("message metadata without producer name, sequence id or publish time")


def batch_size(payload: Buffer) -> int:
    """How many messages the entry holds: 1 for a plain message, never less."""
    count = parse_metadata(payload)[0].num_messages_in_batch
    return count if count > 0 else 1


def dispatch_size(payload: Buffer) -> int:
    """As ``batch_size``, and 0 for a chunk of a message that is larger than an entry.

    Raises ``ProtocolError`` for metadata that would end a client's connection, or the client, which
    would get it again on the next: without a required field, or with numbers that cannot be true.
    """
    meta, data_start = parse_metadata(payload)
    if not (meta.sequence_id and meta.publish_time and meta.producer_name):
        _check_required(meta)  # which takes longer
    count = meta.num_messages_in_batch
    chunks = meta.num_chunks_from_msg
    if count != 1 or chunks > 1 or meta.compression or meta.HasField("num_messages_in_batch"):
        _check_plausible(meta, len(payload) - data_start)
    if count > 1:
        return count
    return 0 if chunks > 1 else 1


def _check_plausible(meta: MessageMetadata, data_bytes: int) -> None:
    wrong = implausible(meta, data_bytes)
    if wrong is not None:
        raise ImplausibleMessageError(f"not a message that can be read: it says {wrong}")


_TELLING = re.compile(
    rb"\x40[^\x00]"  # compression, if it is any
    rb"|\x58"  # num_messages_in_batch
    rb"|\x98\x01"  # deliver_at_time
    rb"|[\xd8\xe0\xe8]\x01",  # num_chunks_from_msg, total_chunk_msg_size, chunk_id
    re.DOTALL,
).search
"""Finds the tags, as every known client writes them, of the fields that are checked of a SEND (or
bytes that look like one)."""


Sent: TypeAlias = tuple[int, int, int]
"""What the broker needs to know of what a producer sent: how many messages it holds, when it was
published (0: it does not say), the time before which it must not be delivered (0: none); times in
milliseconds since 1970."""

_PUBLISHED = re.compile(
    rb"\x10[\x80-\xff]*[\x00-\x7f]"  # sequence_id
    rb"\x18([\x80-\xff]{5}[\x01-\x7f])",  # publish_time, between 2004 and 2109
).search
"""Finds the publish time where every known client writes it. (Other bytes that look so, in a
producer's name, give the wrong time to that producer's own messages.)"""
_TIME_PARTS = struct.Struct("<IH")


def _sent_ms(metadata: memoryview) -> int:
    found = _PUBLISHED(metadata)
    if found is None:
        return 0
    low, high = _TIME_PARTS.unpack(found[1])  # groups of seven bits, the lowest first
    time_ms: int = (
        (low & 0x7F)
        | (low & 0x7F00) >> 1
        | (low & 0x7F0000) >> 2
        | (low & 0x7F000000) >> 3
        | (high & 0x7F) << 28
        | (high & 0x7F00) << 27
    )
    return time_ms


def check_sent(payload: memoryview) -> Sent:
    """Check what a producer sent, its checksum apart: before it is stored.

    Requires that ``hot.verify_checksum`` has passed. Raises ``ProtocolError`` if the metadata is
    longer than the payload: that is no message; ``ImplausibleMessageError`` if its numbers cannot
    be true. Metadata that cannot be decoded passes; dispatch leaves it out. Most messages have none
    of the fields and are not decoded, which takes a third of the time, for every entry.
    """
    if payload[0] == 0x0E and payload[1] == 0x02:
        raise ProtocolError("a message that begins with metadata of a broker, not of a client")
    first, stop = metadata_bounds(payload)
    metadata = payload[first:stop]
    if _TELLING(metadata) is None:
        return 1, _sent_ms(metadata), 0
    try:
        meta = MessageMetadata.FromString(bytes(metadata))
    except DecodeError:
        return 1, 0, 0
    _check_plausible(meta, len(payload) - stop)
    return max(1, meta.num_messages_in_batch), meta.publish_time, meta.deliver_at_time


def publish_time_ms(payload: Buffer) -> int:
    """When the producer published the entry, milliseconds since 1970."""
    return parse_metadata(payload)[0].publish_time


def entry_metadata(payload: Buffer) -> EntryMetadata:
    """Everything that this project reads of an entry's metadata."""
    meta, data_start = parse_metadata(payload)
    _check_required(meta)
    has = meta.HasField
    return EntryMetadata(
        producer_name=text(meta.producer_name),
        sequence_id=meta.sequence_id,
        highest_sequence_id=meta.highest_sequence_id,
        publish_time_ms=meta.publish_time,
        event_time_ms=meta.event_time,
        deliver_at_time_ms=meta.deliver_at_time,
        batched=has("num_messages_in_batch"),
        num_messages=max(1, meta.num_messages_in_batch),
        compression=Compression(meta.compression),
        uncompressed_size=meta.uncompressed_size,
        partition_key=text(meta.partition_key) if has("partition_key") else None,
        partition_key_b64_encoded=meta.partition_key_b64_encoded,
        ordering_key=meta.ordering_key if has("ordering_key") else None,
        properties=text_properties(meta.properties),
        schema_version=meta.schema_version if has("schema_version") else None,
        null_value=meta.null_value,
        encrypted=bool(meta.encryption_keys) or has("encryption_algo"),
        replicated_from=text(meta.replicated_from) if has("replicated_from") else None,
        marker_type=meta.marker_type if has("marker_type") else None,
        chunk_uuid=text(meta.uuid),
        chunk_id=meta.chunk_id,
        num_chunks=max(1, meta.num_chunks_from_msg),
        chunked_message_bytes=meta.total_chunk_msg_size,
        retained_indexes=tuple(meta.compacted_batch_indexes),
        data_start=data_start,
    )


def text(value: str) -> str:
    """``value``, unless protobuf handed out ``bytes`` because it is not UTF-8."""
    if not isinstance(value, str):
        raise ProtocolError(f"a string of the message's metadata is not UTF-8: {value!r:.80}")
    return value


def text_properties(pairs: Iterable[KeyValue]) -> dict[str, str]:
    """Properties as a dict; of a key that comes twice the last value."""
    found = {item.key: item.value for item in pairs}
    for key, value in found.items():
        text(key)
        text(value)
    return found
