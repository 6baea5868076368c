"""Whether a column's values can be written by a schema, and the schema of a column that has none.

| Spark | may be written as | without a schema |
|---|---|---|
| boolean, float, double | boolean; float; double | the same |
| tinyint, smallint, int | int, long | int |
| bigint | long | long |
| float | float, double | float |
| string | string, an enum | string |
| binary | bytes, fixed; not as JSON | bytes |
| date | int (date) | int (date) |
| timestamp, timestamp_ntz | long (timestamp-millis, -micros; local-...) | ...-micros |
| decimal | decimal of the same scale, as precise at least; not as JSON | decimal, as bytes |
| struct | record: by name; what the column lacks is as by default, or null | record |
| array, map(string, ...) | array, map | array, map |

Any of these in a union with null, which fields that may be null have without a schema. Whether a
value *is* null shows when it is written.

A column of one of ``PLAIN``'s types may be written by that schema.

Pure.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

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
    StructType,
    TimestampNTZType,
    TimestampType,
)

from magnetar.cluster.schemas.avro import AvroField, AvroType
from magnetar.model.errors import ConfigError
from magnetar.model.schema import SchemaType, TopicSchema
from magnetar.pipeline.typed.spark_types import PLAIN, choices, decimal_of, nullable
from magnetar.pipeline.typed.value_decoding import avro_of

RECORD_NAME: Final = "Value"

_WRITABLE: Final[Mapping[type[DataType], tuple[str, ...]]] = MappingProxyType(
    {
        BooleanType: ("boolean",),
        ByteType: ("int", "long"),
        ShortType: ("int", "long"),
        IntegerType: ("int", "long"),
        LongType: ("long",),
        FloatType: ("float", "double"),
        DoubleType: ("double",),
        StringType: ("string", "enum"),
        BinaryType: ("bytes", "fixed"),
    }
)
_LOGICAL: Final[Mapping[type[DataType], tuple[str, tuple[str, ...]]]] = MappingProxyType(
    {
        DateType: ("int", ("date",)),
        TimestampType: ("long", ("timestamp-micros", "timestamp-millis")),
        TimestampNTZType: ("long", ("local-timestamp-micros", "local-timestamp-millis")),
    }
)
PLAIN_WRITTEN: Final[Mapping[type[DataType], SchemaType]] = MappingProxyType(
    {
        StringType: SchemaType.STRING,
        BooleanType: SchemaType.BOOLEAN,
        ByteType: SchemaType.INT8,
        ShortType: SchemaType.INT16,
        IntegerType: SchemaType.INT32,
        LongType: SchemaType.INT64,
        FloatType: SchemaType.FLOAT,
        DoubleType: SchemaType.DOUBLE,
        TimestampType: SchemaType.TIMESTAMP,
        DateType: SchemaType.LOCAL_DATE,
        TimestampNTZType: SchemaType.LOCAL_DATE_TIME,
    }
)


def unfit(schema: TopicSchema, column: DataType) -> str | None:
    """Why values of the column cannot be written by the schema; None if they can."""
    if schema.kind in (SchemaType.AVRO, SchemaType.JSON):
        kind = avro_of(schema)
        return _unfit(kind, column, kind.full_name, schema.kind is SchemaType.JSON)
    if schema.kind in PLAIN_WRITTEN.values():
        if PLAIN[schema.kind] == column:
            return None
        return f"{column.simpleString()} is not written as {schema.kind.name}"
    return f"values of {schema.kind.name} are not written from columns"


def _unfit(kind: AvroType, column: DataType, place: str, as_json: bool) -> str | None:
    found = choices(kind)
    if len(found) != 1:
        return f"{place}: {kind} cannot be written from a column"
    kind, wrong = found[0], f"{place}: {column.simpleString()} is not written as {found[0]}"
    if isinstance(column, StructType) and kind.name == "record":
        return _unfit_fields(kind, column, place, as_json)
    if isinstance(column, ArrayType) and kind.name == "array" and kind.items is not None:
        return _unfit(kind.items, column.elementType, f"{place}[]", as_json)
    if isinstance(column, MapType) and kind.name == "map" and kind.items is not None:
        if not isinstance(column.keyType, StringType):
            return f"{place}: keys of a map are text"
        return _unfit(kind.items, column.valueType, f"{place}[]", as_json)
    if as_json and isinstance(column, (BinaryType, DecimalType)):
        return f"{place}: JSON has no exact form of {column.simpleString()}; cast it to string"
    if isinstance(column, DecimalType):
        decimal = decimal_of(kind)
        fits = decimal is not None and (
            decimal[1] == column.scale and column.precision <= decimal[0]
        )
        return None if fits else wrong
    if type(column) in _LOGICAL:
        name, logical = _LOGICAL[type(column)]
        return None if kind.name == name and kind.logical in logical else wrong
    if kind.name not in _WRITABLE.get(type(column), ()) or decimal_of(kind) is not None:
        return wrong
    return None


def _unfit_fields(kind: AvroType, column: StructType, place: str, as_json: bool) -> str | None:
    known = {each.name: each for each in kind.fields}
    for field in column.fields:
        if field.name not in known:
            return f"{place}: the topic's schema has no field {field.name!r}"
        at = f"{place}.{field.name}"
        reason = _unfit(known[field.name].kind, field.dataType, at, as_json)
        if reason is not None:
            return reason
    missing = [each for each in kind.fields if each.name not in column.names]
    return next(
        (f"{place}: field {each.name!r} is not written" for each in missing if _needed(each)), None
    )


def _needed(field: AvroField) -> bool:
    return not field.has_default and not nullable(field.kind)


# -- without a schema -------------------------------------------------------------------------


def schema_of(column: DataType, json_form: bool) -> TopicSchema:
    """The schema of a column's values, for a topic that has none. Raises ``ConfigError``."""
    kind = SchemaType.JSON if json_form else SchemaType.AVRO
    if isinstance(column, (StructType, ArrayType, MapType, DecimalType)):
        made = _Definitions(json_form).of(column, RECORD_NAME)
        return TopicSchema(kind, json.dumps(made).encode())
    plain = PLAIN_WRITTEN.get(type(column))
    if plain is None:
        raise ConfigError(
            f"column 'value' is {column.simpleString()}, which has no schema; write it with "
            "valueFormat=bytes"
        )
    return TopicSchema(plain, b"")


