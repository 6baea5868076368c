"""GET_SCHEMA, GET_OR_CREATE_SCHEMA, and what is said of schemas that clients bring.

Nothing keeps schemas here: a producer or consumer that brings one is accepted, and what it sends or
gets is not checked against it. Clients must be able to go on, so every answer here is the one on
which they do: a topic has no schema, and a schema that is handed in has the empty version, which
clients leave out of their messages. That nothing is checked is said in the log, once per topic.
"""

from __future__ import annotations

import structlog

from magnetar.cluster.topic_name import TopicName, parse_topic
from magnetar.model.errors import TopicNotFoundError
from magnetar.protocols.pulsar.session import Session
from magnetar.wire.pulsar.pulsar_pb2 import BaseCommand, Schema

log = structlog.get_logger(__name__)

NO_VERSION = b""
"""The version of a schema that is not kept."""


async def get_schema(session: Session, command: BaseCommand) -> None:
    request = command.getSchema
    await session.services.control.namespaces.check(parse_topic(request.topic))
    raise TopicNotFoundError(f"topic {request.topic} has no schema: schemas are not kept here")


async def get_or_create_schema(session: Session, command: BaseCommand) -> None:
    """Accept the schema. A refusal makes Java's producers ask again without a pause."""
    request = command.getOrCreateSchema
    name = parse_topic(request.topic)
    await session.services.control.namespaces.check(name)
    say_unchecked(session, name, request.schema)
    answer = BaseCommand(type=BaseCommand.GET_OR_CREATE_SCHEMA_RESPONSE)
    reply = answer.getOrCreateSchemaResponse
    reply.request_id = request.request_id
    reply.schema_version = NO_VERSION  # set although empty: Java's client reads it unasked
    session.send_command(answer)


def say_unchecked(session: Session, name: TopicName, schema: Schema) -> None:
    """A client brings ``schema``: say in the log that it is not checked, once per topic."""
    if session.services.unchecked_schemas.add(str(name)):
        log.warning(
            "schema accepted but not checked: schemas are not kept here",
            topic=str(name),
            schema=schema.name,
            type=Schema.Type.Name(schema.type),
            peer=session.peer,
        )
