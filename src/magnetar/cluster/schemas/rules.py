"""Which schemas a topic takes, given those that it has had.

What a strategy asks of a schema that is to become the newest, and of one that a consumer reads
with:

| strategy | new schema | consumer's schema |
|---|---|---|
| ALWAYS_COMPATIBLE | nothing | nothing |
| ALWAYS_INCOMPATIBLE | is refused | is one of the topic's |
| BACKWARD | reads the newest | reads the newest |
| BACKWARD_TRANSITIVE | reads all | reads all |
| FORWARD | is read by the newest | reads the newest |
| FORWARD_TRANSITIVE | is read by all | reads the newest |
| FULL | both with the newest | reads the newest |
| FULL_TRANSITIVE | both with all | reads all |

A schema that the topic has already is never a new one. Types do not change: a topic of strings does
not become one of numbers, whatever the strategy (ALWAYS_COMPATIBLE lets it).

Definitions of AVRO, JSON and PROTOBUF are Avro's (``resolution``), of PROTOBUF_NATIVE descriptors
(``protobuf``), of KEY_VALUE two schemas (``key_value``). The rest is told by its type alone:
clients send nothing as the definition of a STRING, or "null", and mean the same. JSON schemas of
clients before 2.1 are JSON Schema's, and go by their ``id``, as in Pulsar.

Pure. ``InvalidSchemaError``: no schema of its type. ``IncompatibleSchemaError``: not on this topic.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any, Final

from magnetar.cluster.schemas import protobuf
from magnetar.cluster.schemas.avro import canonical_json, load_json, parse_avro
from magnetar.cluster.schemas.key_value import split
from magnetar.cluster.schemas.resolution import unreadable
from magnetar.model.errors import IncompatibleSchemaError, InvalidSchemaError
from magnetar.model.schema import (
    DEFINED,
    SCHEMA_BYTES_MAX,
    SCHEMA_PROPERTIES_BYTES_MAX,
    RegisteredSchema,
    SchemaStrategy,
    SchemaType,
    TopicSchema,
)

READS: Final = frozenset(
    (
        SchemaStrategy.BACKWARD,
        SchemaStrategy.BACKWARD_TRANSITIVE,
        SchemaStrategy.FULL,
        SchemaStrategy.FULL_TRANSITIVE,
    )
)
"""The new schema must read what older ones wrote."""
IS_READ: Final = frozenset(
    (
        SchemaStrategy.FORWARD,
        SchemaStrategy.FORWARD_TRANSITIVE,
        SchemaStrategy.FULL,
        SchemaStrategy.FULL_TRANSITIVE,
    )
)
"""What the new schema writes must be readable with older ones."""
TRANSITIVE: Final = frozenset(
    (
        SchemaStrategy.BACKWARD_TRANSITIVE,
        SchemaStrategy.FORWARD_TRANSITIVE,
        SchemaStrategy.FULL_TRANSITIVE,
    )
)
READER_OF_ALL: Final = frozenset(
    (SchemaStrategy.BACKWARD_TRANSITIVE, SchemaStrategy.FULL_TRANSITIVE)
)

AVRO_BASED: Final = frozenset((SchemaType.AVRO, SchemaType.JSON, SchemaType.PROTOBUF))
NO_SCHEMA: Final = frozenset((SchemaType.NONE, SchemaType.AUTO_CONSUME))
"""Types that say that there is none."""


def check(schema: TopicSchema) -> None:
    """Whether it is a schema of its type, and small enough to be kept."""
    if len(schema.data) > SCHEMA_BYTES_MAX:
        raise InvalidSchemaError(
            f"a schema of {len(schema.data)} bytes; at most {SCHEMA_BYTES_MAX} are kept"
        )
    size = sum(len(name) + len(value) for name, value in schema.properties.items())
    if size > SCHEMA_PROPERTIES_BYTES_MAX:
        raise InvalidSchemaError(
            f"a schema with properties of {size} characters; at most "
            f"{SCHEMA_PROPERTIES_BYTES_MAX} are kept"
        )
    if schema.kind in NO_SCHEMA:
        raise InvalidSchemaError(f"{schema.kind.name} is no schema that a topic can have")
    _check_definition(schema)


def _check_definition(schema: TopicSchema) -> None:
    kind = schema.kind
    try:
        if kind in AVRO_BASED:
            if _old_json_id(schema) is None:
                parse_avro(schema.data)
        elif kind is SchemaType.PROTOBUF_NATIVE:
            protobuf.parse_protobuf(schema.data)
        elif kind is SchemaType.KEY_VALUE:
            parts = split(schema)
            for part in (parts.key, parts.value):
                if part.kind is not SchemaType.NONE:
                    _check_definition(part)
    except InvalidSchemaError as error:
        raise InvalidSchemaError(
            f"invalid definition of a schema of type {kind.name}: {error}"
        ) from error


def fingerprint(schema: TopicSchema) -> bytes:
    """Of a schema as it came, to find what is known of it."""
    said = sorted(schema.properties.items())
    head = json.dumps([int(schema.kind), said]).encode()
    return hashlib.sha256(head + b"\n" + schema.data).digest()


def identity(schema: TopicSchema) -> str:
    """The same for schemas that nobody can tell apart by what they read and write. It is kept
    with each version: one that is computed otherwise from some release on makes a schema that is
    known a new version."""
    return hashlib.sha256(_identity_bytes(schema)).hexdigest()


def _identity_bytes(schema: TopicSchema) -> bytes:
    head = f"{schema.kind.name}\n".encode()
    if schema.kind in AVRO_BASED:
        return head + canonical_json(schema.data)
    if schema.kind is SchemaType.KEY_VALUE:
        parts = split(schema)
        both = (hashlib.sha256(_identity_bytes(part)).digest() for part in (parts.key, parts.value))
        return head + f"{parts.encoding}\n".encode() + b"".join(both)
    return head + schema.data if schema.kind in DEFINED else head


def needs_all(strategy: SchemaStrategy) -> bool:
    """Whether a new schema is held against every older one, not the newest alone."""
    return strategy in TRANSITIVE


def reader_needs_all(strategy: SchemaStrategy) -> bool:
    """Whether a consumer must be able to read every version, not the newest alone."""
    return strategy in READER_OF_ALL


def check_next(new: TopicSchema, old: RegisteredSchema, strategy: SchemaStrategy) -> None:
    """Whether ``new`` may come after ``old``, which it is not. Raises
    ``IncompatibleSchemaError``."""
    if strategy is SchemaStrategy.ALWAYS_COMPATIBLE:
        return
    if strategy is SchemaStrategy.ALWAYS_INCOMPATIBLE:
        raise _incompatible(old, strategy, "schemas of this topic do not change")
    reason = None
    if new.kind is not old.schema.kind:
        reason = f"it does not become {new.kind.name}"
    elif strategy in READS:
        reason = _unreadable(new, old.schema)
    if reason is None and strategy in IS_READ:
        reason = _unreadable(old.schema, new)
        if reason is not None:
            reason = f"what is written with the new one could not be read with it: {reason}"
    if reason is not None:
        raise _incompatible(old, strategy, reason)


def check_reader(reader: TopicSchema, old: RegisteredSchema, strategy: SchemaStrategy) -> None:
    """Whether a consumer may read with ``reader``, none of the topic's, what was written with
    ``old``. Raises ``IncompatibleSchemaError``."""
    if strategy is SchemaStrategy.ALWAYS_COMPATIBLE:
        return
    reason: str | None = "schemas of this topic do not change"
    if strategy is not SchemaStrategy.ALWAYS_INCOMPATIBLE:
        reason = _unreadable(reader, old.schema)
    if reason is not None:
        raise _incompatible(old, strategy, reason)


def _incompatible(
    old: RegisteredSchema, strategy: SchemaStrategy, reason: str
) -> IncompatibleSchemaError:
    return IncompatibleSchemaError(
        f"incompatible with version {old.version} of the topic's schema ({old.schema.kind.name}, "
        f"{strategy}): {reason}"
    )


def _unreadable(reader: TopicSchema, writer: TopicSchema) -> str | None:
    """Why ``reader`` does not read what ``writer`` wrote; None if it does."""
    if reader.kind is not writer.kind:
        return f"{writer.kind.name} cannot be read as {reader.kind.name}"
    if reader.kind in AVRO_BASED:
        return _unreadable_avro(reader, writer)
    if reader.kind is SchemaType.PROTOBUF_NATIVE:
        ours, theirs = map(protobuf.parse_protobuf, (reader.data, writer.data))
        return protobuf.unreadable(ours, theirs)
    if reader.kind is SchemaType.KEY_VALUE:
        return _unreadable_key_value(reader, writer)
    return None


def _unreadable_avro(reader: TopicSchema, writer: TopicSchema) -> str | None:
    ours, theirs = _old_json_id(reader), _old_json_id(writer)
    if ours is None and theirs is None:
        return unreadable(parse_avro(reader.data), parse_avro(writer.data))
    if ours is None or theirs is None or ours == theirs:
        return None  # between the old form and the new one nothing can be compared
    return f"{theirs} cannot be read as {ours}"


def _unreadable_key_value(reader: TopicSchema, writer: TopicSchema) -> str | None:
    ours, theirs = split(reader), split(writer)
    if ours.encoding != theirs.encoding:
        return f"keys that are {theirs.encoding} cannot be read as {ours.encoding}"
    reason = _unreadable(ours.key, theirs.key)
    if reason is not None:
        return f"key: {reason}"
    reason = _unreadable(ours.value, theirs.value)
    return None if reason is None else f"value: {reason}"


def _old_json_id(schema: TopicSchema) -> str | None:
    """What a definition in JSON Schema calls itself; None if it is in Avro's form."""
    if schema.kind is not SchemaType.JSON:
        return None
    node: Any = load_json(schema.data)
    if not isinstance(node, dict) or node.get("type") != "object":
        return None
    return str(node.get("id", ""))
