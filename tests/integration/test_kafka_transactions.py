"""Transactions of Kafka's clients against a standalone: what is committed is read, once; what is
aborted is not."""

from __future__ import annotations

import asyncio
import contextlib
import time
from pathlib import Path
from typing import Any

import confluent_kafka as confluent
import kafka
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from confluent_kafka.admin import AdminClient, NewTopic

from tests.integration.test_kafka_clients import (
    DEADLINE_S,
    NAMES,
    KafkaStandalone,
    confluent_consumer,
    polled,
    produced,
    server,
)

__all__ = ["server"]


def transactional(server: KafkaStandalone, name: str, **settings: Any) -> confluent.Producer:
    producer = confluent.Producer(
        {"bootstrap.servers": server.bootstrap, "transactional.id": name, **settings}
    )
    producer.init_transactions(DEADLINE_S)
    return producer


def sent(producer: confluent.Producer, topic: str, values: range) -> None:
    for value in values:
        producer.produce(topic, value=b"%d" % value, partition=0)
    assert producer.flush(DEADLINE_S) == 0


def read(server: KafkaStandalone, topic: str, count: int, **settings: Any) -> list[int]:
    """``count`` values from the beginning on, and no more of them within a moment."""
    consumer = confluent_consumer(server, f"readers of {topic} {next(NAMES)}", **settings)
    consumer.subscribe([topic])
    try:
        found = polled(consumer, count) if count else []
        found += consumer.consume(1, 0.5)
        return [int(each.value()) for each in found if each.error() is None]
    finally:
        consumer.close()


UNCOMMITTED = {"isolation.level": "read_uncommitted"}


def test_what_is_committed_is_read_and_what_is_aborted_is_not(server: KafkaStandalone) -> None:
    topic = next(NAMES)
    producer = transactional(server, f"of {topic}")
    producer.begin_transaction()
    sent(producer, topic, range(10))
    producer.abort_transaction(DEADLINE_S)
    producer.begin_transaction()
    sent(producer, topic, range(10, 20))
    producer.commit_transaction(DEADLINE_S)
    producer.begin_transaction()
    sent(producer, topic, range(20, 30))
    assert read(server, topic, 10) == [*range(10, 20)], "the last one has no outcome"
    assert read(server, topic, 30, **UNCOMMITTED) == [*range(30)]
    place = kafka.TopicPartition(topic, 0)
    reader = kafka.KafkaConsumer(
        bootstrap_servers=server.bootstrap, isolation_level="read_committed"
    )
    assert reader.end_offsets([place]) == {place: 22}, "20 records and 2 markers are stable"
    producer.commit_transaction(DEADLINE_S)
    assert reader.end_offsets([place]) == {place: 33}
    reader.close()
    assert read(server, topic, 20) == [*range(10, 30)]


def test_a_second_producer_fences_the_first(server: KafkaStandalone) -> None:
    topic = next(NAMES)
    first = transactional(server, f"of {topic}")
    first.begin_transaction()
    sent(first, topic, range(5))
    second = transactional(server, f"of {topic}")
    second.begin_transaction()
    sent(second, topic, range(5, 10))
    with pytest.raises(confluent.KafkaException) as refused:
        first.commit_transaction(DEADLINE_S)
    assert refused.value.args[0].fatal()
    second.commit_transaction(DEADLINE_S)
    assert read(server, topic, 5) == [*range(5, 10)]


def test_a_transaction_that_is_open_for_too_long_is_aborted(server: KafkaStandalone) -> None:
    topic = next(NAMES)
    silent = transactional(server, f"of {topic}", **{"transaction.timeout.ms": 1_000})
    silent.begin_transaction()
    sent(silent, topic, range(5))
    produced(server, topic, 1)
    consumer = confluent_consumer(server, f"readers of {topic}")
    consumer.subscribe([topic])
    assert [each.value() for each in polled(consumer, 1)] == [b"value-0"]
    consumer.close()
    with pytest.raises(confluent.KafkaException):
        silent.commit_transaction(DEADLINE_S)


