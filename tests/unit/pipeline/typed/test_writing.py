"""What is written by a schema: which columns fit, the schema of rows that bring none."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    ByteType,
    DataType,
    DayTimeIntervalType,
    DecimalType,
    DoubleType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from magnetar.cluster.schemas.avro import parse_avro
from magnetar.model.errors import ConfigError
from magnetar.model.schema import SchemaType, TopicSchema
from magnetar.pipeline.typed.fitting import schema_of, unfit
from magnetar.pipeline.typed.options import ValueOptions
from magnetar.pipeline.typed.spark_types import spark_type
from magnetar.pipeline.typed.value_decoding import avro_of, value_type
from magnetar.pipeline.typed.writing import value_column
from magnetar.pipeline.writing.sink import COLUMNS
from tests.unit.pipeline.typed.avro_cases import definitions

OTHERS = tuple(name for name in COLUMNS if name != "value")


def columns(text: str) -> StructType:
    """Of ``name type, ...``; Spark's own parser needs a JVM."""
    fields = []
    for part in parts(text):
        name, kind = part.replace(":", "", 1).split(" ", 1)
        needed = kind.endswith(" not null")
        fields.append(StructField(name, column(kind.removesuffix(" not null")), not needed))
    return StructType(fields)


def parts(text: str) -> list[str]:
    found, depth = [""], 0
    for letter in text:
        depth += (letter in "<(") - (letter in ">)")
        if letter == "," and depth == 0:
            found.append("")
        else:
            found[-1] += letter
    return [each.strip() for each in found]


def column(kind: str) -> DataType:
    name, _, inner = kind.partition("<")
    inner = inner.removesuffix(">")
    if name == "struct":
        return columns(inner)
    if name == "array":
        return ArrayType(column(inner))
    if name == "map":
        key, value = parts(inner)
        return MapType(column(key), column(value))
    if name.startswith("decimal"):
        precision, scale = name.removeprefix("decimal(").removesuffix(")").split(",")
        return DecimalType(int(precision), int(scale))
    return NAMES[name]()


NAMES: dict[str, type[DataType]] = {
    "tinyint": ByteType, "int": IntegerType, "bigint": LongType, "double": DoubleType,
    "string": StringType, "binary": BinaryType, "timestamp": TimestampType,
    "interval": DayTimeIntervalType,
}  # fmt: skip


def avro(*fields: Any, kind: SchemaType = SchemaType.AVRO) -> TopicSchema:
    node = {"type": "record", "name": "R", "fields": list(fields)}
    return TopicSchema(kind, json.dumps(node).encode())


def field(name: str, kind: Any, **more: Any) -> dict[str, Any]:
    return {"name": name, "type": kind} | more


@given(st.data())
@settings(deadline=None)
def test_columns_of_a_schema_can_be_written_by_it(data: st.DataObject) -> None:
    definition, _ = data.draw(definitions())
    schema = TopicSchema(SchemaType.AVRO, json.dumps(definition).encode())
    found = value_type(schema)
    assert unfit(schema, found) is None
    own = schema_of(found, json_form=False)
    assert unfit(own, found) is None
    assert spark_type(avro_of(own)) == found, "and read as what they were"
    parse_avro(own.data)


TIME = {"type": "long", "logicalType": "timestamp-millis"}
MONEY = {"type": "bytes", "logicalType": "decimal", "precision": 8, "scale": 2}


@pytest.mark.parametrize(
    ("text", "fields", "why"),
    [
        ("a tinyint", [field("a", "long")], None),
        ("a timestamp", [field("a", ["null", TIME])], None),
        ("a decimal(6,2)", [field("a", MONEY)], None),
        ("a int", [field("a", "int"), field("b", "string", default="")], None),
        ("a int", [field("a", "int"), field("b", ["null", "string"])], None),
        ("a map<string,array<int>>",
         [field("a", {"type": "map", "values": {"type": "array", "items": "int"}})], None),
        ("a bigint", [field("a", "int")], "R.a: bigint is not written as int"),
        ("a decimal(6,3)", [field("a", MONEY)], "R.a: decimal(6,3) is not written as bytes"),
        ("a binary", [field("a", MONEY)], "R.a: binary is not written as bytes"),
        ("a bigint", [field("a", TIME)], None),
        ("a int", [field("a", ["int", "string"])], "cannot be written from a column"),
        ("a int", [field("b", "int")], "R: the topic's schema has no field 'a'"),
        ("a int", [field("a", "int"), field("b", "int")], "R: field 'b' is not written"),
        ("a map<int,int>", [field("a", {"type": "map", "values": "int"})], "keys of a map"),
        ("a array<int>", [field("a", {"type": "map", "values": "int"})], "is not written as map"),
    ],
)  # fmt: skip
def test_which_columns_fit(text: str, fields: list[Any], why: str | None) -> None:
    found = unfit(avro(*fields), columns(text))
    assert found == why if why is None else why in (found or "")


def test_json_has_no_bytes_and_no_decimals() -> None:
    for text in ("a binary", "a decimal(4,2)"):
        for kind in ("bytes", MONEY):
            reason = unfit(avro(field("a", kind), kind=SchemaType.JSON), columns(text))
            assert "JSON has no exact form" in (reason or "")
        with pytest.raises(ConfigError, match="JSON has no exact form"):
            schema_of(columns(text), json_form=True)


def test_the_schema_of_rows_that_bring_none() -> None:
    text = "a int not null, b struct<c: array<double>>, t timestamp"
    node = json.loads(schema_of(columns(text), json_form=False).data)
    assert node["name"] == "Value"
    assert node["fields"][0] == {"name": "a", "type": "int"}
    assert node["fields"][1]["default"] is None, "it may be null, and need not be there"
    nested = node["fields"][1]["type"][1]
    assert nested["name"] == "Value_b"
    assert nested["fields"][0]["type"][1] == {"type": "array", "items": ["null", "double"]}
    assert schema_of(columns("a string")["a"].dataType, json_form=False).kind is SchemaType.STRING
    with pytest.raises(ConfigError, match="has no schema"):
        schema_of(columns("a binary")["a"].dataType, json_form=False)
    with pytest.raises(ConfigError, match="is not written by a schema"):
        schema_of(columns("a interval"), json_form=False)


def test_records_of_rows_have_names_of_their_own() -> None:
    """Two of one name are no schema: such rows were refused by every registry."""
    found = columns(
        "a_b struct<x: int>, a struct<b: struct<y: string>>, c array<struct<z: int>>, "
        "c_item struct<w: map<string,struct<v: int>>>, c_item_w_value struct<u: int>"
    )
    own = schema_of(found, json_form=False)
    assert spark_type(avro_of(own)) == found
    assert unfit(own, found) is None
    assert own == schema_of(found, json_form=False)


def test_which_columns_make_a_value() -> None:
    def of(text: str, format_: str) -> tuple[str, tuple[str, ...]] | None:
        found = value_column(columns(text), OTHERS, ValueOptions(format_))
        return None if found is None else (found[0].simpleString(), found[1])

    struct = "key string, value struct<a: int>"
    assert of(struct, "auto") == of(struct, "avro") == ("struct<a:int>", ())
    assert of(struct, "bytes") is None
    assert of("value string", "auto") is of("value binary", "auto") is None
    assert of("value string", "schema") == ("string", ())
    assert of("key string, a int, b string", "schema") == ("struct<a:int,b:string>", ("a", "b"))
    assert of("key string, a int", "auto") is None
    with pytest.raises(ConfigError, match="rows have no value"):
        of("key string", "schema")
