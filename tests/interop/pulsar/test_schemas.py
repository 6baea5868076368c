"""Typed producers and consumers of the official client."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pulsar
import pytest
from pulsar.schema import (
    AvroSchema,
    Boolean,
    BytesSchema,
    Integer,
    JsonSchema,
    Record,
    String,
    StringSchema,
)

from tests.interop.pulsar.helpers import receive
from tests.interop.pulsar.services import Service


class Flight(Record):
    carrier = String()
    number = Integer()


class LaterFlight(Record):
    """May follow ``Flight``: what is new has a default."""

    carrier = String()
    number = Integer()
    cancelled = Boolean(default=False, required_default=True)


class OtherFlight(Record):
    carrier = Integer()
    number = Integer()


KINDS: dict[str, Callable[[type[Record]], Any]] = {"avro": AvroSchema, "json": JsonSchema}


@pytest.fixture(params=KINDS)
def schema_of(request: pytest.FixtureRequest) -> Callable[[type[Record]], Any]:
    return KINDS[request.param]


def version(message: pulsar.Message) -> int:
    return int.from_bytes(message.schema_version().encode("latin-1"), "big")


def test_values_there_and_back(
    client: pulsar.Client, topic: str, schema_of: Callable[[type[Record]], Any]
) -> None:
    producer = client.create_producer(topic, schema=schema_of(Flight))
    consumer = client.subscribe(topic, "s", schema=schema_of(Flight))
    for number in range(5):
        producer.send(Flight(carrier="AA", number=number))
    messages = receive(consumer, 5)
    assert [each.value().number for each in messages] == list(range(5))
    assert {version(each) for each in messages} == {0}


@pytest.mark.parametrize(("schema", "value"), [(StringSchema(), "é"), (BytesSchema(), b"\0\1")])
def test_primitive_ones(client: pulsar.Client, topic: str, schema: Any, value: object) -> None:
    producer = client.create_producer(topic, schema=schema)
    consumer = client.subscribe(topic, "s", schema=schema)
    producer.send(value)
    assert receive(consumer, 1)[0].value() == value


def test_one_that_does_not_fit_is_refused(
    client: pulsar.Client, topic: str, schema_of: Callable[[type[Record]], Any]
) -> None:
    producer = client.create_producer(topic, schema=schema_of(Flight))
    for schema in (schema_of(OtherFlight), StringSchema()):
        with pytest.raises(pulsar.IncompatibleSchema):
            client.create_producer(topic, schema=schema)
        with pytest.raises(pulsar.IncompatibleSchema):
            client.subscribe(topic, "s", schema=schema)
    producer.send(Flight(carrier="AA", number=1))
    consumer = client.subscribe(topic, "s", pulsar.ConsumerType.Shared, schema=schema_of(Flight))
    assert consumer is not None, "the connection goes on"


def test_versions_and_who_reads_which(client: pulsar.Client, topic: str, service: Service) -> None:
    """A consumer of the former version reads both; each message says with which it was written,
    and GET_SCHEMA gives that one."""
    old = client.create_producer(topic, schema=AvroSchema(Flight))
    consumer = client.subscribe(topic, "s", schema=AvroSchema(Flight))
    reader = client.create_reader(topic, pulsar.MessageId.earliest, schema=AvroSchema(LaterFlight))
    new = client.create_producer(topic, schema=AvroSchema(LaterFlight))
    again = client.create_producer(topic, schema=AvroSchema(Flight))
    old.send(Flight(carrier="AA", number=1))
    new.send(LaterFlight(carrier="BB", number=2, cancelled=True))
    again.send(Flight(carrier="CC", number=3))
    messages = receive(consumer, 3)
    assert [version(each) for each in messages] == [0, 1, 0]
    assert [each.value().number for each in messages] == [1, 2, 3]
    assert [reader.read_next(60_000).value().cancelled for _ in range(3)] == [False, True, False]
    assert [len(each["fields"]) for each in service.schemas(topic)] == [2, 3]


def test_namespaces_may_take_no_new_ones(
    client: pulsar.Client, topic: str, service: Service
) -> None:
    client.create_producer(topic, schema=AvroSchema(Flight))
    service.set_auto_update(False)
    try:
        client.create_producer(topic, schema=AvroSchema(Flight)).close()
        with pytest.raises(pulsar.IncompatibleSchema):
            client.create_producer(topic, schema=AvroSchema(LaterFlight))
    finally:
        service.set_auto_update(True)
    client.create_producer(topic, schema=AvroSchema(LaterFlight))


def test_partitions_share_one(client: pulsar.Client, topic: str, service: Service) -> None:
    service.create_partitioned(topic, 3)
    producer = client.create_producer(topic, schema=AvroSchema(Flight))
    consumer = client.subscribe(topic, "s", schema=AvroSchema(Flight))
    for number in range(6):
        producer.send(Flight(carrier="AA", number=number))
    messages = receive(consumer, 6)
    assert sorted(each.value().number for each in messages) == list(range(6))
    assert {version(each) for each in messages} == {0}
    assert len(service.schemas(topic)) == 1
    with pytest.raises(pulsar.IncompatibleSchema):
        client.create_producer(topic, schema=AvroSchema(OtherFlight))


def test_a_consumer_brings_the_first(client: pulsar.Client, topic: str, service: Service) -> None:
    client.subscribe(topic, "s", schema=JsonSchema(Flight))
    with pytest.raises(pulsar.IncompatibleSchema):
        client.create_producer(topic, schema=JsonSchema(OtherFlight))
    client.create_producer(topic, schema=JsonSchema(Flight))
    assert len(service.schemas(topic)) == 1


def test_plain_bytes_are_not_read_with_a_schema(client: pulsar.Client, topic: str) -> None:
    client.create_producer(topic).send(b"plain")
    with pytest.raises(pulsar.IncompatibleSchema):
        client.subscribe(topic, "s", schema=AvroSchema(Flight))
    consumer = client.subscribe(topic, "s", initial_position=pulsar.InitialPosition.Earliest)
    assert receive(consumer, 1)[0].data() == b"plain"


def test_what_is_stored_is_what_the_client_sent(
    client: pulsar.Client, topic: str, service: Service
) -> None:
    client.create_producer(topic, schema=AvroSchema(Flight))
    assert service.schemas(topic) == [json.loads(json.dumps(Flight.schema()))]
