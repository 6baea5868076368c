"""Values that are JSON, by a schema in Avro's form.

A field is found by its name or an alias. One that is not there has the reader's default if the
schema that wrote it has no such field, else it is null: clients leave out what is null. Other
fields of the value are passed over. Logical types are numbers in their unit; decimals are numbers.
Text fields take any value, as JSON.

Blocks of plain records go through Arrow's reader, which reads by columns. What it does not take
whole is read one by one here, and that says what is wrong: both give the same, where both do.

Pure.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from decimal import Context, Decimal
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.json as arrow_json

from magnetar.cluster.schemas.avro import AvroField, AvroType
from magnetar.model.errors import InvalidSchemaError
from magnetar.pipeline.typed.avro_defaults import default_value
from magnetar.pipeline.typed.blocks import Array, Block
from magnetar.pipeline.typed.spark_types import TIMES, choices, decimal_of, unit_of

DECIMAL_DIGITS: Final = 80
"""More than columns have: Python's own are 28, and what has more is none, or is rounded."""

Reader: TypeAlias = Callable[[Any], Any]
"""A value out of ``json`` -> one that Arrow takes. Raises ``_Unfit``."""

_SIMPLE: Final = frozenset(("boolean", "int", "long", "float", "double", "string", "enum"))


class _Unfit(Exception):
    """Says where and what."""


class JsonValues:
    """Of one pair of schemas. ``kind``: the Arrow type of the reader's."""

    def __init__(self, reader: AvroType, writer: AvroType, kind: pa.DataType) -> None:
        self._read = _reader(reader, writer, reader.full_name)
        self._kind = kind
        self._exact = _has_decimals(reader)
        plain = reader.name == "record" and pa.types.is_struct(kind) and _is_plain(reader, writer)
        self._columns = pa.schema(list(kind)) if plain else None

    def decode(self, block: Block) -> Array:
        if self._columns is not None and len(block.rows):
            found = self._by_columns(block, self._columns)
            if found is not None:
                return found
        return self._one_by_one(block)

    def _by_columns(self, block: Block, schema: pa.Schema) -> Array | None:
        """None if there is a value that must be looked at."""
        u8, at, stop = block.bytes.u8, block.at, block.stop
        # Each value is one object: none begins in one value and ends in another, as a line's end
        # may not stand within text.
        if (stop <= at).any() or (u8[at] != ord("{")).any() or (u8[stop - 1] != ord("}")).any():
            return None
        data = block.bytes.data
        lines = b"\n".join([data[a:b] for a, b in zip(at.tolist(), stop.tolist(), strict=True)])
        options = arrow_json.ParseOptions(
            explicit_schema=schema, newlines_in_values=True, unexpected_field_behavior="ignore"
        )
        whole = arrow_json.ReadOptions(use_threads=False, block_size=len(lines) + 1)
        try:
            lines.decode()  # which Arrow's reader does not look at
            table = arrow_json.read_json(pa.BufferReader(lines), whole, options)
        except (UnicodeDecodeError, pa.ArrowInvalid):
            return None
        if table.num_rows != len(at) or table.schema.types != schema.types:
            return None
        arrays = [pa.concat_arrays(column.chunks) for column in table.columns]
        return pa.StructArray.from_arrays(arrays, fields=list(self._kind))

    def _one_by_one(self, block: Block) -> Array:
        data, values = block.bytes.data, []
        spans = zip(block.rows.tolist(), block.at.tolist(), block.stop.tolist(), strict=True)
        for row, at, stop in spans:
            try:
                values.append(self._value(data[at:stop]))
            except _Unfit as error:
                values.append(None)
                block.faults.add(np.array([row]), "", str(error))
        try:
            return pa.array(values, self._kind)
        except (pa.ArrowException, OverflowError, ValueError, TypeError):
            return self._fitting(values, block)

    def _value(self, data: bytes) -> Any:
        try:
            if self._exact:
                value = json.loads(data, parse_float=Decimal)
            else:
                value = json.loads(data)
        except (ValueError, RecursionError) as error:
            raise _Unfit(f"no JSON: {error}") from error
        return self._read(value)

    def _fitting(self, values: list[Any], block: Block) -> Array:
        """Those that Arrow takes; the others are bad."""
        for number, value in enumerate(values):
            try:
                pa.array([value], self._kind)
            except (pa.ArrowException, OverflowError, ValueError, TypeError) as error:
                values[number] = None
                block.faults.add(block.rows[number : number + 1], "", str(error))
        return pa.array(values, self._kind)


def _is_plain(reader: AvroType, writer: AvroType) -> bool:
    """Whether Arrow's reader makes the same of it: nothing to convert, no defaults."""
    if reader.name == "union":
        found, written = choices(reader), choices(writer)
        return len(found) == 1 and len(written) == 1 and _is_plain(found[0], written[0])
    if writer.name == "union":
        written = choices(writer)
        return len(written) == 1 and _is_plain(reader, written[0])
    if reader.name == "record" and writer.name == "record":
        known = {each.name: each.kind for each in writer.fields}
        return all(
            each.name in known and not each.aliases and _is_plain(each.kind, known[each.name])
            for each in reader.fields
        )
    if reader.name == "array" and writer.name == "array":
        assert reader.items is not None
        assert writer.items is not None
        return _is_plain(reader.items, writer.items)
    return reader.name in _SIMPLE and not reader.logical


def _has_decimals(kind: AvroType) -> bool:
    if decimal_of(kind) is not None:
        return True
    parts = [*kind.branches, *(each.kind for each in kind.fields)]
    return any(map(_has_decimals, parts if kind.items is None else [*parts, kind.items]))


# -- one by one -------------------------------------------------------------------------------


