"""A server is filled: topics on both engines, by both protocols, and all that lies beside them."""

from __future__ import annotations

import time
from typing import Final

import pulsar
from confluent_kafka import Consumer, Producer, TopicPartition

from tests.chaos.churn.pulsar_work import client_of
from tests.chaos.churn.server import PERSISTENT, Server, UnexpectedAnswerError
from tests.chaos.damage.contents import COMPACTED, KEYS, TOPICS, Topic, message

ROUND: Final = 150
"""Messages that each topic gets in one round."""
COMPACTED_ROUND: Final = 30
ACKNOWLEDGED: Final = 75
"""Of each round, from the front."""
IN_TRANSACTION: Final = 30
GROUP: Final = "group"
SUBSCRIPTION: Final = "half"
WAIT_S: Final = 60.0


def make(server: Server) -> None:
    for topic in (*TOPICS, *COMPACTED):
        server.ask("PUT", f"{PERSISTENT}/{topic.name}", engine=topic.engine)


def fill(server: Server, done: int) -> None:
    """One round: messages ``done`` and on, each acknowledged by the server."""
    numbers = range(done, done + ROUND)
    with client_of(server) as client:
        for topic in TOPICS:
            if topic.writer == "pulsar":
                _by_pulsar(client, topic, numbers)
            else:
                _by_kafka(server, topic, numbers)
        _compact(server, client, done)
        _acknowledge(client)
    _commit(server, done + ACKNOWLEDGED)


def _by_pulsar(client: pulsar.Client, topic: Topic, numbers: range) -> None:
    earliest = pulsar.InitialPosition.Earliest
    client.subscribe(topic.name, SUBSCRIPTION, initial_position=earliest).close()
    producer = client.create_producer(topic.name, batching_max_messages=5)
    failed: list[object] = []

    def told(result: object, _: object) -> None:
        if result != pulsar.Result.Ok:
            failed.append(result)

    for number in numbers:
        producer.send_async(message(topic.name, number), told)
        if number % 20 == 0:
            producer.flush()
    producer.flush()
    producer.close()
    _require_all(failed)


def _by_kafka(server: Server, topic: Topic, numbers: range) -> None:
    given: dict[str, object] = {
        "bootstrap.servers": server.bootstrap, "log_level": 2, "linger.ms": 1,
        "enable.idempotence": True,
    }  # fmt: skip
    if topic.writer == "transaction":
        given["transactional.id"] = topic.name
    producer = Producer(given)
    failed: list[object] = []

    def told(error: object, _: object) -> None:
        if error is not None:
            failed.append(error)

    def send(*some: bytes) -> None:
        for at, each in enumerate(some):
            producer.produce(topic.name, each, on_delivery=told)
            if at % 7 == 0:
                producer.flush(WAIT_S)
        producer.flush(WAIT_S)

    if topic.writer != "transaction":
        send(*(message(topic.name, number) for number in numbers))
    else:
        producer.init_transactions(WAIT_S)
        for first in numbers[::IN_TRANSACTION]:
            producer.begin_transaction()
            send(b"aborted")
            producer.abort_transaction(WAIT_S)
            producer.begin_transaction()
            own = range(first, min(first + IN_TRANSACTION, numbers.stop))
            send(*(message(topic.name, number) for number in own))
            producer.commit_transaction(WAIT_S)
    _require_all(failed)


def _require_all(failed: list[object]) -> None:
    if failed:
        raise UnexpectedAnswerError(f"not all was stored: {failed[0]}")


def _compact(server: Server, client: pulsar.Client, done: int) -> None:
    for topic in COMPACTED:
        producer = client.create_producer(topic.name, batching_enabled=False)
        for number in range(done, done + COMPACTED_ROUND):
            producer.send(message(topic.name, number), partition_key=str(number % KEYS))
        producer.close()
        path = f"{PERSISTENT}/{topic.name}/compaction"
        server.ask("PUT", path)
        until_s = time.monotonic() + WAIT_S
        while server.ask("GET", path).json().get("status") == "RUNNING":
            if time.monotonic() > until_s:
                raise UnexpectedAnswerError(f"the compaction of {topic.name} does not end")
            time.sleep(0.1)


def _acknowledge(client: pulsar.Client) -> None:
    for topic in TOPICS:
        if topic.writer == "pulsar":
            consumer = client.subscribe(topic.name, SUBSCRIPTION)
            for _ in range(ACKNOWLEDGED):
                consumer.acknowledge(consumer.receive(30_000))
            consumer.close()


def _commit(server: Server, offset: int) -> None:
    consumer = Consumer({
        "bootstrap.servers": server.bootstrap, "group.id": GROUP, "enable.auto.commit": False,
        "log_level": 2,
    })  # fmt: skip
    places = [TopicPartition(topic.name, 0, offset) for topic in TOPICS]
    consumer.commit(offsets=places, asynchronous=False)
    consumer.close()
