"""The table of Avro's resolution, and what random schemas and an independent reader say of it."""

from __future__ import annotations

import io
import json
from typing import Any

import fastavro
import pytest
from fastavro.schema import parse_schema
from hypothesis import given, settings
from hypothesis import strategies as st

from magnetar.cluster.schemas import resolution
from magnetar.cluster.schemas.avro import parse_avro
from magnetar.model.errors import InvalidSchemaError
from tests.unit.cluster.schemas.kit import encoded, field, record

PRIMITIVE = ("null", "boolean", "int", "long", "float", "double", "bytes", "string")
PROMOTED = {
    ("int", "long"), ("int", "float"), ("int", "double"), ("long", "float"), ("long", "double"),
    ("float", "double"), ("string", "bytes"), ("bytes", "string"),
}  # fmt: skip


def enum(*symbols: str, name: str = "E", **more: Any) -> dict[str, Any]:
    return {"type": "enum", "name": name, "symbols": list(symbols), **more}


def fixed(size: int, name: str = "F") -> dict[str, Any]:
    return {"type": "fixed", "name": name, "size": size}


def array(items: Any) -> dict[str, Any]:
    return {"type": "array", "items": items}


def decimal(precision: int, scale: int) -> dict[str, Any]:
    return {"type": "bytes", "logicalType": "decimal", "precision": precision, "scale": scale}


def reason(writer: Any, reader: Any) -> str | None:
    return resolution.unreadable(parse_avro(encoded(reader)), parse_avro(encoded(writer)))


@pytest.mark.parametrize("writer", PRIMITIVE)
@pytest.mark.parametrize("reader", PRIMITIVE)
def test_primitives(writer: str, reader: str) -> None:
    fits = writer == reader or (writer, reader) in PROMOTED
    assert (reason(writer, reader) is None) == fits
    assert (reason(array(writer), array(reader)) is None) == fits
    maps = [{"type": "map", "values": each} for each in (writer, reader)]
    assert (reason(*maps) is None) == fits
    assert (reason(record(field("a", writer)), record(field("a", reader))) is None) == fits


READABLE = {
    "a field less": (record(field("a", "int"), field("b", "int")), record(field("a", "int"))),
    "a field more, with a default": (record(), record(field("a", "int", default=1))),
    "fields in another order": (
        record(field("a", "int"), field("b", "string")),
        record(field("b", "string"), field("a", "int")),
    ),
    "a field renamed, with an alias": (
        record(field("a", "int")),
        record(field("b", "long", aliases=["x", "a"])),
    ),
    "a record by another name": (record(), record(name="S")),
    "into a union": ("int", ["null", "int"]),
    "into a union, promoted": ("int", ["null", "string", "double"]),
    "a union out of which all is read": (["int", "float"], "double"),
    "unions": (["null", "int"], ["string", "long", "null"]),
    "a record into a union": (record(name="n.R"), ["null", record()]),
    "an enum with more symbols": (enum("A"), enum("A", "B")),
    "an enum with fewer, and a default": (enum("A", "B"), enum("A", default="A")),
    "an enum of another namespace": (enum("A", name="n.E"), enum("A", name="m.E")),
    "fixed": (fixed(4), fixed(4)),
    "the same decimal": (decimal(4, 2), decimal(4, 2)),
    "a decimal as bytes": (decimal(4, 2), "bytes"),
    "nested": (
        array(record(field("a", ["null", "int"]))),
        array(record(field("a", ["null", "long"]))),
    ),
    "a list": (
        record(field("v", "int"), field("next", ["null", "R"])),
        record(field("v", "long"), field("next", ["null", "R"])),
    ),
}  # fmt: skip
UNREADABLE = {
    "a field more": (record(), record(field("a", "int")), "R.a: not written"),
    "a field of another type": (
        record(field("a", "string")),
        record(field("a", "int")),
        "R.a: string cannot be read as int",
    ),
    "out of a union": (["null", "int"], "int", "null cannot be read as int"),
    "into a union": ("string", ["null", "int"], "string cannot be read as any of [null, int]"),
    "an enum with fewer symbols": (enum("A", "B"), enum("A"), "B of enum E cannot be read"),
    "an enum of another name": (enum("A"), enum("A", name="G"), "enum E cannot be read as enum G"),
    "fixed of another size": (fixed(4), fixed(5), "of 4 bytes cannot be read as 5"),
    "fixed of another name": (fixed(4), fixed(4, "G"), "fixed F cannot be read as fixed G"),
    "another decimal": (decimal(4, 2), decimal(4, 3), "a decimal of precision and scale (4, 2)"),
    "within an array": (array("int"), array("string"), "[]: int cannot be read as string"),
    "the branch of its name": (
        record(field("a", "string")),
        ["null", record(field("a", "int"))],
        "R.a: string cannot be read as int",
    ),
    "the only record of a union": (
        record(field("a", "string"), name="S"),
        ["null", record(field("a", "int"))],
        ".a: string cannot be read as int",
    ),
    "a list of something else": (
        record(field("next", ["null", "R"]), field("v", "string")),
        record(field("next", ["null", "R"]), field("v", "int")),
        "R.v: string cannot be read as int",
    ),
}


