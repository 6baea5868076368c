"""Entries as a producer sends them, built out of columns: many messages at a time.

Layout of a batch's data, once per message::

    [size u32][SingleMessageMetadata][value]

with the batch in an entry as ``metadata`` describes it. Messages that have a key and a value only,
nearly all, cost a look-up and a few list operations each: what stands around a key and a value
depends on their lengths alone, and is built once per length.

Source: Pulsar's ``PulsarApi.proto`` (fields 1 properties, 2 partition key, 3 payload size,
4 compacted out, 5 event time, 6 key is base64, 9 null value).
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple, TypeAlias

from magnetar.wire.checksum import crc32c
from magnetar.wire.pulsar.codes import Compression
from magnetar.wire.pulsar.compression import Compressor
from magnetar.wire.pulsar.metadata import MAGIC_CRC32C
from magnetar.wire.pulsar.pulsar_pb2 import CompressionType, MessageMetadata, SingleMessageMetadata
from magnetar.wire.varint import varint

_MAGIC: Final = MAGIC_CRC32C.to_bytes(2, "big")
_GONE: Final = SingleMessageMetadata(payload_size=0, compacted_out=True).SerializeToString()
GONE_MESSAGE: Final = len(_GONE).to_bytes(4, "big") + _GONE
"""A message of a batch that only keeps its place: compacted out."""
CHUNK_BYTES_LEAST: Final = 64 << 10
CHUNK_NUMBERS_BYTES: Final = 64
"""Of a chunk's frame, and of the numbers that its metadata has beside the message's."""
LENGTHS_KEPT_MAX: Final = 10_000
"""Lengths whose surroundings are kept; values of more different ones are built each time."""


class EncodedKey(NamedTuple):
    """A key that a producer gave as bytes: ``text`` is their base64, and the message says so."""

    text: str


Key: TypeAlias = str | bytes | EncodedKey
"""Bytes that are UTF-8 become text, others an ``EncodedKey``."""

Properties: TypeAlias = Mapping[str, str | None] | Sequence[tuple[str, str | None]]


class Columns(NamedTuple):
    """Messages side by side; None for a column that no message has. A value of None is a
    tombstone. Times are milliseconds since 1970."""

    values: Sequence[bytes | None]
    keys: Sequence[Key | None] | None = None
    event_times_ms: Sequence[int | None] | None = None
    properties: Sequence[Properties | None] | None = None

    def part(self, start: int, stop: int) -> Columns:
        return Columns(*(None if column is None else column[start:stop] for column in self))  # type: ignore[arg-type]

    def chosen(self, indices: Sequence[int]) -> Columns:
        columns = (
            None if column is None else [column[index] for index in indices] for column in self
        )
        return Columns(*columns)  # type: ignore[arg-type]


class Head(NamedTuple):
    """What the metadata of an entry says of it as a whole. ``key``: of all its messages, if they
    are one key's; ``schema_version``: of their values, empty without a schema."""

    producer_name: str
    sequence_id: int
    publish_time_ms: int
    key: Key | None = None
    schema_version: bytes = b""


