"""Avro by columns, both ways, held against fastavro value by value."""

from __future__ import annotations

import io
from datetime import timedelta
from decimal import Decimal
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from magnetar.cluster.schemas.avro import AvroType
from magnetar.model.errors import ConfigError, InvalidSchemaError
from magnetar.pipeline.typed.avro_arrow import ArrowValues, nulled
from magnetar.pipeline.typed.avro_encoding import encode_avro
from magnetar.pipeline.typed.avro_walk import Walk
from magnetar.pipeline.typed.blocks import Block, block_of
from magnetar.pipeline.typed.spark_types import spark_type
from tests.unit.pipeline.typed.avro_cases import EPOCH, arrow_type, definitions, kind_of, plain


def written(definition: Any, values: list[Any]) -> list[bytes]:
    schema, found = fastavro.parse_schema(definition), []
    for value in values:
        into = io.BytesIO()
        fastavro.schemaless_writer(into, schema, value)
        found.append(into.getvalue())
    return found


def read(definition: Any, data: bytes, reader: Any = None) -> Any:
    return fastavro.schemaless_reader(io.BytesIO(data), definition, reader)


def decoded(reader: AvroType, writer: AvroType, values: list[bytes]) -> tuple[list[Any], Block]:
    array, block = decoded_array(reader, writer, values)
    return [plain(each, reader) for each in array.to_pylist()], block


def decoded_array(
    reader: AvroType, writer: AvroType, values: list[bytes]
) -> tuple[pa.Array, Block]:
    block = block_of(pa.array(values, pa.binary()))
    column = Walk(block.bytes, block.faults).values(writer, block.rows, block.at, block.stop)
    array = ArrowValues(block.bytes, block.faults).array(reader, writer, column, arrow_type(reader))
    array = nulled(array, block.faults.bad)
    array.validate(full=True)
    return array, block


@given(st.data())
@settings(deadline=None)
def test_what_fastavro_writes_is_read(data: st.DataObject) -> None:
    definition, strategy = data.draw(definitions())
    values = data.draw(st.lists(strategy, min_size=1, max_size=5))
    kind = kind_of(definition)
    found, block = decoded(kind, kind, written(definition, values))
    assert block.faults.first() is None
    assert found == values


@given(st.data())
@settings(deadline=None)
def test_what_is_written_fastavro_reads(data: st.DataObject) -> None:
    definition, strategy = data.draw(definitions())
    values = data.draw(st.lists(strategy, min_size=1, max_size=5))
    kind = kind_of(definition)
    rows = decoded_array(kind, kind, written(definition, values))[0]
    first = data.draw(st.integers(0, len(values)))
    for array, wanted in ((rows, values), (rows.slice(first), values[first:])):
        encoded = encode_avro(kind, array).to_pylist()
        assert [read(definition, each) for each in encoded] == wanted


@given(st.data())
@settings(deadline=None)
def test_broken_values_are_bad_and_take_no_other_with_them(data: st.DataObject) -> None:
    """Whatever bytes come: what is not marked is what fastavro reads, to the last byte."""
    definition, strategy = data.draw(definitions(depth=2))
    good = written(definition, data.draw(st.lists(strategy, min_size=1, max_size=3)))
    cut = data.draw(st.integers(0, len(good[0])))
    noise = data.draw(st.binary(max_size=30))
    broken = data.draw(st.sampled_from([good[0][:cut], good[0] + noise, noise, noise + good[0]]))
    at = data.draw(st.integers(0, len(good)))
    values = [*good[:at], broken, *good[at:]]
    kind = kind_of(definition)
    found, block = decoded(kind, kind, values)
    for row, value in enumerate(values):
        if row != at:
            assert not block.faults.bad[row]
            assert found[row] == read(definition, value)
        elif not block.faults.bad[row]:
            assert same(found[row], read(definition, value))
            assert cut_short(definition, value)


def same(one: Any, other: Any) -> bool:
    """Not a number is itself here."""
    return repr(one) == repr(other) or one == other


def cut_short(definition: Any, value: bytes) -> bool:
    """Whether a byte less is no value any more: all of it was read."""
    stream = io.BytesIO(value)
    fastavro.schemaless_reader(stream, definition, None)
    return stream.tell() == len(value)


# -- one schema read by another ---------------------------------------------------------------


def record(*fields: Any) -> dict[str, Any]:
    return {"type": "record", "name": "R", "fields": list(fields)}


