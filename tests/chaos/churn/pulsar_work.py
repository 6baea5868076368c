"""What Pulsar's official client does with topics that it makes and deletes."""

from __future__ import annotations

import contextlib
import datetime
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import pulsar
from pulsar.schema import AvroSchema, Integer, Record, String, StringSchema

from tests.chaos.churn.server import PERSISTENT, Server, UnexpectedAnswerError

KINDS: Final = (
    pulsar.ConsumerType.Exclusive,
    pulsar.ConsumerType.Shared,
    pulsar.ConsumerType.Failover,
    pulsar.ConsumerType.KeyShared,
)
WAIT_MS: Final = 30_000
CHUNKED_BYTES: Final = 7 << 20

KILLED: Final = """
import os, re, sys
import pulsar
url, topic = sys.argv[1:]
client = pulsar.Client(url)
producer = client.create_producer(topic)
consumer = client.subscribe(topic, "s", consumer_type=pulsar.ConsumerType.Shared)
reader = client.create_reader(topic, pulsar.MessageId.earliest)
some = client.subscribe(re.compile(f"persistent://public/default/{topic}.*"), "p")
for _ in range(50):
    producer.send_async(b"x", None)
producer.flush()
consumer.receive(30_000), reader.read_next(30_000)
os.kill(os.getpid(), 9)
"""


@contextmanager
def client_of(server: Server) -> Iterator[pulsar.Client]:
    client = pulsar.Client(
        server.pulsar_url,
        operation_timeout_seconds=30,
        logger=pulsar.FileLogger(pulsar.LoggerLevel.Error, os.devnull),
    )
    try:
        yield client
    finally:
        client.close()


def subscriptions(server: Server, name: str) -> None:
    """All kinds, each reads all of it, sought back, one unsubscribed."""
    topic = f"{name}-plain"
    with client_of(server) as client:
        consumers = [client.subscribe(topic, str(kind), consumer_type=kind) for kind in KINDS]
        batches = client.create_producer(topic)
        for number in range(200):
            batches.send_async(b"x" * 50, None, partition_key=str(number % 7))
        batches.flush()
        singly = client.create_producer(topic, batching_enabled=False, properties={"a": "b"})
        for number in range(20):
            singly.send(b"y", partition_key=str(number), properties={"n": str(number)})
        for kind, consumer in zip(KINDS, consumers, strict=True):
            several = kind in (pulsar.ConsumerType.Shared, pulsar.ConsumerType.KeyShared)
            for number in range(220):
                message = consumer.receive(WAIT_MS)
                if several and number % 9 == 0:
                    consumer.negative_acknowledge(message)
                else:
                    consumer.acknowledge(message)
        for consumer in consumers:
            consumer.seek(pulsar.MessageId.earliest)
            consumer.acknowledge(consumer.receive(WAIT_MS))
        consumers[0].unsubscribe()
    server.delete_topic(topic)


def killed_client(server: Server, name: str) -> None:
    topic = f"{name}-killed"
    command = [sys.executable, "-c", KILLED, server.pulsar_url, topic]
    subprocess.run(command, check=False, capture_output=True, timeout=120)
    server.delete_topic(topic)


def partitions(server: Server, name: str) -> None:
    topic = f"{name}-parts"
    server.ask("PUT", f"{PERSISTENT}/{topic}/partitions", 3)
    with client_of(server) as client:
        producer = client.create_producer(topic)
        consumer = client.subscribe(topic, "s", consumer_type=pulsar.ConsumerType.Shared)
        for _ in range(60):
            producer.send_async(b"x" * 100, None)
        producer.flush()
        for _ in range(60):
            consumer.acknowledge(consumer.receive(WAIT_MS))
        server.ask("POST", f"{PERSISTENT}/{topic}/partitions", 5)
        server.ask("GET", f"{PERSISTENT}/{topic}/partitioned-stats")
    server.delete_topic(topic, partitioned=True)


def schemas(server: Server, name: str) -> None:
    class Reading(Record):  # type: ignore[misc]
        place = String()
        value = Integer()

    topic = f"{name}-schema"
    with client_of(server) as client:
        schema = AvroSchema(Reading)
        producer = client.create_producer(topic, schema=schema)
        consumer = client.subscribe(topic, "s", schema=schema)
        for number in range(10):
            producer.send(Reading(place="here", value=number))
        for _ in range(10):
            consumer.acknowledge(consumer.receive(WAIT_MS))
        _refused(lambda: client.create_producer(topic, schema=StringSchema()))
    server.delete_topic(topic)


