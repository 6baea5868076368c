"""Schemas for producers of the official client whose values are encoded already."""

from __future__ import annotations

from typing import Any

from magnetar.model.errors import ConfigError
from magnetar.model.schema import TopicSchema


def encoded_schema(schema: TopicSchema | None) -> Any:
    """What ``create_producer`` takes as ``schema``; plain bytes for None. The client brings it to
    the topic and writes its version into the messages. Raises ``ConfigError`` for a type that it
    does not know."""
    import _pulsar
    from pulsar.schema import BytesSchema

    plain = BytesSchema()
    if schema is None:
        return plain
    name = schema.kind.name
    kind = getattr(_pulsar.SchemaType, name, None)
    if kind is None:
        raise ConfigError(
            f"the topic's schema is {name}, which the official client does not know; write it with "
            "deliveryGuarantee=exactly-once, or with valueFormat=bytes"
        )
    text = schema.data.decode() if schema.data else ""
    plain._schema_info = _pulsar.SchemaInfo(kind, name, text)
    return plain