def field(kind: Any, name: str = "f", **more: Any) -> dict[str, Any]:
    return {"name": name, "type": kind} | more


ENUM = {"type": "enum", "name": "E", "symbols": ["A", "B"]}
ENUM_MORE = {"type": "enum", "name": "E", "symbols": ["B", "C", "A"], "default": "C"}
ENUM_LESS = {"type": "enum", "name": "E", "symbols": ["B", "C"], "default": "C"}
MILLIS = {"type": "long", "logicalType": "timestamp-millis"}

RESOLVED: list[tuple[Any, Any, Any]] = [
    (record(field("int")), record(field("long")), {"f": 7}),
    (record(field("int")), record(field("double")), {"f": 7}),
    (record(field("long")), record(field("float")), {"f": 2**40}),
    (record(field("string")), record(field("bytes")), {"f": "ä"}),
    (record(field("bytes")), record(field("string")), {"f": b"abc"}),
    (record(field(["null", "int"])), record(field(["null", "long"])), {"f": None}),
    (record(field(["null", "int"])), record(field(["long", "null"])), {"f": 3}),
    (record(field("int")), record(field(["null", "long"])), {"f": 3}),
    (record(field(["null", "int"])), record(field("int")), {"f": 3}),
    (record(field("int")), record(field("int"), field("int", "g", default=5)), {"f": 3}),
    (record(field("int"), field("string", "g")), record(field("string", "g")), {"f": 3, "g": "x"}),
    (record(field("int", "old")), record(field("int", "new", aliases=["old"])), {"old": 3}),
    (record(field(ENUM)), record(field(ENUM_MORE)), {"f": "A"}),
    (record(field(ENUM)), record(field(ENUM_LESS)), {"f": "A"}),
    (
        record(field({"type": "array", "items": "int"})),
        record(field({"type": "array", "items": "long"})),
        {"f": [1, -2, 3]},
    ),
    (
        record(field({"type": "map", "values": record(field("int"))["fields"][0]["type"]})),
        record(field({"type": "map", "values": "double"})),
        {"f": {"a": 1, "b": 2}},
    ),
    (
        record(field("int")),
        record(field("int"), field(["null", "string"], "g", default=None)),
        {"f": 1},
    ),
    (
        record(field("int")),
        record(field("int"), field({"type": "array", "items": "int"}, "g", default=[1, 2])),
        {"f": 1},
    ),
]


@pytest.mark.parametrize(("writer", "reader", "value"), RESOLVED)
def test_a_value_is_read_as_the_readers_schema_has_it(writer: Any, reader: Any, value: Any) -> None:
    data = written(writer, [value, value])
    found, block = decoded(kind_of(reader), kind_of(writer), data)
    assert block.faults.first() is None
    assert found == [read(writer, data[0], reader)] * 2


LONG = Decimal(f"{2**120 - 1}e-2")
"""More digits than Python rounds to."""


def test_defaults_of_what_is_stored_otherwise() -> None:
    """fastavro gives these as they stand in the schema."""
    money = {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2}
    fields = [
        field(MILLIS, "g", default=1500),
        field("bytes", "h", default="\u00ff"),
        field(money, "i", default="\u0001\u0000"),
        field(money | {"precision": 38}, "j", default="\u0000" + "\u00ff" * 15),
    ]
    writer, reader = record(field("int")), record(field("int"), *fields)
    (row,), _ = decoded(kind_of(reader), kind_of(writer), written(writer, [{"f": 1}]))
    at = EPOCH + timedelta(milliseconds=1500)
    assert row == {"f": 1, "g": at, "h": b"\xff", "i": Decimal("2.56"), "j": LONG}


REFUSED: list[tuple[Any, Any, Any, str]] = [
    (
        record(field("string")),
        record(field("int")),
        {"f": "x"},
        "R.f: string cannot be read",
    ),
    (record(field(["null", "int"])), record(field("int")), {"f": None}, "R.f: null, which"),
    (
        record(field("int")),
        record(field("int", "g")),
        {"f": 1},
        "R.g: not written",
    ),
]


@pytest.mark.parametrize(("writer", "reader", "value", "why"), REFUSED)
def test_a_value_that_the_readers_schema_has_not_says_where(
    writer: Any, reader: Any, value: Any, why: str
) -> None:
    _, block = decoded(kind_of(reader), kind_of(writer), written(writer, [value]))
    row, reason = block.faults.first() or (-1, "")
    assert row == 0
    assert reason.startswith(why)


