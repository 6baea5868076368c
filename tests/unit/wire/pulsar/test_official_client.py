"""The official client understands what the encoders write."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.golden.pulsar.stub import StubBroker, stub_broker

pulsar = pytest.importorskip("pulsar")

MESSAGES = 300  # more than 128, so that what the encoders keep is renewed


@pytest.fixture
def broker() -> Iterator[StubBroker]:
    with stub_broker() as broker:
        yield broker


@pytest.fixture
def client(broker: StubBroker) -> Iterator[object]:
    quiet = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    client = pulsar.Client(f"pulsar://127.0.0.1:{broker.port}", logger=quiet)
    yield client
    client.close()


def test_receipts_and_messages(client: object) -> None:
    producer = client.create_producer("topic", batching_enabled=False)  # type: ignore[attr-defined]
    ids = [producer.send(b"%d" % i, properties={"i": str(i)}) for i in range(MESSAGES)]
    assert [item.entry_id() for item in ids] == list(range(MESSAGES))
    consumer = client.subscribe(  # type: ignore[attr-defined]
        "topic", "sub", initial_position=pulsar.InitialPosition.Earliest
    )
    for i in range(MESSAGES):
        message = consumer.receive(5000)
        assert message.data() == b"%d" % i
        assert message.properties() == {"i": str(i)}
        assert (message.message_id().entry_id(), message.redelivery_count()) == (i, 0)


def test_redelivery_count(client: object, broker: StubBroker) -> None:
    producer = client.create_producer("topic", batching_enabled=False)  # type: ignore[attr-defined]
    producer.send(b"again")
    consumer = client.subscribe(  # type: ignore[attr-defined]
        "topic",
        "sub",
        consumer_type=pulsar.ConsumerType.Shared,
        initial_position=pulsar.InitialPosition.Earliest,
        negative_ack_redelivery_delay_ms=10,
    )
    consumer.negative_acknowledge(consumer.receive(5000))
    assert consumer.receive(5000).redelivery_count() == 1


def test_a_refused_lookup_reaches_the_caller(client: object) -> None:
    with pytest.raises(pulsar.TopicNotFound):
        client.create_producer("missing")  # type: ignore[attr-defined]
