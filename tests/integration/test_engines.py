"""Both protocols on both engines: what is chosen where, what crosses, what a kill leaves."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import confluent_kafka as confluent
import pulsar
import pytest
from aiokafka import TopicPartition as AioPartition
from aiokafka.admin import AIOKafkaAdminClient, RecordsToDelete
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, ResourceType
from kafka import KafkaAdminClient, KafkaConsumer, TopicPartition
from kafka.errors import OffsetOutOfRangeError

from magnetar.cli.rest import RestClient
from magnetar.env.files.disk import RealDisk
from magnetar.log.partition.batch_header import whole_batches
from magnetar.log.partition.limits import PartitionPolicy
from magnetar.log.partition.log_directory import LogDirectory
from magnetar.log.partition.serving.envelopes import ENVELOPE
from magnetar.model.errors import RestError
from tests.integration.test_kafka_clients import (
    DEADLINE_S,
    KafkaStandalone,
    confluent_consumer,
    confluent_producer,
)

ENGINES = ("ledger", "partition")
SHORT, WHOLE = 4_000, 200_000
KEYS = 13
EARLIEST = pulsar.InitialPosition.Earliest


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaStandalone]:
    soon = ("--set", "partition.deletion_grace_ms=300")
    with KafkaStandalone(tmp_path_factory.mktemp("engines") / "data", *soon) as running:
        yield running


def pulsar_client(server: KafkaStandalone) -> pulsar.Client:
    quiet = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    return pulsar.Client(server.service_url, logger=quiet)


def folder(server: KafkaStandalone, topic: str, number: int = 0) -> Path:
    return server.data_dir / "partitions" / f"{topic}-{number}"


def create(server: KafkaStandalone, topic: str, engine: str, partitions: int = 1) -> None:
    path = f"/admin/v2/persistent/public/default/{topic}/partitions"
    RestClient(server.http_url).put(path, partitions, engine=engine)


def key_of(number: int) -> str:
    return f"key-{number * 7 % KEYS}"


# -- what crosses -------------------------------------------------------------------------------


def sent_by_kafka(server: KafkaStandalone, topic: str, count: int) -> None:
    producer = confluent_producer(server, **{"linger.ms": 5, "enable.idempotence": True})
    for number in range(count):
        while True:
            try:
                producer.produce(topic, key=key_of(number), value=str(number), partition=0)
                break
            except BufferError:
                producer.poll(0.1)
        if number % 500 == 0:
            producer.poll(0)
    assert producer.flush(DEADLINE_S) == 0


def sent_by_pulsar(server: KafkaStandalone, topic: str, count: int) -> None:
    client = pulsar_client(server)
    producer = client.create_producer(
        f"{topic}-partition-0", batching_enabled=True, block_if_queue_full=True
    )
    failed: list[object] = []
    ok = pulsar.Result.Ok
    for number in range(count):
        producer.send_async(
            str(number).encode(),
            lambda result, _: failed.append(result) if result != ok else None,
            partition_key=key_of(number),
        )
    producer.flush()
    assert not failed
    client.close()


def read_by_kafka(server: KafkaStandalone, topic: str, count: int) -> list[tuple[str, int]]:
    consumer = confluent_consumer(server, "g")
    consumer.assign([confluent.TopicPartition(topic, 0, confluent.OFFSET_BEGINNING)])
    found: list[tuple[str, int]] = []
    while len(found) < count:
        messages = consumer.consume(min(10_000, count - len(found)), DEADLINE_S)
        assert messages, f"{len(found)} of {count}"
        for message in messages:
            assert message.error() is None, message.error()
            assert message.offset() == len(found), "offsets are numbers of messages"
            found.append((message.key().decode(), int(message.value())))
    consumer.close()
    return found


def read_by_pulsar(server: KafkaStandalone, topic: str, count: int) -> list[tuple[str, int]]:
    client = pulsar_client(server)
    consumer = client.subscribe(f"{topic}-partition-0", "s", initial_position=EARLIEST)
    found: list[tuple[str, int]] = []
    while len(found) < count:
        message = consumer.receive(60_000)
        found.append((message.partition_key(), int(message.data())))
        if len(found) % 1000 == 0 or len(found) == count:
            consumer.acknowledge_cumulative(message)
    client.close()
    return found


SENT = {"kafka": sent_by_kafka, "pulsar": sent_by_pulsar}
READ = {"kafka": read_by_kafka, "pulsar": read_by_pulsar}


def crossed(server: KafkaStandalone, engine: str, into: str, out: str, count: int) -> None:
    topic = f"crossing-{engine}-{into}-{out}-{count}"
    create(server, topic, engine)
    SENT[into](server, topic, count)
    found = READ[out](server, topic, count)
    assert [number for _, number in found] == list(range(count)), "each once, in order"
    assert all(key == key_of(number) for key, number in found)
    assert folder(server, topic).exists() == (engine == "partition")


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(("into", "out"), [("kafka", "pulsar"), ("pulsar", "kafka")])
def test_messages_cross(server: KafkaStandalone, engine: str, into: str, out: str) -> None:
    crossed(server, engine, into, out, SHORT)


@pytest.mark.slow
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(("into", "out"), [("kafka", "pulsar"), ("pulsar", "kafka")])
def test_200_000_messages_cross(server: KafkaStandalone, engine: str, into: str, out: str) -> None:
    crossed(server, engine, into, out, WHOLE)


# -- who chooses --------------------------------------------------------------------------------


def kept(server: KafkaStandalone, topic: str) -> bytes:
    """What a partition's first segment holds."""
    return (folder(server, topic) / f"{0:020d}.log").read_bytes()


