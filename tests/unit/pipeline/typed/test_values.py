"""JSON, types without a definition, key-value pairs: as columns, and back."""

from __future__ import annotations

import json
import struct
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.pandas.types import to_arrow_type

from magnetar.cluster.schemas.key_value import join
from magnetar.model.errors import ConfigError, InvalidSchemaError
from magnetar.model.schema import SchemaType, TopicSchema
from magnetar.pipeline.typed.blocks import block_of, spread
from magnetar.pipeline.typed.faults import Faults
from magnetar.pipeline.typed.json_values import JsonValues
from magnetar.pipeline.typed.plain_values import SIZES, encode_plain
from magnetar.pipeline.typed.spark_types import PLAIN
from magnetar.pipeline.typed.value_decoding import avro_of, decoder_of, value_type
from magnetar.pipeline.typed.writing import encode


def json_schema(*fields: Any) -> TopicSchema:
    node = {"type": "record", "name": "R", "fields": list(fields)}
    return TopicSchema(SchemaType.JSON, json.dumps(node).encode())


def field(name: str, kind: Any, **more: Any) -> dict[str, Any]:
    return {"name": name, "type": kind} | more


def arrow_of(schema: TopicSchema) -> pa.DataType:
    return to_arrow_type(value_type(schema), timezone="UTC")


def decoded(
    reader: TopicSchema, values: list[bytes | None], writer: TopicSchema | None = None
) -> tuple[list[Any], Faults]:
    block = block_of(pa.array(values, pa.binary()))
    found = decoder_of(reader, writer or reader, arrow_of(reader)).decode(block)
    found.validate(full=True)
    return spread(found, block.rows, len(values)).to_pylist(), block.faults


# -- JSON -------------------------------------------------------------------------------------

NESTED = {"type": "record", "name": "N", "fields": [field("x", ["null", "string"])]}
PLAIN_FIELDS = (
    field("i", ["null", "int"]),
    field("s", "string"),
    field("d", "double"),
    field("b", ["boolean", "null"]),
    field("a", {"type": "array", "items": "long"}),
    field("r", ["null", NESTED]),
)
ROWS = st.fixed_dictionaries(
    {
        "i": st.none() | st.integers(-(2**31), 2**31 - 1),
        "s": st.text(max_size=8),
        "d": st.floats(allow_nan=False, allow_infinity=False),
        "b": st.none() | st.booleans(),
        "a": st.lists(st.integers(-(2**63), 2**63 - 1), max_size=3),
        "r": st.none() | st.fixed_dictionaries({"x": st.none() | st.text(max_size=5)}),
    }
)


@given(st.lists(ROWS, min_size=1, max_size=5), st.integers(0, 2))
@settings(deadline=None)
def test_json_by_columns_and_one_by_one_is_the_same(rows: list[Any], indent: int) -> None:
    schema = json_schema(*PLAIN_FIELDS)
    text = [json.dumps(row, indent=indent or None).encode() for row in rows]
    kind = avro_of(schema)
    values = JsonValues(kind, kind, arrow_of(schema))
    block = block_of(pa.array(text, pa.binary()))
    assert values._by_columns(block, values._columns).to_pylist() == rows
    assert values._one_by_one(block).to_pylist() == rows
    encoded = encode(schema, pa.array(rows, arrow_of(schema))).to_pylist()
    assert [json.loads(each) for each in encoded] == rows


@pytest.mark.parametrize(
    "broken",
    [b"", b"{", b'{"s":1}{"s":2}', b"[1]", b"3", b'{"i":"x"}', b'{"i":1.5}', b'{"i":true}',
     b'{"i":4294967296}', b'{"a":{}}', b'{"a":[', b"\xff", b'{"s":"\xff"}', b'{"b":1}'],
)  # fmt: skip
def test_json_that_is_no_value_is_bad_and_takes_no_other_with_it(broken: bytes) -> None:
    schema = json_schema(*PLAIN_FIELDS)
    found, faults = decoded(schema, [b'{"s":"a"}', broken, b'{"s":"b"}', None])
    assert faults.bad.tolist() == [False, True, False, False]
    assert (found[0]["s"], found[2]["s"], found[3]) == ("a", "b", None)


def test_what_json_leaves_out() -> None:
    old = json_schema(field("s", "string"))
    new = json_schema(
        field("s", "string"), field("n", "int", default=7), field("m", ["null", "int"])
    )
    text: list[bytes | None] = [b'{"s":"a","other":[1]}', b'{"s":"b","n":1,"m":2}']
    assert decoded(new, text, old)[0] == [
        {"s": "a", "n": 7, "m": None},
        {"s": "b", "n": 1, "m": 2},
    ], "the writer knew of no n: by default"
    assert decoded(new, text)[0][0]["n"] is None, "it could have been written, and was null"