def dead_letters(server: Server, name: str) -> None:
    topic, dead = f"{name}-dlq", f"{name}-dlq-dead"
    with client_of(server) as client:
        consumer = client.subscribe(
            topic, "s", consumer_type=pulsar.ConsumerType.Shared,
            negative_ack_redelivery_delay_ms=100,
            dead_letter_policy=pulsar.ConsumerDeadLetterPolicy(2, dead, "in"),
        )  # fmt: skip
        producer = client.create_producer(topic)
        arrived = client.subscribe(dead, "looks")
        for _ in range(5):
            producer.send(b"bad")
        with contextlib.suppress(pulsar.Timeout):
            while True:
                consumer.negative_acknowledge(consumer.receive(700))
        for _ in range(5):
            arrived.acknowledge(arrived.receive(WAIT_MS))
    server.delete_topic(topic)
    server.delete_topic(dead)


def delayed(server: Server, name: str) -> None:
    """One of them is not due for hours when the topic goes."""
    topic = f"{name}-delayed"
    with client_of(server) as client:
        consumer = client.subscribe(topic, "s", consumer_type=pulsar.ConsumerType.Shared)
        producer = client.create_producer(topic, batching_enabled=False)
        for number in range(10):
            producer.send(b"later", deliver_after=datetime.timedelta(milliseconds=300 + number))
        producer.send(b"tonight", deliver_after=datetime.timedelta(hours=3))
        for _ in range(10):
            consumer.acknowledge(consumer.receive(WAIT_MS))
    server.delete_topic(topic)


def chunks(server: Server, name: str) -> None:
    topic = f"{name}-chunks"
    with client_of(server) as client:
        consumer = client.subscribe(topic, "s")
        producer = client.create_producer(topic, batching_enabled=False, chunking_enabled=True)
        producer.send(os.urandom(CHUNKED_BYTES))
        consumer.acknowledge(consumer.receive(WAIT_MS))
    server.delete_topic(topic)


def readers(server: Server, name: str) -> None:
    topic = f"{name}-read"
    with client_of(server) as client:
        producer = client.create_producer(topic)
        stored = [producer.send(b"%d" % number, partition_key="k") for number in range(20)]
        for place in stored[:5]:
            reader = client.create_reader(topic, place, start_message_id_inclusive=True)
            reader.read_next(WAIT_MS)
            reader.close()
        reader = client.create_reader(topic, pulsar.MessageId.earliest)
        reader.seek(int(time.time() * 1000) - 60_000)
        reader.read_next(WAIT_MS)
        client.subscribe(topic, "compacted", is_read_compacted=True)
        server.ask("PUT", f"{PERSISTENT}/{topic}/compaction")
        client.create_table_view(topic).get("k")
    _compacted(server, topic)
    server.delete_topic(topic)


def _compacted(server: Server, topic: str) -> None:
    until_s = time.monotonic() + 30
    path = f"{PERSISTENT}/{topic}/compaction"
    while server.ask("GET", path).json().get("status") == "RUNNING":
        if time.monotonic() > until_s:
            raise UnexpectedAnswerError(f"compaction of {topic} does not end")
        time.sleep(0.1)


def unloads(server: Server, name: str) -> None:
    topic = f"{name}-unloaded"
    with client_of(server) as client:
        producer = client.create_producer(topic)
        consumer = client.subscribe(topic, "s", consumer_type=pulsar.ConsumerType.Shared)
        for _ in range(3):
            for _ in range(10):
                producer.send(b"x")
            server.ask("PUT", f"{PERSISTENT}/{topic}/unload")
        for _ in range(30):
            consumer.acknowledge(consumer.receive(WAIT_MS))
    server.delete_topic(topic)


def refused(server: Server, name: str) -> None:
    topic = f"{name}-taken"
    with client_of(server) as client:
        for wrong in ("..", "a" * 2000, f"{name}-none/ns/t"):
            _refused(lambda wrong=wrong: client.create_producer(wrong))  # type: ignore[misc]
            _refused(lambda wrong=wrong: client.subscribe(wrong, "s"))  # type: ignore[misc]
        client.subscribe(topic, "s")
        _refused(lambda: client.subscribe(topic, "s"))
        client.create_producer(topic, producer_name="p")
        _refused(lambda: client.create_producer(topic, producer_name="p"))
    server.delete_topic(topic)


def _refused(asked: object) -> None:
    try:
        asked()  # type: ignore[operator]
    except (pulsar.PulsarException, ValueError):
        return
    raise UnexpectedAnswerError(f"{asked} was not refused")


WORK: Final = (
    subscriptions, killed_client, partitions, schemas, dead_letters, delayed, chunks, readers,
    unloads, refused,
)  # fmt: skip