def test_kafkas_clients_choose_an_engine(server: KafkaStandalone) -> None:
    admin = AdminClient({"bootstrap.servers": server.bootstrap})
    configs = {"magnetar.engine": "partition", "retention.ms": "3600000"}
    made = admin.create_topics([NewTopic("chosen", 2, 1, config=configs)])
    made["chosen"].result(DEADLINE_S)
    wrong = admin.create_topics([NewTopic("wrong", 1, 1, config={"magnetar.engine": "tape"})])
    with pytest.raises(confluent.KafkaException, match="tape"):
        wrong["wrong"].result(DEADLINE_S)
    sent_by_kafka(server, "chosen", 20)
    heads = [head for _, head in whole_batches(kept(server, "chosen"), checked=True)]
    assert sum(head.record_count for head in heads) == 20
    assert heads[0].producer_id >= 0, "the batches are as they were sent"
    resource = ConfigResource(ResourceType.TOPIC, "chosen")
    described = admin.describe_configs([resource])[resource].result(DEADLINE_S)
    assert described["magnetar.engine"].value == "partition"


def test_a_namespaces_policy_chooses_for_topics_that_are_made(server: KafkaStandalone) -> None:
    rest = RestClient(server.http_url)
    rest.put("/admin/v2/namespaces/public/of-partitions")
    rest.send_post("/admin/v2/namespaces/public/of-partitions/engine", "partition")
    client = pulsar_client(server)
    producer = client.create_producer("public/of-partitions/t")
    producer.send(b"1")
    rest.delete("/admin/v2/namespaces/public/of-partitions/engine")
    client.create_producer("public/of-partitions/other").send(b"1")
    names = [each.name for each in (server.data_dir / "partitions").iterdir() if each.is_dir()]
    assert [name for name in names if "of-partitions" in name] == [
        "public%2Fof-partitions%2Fpersistent%2Ft-0"
    ]
    rest.put("/admin/v2/persistent/public/of-partitions/t/unload")
    producer.send(b"2")  # what is there stays on its engine
    consumer = client.subscribe("public/of-partitions/t", "s", initial_position=EARLIEST)
    assert [consumer.receive(60_000).data() for _ in range(2)] == [b"1", b"2"]
    client.close()


