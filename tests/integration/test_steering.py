"""Consumers are sent to read-only brokers: processes, a real ZooKeeper, the official client."""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pulsar
import pytest

from tests.scenarios.publisher import Publisher, connect
from tests.scenarios.shared_brokers import Brokers
from tests.scenarios.steered_brokers import (
    OWNERS,
    READ_ONLY,
    dispatched,
    eventually,
    say,
    steered_brokers,
)

pytestmark = pytest.mark.zookeeper

TOPIC = "persistent://public/default/steered"
EARLIEST = pulsar.InitialPosition.Earliest
WAIT_MS = 60_000


@pytest.fixture
def brokers(tmp_path: Path, zookeeper_url: str) -> Iterator[Brokers]:
    with steered_brokers(tmp_path, zookeeper_url) as made:
        yield made


class Listener:
    """A consumer that acknowledges what it gets."""

    def __init__(self, client: pulsar.Client, subscription: str) -> None:
        self.received: list[int] = []
        self._lock = threading.Lock()
        self.consumer = client.subscribe(
            TOPIC,
            subscription,
            consumer_type=pulsar.ConsumerType.Shared,
            initial_position=EARLIEST,
            message_listener=self._got,
        )

    def _got(self, consumer: pulsar.Consumer, message: pulsar.Message) -> None:
        with self._lock:
            self.received.append(struct.unpack(">Q", message.data())[0])
        consumer.acknowledge(message)

    def wait_for(self, numbers: set[int]) -> None:
        def all_there() -> bool:
            with self._lock:
                return numbers <= set(self.received)

        eventually(all_there, f"{sorted(numbers - set(self.received))[:10]} not received")


class Traffic:
    """Consumers of some subscriptions of one topic, and who publishes to it."""

    def __init__(self, brokers: Brokers, *subscriptions: str) -> None:
        self._brokers = brokers
        self._client = connect(brokers.service_url)
        self.listeners = [Listener(self._client, each) for each in subscriptions]
        self._producer = self._client.create_producer(TOPIC, batching_enabled=False)
        self._sent = 0

    def publish(self, count: int) -> None:
        """Returns when every consumer has it."""
        stop = self._sent + count
        for number in range(self._sent, stop):
            self._producer.send(struct.pack(">Q", number))
        self._sent = stop
        for each in self.listeners:
            each.wait_for(set(range(stop)))

    def served_by(self, index: int) -> int:
        """How many of the subscriptions get from that broker what is published now."""
        before = self._brokers.dispatched(index)
        self.publish(1)
        return self._brokers.dispatched(index) - before

    def close(self) -> None:
        self._client.close()


def test_rules_say_which_subscriptions_go_where(brokers: Brokers) -> None:
    say(brokers, {"subscription": "report-*", "to": "zone:eu"})
    traffic = Traffic(brokers, "report-1", "report-2", "other")
    traffic.publish(50)
    assert traffic.listeners[0].received == list(range(50)), "in order, each once"
    assert [brokers.dispatched(index) for index in READ_ONLY] == [100, 0]
    assert dispatched(brokers, OWNERS) == 50

    # Another rule, in force for those who are there.
    say(brokers, {"subscription": "report-*", "to": "owner"}, {"to": "zone:us"})
    eu, us = READ_ONLY
    eventually(lambda: traffic.served_by(us) == 1, "the other one is sent on")
    eventually(lambda: traffic.served_by(eu) == 0, "they stay where they were")
    assert traffic.served_by(us) == 1
    traffic.close()


def test_consumers_come_back_when_their_broker_dies(brokers: Brokers) -> None:
    say(brokers, {"to": "any"})
    client = connect(brokers.service_url)
    listeners = [Listener(client, f"s-{number}") for number in range(4)]
    publisher = Publisher(brokers.service_url, TOPIC)
    publisher.start()
    publisher.wait_acknowledged(200)
    for each in listeners:
        each.wait_for(set(publisher.acknowledged))
    assert dispatched(brokers, OWNERS) == 0

    for index in READ_ONLY:
        brokers.role(index).kill()
        publisher.wait_acknowledged(200)
        for each in listeners:
            each.wait_for(set(publisher.acknowledged))
    assert dispatched(brokers, OWNERS) > 0, "nobody else is left"

    brokers.start(READ_ONLY[0])
    eventually(lambda: dispatched(brokers) > 0, "they are sent to the broker that is back")
    publisher.stop()
    for each in listeners:
        each.wait_for(publisher.acknowledged)
    assert publisher.failed == []
    client.close()


def test_readers_and_those_who_ask_at_once(brokers: Brokers) -> None:
    say(brokers, {"to": "any"})
    client = connect(brokers.service_url)
    producer = client.create_producer(TOPIC, batching_enabled=False)

    def publish(first: int, stop: int) -> None:
        for number in range(first, stop):
            producer.send(struct.pack(">Q", number))

    def next_number(source: Callable[[int], pulsar.Message]) -> int:
        return int(struct.unpack(">Q", source(WAIT_MS).data())[0])

    publish(0, 20)
    tail = client.create_reader(TOPIC, pulsar.MessageId.latest)
    assert not tail.has_message_available()
    reader = client.create_reader(TOPIC, pulsar.MessageId.earliest)
    read = []
    while reader.has_message_available():
        read.append(next_number(reader.read_next))
    assert read == list(range(20))
    assert dispatched(brokers) >= 20

    consumer = client.subscribe(TOPIC, "sought", initial_position=EARLIEST)
    consumer.seek(pulsar.MessageId.latest)
    publish(20, 40)
    for source in (tail.read_next, consumer.receive, reader.read_next):
        assert [next_number(source) for _ in range(20)] == list(range(20, 40))

    def all_sent_on() -> bool:
        before = dispatched(brokers)
        publish(99, 100)
        for source in (tail.read_next, consumer.receive, reader.read_next):
            while next_number(source) != 99:
                pass  # the consumer has acknowledged nothing: it comes again elsewhere
        return dispatched(brokers) >= before + 3

    eventually(all_sent_on, "who was served by the owner at first is sent on")
    client.close()


def test_a_read_only_broker_that_is_drained_serves_nobody(brokers: Brokers) -> None:
    say(brokers, {"to": "any"})
    traffic = Traffic(brokers, *(f"s-{number}" for number in range(6)))
    traffic.publish(10)
    # How they spread depends on the brokers' ports: the one that has most has half at least.
    left, drained = sorted(READ_ONLY, key=traffic.served_by)
    assert traffic.served_by(drained) >= 3
    brokers.ask(0, f"/magnetar/v1/brokers/{brokers.broker_id(drained)}/drain", "PUT")
    eventually(lambda: traffic.served_by(drained) == 0, "it serves still")
    assert traffic.served_by(left) == 6
    assert dispatched(brokers, OWNERS) == 0
    traffic.close()
