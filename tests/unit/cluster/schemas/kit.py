"""Schemas, said shortly."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import Any

from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorSet

from magnetar.model.schema import RegisteredSchema, SchemaType, TopicSchema

OPTIONAL = FieldDescriptorProto.LABEL_OPTIONAL
REQUIRED = FieldDescriptorProto.LABEL_REQUIRED


def record(*fields: Mapping[str, Any], name: str = "R", **more: Any) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": list(fields), **more}


def field(name: str, kind: Any, **more: Any) -> dict[str, Any]:
    return {"name": name, "type": kind, **more}


def encoded(node: Any) -> bytes:
    return json.dumps(node).encode()


def avro(node: Any, kind: SchemaType = SchemaType.AVRO) -> TopicSchema:
    return TopicSchema(kind, encoded(node))


def plain(kind: SchemaType, data: bytes = b"") -> TopicSchema:
    return TopicSchema(kind, data)


def registered(schema: TopicSchema, version: int = 0) -> RegisteredSchema:
    return RegisteredSchema(version, schema, 0)


def key_value(
    key: TopicSchema, value: TopicSchema, encoding: str = "INLINE", **more: str
) -> TopicSchema:
    data = b"".join(len(each.data).to_bytes(4, "big") + each.data for each in (key, value))
    properties = {
        "key.schema.type": key.kind.name,
        "value.schema.type": value.kind.name,
        "kv.encoding.type": encoding,
        **more,
    }
    return TopicSchema(SchemaType.KEY_VALUE, data, properties)


def native(
    *fields: tuple[str, int, int, int], root: str = "pack.M", inner: str = ""
) -> TopicSchema:
    """Fields: name, number, type, label; one of a message's type is of ``inner``."""
    files = FileDescriptorSet()
    package, _, name = root.rpartition(".")
    file = files.file.add(name="m.proto", package=package)
    message = file.message_type.add(name=name)
    for field_name, number, kind, label in fields:
        made = message.field.add(name=field_name, number=number, type=kind, label=label)
        if kind == FieldDescriptorProto.TYPE_MESSAGE:
            made.type_name = inner or f".{root}"
    node = {
        "fileDescriptorSet": base64.b64encode(files.SerializeToString()).decode(),
        "rootMessageTypeName": root,
        "rootFileDescriptorName": "m.proto",
    }
    return TopicSchema(SchemaType.PROTOBUF_NATIVE, encoded(node))
