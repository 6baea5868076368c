"""Which Spark type the values of a schema have.

| Avro | Spark |
|---|---|
| boolean, int, long, float, double, string, bytes | boolean, int, bigint, float, double, string, binary |
| fixed, enum | binary, string |
| record, array, map | struct, array, map(string, ...) |
| [null, T] | T |
| other unions | struct(member0, member1, ...): the one that it is, the others null |
| date; timestamp-millis, -micros; local-timestamp-millis, -micros | date; timestamp; timestamp_ntz |
| decimal (up to 38 digits) | decimal |

Other logical types are what they are stored as. Every column may be null: a tombstone has no value,
nor has a record that cannot be read. JSON's values are the same, but for what JSON writes as text
(bytes, fixed): string. Types without a definition are in ``PLAIN``.

Pure. Raises ``InvalidSchemaError`` for what is no column: a record that contains itself, a type that
is null alone.
"""  # noqa: E501

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from magnetar.cluster.schemas.avro import AvroType
from magnetar.model.errors import InvalidSchemaError
from magnetar.model.schema import SchemaType

DECIMAL_DIGITS_MAX: Final = 38

PLAIN: Final[Mapping[SchemaType, DataType]] = MappingProxyType(
    {
        SchemaType.STRING: StringType(),
        SchemaType.BOOLEAN: BooleanType(),
        SchemaType.INT8: ByteType(),
        SchemaType.INT16: ShortType(),
        SchemaType.INT32: IntegerType(),
        SchemaType.INT64: LongType(),
        SchemaType.FLOAT: FloatType(),
        SchemaType.DOUBLE: DoubleType(),
        SchemaType.DATE: TimestampType(),
        SchemaType.TIME: LongType(),
        SchemaType.TIMESTAMP: TimestampType(),
        SchemaType.INSTANT: TimestampType(),
        SchemaType.LOCAL_DATE: DateType(),
        SchemaType.LOCAL_TIME: LongType(),
        SchemaType.LOCAL_DATE_TIME: TimestampNTZType(),
    }
)
"""Java's ``Date`` is an instant, so a timestamp; its ``Time`` stays milliseconds, ``LocalTime``
nanoseconds of the day."""

TIMES: Final[Mapping[tuple[str, str], DataType]] = MappingProxyType(
    {
        ("int", "date"): DateType(),
        ("long", "timestamp-millis"): TimestampType(),
        ("long", "timestamp-micros"): TimestampType(),
        ("long", "local-timestamp-millis"): TimestampNTZType(),
        ("long", "local-timestamp-micros"): TimestampNTZType(),
    }
)
_OF_NAME: Final[Mapping[str, DataType]] = MappingProxyType(
    {
        "boolean": BooleanType(),
        "int": IntegerType(),
        "long": LongType(),
        "float": FloatType(),
        "double": DoubleType(),
        "string": StringType(),
        "bytes": BinaryType(),
        "fixed": BinaryType(),
        "enum": StringType(),
    }
)


def spark_type(kind: AvroType, *, json: bool = False) -> DataType:
    """Of values of an Avro type; ``json``: written as JSON."""
    return _Types(json).of(kind, kind.full_name, ())


def nullable(kind: AvroType) -> bool:
    """Whether a value may be null."""
    return kind.name == "null" or any(each.name == "null" for each in kind.branches)


def choices(kind: AvroType) -> tuple[AvroType, ...]:
    """What a value may be if it is not null."""
    if kind.name != "union":
        return (kind,)
    return tuple(each for each in kind.branches if each.name != "null")


def decimal_of(kind: AvroType) -> tuple[int, int] | None:
    """Precision and scale of what is a decimal column."""
    if kind.decimal is None:
        return None
    precision, scale = kind.decimal
    return kind.decimal if 0 < precision <= DECIMAL_DIGITS_MAX and 0 <= scale <= precision else None


def unit_of(reader: AvroType, writer: AvroType | None) -> str:
    """The logical type that says in which unit a time was written: the writer's, if it is one."""
    if writer is not None and ("long", writer.logical) in TIMES:
        return writer.logical
    return reader.logical


class _Types:
    def __init__(self, json: bool) -> None:
        self._json = json

    def of(self, kind: AvroType, place: str, within: tuple[AvroType, ...]) -> DataType:
        if any(kind is each for each in within):
            raise InvalidSchemaError(
                f"{place}: {kind} contains itself, which no column of Spark does; read it with "
                "valueFormat=bytes"
            )
        if kind.name == "union":
            return self._union(kind, place, within)
        if kind.name == "record":
            return self._struct(kind, place, (*within, kind))
        if kind.items is not None:
            items = self.of(kind.items, f"{place}[]", within)
            return ArrayType(items) if kind.name == "array" else MapType(StringType(), items)
        if kind.name == "null":
            raise InvalidSchemaError(
                f"{place}: a type that is null alone is no column; read it with valueFormat=bytes"
            )
        return self._leaf(kind)

    def _leaf(self, kind: AvroType) -> DataType:
        decimal = decimal_of(kind)
        if decimal is not None:
            return DecimalType(*decimal)
        if self._json and kind.name in ("bytes", "fixed"):
            return StringType()
        return TIMES.get((kind.name, kind.logical), _OF_NAME[kind.name])

    def _union(self, kind: AvroType, place: str, within: tuple[AvroType, ...]) -> DataType:
        found = choices(kind)
        if len(found) == 1:
            return self.of(found[0], place, within)
        if not found:
            return self.of(AvroType("null"), place, within)
        return StructType(
            [
                StructField(f"member{number}", self.of(each, f"{place}|{number}", within))
                for number, each in enumerate(found)
            ]
        )

    def _struct(self, kind: AvroType, place: str, within: tuple[AvroType, ...]) -> DataType:
        if not kind.fields:
            raise InvalidSchemaError(
                f"{place}: {kind} has no fields, and is no column; read it with valueFormat=bytes"
            )
        return StructType(
            [
                StructField(each.name, self.of(each.kind, f"{place}.{each.name}", within))
                for each in kind.fields
            ]
        )
