"""Schemas of type PROTOBUF_NATIVE: a message and the files that declare it.

The definition is JSON: ``fileDescriptorSet`` (base64 of a ``FileDescriptorSet``),
``rootMessageTypeName``, ``rootFileDescriptorName``.

What can be read with what, field by field, by number:

* The message's name stays.
* A field keeps how it is encoded (varint, eight bytes, four bytes, length-delimited, group), and
  one of a message's type keeps to messages: fields within it are held against each other.
* The reader needs what it says is required.

Unknown and missing fields are read as such, so everything else may change.

Pure. Raises ``InvalidSchemaError``.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
    FileDescriptorSet,
)
from google.protobuf.message import DecodeError

from magnetar.cluster.schemas.avro import load_json
from magnetar.model.errors import InvalidSchemaError

DEPTH_MAX: Final = 100

_Field = FieldDescriptorProto
VARINT, FIXED64, BYTES, GROUP, FIXED32 = "a varint", "8 bytes", "bytes", "a group", "4 bytes"
ENCODINGS: Final[Mapping[int, str]] = {
    _Field.TYPE_DOUBLE: FIXED64,
    _Field.TYPE_FLOAT: FIXED32,
    _Field.TYPE_INT64: VARINT,
    _Field.TYPE_UINT64: VARINT,
    _Field.TYPE_INT32: VARINT,
    _Field.TYPE_FIXED64: FIXED64,
    _Field.TYPE_FIXED32: FIXED32,
    _Field.TYPE_BOOL: VARINT,
    _Field.TYPE_STRING: BYTES,
    _Field.TYPE_GROUP: GROUP,
    _Field.TYPE_MESSAGE: BYTES,
    _Field.TYPE_BYTES: BYTES,
    _Field.TYPE_UINT32: VARINT,
    _Field.TYPE_ENUM: VARINT,
    _Field.TYPE_SFIXED32: FIXED32,
    _Field.TYPE_SFIXED64: FIXED64,
    _Field.TYPE_SINT32: "a zigzag varint",
    _Field.TYPE_SINT64: "a zigzag varint",
}


class ProtobufSchema(NamedTuple):
    root: str
    messages: Mapping[str, DescriptorProto]
    """By full name, without the leading dot."""


def parse_protobuf(data: bytes) -> ProtobufSchema:
    """Raises ``InvalidSchemaError``."""
    node = load_json(data)
    if not isinstance(node, dict):
        raise InvalidSchemaError("a native protobuf schema is a JSON object")
    root = node.get("rootMessageTypeName")
    try:
        encoded = base64.b64decode(str(node.get("fileDescriptorSet") or ""), validate=True)
        files = FileDescriptorSet.FromString(encoded)
    except (binascii.Error, DecodeError, ValueError) as error:
        raise InvalidSchemaError(f"fileDescriptorSet cannot be read: {error}") from error
    messages = {name: each for file in files.file for name, each in _messages_of(file)}
    if not isinstance(root, str) or root not in messages:
        raise InvalidSchemaError(f"fileDescriptorSet does not declare the message {root!r}")
    return ProtobufSchema(root, messages)


def _messages_of(file: FileDescriptorProto) -> Iterator[tuple[str, DescriptorProto]]:
    todo = [(f"{file.package}." if file.package else "", each) for each in file.message_type]
    while todo:
        above, message = todo.pop()
        name = above + message.name
        yield name, message
        todo += [(f"{name}.", each) for each in message.nested_type]


def unreadable(reader: ProtobufSchema, writer: ProtobufSchema) -> str | None:
    """Why what ``writer`` wrote cannot be read with ``reader``; None if it can."""
    if reader.root != writer.root:
        return f"the message {writer.root} cannot be read as {reader.root}"
    return _Comparison(reader, writer).reason(reader.root, writer.root, reader.root, 0)


class _Comparison:
    def __init__(self, reader: ProtobufSchema, writer: ProtobufSchema) -> None:
        self._reader = reader.messages
        self._writer = writer.messages
        self._seen: set[tuple[str, str]] = set()

    def reason(self, reader: str, writer: str, place: str, depth: int) -> str | None:
        if (reader, writer) in self._seen:
            return None
        if depth > DEPTH_MAX:
            raise InvalidSchemaError(f"{place[:200]}: nested deeper than {DEPTH_MAX} levels")
        self._seen.add((reader, writer))
        wanted, found = self._reader.get(reader), self._writer.get(writer)
        if wanted is None or found is None:
            return None  # of a file that is not in the set: nothing is known to differ
        written = {each.number: each for each in found.field}
        for each in wanted.field:
            other = written.get(each.number)
            if other is None:
                if each.label == _Field.LABEL_REQUIRED:
                    return f"{place}.{each.name}: required by the reader, and not written"
                continue
            reason = self._field(each, other, f"{place}.{each.name}", depth)
            if reason is not None:
                return reason
        return None

    def _field(self, reader: _Field, writer: _Field, place: str, depth: int) -> str | None:
        required = _Field.LABEL_REQUIRED
        if reader.label == required != writer.label:
            return f"{place}: required by the reader, and not always written"
        messages = (_Field.TYPE_MESSAGE, _Field.TYPE_GROUP)
        ours, theirs = ENCODINGS[reader.type], ENCODINGS[writer.type]
        if ours != theirs or (reader.type in messages) != (writer.type in messages):
            return (
                f"{place}: number {reader.number} was written as {_name(writer)}, and cannot be "
                f"read as {_name(reader)}"
            )
        if reader.type in messages:
            inner = (reader.type_name.lstrip("."), writer.type_name.lstrip("."))
            return self.reason(*inner, place, depth + 1)
        return None


def _name(field: _Field) -> str:
    return FieldDescriptorProto.Type.Name(field.type).removeprefix("TYPE_").lower()