def test_kafka_python_and_aiokafka_commit_and_abort(server: KafkaStandalone) -> None:
    topic = next(NAMES)
    producer = kafka.KafkaProducer(
        bootstrap_servers=server.bootstrap, transactional_id=f"python {topic}"
    )
    producer.init_transactions()
    for commits, value in ((False, b"1"), (True, b"2")):
        producer.begin_transaction()
        producer.send(topic, value).get(DEADLINE_S)
        if commits:
            producer.commit_transaction()
        else:
            producer.abort_transaction()
    producer.close()

    async def scenario() -> list[bytes | None]:
        aio = AIOKafkaProducer(bootstrap_servers=server.bootstrap, transactional_id=f"aio {topic}")
        await aio.start()
        with contextlib.suppress(ZeroDivisionError):
            async with aio.transaction():
                await aio.send_and_wait(topic, b"3")
                raise ZeroDivisionError
        async with aio.transaction():
            await aio.send_and_wait(topic, b"4")
        await aio.stop()
        consumer = AIOKafkaConsumer(
            topic,
            bootstrap_servers=server.bootstrap,
            auto_offset_reset="earliest",
            isolation_level="read_committed",
        )
        await consumer.start()
        found = [await asyncio.wait_for(consumer.getone(), DEADLINE_S) for _ in range(2)]
        await consumer.stop()
        return [each.value for each in found]

    assert asyncio.run(scenario()) == [b"2", b"4"]
    assert read(server, topic, 2) == [2, 4]


@pytest.mark.parametrize("kills", [1, pytest.param(5, marks=pytest.mark.slow)])
def test_consume_transform_produce_is_exactly_once_over_kills(tmp_path: Path, kills: int) -> None:
    """Numbers are copied from one topic to another, with the offsets in the same transactions; the
    server is killed in the middle, and every third transaction is aborted."""
    server = KafkaStandalone(tmp_path / "data")
    count = 90 * (kills + 1)
    with contextlib.ExitStack() as stack:
        server.start()
        stack.callback(server.kill)
        admin = AdminClient({"bootstrap.servers": server.bootstrap})
        for each in admin.create_topics([NewTopic("from", 1), NewTopic("to", 1)]).values():
            each.result(DEADLINE_S)
        feeder = confluent.Producer({"bootstrap.servers": server.bootstrap})
        sent(feeder, "from", range(count))
        for _ in range(kills):
            assert copied(server, count, transactions=3) < count
            server.kill()
            server.start()
        assert copied(server, count) == count
        assert read(server, "to", count) == [*range(count)]


def copied(server: KafkaStandalone, count: int, transactions: int | None = None) -> int:
    """One life of a copier: how far it has come. With ``transactions`` it ends without a word in
    the last of them."""
    consumer = confluent_consumer(server, "copiers", **{"enable.auto.commit": False})
    producer = transactional(server, "copier")
    (committed,) = consumer.committed([confluent.TopicPartition("from", 0)], DEADLINE_S)
    offset = max(0, committed.offset)
    consumer.assign([confluent.TopicPartition("from", 0, offset)])
    deadline = time.monotonic() + DEADLINE_S
    number = 0
    while offset < count:
        assert time.monotonic() < deadline, f"{offset} of {count}"
        found = consumer.consume(30, 0.5)
        if not found:
            continue
        number += 1
        producer.begin_transaction()
        for each in found:
            assert each.error() is None, each.error()
            producer.produce("to", value=each.value(), partition=0)
        where = confluent.TopicPartition("from", 0, found[-1].offset() + 1)
        group = consumer.consumer_group_metadata()
        producer.send_offsets_to_transaction([where], group, DEADLINE_S)
        if number == transactions:
            producer.flush(DEADLINE_S)
            break  # as if it died here
        if number % 3 == 2:
            producer.abort_transaction(DEADLINE_S)
            consumer.seek(confluent.TopicPartition("from", 0, offset))
            continue
        producer.commit_transaction(DEADLINE_S)
        offset = where.offset
    consumer.close()
    return offset
