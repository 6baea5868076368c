"""Schemas and their versions as Pulsar's protocol carries them.

A version is eight bytes, big endian; no bytes stand for "no schema". A type that this release does
not know is refused (``InvalidSchemaError``).
"""

from __future__ import annotations

from typing import Final

from magnetar.model.errors import InvalidSchemaError
from magnetar.model.schema import SchemaType, TopicSchema
from magnetar.wire.pulsar.pulsar_pb2 import Schema

VERSION_BYTES: Final = 8
NO_VERSION: Final = b""
"""The version of messages whose producer has no schema; clients leave it out of them."""


def encode_version(version: int | None) -> bytes:
    return NO_VERSION if version is None else version.to_bytes(VERSION_BYTES, "big")


def decode_version(data: bytes) -> int:
    """Raises ``InvalidSchemaError``."""
    if len(data) != VERSION_BYTES:
        raise InvalidSchemaError(
            f"a schema's version has {VERSION_BYTES} bytes, not {len(data)}: messages without one "
            "have no schema"
        )
    return int.from_bytes(data, "big")


def decode_wire_schema(schema: Schema) -> TopicSchema:
    """Raises ``InvalidSchemaError``."""
    try:
        kind = SchemaType(schema.type)
    except ValueError:
        raise InvalidSchemaError(f"schemas of type {schema.type} are not known here") from None
    properties = {each.key: each.value for each in schema.properties}
    return TopicSchema(kind, schema.schema_data, properties)


def fill_wire_schema(target: Schema, name: str, schema: TopicSchema) -> None:
    target.name = name
    target.type = int(schema.kind)  # type: ignore[assignment]
    target.schema_data = schema.data
    for key, value in schema.properties.items():
        target.properties.add(key=key, value=value)