class EntryBuilder:
    """Builds batches; one per task, since it keeps what it has built before."""

    def __init__(self, compression: Compression, compress: Compressor) -> None:
        self._compression = compression
        self._compress = compress
        self._of_values: dict[int, bytes] = {}
        self._of_keyed: dict[tuple[int, int], tuple[bytes, bytes]] = {}

    def entry(self, head: Head, columns: Columns, gone: int = 0) -> bytes:
        """All of ``columns`` as one entry, and behind them ``gone`` messages that only keep their
        places (``compacted_out``)."""
        data = self._messages(columns) + GONE_MESSAGE * gone
        return self.sealed(head, data, len(columns.values) + gone)

    def sparse_entry(self, head: Head, columns: Columns, rows: Sequence[int | None]) -> bytes:
        """An entry of as many messages as there are ``rows``: each the row of ``columns`` that it
        says, or one that only keeps its place."""
        parts = [GONE_MESSAGE if row is None else _message(columns, row) for row in rows]
        return self.sealed(head, b"".join(parts), len(rows))

    def sealed(self, head: Head, data: bytes | memoryview, messages: int) -> bytes:
        """An entry of that many messages, whose data is there."""
        metadata = MessageMetadata(
            producer_name=head.producer_name,
            sequence_id=head.sequence_id,
            publish_time=head.publish_time_ms,
            num_messages_in_batch=messages,
            uncompressed_size=len(data),
        )
        if head.schema_version:
            metadata.schema_version = head.schema_version
        if head.key is not None:
            metadata.partition_key, metadata.partition_key_b64_encoded = _key_text(head.key)
        return _framed(metadata, self._compressed(metadata, data))

    def _compressed(
        self, metadata: MessageMetadata, data: bytes | memoryview
    ) -> bytes | memoryview:
        if self._compression == Compression.NONE:
            return data
        metadata.compression = CompressionType.ValueType(self._compression)
        return self._compress(data)

    def chunks(self, head: Head, columns: Columns, entry_bytes: int) -> list[bytes]:
        """The one row of ``columns`` as a message in chunks: entries of at most that many bytes,
        numbered from ``head``'s on. Raises ``ValueError`` when what stands before the value takes
        most of it."""
        value = columns.values[0] or b""
        single = SingleMessageMetadata()
        _describe(single, columns, 0)
        metadata = MessageMetadata(
            producer_name=head.producer_name,
            sequence_id=head.sequence_id,
            publish_time=head.publish_time_ms,
            properties=single.properties,
            uncompressed_size=len(value),
            uuid=f"{head.producer_name}-{head.sequence_id}",
        )
        for name in ("partition_key", "partition_key_b64_encoded", "event_time"):
            if single.HasField(name):
                setattr(metadata, name, getattr(single, name))
        if head.schema_version:
            metadata.schema_version = head.schema_version
        data = memoryview(self._compressed(metadata, value))
        part = entry_bytes - metadata.ByteSize() - CHUNK_NUMBERS_BYTES
        if part < CHUNK_BYTES_LEAST:
            raise ValueError(f"{metadata.ByteSize()} bytes stand before the value")
        metadata.total_chunk_msg_size = len(data)
        metadata.num_chunks_from_msg = -(-len(data) // part)
        entries = []
        for number in range(metadata.num_chunks_from_msg):
            metadata.chunk_id, metadata.sequence_id = number, head.sequence_id + number
            entries.append(_framed(metadata, data[number * part : (number + 1) * part]))
        return entries

    def _messages(self, columns: Columns) -> bytes:
        values = columns.values
        plain = columns.event_times_ms is None and columns.properties is None
        if plain and None not in values:
            keys = columns.keys
            if keys is None:
                return self._values_only([value for value in values if value is not None])
            if all(isinstance(key, str) for key in keys):
                return self._keyed(values, keys)  # type: ignore[arg-type]
        rows = range(len(values))
        return b"".join(_message(columns, row) for row in rows)

    def _values_only(self, values: Sequence[bytes]) -> bytes:
        heads = self._of_values
        parts: list[bytes] = [b""] * (2 * len(values))
        parts[1::2] = values
        try:
            parts[0::2] = [heads[len(value)] for value in values]
        except KeyError:
            parts[0::2] = [self.value_head(len(value)) for value in values]
        return b"".join(parts)

    def value_head(self, size: int) -> bytes:
        """What stands before a value without a key."""
        found = self._of_values.get(size)
        if found is None:
            single = b"\x18" + varint(size)
            found = len(single).to_bytes(4, "big") + single
            if len(self._of_values) < LENGTHS_KEPT_MAX:
                self._of_values[size] = found
        return found

    def _keyed(self, values: Sequence[bytes], keys: Sequence[str]) -> bytes:
        parts: list[bytes] = []
        around = self._of_keyed
        for key, value in zip([key.encode() for key in keys], values, strict=True):
            lengths = len(key), len(value)
            found = around.get(lengths)
            if found is None:
                found = self.around(*lengths)
            parts += (found[0], key, found[1], value)
        return b"".join(parts)

    def around(self, key_bytes: int, value_bytes: int) -> tuple[bytes, bytes]:
        """What stands before a key and between it and its value."""
        before = b"\x12" + varint(key_bytes)
        after = b"\x18" + varint(value_bytes)
        size = len(before) + key_bytes + len(after)
        found = size.to_bytes(4, "big") + before, after
        if len(self._of_keyed) < LENGTHS_KEPT_MAX:
            self._of_keyed[key_bytes, value_bytes] = found
        return found


def _framed(metadata: MessageMetadata, data: bytes | memoryview) -> bytes:
    described = metadata.SerializeToString()
    before = len(described).to_bytes(4, "big") + described
    checksum = crc32c(data, crc32c(before))  # only the data is long: it is copied once
    return b"".join((_MAGIC, checksum.to_bytes(4, "big"), before, data))


def _message(columns: Columns, row: int) -> bytes:
    """Any message, field by field."""
    value = columns.values[row]
    single = SingleMessageMetadata(payload_size=0 if value is None else len(value))
    if value is None:
        single.null_value = True
    _describe(single, columns, row)
    described = single.SerializeToString()
    return b"".join((len(described).to_bytes(4, "big"), described, value or b""))


def _describe(single: SingleMessageMetadata, columns: Columns, row: int) -> None:
    """All but the value."""
    key = None if columns.keys is None else columns.keys[row]
    if key is not None:
        text, encoded = _key_text(key)
        single.partition_key = text
        if encoded:
            single.partition_key_b64_encoded = True
    time_ms = None if columns.event_times_ms is None else columns.event_times_ms[row]
    if time_ms is not None:
        single.event_time = time_ms
    properties = None if columns.properties is None else columns.properties[row]
    pairs = properties.items() if isinstance(properties, Mapping) else properties or ()
    for name, text_value in pairs:
        single.properties.add(key=name, value=text_value or "")


def _key_text(key: Key) -> tuple[str, bool]:
    """A key as metadata holds it, and whether that is base64: of bytes that are no text."""
    if isinstance(key, str):
        return key, False
    if isinstance(key, EncodedKey):
        return key.text, True
    try:
        return key.decode(), False
    except UnicodeDecodeError:
        return b64encode(key).decode(), True