def test_a_deleted_topic_leaves_no_files(server: KafkaStandalone) -> None:
    rest, path = RestClient(server.http_url), "/admin/v2/persistent/public/default/gone"
    for engine in ("partition", "ledger", "partition"):
        rest.put(path, engine=engine)
        client = pulsar_client(server)
        client.create_producer("gone").send(b"x")
        consumer = client.subscribe("gone", "s", initial_position=EARLIEST)
        assert consumer.receive(60_000).data() == b"x"
        if engine == "partition":
            assert folder(server, "gone").exists()
        client.close()
        rest.delete(path, force="true")
    deadline_s = time.monotonic() + DEADLINE_S
    while folder(server, "gone").exists():
        assert time.monotonic() < deadline_s, "they go after their grace"
        time.sleep(0.1)


def _poll_until_refused(consumer: KafkaConsumer) -> None:
    deadline_s = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline_s:
        assert not consumer.poll(1_000)


async def _deleted_by_aiokafka(server: KafkaStandalone, topic: str, offset: int) -> int:
    admin = AIOKafkaAdminClient(bootstrap_servers=server.bootstrap)
    await admin.start()
    try:
        place = AioPartition(topic, 0)
        found = await admin.delete_records({place: RecordsToDelete(before_offset=offset)})
        return int(found[place])
    finally:
        await admin.close()


@pytest.mark.parametrize("engine", ENGINES)
def test_kafkas_admins_delete_records(server: KafkaStandalone, engine: str) -> None:
    begun = f"begun-{engine}"
    create(server, begun, engine)
    sent_by_kafka(server, begun, 100)
    admin = AdminClient({"bootstrap.servers": server.bootstrap})

    def deleted_before(topic: str, offset: int) -> int:
        place = confluent.TopicPartition(topic, 0, offset)
        found = admin.delete_records([place])[place].result(DEADLINE_S)
        return int(found.low_watermark)

    assert deleted_before(begun, 37) == 37
    assert deleted_before(begun, 12) == 37, "never back"
    for offset in (101, -3):
        with pytest.raises(confluent.KafkaException, match="OFFSET_OUT_OF_RANGE"):
            deleted_before(begun, offset)
    consumer = confluent_consumer(server, begun)
    place = confluent.TopicPartition(begun, 0, confluent.OFFSET_BEGINNING)
    assert consumer.get_watermark_offsets(place, timeout=DEADLINE_S) == (37, 100)
    ever = [confluent.TopicPartition(begun, 0, 1)]  # later than a millisecond of 1970
    assert consumer.offsets_for_times(ever, DEADLINE_S)[0].offset == 37, "not what is gone"
    consumer.assign([place])
    found = [int(each.value()) for each in consumer.consume(63, DEADLINE_S)]
    assert found == list(range(37, 100)), "also from the middle of a batch"
    consumer.close()
    outside = KafkaConsumer(bootstrap_servers=server.bootstrap, auto_offset_reset="none")
    outside.assign([TopicPartition(begun, 0)])
    outside.seek(TopicPartition(begun, 0), 36)
    with pytest.raises(OffsetOutOfRangeError):
        _poll_until_refused(outside)
    assert outside.beginning_offsets([TopicPartition(begun, 0)]) == {TopicPartition(begun, 0): 37}
    outside.close(autocommit=False)

    python = KafkaAdminClient(bootstrap_servers=server.bootstrap)
    partition = TopicPartition(begun, 0)
    answer = python.delete_records({partition: 90})
    assert answer[partition]["low_watermark"] == 90
    assert asyncio.run(_deleted_by_aiokafka(server, begun, 95)) == 95
    assert deleted_before(begun, confluent.OFFSET_END) == 100
    python.close()


