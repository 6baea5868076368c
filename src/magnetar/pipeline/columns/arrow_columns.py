"""Rows of messages -> Arrow arrays: bytes are gathered once, by Arrow's ``take``.

Rows that were gathered already (``gathered_rows``) are columns as they are. Of others a column of
bytes is made as an array of twice as many elements over the block's bytes, whose offsets are begin
and end of every value in turn; of these the even ones are taken. Nothing touches bytes in Python.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa

from magnetar.model.errors import ConfigError, ProtocolError
from magnetar.pipeline.columns.gathered_rows import BytesColumn, GatheredRows
from magnetar.pipeline.columns.message_rows import MessageRows, Properties
from magnetar.pipeline.columns.plain_rows import PlainRows, plain_column
from magnetar.pipeline.columns.protobuf_columns import Bytes, Flags, Ints, Spans
from magnetar.pipeline.schema import arrow_schema
from magnetar.pipeline.topic_names import partition_number

Array: TypeAlias = pa.Array

NAMES_AS_BITS: Final = 32
"""Different names of properties, each a bit of what is added up."""


_OF_ENTRIES: Final = frozenset(
    ("topic", "partition", "message_id", "publish_time", "offset", "schema_version")
)
"""Columns of which it has to be known in which entry each message lies."""


class EntryIds(NamedTuple):
    """What holds for all messages of an entry, of every entry that rows lie in. ``offsets``: of
    each one's first message, ``NO_OFFSETS`` if it is not known. ``schema_versions``: with which its
    values were written, ``ABSENT`` without one."""

    ledger_ids: Ints
    entry_ids: Ints
    publish_times_ms: Ints
    offsets: Ints
    schema_versions: Ints


class ArrowColumns:
    """Makes record batches of the columns asked for."""

    def __init__(self, columns: Sequence[str], topic: str) -> None:
        self.schema = arrow_schema(columns)
        self._topic = topic
        self.partition = partition_number(topic)
        self._constants: dict[str, object] = {"topic": topic, "partition": self.partition}
        self._repeated: dict[str, Array] = {}
        self.of_entries = not _OF_ENTRIES.isdisjoint(columns)
        """Whether gathered rows need ``EntryIds``."""

    def batch(self, rows: MessageRows, ids: EntryIds) -> pa.RecordBatch:
        """Raises ``ProtocolError`` for a string that is not UTF-8."""
        arrays = [self._array(field, rows, ids) for field in self.schema]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def gathered_batch(self, rows: GatheredRows, ids: EntryIds | None) -> pa.RecordBatch:
        """``ids``: None unless ``of_entries``. Raises ``ProtocolError`` for a string that is not
        UTF-8."""
        placed = None if ids is None else (*rows.places(), ids)
        count = rows.message_count
        arrays = [
            found
            if placed is not None and (found := self._of_entry(field, *placed)) is not None
            else self._gathered_array(field, count, rows)
            for field in self.schema
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _gathered_array(self, field: pa.Field, count: int, rows: GatheredRows) -> Array:
        if field.name == "value":
            assert rows.values is not None
            return _bytes_array(rows.values, count, field.type)
        if field.name == "key":
            assert rows.keys is not None
            return checked_text(_bytes_array(rows.keys, count, field.type), "key")
        if field.name == "event_time":
            assert rows.event_times_ms is not None
            return _times(rows.event_times_ms, rows.event_times_ms <= 0, field.type)
        if field.name == "key_is_base64":
            assert rows.keys_encoded is not None
            return pa.array(rows.keys_encoded > 0)
        return self._repeat(field, [], count)  # properties or headers: none has any

    def plain_batch(self, rows: PlainRows, ids: EntryIds) -> pa.RecordBatch:
        """Of the messages of one entry. Raises ``ProtocolError``."""
        entries = np.zeros(len(rows.indexes), np.int64)
        indexes = np.array(rows.indexes, np.int64)
        arrays = [self._plain_array(field, entries, indexes, ids, rows) for field in self.schema]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _plain_array(
        self, field: pa.Field, entries: Ints, indexes: Ints, ids: EntryIds, rows: PlainRows
    ) -> Array:
        found = self._of_entry(field, entries, indexes, ids)
        return plain_column(field.name, field.type, rows) if found is None else found

    def _of_entry(
        self, field: pa.Field, entries: Ints, batch_indexes: Ints, ids: EntryIds
    ) -> Array | None:
        """A column that says where a message lies and what holds for its entry."""
        if field.name in self._constants:
            return self._repeat(field, self._constants[field.name], len(entries))
        if field.name == "message_id":
            return _message_ids(entries, batch_indexes, ids, field.type)
        if field.name == "publish_time":
            return _times(ids.publish_times_ms[entries], None, field.type)
        if field.name == "offset":
            return pa.array(offsets_of(entries, batch_indexes, ids), field.type)
        if field.name == "schema_version":
            versions = ids.schema_versions[entries]
            return pa.array(versions, field.type, mask=versions < 0)
        return None

    def _array(self, field: pa.Field, rows: MessageRows, ids: EntryIds) -> Array:
        found = self._of_entry(field, rows.entries, rows.batch_indexes, ids)
        if found is not None:
            return found
        name = field.name
        if name == "value":
            return gather(rows.bytes, rows.values, field.type)
        if name == "key":
            assert rows.keys is not None
            return checked_text(gather(rows.bytes, rows.keys, field.type), "key")
        if name == "event_time":
            assert rows.event_times_ms is not None
            return _times(rows.event_times_ms, rows.event_times_ms <= 0, field.type)
        if name == "key_is_base64":
            assert rows.keys_encoded is not None
            return pa.array(rows.keys_encoded > 0)
        assert rows.properties is not None
        made = _map if name == "properties" else _headers
        return made(rows.bytes, rows.properties, len(rows.entries), field.type)

    def _repeat(self, field: pa.Field, value: object, count: int) -> Array:
        """The same value in every row: made once, and cut to length."""
        whole = self._repeated.get(field.name)
        if whole is None or len(whole) < count:
            whole = pa.repeat(pa.scalar(value, field.type), count)
            self._repeated[field.name] = whole
        return whole.slice(0, count)


def _bytes_array(column: BytesColumn, count: int, kind: pa.DataType) -> Array:
    offsets, data, present = column
    bits = None if present is None else pa.py_buffer(present)
    return pa.Array.from_buffers(kind, count, [bits, pa.py_buffer(offsets), pa.py_buffer(data)])


def gather(bytes_: Bytes, spans: Spans, kind: pa.DataType) -> Array:
    """The bytes of every span, null for those of length ``ABSENT``."""
    missing = spans.length < 0
    some = bool(missing.any())
    at, ends = spans.at, spans.at + spans.length
    if some:  # an empty one lies where the one before ends, so that begins keep ascending
        before = np.maximum.accumulate(np.where(missing, 0, ends))
        at, ends = np.where(missing, before, at), np.where(missing, before, ends)
    nulls = missing if some else None
    count = len(at)
    if (ends[:-1] <= at[1:]).all():
        return _taken(bytes_, at, ends, np.arange(0, 2 * count, 2), nulls, kind)
    order = np.lexsort((ends, at))
    places = np.empty_like(order)
    places[order] = np.arange(0, 2 * count, 2)
    return _taken(bytes_, at[order], ends[order], places, nulls, kind)


def _taken(
    bytes_: Bytes, at: Ints, ends: Ints, chosen: Ints, nulls: Flags | None, kind: pa.DataType
) -> Array:
    """Of the spans, none of which begins before the one before it ends, and the gaps between them
    in turn, those with these numbers."""
    offsets = np.zeros(2 * len(at) + 1, np.int32)
    offsets[0:-1:2], offsets[1::2] = at, ends
    offsets[-1] = offsets[-2] if len(at) else 0
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(bytes_.data)]
    pairs = pa.Array.from_buffers(kind, len(offsets) - 1, buffers)
    return pairs.take(pa.array(chosen, mask=nulls))


def checked_text(array: Array, what: str) -> Array:
    try:
        array.validate(full=True)
    except pa.ArrowInvalid as error:
        raise ProtocolError(f"{what}: {error}") from error
    return array


def _message_ids(entries: Ints, batch_indexes: Ints, ids: EntryIds, kind: pa.StructType) -> Array:
    parts = ids.ledger_ids[entries], ids.entry_ids[entries], batch_indexes.astype(np.int32)
    return pa.StructArray.from_arrays([pa.array(part) for part in parts], fields=list(kind))


def offsets_of(entries: Ints, batch_indexes: Ints, ids: EntryIds) -> Ints:
    """Of messages of these entries. Raises ``ConfigError`` if they are not numbered."""
    if (ids.offsets < 0).any():
        raise ConfigError(
            "column 'offset': the broker does not number its messages; choose others with the "
            "option 'columns'"
        )
    return ids.offsets[entries] + np.maximum(batch_indexes, 0)


def _times(times_ms: Ints, missing: Flags | None, kind: pa.DataType) -> Array:
    some = missing is not None and missing.any()
    return pa.array(times_ms * 1000, mask=missing if some else None).view(kind)


def _map(bytes_: Bytes, pairs: Properties, count: int, kind: pa.MapType) -> Array:
    """Of several properties of one name the last, as a map has each key once."""
    keys, values = _texts(bytes_, pairs)
    rows, kept = pairs.rows, last_of_each_name(pairs.rows, keys)
    if kept is not None:
        rows, keys, values = rows[kept], keys.filter(pa.array(kept)), values.filter(pa.array(kept))
    return pa.MapArray.from_arrays(_offsets(rows, count), keys, values, kind)


def _headers(bytes_: Bytes, pairs: Properties, count: int, kind: pa.ListType) -> Array:
    """All of them, in order."""
    keys, values = _texts(bytes_, pairs)
    both = pa.StructArray.from_arrays(
        [keys, values.cast(pa.binary())], fields=list(kind.value_type)
    )
    return pa.ListArray.from_arrays(_offsets(pairs.rows, count), both, type=kind)


def _offsets(rows: Ints, count: int) -> Array:
    offsets = np.zeros(count + 1, np.int32)
    np.cumsum(np.bincount(rows, minlength=count), out=offsets[1:])
    return pa.array(offsets)


def _texts(bytes_: Bytes, pairs: Properties) -> tuple[Array, Array]:
    keys = checked_text(gather(bytes_, pairs.keys, pa.string()), "properties")
    return keys, checked_text(gather(bytes_, pairs.values, pa.string()), "properties")


def last_of_each_name(rows: Ints, names: Array) -> Flags | None:
    """Which properties are the last of their name in their row; None: all are. ``rows`` ascend."""
    if len(rows) < 2 or not (rows[1:] == rows[:-1]).any():
        return None
    codes = names.dictionary_encode().indices.to_numpy().astype(np.int64)
    distinct = int(codes.max()) + 1
    if distinct <= NAMES_AS_BITS:  # a name that comes twice is added twice
        bits, first = np.int64(1) << codes, np.flatnonzero(np.diff(rows, prepend=-1))
        if (np.add.reduceat(bits, first) == np.bitwise_or.reduceat(bits, first)).all():
            return None
    _, from_behind = np.unique((rows * distinct + codes)[::-1], return_index=True)
    if len(from_behind) == len(rows):
        return None
    kept: Flags = np.zeros(len(rows), np.bool_)
    kept[len(rows) - 1 - from_behind] = True
    return kept
