"""Acknowledging, refusing, sharing and failing over with the official client."""

from __future__ import annotations

import time
from collections.abc import Callable

import pulsar
import pytest

from magnetar.cluster.topic_name import parse_topic
from magnetar.model.errors import MetadataUnavailableError
from tests.interop.pulsar.helpers import (
    QUIET_MS,
    WAIT_MS,
    assert_quiet,
    eventually,
    publish,
    publish_batches,
    receive,
    texts,
)
from tests.interop.pulsar.services import MemoryService, Service

EXCLUSIVE = pulsar.ConsumerType.Exclusive
SHARED = pulsar.ConsumerType.Shared
FAILOVER = pulsar.ConsumerType.Failover


def batching(client: pulsar.Client, topic: str, size: int) -> pulsar.Producer:
    return client.create_producer(
        topic,
        batching_enabled=True,
        batching_max_messages=size,
        batching_max_publish_delay_ms=10_000,
    )


@pytest.mark.parametrize("kind", [EXCLUSIVE, SHARED, FAILOVER], ids=str)
def test_what_is_acknowledged_does_not_come_again(
    client: pulsar.Client, topic: str, kind: pulsar.ConsumerType
) -> None:
    consumer = client.subscribe(topic, "s", kind)
    publish(client.create_producer(topic), 20)
    for message in receive(consumer, 20):
        if int(message.data()) % 3:
            consumer.acknowledge(message)
    consumer.close()
    again = client.subscribe(topic, "s", kind)
    assert texts(receive(again, 7)) == [str(n) for n in range(0, 20, 3)]
    assert_quiet(again)


@pytest.mark.parametrize("kind", [EXCLUSIVE, FAILOVER], ids=str)
def test_cumulative(client: pulsar.Client, topic: str, kind: pulsar.ConsumerType) -> None:
    consumer = client.subscribe(topic, "s", kind)
    publish(client.create_producer(topic), 20)
    consumer.acknowledge_cumulative(receive(consumer, 12)[-1])
    consumer.close()
    again = client.subscribe(topic, "s", kind)
    assert texts(receive(again, 8)) == [str(n) for n in range(12, 20)]


