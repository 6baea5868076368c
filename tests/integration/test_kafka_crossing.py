"""Pulsar's clients and Kafka's on one topic: keys, order, what messages say of themselves."""

from __future__ import annotations

import socket
import struct
import time
from pathlib import Path

import confluent_kafka as confluent
import crc32c
import pulsar
import pytest

from magnetar.wire.crossing.kafka_to_pulsar import NOT_CONVERTED
from magnetar.wire.kafka.apis import ApiKey, encode_request, read_response
from magnetar.wire.kafka.batches import is_batch
from magnetar.wire.kafka.primitives import FieldReader
from magnetar.wire.kafka.produce_messages import ProducePartition, ProduceRequest, ProduceTopic
from tests.integration.test_kafka_clients import (
    DEADLINE_S,
    KafkaStandalone,
    confluent_consumer,
    confluent_producer,
    polled,
)

COUNT = 2_000


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> object:
    with KafkaStandalone(tmp_path_factory.mktemp("crossing") / "data") as running:
        yield running


def pulsar_client(server: KafkaStandalone) -> pulsar.Client:
    quiet = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    return pulsar.Client(server.service_url, logger=quiet)


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_what_kafka_wrote_as_pulsar_reads_it(server: KafkaStandalone, codec: str) -> None:
    topic = f"to-pulsar-{codec}"
    producer = confluent_producer(server, **{"compression.type": codec, "linger.ms": 5})
    for number in range(COUNT):
        producer.produce(
            topic,
            key=f"key-{number % 7}",
            value=f"value-{number}",
            timestamp=1_000 + number,
            headers={"number": str(number)},
        )
        producer.poll(0)
    assert producer.flush(DEADLINE_S) == 0
    client = pulsar_client(server)
    earliest = pulsar.InitialPosition.Earliest
    consumer = client.subscribe(f"{topic}-partition-0", "s", initial_position=earliest)
    for number in range(COUNT):
        message = consumer.receive(60_000)
        assert message.data() == b"value-%d" % number
        assert message.partition_key() == f"key-{number % 7}"
        assert message.event_timestamp() == 1_000 + number
        assert message.properties() == {"number": str(number)}
        consumer.acknowledge(message)
    reader = client.create_reader(f"{topic}-partition-0", pulsar.MessageId.earliest)
    read = 0
    while reader.has_message_available():  # by the index of the last message of the last batch
        reader.read_next(60_000)
        read += 1
    assert read == COUNT
    client.close()


@pytest.mark.parametrize("batched", [True, False])
@pytest.mark.parametrize("codec", ["NONE", "LZ4", "ZLib", "ZSTD", "SNAPPY"])
def test_what_pulsar_wrote_as_kafka_reads_it(
    server: KafkaStandalone, codec: str, batched: bool
) -> None:
    topic = f"to-kafka-{codec}-{batched}"
    client = pulsar_client(server)
    producer = client.create_producer(
        topic,
        compression_type=getattr(pulsar.CompressionType, codec),
        batching_enabled=batched,
        block_if_queue_full=True,
    )
    count = COUNT if batched else COUNT // 10
    for number in range(count):
        producer.send_async(
            b"value-%d" % number,
            None,
            partition_key=f"key-{number % 7}",
            event_timestamp=1_000 + number,
            properties={"number": str(number)},
        )
    producer.flush()
    client.close()
    consumer = confluent_consumer(server, f"group of {topic}")
    consumer.subscribe([topic])
    found = polled(consumer, count)
    assert [each.value() for each in found] == [b"value-%d" % n for n in range(count)]
    assert [each.offset() for each in found] == list(range(count))
    assert [each.key() for each in found] == [b"key-%d" % (n % 7) for n in range(count)]
    assert [each.timestamp()[1] for each in found] == [1_000 + n for n in range(count)]
    assert found[5].headers() == [("number", b"5")]
    consumer.close()


def stored(server: KafkaStandalone, topic: str, records: bytes, count: int, codec: int) -> None:
    """A batch with a sound header and checksum, whatever is in it, by a client that is none of the
    official ones: these send nothing of the kind."""
    now_ms = int(time.time() * 1000)
    checked = struct.pack(">hiqqqhii", codec, count - 1, now_ms, now_ms, -1, -1, -1, count)
    checked += records
    after = struct.pack(">ibI", 0, 2, crc32c.crc32c(checked)) + checked
    batch = struct.pack(">qi", 0, len(after)) + after
    request = ProduceRequest(None, -1, 10_000, [ProduceTopic(topic, [ProducePartition(0, batch)])])
    address = ("127.0.0.1", server.kafka_port)
    with socket.create_connection(address, DEADLINE_S) as to, to.makefile("rb") as answers:
        to.sendall(encode_request(ApiKey.PRODUCE, 7, 1, "odd", request))
        answer = answers.read(int.from_bytes(answers.read(4), "big"))
    _, told = read_response(ApiKey.PRODUCE, 7, FieldReader(memoryview(answer)))
    assert told.topics[0].partitions[0].error_code == 0


