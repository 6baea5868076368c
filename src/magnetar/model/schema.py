"""Schemas of topics, as the registry keeps them and protocols bring them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from typing import Final

SCHEMA_BYTES_MAX: Final = 512 << 10
"""Of one schema's definition: it is compared on the event loop, and answered in one frame."""

SCHEMA_PROPERTIES_BYTES_MAX: Final = 64 << 10
"""Of one schema's properties, names and values together."""


class SchemaType(IntEnum):
    """Pulsar's, by its name and its number in the protocol. NONE stands for plain bytes too."""

    NONE = 0
    STRING = 1
    JSON = 2
    PROTOBUF = 3
    AVRO = 4
    BOOLEAN = 5
    INT8 = 6
    INT16 = 7
    INT32 = 8
    INT64 = 9
    FLOAT = 10
    DOUBLE = 11
    DATE = 12
    TIME = 13
    TIMESTAMP = 14
    KEY_VALUE = 15
    INSTANT = 16
    LOCAL_DATE = 17
    LOCAL_TIME = 18
    LOCAL_DATE_TIME = 19
    PROTOBUF_NATIVE = 20
    AUTO_CONSUME = 21
    EXTERNAL = 22


DEFINED: Final = frozenset(
    (
        SchemaType.JSON,
        SchemaType.PROTOBUF,
        SchemaType.AVRO,
        SchemaType.KEY_VALUE,
        SchemaType.PROTOBUF_NATIVE,
        SchemaType.EXTERNAL,
    )
)
"""Types whose definition says something; others are told by their type alone."""


class SchemaStrategy(StrEnum):
    """How a topic's schemas may follow each other (``cluster.schemas.rules`` says what each
    asks)."""

    ALWAYS_INCOMPATIBLE = "ALWAYS_INCOMPATIBLE"
    ALWAYS_COMPATIBLE = "ALWAYS_COMPATIBLE"
    BACKWARD = "BACKWARD"
    FORWARD = "FORWARD"
    FULL = "FULL"
    BACKWARD_TRANSITIVE = "BACKWARD_TRANSITIVE"
    FORWARD_TRANSITIVE = "FORWARD_TRANSITIVE"
    FULL_TRANSITIVE = "FULL_TRANSITIVE"


@dataclass(frozen=True, slots=True)
class TopicSchema:
    """What values of a topic look like: ``data`` is the definition, in the form of its type."""

    kind: SchemaType
    data: bytes
    properties: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RegisteredSchema:
    """A version of a topic's schema. ``created_ms``: milliseconds since 1970."""

    version: int
    schema: TopicSchema
    created_ms: int
