"""Batches of a split with values as columns: versions, refusals, what is kept of bad values."""

from __future__ import annotations

import io
import json
import pickle
from collections.abc import Sequence
from typing import Any

import fastavro
import pyarrow as pa
import pytest

from magnetar.model.errors import ConfigError, ProtocolError, SchemaNotFoundError
from magnetar.model.schema import RegisteredSchema, SchemaType, TopicSchema
from magnetar.pipeline.schema import arrow_schema, check_read_schema, spark_schema
from magnetar.pipeline.typed.inference import ReaderSchema, carried, infer, with_values
from magnetar.pipeline.typed.options import ValueOptions
from magnetar.pipeline.typed.reading import NEEDED, TypedRead, TypedValues

TOPIC = "persistent://public/default/t"
Definition = dict[str, Any]


def definition(*fields: tuple[str, Any], **defaults: Any) -> Definition:
    made = [
        {"name": name, "type": kind} | ({"default": defaults[name]} if name in defaults else {})
        for name, kind in fields
    ]
    return {"type": "record", "name": "R", "fields": made}


def schema(found: Definition) -> TopicSchema:
    return TopicSchema(SchemaType.AVRO, json.dumps(found).encode())


FIRST = definition(("a", "int"))
SECOND = definition(("a", "long"), ("b", "string"), b="none")
THIRD = definition(("c", "int"))


def written(by: Definition, value: Any) -> bytes:
    into = io.BytesIO()
    fastavro.schemaless_writer(into, by, value)
    return into.getvalue()


def values(permissive: bool = False) -> TypedValues:
    def ask(version: int) -> TopicSchema:
        asked.append(version)
        known = {0: FIRST, 1: SECOND, 2: THIRD}
        if version not in known:
            raise SchemaNotFoundError(f"topic t has no schema of version {version}")
        return schema(known[version])

    asked: list[int] = []
    read = TypedRead(ReaderSchema(TOPIC, 1, schema(SECOND)), permissive, "pulsar://h:1", 1.0)
    found = TypedValues(pickle.loads(pickle.dumps(read)), TOPIC, ask)
    found.asked = asked  # type: ignore[attr-defined]
    return found


def batch(rows: Sequence[tuple[int | None, bytes | None]]) -> pa.RecordBatch:
    columns = arrow_schema(NEEDED)
    ids = [{"ledger_id": 5, "entry_id": n, "batch_index": 0} for n in range(len(rows))]
    arrays = [
        pa.array([value for _, value in rows], pa.binary()),
        pa.array(ids, columns.field("message_id").type),
        pa.array([version for version, _ in rows], pa.int64()),
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=columns)


def test_each_value_is_read_with_the_version_that_wrote_it() -> None:
    typed = values()
    rows = [
        (1, written(SECOND, {"a": 2**40, "b": "x"})),
        (0, written(FIRST, {"a": 7})),
        (0, None),
        (None, written(SECOND, {"a": 3, "b": "y"})),
        (1, written(SECOND, {"a": 4, "b": "z"})),
    ]
    for _ in range(2):
        found = typed.batch(batch(rows)).column("value").to_pylist()
        assert found == [
            {"a": 2**40, "b": "x"},
            {"a": 7, "b": "none"},
            None,
            {"a": 3, "b": "y"},
            {"a": 4, "b": "z"},
        ]
    assert sorted(typed.asked) == [0, 1], "each is asked for once"  # type: ignore[attr-defined]
    assert typed.batch(batch([])).num_rows == 0


@pytest.mark.parametrize(
    ("version", "value", "why"),
    [
        (1, b"\x02", "version 1 of the schema, .*R.b: the value ends within it"),
        (0, b"\x02\x02", "version 0 of the schema, .*bytes are left over"),
        (2, written(THIRD, {"c": 1}), "version 2 of the schema, .*R.a: not written"),
        (9, b"", "version 9 of the schema, .*no schema of version 9"),
        (None, b"", "no schema, .*R.a: the value ends within it"),
    ],
)
def test_a_value_that_cannot_be_read(version: int | None, value: bytes, why: str) -> None:
    good = (0, written(FIRST, {"a": 7}))
    rows = batch([good, (version, value), good])
    with pytest.raises(
        ProtocolError, match=rf"{TOPIC}: message 5:1:0: its value, written with {why}"
    ):
        values().batch(rows)
    found = values(permissive=True).batch(rows)
    assert found.column("value").to_pylist() == [{"a": 7, "b": "none"}, None, {"a": 7, "b": "none"}]
    assert found.column("_corrupt_record").to_pylist() == [None, value, None]


def by(reader: Definition, **versions: Definition) -> TypedValues:
    """Of a reader that is version 1, and the versions that the registry knows now."""

    def ask(version: int) -> TopicSchema:
        if f"v{version}" not in versions:
            raise SchemaNotFoundError(f"topic t has no schema of version {version}")
        return schema(versions[f"v{version}"])

    read = TypedRead(ReaderSchema(TOPIC, 1, schema(reader)), False, "pulsar://h:1", 1.0)
    return TypedValues(read, TOPIC, ask)


