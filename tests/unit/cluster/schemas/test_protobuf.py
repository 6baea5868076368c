"""Which protobuf messages can be read as which."""

from __future__ import annotations

import pytest
from google.protobuf.descriptor_pb2 import FieldDescriptorProto as Field

from magnetar.cluster.schemas.protobuf import ENCODINGS, parse_protobuf, unreadable
from magnetar.model.errors import InvalidSchemaError
from magnetar.model.schema import TopicSchema
from tests.unit.cluster.schemas.kit import OPTIONAL, REQUIRED, encoded, native

A = ("a", 1, Field.TYPE_INT32, OPTIONAL)


def reason(writer: TopicSchema, reader: TopicSchema) -> str | None:
    return unreadable(parse_protobuf(reader.data), parse_protobuf(writer.data))


def test_every_type_of_field_has_its_encoding() -> None:
    assert set(ENCODINGS) == set(Field.Type.values())


@pytest.mark.parametrize(
    ("writer", "reader"),
    [
        (native(A), native(A)),
        (native(A), native()),
        (native(), native(A)),
        (native(A), native(("renamed", 1, Field.TYPE_UINT64, OPTIONAL))),
        (native(A), native(A, ("b", 2, Field.TYPE_STRING, OPTIONAL))),
        (
            native(("s", 1, Field.TYPE_STRING, OPTIONAL)),
            native(("s", 1, Field.TYPE_BYTES, OPTIONAL)),
        ),
        (
            native(("m", 1, Field.TYPE_MESSAGE, OPTIONAL)),
            native(("m", 1, Field.TYPE_MESSAGE, OPTIONAL), ("b", 2, Field.TYPE_BOOL, OPTIONAL)),
        ),
    ],
    ids=["same", "a field less", "a field more", "renamed", "another", "string", "nested"],
)
def test_what_can_be_read(writer: TopicSchema, reader: TopicSchema) -> None:
    assert reason(writer, reader) is None


@pytest.mark.parametrize(
    ("writer", "reader", "wanted"),
    [
        (native(A), native(A, root="pack.N"), "the message pack.M cannot be read as pack.N"),
        (native(A), native(("a", 1, Field.TYPE_STRING, OPTIONAL)), "written as int32"),
        (native(A), native(("a", 1, Field.TYPE_SINT32, OPTIONAL)), "read as sint32"),
        (native(A), native(("a", 1, Field.TYPE_FLOAT, OPTIONAL)), "pack.M.a: number 1"),
        (
            native(("m", 1, Field.TYPE_MESSAGE, OPTIONAL)),
            native(("m", 1, Field.TYPE_STRING, OPTIONAL)),
            "written as message",
        ),
        (native(), native(("a", 1, Field.TYPE_INT32, REQUIRED)), "and not written"),
        (native(A), native(("a", 1, Field.TYPE_INT32, REQUIRED)), "not always written"),
        (
            native(("m", 1, Field.TYPE_MESSAGE, OPTIONAL), (*A[:1], 2, *A[2:])),
            native(("m", 1, Field.TYPE_MESSAGE, OPTIONAL), ("a", 2, Field.TYPE_DOUBLE, OPTIONAL)),
            "number 2",
        ),
    ],
)
def test_what_cannot_be_read_and_why(writer: TopicSchema, reader: TopicSchema, wanted: str) -> None:
    assert wanted in (reason(writer, reader) or "")


@pytest.mark.parametrize(
    ("node", "wanted"),
    [
        ([], "is a JSON object"),
        ({}, "does not declare the message None"),
        ({"fileDescriptorSet": "!"}, "cannot be read"),
        ({"fileDescriptorSet": "AAAA"}, "cannot be read"),
        ({"fileDescriptorSet": "", "rootMessageTypeName": "M"}, "does not declare the message 'M'"),
    ],
)
def test_what_is_no_schema(node: object, wanted: str) -> None:
    with pytest.raises(InvalidSchemaError, match=wanted):
        parse_protobuf(encoded(node))