def test_defaults_of_bytes_are_text_in_json() -> None:
    """Those of more than ASCII were no text for Arrow, and each value without them was none."""
    nested = {"type": "record", "name": "N", "fields": [field("x", "bytes")]}
    new = json_schema(
        field("s", "string"),
        field("b", "bytes", default="\u00ff\u0001z"),
        field("m", {"type": "map", "values": "bytes"}, default={"k": "\u00fe"}),
        field("a", {"type": "array", "items": nested}, default=[{"x": "\u00e4"}]),
    )
    (row,), faults = decoded(new, [b'{"s":"a"}'], json_schema(field("s", "string")))
    assert faults.first() is None
    assert row == {"s": "a", "b": "\xff\x01z", "m": [("k", "\xfe")], "a": [{"x": "\xe4"}]}


def test_json_of_what_is_stored_otherwise() -> None:
    schema = json_schema(
        field("t", {"type": "long", "logicalType": "timestamp-millis"}),
        field("d", {"type": "int", "logicalType": "date"}),
        field("m", {"type": "bytes", "logicalType": "decimal", "precision": 6, "scale": 2}),
        field("p", {"type": "map", "values": "int"}),
        field("u", ["null", "int", "string"]),
        field("b", "bytes"),
        field("e", {"type": "enum", "name": "E", "symbols": ["A"]}),
    )
    text = b'{"t":1500,"d":3,"m":12.5,"p":{"k":1},"u":"x","b":"raw","e":"A"}'
    (row,), faults = decoded(schema, [text])
    assert faults.first() is None
    assert row == {
        "t": datetime(1970, 1, 1, 0, 0, 1, 500_000, tzinfo=UTC),
        "d": date(1970, 1, 4),
        "m": Decimal("12.50"),
        "p": [("k", 1)],
        "u": {"member0": None, "member1": "x"},
        "b": "raw",
        "e": "A",
    }


def test_decimals_of_json_are_what_was_written_or_no_values() -> None:
    """Those of more digits behind the point were rounded, those of more than 28 no decimals."""
    kind = {"type": "bytes", "logicalType": "decimal", "precision": 38, "scale": 2}
    schema = json_schema(field("m", kind))
    digits = "123456789012345678901234567890123456.78"
    found, faults = decoded(schema, [b'{"m":%s}' % digits.encode(), b'{"m":1.50}', b'{"m":1.2300}'])
    assert faults.first() is None
    assert [row["m"] for row in found] == [Decimal(digits), Decimal("1.50"), Decimal("1.23")]
    for text in ("1.239", "1e37", '"NaN"', "1e500"):
        _, faults = decoded(schema, [b'{"m":%s}' % text.encode()])
        assert faults.first() is not None, text
    _, faults = decoded(schema, [b'{"m":1.239}'])
    assert (faults.first() or ("", ""))[1].endswith("1.239 has more than 2 digits behind its point")


def test_whole_numbers_are_floats_however_large() -> None:
    """JavaScript writes 1e20 so. By columns they were, one by one (as in a block with a value that
    is none) they were no values, where no float is exactly the same."""
    schema = json_schema(field("d", "double"), field("f", "float"))
    text = [b'{"d":100000000000000000001,"f":16777217}', b'{"d":9007199254740993,"f":-3}']
    wanted = [{"d": 1e20, "f": 16777216.0}, {"d": 9007199254740992.0, "f": -3.0}]
    assert decoded(schema, [*text])[0] == wanted
    found, faults = decoded(schema, [*text, b"no JSON", b'{"d":%s}' % (b"9" * 400)])
    assert found[:2] == wanted
    assert faults.bad.tolist() == [False, False, True, True]
    timed = json_schema(
        field("t", {"type": "long", "logicalType": "timestamp-millis"}), field("d", "double")
    )
    assert decoded(timed, [b'{"t":1,"d":9007199254740993}'])[1].first() is None


def test_json_that_the_schema_has_not_is_not_written() -> None:
    schema = json_schema(field("s", "string"), field("d", ["null", "double"]))
    for row, why in (
        ({"s": None}, r"R\.s: a row has a null"),
        ({"s": "", "d": float("nan")}, "JSON"),
    ):
        with pytest.raises(ConfigError, match=why):
            encode(schema, pa.array([row], arrow_of(schema)))


# -- types without a definition ---------------------------------------------------------------

