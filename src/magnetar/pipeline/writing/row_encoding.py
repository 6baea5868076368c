"""Rows of a task into entries, by columns: those that are simple by Arrow (``simple_rows``), others
with no object per row but the values themselves.

Rows keep their order in each topic partition, and keys stay inside each message. A topic with
partitions gets rows with a key by the key's hash (Java's string hash, as Pulsar's Java client does
by default), others a whole entry at a time in turn. ``by_key``: each entry holds the rows of one
key, for consumers that share a subscription by key; an entry per key and record batch is what that
costs.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa

from magnetar.model.errors import BrokerError, ConfigError
from magnetar.pipeline.writing.simple_rows import SimpleRows
from magnetar.wire.pulsar.codes import Compression
from magnetar.wire.pulsar.compression import UNCOMPRESSED_BYTES_MAX, find_compressor
from magnetar.wire.pulsar.schemas import encode_version
from magnetar.wire.pulsar.writing import Columns, EncodedKey, EntryBuilder, Head, Key

ENTRY_BYTES_MAX: Final = 5 << 20
"""What Pulsar's clients and brokers take by default."""
CUT_BYTES_MAX: Final = 4 << 20
"""Of the rows of one entry, if they are several, whatever is asked for: what stands around them is
estimated."""
ROW_OVERHEAD_BYTES: Final = 24
PROPERTY_OVERHEAD_BYTES: Final = 10
VERSION: Final = "schema_version"

_Pairs: TypeAlias = Sequence[tuple[str, str | None]]


class Encoding(NamedTuple):
    """What entries are like."""

    compression: str
    messages_max: int
    bytes_max: int
    by_key: bool
    chunked: bool = False
    """A row that is larger than an entry becomes several."""


class Encoded(NamedTuple):
    """Entries for one topic partition, in order, with that many messages together (as brokers
    count: each chunk is one)."""

    topic: str
    entries: list[bytes]
    messages: int


def without_schema(_topic: str) -> bytes:
    return b""


def runs_of_versions(batch: pa.RecordBatch) -> Iterator[tuple[bytes | None, pa.RecordBatch]]:
    """Rows that carry one version of a schema, which an entry says once for all of its messages:
    runs, since rows keep their order. None: they say none."""
    at = batch.schema.get_field_index(VERSION)
    if at < 0 or batch.column(at).null_count == batch.num_rows:
        yield None, batch
        return
    versions = batch.column(at).fill_null(-1).to_numpy()
    rows = batch.select([name for name in batch.schema.names if name != VERSION])
    begins = np.flatnonzero(np.diff(versions, prepend=versions[0] - 1)).tolist()
    for begin, stop in zip(begins, [*begins[1:], len(versions)], strict=True):
        version = int(versions[begin])
        yield b"" if version < 0 else encode_version(version), rows.slice(begin, stop - begin)


