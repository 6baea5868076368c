"""``SchemaService``: what REST asks and tells about schemas of topics, and namespaces' policies of
them. Any broker answers: schemas are the cluster's.

Definitions are text. That of a native protobuf schema is JSON as it came, that of a key-value one
is shown as ``{"key": ..., "value": ...}``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from magnetar.admin.bodies import BadBodyError
from magnetar.admin.views import CompatibilityView, SchemaListView, SchemaView
from magnetar.cluster.control_plane import ControlPlane
from magnetar.cluster.policies.policies import UNDEFINED
from magnetar.cluster.schemas import key_value
from magnetar.cluster.topic_name import TopicName, parse_namespace, parse_topic
from magnetar.model.errors import (
    IncompatibleSchemaError,
    InvalidSchemaError,
    SchemaNotFoundError,
)
from magnetar.model.schema import RegisteredSchema, SchemaStrategy, SchemaType, TopicSchema

NO_VERSION = -1
"""Pulsar's, for a schema that the topic has not."""


class SchemaService:
    """Raises ``TopicNotFoundError`` for an unknown namespace, in each method."""

    def __init__(self, control: ControlPlane) -> None:
        self._control = control
        self._schemas = control.schemas
        self._policies = control.schemas.policies

    # -- schemas of a topic -------------------------------------------------------------------

    async def get(self, topic: str, version: int | None = None) -> SchemaView:
        """The newest, or that version. Raises ``SchemaNotFoundError``."""
        name = await self._name(topic)
        if version is None:
            found = await self._schemas.latest(name)
        else:
            found = await self._schemas.at(name, version)
        if found is None:
            which = "schema" if version is None else f"schema of version {version}"
            raise SchemaNotFoundError(f"topic {name.partitioned} has no {which}")
        return _view(found)

    async def versions(self, topic: str) -> SchemaListView:
        """From the oldest on."""
        found = await self._schemas.versions(await self._name(topic))
        return SchemaListView(get_schema_responses=[_view(each) for each in found])

    async def upload(self, topic: str, body: object) -> int:
        """The schema's version, new or not. Raises ``InvalidSchemaError``,
        ``IncompatibleSchemaError``."""
        return await self._schemas.register(await self._name(topic), read_schema(body))

    async def find(self, topic: str, body: object) -> int:
        found = await self._schemas.find(await self._name(topic), read_schema(body))
        return NO_VERSION if found is None else found

    async def test(self, topic: str, body: object) -> CompatibilityView:
        """Whether the schema could be uploaded, and why not."""
        name = await self._name(topic)
        policy = await self._policies.effective(name)
        reason = ""
        try:
            await self._schemas.check_next(name, read_schema(body))
        except (IncompatibleSchemaError, InvalidSchemaError) as error:
            reason = str(error)
        return CompatibilityView(
            compatibility=not reason,
            schema_compatibility_strategy=str(policy.strategy),
            reason=reason,
        )

    async def delete(self, topic: str) -> int:
        """The version number that the deletion takes. Raises ``SchemaNotFoundError``."""
        return await self._schemas.delete(await self._name(topic))

    async def _name(self, topic: str) -> TopicName:
        name = parse_topic(topic)
        await self._control.namespaces.check(name)
        return name

    # -- policies of a namespace --------------------------------------------------------------

    async def strategy(self, namespace: str) -> str:
        return str(await self._policies.strategy(parse_namespace(namespace)) or UNDEFINED)

    async def set_strategy(self, namespace: str, strategy: SchemaStrategy | None) -> None:
        await self._policies.set_strategy(parse_namespace(namespace), strategy)

    async def validation_enforced(self, namespace: str) -> bool:
        return await self._policies.validation_enforced(parse_namespace(namespace))

    async def set_validation_enforced(self, namespace: str, enforced: bool) -> None:
        await self._policies.set_validation_enforced(parse_namespace(namespace), enforced)

    async def auto_update(self, namespace: str) -> bool:
        return await self._policies.auto_update(parse_namespace(namespace))

    async def set_auto_update(self, namespace: str, allowed: bool) -> None:
        await self._policies.set_auto_update(parse_namespace(namespace), allowed)


def _view(found: RegisteredSchema) -> SchemaView:
    schema = found.schema
    if schema.kind is SchemaType.KEY_VALUE:
        data = key_value.to_text(schema)
    else:
        data = schema.data.decode("utf-8", "backslashreplace")
    return SchemaView(
        version=found.version,
        type=schema.kind.name,
        timestamp=found.created_ms,
        data=data,
        properties=dict(schema.properties),
    )


def read_schema(body: object) -> TopicSchema:
    """Of a body ``{"type": ..., "schema": ..., "properties": {...}}``. Raises ``BadBodyError``,
    ``InvalidSchemaError``."""
    if not isinstance(body, Mapping):
        raise BadBodyError('body: {"type": ..., "schema": ..., "properties": {...}} is expected')
    kind, text, properties = body.get("type"), body.get("schema"), body.get("properties")
    if not isinstance(kind, str) or kind not in SchemaType.__members__:
        raise BadBodyError(
            f"body: type {json.dumps(kind)[:80]} is none of {', '.join(SchemaType.__members__)}"
        )
    if not isinstance(text, str | None) or not isinstance(properties, Mapping | None):
        raise BadBodyError("body: schema is a text, and properties an object of texts")
    if kind == SchemaType.KEY_VALUE.name:
        data = key_value.from_text(text or "")
    else:
        data = (text or "").encode()
    given = {str(name): str(value) for name, value in (properties or {}).items()}
    return TopicSchema(SchemaType[kind], data, given)