@pytest.mark.parametrize("case", READABLE)
def test_what_can_be_read(case: str) -> None:
    assert reason(*READABLE[case]) is None


@pytest.mark.parametrize("case", UNREADABLE)
def test_what_cannot_be_read_and_why(case: str) -> None:
    writer, reader, wanted = UNREADABLE[case]
    assert wanted in (reason(writer, reader) or "")


def test_what_was_taken_to_fit_is_forgotten_when_it_does_not() -> None:
    """Within the union's first branch, ``B`` fits if ``A`` does; ``A`` does not, and so neither
    does ``B`` where it stands alone."""
    b = record(field("a", ["null", "A"]), name="B")
    writer = record(field("b", b), field("v", "string"), name="A")
    reader = record(field("b", b), field("v", "int"), name="A")
    assert "A.v" in (reason(writer, reader) or "")
    outer_w = record(field("x", writer), field("y", "B"), name="O")
    either = [reader, record(field("v", "string"), name="C")]
    outer_r = record(field("x", either), field("y", "B"), name="O")
    assert reason(outer_w, outer_r) is not None


def test_how_deep_types_may_name_each_other_is_bounded() -> None:
    """The reader's declarations are nothing that was written, so that the last comes first."""
    row: list[Any] = [record(field("v", "int"), name="R0")]
    row += [record(field("v", f"R{n}"), name=f"R{n + 1}") for n in range(2000)]
    writer = record(*(field(f"w{n}", each) for n, each in enumerate(row)), field("last", "R2000"))
    assert reason(writer, writer) is None, "in the order of declaration, each is known when named"
    declared = [field(f"r{n}", each, default=None) for n, each in enumerate(row)]
    with pytest.raises(InvalidSchemaError, match="too large to compare"):
        reason(writer, record(*declared, field("last", "R2000")))


def test_how_much_is_compared_is_bounded() -> None:
    """Each of the writer's branches is held against all of the reader's before one fits."""
    writer = [record(field("v", "int"), name=f"W{n}") for n in range(400)]
    reader = [record(field(f"f{n}", "int"), name=f"R{n}") for n in range(400)]
    reader.append(record(field("v", "int"), name="Fits"))
    assert reason(writer[:10], reader) is None
    with pytest.raises(InvalidSchemaError, match="too large to compare"):
        reason(writer, reader)


# -- random schemas ----------------------------------------------------------------------------

NAMES = st.sampled_from(["a", "b", "c", "d"])


