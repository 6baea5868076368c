"""What both clients get of a server, and what the server says itself."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

import pulsar
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from tests.chaos.churn.server import Server
from tests.chaos.damage.contents import COMPACTED, TOPICS, number_of
from tests.chaos.damage.filling import GROUP, SUBSCRIPTION

QUIET_MS: Final = 4_000
WAIT_S: Final = 8


@dataclass
class Seen:
    """``numbers``: in the order in which they came. ``foreign``: bytes that nobody has sent.
    ``complaint``: what the client was told, if it was."""

    numbers: list[int] = field(default_factory=list)
    foreign: list[bytes] = field(default_factory=list)
    complaint: str = ""

    def take(self, topic: str, data: bytes) -> None:
        number = number_of(topic, data)
        if number is None:
            self.foreign.append(data[:60])
        else:
            self.numbers.append(number)


@dataclass
class Look:
    """``seen``: by way and topic. ``committed``: offset of each topic, or what was said."""

    seen: dict[str, Seen] = field(default_factory=dict)
    committed: dict[str, object] = field(default_factory=dict)
    health: str = ""


def look(server: Server) -> Look:
    found = Look()
    with _client_of(server) as client:
        for topic in TOPICS:
            found.seen[f"kafka {topic.name}"] = _by_kafka(server, topic.name)
        for topic in (*TOPICS, *COMPACTED):
            found.seen[f"pulsar {topic.name}"] = _by_pulsar(client, topic.name, compacted=False)
        for topic in COMPACTED:
            found.seen[f"compacted {topic.name}"] = _by_pulsar(client, topic.name, compacted=True)
        for topic in TOPICS:
            if topic.writer == "pulsar":
                found.seen[f"left {topic.name}"] = _left(client, topic.name)
    _committed(server, found)
    answer = server.rest.get("/health")
    found.health = answer.text
    return found


@contextmanager
def _client_of(server: Server) -> Iterator[pulsar.Client]:
    """One that does not wait long: a topic that cannot be opened is tried again and again."""
    client = pulsar.Client(
        server.pulsar_url,
        operation_timeout_seconds=WAIT_S,
        logger=pulsar.FileLogger(pulsar.LoggerLevel.Error, os.devnull),
    )
    try:
        yield client
    finally:
        client.close()


def _by_pulsar(client: pulsar.Client, topic: str, *, compacted: bool) -> Seen:
    seen = Seen()
    try:
        reader = client.create_reader(topic, pulsar.MessageId.earliest, is_read_compacted=compacted)
        try:
            while reader.has_message_available():
                seen.take(topic, reader.read_next(QUIET_MS).data())
        finally:
            reader.close()
    except pulsar.PulsarException as error:
        seen.complaint = f"{type(error).__name__}: {error}"
    return seen


def _left(client: pulsar.Client, topic: str) -> Seen:
    """What a subscription still gets; it acknowledges nothing, and cannot know that all came."""
    seen = Seen(complaint="nothing more comes")
    try:
        consumer = client.subscribe(topic, SUBSCRIPTION)
        try:
            while True:
                seen.take(topic, consumer.receive(900).data())
        finally:
            consumer.close()
    except pulsar.Timeout:
        pass
    except pulsar.PulsarException as error:
        seen.complaint = f"{type(error).__name__}: {error}"
    return seen


def _by_kafka(server: Server, topic: str) -> Seen:
    seen = Seen()
    told: list[str] = []
    consumer = Consumer({
        "bootstrap.servers": server.bootstrap, "group.id": "looks", "enable.auto.commit": False,
        "auto.offset.reset": "error", "enable.partition.eof": True, "log_level": 0,
        "check.crcs": True, "isolation.level": "read_committed",
        "error_cb": lambda error: told.append(str(error)),
    })  # fmt: skip
    try:
        low, _ = consumer.get_watermark_offsets(TopicPartition(topic, 0), WAIT_S)
        consumer.assign([TopicPartition(topic, 0, low)])
        _poll(consumer, topic, seen)
    except KafkaException as error:
        seen.complaint = str(error)
    finally:
        consumer.close()
    if told and seen.complaint:
        seen.complaint += f" ({told[-1]})"
    return seen


def _poll(consumer: Consumer, topic: str, seen: Seen) -> None:
    until_s = time.monotonic() + WAIT_S
    while time.monotonic() < until_s:
        got = consumer.poll(0.5)
        if got is None:
            continue
        error = got.error()
        if error is None:
            seen.take(topic, got.value())
            until_s = time.monotonic() + WAIT_S
        elif error.code() == KafkaError._PARTITION_EOF:
            return
        else:
            seen.complaint = str(error)
            return
    seen.complaint = "nothing comes, and no end"


def _committed(server: Server, found: Look) -> None:
    consumer = Consumer({"bootstrap.servers": server.bootstrap, "group.id": GROUP, "log_level": 0})
    for topic in TOPICS:
        try:
            [place] = consumer.committed([TopicPartition(topic.name, 0)], WAIT_S)
            found.committed[topic.name] = place.error or place.offset
        except KafkaException as error:
            found.committed[topic.name] = str(error)
    consumer.close()
