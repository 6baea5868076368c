"""Two schemas in one, as clients pack them and as REST shows them."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.cluster.schemas.key_value import from_text, join, split, to_text
from magnetar.model.errors import InvalidSchemaError
from magnetar.model.schema import SchemaType, TopicSchema
from tests.unit.cluster.schemas.kit import avro, key_value, plain, record

STRING = plain(SchemaType.STRING)


def test_there_and_back() -> None:
    value = avro(record())
    parts = split(key_value(STRING, value, "SEPARATED"))
    assert (parts.key, parts.value, parts.encoding) == (STRING, value, "SEPARATED")


def test_properties_of_the_parts() -> None:
    more = {"key.schema.properties": '{"a": "b"}', "value.schema.properties": ""}
    parts = split(key_value(STRING, STRING, **more))
    assert (parts.key.properties, parts.value.properties) == ({"a": "b"}, {})


def test_types_that_are_not_said_are_bytes() -> None:
    parts = split(TopicSchema(SchemaType.KEY_VALUE, join(b"", b""), {"key.schema.type": "BYTES"}))
    assert {parts.key.kind, parts.value.kind} == {SchemaType.NONE}
    assert parts.encoding == "INLINE"


def test_a_part_that_is_not_there() -> None:
    data = (-1).to_bytes(4, "big", signed=True) * 2
    assert split(TopicSchema(SchemaType.KEY_VALUE, data)).value.data == b""


def test_as_rest_has_it() -> None:
    schema = key_value(plain(SchemaType.STRING, b"null"), avro(record()))
    text = to_text(schema)
    assert text == '{"key":"","value":{"type":"record","name":"R","fields":[]}}'
    again = TopicSchema(SchemaType.KEY_VALUE, from_text(text), schema.properties)
    assert to_text(again) == text


@pytest.mark.parametrize(
    ("data", "properties", "reason"),
    [
        (b"\0\0", {}, "ends within a length"),
        (b"\0\0\0\5ab", {}, "a part of 5 bytes that is not there"),
        (b"\xff\xff\xff\xfe" + bytes(4), {}, "a part of -2 bytes"),
        (bytes(9), {}, "1 bytes behind"),
        (bytes(8), {"key.schema.type": "KEY_VALUE"}, "whose key is of type 'KEY_VALUE'"),
        (bytes(8), {"value.schema.type": "X"}, "whose value is of type 'X'"),
        (bytes(8), {"key.schema.properties": "[]"}, "is no JSON object"),
        (bytes(8), {"key.schema.properties": "{"}, "not JSON"),
    ],
)
def test_what_is_none(data: bytes, properties: dict[str, str], reason: str) -> None:
    with pytest.raises(InvalidSchemaError, match=reason):
        split(TopicSchema(SchemaType.KEY_VALUE, data, properties))


@pytest.mark.parametrize("text", ["[]", '{"key": ""}', "", "7"])
def test_what_rest_does_not_take(text: str) -> None:
    with pytest.raises(InvalidSchemaError):
        from_text(text)


@given(st.binary(max_size=24))
def test_whatever_bytes_it_is_it_is_a_schema_or_refused(data: bytes) -> None:
    schema = TopicSchema(SchemaType.KEY_VALUE, data)
    with suppress(InvalidSchemaError):
        assert join(split(schema).key.data, split(schema).value.data) == data or b"\xff" in data
