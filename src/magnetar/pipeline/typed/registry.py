"""The schemas of topics, asked of brokers over Pulsar's protocol, and brought to them.

Blocking, as all of ``BrokerClient``. A version never changes as long as its topic is there: it is
asked for once.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from magnetar.model.errors import (
    BrokerError,
    SchemaNotFoundError,
    TopicNotFoundError,
)
from magnetar.model.schema import RegisteredSchema, TopicSchema
from magnetar.pipeline.brokers.client import BrokerClient
from magnetar.pipeline.brokers.connection import BrokerConnection, worth_another_try
from magnetar.wire.pulsar.codes import ServerError
from magnetar.wire.pulsar.pulsar_pb2 import BaseCommand
from magnetar.wire.pulsar.schemas import (
    decode_version,
    decode_wire_schema,
    encode_version,
    fill_wire_schema,
)

PAUSE_S = 0.5

NOT_KNOWN = -1
"""When a version was made: the protocol does not say."""

Answer = TypeVar("Answer")


class SchemaClient:
    """Of one cluster. ``patience_s``: so long the newest version of a topic is asked for, or one
    brought, while nobody answers."""

    def __init__(self, client: BrokerClient, patience_s: float = 0.0) -> None:
        self._client = client
        self._patience_s = patience_s

    def latest(self, topic: str) -> RegisteredSchema | None:
        """None if the topic has no schema, or is not there."""
        try:
            return _persist(lambda: self._get(topic, None), self._patience_s)
        except SchemaNotFoundError:
            return None

    def at(self, topic: str, version: int) -> TopicSchema:
        """Asks again for as long as the client waits. Raises ``SchemaNotFoundError``,
        ``BrokerError``."""
        return _persist(lambda: self._get(topic, version), self._client.timeout_s).schema

    def _get(self, topic: str, version: int | None) -> RegisteredSchema:
        command = BaseCommand(type=BaseCommand.GET_SCHEMA)
        command.getSchema.request_id = 1
        command.getSchema.topic = topic
        if version is not None:
            command.getSchema.schema_version = encode_version(version)
        try:
            answer = self._client.ask(command).getSchemaResponse
        except TopicNotFoundError as error:
            raise SchemaNotFoundError(str(error)) from error
        if answer.HasField("error_code"):
            if int(answer.error_code) == ServerError.TOPIC_NOT_FOUND:
                raise SchemaNotFoundError(f"topic {topic}: {answer.error_message}")
            raise BrokerError(f"topic {topic}: {answer.error_message}")
        found = decode_version(answer.schema_version)
        return RegisteredSchema(found, decode_wire_schema(answer.schema), NOT_KNOWN)

    def bring(self, topic: str, schema: TopicSchema) -> int:
        """The version that the schema has on the topic, where it is registered if it is new: what
        a producer does that comes with it, so that the topic is made, too. Raises
        ``IncompatibleSchemaError`` with the registry's reason."""
        return _persist(lambda: self._bring(topic, schema), self._patience_s)

    def _bring(self, topic: str, schema: TopicSchema) -> int:
        partition = self._client.partitions(topic, make=True)[0]
        connection = BrokerConnection(self._client.owner(partition), self._client.timeout_s)
        command = BaseCommand(type=BaseCommand.PRODUCER)
        producer = command.producer
        producer.topic, producer.producer_id, producer.request_id = partition, 1, 1
        fill_wire_schema(producer.schema, "spark", schema)
        try:
            answer = connection.call(command)
        finally:
            connection.close()
        return decode_version(answer.producer_success.schema_version)


def _persist(ask: Callable[[], Answer], patience_s: float) -> Answer:
    until_s = time.monotonic() + patience_s
    while True:
        try:
            return ask()
        except SchemaNotFoundError:
            raise
        except BrokerError as error:
            if not worth_another_try(error) or time.monotonic() + PAUSE_S > until_s:
                raise
        time.sleep(PAUSE_S)
