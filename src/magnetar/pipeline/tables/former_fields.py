"""Fields that the newest schema of a topic has dropped, in values that have them still.

Columns of a table only grow: the field that a newer version drops stays a column. Values are read
by the newest version, which does not know it; of one that was written with an older version what it
has there would be lost. So such values are read a second time, by the version that they were
written with, and the column gets it from there. It is so for records in records, arrays and maps as
well.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_type

from magnetar.model.errors import InvalidSchemaError, SchemaNotFoundError
from magnetar.pipeline.columns.protobuf_columns import Ints
from magnetar.pipeline.tables.topic_table import is_list
from magnetar.pipeline.typed.blocks import Array, offsets_of
from magnetar.pipeline.typed.inference import VALUE, ReaderSchema
from magnetar.pipeline.typed.reading import NO_VERSION, TypedRead, TypedValues, VersionAsked


class FormerFields:
    """Of one topic. ``kind``: what its table has for values; ``read``: by which they are read."""

    def __init__(
        self, kind: pa.DataType, read: TypedRead, topic: str, versions: VersionAsked
    ) -> None:
        self._kind = kind
        self._read = read
        self._topic = topic
        self._versions = versions
        self._had: pa.DataType = to_arrow_type(read.reader.type, timezone="UTC")
        self._former: dict[int, TypedValues | None] = {}
        self.needed = _lacks(kind, self._had)
        """Whether the table has such a field."""

    def filled(self, batch: pa.RecordBatch, values: Array) -> Array:
        """``values`` of a batch (``typed.reading.NEEDED``) in the type of the table."""
        found = values.cast(self._kind)
        if not self.needed:
            return found
        versions = batch.column("schema_version").fill_null(NO_VERSION).to_numpy()
        readers = {version: self._by(version) for version in np.unique(versions).tolist()}
        if not any(readers.values()):
            return found
        parts, order, begin = [], np.empty(len(found), np.int64), 0
        for version, former in readers.items():
            rows = np.flatnonzero(versions == version)
            chosen = pa.array(rows)
            part = found.take(chosen)
            if former is not None:
                before = former.batch(batch.take(chosen)).column(VALUE)
                part = _with(self._kind, self._had, part, before)
            parts.append(part)
            order[rows] = np.arange(begin, begin + len(rows))
            begin += len(rows)
        return pa.concat_arrays(parts).take(pa.array(order))

    def _by(self, version: int) -> TypedValues | None:
        """Reads by that version; None if that would give nothing more."""
        if version not in self._former:
            self._former[version] = self._reading_by(version)
        return self._former[version]

    def _reading_by(self, version: int) -> TypedValues | None:
        read = self._read
        if version in (NO_VERSION, read.reader.version):
            return None
        try:
            reader = ReaderSchema(self._topic, version, self._versions(version))
            has = to_arrow_type(reader.type, timezone="UTC")
        except (SchemaNotFoundError, InvalidSchemaError):
            return None  # what was written with it could not be read before
        if not _gives(self._kind, self._had, has):
            return None
        by_it = TypedRead(reader, True, read.service_url, read.timeout_s)
        return TypedValues(by_it, self._topic, self._versions)


def _fields(kind: pa.DataType) -> Mapping[str, pa.DataType]:
    return {each.name: each.type for each in kind} if pa.types.is_struct(kind) else {}


def _items(kind: pa.DataType) -> pa.DataType | None:
    """What an array's elements are, or a map's values."""
    if pa.types.is_map(kind):
        return kind.item_type
    return kind.value_type if is_list(kind) else None


def _lacks(kind: pa.DataType, had: pa.DataType) -> bool:
    """Whether ``kind`` has a field that ``had`` has not."""
    items, had_items = _items(kind), _items(had)
    if items is not None and had_items is not None:
        return _lacks(items, had_items)
    known = _fields(had)
    return any(
        name not in known or _lacks(inner, known[name])
        for name, inner in _fields(kind).items()
        if known
    )


def _gives(kind: pa.DataType, had: pa.DataType, has: pa.DataType) -> bool:
    """Whether ``has`` has a field of these."""
    items, had_items, has_items = _items(kind), _items(had), _items(has)
    if items is not None and had_items is not None and has_items is not None:
        return _gives(items, had_items, has_items)
    known, there = _fields(had), _fields(has)
    return any(
        name not in known or _gives(inner, known[name], there[name])
        for name, inner in _fields(kind).items()
        if known and name in there
    )


def _with(kind: pa.DataType, had: pa.DataType, now: Array, before: Array) -> Array:
    """``now``, of type ``kind``, with the fields of ``before`` that ``had`` has not."""
    items, had_items = _items(kind), _items(had)
    if items is not None and had_items is not None and _items(before.type) is not None:
        return _with_in_items(items, had_items, now, before)
    known = _fields(had)
    if not known or not _fields(before.type):
        return now
    parts = dict(zip(_fields(before.type), before.flatten(), strict=True))
    children = []
    for (name, inner), child in zip(_fields(kind).items(), now.flatten(), strict=True):
        if name in parts and name not in known:
            child = _as(inner, parts[name], child)
        elif name in parts:
            child = _with(inner, known[name], child, parts[name])
        children.append(child)
    return pa.StructArray.from_arrays(children, fields=list(kind), mask=now.is_null())


def _with_in_items(kind: pa.DataType, had: pa.DataType, now: Array, before: Array) -> Array:
    """Of arrays and maps. Both were read from the same bytes, so the items are the same ones in the
    same order: but where one reading is none, and then there is nothing to take over."""
    at, length = _spans(now)
    before_at, before_length = _spans(before)
    begins = np.cumsum(length) - length
    number = np.arange(int(length.sum())) - np.repeat(begins, length)
    both = np.repeat(length == before_length, length)
    chosen = pa.array(np.repeat(at, length) + number)
    others = pa.array(np.repeat(before_at, length) + number, mask=~both)
    found = _with(kind, had, _values(now).take(chosen), _values(before).take(others))
    offsets = np.append(begins, length.sum())
    missing = now.is_null()
    if pa.types.is_map(now.type):
        keys = now.keys.take(chosen)
        return pa.MapArray.from_arrays(
            pa.array(offsets, pa.int32()), keys, found, now.type, mask=missing
        )
    if pa.types.is_large_list(now.type):
        return pa.LargeListArray.from_arrays(
            pa.array(offsets, pa.int64()), found, type=now.type, mask=missing
        )
    return pa.ListArray.from_arrays(
        pa.array(offsets, pa.int32()), found, type=now.type, mask=missing
    )


def _values(array: Array) -> Array:
    """All that its elements lie in."""
    return array.items if pa.types.is_map(array.type) else array.values


def _spans(array: Array) -> tuple[Ints, Ints]:
    """Where each element begins in these, and how many it has; a null has none."""
    offsets = offsets_of(array)
    length = offsets[1:] - offsets[:-1]
    return offsets[:-1], np.where(array.is_valid().to_numpy(zero_copy_only=False), length, 0)


def _as(kind: pa.DataType, array: Array, otherwise: Array) -> Array:
    try:
        return array.cast(kind)
    except pa.ArrowException:
        return otherwise  # the field had another type then
