"""Schemas of topics, asked of brokers that may be away for a moment."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pyspark.sql.types import IntegerType, StructField, StructType

from magnetar.model.errors import BrokerError, NotAllowedError, SchemaNotFoundError
from magnetar.model.schema import SchemaType, TopicSchema
from magnetar.pipeline.typed import registry, writing
from magnetar.pipeline.typed.options import ValueOptions
from magnetar.pipeline.typed.registry import SchemaClient
from magnetar.pipeline.typed.writing import plan_write
from magnetar.wire.pulsar.codes import ServerError
from magnetar.wire.pulsar.pulsar_pb2 import BaseCommand
from magnetar.wire.pulsar.schemas import encode_version, fill_wire_schema

TOPIC = "persistent://public/default/t"
DEFINITION = {"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}]}
SCHEMA = TopicSchema(SchemaType.AVRO, json.dumps(DEFINITION).encode())


class Client:
    """A ``BrokerClient`` that fails as often as ``failures`` says."""

    timeout_s = 5.0

    def __init__(self, failures: int, schema: TopicSchema | None = SCHEMA) -> None:
        self.failures = failures
        self.asked = 0
        self.error = BrokerError("connection refused")
        self._schema = schema

    def ask(self, command: BaseCommand) -> BaseCommand:
        self.asked += 1
        if self.failures:
            self.failures -= 1
            raise self.error
        answer = BaseCommand(type=BaseCommand.GET_SCHEMA_RESPONSE)
        told = answer.getSchemaResponse
        told.request_id = command.getSchema.request_id
        if self._schema is None:
            told.error_code = int(ServerError.TOPIC_NOT_FOUND)  # type: ignore[assignment]
            told.error_message = "no schema"
        else:
            told.schema_version = encode_version(3)
            fill_wire_schema(told.schema, "t", self._schema)
        return answer

    def close(self) -> None:
        pass


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "PAUSE_S", 0.001)


def schemas(client: Client, patience_s: float) -> SchemaClient:
    return SchemaClient(client, patience_s)  # type: ignore[arg-type]


def test_a_broker_that_is_away_is_asked_again_for_so_long() -> None:
    found = schemas(Client(3), 5.0).latest(TOPIC)
    assert found is not None
    assert (found.version, found.schema) == (3, SCHEMA)
    with pytest.raises(BrokerError, match="refused"):
        schemas(Client(1), 0.0).latest(TOPIC)
    assert schemas(Client(3), 0.0).at(TOPIC, 3) == SCHEMA


def test_what_does_not_change_is_asked_once() -> None:
    client = Client(9)
    client.error = NotAllowedError("who are you?")
    with pytest.raises(NotAllowedError):
        schemas(client, 5.0).latest(TOPIC)
    assert client.asked == 1
    client = Client(0, None)
    assert schemas(client, 5.0).latest(TOPIC) is None
    with pytest.raises(SchemaNotFoundError):
        schemas(client, 5.0).at(TOPIC, 1)
    assert client.asked == 2


def test_a_write_by_schema_is_planned_while_a_broker_restarts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A stream's writer is made anew for each micro-batch: the first one that was planned while no
    broker answered ended the query."""
    clients: list[Client] = []

    def made(*_: Any) -> Client:
        clients.append(Client(4))
        return clients[-1]

    monkeypatch.setattr(writing, "BrokerClient", made)
    column = StructType([StructField("a", IntegerType(), nullable=False)]), ()
    plan = plan_write("pulsar://h:1", TOPIC, column, ValueOptions("schema"), 5.0)
    assert plan.known == {TOPIC: 3}
    assert clients[0].asked == 5
