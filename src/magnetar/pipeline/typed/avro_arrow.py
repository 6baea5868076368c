"""Columns of a walk -> Arrow arrays, by the schema of the reader.

Owns Avro's rules of resolution where values meet them: fields by name or alias, defaults, numbers
promoted, text and bytes for each other, branches of unions, symbols of enumerations; and what the
rules leave open: a time that was written in another unit stays the same time. A value that meets a
rule it breaks is bad (a null where the reader has none, a symbol that it does not know); the others
of its schema are read.

An array has as many elements as its column; those of bad values mean nothing.

Pure. Source: Avro 1.11 specification, "Schema Resolution".
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from typing import Final, TypeAlias

import numpy as np
import pyarrow as pa

from magnetar.cluster.schemas.avro import AvroField, AvroType
from magnetar.cluster.schemas.resolution import PROMOTIONS, unreadable
from magnetar.model.errors import InvalidSchemaError
from magnetar.pipeline.columns.arrow_columns import gather
from magnetar.pipeline.columns.protobuf_columns import ABSENT, Bytes, Flags, Ints, Spans
from magnetar.pipeline.typed.avro_defaults import default_value
from magnetar.pipeline.typed.avro_walk import (
    ByteSpans,
    Choice,
    Column,
    Items,
    Numbers,
    RecordFields,
    Round,
)
from magnetar.pipeline.typed.faults import Faults
from magnetar.pipeline.typed.spark_types import choices, decimal_of, unit_of

Array: TypeAlias = pa.Array

DECIMAL_BYTES: Final = 16
MICROS_MAX: Final = 2**63 - 1
NO_NULL: Final = "null, which the schema that is read with has not"


class ArrowValues:
    """Of one block and one pair of schemas."""

    def __init__(self, bytes_: Bytes, faults: Faults) -> None:
        self._bytes = bytes_
        self._faults = faults
        self._reasons: dict[tuple[int, int], str | None] = {}

    def array(self, reader: AvroType, writer: AvroType, column: Column, kind: pa.DataType) -> Array:
        """``kind``: the Arrow type that the reader's schema has in Spark."""
        return self._array(reader, writer, column, kind, reader.full_name)

    def _array(
        self, reader: AvroType, writer: AvroType, column: Column, kind: pa.DataType, place: str
    ) -> Array:
        if isinstance(column, Choice):
            return self._of_union(reader, writer, column, kind, place)
        if reader.name == "union":
            return self._into_union(reader, writer, column, kind, place)
        if isinstance(column, RecordFields) and reader.name == "record":
            return self._struct(reader, writer, column, kind, place)
        if isinstance(column, Items) and reader.name == writer.name:
            return self._items(reader, writer, column, kind, place)
        if isinstance(column, Numbers):
            return self._numbers(reader, writer, column, kind, place)
        if isinstance(column, ByteSpans):
            return self._bytes_of(reader, writer, column, kind, place)
        return self._unfit(reader, writer, column, kind, place)

    def _unfit(
        self, reader: AvroType, writer: AvroType, column: Column, kind: pa.DataType, place: str
    ) -> Array:
        what = NO_NULL if writer.name == "null" else f"{writer} cannot be read as {reader}"
        self._faults.add(column.rows, place, what)
        return pa.nulls(len(column), kind)

    # -- unions -------------------------------------------------------------------------------

    def _of_union(
        self, reader: AvroType, writer: AvroType, column: Choice, kind: pa.DataType, place: str
    ) -> Array:
        found = []
        for number, chosen, part in column.parts:
            branch = writer.branches[number]
            if branch.name == "null" and _takes_null(reader):
                continue
            found.append((chosen, self._array(reader, branch, part, kind, place)))
        return _spread(found, len(column), kind)

    def _into_union(
        self, reader: AvroType, writer: AvroType, column: Column, kind: pa.DataType, place: str
    ) -> Array:
        """What is written is no union."""
        if writer.name == "null" and _takes_null(reader):
            return pa.nulls(len(column), kind)
        members = choices(reader)
        if len(members) == 1:
            return self._array(members[0], writer, column, kind, place)
        number = self._member(members, writer)
        if number is None:
            return self._unfit(reader, writer, column, kind, place)
        member = self._array(members[number], writer, column, kind.field(number).type, place)
        arrays = [
            member if n == number else pa.nulls(len(column), kind.field(n).type)
            for n in range(len(members))
        ]
        return pa.StructArray.from_arrays(arrays, fields=list(kind))

    def _member(self, members: Sequence[AvroType], writer: AvroType) -> int | None:
        """The member that reads it: that of the same name, of the same type, else the first."""
        for number, each in enumerate(members):
            if writer.full_name and each.full_name == writer.full_name:
                return number
        fits = [n for n, each in enumerate(members) if self._reason(each, writer) is None]
        same = [n for n in fits if members[n].name == writer.name]
        return next(iter(same or fits), None)

    def _reason(self, reader: AvroType, writer: AvroType) -> str | None:
        pair = id(reader), id(writer)
        if pair not in self._reasons:
            self._reasons[pair] = unreadable(reader, writer)
        return self._reasons[pair]

    # -- what holds others --------------------------------------------------------------------

    def _struct(
        self,
        reader: AvroType,
        writer: AvroType,
        column: RecordFields,
        kind: pa.DataType,
        place: str,
    ) -> Array:
        written = {each.name: n for n, each in enumerate(writer.fields)}
        arrays = []
        for number, wanted in enumerate(reader.fields):
            inner, at = kind.field(number).type, f"{place}.{wanted.name}"
            source = next(
                (written[n] for n in (wanted.name, *wanted.aliases) if n in written), None
            )
            if source is None:
                arrays.append(self._default(wanted, column, inner, at))
            else:
                field, part = writer.fields[source], column.columns[source]
                arrays.append(self._array(wanted.kind, field.kind, part, inner, at))
        return pa.StructArray.from_arrays(arrays, fields=list(kind))

    def _default(self, wanted: AvroField, column: Column, kind: pa.DataType, place: str) -> Array:
        if not wanted.has_default:
            self._faults.add(column.rows, place, "not written, and there is no default")
            return pa.nulls(len(column), kind)
        try:
            value = pa.array([default_value(wanted.kind, wanted.default)], kind)
        except (InvalidSchemaError, pa.ArrowException, ValueError, TypeError) as error:
            self._faults.add(column.rows, place, f"its default is no value of it: {error}")
            return pa.nulls(len(column), kind)
        return value.take(pa.array(np.zeros(len(column), np.int64)))

    def _items(
        self, reader: AvroType, writer: AvroType, column: Items, kind: pa.DataType, place: str
    ) -> Array:
        assert reader.items is not None
        assert writer.items is not None
        is_map = writer.name == "map"
        item_kind, place = (kind.item_type if is_map else kind.value_type), f"{place}[]"
        items = [
            self._array(reader.items, writer.items, each.items, item_kind, place)
            for each in column.rounds
        ]
        offsets, order = _order(column.rounds, len(column))
        values = _ordered(items, order, item_kind)
        if not is_map:
            return pa.ListArray.from_arrays(offsets, values, type=kind)
        text = AvroType("string")
        keys = [
            self._bytes_of(text, text, each.keys, pa.string(), place)
            for each in column.rounds
            if isinstance(each.keys, ByteSpans)
        ]
        return pa.MapArray.from_arrays(offsets, _ordered(keys, order, pa.string()), values, kind)

    # -- leaves -------------------------------------------------------------------------------

    def _numbers(
        self, reader: AvroType, writer: AvroType, column: Numbers, kind: pa.DataType, place: str
    ) -> Array:
        if writer.name == "enum" or reader.name == "enum":
            if reader.name == writer.name:
                return self._symbols(reader, writer, column, kind, place)
            return self._unfit(reader, writer, column, kind, place)
        if reader.name != writer.name and reader.name not in PROMOTIONS.get(writer.name, ()):
            return self._unfit(reader, writer, column, kind, place)
        values = column.values
        if writer.name == "int" and len(values):
            self._within(column, values, 2**31 - 1, "an int of more than 32 bits", place)
        if pa.types.is_timestamp(kind):
            if unit_of(reader, writer).endswith("millis"):
                what = f"no time in milliseconds within {MICROS_MAX} microseconds"
                self._within(column, values, MICROS_MAX // 1000, what, place)
                values = values * 1000
            return pa.array(values.astype(np.int64)).view(kind)
        if pa.types.is_date(kind):
            return pa.array(values.astype(np.int32)).view(kind)
        return pa.array(values.astype(kind.to_pandas_dtype()), kind)

    def _within(self, column: Column, values: Ints, most: int, what: str, place: str) -> None:
        if len(values) and (int(values.max()) > most or int(values.min()) < -most - 1):
            self._faults.add(column.rows[(values > most) | (values < -most - 1)], place, what)

    def _symbols(
        self, reader: AvroType, writer: AvroType, column: Numbers, kind: pa.DataType, place: str
    ) -> Array:
        known = [
            each if each in reader.symbols else (reader.default if reader.has_default else None)
            for each in writer.symbol_order
        ]
        values = column.values
        wrong = (values < 0) | (values >= len(known))
        if wrong.any():
            self._faults.add(column.rows[wrong], place, f"a symbol that {writer} has not")
            values = np.where(wrong, 0, values)
        if None in known:
            unknown = np.array([each is None for each in known])[values]
            self._faults.add(column.rows[unknown], place, f"a symbol that {reader} has not")
        return pa.array(known, kind).take(pa.array(values))

    def _bytes_of(
        self, reader: AvroType, writer: AvroType, column: ByteSpans, kind: pa.DataType, place: str
    ) -> Array:
        fixed = "fixed" in (reader.name, writer.name)
        alike = (reader.name, reader.size) == (writer.name, writer.size)
        if (fixed and not alike) or reader.name not in ("string", "bytes", "fixed"):
            return self._unfit(reader, writer, column, kind, place)
        spans = Spans(column.at, column.length)
        if decimal_of(reader) is not None and pa.types.is_decimal(kind):
            return self._decimals(reader, writer, column, kind, place)
        found = gather(self._bytes, spans, kind)
        if not pa.types.is_string(kind):
            return found
        try:
            found.validate(full=True)
        except pa.ArrowInvalid:
            wrong = _not_text(found)
            self._faults.add(column.rows[wrong], place, "not UTF-8")
            length = np.where(wrong, ABSENT, column.length)
            return gather(self._bytes, Spans(column.at, length), kind)
        return found

    def _decimals(
        self, reader: AvroType, writer: AvroType, column: ByteSpans, kind: pa.DataType, place: str
    ) -> Array:
        """Two's complement, big endian, of any length -> little endian, of 16 bytes."""
        if writer.decimal != reader.decimal:
            return self._unfit(reader, writer, column, kind, place)
        count, u8 = len(column), self._bytes.u8
        at, length = column.at, column.length
        wrong = (length > DECIMAL_BYTES) | (length == 0)
        negative = u8[at] >= 0x80
        found = np.empty((count, DECIMAL_BYTES), np.uint8)
        for place_of in range(DECIMAL_BYTES):
            there = place_of < length
            byte = u8[np.where(there, at + length - 1 - place_of, at)]
            found[:, place_of] = np.where(there, byte, np.where(negative, 0xFF, 0))
        found[wrong] = 0
        array = pa.Array.from_buffers(kind, count, [None, pa.py_buffer(found.tobytes())])
        if wrong.any():
            self._faults.add(column.rows[wrong], place, "no decimal of 1 to 16 bytes")
        try:
            array.validate(full=True)
        except pa.ArrowInvalid:
            long = _too_long(array, kind)
            self._faults.add(column.rows[long], place, f"more digits than {kind} has")
            found[long] = 0
            return pa.Array.from_buffers(kind, count, [None, pa.py_buffer(found.tobytes())])
        return array


def _takes_null(reader: AvroType) -> bool:
    return reader.name == "null" or any(each.name == "null" for each in reader.branches)


def _too_long(array: Array, kind: pa.Decimal128Type) -> Flags:
    most = Decimal(10) ** (kind.precision - kind.scale)
    wide = array.view(pa.decimal128(38, kind.scale))
    return np.array([abs(each.as_py()) >= most for each in wide], np.bool_)


def _not_text(array: Array) -> Flags:
    wrong = np.zeros(len(array), np.bool_)
    for number, each in enumerate(array.cast(pa.binary())):
        try:
            (each.as_py() or b"").decode()
        except UnicodeDecodeError:
            wrong[number] = True
    return wrong


def _spread(parts: list[tuple[Ints, Array]], count: int, kind: pa.DataType) -> Array:
    """Arrays of some of the elements each, together; the elements of none are null."""
    if not parts:
        return pa.nulls(count, kind)
    if len(parts) == 1 and len(parts[0][1]) == count:
        return parts[0][1]
    places = np.full(count, ABSENT, np.int64)
    begin = 0
    for chosen, array in parts:
        places[chosen] = np.arange(begin, begin + len(array))
        begin += len(array)
    whole = parts[0][1] if len(parts) == 1 else pa.concat_arrays([each for _, each in parts])
    return whole.take(pa.array(places, mask=places == ABSENT))


def _order(rounds: Sequence[Round], count: int) -> tuple[Array, Ints | None]:
    """Where the items of each element begin, and the places of the items, which stand there
    round by round, in that order; None if they are in it."""
    offsets = np.zeros(count + 1, np.int32)
    if not rounds:
        return pa.array(offsets), None
    owners = np.concatenate([each.owners for each in rounds])
    np.cumsum(np.bincount(owners, minlength=count), out=offsets[1:])
    in_order = bool((owners[:-1] <= owners[1:]).all())
    return pa.array(offsets), None if in_order else np.argsort(owners, kind="stable")


def _ordered(arrays: list[Array], order: Ints | None, kind: pa.DataType) -> Array:
    if not arrays:
        return pa.array([], kind)
    whole = arrays[0] if len(arrays) == 1 else pa.concat_arrays(arrays)
    return whole if order is None else whole.take(pa.array(order))


def nulled(array: Array, bad: Flags) -> Array:
    """The array with nulls where values are bad."""
    return array.take(pa.array(np.arange(len(array)), mask=bad)) if bad.any() else array
