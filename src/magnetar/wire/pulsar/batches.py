"""The single messages of stored entries, for pipelines and tools.

A batch's data, uncompressed, repeats ``[size u32][SingleMessageMetadata][value]``; a plain
entry's data is the value, and its metadata speaks for the message. A message larger than a frame
comes as several entries, its chunks, each with a part of the (compressed) value; one
``ChunkAssembler`` per topic partition puts them together.

Errors: ``ProtocolError`` on bytes that are not that; ``ConfigError`` if a compression library is
missing. Encrypted entries can only be read by clients that have the key.
"""

from __future__ import annotations

import struct
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from google.protobuf.message import DecodeError

from magnetar.model.errors import ProtocolError
from magnetar.wire.pulsar.compression import UNCOMPRESSED_BYTES_MAX, decompress
from magnetar.wire.pulsar.metadata import (
    Buffer,
    EntryMetadata,
    entry_metadata,
    text,
    text_properties,
)
from magnetar.wire.pulsar.pulsar_pb2 import SingleMessageMetadata

_U32 = struct.Struct(">I").unpack_from


class MessageInfo(NamedTuple):
    """What one message says of itself. Times are milliseconds since 1970, 0 for none.

    ``batch_index`` is the message's place in its batch, -1 for a plain message. ``null_value``
    tells "no value" (a tombstone) from an empty one. ``compacted_out`` messages are to be skipped.
    """

    batch_index: int
    key: str | None
    key_b64_encoded: bool
    ordering_key: bytes | None
    properties: Mapping[str, str]
    event_time_ms: int
    sequence_id: int
    null_value: bool
    compacted_out: bool


def iterate_messages(
    payload: Buffer, metadata: EntryMetadata | None = None
) -> Iterator[tuple[MessageInfo, memoryview]]:
    """The messages of an entry and their values, in order.

    ``payload`` is the entry as stored; the values are views of it, or of its uncompressed copy.
    ``metadata`` is what ``entry_metadata(payload)`` gave, if it was read already. An entry that
    is a chunk of a larger message is refused: see ``ChunkAssembler``.
    """
    meta = metadata or entry_metadata(payload)
    if meta.num_chunks > 1:
        raise ProtocolError(
            f"entry is chunk {meta.chunk_id} of {meta.num_chunks} of message {meta.chunk_uuid}; "
            "chunks are read through a ChunkAssembler"
        )
    _refuse_encrypted(meta)
    stored = memoryview(payload)[meta.data_start :]
    data = memoryview(decompress(stored, meta.compression, meta.uncompressed_size))
    if meta.batched:
        yield from _batch_messages(data, meta)
    else:
        yield plain_message(meta), data


class EntryMessages(NamedTuple):
    """An entry's messages side by side, for those who build columns.

    ``singles`` is None for a plain message, whose metadata is the entry's. ``values`` are views of
    the (uncompressed) data; ``indexes`` the places in the batch, [-1] for a plain message.
    """

    indexes: Sequence[int]
    singles: list[SingleMessageMetadata] | None
    values: list[memoryview]


def split_entry(payload: Buffer, meta: EntryMetadata) -> EntryMessages:
    """As ``iterate_messages``, without a description per message: a third of the time.

    Strings of the single metadata are not checked for UTF-8 (protobuf hands out ``bytes`` then).
    """
    if meta.num_chunks > 1:
        raise ProtocolError(
            f"entry is chunk {meta.chunk_id} of {meta.num_chunks} of message {meta.chunk_uuid}"
        )
    _refuse_encrypted(meta)
    stored = memoryview(payload)[meta.data_start :]
    data = memoryview(decompress(stored, meta.compression, meta.uncompressed_size))
    if not meta.batched:
        return EntryMessages((-1,), None, [data])
    indexes = meta.retained_indexes or range(meta.num_messages)
    return EntryMessages(indexes, *_split_batch(bytes(data), indexes))


def _split_batch(
    data: bytes, indexes: Sequence[int]
) -> tuple[list[SingleMessageMetadata], list[memoryview]]:
    view = memoryview(data)
    parse = SingleMessageMetadata.FromString
    singles: list[SingleMessageMetadata] = []
    values: list[memoryview] = []
    at, end = 0, len(data)
    try:
        for _ in indexes:
            first = at + 4
            stop = first + _U32(data, at)[0]
            if stop > end:
                raise ProtocolError(f"the batch ends within the metadata of message {len(singles)}")
            single = parse(data[first:stop])
            at = stop + single.payload_size
            if at > end or at < stop:
                raise ProtocolError(f"message {len(singles)} of the batch passes the entry's end")
            singles.append(single)
            values.append(view[stop:at])
    except (DecodeError, struct.error) as error:
        raise ProtocolError(f"undecodable message {len(singles)} of the batch: {error}") from error
    return singles, values


