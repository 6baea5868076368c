"""Readers, seeking and last message ids with the official client."""

from __future__ import annotations

import time

import pulsar
import pytest

from tests.interop.pulsar.helpers import (
    WAIT_MS,
    assert_quiet,
    eventually,
    publish,
    publish_batches,
    receive,
    texts,
)
from tests.interop.pulsar.services import MemoryService, Service

EARLIEST = pulsar.MessageId.earliest
LATEST = pulsar.MessageId.latest


def read(reader: pulsar.Reader, count: int) -> list[str]:
    return [reader.read_next(WAIT_MS).data().decode() for _ in range(count)]


def numbers(first: int, stop: int) -> list[str]:
    return [str(n) for n in range(first, stop)]


def test_from_the_earliest_and_from_the_latest(client: pulsar.Client, topic: str) -> None:
    producer = client.create_producer(topic)
    publish(producer, 20)
    whole = client.create_reader(topic, EARLIEST)
    tail = client.create_reader(topic, LATEST)
    assert read(whole, 20) == numbers(0, 20)
    assert not tail.has_message_available()
    publish(producer, 1, first=20)
    assert read(tail, 1) == ["20"]
    assert read(whole, 1) == ["20"]


def test_after_an_id(client: pulsar.Client, topic: str) -> None:
    ids = publish(client.create_producer(topic), 20)
    for index in (0, 6, 7, 18):
        assert read(client.create_reader(topic, ids[index]), 1) == [str(index + 1)]
    assert not client.create_reader(topic, ids[19]).has_message_available()


def test_after_an_id_inside_of_a_batch(client: pulsar.Client, topic: str) -> None:
    producer = client.create_producer(
        topic,
        batching_enabled=True,
        batching_max_messages=10,
        batching_max_publish_delay_ms=10_000,
    )
    publish_batches(producer, 3, 10)
    first = client.create_reader(topic, EARLIEST)
    ids = [first.read_next(WAIT_MS).message_id() for _ in range(30)]
    for index in (0, 4, 9, 10, 28):
        assert read(client.create_reader(topic, ids[index]), 1) == [str(index + 1)]
    assert not client.create_reader(topic, ids[29]).has_message_available()


def test_inclusive_of_the_latest(client: pulsar.Client, topic: str) -> None:
    publish(client.create_producer(topic), 5)
    reader = client.create_reader(topic, LATEST, start_message_id_inclusive=True)
    assert reader.has_message_available()
    assert read(reader, 1) == ["4"]


@pytest.mark.parametrize("batch", [1, 10], ids=["plain", "batched"])
@pytest.mark.parametrize("inclusive", [False, True], ids=["exclusive", "inclusive"])
def test_from_every_id(client: pulsar.Client, topic: str, batch: int, inclusive: bool) -> None:
    """The first, the last, and everywhere in between of entries and batches."""
    ids = published(client, topic, 20, batch)
    for index in (0, 1, 4, 9, 10, 11, 15, 18):
        reader = client.create_reader(topic, ids[index], start_message_id_inclusive=inclusive)
        first = index if inclusive else index + 1
        assert read(reader, 20 - first) == numbers(first, 20)
        reader.close()
    last = client.create_reader(topic, ids[19], start_message_id_inclusive=inclusive)
    assert last.has_message_available() is inclusive
    if inclusive:
        assert read(last, 1) == ["19"]


def published(client: pulsar.Client, topic: str, count: int, batch: int) -> list[pulsar.MessageId]:
    """Numbers in entries of ``batch`` messages (1: not batched); each message's id."""
    producer = client.create_producer(
        topic,
        batching_enabled=batch > 1,
        batching_max_messages=max(2, batch),
        batching_max_publish_delay_ms=10_000,
    )
    ids: list[pulsar.MessageId] = []
    for number in range(count):
        producer.send_async(str(number).encode(), lambda _, sent: ids.append(sent))
    producer.flush()
    # Nothing is pending from when the client has taken a receipt, before it has told of it.
    eventually(lambda: len(ids) == count)
    return ids