def _reader(reader: AvroType, writer: AvroType | None, place: str) -> Reader:
    """``writer``: what is known of the same place in the writer's schema."""
    if reader.name == "union":
        return _of_union(reader, writer, place)
    if writer is not None and writer.name == "union":
        alike = [each for each in choices(writer) if each.name == reader.name]
        writer = alike[0] if len(alike) == 1 else None
    if reader.name == "record":
        return _of_record(reader, writer, place)
    if reader.items is not None:
        return _of_items(reader, reader.items, writer, place)
    return _of_leaf(reader, writer, place)


def _of_union(reader: AvroType, writer: AvroType | None, place: str) -> Reader:
    members = choices(reader)
    if len(members) == 1:
        return _reader(members[0], writer, place)
    readers = [_reader(each, None, place) for each in members]

    def read(value: Any) -> Any:
        if value is None:
            return None
        for number, (each, found) in enumerate(zip(members, readers, strict=True)):
            if _may_be(each, value):
                return {f"member{number}": found(value)}
        raise _Unfit(f"{place}: {_shown(value)} is none of {reader}")

    return read


def _may_be(kind: AvroType, value: Any) -> bool:
    of_name: Mapping[str, tuple[type, ...]] = {
        "boolean": (bool,), "int": (int,), "long": (int,), "float": (float, int, Decimal),
        "double": (float, int, Decimal), "array": (list,), "map": (dict,), "record": (dict,),
    }  # fmt: skip
    if isinstance(value, bool):
        return kind.name == "boolean"
    return isinstance(value, of_name.get(kind.name, (str,)))


def _of_record(reader: AvroType, writer: AvroType | None, place: str) -> Reader:
    parts = [_field(each, writer, place) for each in reader.fields]

    def read(value: Any) -> Any:
        if value is None:
            return None
        if not isinstance(value, dict):
            raise _Unfit(f"{place}: {_shown(value)} is no object")
        found = {}
        for name, names, missing, convert in parts:
            for each in names:
                if each in value:
                    found[name] = convert(value[each])
                    break
            else:
                found[name] = missing
        return found

    return read


def _field(
    wanted: AvroField, writer: AvroType | None, place: str
) -> tuple[str, tuple[str, ...], Any, Reader]:
    """Its name, the names it may have in a value, what it is if there is none, and its reader."""
    names, place = (wanted.name, *wanted.aliases), f"{place}.{wanted.name}"
    written = {each.name: each.kind for each in writer.fields} if writer is not None else {}
    source = next((written[each] for each in names if each in written), None)
    missing = None
    if source is None and wanted.has_default:
        try:
            missing = _texts(default_value(wanted.kind, wanted.default))
        except InvalidSchemaError:
            missing = None  # JSON's readers do without
    return wanted.name, names, missing, _reader(wanted.kind, source, place)


def _texts(value: Any) -> Any:
    """Bytes are text here, a character for each byte, as in defaults."""
    if isinstance(value, bytes):
        return value.decode("latin-1")
    if isinstance(value, dict):
        return {name: _texts(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(map(_texts, value))
    return value


def _of_items(reader: AvroType, items: AvroType, writer: AvroType | None, place: str) -> Reader:
    inner = writer.items if writer is not None else None
    convert, is_map = _reader(items, inner, f"{place}[]"), reader.name == "map"

    def read(value: Any) -> Any:
        if value is None:
            return None
        if is_map and isinstance(value, dict):
            return [(key, convert(each)) for key, each in value.items()]
        if isinstance(value, list) and not is_map:
            return [convert(each) for each in value]
        raise _Unfit(f"{place}: {_shown(value)} is no {'object' if is_map else 'array'}")

    return read


def _of_leaf(kind: AvroType, writer: AvroType | None, place: str) -> Reader:
    decimal = decimal_of(kind)
    if decimal is not None:
        exact = Context(prec=DECIMAL_DIGITS)
        return lambda value: _decimal(value, decimal[1], place, exact)
    if kind.name in ("string", "enum", "bytes", "fixed"):
        return _text
    if kind.name in ("float", "double"):
        return lambda value: _real(value, kind, place)
    timed = (kind.name, kind.logical) in TIMES
    unit = 1000 if timed and unit_of(kind, writer).endswith("timestamp-millis") else 1
    right = bool if kind.name == "boolean" else int

    def read(value: Any) -> Any:
        if value is None:
            return None
        if not isinstance(value, right) or (isinstance(value, bool) and right is not bool):
            raise _Unfit(f"{place}: {_shown(value)} is no {kind}")
        return value * unit if unit != 1 else value

    return read


def _real(value: Any, kind: AvroType, place: str) -> float | None:
    """Also of a whole number: JSON has one kind of numbers, and Arrow takes none as a float that is
    not exactly that."""
    if value is None:
        return None
    try:
        if isinstance(value, int | float | Decimal) and not isinstance(value, bool):
            return float(value)
    except OverflowError:
        pass
    raise _Unfit(f"{place}: {_shown(value)} is no {kind}")


def _text(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    return json.dumps(value, separators=(",", ":"), default=str)


def _decimal(value: Any, scale: int, place: str, exact: Context) -> Decimal | None:
    if value is None:
        return None
    try:
        if isinstance(value, bool):
            raise TypeError
        given = Decimal(value)
        found = given.quantize(Decimal(1).scaleb(-scale), context=exact)
    except (ArithmeticError, TypeError, ValueError):
        raise _Unfit(f"{place}: {_shown(value)} is no decimal") from None
    if found != given:  # it would be another number
        raise _Unfit(f"{place}: {given} has more than {scale} digits behind its point")
    return found


def _shown(value: Any) -> str:
    return repr(value)[:80]
