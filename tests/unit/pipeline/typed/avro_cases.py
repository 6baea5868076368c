"""Avro schemas and values of them, for tests: what Hypothesis makes, and what must come out."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st
from pyspark.sql.pandas.types import to_arrow_type

from magnetar.cluster.schemas.avro import AvroType, parse_avro
from magnetar.pipeline.typed.spark_types import spark_type

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
Definition = Any

LEAVES: list[tuple[Definition, st.SearchStrategy[Any]]] = [
    ("boolean", st.booleans()),
    ("int", st.integers(-(2**31), 2**31 - 1)),
    ("long", st.integers(-(2**63), 2**63 - 1)),
    ("long", st.integers(-70, 70)),
    ("float", st.floats(width=32, allow_nan=False)),
    ("double", st.floats(allow_nan=False)),
    ("string", st.text(max_size=20)),
    ("bytes", st.binary(max_size=20)),
    ({"type": "int", "logicalType": "date"}, st.dates(date(1, 1, 1), date(9999, 12, 31))),
    (
        {"type": "long", "logicalType": "timestamp-millis"},
        st.integers(-(10**12), 10**13).map(lambda ms: EPOCH + timedelta(milliseconds=ms)),
    ),
    (
        {"type": "long", "logicalType": "timestamp-micros"},
        st.integers(-(10**15), 10**16).map(lambda us: EPOCH + timedelta(microseconds=us)),
    ),
    (
        {"type": "bytes", "logicalType": "decimal", "precision": 20, "scale": 4},
        st.integers(-(10**20) + 1, 10**20 - 1).map(lambda n: Decimal(n).scaleb(-4)),
    ),
]


@st.composite
def definitions(draw: st.DrawFn, depth: int = 3) -> tuple[Definition, st.SearchStrategy[Any]]:
    """A definition, and its values as fastavro has them."""
    names = [0]

    def name() -> str:
        names[0] += 1
        return f"n{names[0]}"

    def leaf() -> tuple[Definition, st.SearchStrategy[Any]]:
        which = draw(st.integers(0, len(LEAVES) + 2))
        if which == len(LEAVES):
            symbols = ["RED", "GREEN", "BLUE"]
            found = {"type": "enum", "name": name(), "symbols": symbols}
            return found, st.sampled_from(symbols)
        if which == len(LEAVES) + 1:
            size = draw(st.integers(1, 5))
            found = {"type": "fixed", "name": name(), "size": size}
            return found, st.binary(min_size=size, max_size=size)
        if which == len(LEAVES) + 2:
            found = {
                "type": "fixed", "name": name(), "size": 12,
                "logicalType": "decimal", "precision": 20, "scale": 2,
            }  # fmt: skip
            return found, st.integers(-(10**20) + 1, 10**20 - 1).map(
                lambda n: Decimal(n).scaleb(-2)
            )
        return LEAVES[which]

    def any_of(left: int) -> tuple[Definition, st.SearchStrategy[Any]]:
        how = draw(st.integers(0, 6 if left else 2))
        if how <= 2:
            return leaf()
        if how == 3:
            inner, values = any_of(left - 1)
            if isinstance(inner, list):
                return inner, values
            both = ["null", inner] if draw(st.booleans()) else [inner, "null"]
            return both, st.one_of(st.none(), values)
        inner, values = any_of(left - 1)
        if how == 4:
            return {"type": "array", "items": inner}, st.lists(values, max_size=4)
        if how == 5:
            found = {"type": "map", "values": inner}
            return found, st.dictionaries(st.text(max_size=5), values, max_size=3)
        return record(left - 1)

    def record(left: int) -> tuple[Definition, st.SearchStrategy[Any]]:
        parts = [any_of(left) for _ in range(draw(st.integers(1, 4)))]
        fields = [{"name": f"f{n}", "type": kind} for n, (kind, _) in enumerate(parts)]
        found = {"type": "record", "name": name(), "fields": fields}
        return found, st.fixed_dictionaries({f"f{n}": v for n, (_, v) in enumerate(parts)})

    return record(depth)


def kind_of(definition: Definition) -> AvroType:
    import json

    return parse_avro(json.dumps(definition).encode())


def arrow_type(kind: AvroType) -> pa.DataType:
    return to_arrow_type(spark_type(kind), timezone="UTC")


def as_arrow(value: Any) -> Any:
    """A value of fastavro's as ``to_pylist`` gives it."""
    if isinstance(value, dict):
        return {key: as_arrow(each) for key, each in value.items()}
    return [as_arrow(each) for each in value] if isinstance(value, list) else value


def plain(value: Any, kind: AvroType) -> Any:
    """A value of ``to_pylist`` as fastavro has it: maps are lists of pairs there."""
    if value is None:
        return None
    if kind.name == "union":
        return plain(value, next(each for each in kind.branches if each.name != "null"))
    if kind.name == "record":
        return {each.name: plain(value[each.name], each.kind) for each in kind.fields}
    if kind.items is None:
        return value
    if kind.name == "map":
        return {key: plain(each, kind.items) for key, each in value}
    return [plain(each, kind.items) for each in value]
