"""Each strategy against each kind of change, for producers and for consumers."""

from __future__ import annotations

import pytest
from google.protobuf.descriptor_pb2 import FieldDescriptorProto as Field

from magnetar.cluster.schemas import rules
from magnetar.model.errors import IncompatibleSchemaError, InvalidSchemaError
from magnetar.model.schema import (
    SCHEMA_BYTES_MAX,
    SCHEMA_PROPERTIES_BYTES_MAX,
    SchemaStrategy,
    SchemaType,
    TopicSchema,
)
from tests.unit.cluster.schemas.kit import (
    OPTIONAL,
    avro,
    field,
    key_value,
    native,
    plain,
    record,
    registered,
)

S = SchemaStrategy
BASE = record(field("a", "int"))
LESS = record()  # reads the base, and is not read by it
MORE = record(field("a", "int"), field("b", "int"))  # is read by the base, and does not read it
BOTH = record(field("a", "int"), field("b", "int", default=0))
NEITHER = record(field("a", "string"))
CHANGES = {"less": LESS, "more": MORE, "both": BOTH, "neither": NEITHER}
TAKEN = {
    S.ALWAYS_COMPATIBLE: {"less", "more", "both", "neither"},
    S.ALWAYS_INCOMPATIBLE: set(),
    S.BACKWARD: {"less", "both"},
    S.BACKWARD_TRANSITIVE: {"less", "both"},
    S.FORWARD: {"more", "both"},
    S.FORWARD_TRANSITIVE: {"more", "both"},
    S.FULL: {"both"},
    S.FULL_TRANSITIVE: {"both"},
}
READ_WITH = {"less", "both"}
STRING, INT = plain(SchemaType.STRING), plain(SchemaType.INT32)


def takes(new: TopicSchema, old: TopicSchema, strategy: SchemaStrategy, reader: bool) -> bool:
    check = rules.check_reader if reader else rules.check_next
    said = ""
    try:
        check(new, registered(old, 3), strategy)
    except IncompatibleSchemaError as error:
        said = str(error)
    assert not said or ("version 3" in said and strategy in said)
    return not said


@pytest.mark.parametrize("kind", [SchemaType.AVRO, SchemaType.JSON, SchemaType.PROTOBUF])
@pytest.mark.parametrize("strategy", S)
def test_what_may_follow(strategy: SchemaStrategy, kind: SchemaType) -> None:
    old = avro(BASE, kind)
    taken = {
        name for name, node in CHANGES.items() if takes(avro(node, kind), old, strategy, False)
    }
    assert taken == TAKEN[strategy]


@pytest.mark.parametrize("strategy", S)
def test_what_consumers_may_read_with(strategy: SchemaStrategy) -> None:
    taken = {
        name for name, node in CHANGES.items() if takes(avro(node), avro(BASE), strategy, True)
    }
    wanted = {S.ALWAYS_COMPATIBLE: set(CHANGES), S.ALWAYS_INCOMPATIBLE: set()}
    assert taken == wanted.get(strategy, READ_WITH)


def test_which_strategies_look_at_every_version() -> None:
    transitive = {each for each in S if each.endswith("TRANSITIVE")}
    assert {each for each in S if rules.needs_all(each)} == transitive
    wanted = transitive - {S.FORWARD_TRANSITIVE}
    assert {each for each in S if rules.reader_needs_all(each)} == wanted


@pytest.mark.parametrize("strategy", S)
@pytest.mark.parametrize("other", [INT, avro(BASE), key_value(STRING, STRING)])
def test_types_do_not_change(strategy: SchemaStrategy, other: TopicSchema) -> None:
    for ours, theirs in ((STRING, other), (other, STRING)):
        assert takes(ours, theirs, strategy, False) == (strategy is S.ALWAYS_COMPATIBLE)
        assert takes(ours, theirs, strategy, True) == (strategy is S.ALWAYS_COMPATIBLE)


