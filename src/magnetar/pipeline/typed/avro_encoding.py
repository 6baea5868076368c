"""Arrow arrays -> Avro's binary form, by columns.

A field of all rows is a piece: bytes of different lengths, side by side. A row is its pieces one
behind the other, which Arrow's ``take`` puts together (``ragged``). What a nullable field has where
it is null is nothing but the number of its branch.

``fitting`` has found before that the array's type fits the schema. Raises ``ConfigError`` for rows
that do not: a null where the schema has none, a symbol that it has not.

Pure. Source: Avro 1.11 specification, "Binary Encoding".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from magnetar.cluster.schemas.avro import AvroField, AvroType
from magnetar.model.errors import ConfigError
from magnetar.pipeline.columns.protobuf_columns import Flags
from magnetar.pipeline.typed.blocks import offsets_of
from magnetar.pipeline.typed.ragged import (
    Octets,
    Ragged,
    as_binary,
    constant,
    joined,
    of_masked,
    of_size,
    with_gaps,
    zigzags,
)

Array: TypeAlias = pa.Array

DECIMAL_BYTES: Final = 16


def encode_avro(kind: AvroType, array: Array) -> Array:
    """The values of an array without nulls as an array of binary."""
    return as_binary(joined(_pieces(kind, array, kind.full_name)))


def _pieces(kind: AvroType, array: Array, place: str) -> list[Ragged]:
    if kind.name == "union":
        return _nullable(kind, array, place)
    if array.null_count and kind.name != "null":
        raise ConfigError(
            f"{place}: a row has a null there, and the topic's schema has {kind} without null"
        )
    if kind.name == "record":
        return _record(kind, array, place)
    return _LEAVES[kind.name](kind, array, place)


def _nullable(kind: AvroType, array: Array, place: str) -> list[Ragged]:
    """A union of one type and, perhaps, null; others are not written."""
    names = [each.name for each in kind.branches]
    inner = next(n for n, name in enumerate(names) if name != "null")
    if not array.null_count:
        branch = zigzags(np.full(len(array), inner))
        return [branch, *_pieces(kind.branches[inner], array, place)]
    if "null" not in names:
        return _pieces(kind.branches[inner], array, place)  # says what is wrong
    present: Flags = array.is_valid().to_numpy(zero_copy_only=False)
    branch = zigzags(np.where(present, inner, names.index("null")))
    dense = _pieces(kind.branches[inner], array.drop_null(), place)
    return [branch, *(with_gaps(part, present) for part in dense)]


def _record(kind: AvroType, array: Array, place: str) -> list[Ragged]:
    """The fields in the schema's order; those that the rows do not have as by default, or
    null."""
    parts: list[Ragged] = []
    for each in kind.fields:
        at = f"{place}.{each.name}"
        index = array.type.get_field_index(each.name)
        if index >= 0:
            parts += _pieces(each.kind, array.field(index), at)
        else:
            parts.append(constant(_default_bytes(each, at), len(array)))
    return parts or [constant(b"", len(array))]


def _default_bytes(field: AvroField, place: str) -> bytes:
    return encode_default(field.kind, field.default, place)


def _whole(kind: AvroType, array: Array, place: str) -> list[Ragged]:
    values = array
    if pa.types.is_timestamp(array.type):
        micros = array.view(pa.int64()).to_numpy(zero_copy_only=False)
        millis = kind.logical.endswith("timestamp-millis")
        return [zigzags(micros // 1000 if millis else micros)]
    if pa.types.is_date(array.type):
        values = array.view(pa.int32())
    return [zigzags(values.to_numpy(zero_copy_only=False))]


def _float(kind: AvroType, array: Array, place: str) -> list[Ragged]:
    form, size = ("<f4", 4) if kind.name == "float" else ("<f8", 8)
    values = array.to_numpy(zero_copy_only=False).astype(form)
    return [of_size(values.view(np.uint8), size)]


def _boolean(kind: AvroType, array: Array, place: str) -> list[Ragged]:
    return [of_size(array.to_numpy(zero_copy_only=False).astype(np.uint8), 1)]


def _text(kind: AvroType, array: Array, place: str) -> list[Ragged]:
    if pa.types.is_decimal(array.type):
        body = _decimals(array)
    else:
        body = _bytes_of(array)
    return [zigzags(np.diff(body.offsets)), body]


def _bytes_of(array: Array) -> Ragged:
    offsets = offsets_of(array)
    first, data = int(offsets[0]), array.buffers()[2]
    whole = np.frombuffer(data, np.uint8) if data is not None else np.zeros(0, np.uint8)
    return Ragged(whole[first : int(offsets[-1])], offsets - first)


def _fixed(kind: AvroType, array: Array, place: str) -> list[Ragged]:
    if pa.types.is_decimal(array.type):
        found = _big_endian(array)
        if kind.size <= DECIMAL_BYTES:
            lengths = _decimals(array)
            if int(np.diff(lengths.offsets).max(initial=0)) > kind.size:
                raise ConfigError(
                    f"{place}: a decimal of more than the {kind.size} bytes of {kind}"
                )
            return [of_size(found[:, DECIMAL_BYTES - kind.size :].reshape(-1), kind.size)]
        sign = np.where(found[:, :1] >= 0x80, 0xFF, 0).astype(np.uint8)
        wide = np.repeat(sign, kind.size - DECIMAL_BYTES, axis=1)
        return [of_size(np.hstack([wide, found]).reshape(-1), kind.size)]
    body = _bytes_of(array)
    if (np.diff(body.offsets) != kind.size).any():
        raise ConfigError(f"{place}: bytes that are not the {kind.size} of {kind}")
    return [body]


def _big_endian(array: Array) -> Octets:
    data = np.frombuffer(array.buffers()[1], np.uint8).reshape(-1, DECIMAL_BYTES)
    return np.ascontiguousarray(data[array.offset : array.offset + len(array), ::-1])


def _decimals(array: Array) -> Ragged:
    """Two's complement, big endian, without what only repeats the sign."""
    found = _big_endian(array)
    negative = found[:, 0] >= 0x80
    sign = np.where(negative, 0xFF, 0).astype(np.uint8)
    repeats = np.cumprod(found == sign[:, None], axis=1).sum(axis=1)
    top = found[np.arange(len(found)), np.minimum(repeats, DECIMAL_BYTES - 1)]
    repeats -= (repeats == DECIMAL_BYTES) | ((top >= 0x80) != negative)
    return of_masked(found, np.arange(DECIMAL_BYTES) >= repeats[:, None])


