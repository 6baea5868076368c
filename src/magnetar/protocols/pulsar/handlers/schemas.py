"""GET_SCHEMA, GET_OR_CREATE_SCHEMA, and the schemas that producers and consumers bring.

What is answered where (``cluster.schemas`` decides):

* A producer's schema is registered, and PRODUCER_SUCCESS says its version, which clients write into
  each message; one without a schema gets the empty version.
* A consumer's schema must read what the topic has. It is registered only where nobody has written
  yet: a schema would not fit messages, or producers, that have none.
* Types NONE (plain bytes) and AUTO_CONSUME (whatever there is) bring no schema.
* The schema of the empty version is NONE: Go's client asks for that of each message's version, and
  its producers, as Java's, write the empty one into messages without a schema.

Every refusal is ``IncompatibleSchema``, on which all clients give up at once, and says why.
"""

from __future__ import annotations

import asyncio
from typing import Final

from magnetar.cluster.schemas.registry import Schemas
from magnetar.cluster.schemas.rules import NO_SCHEMA
from magnetar.cluster.topic_name import TopicName, parse_topic
from magnetar.model.errors import (
    IncompatibleSchemaError,
    InvalidSchemaError,
    MagnetarError,
    NotAllowedError,
    SchemaNotFoundError,
    TopicNotFoundError,
)
from magnetar.model.schema import SchemaType, TopicSchema
from magnetar.protocols.pulsar.session import Session
from magnetar.topics.subscribable import SubscribableTopic
from magnetar.topics.topic import Topic
from magnetar.wire.pulsar.pulsar_pb2 import (
    BaseCommand,
    CommandProducer,
    CommandSubscribe,
    Schema,
)
from magnetar.wire.pulsar.schemas import (
    NO_VERSION,
    decode_version,
    decode_wire_schema,
    encode_version,
    fill_wire_schema,
)

FINAL: Final = (
    IncompatibleSchemaError,
    InvalidSchemaError,
    NotAllowedError,
    TopicNotFoundError,
)
WITHOUT: Final = TopicSchema(SchemaType.NONE, b"", {})
"""That of messages without one."""
REFUSAL_PAUSE_S: Final = 1.0
"""How long a refusal waits that its client answers by asking again at once."""


async def get_schema(session: Session, command: BaseCommand) -> None:
    """The newest, or the version that is asked for; of the empty version, that it is none."""
    request = command.getSchema
    name, schemas = parse_topic(request.topic), session.services.control.schemas
    await session.services.control.namespaces.check(name)
    if request.HasField("schema_version") and request.schema_version == NO_VERSION:
        _tell_schema(session, request.request_id, name, NO_VERSION, WITHOUT)
        return
    if request.HasField("schema_version"):
        version = decode_version(request.schema_version)
        found = await schemas.at(name, version)
        asked = f"schema of version {version}"
    else:
        found, asked = await schemas.latest(name), "schema"
    if found is None:
        raise SchemaNotFoundError(f"topic {name.partitioned} has no {asked}")
    version_bytes = encode_version(found.version)
    async with session.large_answer(session.services.schema_answers):
        _tell_schema(session, request.request_id, name, version_bytes, found.schema)


def _tell_schema(
    session: Session, request_id: int, name: TopicName, version: bytes, schema: TopicSchema
) -> None:
    answer = BaseCommand(type=BaseCommand.GET_SCHEMA_RESPONSE)
    reply = answer.getSchemaResponse
    reply.request_id = request_id
    reply.schema_version = version
    fill_wire_schema(reply.schema, _schema_name(name), schema)
    session.send_command(answer)


def _schema_name(name: TopicName) -> str:
    return f"{name.namespace}/{name.partitioned.local}"


async def get_or_create_schema(session: Session, command: BaseCommand) -> None:
    """A producer is about to send with another schema than it came with. Java's client gives up on
    ``IncompatibleSchema`` alone; after any other refusal it asks again without a pause, so that
    what is final is told as that, and the rest after a while."""
    request = command.getOrCreateSchema
    name = parse_topic(request.topic)
    try:
        await session.services.topics.get(name, create=False)
        schema = _brought(request.schema)
        version = await _version(session.services.control.schemas, name, schema)
    except FINAL as error:
        raise IncompatibleSchemaError(str(error)) from error
    except MagnetarError:
        await asyncio.sleep(REFUSAL_PAUSE_S)
        raise
    answer = BaseCommand(type=BaseCommand.GET_OR_CREATE_SCHEMA_RESPONSE)
    reply = answer.getOrCreateSchemaResponse
    reply.request_id = request.request_id
    reply.schema_version = encode_version(version)  # set even if empty: Java's client reads it
    session.send_command(answer)


async def producer_version(session: Session, name: TopicName, request: CommandProducer) -> bytes:
    """The version that the producer's messages carry. Raises ``IncompatibleSchemaError``,
    ``InvalidSchemaError``."""
    schema = _brought(request.schema) if request.HasField("schema") else None
    return encode_version(await _version(session.services.control.schemas, name, schema))


async def _version(schemas: Schemas, name: TopicName, schema: TopicSchema | None) -> int | None:
    if schema is not None:
        return await schemas.bring(name, schema)
    await schemas.check_without(name)
    return None


async def check_consumer(
    session: Session, topic: SubscribableTopic, request: CommandSubscribe
) -> None:
    """Raises ``IncompatibleSchemaError``, ``InvalidSchemaError``."""
    schema = _brought(request.schema) if request.HasField("schema") else None
    if schema is None:
        return
    schemas, name = session.services.control.schemas, topic.name
    if await schemas.has_schema(name):
        await schemas.check_reader(name, schema)
    elif (isinstance(topic, Topic) and topic.producers) or topic.readable.stats().entries:
        raise IncompatibleSchemaError(
            f"topic {name} has no schema, but producers or messages without one, which "
            f"{schema.kind.name} does not read: subscribe with bytes, or upload the schema first"
        )
    else:
        await schemas.bring(name, schema)


def _brought(schema: Schema) -> TopicSchema | None:
    """What a client brings; None if it is no schema."""
    brought = decode_wire_schema(schema)
    return None if brought.kind in NO_SCHEMA else brought
