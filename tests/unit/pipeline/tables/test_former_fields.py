"""A column that the newest schema has dropped has what older values say."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import to_arrow_type

from magnetar.model.errors import SchemaNotFoundError
from magnetar.model.schema import SchemaType, TopicSchema
from magnetar.pipeline.tables.former_fields import FormerFields
from magnetar.pipeline.typed.inference import ReaderSchema
from magnetar.pipeline.typed.reading import TypedRead, TypedValues
from magnetar.pipeline.typed.writing import encode

TOPIC = "persistent://public/default/flights"


def schema(kind: SchemaType, *fields: dict[str, Any]) -> TopicSchema:
    node = {"type": "record", "name": "Flight", "fields": fields}
    return TopicSchema(kind, json.dumps(node).encode())


def field(name: str, kind: Any, **more: Any) -> dict[str, Any]:
    return {"name": name, "type": kind} | more


def optional(name: str, kind: Any) -> dict[str, Any]:
    return field(name, ["null", kind], default=None)


def record(*fields: dict[str, Any]) -> dict[str, Any]:
    return {"type": "record", "name": "Place", "fields": fields}


def versions_of(kind: SchemaType) -> list[TopicSchema]:
    """``gate`` and ``at.y`` go, ``day`` comes; then ``carrier`` has another name."""
    at = record(field("x", "int"), optional("y", "int"))
    only_x = record(field("x", "int"))
    day = optional("day", {"type": "int", "logicalType": "date"})
    renamed = field("airline", "string", aliases=["carrier"])
    return [
        schema(kind, field("carrier", "string"), optional("gate", "int"), optional("at", at)),
        schema(kind, field("carrier", "string"), optional("at", only_x), day),
        schema(kind, day, optional("at", only_x), renamed),
    ]


PLACE = pa.struct([("x", pa.int32()), ("y", pa.int32())])
TABLE = pa.struct(
    [
        ("carrier", pa.large_string()),
        ("gate", pa.int64()),
        ("at", PLACE),
        ("day", pa.date32()),
        ("airline", pa.large_string()),
    ]
)


class Case:
    def __init__(
        self,
        kind: SchemaType,
        reader: int,
        schemas: Sequence[TopicSchema] = (),
        table: pa.DataType = TABLE,
    ) -> None:
        self.schemas = schemas or versions_of(kind)
        self.table = table
        read = TypedRead(ReaderSchema(TOPIC, reader, self.schemas[reader]), True, "pulsar://x", 1.0)
        self.typed = TypedValues(read, TOPIC, self.version)
        self.former = FormerFields(table, read, TOPIC, self.version)

    def version(self, number: int) -> TopicSchema:
        if number >= len(self.schemas):
            raise SchemaNotFoundError(f"no version {number}")
        return self.schemas[number]

    def batch(self, rows: list[tuple[int | None, Any]], unversioned: int = 0) -> pa.RecordBatch:
        """Rows of (version, value); ``unversioned``: by which those without one are written."""
        return pa.RecordBatch.from_pydict(
            {
                "value": pa.array([self._data(unversioned, *row) for row in rows], pa.binary()),
                "schema_version": pa.array([version for version, _ in rows], pa.int64()),
                "message_id": pa.array([{"ledger_id": 1}] * len(rows)),
            }
        )

    def _data(self, unversioned: int, version: int | None, value: Any) -> bytes | None:
        if value is None or isinstance(value, bytes):
            return value
        by = self.schemas[unversioned if version is None else version]
        kind = to_arrow_type(ReaderSchema(TOPIC, 0, by).type, timezone="UTC")
        (data,) = encode(by, pa.array([value], kind)).to_pylist()
        assert isinstance(data, bytes)
        return data

    def filled(self, batch: pa.RecordBatch) -> list[Any]:
        found = self.former.filled(batch, self.typed.batch(batch).column("value"))
        found.validate(full=True)
        assert found.type == self.table
        values: list[Any] = found.to_pylist()
        return values


def row(**given: Any) -> dict[str, Any]:
    return dict.fromkeys(("carrier", "gate", "at", "day", "airline")) | given


@pytest.mark.parametrize("kind", [SchemaType.AVRO, SchemaType.JSON])
def test_what_an_older_value_says_is_in_the_column(kind: SchemaType) -> None:
    """It was null from the moment on that the newer schema was registered: in all values of ledgers
    that were not taken before, and of producers that went on with the older one."""
    case = Case(kind, 1)
    batch = case.batch(
        [
            (0, {"carrier": "A", "gate": 7, "at": {"x": 1, "y": 2}}),
            (1, {"carrier": "B", "at": {"x": 3}, "day": None}),
            (0, {"carrier": "C", "gate": None, "at": None}),
            (0, None),
            (None, {"carrier": "D", "at": {"x": 4}, "day": None}),
            (0, {"carrier": "E", "gate": 8, "at": {"x": 5, "y": None}}),
            (0, b"\xff"),
            (9, b"\x02A"),
        ],
        unversioned=1,
    )
    assert case.filled(batch) == [
        row(carrier="A", gate=7, at={"x": 1, "y": 2}),
        row(carrier="B", at={"x": 3, "y": None}),
        row(carrier="C"),
        None,
        row(carrier="D", at={"x": 4, "y": None}),
        row(carrier="E", gate=8, at={"x": 5, "y": None}),
        None,
        None,
    ]


def test_a_field_that_was_renamed_has_both_names() -> None:
    case = Case(SchemaType.AVRO, 2)
    batch = case.batch(
        [
            (0, {"carrier": "A", "gate": 7, "at": {"x": 1, "y": 2}}),
            (2, {"airline": "B", "at": None, "day": None}),
        ]
    )
    assert case.filled(batch) == [
        row(carrier="A", airline="A", gate=7, at={"x": 1, "y": 2}),
        row(airline="B"),
    ]


def with_items(kind: SchemaType, place: dict[str, Any]) -> TopicSchema:
    """Records of that kind in all that has items, one within the other too."""

    def named(name: str) -> dict[str, Any]:
        return place | {"name": name}

    leg = {"type": "record", "name": "Leg", "fields": [field("at", named("LegPlace"))]}
    array = {"type": "array", "items": named("Stop")}
    places = {"type": "map", "values": ["null", named("Named")]}
    legs = {"type": "array", "items": {"type": "map", "values": {"type": "array", "items": leg}}}
    return schema(kind, optional("stops", array), field("places", places), field("legs", legs))


def table_with_items(list_: Any, text: pa.DataType) -> pa.DataType:
    def items(kind: pa.DataType) -> pa.DataType:
        return list_(pa.field("element", kind))

    return pa.struct(
        [
            ("stops", items(PLACE)),
            ("places", pa.map_(text, PLACE)),
            ("legs", items(pa.map_(text, items(pa.struct([("at", PLACE)]))))),
        ]
    )


@pytest.mark.parametrize("kind", [SchemaType.AVRO, SchemaType.JSON])
@pytest.mark.parametrize(
    "table",
    [table_with_items(pa.large_list, pa.large_string()), table_with_items(pa.list_, pa.string())],
    ids=["large", "small"],
)
def test_records_in_arrays_and_maps_have_it_too(kind: SchemaType, table: pa.DataType) -> None:
    """What was dropped there was null in every value, also in those that have it."""
    both = record(field("x", "int"), optional("y", "int"))
    schemas = [with_items(kind, both), with_items(kind, record(field("x", "int")))]
    case = Case(kind, 1, schemas, table)
    one, two, three = ({"x": n, "y": n * 10} for n in (1, 2, 3))

    def value(**given: Any) -> dict[str, Any]:
        return {"stops": [], "places": [], "legs": []} | given

    older = [
        value(stops=[one, two], places=[("a", three), ("b", None)]),
        value(stops=None, legs=[[], [("k", [{"at": one}, {"at": three}]), ("l", [])], [("m", [])]]),
        value(),
        value(stops=[three], places=[("c", one)], legs=[[("n", [{"at": two}])]]),
    ]
    without = value(stops=[{"x": 7}], places=[("d", {"x": 8})], legs=[[("o", [{"at": {"x": 9}}])]])
    newer = value(
        stops=[{"x": 7, "y": None}],
        places=[("d", {"x": 8, "y": None})],
        legs=[[("o", [{"at": {"x": 9, "y": None}}])]],
    )
    rows: list[tuple[int | None, Any]] = [(0, older[0]), (1, without), (0, older[1]), (0, b"\xff")]
    rows += [(0, None), (0, older[2]), (0, older[3])]
    wanted = [older[0], newer, older[1], None, None, older[2], older[3]]
    assert case.filled(case.batch(rows)) == wanted
    for number in range(len(rows)):
        assert case.filled(case.batch(rows[number:])) == wanted[number:]


def test_nothing_is_read_twice_where_the_table_has_no_such_field() -> None:
    case = Case(SchemaType.AVRO, 1)
    has = to_arrow_type(ReaderSchema(TOPIC, 1, case.schemas[1]).type, timezone="UTC")
    for kind in (has, pa.large_string()):
        assert not FormerFields(kind, case.typed._read, TOPIC, case.version).needed
    assert case.former.needed
    assert case.former._by(1) is None
    assert case.former._by(0) is case.former._by(0) is not None
    assert case.filled(case.batch([])) == []
