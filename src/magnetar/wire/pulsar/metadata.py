"""What a stored entry says of itself: its MessageMetadata.

A stored payload is what its producer sent, unmodified::

    [0x0e01 u16][crc32c u32]          absent from very old producers
    [metadata size u32][MessageMetadata]
    [data]                            compressed; a batch when num_messages_in_batch is *present*

A broker's header may stand before it (``broker_metadata``); it is skipped. Nothing here verifies
checksums (``hot.verify_checksum`` does), checks what is about to be stored (``sent``) or takes a
batch apart (``batches``).

Errors: ``ProtocolError`` on any bytes that are no such payload.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from google.protobuf.message import DecodeError

from magnetar.model.errors import ErasedEntryError, ImplausibleMessageError, ProtocolError
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
    elif not left:
        raise ErasedEntryError("an entry of which nothing is left has no metadata")
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


def dispatch_facts(payload: Buffer) -> tuple[int, int]:
    """How many messages the entry holds, as ``batch_size``, and 0 for a chunk of a message that is
    larger than an entry; and the time before which it is not to be delivered (milliseconds since
    1970; 0: none).

    Raises ``ProtocolError`` for metadata that would end a client's connection, or the client, which
    would get it again on the next: without a required field, or with numbers that cannot be true.
    """
    meta, data_start = parse_metadata(payload)
    if not (meta.sequence_id and meta.publish_time and meta.producer_name):
        _check_required(meta)  # which takes longer
    count = meta.num_messages_in_batch
    chunks = meta.num_chunks_from_msg
    if count != 1 or chunks > 1 or meta.compression or meta.HasField("num_messages_in_batch"):
        check_plausible(meta, len(payload) - data_start)
    deliver_at_ms = max(0, meta.deliver_at_time)
    if count > 1:
        return count, deliver_at_ms
    return (0 if chunks > 1 else 1), deliver_at_ms


def check_plausible(meta: MessageMetadata, data_bytes: int) -> None:
    """Raise ``ImplausibleMessageError`` if the numbers of an entry with ``data_bytes`` after its
    metadata cannot be true."""
    wrong = implausible(meta, data_bytes)
    if wrong is not None:
        raise ImplausibleMessageError(f"not a message that can be read: it says {wrong}")


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