def test_keys_and_values_are_held_against_each_other() -> None:
    old = key_value(STRING, avro(BASE))
    assert takes(key_value(STRING, avro(BOTH)), old, S.FULL, False)
    assert not takes(key_value(STRING, avro(NEITHER)), old, S.FULL, False)
    assert not takes(key_value(INT, avro(BASE)), old, S.FULL, False)
    assert not takes(key_value(STRING, avro(BASE), "SEPARATED"), old, S.FULL, True)


def test_native_protobuf() -> None:
    old = native(("a", 1, Field.TYPE_INT32, OPTIONAL))
    assert takes(native(), old, S.FULL_TRANSITIVE, False)
    assert not takes(native(("a", 1, Field.TYPE_STRING, OPTIONAL)), old, S.FORWARD, False)


def test_json_schemas_of_old_clients_go_by_their_id() -> None:
    def old_form(name: str) -> TopicSchema:
        return avro({"type": "object", "id": name, "properties": {}}, SchemaType.JSON)

    rules.check(old_form("urn:a"))
    assert takes(old_form("urn:a"), old_form("urn:a"), S.FULL, False)
    assert not takes(old_form("urn:a"), old_form("urn:b"), S.FULL, False)
    assert takes(avro(BASE, SchemaType.JSON), old_form("urn:a"), S.FULL, False)


def test_schemas_that_mean_the_same_are_one() -> None:
    assert rules.identity(STRING) == rules.identity(plain(SchemaType.STRING, b"null"))
    documented = avro({**BASE, "doc": "what it is for"})
    assert rules.identity(avro(BASE)) == rules.identity(documented)
    pairs = (key_value(STRING, avro(BASE)), key_value(STRING, documented))
    assert len({rules.identity(each) for each in pairs}) == 1


def test_schemas_that_do_not_are_not() -> None:
    different = [
        STRING,
        INT,
        avro(BASE),
        avro(BASE, SchemaType.JSON),
        avro(MORE),
        key_value(STRING, INT),
        key_value(INT, STRING),
        key_value(STRING, INT, "SEPARATED"),
        native(),
        native(root="pack.N"),
    ]
    assert len({rules.identity(each) for each in different}) == len(different)


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        (plain(SchemaType.NONE), "NONE is no schema"),
        (plain(SchemaType.AUTO_CONSUME), "AUTO_CONSUME is no schema"),
        (plain(SchemaType.AVRO, b"{}"), "invalid definition of a schema of type AVRO"),
        (plain(SchemaType.JSON, b"x"), "of type JSON: not JSON"),
        (plain(SchemaType.KEY_VALUE, b"x"), "of type KEY_VALUE"),
        (key_value(STRING, plain(SchemaType.AVRO, b"{}")), "of type AVRO"),
        (plain(SchemaType.PROTOBUF_NATIVE, b"{}"), "of type PROTOBUF_NATIVE"),
        (plain(SchemaType.EXTERNAL, bytes(SCHEMA_BYTES_MAX + 1)), "at most"),
        (
            TopicSchema(SchemaType.STRING, b"", {"a": "x" * SCHEMA_PROPERTIES_BYTES_MAX}),
            "properties of",
        ),
    ],
)
def test_what_is_no_schema(schema: TopicSchema, reason: str) -> None:
    with pytest.raises(InvalidSchemaError, match=reason):
        rules.check(schema)


@pytest.mark.parametrize("kind", [k for k in SchemaType if k not in rules.NO_SCHEMA])
def test_every_type_is_taken(kind: SchemaType) -> None:
    by_type = {
        SchemaType.KEY_VALUE: key_value(STRING, plain(SchemaType.NONE)),
        SchemaType.PROTOBUF_NATIVE: native(),
    }
    avro_based = {kind: avro(BASE, kind) for kind in rules.AVRO_BASED}
    schema = {**avro_based, **by_type}.get(kind, plain(kind))
    rules.check(schema)
    assert takes(schema, schema, S.FULL, True)