def schemas(depth: int = 3) -> st.SearchStrategy[Any]:
    leaf = st.one_of(
        st.sampled_from(PRIMITIVE[1:]),
        st.builds(
            lambda symbols: enum(*sorted(symbols)),
            st.sets(st.sampled_from("ABC"), min_size=1),
        ),
    )
    if depth == 0:
        return leaf
    inner = schemas(depth - 1)
    return st.one_of(
        leaf,
        inner.map(array),
        inner.map(lambda each: each if isinstance(each, list) else ["null", each]),
        st.dictionaries(NAMES, inner, max_size=3).map(
            lambda fields: record(*(field(name, kind) for name, kind in fields.items()))
        ),
    )


def named_apart(node: Any, names: list[int] | None = None) -> Any:
    """Every declaration with a name of its own, in the order in which they come."""
    names = [0] if names is None else names
    if isinstance(node, list):
        return [named_apart(each, names) for each in node]
    if not isinstance(node, dict):
        return node
    made = dict(node)
    if made.get("type") == "record":
        names[0] += 1
        made["name"] = f"R{names[0]}"
        made["fields"] = [
            {**each, "type": named_apart(each["type"], names)} for each in made["fields"]
        ]
    elif made.get("type") == "enum":
        names[0] += 1
        made["name"] = f"n{names[0]}.E"
    elif "items" in made:
        made["items"] = named_apart(made["items"], names)
    return made


def value_of(node: Any, draw: st.DataObject) -> Any:
    if isinstance(node, list):
        return value_of(draw.draw(st.sampled_from(node)), draw)
    if isinstance(node, dict):
        if node["type"] == "record":
            return {each["name"]: value_of(each["type"], draw) for each in node["fields"]}
        if node["type"] == "enum":
            return draw.draw(st.sampled_from(node["symbols"]))
        return [value_of(node["items"], draw) for _ in range(draw.draw(st.integers(0, 2)))]
    kinds: dict[str, st.SearchStrategy[Any]] = {
        "null": st.none(),
        "boolean": st.booleans(),
        "int": st.integers(-(2**31), 2**31 - 1),
        "long": st.integers(-(2**63), 2**63 - 1),
        "float": st.floats(width=32, allow_nan=False),
        "double": st.floats(allow_nan=False),
        "bytes": st.binary(max_size=4).map(lambda data: data.hex().encode()),
        "string": st.text("xyz", max_size=4),
    }
    return draw.draw(kinds[node])


@given(schemas())
@settings(deadline=None)
def test_every_schema_reads_itself(node: Any) -> None:
    node = named_apart(node)
    assert reason(node, node) is None


@given(schemas(), schemas(), st.data())
@settings(deadline=None, max_examples=300)
def test_what_is_said_to_be_readable_is_read(
    written: Any, wanted: Any, draw: st.DataObject
) -> None:
    """fastavro reads whatever value it is, if our word is that it can be read."""
    writer, reader = named_apart(written), named_apart(wanted)
    if reason(writer, reader) is not None:
        return
    value, data = value_of(writer, draw), io.BytesIO()
    fastavro.schemaless_writer(data, parse_schema(json.loads(json.dumps(writer))), value)
    data.seek(0)
    fastavro.schemaless_reader(
        data, parse_schema(json.loads(json.dumps(writer))), parse_schema(reader)
    )


@given(st.dictionaries(NAMES, schemas(2), min_size=1), st.data())
@settings(deadline=None)
def test_fields_with_defaults_come_and_go_both_ways(
    fields: dict[str, Any], draw: st.DataObject
) -> None:
    ours = [field(name, kind, default=None) for name, kind in fields.items()]
    kept = draw.draw(st.lists(st.sampled_from(ours), unique_by=lambda each: str(each["name"])))
    before, after = named_apart(record(*ours)), named_apart(record(*kept))
    by_name = {each["name"]: each for each in before["fields"]}
    after["fields"] = [by_name[each["name"]] for each in after["fields"]]
    assert reason(before, after) is None
    assert reason(after, before) is None
