"""Arrow arrays -> JSON, by a schema in Avro's form: a value at a time.

Fields that are null are written as null; those that the rows do not have are left out, for readers
to take their default. Logical types are numbers in their unit.

Pure. Raises ``ConfigError`` for rows that do not fit.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, TypeAlias

import pyarrow as pa

from magnetar.cluster.schemas.avro import AvroType
from magnetar.model.errors import ConfigError
from magnetar.pipeline.typed.spark_types import choices, nullable

Writer: TypeAlias = Callable[[Any], Any]

_dumps = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode


def encode_json(kind: AvroType, array: pa.Array) -> pa.Array:
    """The values of an array as an array of binary."""
    convert = _writer(kind, kind.full_name)
    try:
        return pa.array([_text(convert(each)) for each in as_plain(array).to_pylist()], pa.binary())
    except ValueError as error:
        raise ConfigError(f"{kind.full_name}: a number that JSON does not have: {error}") from error


def _text(value: Any) -> bytes:
    return _dumps(value).encode()


def as_plain(array: pa.Array) -> pa.Array:
    """Times as numbers, which need no objects: microseconds, days."""
    return array.cast(_plain_type(array.type))


def _plain_type(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_timestamp(kind):
        return pa.int64()
    if pa.types.is_date(kind):
        return pa.int32()
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(f.name, _plain_type(f.type), f.nullable) for f in kind])
    if pa.types.is_map(kind):
        return pa.map_(kind.key_type, _plain_type(kind.item_type))
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_plain_type(kind.value_type)))
    return kind


def _writer(kind: AvroType, place: str) -> Writer:
    inner = _of_kind(choices(kind)[0], place)
    may_be_null = nullable(kind)

    def write(value: Any) -> Any:
        if value is not None:
            return inner(value)
        if may_be_null:
            return None
        raise ConfigError(
            f"{place}: a row has a null there, and the topic's schema has {kind} without null"
        )

    return write


def _of_kind(kind: AvroType, place: str) -> Writer:
    if kind.name == "record":
        parts = {f.name: _writer(f.kind, f"{place}.{f.name}") for f in kind.fields}
        return lambda value: {name: parts[name](each) for name, each in value.items()}
    if kind.items is not None:
        items = _writer(kind.items, f"{place}[]")
        if kind.name == "map":
            return lambda value: {key: items(each) for key, each in value}
        return lambda value: [items(each) for each in value]
    if kind.name == "enum":
        return lambda value: _symbol(kind, value, place)
    if kind.logical.endswith("timestamp-millis"):
        return lambda value: value // 1000
    return lambda value: value


def _symbol(kind: AvroType, value: str, place: str) -> str:
    if value in kind.symbols:
        return value
    raise ConfigError(f"{place}: {value!r} is no symbol of {kind}")