class RowEncoder:
    """Of one task. ``partitions`` gives the partitions of a topic (itself for one without);
    ``number`` the number of the next entry for a partition; ``sender`` is the producer's name;
    ``schema_version`` what messages of a topic carry."""

    def __init__(
        self,
        encoding: Encoding,
        topic: str | None,
        full_topic: Callable[[str], str],
        partitions: Callable[[str], Sequence[str]],
        now_ms: Callable[[], int],
        schema_version: Callable[[str], bytes] = without_schema,
    ) -> None:
        self._encoding = encoding
        self._topic = topic
        self._full_topic = full_topic
        self._ask_partitions = partitions
        self._partitions: dict[str, Sequence[str]] = {}
        self._turn = 0
        self._now_ms = now_ms
        self._schema_version = schema_version
        compression = Compression[encoding.compression.upper()]
        self._writer = EntryBuilder(compression, find_compressor(compression))
        self._hashes: dict[Key, int] = {}

    def encode(
        self, batch: pa.RecordBatch, sender: str, number: Callable[[str], int]
    ) -> Iterator[Encoded]:
        """The rows of ``batch``, topic by topic; ``number(topic)`` is asked when its entries are
        built, so each is to be taken before the next. Rows with a ``schema_version`` carry that."""
        for version, rows in runs_of_versions(batch):
            yield from self._encode_alike(rows, version, sender, number)

    def _encode_alike(
        self, batch: pa.RecordBatch, given: bytes | None, sender: str, number: Callable[[str], int]
    ) -> Iterator[Encoded]:
        """``given``: the version that all of them carry; None: that of the topic."""
        simple = None if self._encoding.by_key else SimpleRows.of(batch)
        if simple is not None:
            yield from self._encode_simple(simple, given, sender, number)
            return
        columns = columns_of(batch)
        for name, rows in self._by_topic(batch, columns):
            version = self._schema_version(name) if given is None else given
            for topic, part in self._by_partition(name, rows):
                first = number(topic)
                entries: list[bytes] = []
                messages = len(part.values)
                for key, piece in self._pieces(part):
                    head = Head(sender, first + len(entries), self._now_ms(), key, version)
                    made = self._entries(head, piece)
                    entries += made
                    messages += len(made) - 1
                yield Encoded(topic, entries, messages)

    def _encode_simple(
        self, rows: SimpleRows, given: bytes | None, sender: str, number: Callable[[str], int]
    ) -> Iterator[Encoded]:
        """As row by row, the entries included."""
        name = self._full(None)
        version = self._schema_version(name) if given is None else given
        partitions = self._partitions_of(name)
        if len(partitions) == 1:
            parts: Iterable[tuple[int, SimpleRows]] = [(0, rows)]
        elif rows.keys is None:
            parts = self._simple_in_turn(rows, len(partitions))
        else:
            self._next_turn(len(rows.values))
            parts = rows.by_place(self._hash, len(partitions))
        for place, part in parts:
            topic = partitions[place]
            first = number(topic)
            yield self._encoded_simple(topic, part, Head(sender, first, 0, None, version))

    def _encoded_simple(self, topic: str, rows: SimpleRows, head: Head) -> Encoded:
        joined = rows.joined(self._writer)
        entries: list[bytes] = []
        messages = len(rows.values)
        for start, stop in self._cuts(joined.row_bytes):
            of_entry = head._replace(
                sequence_id=head.sequence_id + len(entries), publish_time_ms=self._now_ms()
            )
            data = joined.data[joined.bounds[start] : joined.bounds[stop]]
            entry = self._writer.sealed(of_entry, data, stop - start)
            if len(entry) <= ENTRY_BYTES_MAX:
                entries.append(entry)
                continue
            chunks = self._chunks(of_entry, rows.columns(start, stop), len(entry))
            entries += chunks
            messages += len(chunks) - 1
        return Encoded(topic, entries, messages)

    def _simple_in_turn(self, rows: SimpleRows, count: int) -> Iterator[tuple[int, SimpleRows]]:
        size = len(rows.values)
        places = np.array([self._in_turn(index) % count for index in range(size)])
        self._next_turn(size)
        for place in np.unique(places).tolist():
            chosen = pa.array(np.flatnonzero(places == place))
            yield place, SimpleRows(None, rows.values.take(chosen))

    def _entries(self, head: Head, columns: Columns) -> list[bytes]:
        """One, or the chunks of a row that is too large for it."""
        entry = self._writer.entry(head, columns)
        if len(entry) <= ENTRY_BYTES_MAX:
            return [entry]
        return self._chunks(head, columns, len(entry))

    def _chunks(self, head: Head, columns: Columns, entry_bytes: int) -> list[bytes]:
        most = f"a row makes an entry of {entry_bytes} bytes; the most that a topic takes is "
        if not self._encoding.chunked:
            raise BrokerError(
                f"{most}{ENTRY_BYTES_MAX}. Split the value, store it elsewhere and write where it "
                "is, or set chunkingEnabled=true if all who read the topic take messages in chunks"
            )
        assert len(columns.values) == 1, "several rows are cut to fit"
        size = len(columns.values[0] or b"")
        if size > UNCOMPRESSED_BYTES_MAX:
            raise BrokerError(f"a value of {size} bytes; the most is {UNCOMPRESSED_BYTES_MAX}")
        try:
            return self._writer.chunks(head, columns, ENTRY_BYTES_MAX)
        except ValueError as error:
            raise BrokerError(
                f"{most}{ENTRY_BYTES_MAX}, and each chunk has the key and the properties: {error}"
            ) from error

    # -- which rows go together ---------------------------------------------------------------

    def _by_topic(self, batch: pa.RecordBatch, columns: Columns) -> Iterator[tuple[str, Columns]]:
        names = batch.column("topic").to_pylist() if "topic" in batch.schema.names else None
        if names is None or not any(names):
            yield self._full(None), columns
            return
        rows: dict[str | None, list[int]] = {}
        for index, name in enumerate(names):
            rows.setdefault(name or None, []).append(index)
        for name, indices in rows.items():
            yield self._full(name), columns.chosen(indices)

    def _full(self, name: str | None) -> str:
        if name:
            return self._full_topic(name)
        if self._topic is None:
            raise BrokerError("a row has no topic, and there is no option 'topic'")
        return self._topic

    def _by_partition(self, topic: str, columns: Columns) -> Iterator[tuple[str, Columns]]:
        partitions = self._partitions_of(topic)
        if len(partitions) == 1:
            yield partitions[0], columns
            return
        rows: dict[int, list[int]] = {}
        keys = columns.keys
        for index in range(len(columns.values)):
            key = None if keys is None else keys[index]
            place = self._in_turn(index) if key is None else self._hash(key)
            rows.setdefault(place % len(partitions), []).append(index)
        self._next_turn(len(columns.values))
        for place, indices in sorted(rows.items()):
            yield partitions[place], columns.chosen(indices)

    def look_up(self) -> None:
        """Ask for the partitions of the topic that rows go to which name none."""
        if self._topic is not None:
            self._partitions_of(self._topic)

    def _partitions_of(self, topic: str) -> Sequence[str]:
        found = self._partitions.get(topic)
        if found is None:
            found = self._partitions[topic] = self._ask_partitions(topic)
        return found

    def _next_turn(self, rows: int) -> None:
        self._turn += 1 + rows // self._encoding.messages_max

    def _in_turn(self, index: int) -> int:
        return self._turn + index // self._encoding.messages_max

    def _hash(self, key: Key) -> int:
        found = self._hashes.get(key)
        if found is None:
            if len(self._hashes) > 1_000_000:
                self._hashes.clear()
            found = self._hashes[key] = java_hash(key)
        return found

    def _pieces(self, columns: Columns) -> Iterator[tuple[Key | None, Columns]]:
        """What goes into one entry each: (the key of all, rows)."""
        if not self._encoding.by_key or columns.keys is None:
            yield from ((None, piece) for piece in self._sized(columns))
            return
        rows: dict[Key | None, list[int]] = {}
        for index, key in enumerate(columns.keys):
            rows.setdefault(key, []).append(index)
        for key, indices in rows.items():
            yield from ((key, piece) for piece in self._sized(columns.chosen(indices)))

    def _sized(self, columns: Columns) -> Iterator[Columns]:
        """At most so many messages, and about so many bytes, at a time."""
        rows = len(columns.values)
        for start, stop in self._cuts(_row_bytes(columns)):
            yield columns if stop - start == rows else columns.part(start, stop)

    def _cuts(self, row_bytes: Sequence[int]) -> Iterator[tuple[int, int]]:
        """(start, stop) of the rows of each entry."""
        count, bytes_max = len(row_bytes), min(self._encoding.bytes_max, CUT_BYTES_MAX)
        ends = list(accumulate([ROW_OVERHEAD_BYTES + size for size in row_bytes]))
        start = 0
        while start < count:
            before = ends[start - 1] if start else 0
            stop = min(start + self._encoding.messages_max, count)
            if ends[stop - 1] - before > bytes_max:
                stop = _last_within(ends, start, stop, before + bytes_max)
            yield start, stop
            start = stop