def test_a_topic_that_was_made_anew_begins_its_versions_anew() -> None:
    """A table has the columns of when it was made: what the number of its version means now is
    asked, or values of another schema would be read as if they were of this one."""
    reader = definition(("width", "int"), ("height", "int"))
    turned = definition(("height", "int"), ("width", "int"))
    value = written(turned, {"width": 1, "height": 2})
    (found,) = by(reader, v1=turned).batch(batch([(1, value)])).column("value").to_pylist()
    assert found == {"width": 1, "height": 2}


def test_values_of_a_schema_that_was_deleted_since_are_read() -> None:
    value = written(SECOND, {"a": 1, "b": "x"})
    (found,) = by(SECOND).batch(batch([(1, value)])).column("value").to_pylist()
    assert found == {"a": 1, "b": "x"}


@pytest.mark.parametrize(
    ("wrote", "reads"), [("millis", "micros"), ("micros", "millis"), ("micros", "micros")]
)
def test_a_time_that_was_written_in_another_unit_stays_the_same(wrote: str, reads: str) -> None:
    """Registries let it pass: both are longs."""

    def at(unit: str) -> Definition:
        return definition(("at", {"type": "long", "logicalType": f"timestamp-{unit}"}))

    raw = 1_790_000_000_123 * (1000 if wrote == "micros" else 1)
    stored = written(definition(("at", "long")), {"at": raw})
    found = by(at(reads), v0=at(wrote)).batch(batch([(0, stored)])).column("value")
    assert found.field(0).cast(pa.int64()).to_pylist() == [1_790_000_000_123_000]


def test_a_decimal_of_more_digits_than_its_type_is_no_value() -> None:
    price = {"type": "bytes", "logicalType": "decimal", "precision": 5, "scale": 2}
    plain = definition(("price", "bytes"))
    good, long = (written(plain, {"price": n.to_bytes(8, "big")}) for n in (99_999, 100_000))
    typed = by(definition(("price", price)), v0=definition(("price", price)))
    found = typed.batch(batch([(0, good)])).column("value").to_pylist()
    assert [str(each["price"]) for each in found] == ["999.99"]
    with pytest.raises(ProtocolError, match="price: more digits than decimal128"):
        typed.batch(batch([(0, good), (0, long)]))


# -- which schema -----------------------------------------------------------------------------


class FakeRegistry:
    def __init__(self, **known: TopicSchema) -> None:
        self._known = known

    def latest(self, topic: str) -> RegisteredSchema | None:
        found = self._known.get(topic)
        return None if found is None else RegisteredSchema(3, found, 0)


def inferred(format_: str, topics: Sequence[str], **known: TopicSchema) -> ReaderSchema | None:
    return infer(FakeRegistry(**known), topics, ValueOptions(format_))  # type: ignore[arg-type]


def test_which_schema_a_read_has() -> None:
    one, other = schema(FIRST), schema(SECOND)
    assert inferred("bytes", ["a"], a=one) is None
    assert inferred("auto", ["a"]) is None
    assert inferred("auto", ["a", "b"], a=one, b=one) == ReaderSchema("a", 3, one)
    for format_, topics, why in (
        ("schema", ["a", "c"], "topic c has no schema"),
        ("auto", ["a", "c"], "topic c has no schema"),
        ("schema", [], "has no schema"),
        ("schema", ["a", "b"], "make different columns"),
        ("json", ["a"], "the schema of a is AVRO"),
    ):
        with pytest.raises(ConfigError, match=why):
            inferred(format_, topics, a=one, b=other)


def test_values_without_a_version_are_read_by_the_schema_of_their_own_topic() -> None:
    """They were read by that of the first topic: where its columns are the same and its bytes are
    not, they were other values, or none."""
    millis, micros = (
        definition(("at", {"type": "long", "logicalType": f"timestamp-{unit}"}), ("n", kind))
        for unit, kind in (("millis", "int"), ("micros", ["null", "int"]))
    )
    found = inferred(
        "schema", ["a", "b", "c"], a=schema(millis), b=schema(micros), c=schema(millis)
    )
    assert found == ReaderSchema("a", 3, schema(millis), {"b": 3})
    found = ReaderSchema.from_text(found.to_text())
    read = TypedRead(found, False, "pulsar://h:1", 1.0)
    stored = written(micros, {"at": 1_790_000_000_123_456, "n": 7})
    of_b = TypedValues(read, "b", lambda version: {3: schema(micros)}[version])
    for version in (None, 3):
        values = of_b.batch(batch([(version, stored)])).column("value")
        assert values.field(0).cast(pa.int64()).to_pylist() == [1_790_000_000_123_456]
        assert values.field(1).to_pylist() == [7]
    of_c = TypedValues(read, "c", lambda version: schema(THIRD))
    stored = written(millis, {"at": 1_790_000_000_123, "n": 7})
    values = of_c.batch(batch([(None, stored)])).column("value")
    assert values.field(0).cast(pa.int64()).to_pylist() == [1_790_000_000_123_000]


def test_the_schema_goes_with_the_columns() -> None:
    reader = ReaderSchema(TOPIC, 1, schema(SECOND))
    columns = spark_schema(["key", "value"])
    permissive = ValueOptions("schema", permissive=True)
    found = with_values(columns, reader, permissive, chosen=False)
    assert found.names == ["key", "value", "_corrupt_record"]
    assert carried(type(found).fromJson(found.jsonValue())) == reader
    assert carried(columns) is None
    check_read_schema(found, value=reader.type)
    with pytest.raises(ConfigError, match="column 'value' is binary"):
        check_read_schema(found)
