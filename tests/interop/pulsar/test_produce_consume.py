"""Producing and consuming with the official client: what goes in comes out."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable
from datetime import timedelta

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
from tests.interop.pulsar.services import Service

COMPRESSIONS = [
    pulsar.CompressionType.NONE,
    pulsar.CompressionType.LZ4,
    pulsar.CompressionType.ZLib,
    pulsar.CompressionType.ZSTD,
    pulsar.CompressionType.SNAPPY,
]


def test_unbatched_in_order_with_the_ids_of_the_receipts(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s")
    ids = publish(client.create_producer(topic), 30)
    messages = receive(consumer, 30)
    assert texts(messages) == [str(n) for n in range(30)]
    assert [m.message_id() for m in messages] == ids
    assert ids == sorted(ids)


@pytest.mark.parametrize("compression", COMPRESSIONS, ids=str)
def test_batches_in_every_compression(
    client: pulsar.Client, topic: str, compression: pulsar.CompressionType
) -> None:
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(
        topic,
        compression_type=compression,
        batching_enabled=True,
        batching_max_messages=50,
        batching_max_publish_delay_ms=5000,
    )
    publish_batches(producer, 4, 50)
    messages = receive(consumer, 200)
    assert texts(messages) == [str(n) for n in range(200)]
    entries = {(m.message_id().ledger_id(), m.message_id().entry_id()) for m in messages}
    assert len(entries) == 4


def test_keys_properties_and_times(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic, producer_name="named", initial_sequence_id=41)
    producer.send(b"x", properties={"a": "1", "b": "ü"}, partition_key="k", event_timestamp=77)
    message = consumer.receive(WAIT_MS)
    assert message.properties() == {"a": "1", "b": "ü"}
    assert message.partition_key() == "k"
    assert message.event_timestamp() == 77
    assert message.publish_timestamp() > 1_600_000_000_000
    assert message.producer_name() == "named"
    assert producer.last_sequence_id() == 42


def test_generated_names_are_unique(client: pulsar.Client, topic: str) -> None:
    names = {client.create_producer(topic).producer_name() for _ in range(5)}
    assert len(names) == 5


def test_a_name_is_taken_once(client: pulsar.Client, topic: str) -> None:
    first = client.create_producer(topic, producer_name="one")
    with pytest.raises(pulsar.ProducerBusy):
        client.create_producer(topic, producer_name="one")
    first.close()
    client.create_producer(topic, producer_name="one").send(b"x")


def test_the_largest_message_passes_and_a_larger_one_is_refused(
    client: pulsar.Client, topic: str
) -> None:
    largest = 5 << 20  # Pulsar's own bound, with the metadata that the client counts
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic, batching_enabled=False)
    body = bytes(range(256)) * (largest // 256)
    producer.send(body[: largest - 200])
    with pytest.raises(pulsar.MessageTooBig):
        producer.send(bytes(largest + 1))
    assert consumer.receive(WAIT_MS).data() == body[: largest - 200]
    producer.send(b"and on")
    assert consumer.receive(WAIT_MS).data() == b"and on"


def test_chunked_messages(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic, chunking_enabled=True)
    body = bytes(range(251)) * 50_000
    producer.send(body)
    assert consumer.receive(WAIT_MS).data() == body


def test_pipelined_sends_are_all_answered_in_order(client: pulsar.Client, topic: str) -> None:
    answered: list[pulsar.MessageId] = []
    producer = client.create_producer(topic, block_if_queue_full=True)
    for number in range(3000):
        producer.send_async(str(number).encode(), lambda result, id_: answered.append(id_))
    producer.flush()
    eventually(lambda: len(answered) == 3000)
    assert answered == sorted(answered)
    assert len(set(map(str, answered))) == 3000
    consumer = client.subscribe(topic, "s", initial_position=pulsar.InitialPosition.Earliest)
    assert texts(receive(consumer, 3000)) == [str(n) for n in range(3000)]


def test_a_queue_of_zero_asks_for_each_message(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s", receiver_queue_size=0)
    publish(client.create_producer(topic), 5)
    for number in range(5):
        message = consumer.receive()
        assert message.data() == str(number).encode()
        consumer.acknowledge(message)


def test_batches_larger_than_the_queue_flow(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s", receiver_queue_size=3)
    producer = client.create_producer(topic, batching_enabled=True, batching_max_messages=20)
    publish_batches(producer, 5, 20)
    assert texts(receive(consumer, 100)) == [str(n) for n in range(100)]


def test_initial_positions(client: pulsar.Client, topic: str) -> None:
    producer = client.create_producer(topic)
    publish(producer, 10)
    earliest = client.subscribe(topic, "e", initial_position=pulsar.InitialPosition.Earliest)
    latest = client.subscribe(topic, "l", initial_position=pulsar.InitialPosition.Latest)
    publish(producer, 1, first=10)
    assert texts(receive(earliest, 11)) == [str(n) for n in range(11)]
    assert texts(receive(latest, 1)) == ["10"]


def test_subscriptions_are_independent(client: pulsar.Client, topic: str) -> None:
    consumers = [client.subscribe(topic, name) for name in ("a", "b", "c")]
    publish(client.create_producer(topic), 20)
    for consumer in consumers:
        assert texts(receive(consumer, 20)) == [str(n) for n in range(20)]


def test_a_listener(client: pulsar.Client, topic: str) -> None:
    seen: list[bytes] = []

    def listen(consumer: pulsar.Consumer, message: pulsar.Message) -> None:
        seen.append(message.data())
        consumer.acknowledge(message)

    client.subscribe(topic, "s", message_listener=listen)
    publish(client.create_producer(topic), 50)
    eventually(lambda: len(seen) == 50)
    assert seen == [str(n).encode() for n in range(50)]


def test_partitioned_round_robin_and_keys(
    client: pulsar.Client, topic: str, service: Service
) -> None:
    service.create_partitioned(topic, 3)
    assert client.get_topic_partitions(topic) == [f"{topic}-partition-{i}" for i in range(3)]
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(
        topic,
        message_routing_mode=pulsar.PartitionsRoutingMode.RoundRobinDistribution,
        batching_enabled=False,
    )
    for number in range(30):
        producer.send(str(number).encode())
    messages = receive(consumer, 30)
    assert sorted(map(int, texts(messages))) == list(range(30))
    assert {m.message_id().partition() for m in messages} == {0, 1, 2}
    for number in range(12):
        producer.send(str(number).encode(), partition_key=f"key-{number % 4}")
    places: dict[str, set[int]] = {}
    for message in receive(consumer, 12):
        places.setdefault(message.partition_key(), set()).add(message.message_id().partition())
    assert len(places) == 4
    assert all(len(partitions) == 1 for partitions in places.values())


def test_a_pattern_finds_topics(client: pulsar.Client, topic: str, service: Service) -> None:
    names = [f"{topic}-x-{i}" for i in range(2)]
    service.create_partitioned(f"{topic}-x-parts", 2)
    for name in [*names, f"{topic}-x-parts"]:
        client.create_producer(name).send(name.encode())
    pattern = re.compile(topic.removeprefix("persistent://") + "-x-.*")
    consumer = client.subscribe(pattern, "s", initial_position=pulsar.InitialPosition.Earliest)
    assert sorted(texts(receive(consumer, 3))) == sorted([*names, f"{topic}-x-parts"])


def test_exclusive_producers(client: pulsar.Client, topic: str) -> None:
    mode = pulsar.ProducerAccessMode
    first = client.create_producer(topic, access_mode=mode.Exclusive)
    with pytest.raises(pulsar.ProducerFenced):
        client.create_producer(topic, access_mode=mode.Exclusive)
    with pytest.raises(pulsar.ProducerBusy):
        client.create_producer(topic)
    second = client.create_producer(topic, access_mode=mode.ExclusiveWithFencing)
    second.send(b"mine")
    with pytest.raises((pulsar.ProducerFenced, pulsar.AlreadyClosed)):
        first.send(b"not mine any more")


def test_exclusive_producers_of_one_name(service: Service, topic: str) -> None:
    """Instances of an application, each with a client, that send under the name of all."""
    mode = pulsar.ProducerAccessMode
    clients = [pulsar.Client(service.url) for _ in range(4)]

    def make(number: int, access: pulsar.ProducerAccessMode) -> pulsar.Producer:
        return clients[number].create_producer(topic, producer_name="app", access_mode=access)

    first = make(0, mode.Exclusive)
    with pytest.raises(pulsar.ProducerFenced):
        make(1, mode.Exclusive)
    made: list[pulsar.Producer] = []
    waiting = threading.Thread(target=lambda: made.append(make(1, mode.WaitForExclusive)))
    waiting.start()
    waiting.join(0.5)
    assert not made
    first.send(b"the first")
    first.close()
    waiting.join(WAIT_MS / 1000)
    made[0].send(b"the second")
    third = make(2, mode.ExclusiveWithFencing)
    third.send(b"the third")
    with pytest.raises((pulsar.ProducerFenced, pulsar.AlreadyClosed)):
        made[0].send(b"not mine any more")
    consumer = clients[3].subscribe(topic, "s", initial_position=pulsar.InitialPosition.Earliest)
    assert texts(receive(consumer, 3)) == ["the first", "the second", "the third"]
    for each in clients:
        each.close()


def test_waiting_for_exclusive_access(client: pulsar.Client, topic: str) -> None:
    first = client.create_producer(topic)
    made: list[pulsar.Producer] = []
    mode = pulsar.ProducerAccessMode.WaitForExclusive
    waiting = threading.Thread(
        target=lambda: made.append(client.create_producer(topic, access_mode=mode))
    )
    waiting.start()
    waiting.join(0.5)
    assert not made
    first.close()
    waiting.join(WAIT_MS / 1000)
    made[0].send(b"my turn")


def test_unknown_namespaces_and_bad_names(client: pulsar.Client) -> None:
    with pytest.raises(pulsar.TopicNotFound):
        client.create_producer("persistent://nobody/nowhere/topic")
    with pytest.raises(pulsar.TopicNotFound):
        client.subscribe("persistent://public/nowhere/topic", "s")
    with pytest.raises(pulsar.NotAllowedError):
        client.create_producer("non-persistent://public/default/topic")


def test_schemas_pass_through(client: pulsar.Client, topic: str) -> None:
    schema = pulsar.schema.StringSchema()
    consumer = client.subscribe(topic, "s", schema=schema)
    client.create_producer(topic, schema=schema).send("text")
    assert consumer.receive(WAIT_MS).value() == "text"
    assert_quiet(consumer)


def test_chunks_of_a_message_go_to_one_of_several_consumers(
    client: pulsar.Client, topic: str
) -> None:
    got: list[bytes] = []

    def take(consumer: pulsar.Consumer, message: pulsar.Message) -> None:
        got.append(message.data())
        consumer.acknowledge(message)

    for _ in range(3):
        client.subscribe(topic, "s", pulsar.ConsumerType.Shared, message_listener=take)
    producers = [client.create_producer(topic, chunking_enabled=True) for _ in range(2)]
    bodies = [bytes([number]) * 6_000_000 + b"end" for number in range(4)]
    for number, body in enumerate(bodies):
        producers[number % 2].send_async(body, None)
        producers[number % 2].send(b"small %d" % number)
    eventually(lambda: len(got) == 8)
    assert {body[-10:] for body in got if len(body) < 10} == {b"small %d" % n for n in range(4)}
    assert [sum(body == item for item in got) for body in bodies] == [1, 1, 1, 1]


@pytest.mark.parametrize("batching", [False, True], ids=["plain", "batched"])
def test_delayed_messages_come_in_their_time(
    connect: Callable[[], pulsar.Client], topic: str, batching: bool
) -> None:
    """To shared consumers: never before it, in its order; the others do not wait for them."""
    client = connect()
    consumer = client.subscribe(topic, "s", pulsar.ConsumerType.Shared)
    ordered = client.subscribe(topic, "exclusive")
    producer = client.create_producer(topic, batching_enabled=batching)
    begun_ms = time.time() * 1000
    producer.send_async(b"3", None, deliver_at=int(begun_ms + 3000))
    producer.send_async(b"2", None, deliver_after=timedelta(seconds=2))
    producer.send(b"1")
    times_ms = {}
    for body in (b"1", b"2", b"3"):
        message = consumer.receive(WAIT_MS)
        times_ms[body] = time.time() * 1000 - begun_ms
        assert message.data() == body
        consumer.acknowledge(message)
    assert times_ms[b"1"] < times_ms[b"2"], "it waits for nothing"
    assert times_ms[b"2"] >= 2000
    assert times_ms[b"3"] >= 3000
    assert [ordered.receive(WAIT_MS).data() for _ in range(3)] == [b"3", b"2", b"1"]
    assert_quiet(consumer)


def test_what_is_delayed_survives_its_consumers_and_counts_as_such(
    service: Service, connect: Callable[[], pulsar.Client], topic: str
) -> None:
    consumer = connect().subscribe(topic, "s", pulsar.ConsumerType.Shared)
    producer = connect().create_producer(topic)
    for number in range(10):
        producer.send(b"%d" % number, deliver_after=timedelta(seconds=3))
    producer.send(b"now")
    assert consumer.receive(WAIT_MS).data() == b"now"
    eventually(lambda: service.delayed(topic, "s") == 10)
    consumer.close()
    consumer = connect().subscribe(topic, "s", pulsar.ConsumerType.Shared)
    assert consumer.receive(WAIT_MS).data() == b"now"
    assert [consumer.receive(WAIT_MS).data() for _ in range(10)] == [b"%d" % n for n in range(10)]
    assert service.delayed(topic, "s") == 0


def test_a_topic_of_two_thousand_partitions(
    service: Service, client: pulsar.Client, topic: str
) -> None:
    """All partitions are opened at a time; none is refused."""
    service.create_partitioned(topic, 2000)
    producer = client.create_producer(
        topic, message_routing_mode=pulsar.PartitionsRoutingMode.RoundRobinDistribution
    )
    ids = publish(producer, 20)
    assert len({message_id.partition() for message_id in ids}) > 1
    producer.close()