LOCAL = datetime(1970, 1, 2, 0, 0, 0, 5, UTC).replace(tzinfo=None)
BYTES_OF: list[tuple[SchemaType, bytes, Any]] = [
    (SchemaType.STRING, "ä".encode(), "ä"),
    (SchemaType.BOOLEAN, b"\x01", True),
    (SchemaType.INT8, b"\xff", -1),
    (SchemaType.INT16, b"\x01\x02", 258),
    (SchemaType.INT32, struct.pack(">i", -5), -5),
    (SchemaType.INT64, struct.pack(">q", 2**40), 2**40),
    (SchemaType.FLOAT, struct.pack(">f", 1.5), 1.5),
    (SchemaType.DOUBLE, struct.pack(">d", -2.25), -2.25),
    (SchemaType.TIMESTAMP, struct.pack(">q", 1500), datetime(1970, 1, 1, 0, 0, 1, 500_000, UTC)),
    (SchemaType.DATE, struct.pack(">q", -1000), datetime(1969, 12, 31, 23, 59, 59, 0, UTC)),
    (SchemaType.TIME, struct.pack(">q", 77), 77),
    (SchemaType.LOCAL_TIME, struct.pack(">q", 77), 77),
    (SchemaType.LOCAL_DATE, struct.pack(">q", 3), date(1970, 1, 4)),
    (SchemaType.LOCAL_DATE_TIME, struct.pack(">qq", 1, 5_000), LOCAL),
]


@pytest.mark.parametrize(("kind", "data", "value"), BYTES_OF)
def test_values_without_a_definition(kind: SchemaType, data: bytes, value: Any) -> None:
    schema = TopicSchema(kind, b"")
    found, faults = decoded(schema, [data, None, data])
    assert found == [value, None, value]
    assert faults.first() is None
    assert encode_plain(kind, pa.array(found, arrow_of(schema))).to_pylist() == [data, None, data]


@pytest.mark.parametrize("kind", sorted(PLAIN))
@pytest.mark.parametrize("values", [[], [None], [None, None]])
def test_tombstones_alone(kind: SchemaType, values: list[None]) -> None:
    """A batch of rows without values could not be written: numpy made no table of none."""
    schema = TopicSchema(kind, b"")
    assert encode(schema, pa.array(values, arrow_of(schema))).to_pylist() == values
    found, faults = decoded(schema, [*values])
    assert found == values
    assert faults.first() is None


def test_an_instant_has_nanoseconds() -> None:
    found, _ = decoded(TopicSchema(SchemaType.INSTANT, b""), [struct.pack(">qi", 1, 1999)])
    assert found == [datetime(1970, 1, 1, 0, 0, 1, 1, UTC)]


@pytest.mark.parametrize("kind", sorted(PLAIN))
def test_values_of_the_wrong_size_are_bad(kind: SchemaType) -> None:
    broken = b"\xff" if kind is SchemaType.STRING else b"\0" * (SIZES[kind] + 1)
    good = b"" if kind is SchemaType.STRING else b"\0" * SIZES[kind]
    _, faults = decoded(TopicSchema(kind, b""), [good, broken, b"\xff" * 2, good])
    assert faults.bad.tolist()[:2] == [False, True]
    assert not faults.bad[3]


# -- key-value pairs --------------------------------------------------------------------------


def pair(key: bytes | None, value: bytes | None) -> bytes:
    parts = [
        struct.pack(">i", -1) if each is None else struct.pack(">i", len(each)) + each
        for each in (key, value)
    ]
    return b"".join(parts)


def key_value(encoding: str = "INLINE") -> TopicSchema:
    properties = {
        "key.schema.type": "STRING", "value.schema.type": "INT32", "kv.encoding.type": encoding,
    }  # fmt: skip
    return TopicSchema(SchemaType.KEY_VALUE, join(b"", b""), properties)


def test_key_value_pairs() -> None:
    values = [pair(b"k", b"\0\0\0\1"), pair(None, b"\0\0\0\2"), pair(b"k", None), None]
    found, faults = decoded(key_value(), values)
    assert faults.first() is None
    assert found == [
        {"key": "k", "value": 1},
        {"key": None, "value": 2},
        {"key": "k", "value": None},
        None,
    ]
    broken = [values[0], b"", b"\0\0\0\x09k", pair(b"k", b"\0"), (values[0] or b"") + b"x"]
    assert decoded(key_value(), broken)[1].bad.tolist() == [False, True, True, True, True]


def test_what_has_no_columns_says_so() -> None:
    old_json = TopicSchema(SchemaType.JSON, b'{"type":"object","id":"x"}')
    for schema in (
        key_value("SEPARATED"),
        TopicSchema(SchemaType.PROTOBUF, b"{}"),
        TopicSchema(SchemaType.PROTOBUF_NATIVE, b""),
        old_json,
    ):
        with pytest.raises(InvalidSchemaError, match="valueFormat=bytes"):
            value_type(schema)