class _Definitions:
    """Of one schema, whose records all have names of their own: made of the columns' names, two of
    which may come to the same (``a.b_c`` and ``a_b.c``)."""

    def __init__(self, json_form: bool) -> None:
        self._json = json_form
        self._taken: set[str] = set()

    def of(self, column: DataType, name: str) -> Any:
        if isinstance(column, StructType):
            record = self._name(name)
            fields = [self._field(each, name) for each in column.fields]
            return {"type": "record", "name": record, "fields": fields}
        if isinstance(column, ArrayType):
            items = self.of(column.elementType, f"{name}_item")
            return {"type": "array", "items": ["null", items] if column.containsNull else items}
        if isinstance(column, MapType):
            if not isinstance(column.keyType, StringType):
                raise ConfigError(
                    f"{name}: keys of a map are text, not {column.keyType.simpleString()}"
                )
            values = self.of(column.valueType, f"{name}_value")
            maybe = ["null", values] if column.valueContainsNull else values
            return {"type": "map", "values": maybe}
        return self._leaf(column, name)

    def _leaf(self, column: DataType, name: str) -> Any:
        if self._json and isinstance(column, (BinaryType, DecimalType)):
            raise ConfigError(
                f"{name}: JSON has no exact form of {column.simpleString()}; cast it to string"
            )
        if isinstance(column, DecimalType):
            digits = {"precision": column.precision, "scale": column.scale}
            return {"type": "bytes", "logicalType": "decimal", **digits}
        if type(column) in _LOGICAL:
            stored, logical = _LOGICAL[type(column)]
            return {"type": stored, "logicalType": logical[0]}
        names = _WRITABLE.get(type(column))
        if names is None:
            raise ConfigError(
                f"{name}: {column.simpleString()} is not written by a schema; cast it"
            )
        return names[0]

    def _name(self, wanted: str) -> str:
        number, name = 1, wanted
        while name in self._taken:
            number += 1
            name = f"{wanted}_{number}"
        self._taken.add(name)
        return name

    def _field(self, field: Any, record: str) -> dict[str, Any]:
        kind = self.of(field.dataType, f"{record}_{field.name}")
        if not field.nullable:
            return {"name": field.name, "type": kind}
        return {"name": field.name, "type": ["null", kind], "default": None}