def test_cumulative_inside_of_a_batch(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s", batch_index_ack_enabled=True)
    publish_batches(batching(client, topic, 10), 3, 10)
    consumer.acknowledge_cumulative(receive(consumer, 15)[-1])
    consumer.close()
    again = client.subscribe(topic, "s", batch_index_ack_enabled=True)
    assert texts(receive(again, 15)) == [str(n) for n in range(15, 30)]


@pytest.mark.parametrize("kind", [EXCLUSIVE, SHARED], ids=str)
def test_messages_of_a_batch_one_by_one(
    client: pulsar.Client, topic: str, kind: pulsar.ConsumerType
) -> None:
    consumer = client.subscribe(topic, "s", kind, batch_index_ack_enabled=True)
    publish_batches(batching(client, topic, 100), 1, 100)
    for message in receive(consumer, 100):
        if int(message.data()) not in (3, 64, 99):
            consumer.acknowledge(message)
    consumer.close()
    again = client.subscribe(topic, "s", kind, batch_index_ack_enabled=True)
    rest = receive(again, 3)
    assert texts(rest) == ["3", "64", "99"]
    for message in rest:
        again.acknowledge(message)
    again.close()
    assert_quiet(client.subscribe(topic, "s", kind))


def test_cumulative_is_refused_on_a_shared_subscription(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s", SHARED)
    publish(client.create_producer(topic), 1)
    with pytest.raises(pulsar.CumulativeAcknowledgementNotAllowedError):
        consumer.acknowledge_cumulative(consumer.receive(WAIT_MS))


def test_negative_acknowledgement_counts(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s", SHARED, negative_ack_redelivery_delay_ms=100)
    publish(client.create_producer(topic), 2)
    kept, refused = receive(consumer, 2)
    for count in range(1, 4):
        consumer.negative_acknowledge(refused)
        refused = consumer.receive(WAIT_MS)
        assert refused.data() == b"1"
        assert refused.redelivery_count() == count
    consumer.acknowledge(refused)
    consumer.acknowledge(kept)
    assert_quiet(consumer)


def test_negative_acknowledgement_on_an_exclusive_subscription(
    client: pulsar.Client, topic: str
) -> None:
    consumer = client.subscribe(topic, "s", negative_ack_redelivery_delay_ms=100)
    publish(client.create_producer(topic), 3)
    first, second, third = receive(consumer, 3)
    consumer.acknowledge(second)
    consumer.negative_acknowledge(first)
    assert texts(receive(consumer, 2)) == ["0", "2"]
    assert third.data() == b"2"


@pytest.mark.slow
def test_acknowledgement_timeout(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s", SHARED, unacked_messages_timeout_ms=10_000)
    publish(client.create_producer(topic), 3)
    receive(consumer, 3)
    again = [consumer.receive(15_000) for _ in range(3)]
    assert sorted(texts(again)) == ["0", "1", "2"]
    assert all(message.redelivery_count() == 1 for message in again)


def test_dead_letters(client: pulsar.Client, topic: str) -> None:
    policy = pulsar.ConsumerDeadLetterPolicy(2, f"{topic}-dead", "kept")
    consumer = client.subscribe(
        topic, "s", SHARED, dead_letter_policy=policy, negative_ack_redelivery_delay_ms=50
    )
    dead = client.subscribe(f"{topic}-dead", "d", SHARED)
    publish(client.create_producer(topic), 1)
    for _ in range(3):
        consumer.negative_acknowledge(consumer.receive(WAIT_MS))
    assert dead.receive(WAIT_MS).data() == b"0"
    kept = client.subscribe(f"{topic}-dead", "kept", SHARED)
    assert kept.receive(WAIT_MS).data() == b"0"


def test_shared_goes_to_all_and_to_each_once(client: pulsar.Client, topic: str) -> None:
    consumers = [client.subscribe(topic, "s", SHARED, receiver_queue_size=10) for _ in range(4)]
    publish(client.create_producer(topic), 40)
    counts: list[list[str]] = [[] for _ in consumers]

    def drain() -> int:
        for consumer, found in zip(consumers, counts, strict=True):
            found.extend(drained(consumer))
        return sum(map(len, counts))

    eventually(lambda: drain() >= 40)
    assert drain() == 40, "each once"
    assert {text for part in counts for text in part} == {str(n) for n in range(40)}
    assert all(counts)


def drained(consumer: pulsar.Consumer) -> list[str]:
    """What comes until nothing comes for a while."""
    found = []
    try:
        while True:
            message = consumer.receive(QUIET_MS)
            consumer.acknowledge(message)
            found.append(message.data().decode())
    except pulsar.Timeout:
        return found


def test_what_a_shared_consumer_leaves_goes_to_others(client: pulsar.Client, topic: str) -> None:
    leaving = client.subscribe(topic, "s", SHARED)
    publish(client.create_producer(topic), 10)
    taken = receive(leaving, 10)
    for message in taken[:4]:
        leaving.acknowledge(message)
    staying = client.subscribe(topic, "s", SHARED)
    assert_quiet(staying)
    leaving.close()
    assert texts(receive(staying, 6)) == [str(n) for n in range(4, 10)]


def test_exclusive_is_exclusive(client: pulsar.Client, topic: str) -> None:
    first = client.subscribe(topic, "s")
    with pytest.raises(pulsar.ConsumerBusy):
        client.subscribe(topic, "s")
    with pytest.raises(pulsar.ConsumerBusy):
        client.subscribe(topic, "s", SHARED)
    first.close()
    client.subscribe(topic, "s", SHARED)


def test_failover_to_the_next_in_order(client: pulsar.Client, topic: str) -> None:
    first = client.subscribe(topic, "s", FAILOVER, consumer_name="a")
    second = client.subscribe(topic, "s", FAILOVER, consumer_name="b")
    producer = client.create_producer(topic)
    publish(producer, 10)
    for message in receive(first, 10)[:6]:
        first.acknowledge(message)
    assert_quiet(second)
    first.close()
    assert texts(receive(second, 4)) == ["6", "7", "8", "9"]
    publish(producer, 2, first=10)
    assert texts(receive(second, 2)) == ["10", "11"]


def test_failover_to_one_of_better_order_that_comes_later(
    client: pulsar.Client, topic: str
) -> None:
    second = client.subscribe(topic, "s", FAILOVER, consumer_name="b")
    producer = client.create_producer(topic)
    publish(producer, 5)
    for message in receive(second, 5):
        second.acknowledge(message)
    first = client.subscribe(topic, "s", FAILOVER, consumer_name="a")
    time.sleep(1.3)
    publish(producer, 5, first=5)
    assert texts(receive(first, 5)) == ["5", "6", "7", "8", "9"]
    assert_quiet(second)


def test_a_client_that_vanishes_leaves_its_messages(
    connect: Callable[[], pulsar.Client], topic: str
) -> None:
    vanishing, staying = connect(), connect()
    consumer = vanishing.subscribe(topic, "s", SHARED)
    publish(staying.create_producer(topic), 5)
    receive(consumer, 5)
    vanishing.shutdown()
    other = staying.subscribe(topic, "s", SHARED)
    assert sorted(texts(receive(other, 5))) == ["0", "1", "2", "3", "4"]


def test_unsubscribe_forgets(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic)
    publish(producer, 3)
    receive(consumer, 3)
    consumer.unsubscribe()
    again = client.subscribe(topic, "s")
    assert_quiet(again)
    publish(producer, 1, first=3)
    assert texts(receive(again, 1)) == ["3"]


def test_redeliver_everything(client: pulsar.Client, topic: str, service: Service) -> None:
    consumer = client.subscribe(topic, "s", SHARED)
    publish(client.create_producer(topic), 6)
    messages = receive(consumer, 6)
    consumer.acknowledge(messages[2])
    eventually(lambda: service.backlog(topic, "s") == 5)  # the client sends it somewhat later
    consumer.redeliver_unacknowledged_messages()
    assert sorted(texts(receive(consumer, 5))) == ["0", "1", "3", "4", "5"]
    assert_quiet(consumer)


def test_receipts_of_acknowledgements(client: pulsar.Client, topic: str, service: Service) -> None:
    """Closing waits for acknowledgements under way, so the next consumer starts after them."""
    producer = client.create_producer(topic)
    for round_ in range(5):
        consumer = client.subscribe(topic, "s", initial_position=pulsar.InitialPosition.Earliest)
        publish(producer, 3, first=round_ * 3)
        messages = receive(consumer, 3)
        assert texts(messages) == [str(round_ * 3 + n) for n in range(3)]
        for message in messages:
            consumer.acknowledge(message)
        consumer.close()


def test_acknowledgements_survive_everybody_leaving(
    connect: Callable[[], pulsar.Client], topic: str
) -> None:
    first = connect()
    consumer = first.subscribe(topic, "s", SHARED)
    publish(first.create_producer(topic), 10)
    for message in receive(consumer, 10)[::2]:
        consumer.acknowledge(message)
    first.close()
    second = connect().subscribe(topic, "s", SHARED)
    assert texts(receive(second, 5)) == ["1", "3", "5", "7", "9"]
    eventually(lambda: second.is_connected())


@pytest.mark.parametrize(
    "request_it",
    [
        lambda consumer: consumer.unsubscribe(),
        lambda consumer: consumer.seek(0),
        lambda consumer: consumer.get_last_message_id(),
    ],
    ids=["unsubscribe", "seek", "last message id"],
)
def test_a_consumer_whose_request_fails_is_told_and_goes_on(
    client: pulsar.Client,
    topic: str,
    service: Service,
    request_it: Callable[[pulsar.Consumer], object],
) -> None:
    if not isinstance(service, MemoryService):
        pytest.skip("the fault is arranged in a log in memory")
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic)
    publish(producer, 1)
    consumer.acknowledge(consumer.receive(WAIT_MS))
    eventually(lambda: service.backlog(topic, "s") == 0)
    log = service.store.logs[parse_topic(topic).log_name]
    log.cached, log.failing = False, MetadataUnavailableError("the store is away")
    with pytest.raises(pulsar.PulsarException):
        request_it(consumer)
    log.cached, log.failing = True, None
    publish(producer, 1, first=1)
    assert texts(receive(consumer, 1)) == ["1"]
    consumer.unsubscribe()
    assert service.subscriptions(topic) == []