def _last_within(ends: Sequence[int], start: int, stop: int, limit: int) -> int:
    """The end of the longest run from ``start`` on within ``limit``, of one row at least."""
    return max(start + 1, bisect_right(ends, limit, start, stop))


def _row_bytes(columns: Columns) -> list[int]:
    """Of the value, the key and the properties of each row."""
    found = [0 if value is None else len(value) for value in columns.values]
    if columns.keys is not None:
        found = [size + _key_bytes(key) for size, key in zip(found, columns.keys, strict=True)]
    if columns.properties is None:
        return found
    pairs = (each.items() if isinstance(each, Mapping) else each for each in columns.properties)
    return [
        size + sum(_property_bytes(*pair) for pair in each or ())
        for size, each in zip(found, pairs, strict=True)
    ]


def _key_bytes(key: Key | None) -> int:
    text = key.text if isinstance(key, EncodedKey) else key
    return _text_bytes(text) if isinstance(text, str) else len(text or b"")


def _property_bytes(name: str, value: str | None) -> int:
    return _text_bytes(name) + _text_bytes(value or "") + PROPERTY_OVERHEAD_BYTES


def _text_bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode())


def columns_of(batch: pa.RecordBatch) -> Columns:
    """The columns of messages in a record batch (see ``sink.COLUMNS``)."""
    names = batch.schema.names
    return Columns(
        _buffers(batch.column("value")),
        _encoded(batch, _keys(batch.column("key"))) if "key" in names else None,
        _times_ms(batch.column("event_time")) if "event_time" in names else None,
        _properties(batch),
    )


