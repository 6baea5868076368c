"""The schemas of topics, asked of brokers over Pulsar's protocol, and brought to them.

Blocking, as all of ``BrokerClient``. A version never changes as long as its topic is there: it is
asked for once.
"""

from __future__ import annotations

import time

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


class SchemaClient:
    """Of one cluster."""

    def __init__(self, client: BrokerClient) -> None:
        self._client = client

    def latest(self, topic: str) -> RegisteredSchema | None:
        """None if the topic has no schema, or is not there."""
        try:
            return self._get(topic, None)
        except SchemaNotFoundError:
            return None

    def at(self, topic: str, version: int) -> TopicSchema:
        """Asks again while nobody answers, for as long as the client waits. Raises
        ``SchemaNotFoundError``, ``BrokerError``."""
        deadline_s = time.monotonic() + self._client.timeout_s
        while True:
            try:
                return self._get(topic, version).schema
            except SchemaNotFoundError:
                raise
            except BrokerError as error:
                if not worth_another_try(error) or time.monotonic() + PAUSE_S > deadline_s:
                    raise
                time.sleep(PAUSE_S)

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
