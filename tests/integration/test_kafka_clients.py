"""Real Kafka clients against a standalone: kafka-python, aiokafka and confluent-kafka
(librdkafka)."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator
from io import StringIO
from pathlib import Path
from typing import Any

import confluent_kafka as confluent
import kafka
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka import TopicPartition as AioPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    ResourceType,
)

from magnetar.env.network.free_ports import free_port
from tests.standalone import Standalone

DEADLINE_S = 90.0
NAMES = (f"topic-{number}" for number in itertools.count())


class KafkaStandalone(Standalone):
    def __init__(self, data_dir: Path, *arguments: str) -> None:
        self.kafka_port = free_port()
        super().__init__(data_dir, "--kafka-port", str(self.kafka_port), *arguments)

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.kafka_port}"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaStandalone]:
    with KafkaStandalone(tmp_path_factory.mktemp("kafka") / "data") as running:
        yield running


def confluent_producer(server: KafkaStandalone, **settings: Any) -> confluent.Producer:
    return confluent.Producer({"bootstrap.servers": server.bootstrap, **settings})


def confluent_consumer(server: KafkaStandalone, group: str, **settings: Any) -> confluent.Consumer:
    wanted = {
        "bootstrap.servers": server.bootstrap,
        "group.id": group,
        "auto.offset.reset": "earliest",
        **settings,
    }
    return confluent.Consumer(wanted)


def produced(server: KafkaStandalone, topic: str, count: int, **settings: Any) -> None:
    producer = confluent_producer(server, **settings)
    errors: list[object] = []
    for number in range(count):
        producer.produce(
            topic,
            key=f"key-{number % 7}",
            value=f"value-{number}",
            on_delivery=lambda error, _: errors.append(error) if error else None,
        )
        producer.poll(0)
    assert producer.flush(DEADLINE_S) == 0
    assert errors == []


def polled(consumer: confluent.Consumer, count: int) -> list[confluent.Message]:
    """At least ``count`` messages, in order."""
    found: list[confluent.Message] = []
    deadline = time.monotonic() + DEADLINE_S
    while len(found) < count:
        assert time.monotonic() < deadline, f"{len(found)} of {count} came"
        for each in consumer.consume(500, 1.0):
            assert each.error() is None, each.error()
            found.append(each)
    return found


def until(holds: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not holds():
        assert time.monotonic() < deadline, what
        time.sleep(0.1)


# -- one client after the other ---------------------------------------------------------------


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_librdkafka_compresses_as_it_likes(server: KafkaStandalone, codec: str) -> None:
    topic = next(NAMES)
    produced(server, topic, 500, **{"compression.type": codec})
    consumer = confluent_consumer(server, f"group of {topic}")
    consumer.subscribe([topic])
    found = polled(consumer, 500)
    assert [each.value() for each in found] == [b"value-%d" % n for n in range(500)]
    assert [each.offset() for each in found] == list(range(500))
    consumer.close()


def test_keys_headers_timestamps_and_nulls(server: KafkaStandalone) -> None:
    topic = next(NAMES)
    producer = confluent_producer(server)
    producer.produce(
        topic, key=b"k", value=None, timestamp=1_000, headers={"h": b"\xff", "n": None}
    )
    producer.produce(topic, key=None, value=b"", timestamp=2_000)
    assert producer.flush(DEADLINE_S) == 0
    consumer = confluent_consumer(server, f"group of {topic}")
    consumer.subscribe([topic])
    first, second = polled(consumer, 2)
    assert (first.key(), first.value(), first.timestamp()[1]) == (b"k", None, 1_000)
    assert sorted(first.headers(), key=str) == [("h", b"\xff"), ("n", None)]
    assert (second.key(), second.value(), second.timestamp()[1]) == (None, b"", 2_000)
    consumer.close()


def test_kafka_python_produces_consumes_seeks_and_finds_times(server: KafkaStandalone) -> None:
    topic = next(NAMES)
    producer = kafka.KafkaProducer(bootstrap_servers=server.bootstrap, acks="all", linger_ms=5)
    sent = [
        producer.send(topic, key=b"k", value=b"%d" % n, timestamp_ms=10_000 + 10 * n)
        for n in range(200)
    ]
    assert [each.get(DEADLINE_S).offset for each in sent] == list(range(200))
    producer.close()
    place = kafka.TopicPartition(topic, 0)
    consumer = kafka.KafkaConsumer(bootstrap_servers=server.bootstrap, enable_auto_commit=False)
    consumer.assign([place])
    assert consumer.beginning_offsets([place]) == {place: 0}
    assert consumer.end_offsets([place]) == {place: 200}
    assert consumer.offsets_for_times({place: 10_995})[place].offset == 100
    consumer.seek(place, 150)
    found: list[bytes] = []
    deadline = time.monotonic() + DEADLINE_S
    while len(found) < 50 and time.monotonic() < deadline:
        for records in consumer.poll(1_000).values():
            found += [record.value for record in records]
    assert found == [b"%d" % n for n in range(150, 200)]
    consumer.close()


def test_kafka_python_in_a_group(server: KafkaStandalone) -> None:
    topic, group = next(NAMES), next(NAMES)
    produced(server, topic, 100)
    for expected in (100, 0):  # what is committed does not come again
        consumer = kafka.KafkaConsumer(
            topic,
            bootstrap_servers=server.bootstrap,
            group_id=group,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            consumer_timeout_ms=8_000 if expected else 3_000,
        )
        found = list(itertools.islice(consumer, 100))
        assert len(found) == expected
        if found:
            consumer.commit()
        consumer.close()


def test_aiokafka_produces_and_consumes(server: KafkaStandalone) -> None:
    topic = next(NAMES)

    async def scenario() -> None:
        producer = AIOKafkaProducer(
            bootstrap_servers=server.bootstrap, enable_idempotence=True, compression_type="lz4"
        )
        await producer.start()
        try:
            told = await asyncio.gather(
                *[producer.send_and_wait(topic, b"%d" % n, key=b"k") for n in range(100)]
            )
        finally:
            await producer.stop()
        assert sorted(each.offset for each in told) == list(range(100))
        consumer = AIOKafkaConsumer(
            topic,
            bootstrap_servers=server.bootstrap,
            group_id=f"group of {topic}",
            auto_offset_reset="earliest",
        )
        await consumer.start()
        try:
            found = [await asyncio.wait_for(consumer.getone(), DEADLINE_S) for _ in range(100)]
            assert sorted(int(each.value) for each in found) == list(range(100))
            await consumer.commit()
            assert await consumer.committed(AioPartition(topic, 0)) == 100
        finally:
            await consumer.stop()

    asyncio.run(scenario())


# -- groups -----------------------------------------------------------------------------------


def test_members_share_partitions_and_take_over_from_each_other(server: KafkaStandalone) -> None:
    topic, group = next(NAMES), next(NAMES)
    admin = AdminClient({"bootstrap.servers": server.bootstrap})
    admin.create_topics([NewTopic(topic, num_partitions=4)])[topic].result(DEADLINE_S)
    settings = {"session.timeout.ms": 6_000, "heartbeat.interval.ms": 500}
    members = [confluent_consumer(server, group, **settings) for _ in range(2)]
    for member in members:
        member.subscribe([topic])

    def shares() -> list[int]:
        for member in members:
            member.poll(0.2)
        return sorted(len(member.assignment()) for member in members)

    until(lambda: shares() == [2, 2], "two members, two partitions each")
    described = admin.describe_consumer_groups([group])[group].result(DEADLINE_S)
    assert described.state.name == "STABLE"
    assert len(described.members) == 2
    members.pop().close()
    until(lambda: shares() == [4], "the other has all of them")
    produced(server, topic, 200)
    found = polled(members[0], 200)
    assert Counter(each.value() for each in found) == Counter(b"value-%d" % n for n in range(200))
    by_key: dict[bytes, list[int]] = {}
    for each in found:
        by_key.setdefault(each.key(), []).append(int(each.value()[6:]))
    assert all(numbers == sorted(numbers) for numbers in by_key.values()), "order of each key"
    members[0].commit(asynchronous=False)
    members[0].close()
    listed = admin.list_consumer_groups().result(DEADLINE_S)
    assert group in [each.group_id for each in listed.valid]
    admin.delete_consumer_groups([group])[group].result(DEADLINE_S)
    with pytest.raises(confluent.KafkaException):
        admin.delete_consumer_groups([group])[group].result(DEADLINE_S)


def test_a_static_member_comes_back_to_its_partitions(server: KafkaStandalone) -> None:
    topic, group = next(NAMES), next(NAMES)
    produced(server, topic, 10)
    settings = {"group.instance.id": "one", "session.timeout.ms": 30_000}
    first = confluent_consumer(server, group, **settings)
    first.subscribe([topic])
    assert len(polled(first, 10)) == 10
    first.commit(asynchronous=False)
    del first  # without a word: librdkafka does not leave for a static member
    second = confluent_consumer(server, group, **settings)
    second.subscribe([topic])
    produced(server, topic, 10)
    assert polled(second, 10)[0].offset() == 10
    second.close()


# -- topics -----------------------------------------------------------------------------------


def test_topics_are_made_grown_configured_and_deleted(server: KafkaStandalone) -> None:
    topic = next(NAMES)
    admin = AdminClient({"bootstrap.servers": server.bootstrap})
    wanted = NewTopic(topic, num_partitions=2, config={"retention.ms": "600000"})
    admin.create_topics([wanted])[topic].result(DEADLINE_S)
    with pytest.raises(confluent.KafkaException, match="TOPIC_ALREADY_EXISTS"):
        admin.create_topics([NewTopic(topic, 2)])[topic].result(DEADLINE_S)
    assert len(admin.list_topics(topic, DEADLINE_S).topics[topic].partitions) == 2
    other = next(NAMES)
    with pytest.raises(confluent.KafkaException, match="INVALID_REQUEST"):
        admin.create_topics([NewTopic(other, 2), NewTopic(other, 2)])[other].result(DEADLINE_S)
    assert other not in admin.list_topics(timeout=DEADLINE_S).topics
    admin.create_partitions([NewPartitions(topic, 3)])[topic].result(DEADLINE_S)
    assert len(admin.list_topics(topic, DEADLINE_S).topics[topic].partitions) == 3
    with pytest.raises(confluent.KafkaException, match="INVALID_PARTITIONS"):
        admin.create_partitions([NewPartitions(topic, 1)])[topic].result(DEADLINE_S)
    resource = ConfigResource(ResourceType.TOPIC, topic)
    found = admin.describe_configs([resource])[resource].result(DEADLINE_S)
    assert found["retention.ms"].value == "600000"
    change = ConfigResource(
        ResourceType.TOPIC,
        topic,
        incremental_configs=[
            ConfigEntry("retention.ms", "1200000", incremental_operation=AlterConfigOpType.SET)
        ],
    )
    admin.incremental_alter_configs([change])[change].result(DEADLINE_S)
    found = admin.describe_configs([resource])[resource].result(DEADLINE_S)
    assert found["retention.ms"].value == "1200000"
    refused = ConfigResource(
        ResourceType.TOPIC,
        topic,
        incremental_configs=[
            ConfigEntry("cleanup.policy", "compact", incremental_operation=AlterConfigOpType.SET)
        ],
    )
    with pytest.raises(confluent.KafkaException, match=r"magnetar\.engine=partition"):
        admin.incremental_alter_configs([refused])[refused].result(DEADLINE_S)
    admin.delete_topics([topic])[topic].result(DEADLINE_S)
    with pytest.raises(confluent.KafkaException, match="UNKNOWN_TOPIC"):
        admin.delete_topics([topic])[topic].result(DEADLINE_S)
    assert topic not in admin.list_topics(timeout=DEADLINE_S).topics


def test_librdkafka_fetches_by_ids(server: KafkaStandalone) -> None:
    topic, said = next(NAMES), StringIO()
    logger = logging.Logger("librdkafka", logging.DEBUG)
    logger.addHandler(logging.StreamHandler(said))
    admin = AdminClient({"bootstrap.servers": server.bootstrap})
    admin.create_topics([NewTopic(topic, 1)])[topic].result(DEADLINE_S)
    produced(server, topic, 10)
    settings = {"bootstrap.servers": server.bootstrap, "group.id": topic, "debug": "protocol"}
    consumer = confluent.Consumer(settings, logger=logger)
    consumer.assign([confluent.TopicPartition(topic, 0, confluent.OFFSET_BEGINNING)])
    assert [each.offset() for each in polled(consumer, 10)] == list(range(10))
    consumer.close()
    versions = {int(each) for each in re.findall(r"Sent FetchRequest \(v(\d+)", said.getvalue())}
    assert versions, said.getvalue()
    assert min(versions) >= 13, "the first version with ids"


# -- ends -------------------------------------------------------------------------------------


def test_nothing_is_lost_or_twice_over_kills(tmp_path: Path) -> None:
    """kill -9 while an idempotent producer sends: what it was told is stored, once, in order, and a
    group goes on where it was."""
    server = KafkaStandalone(tmp_path / "data")
    told: list[int] = []
    with contextlib.ExitStack() as stack:
        server.start()
        stack.callback(server.kill)
        producer = confluent_producer(server, **{"enable.idempotence": True, "linger.ms": 2})
        number = 0
        for _ in range(3):
            for _ in range(300):
                value = b"%d" % number
                number += 1
                producer.produce("killed", value=value, on_delivery=_note(told))
                producer.poll(0.002)
            server.kill()
            server.start()
        assert producer.flush(DEADLINE_S) == 0
        assert told == list(range(number))
        consumer = confluent_consumer(server, "readers", **{"enable.auto.commit": False})
        consumer.subscribe(["killed"])
        read = [each.value() for each in polled(consumer, number)]
        assert read == [b"%d" % each for each in range(number)]
        consumer.commit(asynchronous=False)
        server.kill()
        server.start()
        later = confluent_consumer(server, "readers")
        (place,) = later.committed([confluent.TopicPartition("killed", 0)], DEADLINE_S)
        assert place.offset == number
        consumer.close()
        later.close()


def _note(told: list[int]) -> Callable[[object, confluent.Message], None]:
    def note(error: object, message: confluent.Message) -> None:
        assert error is None, error
        told.append(int(message.value()))

    return note