@pytest.mark.parametrize("engine", ENGINES)
def test_records_that_are_deleted_are_gone_for_pulsars_subscriptions(
    server: KafkaStandalone, engine: str
) -> None:
    """What is out at a consumer, what waits for it, and what nobody has read yet."""
    topic = f"cut-{engine}"
    create(server, topic, engine)
    partition = f"{topic}-partition-0"
    client = pulsar_client(server)
    consumers = [
        client.subscribe(
            partition,
            f"s-{kind.name}",
            consumer_type=kind,
            initial_position=EARLIEST,
            receiver_queue_size=10,
        )
        for kind in (pulsar.ConsumerType.Exclusive, pulsar.ConsumerType.Shared)
    ]
    nobody = client.subscribe(partition, "nobody", initial_position=EARLIEST)
    nobody.close()
    producer = client.create_producer(partition, batching_enabled=False)
    for number in range(60):
        producer.send(str(number).encode())
    for consumer in consumers:
        assert consumer.receive(60_000).data() == b"0"

    admin = AdminClient({"bootstrap.servers": server.bootstrap})
    place = confluent.TopicPartition(topic, 0, 40)
    assert admin.delete_records([place])[place].result(DEADLINE_S).low_watermark == 40
    rest = RestClient(server.http_url)
    stats = rest.get(f"/admin/v2/persistent/public/default/{partition}/stats")
    backlogs = {name: each["msgBacklog"] for name, each in stats["subscriptions"].items()}
    assert backlogs == {"s-Exclusive": 20, "s-Shared": 20, "nobody": 20}

    expected = {str(number).encode() for number in range(40, 60)}
    for consumer in consumers:
        found = set()
        while not expected <= found:
            message = consumer.receive(60_000)
            found.add(message.data())
            consumer.acknowledge(message)
        consumer.close()
    again = client.subscribe(partition, "nobody")
    assert again.receive(60_000).data() == b"40"
    reader = client.create_reader(partition, pulsar.MessageId.earliest)
    assert reader.read_next(60_000).data() == b"40"
    client.close()


# -- subscriptions of Pulsar's on a partition ---------------------------------------------------


def test_entries_of_pulsars_are_what_they_were(server: KafkaStandalone) -> None:
    """Chunks, properties, ordering keys, delays: as on ledgers, since entries are wrapped whole."""
    create(server, "wrapped", "partition")
    topic = "wrapped-partition-0"
    client = pulsar_client(server)
    consumer = client.subscribe(topic, "s", initial_position=EARLIEST)
    chunked = client.create_producer(topic, chunking_enabled=True)
    large = bytes(range(256)) * (7 << 12)  # seven MiB
    chunked.send(large)
    plain = client.create_producer(topic, initial_sequence_id=41)
    plain.send(b"v", {"a": "1"}, ordering_key="o", event_timestamp=5)
    got = consumer.receive(60_000)
    assert got.data() == large
    consumer.acknowledge(got)
    got = consumer.receive(60_000)
    assert (got.data(), got.properties(), got.event_timestamp()) == (b"v", {"a": "1"}, 5)
    assert got.ordering_key() == "o"
    assert got.producer_name() == plain.producer_name()
    heads = [head for _, head in whole_batches(kept(server, "wrapped"), checked=True)]
    assert all(head.attributes & ENVELOPE for head in heads)
    client.close()


