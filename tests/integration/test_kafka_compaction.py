"""Compacted topics with librdkafka and kafka-python: made, filled, read while and after they are
compacted, over a kill and a start."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import confluent_kafka as confluent
import pulsar
import pytest
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType
from kafka import KafkaConsumer
from kafka import TopicPartition as KafkaPartition

from tests.integration.test_kafka_admin import admin_of, changed, described, made
from tests.integration.test_kafka_clients import (
    DEADLINE_S,
    KafkaStandalone,
    confluent_consumer,
    confluent_producer,
    until,
)

SETTINGS = ("--set", "broker.engine=partition", "--set", "partition.segment_bytes_max=16384",
            "--set", "partition.compaction_interval_ms=200")  # fmt: skip
KEYS = 20
DIRTY = {"min_cleanable_dirty_ratio": "0.01"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaStandalone]:
    with KafkaStandalone(tmp_path_factory.mktemp("kafka") / "data", *SETTINGS) as running:
        yield running


def put(server: KafkaStandalone, topic: str, first: int, count: int, **settings: Any) -> None:
    """Values of ``KEYS`` keys, the number of each in it."""
    producer = confluent_producer(server, **{"linger.ms": 5, "batch.num.messages": 7, **settings})
    failed: list[object] = []
    for number in range(first, first + count):
        producer.produce(
            topic,
            key=f"key-{number % KEYS}",
            value=f"{number} " + "x" * 100,
            on_delivery=lambda error, _: failed.append(error) if error else None,
        )
        producer.poll(0)
    assert producer.flush(DEADLINE_S) == 0
    assert failed == []


def to_the_end(server: KafkaStandalone, topic: str, **settings: Any) -> list[confluent.Message]:
    """All that a consumer gets until it is told that it is at the end."""
    wanted = {"enable.partition.eof": True, "isolation.level": "read_committed", **settings}
    consumer = confluent_consumer(server, "reads-to-the-end", **wanted)
    consumer.assign([confluent.TopicPartition(topic, 0, confluent.OFFSET_BEGINNING)])
    found: list[confluent.Message] = []
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline:
        message = consumer.poll(1.0)
        if message is None:
            continue
        if message.error() is not None:
            assert message.error().code() == confluent.KafkaError._PARTITION_EOF
            (at,) = consumer.position([confluent.TopicPartition(topic, 0)])
            _, end = consumer.get_watermark_offsets(confluent.TopicPartition(topic, 0))
            assert at.offset in (end, confluent.OFFSET_INVALID)
            consumer.close()
            return found
        found.append(message)
    raise AssertionError(f"no end after {len(found)} messages")


def numbers(found: list[confluent.Message]) -> dict[bytes, int]:
    """The last number of each key."""
    last: dict[bytes, int] = {}
    for each in found:
        value = each.value()
        if value is None:
            last.pop(each.key(), None)
        else:
            last[each.key()] = int(value.split()[0])
    return last


def is_compacted(server: KafkaStandalone, topic: str, most: int) -> bool:
    return len(to_the_end(server, topic)) <= most


def test_the_last_of_each_key_stays(server: KafkaStandalone) -> None:
    admin, topic = admin_of(server), "prices"
    made(admin, topic, cleanup_policy="compact", **DIRTY)
    found = described(admin, topic)
    assert found["cleanup.policy"].value == "compact"
    assert found["min.cleanable.dirty.ratio"].value == "0.01"
    assert found["delete.retention.ms"].value == "86400000"
    put(server, topic, 0, 2000, **{"enable.idempotence": True})
    until(lambda: is_compacted(server, topic, 500), "it is compacted")
    left = to_the_end(server, topic)
    assert numbers(left) == {b"key-%d" % (i % KEYS): i for i in range(1980, 2000)}
    offsets = [each.offset() for each in left]
    assert offsets == sorted(offsets)
    assert all(int(each.value().split()[0]) == each.offset() for each in left), "they stay"
    consumer = KafkaConsumer(bootstrap_servers=server.bootstrap, consumer_timeout_ms=20_000)
    place = KafkaPartition(topic, 0)
    assert consumer.end_offsets([place]) == {place: 2000}
    assert consumer.beginning_offsets([place]) == {place: 0}
    consumer.assign([place])
    gap = next(offset for offset in range(2000) if offset not in offsets)
    consumer.seek(place, gap)
    assert next(consumer).offset == min(each for each in offsets if each > gap)
    consumer.close()
    put(server, topic, 2000, 40)
    assert numbers(to_the_end(server, topic)) == {
        b"key-%d" % (i % KEYS): i for i in range(2020, 2040)
    }


def told_of(server: KafkaStandalone, topic: str, **settings: Any) -> list[Any]:
    """What the producer of a batch is told of its records: two have no key."""
    told: list[Any] = []
    # A batch goes out when it is full, and no earlier: a flush takes what has got to the
    # partition's queue, which while the topic is new to the producer may be some of them.
    whole = {"linger.ms": 2 * DEADLINE_S * 1000, "batch.num.messages": 4}
    producer = confluent_producer(server, **whole, **settings)
    for key in ("a", None, None, "b"):
        value = "x" * 100
        producer.produce(topic, value, key, on_delivery=lambda error, _: told.append(error))
    deadline = time.monotonic() + DEADLINE_S
    while len(told) < 4 and time.monotonic() < deadline:
        producer.poll(0.1)
    assert len(told) == 4
    return told


def test_records_without_a_key_are_refused(server: KafkaStandalone) -> None:
    admin, topic = admin_of(server), "keyed"
    made(admin, topic, cleanup_policy="compact")
    for codec in ("none", "gzip"):
        told = told_of(server, topic, **{"compression.type": codec})
        other = confluent.KafkaError._INVALID_DIFFERENT_RECORD
        bad = confluent.KafkaError.INVALID_RECORD
        assert [each.code() for each in told] == [other, bad, bad, other]
    changed(admin, topic, "cleanup.policy", "delete")
    until(lambda: told_of(server, topic) == [None] * 4, "it is not compacted any more")


def test_tombstones_go_and_markers_do_not_mislead(server: KafkaStandalone) -> None:
    admin, topic = admin_of(server), "in-transactions"
    made(admin, topic, cleanup_policy="compact,delete", delete_retention_ms="100", **DIRTY)
    producer = confluent_producer(server, **{"transactional.id": "writes-prices"})
    producer.init_transactions(DEADLINE_S)
    for number in range(60):
        producer.begin_transaction()
        for key in range(KEYS):
            value = f"{number} " + "x" * 50
            producer.produce(topic, key=f"key-{key}", value=value)
        gone = number % KEYS
        producer.produce(topic, key=f"key-{gone}", value=None)
        if number % 3 == 1:
            producer.abort_transaction(DEADLINE_S)
        else:
            producer.commit_transaction(DEADLINE_S)
    # 59 was committed: all keys but its own have its number.
    expected = {f"key-{key}".encode(): 59 for key in range(KEYS) if key != 59 % KEYS}
    until(lambda: is_compacted(server, topic, 300), "it is compacted")
    assert numbers(to_the_end(server, topic)) == expected
    put(server, topic, 100_000, 400)  # seals what is left of it
    until(
        lambda: all(each.value() for each in to_the_end(server, topic)), "tombstones are gone, too"
    )
    assert len(numbers(to_the_end(server, topic))) == KEYS
    producer.begin_transaction()
    producer.produce(topic, key="key-0", value="7 last")
    producer.commit_transaction(DEADLINE_S)
    assert numbers(to_the_end(server, topic))[b"key-0"] == 7, "no earlier abort hides it"


def test_the_policy_is_changed_and_records_are_deleted(server: KafkaStandalone) -> None:
    admin, topic = admin_of(server), "changed"
    made(admin, topic, **DIRTY)
    put(server, topic, 0, 1000)
    place = confluent.TopicPartition(topic, 0, 500)
    appended = ConfigEntry(
        "cleanup.policy", "compact", incremental_operation=AlterConfigOpType.APPEND
    )
    wanted = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[appended])
    admin.incremental_alter_configs([wanted])[wanted].result(DEADLINE_S)
    assert described(admin, topic)["cleanup.policy"].value == "delete,compact"
    until(lambda: is_compacted(server, topic, 300), "it is compacted")
    done = admin.delete_records([place])[place].result(DEADLINE_S)
    assert done.low_watermark == 500
    assert all(each.offset() >= 500 for each in to_the_end(server, topic))
    changed(admin, topic, "cleanup.policy", "compact")

    def refused() -> bool:
        try:
            admin.delete_records([place])[place].result(DEADLINE_S)
        except confluent.KafkaException as error:
            return bool(error.args[0].code() == confluent.KafkaError.POLICY_VIOLATION)
        return False

    until(refused, "what is only compacted is not deleted from")


def test_a_subscription_of_pulsars_is_not_held_up(server: KafkaStandalone) -> None:
    admin, topic = admin_of(server), "read-by-pulsar"
    made(admin, topic, cleanup_policy="compact", **DIRTY)
    put(server, topic, 0, 1000)
    until(lambda: is_compacted(server, topic, 300), "it is compacted")
    left = {(each.key().decode(), each.value()) for each in to_the_end(server, topic)}
    client = pulsar.Client(server.service_url)
    try:
        consumer = client.subscribe(
            f"{topic}-partition-0", "s", initial_position=pulsar.InitialPosition.Earliest
        )
        found = set()
        while found != left:
            message = consumer.receive(20_000)
            if message.data():  # what was compacted out only keeps its place
                found.add((message.partition_key(), message.data()))
            consumer.acknowledge(message)
    finally:
        client.close()


def test_it_is_compacted_over_kills_and_starts(tmp_path: Path) -> None:
    data, topic, written = tmp_path / "data", "killed", 0
    with KafkaStandalone(data, *SETTINGS) as server:
        made(admin_of(server), topic, cleanup_policy="compact", **DIRTY)
        for _ in range(3):
            put(server, topic, written, 600)
            written += 600
            found = numbers(to_the_end(server, topic))
            assert found == {b"key-%d" % (i % KEYS): i for i in range(written - KEYS, written)}
            server.kill()  # most likely while it is compacted
            server.start()
        until(lambda: is_compacted(server, topic, 500), "it is compacted")
        found = numbers(to_the_end(server, topic))
        assert found == {b"key-%d" % (i % KEYS): i for i in range(written - KEYS, written)}
    folder = data / "partitions"
    assert (folder / "cleaner-offset-checkpoint").read_text().startswith("0\n")
    assert not [path for path in folder.rglob("*") if path.suffix in (".cleaned", ".swap")]
