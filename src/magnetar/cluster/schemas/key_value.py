"""Schemas of a key and a value together, as Pulsar's clients pack them.

The definition is that of the key, then that of the value, each after its length (4 bytes, big
endian; -1: there is none). What types they are of stands in properties: ``key.schema.type``,
``key.schema.properties`` (JSON), the same for ``value``, and ``kv.encoding.type``: INLINE (both in
the payload) or SEPARATED (the key in the message's key).

Over REST the definition is JSON, ``{"key": ..., "value": ...}``, with ``""`` for a type that has
none.

Pure. Raises ``InvalidSchemaError``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Final, NamedTuple

from magnetar.cluster.schemas.avro import load_json
from magnetar.model.errors import InvalidSchemaError
from magnetar.model.schema import DEFINED, SchemaType, TopicSchema

LENGTH_BYTES: Final = 4
NO_DATA: Final = -1
ENCODING: Final = "kv.encoding.type"
INLINE: Final = "INLINE"


class KeyValueSchema(NamedTuple):
    key: TopicSchema
    value: TopicSchema
    encoding: str


def split(schema: TopicSchema) -> KeyValueSchema:
    """The two schemas in one of type KEY_VALUE."""
    key, rest = _take(schema.data)
    value, rest = _take(rest)
    if rest:
        raise InvalidSchemaError(f"a key-value schema with {len(rest)} bytes behind its value's")
    found = schema.properties
    return KeyValueSchema(
        _part("key", key, found), _part("value", value, found), found.get(ENCODING, INLINE)
    )


def join(key: bytes, value: bytes) -> bytes:
    """The definition that packs those of a key and of a value."""
    parts = (len(key).to_bytes(LENGTH_BYTES, "big"), key, len(value).to_bytes(LENGTH_BYTES, "big"))
    return b"".join((*parts, value))


def to_text(schema: TopicSchema) -> str:
    """The definition as REST shows it."""
    parts = split(schema)
    shown = {"key": _shown(parts.key), "value": _shown(parts.value)}
    return json.dumps(shown, separators=(",", ":"))


def from_text(text: str) -> bytes:
    """The definition that REST was given."""
    node = load_json(text.encode())
    if not isinstance(node, dict) or not {"key", "value"} <= node.keys():
        raise InvalidSchemaError('a key-value schema over REST is {"key": ..., "value": ...}')
    return join(_given(node["key"]), _given(node["value"]))


def _take(data: bytes) -> tuple[bytes, bytes]:
    if len(data) < LENGTH_BYTES:
        raise InvalidSchemaError("a key-value schema that ends within a length")
    size = int.from_bytes(data[:LENGTH_BYTES], "big", signed=True)
    if size == NO_DATA:
        return b"", data[LENGTH_BYTES:]
    end = LENGTH_BYTES + size
    if size < 0 or end > len(data):
        raise InvalidSchemaError(
            f"a key-value schema with a part of {size} bytes that is not there"
        )
    return data[LENGTH_BYTES:end], data[end:]


def _part(which: str, data: bytes, properties: Mapping[str, str]) -> TopicSchema:
    name = properties.get(f"{which}.schema.type") or "NONE"
    if name == "BYTES":
        name = "NONE"
    if name not in SchemaType.__members__ or name == "KEY_VALUE":
        raise InvalidSchemaError(f"a key-value schema whose {which} is of type {name[:80]!r}")
    given = load_json((properties.get(f"{which}.schema.properties") or "{}").encode())
    if not isinstance(given, dict):
        raise InvalidSchemaError(f"{which}.schema.properties is no JSON object")
    own = {str(key): str(value) for key, value in given.items()}
    return TopicSchema(SchemaType[name], data, own)


def _shown(part: TopicSchema) -> object:
    if not part.data or part.kind not in DEFINED:
        return ""
    try:
        return load_json(part.data)
    except InvalidSchemaError:
        return part.data.decode("utf-8", "backslashreplace")


def _given(node: object) -> bytes:
    return b"" if node in ("", None) else json.dumps(node, separators=(",", ":")).encode()