def test_what_nobody_can_take_apart_stops_no_consumer(server: KafkaStandalone) -> None:
    """Pulsar's C++ client drops its connection, with all that is on it, over bytes that are no
    entry, and got them again when it was back."""
    topic = "odd"
    producer = confluent_producer(server)
    client = pulsar_client(server)
    producer.produce(topic, value=b"first")
    assert producer.flush(DEADLINE_S) == 0
    stored(server, topic, b"of no gzip", 3, 1)
    stored(server, topic, b"\xff" * 50, 1, 0)
    producer.produce(topic, value=b"last")
    assert producer.flush(DEADLINE_S) == 0
    partition, earliest = f"{topic}-partition-0", pulsar.InitialPosition.Earliest
    consumer = client.subscribe(partition, "s", initial_position=earliest)
    seen: list[bytes] = []
    odd: list[str] = []
    while not seen or seen[-1] != b"last":
        message = consumer.receive(60_000)
        consumer.acknowledge(message)
        why = message.properties().get(NOT_CONVERTED)
        if why is not None:
            odd.append(why)
            assert is_batch(message.data())
        elif message.data():  # nothing is left of the odd batch's other two
            seen.append(message.data())
    assert seen == [b"first", b"last"]
    assert len(odd) == 2
    assert "GZIP" in odd[0]
    client.close()


def test_pulsar_reads_what_a_transaction_has_committed(server: KafkaStandalone) -> None:
    """Neither markers nor what was aborted; what has no outcome yet waits, with what follows."""
    topic = "transactions"
    client = pulsar_client(server)
    producer = confluent_producer(server, **{"transactional.id": "t", "linger.ms": 0})
    producer.init_transactions(DEADLINE_S)

    def transaction(*values: int) -> None:
        producer.begin_transaction()
        for value in values:
            producer.produce(topic, value=b"%d" % value)
            assert producer.flush(DEADLINE_S) == 0

    transaction(1, 2)
    producer.abort_transaction(DEADLINE_S)
    transaction(3, 4)
    producer.commit_transaction(DEADLINE_S)
    earliest = pulsar.InitialPosition.Earliest
    partition = f"{topic}-partition-0"
    shared = client.subscribe(
        partition, "shared", pulsar.ConsumerType.Shared, initial_position=earliest
    )
    alone = client.subscribe(partition, "alone", initial_position=earliest)
    transaction(5, 6)
    plain = client.create_producer(partition)
    plain.send(b"7")
    for consumer in (shared, alone):
        for expected in (b"3", b"4"):
            message = consumer.receive(60_000)
            assert message.data() == expected
            consumer.acknowledge(message)
        with pytest.raises(pulsar.Timeout):
            consumer.receive(500)
    producer.commit_transaction(DEADLINE_S)
    for consumer in (shared, alone):
        for expected in (b"5", b"6", b"7"):
            message = consumer.receive(60_000)
            assert message.data() == expected
            consumer.acknowledge(message)
    transaction(8)
    producer.abort_transaction(DEADLINE_S)
    reader = client.create_reader(partition, pulsar.MessageId.earliest)
    read = []
    while reader.has_message_available():
        read.append(reader.read_next(60_000).data())
    assert read == [b"3", b"4", b"5", b"6", b"7"]
    client.close()


def test_both_write_one_topic_and_both_read_it(server: KafkaStandalone, tmp_path: Path) -> None:
    topic = "both"
    client = pulsar_client(server)
    kafka_producer = confluent_producer(server)
    kafka_producer.produce(topic, value=b"0")
    assert kafka_producer.flush(DEADLINE_S) == 0
    pulsar_producer = client.create_producer(f"{topic}-partition-0")
    for number in range(1, 100):
        if number % 2:
            pulsar_producer.send(b"%d" % number)
        else:
            kafka_producer.produce(topic, value=b"%d" % number)
            assert kafka_producer.flush(DEADLINE_S) == 0
    consumer = confluent_consumer(server, "both of them")
    consumer.subscribe([topic])
    assert [each.value() for each in polled(consumer, 100)] == [b"%d" % n for n in range(100)]
    (at,) = consumer.offsets_for_times([confluent.TopicPartition(topic, 0, 1)], DEADLINE_S)
    assert at.offset == 0
    consumer.close()
    reader = client.create_reader(f"{topic}-partition-0", pulsar.MessageId.earliest)
    assert [reader.read_next(60_000).data() for _ in range(100)] == [b"%d" % n for n in range(100)]
    client.close()