def _buffers(column: pa.Array) -> list[bytes | None]:
    found: list[bytes | None] = _as_binary(column).to_pylist()
    return found


def _as_binary(column: pa.Array) -> pa.Array:
    if pa.types.is_large_string(column.type):
        return column.cast(pa.large_binary())
    return column.cast(pa.binary()) if pa.types.is_string(column.type) else column


def _keys(column: pa.Array) -> Sequence[str | EncodedKey | None] | None:
    """None when no row has one. One of bytes that are no text is what producers make of it that
    give bytes: their base64, and the message says so."""
    if column.null_count == len(column):
        return None
    try:
        found: list[str | None] = column.cast(pa.string()).to_pylist()
    except pa.ArrowInvalid:
        return [None if key is None else _key_of(key) for key in column.to_pylist()]
    return found


def _key_of(key: bytes) -> str | EncodedKey:
    try:
        return key.decode()
    except UnicodeDecodeError:
        return EncodedKey(b64encode(key).decode())


def _encoded(
    batch: pa.RecordBatch, keys: Sequence[str | EncodedKey | None] | None
) -> Sequence[str | EncodedKey | None] | None:
    """The keys, of which the column ``key_is_base64`` says which were given as bytes."""
    if keys is None or "key_is_base64" not in batch.schema.names:
        return keys
    flags = batch.column("key_is_base64").to_pylist()
    if not any(flags):
        return keys
    return [
        _checked_base64(key) if flag and key is not None else key
        for key, flag in zip(keys, flags, strict=True)
    ]


def _checked_base64(key: str | EncodedKey) -> EncodedKey:
    try:
        if not isinstance(key, str):
            raise ValueError("it is bytes that are no text")
        b64decode(key, validate=True)
    except ValueError as error:
        raise ConfigError(
            f"a row says key_is_base64, and its key {key[:80]!r} is not: {error}"
        ) from error
    return EncodedKey(key)


def _times_ms(column: pa.Array) -> list[int | None] | None:
    if column.null_count == len(column):
        return None
    micros: list[int | None] = column.cast(pa.int64()).to_pylist()
    early = next((each for each in micros if each is not None and each < 0), None)
    if early is not None:
        raise ConfigError(
            f"an event_time is {-early} microseconds before 1970, and a message has none so early; "
            "write it as null, or as a property"
        )
    return [None if each is None else each // 1000 for each in micros]


def _properties(batch: pa.RecordBatch) -> Sequence[_Pairs | None] | None:
    """Of the columns ``properties`` and ``headers``; None when no row has any."""
    found: Sequence[_Pairs | None] | None = None
    if "properties" in batch.schema.names:
        column = batch.column("properties")
        if column.null_count < len(column):
            found = column.to_pylist()
    if "headers" in batch.schema.names:
        column = batch.column("headers")
        if column.null_count < len(column):
            before = found or [None] * len(column)
            found = [
                _together(one or (), _texts(headers or ()))
                for one, headers in zip(before, column.to_pylist(), strict=True)
            ]
    return found


def _together(properties: _Pairs, headers: _Pairs) -> _Pairs:
    """All headers, in order; properties of their names give way."""
    names = {name for name, _ in headers}
    return [*(pair for pair in properties if pair[0] not in names), *headers]


def _texts(headers: Sequence[Mapping[str, Any]]) -> _Pairs:
    if any(header["key"] is None for header in headers):
        raise ConfigError("a header's key is null; a message has names for its properties")
    try:
        return [(header["key"], (header["value"] or b"").decode()) for header in headers]
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"a header is not UTF-8 text, which is all a message takes: {error}"
        ) from error


def java_hash(key: Key) -> int:
    """``String.hashCode`` of a key, without its sign: how Pulsar's Java client chooses."""
    if isinstance(key, EncodedKey):
        key = key.text
    text = key if isinstance(key, str) else key.decode("latin-1")
    found = 0
    units = text.encode("utf-16-be")
    for index in range(0, len(units), 2):
        found = (31 * found + (units[index] << 8 | units[index + 1])) & 0xFFFF_FFFF
    return found & 0x7FFF_FFFF