@pytest.mark.parametrize("batch", [1, 10], ids=["plain", "batched"])
@pytest.mark.parametrize("seen", [0, 4], ids=["earliest", "id"])
def test_a_reader_that_reconnects_misses_nothing(topic: str, batch: int, seen: int) -> None:
    service = MemoryService()
    client = pulsar.Client(service.url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    try:
        ids = published(client, topic, 20, batch)
        place = ids[seen - 1] if seen else EARLIEST
        reader = client.create_reader(topic, place, receiver_queue_size=3)
        rest = numbers(seen, 20)
        while rest:
            assert read(reader, 1) == [rest.pop(0)]
            if len(rest) % 3 == 0:
                service.run(cut_connections(service))
        assert not available(reader)
    finally:
        client.close()
        service.close()


def available(reader: pulsar.Reader) -> bool:
    """Asked until it is connected: the client answers NotConnected while it knows it is not."""
    end = time.monotonic() + WAIT_MS / 1000
    while True:
        try:
            answer: bool = reader.has_message_available()
            return answer
        except pulsar.NotConnected:
            assert time.monotonic() < end
            time.sleep(0.05)


async def cut_connections(service: MemoryService) -> None:
    for session in list(service.broker.pulsar.services.sessions):
        session.abort()


def test_readers_leave_no_subscription(client: pulsar.Client, topic: str, service: Service) -> None:
    publish(client.create_producer(topic), 3)
    reader = client.create_reader(topic, EARLIEST, subscription_role_prefix="r")
    assert read(reader, 3) == numbers(0, 3)
    assert len(service.subscriptions(topic)) == 1
    reader.seek(EARLIEST)
    assert read(reader, 3) == numbers(0, 3)
    reader.close()
    eventually(lambda: service.subscriptions(topic) == [])


def test_available_until_all_is_read(client: pulsar.Client, topic: str) -> None:
    producer = client.create_producer(topic)
    reader = client.create_reader(topic, EARLIEST)
    assert not reader.has_message_available()
    publish(producer, 10)
    seen = []
    while reader.has_message_available():
        seen += read(reader, 1)
    assert seen == numbers(0, 10)


def test_available_until_all_batches_are_read(client: pulsar.Client, topic: str) -> None:
    producer = client.create_producer(topic, batching_enabled=True, batching_max_messages=10)
    publish_batches(producer, 2, 7)
    reader = client.create_reader(topic, EARLIEST)
    seen = []
    while reader.has_message_available():
        seen += read(reader, 1)
    assert seen == numbers(0, 14)


@pytest.mark.parametrize("kind", [pulsar.ConsumerType.Exclusive, pulsar.ConsumerType.Shared])
def test_seek_by_id(client: pulsar.Client, topic: str, kind: pulsar.ConsumerType) -> None:
    consumer = client.subscribe(topic, "s", kind)
    ids = publish(client.create_producer(topic), 30)
    for message in receive(consumer, 30):
        consumer.acknowledge(message)
    consumer.seek(ids[12])
    assert texts(receive(consumer, 17)) == numbers(13, 30)
    consumer.seek(EARLIEST)
    assert texts(receive(consumer, 30)) == numbers(0, 30)
    consumer.seek(LATEST)
    assert_quiet(consumer)


def test_seek_inclusive(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s", start_message_id_inclusive=True)
    ids = publish(client.create_producer(topic), 20)
    receive(consumer, 20)
    consumer.seek(ids[7])
    assert texts(receive(consumer, 13)) == numbers(7, 20)


def test_many_seeks_keep_permits(client: pulsar.Client, topic: str) -> None:
    """A small queue would run dry if a seek lost permits."""
    consumer = client.subscribe(topic, "s", receiver_queue_size=5, start_message_id_inclusive=True)
    ids = publish(client.create_producer(topic), 20)
    for index in (3, 0, 9, 14, 2):
        consumer.seek(ids[index])
        assert texts(receive(consumer, 6)) == numbers(index, index + 6)


def test_seek_by_time(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s")
    reader = client.create_reader(topic, EARLIEST)
    producer = client.create_producer(topic)
    publish(producer, 10)
    time.sleep(0.05)
    middle = int(time.time() * 1000)
    publish(producer, 10, first=10)
    receive(consumer, 20)
    consumer.seek(middle)
    assert texts(receive(consumer, 10)) == numbers(10, 20)
    reader.seek(middle)
    assert read(reader, 10) == numbers(10, 20)
    reader.seek(0)
    assert read(reader, 20) == numbers(0, 20)
    consumer.seek(int(time.time() * 1000) + 60_000)
    assert_quiet(consumer)


def test_a_reader_seeks_by_id(client: pulsar.Client, topic: str) -> None:
    ids = publish(client.create_producer(topic), 20)
    reader = client.create_reader(topic, LATEST)
    reader.seek(ids[4])
    assert read(reader, 15) == numbers(5, 20)
    reader.seek(EARLIEST)
    assert read(reader, 20) == numbers(0, 20)
    reader.seek(LATEST)
    assert not reader.has_message_available()


def test_what_was_acknowledged_comes_again_after_a_seek(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s", pulsar.ConsumerType.Shared)
    publish(client.create_producer(topic), 10)
    for message in receive(consumer, 10)[1::2]:
        consumer.acknowledge(message)
    consumer.seek(EARLIEST)
    assert texts(receive(consumer, 10)) == numbers(0, 10)


def test_last_message_id(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s")
    assert consumer.get_last_message_id().entry_id() == -1
    last = publish(client.create_producer(topic), 10)[-1]
    assert consumer.get_last_message_id() == last
    producer = client.create_producer(topic, batching_enabled=True, batching_max_messages=5)
    publish_batches(producer, 1, 5)
    assert consumer.get_last_message_id().batch_index() == 4