def plain_message(meta: EntryMetadata) -> MessageInfo:
    """The one message of an entry that is no batch (or of a message that came in chunks)."""
    return MessageInfo(
        batch_index=-1,
        key=meta.partition_key,
        key_b64_encoded=meta.partition_key_b64_encoded,
        ordering_key=meta.ordering_key,
        properties=meta.properties,
        event_time_ms=meta.event_time_ms,
        sequence_id=meta.sequence_id,
        null_value=meta.null_value,
        compacted_out=False,
    )


def _refuse_encrypted(meta: EntryMetadata) -> None:
    if meta.encrypted:
        raise ProtocolError(
            f"entry of producer {meta.producer_name} is encrypted; only a client that has the "
            "key can read it"
        )


def _batch_messages(
    data: memoryview, meta: EntryMetadata
) -> Iterator[tuple[MessageInfo, memoryview]]:
    indexes = meta.retained_indexes or range(meta.num_messages)
    at = 0
    for index in indexes:
        single, at = _single_metadata(data, at, index)
        stop = at + single.payload_size
        if stop > len(data) or single.payload_size < 0:
            raise ProtocolError(
                f"message {index} of the batch says {single.payload_size} bytes, "
                f"{len(data) - at} are left"
            )
        yield _message_info(single, index, meta), data[at:stop]
        at = stop


def _single_metadata(data: memoryview, at: int, index: int) -> tuple[SingleMessageMetadata, int]:
    """The metadata at ``at`` and where its value starts."""
    first = at + 4
    stop = first + int.from_bytes(data[at:first], "big")
    if stop > len(data) or first > len(data):
        raise ProtocolError(f"the batch ends within the metadata of message {index}")
    try:
        single = SingleMessageMetadata.FromString(bytes(data[first:stop]))
    except DecodeError as error:
        raise ProtocolError(f"undecodable metadata of message {index}: {error}") from error
    if not single.IsInitialized():
        raise ProtocolError(f"metadata of message {index} without payload size")
    return single, stop


def _message_info(single: SingleMessageMetadata, index: int, meta: EntryMetadata) -> MessageInfo:
    has = single.HasField
    return MessageInfo(
        batch_index=index,
        key=text(single.partition_key) if has("partition_key") else None,
        key_b64_encoded=single.partition_key_b64_encoded,
        ordering_key=single.ordering_key if has("ordering_key") else None,
        properties=text_properties(single.properties),
        event_time_ms=single.event_time,
        sequence_id=single.sequence_id if has("sequence_id") else meta.sequence_id + index,
        null_value=single.null_value,
        compacted_out=single.compacted_out,
    )


class _Open:
    """A message some of whose chunks have come."""

    __slots__ = ("next_chunk", "parts", "size")

    def __init__(self) -> None:
        self.parts: list[bytes] = []
        self.next_chunk = 0
        self.size = 0


class ChunkAssembler:
    """Puts the chunks of large messages together.

    Holds at most ``open_max`` unfinished messages (the oldest gives way) of at most
    ``message_bytes_max`` stored bytes each. With its first chunk a message begins, anew if some of
    it had come: a producer sends all of it again, or was restarted and gives another message the
    same name. Another chunk that comes again is ignored; after a lost one the message is given up,
    as the rest of it is no message. (So does Pulsar's Java consumer.)
    """

    def __init__(self, open_max: int = 10, message_bytes_max: int = UNCOMPRESSED_BYTES_MAX) -> None:
        self._open_max = open_max
        self._message_bytes_max = message_bytes_max
        self._open: OrderedDict[str, _Open] = OrderedDict()

    def add(self, payload: Buffer, meta: EntryMetadata) -> tuple[MessageInfo, Buffer] | None:
        """Take a chunk; the whole message if this was its last, else None.

        ``meta`` is ``entry_metadata(payload)`` with ``num_chunks`` above 1. The message's position
        is the last chunk's.
        """
        _refuse_encrypted(meta)
        message = self._message_for(meta)
        if message is None or meta.chunk_id < message.next_chunk:
            return None
        part = bytes(memoryview(payload)[meta.data_start :])
        message.size += len(part)
        if meta.chunk_id > message.next_chunk or message.size > self._message_bytes_max:
            del self._open[meta.chunk_uuid]
            return None
        message.parts.append(part)
        message.next_chunk += 1
        if message.next_chunk < meta.num_chunks:
            return None
        del self._open[meta.chunk_uuid]
        value = b"".join(message.parts)
        return plain_message(meta), decompress(value, meta.compression, meta.uncompressed_size)

    def _message_for(self, meta: EntryMetadata) -> _Open | None:
        if meta.chunk_id:
            return self._open.get(meta.chunk_uuid)
        self._open.pop(meta.chunk_uuid, None)
        message = self._open[meta.chunk_uuid] = _Open()
        if len(self._open) > self._open_max:
            self._open.popitem(last=False)
        return message
