"""What is an Avro schema, and when two of them are one."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.cluster.schemas.avro import (
    DEPTH_MAX,
    JSON_LEVELS_MAX,
    canonical_json,
    parse_avro,
)
from magnetar.model.errors import InvalidSchemaError
from tests.unit.cluster.schemas.kit import encoded, field, record

ENUM = {"type": "enum", "name": "E", "symbols": ["A", "B"]}


def test_a_record_that_contains_itself() -> None:
    found = parse_avro(encoded(record(field("next", ["null", "R"]), namespace="n")))
    assert found.full_name == "n.R"
    assert found.fields[0].kind.branches[1] is found


def test_names_are_looked_up_in_the_namespace_of_their_record() -> None:
    inner = record(field("e", ENUM), name="Inner", namespace="other")
    found = parse_avro(encoded(record(field("i", inner), field("j", "other.E"), namespace="n")))
    assert found.fields[1].kind.full_name == "other.E"
    with pytest.raises(InvalidSchemaError, match=r"n\.R\.j: 'E' is not declared"):
        parse_avro(encoded(record(field("i", inner), field("j", "E"), namespace="n")))


def test_a_name_without_namespace_is_found_from_within_one() -> None:
    """The Python client declares types of records in a namespace without one of their own."""
    node = record(field("e", {**ENUM, "namespace": ""}), field("f", "E"), namespace="n")
    assert parse_avro(encoded(node)).fields[1].kind.full_name == "E"


def test_decimals_and_wrapped_types() -> None:
    decimal = {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2}
    wrapped = {"type": {"type": "array", "items": "int"}}
    found = parse_avro(encoded(record(field("d", decimal), field("w", wrapped))))
    assert found.fields[0].kind.decimal == (4, 2)
    assert found.fields[1].kind.name == "array"


@pytest.mark.parametrize(
    ("node", "reason"),
    [
        (7, "7 is no type"),
        ("Unknown", "'Unknown' is not declared"),
        ({}, "an object without 'type'"),
        ({"type": "array"}, "array without 'items'"),
        ({"type": "map"}, "map without 'values'"),
        ({"type": "record", "name": "R"}, "without a list of 'fields'"),
        ({"type": "record", "fields": []}, "a record without a name"),
        ({"type": "record", "name": "1", "fields": []}, "'1' is no name of a type"),
        ({"type": "record", "name": "R", "namespace": 5, "fields": []}, "without a name"),
        (record(field("a-b", "int")), "'a-b' is no name of a field"),
        (record({"name": "a"}), "a field needs 'name' and 'type'"),
        (record(field("a", "int"), field("a", "int")), "field a stands there twice"),
        (record(field("a", "nix")), r"R\.a: 'nix' is not declared"),
        (record(field("a", record(name="R"))), "R is declared twice"),
        ({"type": "enum", "name": "E"}, "enum without a list of 'symbols'"),
        ({"type": "enum", "name": "E", "symbols": ["A", "A"]}, "a symbol twice"),
        ({"type": "fixed", "name": "F", "size": -1}, "fixed with size -1"),
        ({"type": "fixed", "name": "F", "size": True}, "fixed with size True"),
        (["int", "int"], "a union with int twice"),
        (["int", ["null"]], "in a union"),
    ],
)
def test_what_is_no_schema(node: Any, reason: str) -> None:
    with pytest.raises(InvalidSchemaError, match=reason):
        parse_avro(encoded(node))


@pytest.mark.parametrize("data", [b"", b"{", b"\xff", b"nul"])
def test_what_is_no_json(data: bytes) -> None:
    with pytest.raises(InvalidSchemaError, match="not JSON"):
        parse_avro(data)


@pytest.mark.parametrize("depth", [DEPTH_MAX + 1, JSON_LEVELS_MAX + 1, 900, 100_000])
def test_nesting_is_bounded(depth: int) -> None:
    data = b'{"type":"array","items":' * depth + b'"int"' + b"}" * depth
    for check in (parse_avro, canonical_json):
        if check is canonical_json and depth <= JSON_LEVELS_MAX:
            continue  # types are counted where they are parsed
        with pytest.raises(InvalidSchemaError, match="nested deeper"):
            check(data)


def test_what_is_no_type_may_not_be_nested_deeper_than_any_server_can_go() -> None:
    """Defaults and attributes that nobody knows are kept as they are."""
    for depth, fits in ((JSON_LEVELS_MAX - 3, True), (JSON_LEVELS_MAX - 2, False)):
        default: Any = 1
        for _ in range(depth):
            default = [default]
        data = encoded(record(field("f", "int", default=default)))
        if fits:
            parse_avro(data)
            canonical_json(data)
        else:
            with pytest.raises(InvalidSchemaError, match="nested deeper"):
                parse_avro(data)


def test_records_in_records_reach_their_own_bound_first() -> None:
    node: Any = "int"
    for level in range(DEPTH_MAX):
        node = record(field("f", node), name=f"R{level}")
    data = encoded(node)
    parse_avro(data)
    canonical_json(data)


def test_one_form_for_every_spelling() -> None:
    ours = record(field("a", "int", default=1), field("b", ENUM))
    theirs = {
        "fields": [
            {"type": "int", "doc": "a number", "default": 1, "name": "a"},
            {"type": {**ENUM, "doc": "letters"}, "name": "b"},
        ],
        "doc": "what it is for",
        "name": "R",
        "type": "record",
    }
    assert canonical_json(encoded(ours)) == canonical_json(encoded(theirs).replace(b":", b" : "))


@pytest.mark.parametrize(
    "other",
    [
        record(field("b", ENUM), field("a", "int", default=1)),
        record(field("a", "int", default=2), field("b", ENUM)),
        record(field("a", "int", default=1, aliases=["z"]), field("b", ENUM)),
        record(field("a", "int", default=1), field("b", ENUM), name="S"),
    ],
    ids=["order", "default", "alias", "name"],
)
def test_what_a_reader_can_tell_apart_is_not_one(other: Any) -> None:
    ours = record(field("a", "int", default=1), field("b", ENUM))
    assert canonical_json(encoded(ours)) != canonical_json(encoded(other))


def test_a_default_that_is_called_doc_stays() -> None:
    inner = record(field("doc", "string"), name="I")
    ours, theirs = (record(field("a", inner, default={"doc": text})) for text in ("one", "another"))
    assert canonical_json(encoded(ours)) != canonical_json(encoded(theirs))


WORDS = st.sampled_from(
    ["type", "name", "fields", "items", "values", "symbols", "size", "record", "enum", "fixed",
     "array", "map", "int", "null", "bytes", "logicalType", "decimal", "precision", "namespace",
     "aliases", "default", "doc", "R", "."]
)  # fmt: skip
NODES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), WORDS, st.text(max_size=3)),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(WORDS, inner, max_size=5)),
    max_leaves=20,
)


@given(NODES)
def test_whatever_json_it_is_it_is_a_schema_or_refused(node: Any) -> None:
    with suppress(InvalidSchemaError):
        parse_avro(encoded(node))
    canonical_json(encoded(node))
