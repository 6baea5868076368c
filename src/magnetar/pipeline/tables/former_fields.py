"""Fields that the newest schema of a topic has dropped, in values that have them still.

Columns of a table only grow: the field that a newer version drops stays a column. Values are read
by the newest version, which does not know it; of one that was written with an older version what it
has there would be lost. So such values are read a second time, by the version that they were
written with, and the column gets it from there. It is so for records in records as well; what is
dropped within arrays and maps stays null.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_type

from magnetar.model.errors import InvalidSchemaError, SchemaNotFoundError
from magnetar.pipeline.typed.blocks import Array
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


def _lacks(kind: pa.DataType, had: pa.DataType) -> bool:
    """Whether ``kind`` has a field that ``had`` has not."""
    known = _fields(had)
    return any(
        name not in known or _lacks(inner, known[name])
        for name, inner in _fields(kind).items()
        if known
    )


def _gives(kind: pa.DataType, had: pa.DataType, has: pa.DataType) -> bool:
    """Whether ``has`` has a field of these."""
    known, there = _fields(had), _fields(has)
    return any(
        name not in known or _gives(inner, known[name], there[name])
        for name, inner in _fields(kind).items()
        if known and name in there
    )


def _with(kind: pa.DataType, had: pa.DataType, now: Array, before: Array) -> Array:
    """``now``, of type ``kind``, with the fields of ``before`` that ``had`` has not."""
    known = _fields(had)
    parts = dict(zip(_fields(before.type), before.flatten(), strict=True))
    children = []
    for (name, inner), child in zip(_fields(kind).items(), now.flatten(), strict=True):
        if name in parts and name not in known:
            child = _as(inner, parts[name], child)
        elif name in parts and _fields(known[name]) and _fields(parts[name].type):
            child = _with(inner, known[name], child, parts[name])
        children.append(child)
    return pa.StructArray.from_arrays(children, fields=list(kind), mask=now.is_null())


def _as(kind: pa.DataType, array: Array, otherwise: Array) -> Array:
    try:
        return array.cast(kind)
    except pa.ArrowException:
        return otherwise  # the field had another type then