@pytest.mark.parametrize("kind", ["Exclusive", "Shared", "Failover"])
def test_subscriptions_of_every_type(server: KafkaStandalone, kind: str) -> None:
    """Acknowledged in part, the broker restarted: what was acknowledged does not come again."""
    topic, count = f"typed-{kind}", 600
    create(server, topic, "partition")
    client = pulsar_client(server)
    producer = client.create_producer(f"{topic}-partition-0", batching_enabled=False)
    for number in range(count):
        producer.send_async(str(number).encode(), None, partition_key=key_of(number))
    producer.flush()
    consumers = [
        client.subscribe(
            f"{topic}-partition-0",
            "s",
            consumer_type=getattr(pulsar.ConsumerType, kind),
            initial_position=EARLIEST,
            consumer_name=f"c{number}",
        )
        for number in range(1 if kind == "Exclusive" else 2)
    ]
    seen: Counter[int] = Counter()
    for _ in range(100):
        for consumer in consumers:
            for message in _received(consumer):
                seen[int(message.data())] += 1
                if int(message.data()) % 3:
                    consumer.acknowledge(message)
        if sum(seen.values()) >= count:
            break
    assert seen == Counter(range(count))
    client.close()  # acknowledgements are stored
    client = pulsar_client(server)
    again = client.subscribe(
        f"{topic}-partition-0", "s", consumer_type=getattr(pulsar.ConsumerType, kind)
    )
    rest = {int(again.receive(60_000).data()) for _ in range(count // 3)}
    assert rest == set(range(0, count, 3))
    with pytest.raises(pulsar.Timeout):
        again.receive(300)
    client.close()


def _received(consumer: pulsar.Consumer) -> Iterator[pulsar.Message]:
    """What is there."""
    while True:
        try:
            yield consumer.receive(200)
        except pulsar.Timeout:
            return


# -- after a kill -------------------------------------------------------------------------------


def test_nothing_acknowledged_is_lost_by_a_kill(tmp_path: Path) -> None:
    """SIGKILL in the middle of both protocols' sends, twice; acknowledgements of a subscription
    included. Idempotent producers have each message once."""
    with KafkaStandalone(tmp_path / "data") as server:
        create(server, "kill", "partition")
        client = pulsar_client(server)
        consumer = client.subscribe("kill-partition-0", "s", initial_position=EARLIEST)
        acknowledged: set[str] = set()
        producer = confluent_producer(
            server, **{"enable.idempotence": True, "linger.ms": 1, "message.timeout.ms": 90_000}
        )
        pulsars = client.create_producer("kill-partition-0", batching_enabled=True)

        def told(name: str, error: object) -> None:
            if error is None:
                acknowledged.add(name)

        sent = 0
        for _ in range(2):
            for _ in range(3_000):
                name = f"k{sent}"
                producer.produce("kill", value=name, on_delivery=lambda e, m: told(
                    m.value().decode(), e))  # fmt: skip
                pulsars.send_async(
                    f"p{sent}".encode(),
                    lambda result, _, name=f"p{sent}": told(
                        name, None if result == pulsar.Result.Ok else result
                    ),
                )
                producer.poll(0)
                sent += 1
                if sent % 3_000 == 2_000:
                    assert consumer.receive(60_000) is not None
                    server.kill()
                    server.start()
        assert producer.flush(DEADLINE_S) == 0
        pulsars.flush()
        assert len(acknowledged) > sent
        client.close()
        found = _all_of(server, "kill")
        assert acknowledged <= set(found)
        assert max(Counter(each for each in found if each[0] == "k").values()) == 1
        server.stop()
    directory = LogDirectory(RealDisk(), tmp_path / "data" / "partitions", PartitionPolicy())
    assert [topic for topic, _ in directory.partitions()] == ["kill"]


def test_what_partitions_do_not_serve_is_refused_when_it_is_said(server: KafkaStandalone) -> None:
    create(server, "unserved", "partition")
    rest, path = RestClient(server.http_url), "/admin/v2/persistent/public/default/unserved"
    for topic in (path, f"{path}-partition-0"):
        with pytest.raises(RestError, match="is on partitions, and deduplication"):
            rest.send_post(f"{topic}/deduplicationEnabled", True)
    with pytest.raises(RestError, match="is on partitions, where deduplication"):
        rest.send_post("/admin/v2/namespaces/public/default/deduplication", True)
    client = pulsar_client(server)
    client.create_producer("unserved").send(b"x")  # it was refused before
    with pytest.raises(RestError, match="is on partitions, and compaction"):
        rest.send_post(f"{path}/compactionThreshold", 1000)
    create(server, "served", "ledger")
    rest.send_post("/admin/v2/persistent/public/default/served/deduplicationEnabled", True)
    client.create_producer("served").send(b"x")
    client.close()


def _all_of(server: KafkaStandalone, topic: str) -> list[str]:
    """Read as Kafka's clients do, up to the end."""
    consumer = confluent_consumer(server, "all")
    place = confluent.TopicPartition(topic, 0, confluent.OFFSET_BEGINNING)
    _, end = consumer.get_watermark_offsets(place, timeout=DEADLINE_S)
    consumer.assign([place])
    found: list[str] = []
    while len(found) < end:
        messages = consumer.consume(min(10_000, end - len(found)), DEADLINE_S)
        assert messages, f"{len(found)} of {end}"
        found += [message.value().decode() for message in messages]
    consumer.close()
    return found