def test_other_values_of_a_version_that_does_not_fit_as_a_whole_are_read() -> None:
    writer, reader = record(field(["null", "int"])), record(field("int"))
    values = written(writer, [{"f": 1}, {"f": None}, {"f": 3}])
    found, block = decoded(kind_of(reader), kind_of(writer), values)
    assert block.faults.bad.tolist() == [False, True, False]
    assert (found[0], found[2]) == ({"f": 1}, {"f": 3})


def test_unions_of_several_types_are_structs_of_members() -> None:
    union = record(field(["null", "int", "string"]))
    values = [{"f": 3}, {"f": "x"}, {"f": None}]
    array, block = decoded_array(kind_of(union), kind_of(union), written(union, values))
    assert block.faults.first() is None
    assert array.to_pylist() == [
        {"f": {"member0": 3, "member1": None}},
        {"f": {"member0": None, "member1": "x"}},
        {"f": None},
    ]


def test_items_in_many_blocks() -> None:
    """As writers may that do not know how many come: sized blocks, and several."""
    definition = record(field({"type": "array", "items": "int"}), field("int", "g"))
    sized = b"\x03\x04\x02\x04" + b"\x02\x06" + b"\x00" + b"\x08"
    found, block = decoded(kind_of(definition), kind_of(definition), [sized, b"\x00\x02"])
    assert block.faults.first() is None
    assert found == [{"f": [1, 2, 3], "g": 4}, {"f": [], "g": 1}]


def test_more_items_than_bytes_are_not_believed() -> None:
    empty = {"type": "record", "name": "Empty", "fields": []}
    for inner in ("int", empty, "null", "double"):
        kind = kind_of(record(field({"type": "array", "items": inner})))
        block = block_of(pa.array([b"\xfe\xff\xff\xff\x0f"], pa.binary()))
        Walk(block.bytes, block.faults).values(kind, block.rows, block.at, block.stop)
        assert block.faults.bad.all()


@given(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1))
@settings(deadline=None)
def test_integers_of_all_sizes(values: list[int]) -> None:
    definition = record(field("long"))
    kind = kind_of(definition)
    rows = [{"f": value} for value in values]
    data = written(definition, rows)
    assert decoded(kind, kind, data)[0] == rows
    assert encode_avro(kind, pa.array(rows, arrow_type(kind))).to_pylist() == data


def test_rows_that_the_schema_has_not_are_refused() -> None:
    kind = kind_of(record(field("int"), field(ENUM, "g")))
    with pytest.raises(ConfigError, match=r"R\.f: a row has a null there"):
        encode_avro(kind, pa.array([{"f": None, "g": "A"}], arrow_type(kind)))
    with pytest.raises(ConfigError, match=r"R\.g: 'Z' is no symbol"):
        encode_avro(kind, pa.array([{"f": 1, "g": "Z"}], arrow_type(kind)))


def test_fields_that_rows_do_not_have_are_as_by_default() -> None:
    defaults: list[tuple[Any, Any]] = [
        ("int", -3), ("string", "ä"), (["null", "int"], None), (["int", "null"], 4),
        ("boolean", True), ("double", 1.5), (ENUM, "B"), ("bytes", "\u00ff"),
        ({"type": "array", "items": "int"}, [1, 2]), ({"type": "map", "values": "int"}, {"a": 1}),
        ({"type": "record", "name": "N", "fields": [field("int"), field("int", "g", default=2)]},
         {"f": 1}),
    ]  # fmt: skip
    fields = [field(kind, f"d{n}", default=value) for n, (kind, value) in enumerate(defaults)]
    whole, part = record(field("int"), *fields), record(field("int"))
    rows = pa.array([{"f": 9}], arrow_type(kind_of(part)))
    (data,) = encode_avro(kind_of(whole), rows).to_pylist()
    assert read(whole, data) == {
        "f": 9, "d0": -3, "d1": "ä", "d2": None, "d3": 4, "d4": True, "d5": 1.5, "d6": "B",
        "d7": b"\xff", "d8": [1, 2], "d9": {"a": 1}, "d10": {"f": 1, "g": 2},
    }  # fmt: skip


def test_a_record_that_contains_itself_is_no_column() -> None:
    tree = record(field({"type": "array", "items": "R"}))
    with pytest.raises(InvalidSchemaError, match=r"R\.f\[\]: record R contains itself"):
        spark_type(kind_of(tree))