def _enum(kind: AvroType, array: Array, place: str) -> list[Ragged]:
    known = pa.array(kind.symbol_order, array.type)
    found = pc.index_in(array, value_set=known)
    if found.null_count:
        unknown = array.filter(found.is_null())[0]
        raise ConfigError(f"{place}: {unknown.as_py()!r} is no symbol of {kind}")
    return [zigzags(found.to_numpy(zero_copy_only=False))]


def _items(kind: AvroType, array: Array, place: str) -> list[Ragged]:
    """One block of all items, and the empty one that ends them."""
    assert kind.items is not None
    offsets, at = offsets_of(array), f"{place}[]"
    first, count = int(offsets[0]), int(offsets[-1] - offsets[0])
    if kind.name == "map":
        keys = array.keys.slice(first, count)
        parts = _text(AvroType("string"), keys, at)
        parts += _pieces(kind.items, array.items.slice(first, count), at)
    else:
        parts = _pieces(kind.items, array.values.slice(first, count), at)
    items = joined(parts)
    lengths = np.diff(offsets)
    counts = zigzags(lengths)
    if not lengths.all():
        some = lengths > 0
        counts = with_gaps(zigzags(lengths[some]), some)
    whole = Ragged(items.data, items.offsets[offsets - first])
    return [counts, whole, constant(b"\0", len(array))]


def _null(kind: AvroType, array: Array, place: str) -> list[Ragged]:
    return [constant(b"", len(array))]


_LEAVES: Final[Mapping[str, Callable[[AvroType, Array, str], list[Ragged]]]] = MappingProxyType(
    {
        "int": _whole,
        "long": _whole,
        "float": _float,
        "double": _float,
        "boolean": _boolean,
        "string": _text,
        "bytes": _text,
        "fixed": _fixed,
        "enum": _enum,
        "array": _items,
        "map": _items,
        "null": _null,
    }
)


# -- defaults ---------------------------------------------------------------------------------


def encode_default(kind: AvroType, default: object, place: str) -> bytes:
    """The bytes of a field's default. Raises ``ConfigError``."""
    if kind.name == "union":
        return _default_of_union(kind, default, place)
    if kind.name == "record" and isinstance(default, dict):
        parts = []
        for each in kind.fields:
            if each.name not in default and not each.has_default:
                break
            value = default.get(each.name, each.default)
            parts.append(encode_default(each.kind, value, f"{place}.{each.name}"))
        else:
            return b"".join(parts)
    elif kind.name == "array" and isinstance(default, list) and kind.items is not None:
        items = [encode_default(kind.items, each, place) for each in default]
        return _block(items)
    elif kind.name == "map" and isinstance(default, dict) and kind.items is not None:
        text = AvroType("string")
        pairs = default.items()
        return _block(
            [
                encode_default(text, key, place) + encode_default(kind.items, each, place)
                for key, each in pairs
            ]
        )
    elif kind.name in ("string", "bytes", "fixed") and isinstance(default, str):
        return _default_text(kind, default, place)
    elif kind.name == "enum" and default in kind.symbols:
        return _zigzag(kind.symbol_order.index(str(default)))
    elif kind.name == "null" and default is None:
        return b""
    elif kind.name == "boolean" and isinstance(default, bool):
        return bytes([default])
    elif kind.name in ("int", "long") and type(default) is int:
        return _zigzag(default)
    elif kind.name in ("float", "double") and type(default) in (int, float):
        form = "<f4" if kind.name == "float" else "<f8"
        return np.array([default], form).tobytes()
    raise ConfigError(f"{place}: the default in the topic's schema is no {kind}: write the column")


def _default_of_union(kind: AvroType, default: object, place: str) -> bytes:
    for number, each in enumerate(kind.branches):
        try:
            return _zigzag(number) + encode_default(each, default, place)
        except ConfigError:
            continue
    raise ConfigError(f"{place}: the default in the topic's schema is no {kind}: write the column")


def _default_text(kind: AvroType, default: str, place: str) -> bytes:
    try:
        data = default.encode() if kind.name == "string" else default.encode("latin-1")
    except UnicodeEncodeError as error:
        raise ConfigError(f"{place}: the default in the topic's schema is no {kind}") from error
    if kind.name != "fixed":
        return _zigzag(len(data)) + data
    if len(data) != kind.size:
        raise ConfigError(f"{place}: the default in the topic's schema is no {kind}")
    return data


def _block(items: list[bytes]) -> bytes:
    return b"".join([_zigzag(len(items)) if items else b"", *items, b"\0"])


def _zigzag(value: int) -> bytes:
    return zigzags(np.array([value])).data.tobytes()
