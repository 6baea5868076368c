"""What admins do with Kafka's own clients beside making topics: configurations that count, what
takes which disk, users.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import confluent_kafka as confluent
import pulsar
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin import NewTopic as AioTopic
from aiokafka.errors import InvalidConfigurationError
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialDeletion,
    UserScramCredentialUpsertion,
)
from kafka import KafkaAdminClient, TopicPartition
from kafka.structs import TopicPartitionReplica

from magnetar.log.partition.batch_header import whole_batches
from magnetar.wire.kafka.batches import CODEC_MASK, read_batch_header
from magnetar.wire.kafka.compression import Codec
from tests.integration.test_kafka_clients import (
    DEADLINE_S,
    KafkaStandalone,
    confluent_consumer,
    confluent_producer,
    polled,
    produced,
)
from tests.integration.test_kafka_security import (
    ALICE,
    ROOT,
    Credentials,
    SecuredStandalone,
    confluent_crosses,
    confluent_error,
    confluent_settings,
    of,
)

ENGINES = ("ledger", "partition")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaStandalone]:
    with KafkaStandalone(tmp_path_factory.mktemp("kafka") / "data") as running:
        yield running


def admin_of(server: KafkaStandalone) -> AdminClient:
    return AdminClient({"bootstrap.servers": server.bootstrap})


def made(admin: AdminClient, topic: str, **config: str) -> None:
    wanted = NewTopic(topic, 1, 1, config={k.replace("_", "."): v for k, v in config.items()})
    admin.create_topics([wanted])[topic].result(DEADLINE_S)


def described(admin: AdminClient, topic: str) -> dict[str, ConfigEntry]:
    resource = ConfigResource(ResourceType.TOPIC, topic)
    found: dict[str, ConfigEntry] = admin.describe_configs([resource])[resource].result(DEADLINE_S)
    return found


def changed(admin: AdminClient, topic: str, name: str, value: str) -> None:
    entry = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
    wanted = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    admin.incremental_alter_configs([wanted])[wanted].result(DEADLINE_S)


# -- configurations -------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd", "uncompressed"])
@pytest.mark.parametrize("engine", ENGINES)
def test_batches_are_kept_compressed_as_the_topic_says(
    server: KafkaStandalone, engine: str, codec: str
) -> None:
    """Sent by producers with another codec and with the topic's own, read by librdkafka, in order;
    what the files have is of the topic's codec."""
    admin, topic = admin_of(server), f"kept-{engine}-{codec}"
    made(admin, topic, magnetar_engine=engine, compression_type=codec)
    assert described(admin, topic)["compression.type"].value == codec
    own = "none" if codec == "uncompressed" else codec
    for number, sent in enumerate(("none", "gzip", "zstd", own)):
        settings: dict[str, Any] = {"enable.idempotence": number % 2 == 0}
        produced(server, topic, 300, **{"compression.type": sent, **settings})
    consumer = confluent_consumer(server, topic)
    consumer.assign([confluent.TopicPartition(topic, 0, confluent.OFFSET_BEGINNING)])
    found = polled(consumer, 1200)
    consumer.close()
    assert [each.offset() for each in found] == list(range(1200))
    wanted = [f"value-{number}".encode() for number in range(300)] * 4
    assert [each.value() for each in found] == wanted
    if engine == "partition":
        data = (server.data_dir / "partitions" / f"{topic}-0" / f"{0:020d}.log").read_bytes()
        heads = [read_batch_header(data, at) for at, _ in whole_batches(data, checked=True)]
        named = Codec.NONE if codec == "uncompressed" else Codec[codec.upper()]
        assert {head.attributes & CODEC_MASK for head in heads} == {named}
        assert sum(head.record_count for head in heads) == 1200


def test_a_transaction_on_a_topic_that_compresses(server: KafkaStandalone) -> None:
    admin, topic = admin_of(server), "kept-transaction"
    made(admin, topic, compression_type="gzip")
    producer = confluent_producer(server, **{"transactional.id": topic})
    producer.init_transactions(DEADLINE_S)
    for number in range(4):
        producer.begin_transaction()
        for each in range(10):
            producer.produce(topic, f"{number}-{each}")
        if number % 2:
            producer.abort_transaction(DEADLINE_S)
        else:
            producer.commit_transaction(DEADLINE_S)
    consumer = confluent_consumer(server, topic)
    consumer.assign([confluent.TopicPartition(topic, 0, confluent.OFFSET_BEGINNING)])
    found = [each.value().decode() for each in polled(consumer, 20)]
    assert found == [f"{number}-{each}" for number in (0, 2) for each in range(10)]
    consumer.close()


def test_a_partition_has_segments_as_its_topic_says(server: KafkaStandalone) -> None:
    """Files of a megabyte, read in order over their ends; what is said later counts for those that
    come. On ledgers it is taken and told as well."""
    admin, topic = admin_of(server), "small-segments"
    size = str(1 << 20)
    for engine in ENGINES:
        made(
            admin, f"{topic}-{engine}", magnetar_engine=engine, segment_bytes=size, segment_ms=size
        )
        found = described(admin, f"{topic}-{engine}")
        for name in ("segment.bytes", "segment.ms"):
            assert (found[name].value, found[name].is_default) == (size, False)
            assert not found[name].is_read_only
        filled(server, f"{topic}-{engine}", 3000)
    folder = server.data_dir / "partitions" / f"{topic}-partition-0"
    sizes = [each.stat().st_size for each in sorted(folder.glob("*.log"))]
    assert len(sizes) > 2
    assert max(sizes) <= 1 << 20
    changed(admin, f"{topic}-partition", "segment.bytes", str(1 << 30))
    consumer = confluent_consumer(server, topic)
    for engine in ENGINES:
        place = confluent.TopicPartition(f"{topic}-{engine}", 0, confluent.OFFSET_BEGINNING)
        consumer.assign([place])
        assert [each.offset() for each in polled(consumer, 3000)] == list(range(3000))
    consumer.close()


def filled(server: KafkaStandalone, topic: str, count: int) -> None:
    """A kilobyte each."""
    producer = confluent_producer(server, **{"batch.size": 50_000})
    for number in range(count):
        producer.produce(topic, b"%d" % number + bytes(1000))
    assert producer.flush(DEADLINE_S) == 0


@pytest.mark.parametrize("engine", ENGINES)
def test_records_have_the_time_of_their_append(server: KafkaStandalone, engine: str) -> None:
    """To librdkafka's producer, which is told, to its consumers, to who looks for a time, and to
    Pulsar's consumers."""
    admin, topic = admin_of(server), f"appended-{engine}"
    kinds = {"message_timestamp_type": "LogAppendTime", "compression_type": "zstd"}
    made(admin, topic, magnetar_engine=engine, **kinds)
    assert described(admin, topic)["message.timestamp.type"].value == "LogAppendTime"
    told: list[tuple[int, int]] = []
    producer = confluent_producer(server, **{"compression.type": "lz4", "enable.idempotence": True})
    began_ms = int(time.time() * 1000)
    for number in range(100):
        producer.produce(
            topic,
            b"%d" % number,
            timestamp=1000 + number,
            on_delivery=lambda _, message: told.append(message.timestamp()),
        )
    assert producer.flush(DEADLINE_S) == 0
    ended_ms = int(time.time() * 1000)
    assert {kind for kind, _ in told} == {confluent.TIMESTAMP_LOG_APPEND_TIME}
    assert all(began_ms <= at <= ended_ms for _, at in told)
    consumer = confluent_consumer(server, topic)
    place = confluent.TopicPartition(topic, 0, confluent.OFFSET_BEGINNING)
    consumer.assign([place])
    assert [each.timestamp() for each in polled(consumer, 100)] == told
    asked = [confluent.TopicPartition(topic, 0, began_ms)]
    assert consumer.offsets_for_times(asked, DEADLINE_S)[0].offset == 0
    asked = [confluent.TopicPartition(topic, 0, ended_ms + 1)]
    assert consumer.offsets_for_times(asked, DEADLINE_S)[0].offset == -1
    consumer.close()
    client = pulsar.Client(server.service_url)
    try:
        reader = client.create_reader(topic, pulsar.MessageId.earliest)
        assert [reader.read_next(10_000).event_timestamp() for _ in told] == [at for _, at in told]
    finally:
        client.close()


def test_a_broker_that_is_alone_is_number_0(server: KafkaStandalone) -> None:
    """Which tools expect that place partitions by hand."""
    admin, topic = admin_of(server), "placed-by-hand"
    assert list(admin.list_topics(timeout=DEADLINE_S).brokers) == [0]
    made(admin, topic)
    wanted = NewPartitions(topic, 3, replica_assignment=[[0], [0]])
    admin.create_partitions([wanted])[topic].result(DEADLINE_S)
    found = admin.list_topics(topic, timeout=DEADLINE_S).topics[topic].partitions
    assert [each.replicas for each in found.values()] == [[0]] * 3


def test_a_topic_bounds_its_producers_times(server: KafkaStandalone) -> None:
    admin, topic = admin_of(server), "bounded-times"
    made(admin, topic, message_timestamp_after_max_ms="60000")
    told: list[Any] = []
    producer = confluent_producer(server)
    for seconds in (0, 3600):
        at = int((time.time() + seconds) * 1000)
        producer.produce(topic, b"x", timestamp=at, on_delivery=lambda error, _: told.append(error))
        assert producer.flush(DEADLINE_S) == 0
    assert told[0] is None
    assert told[1].code() == confluent.KafkaError.INVALID_TIMESTAMP


def test_a_topic_takes_batches_up_to_its_own_size(server: KafkaStandalone) -> None:
    admin, topic = admin_of(server), "small-batches"
    made(admin, topic, max_message_bytes="1000")
    told: list[Any] = []
    producer = confluent_producer(server)
    for value in (b"x" * 100, b"x" * 5000):
        producer.produce(topic, value, on_delivery=lambda error, _: told.append(error))
        assert producer.flush(DEADLINE_S) == 0
    assert told[0] is None
    assert told[1].code() == confluent.KafkaError.MSG_SIZE_TOO_LARGE
    changed(admin, topic, "compression.type", "gzip")
    changed(admin, topic, "max.message.bytes", "6000")
    assert {
        name: entry.value for name, entry in described(admin, topic).items() if not entry.is_default
    } == {"compression.type": "gzip", "max.message.bytes": "6000"}


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("segment.bytes", "1048575", "1048576 to"),
        ("index.interval.bytes", "1048576", "ledger"),
        ("cleanup.policy", "shred", "delete, compact or both"),
        ("delete.retention.ms", "1", "not compacted in place"),
        ("min.cleanable.dirty.ratio", "1.5", "from 0 to 1"),
        ("message.timestamp.type", "Yesterday", "CreateTime or LogAppendTime"),
        ("compression.type", "brotli", "one of producer, uncompressed, gzip"),
        ("max.message.bytes", "1000000000", "broker.message_bytes_max"),
        ("no.such.setting", "1", "no setting of topics"),
    ],
)
def test_what_cannot_count_is_refused_and_why(
    server: KafkaStandalone, name: str, value: str, words: str
) -> None:
    admin = admin_of(server)
    with pytest.raises(confluent.KafkaException) as refused:
        made(admin, "never", **{name.replace(".", "_"): value})
    error = refused.value.args[0]
    assert error.code() == confluent.KafkaError.INVALID_CONFIG
    assert words in error.str()
    assert "never" not in admin.list_topics(timeout=DEADLINE_S).topics


def test_what_is_to_be_compacted_is_made_on_partitions(server: KafkaStandalone) -> None:
    """As Kafka Streams and Kafka Connect make theirs; with the engine said, that holds."""
    admin, topic = admin_of(server), "changelog"
    made(admin, topic, cleanup_policy="compact")
    found = described(admin, topic)
    assert found["magnetar.engine"].value == "partition"
    assert found["cleanup.policy"].value == "compact"
    produced(server, topic, 10)
    with pytest.raises(confluent.KafkaException, match=r"partition\.directory"):
        made(admin, "never", cleanup_policy="compact", magnetar_engine="ledger")
    with pytest.raises(confluent.KafkaException, match="3 replicas are asked for"):
        admin.create_topics([NewTopic("never", 1, 3, config={"cleanup.policy": "compact"})])[
            "never"
        ].result(DEADLINE_S)
    made(admin, "not-compacted", cleanup_policy="delete")
    assert described(admin, "not-compacted")["magnetar.engine"].value == "ledger"


def test_aiokafka_says_it_when_it_makes_a_topic(server: KafkaStandalone) -> None:
    async def scenario() -> None:
        admin = AIOKafkaAdminClient(bootstrap_servers=server.bootstrap)
        await admin.start()
        try:
            config = {"compression.type": "zstd", "cleanup.policy": "delete"}
            await admin.create_topics([AioTopic("by-aiokafka", 1, 1, topic_configs=config)])
            config = {"segment.bytes": "1"}
            answer = await admin.create_topics([AioTopic("refused", 1, 1, topic_configs=config)])
            assert answer.topic_errors[0][1] == InvalidConfigurationError.errno
        finally:
            await admin.close()

    asyncio.run(scenario())
    found = described(admin_of(server), "by-aiokafka")
    assert found["compression.type"].value == "zstd"
    assert found["cleanup.policy"].value == "delete"


# -- disks ----------------------------------------------------------------------------------------


def test_what_takes_which_disk(server: KafkaStandalone) -> None:
    admin = admin_of(server)
    for engine in ENGINES:
        made(admin, f"disk-{engine}", magnetar_engine=engine)
        produced(server, f"disk-{engine}", 1000)
    outside = KafkaAdminClient(bootstrap_servers=server.bootstrap)
    try:
        ((node, dirs),) = [
            (each["broker"], each["log_dirs"]) for each in outside.describe_log_dirs()
        ]
        by_path = {each["log_dir"]: each for each in dirs}
        path = str(server.data_dir / "partitions")
        assert list(by_path) == ["ledgers", path]
        assert all(each["error_code"] == 0 for each in dirs)
        assert by_path[path]["total_bytes"] >= by_path[path]["usable_bytes"] > 0
        for where, engine in (("ledgers", "ledger"), (path, "partition")):
            sizes = {
                topic["name"]: [part["partition_size"] for part in topic["partitions"]]
                for topic in by_path[where]["topics"]
            }
            (size,) = sizes[f"disk-{engine}"]
            assert size > 1000
            other = f"disk-{'ledger' if engine == 'partition' else 'partition'}"
            assert other not in sizes
            place = TopicPartitionReplica(f"disk-{engine}", 0, node)
            (said,) = outside.alter_replica_log_dirs({place: where}).values()
            assert said.errno == 0, "it is there"
            (said,) = outside.alter_replica_log_dirs({place: "/elsewhere"}).values()
            assert said.__name__ == "LogDirNotFoundError"
            partition = TopicPartition(f"disk-{engine}", 0)
            assert outside.alter_partition_reassignments({partition: [node]}) == {partition: None}
            (said,) = outside.alter_partition_reassignments({partition: [node, 77]}).values()
            assert said.errno == 39, "INVALID_REPLICA_ASSIGNMENT"
        assert outside.list_partition_reassignments() == {}
    finally:
        outside.close()


def test_offsets_that_kafka_tells_apart_with_remote_storage(server: KafkaStandalone) -> None:
    admin, topic = admin_of(server), "tiers"
    made(admin, topic)
    produced(server, topic, 10)
    outside = KafkaAdminClient(bootstrap_servers=server.bootstrap)
    place = TopicPartition(topic, 0)
    try:
        for spec, offset in ((-1, 10), (-2, 0), (-4, 0)):
            assert outside.list_partition_offsets({place: spec})[place].offset == offset
        assert outside.list_partition_offsets({place: -5})[place].offset == -1, "there is none"
    finally:
        outside.close()
    asked = {confluent.TopicPartition(topic, 0): OffsetSpec.latest()}
    (found,) = admin.list_offsets(asked).values()
    assert found.result(DEADLINE_S).offset == 10


# -- users ----------------------------------------------------------------------------------------


def upserted(admin: AdminClient, name: str, password: str, mechanism: ScramMechanism) -> None:
    info = ScramCredentialInfo(mechanism, 4096)
    wanted = UserScramCredentialUpsertion(name, info, password.encode())
    assert admin.alter_user_scram_credentials([wanted])[name].result(DEADLINE_S) is None


def deleted(admin: AdminClient, name: str, mechanism: ScramMechanism) -> None:
    wanted = UserScramCredentialDeletion(name, mechanism)
    assert admin.alter_user_scram_credentials([wanted])[name].result(DEADLINE_S) is None


async def crossed_by_aiokafka(server: SecuredStandalone, who: Credentials, topic: str) -> None:
    settings = {
        "bootstrap_servers": f"127.0.0.1:{server.kafka_port}",
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": who.mechanism,
        "sasl_plain_username": who.role,
        "sasl_plain_password": who.secret,
    }
    producer = AIOKafkaProducer(**settings)
    await producer.start()
    sent = await producer.send_and_wait(topic, b"by aiokafka")
    await producer.stop()
    consumer = AIOKafkaConsumer(topic, auto_offset_reset="earliest", **settings)
    await consumer.start()
    try:
        async for message in consumer:
            if message.offset == sent.offset:
                assert message.value == b"by aiokafka"
                return
    finally:
        await consumer.stop()


def test_users_are_made_by_kafkas_admins_and_log_in(tmp_path: Path) -> None:
    server = SecuredStandalone(tmp_path)
    server.arguments = (*server.arguments, "--set", "security.stored_users=true")
    with server:
        for role in ("carol", ALICE):
            server.grant(role, "produce", "consume")
        root = AdminClient(confluent_settings(server, of("OAUTHBEARER", ROOT)))
        first = Credentials("SCRAM-SHA-256", "carol", "her first")
        assert "uthentication" in confluent_error(confluent_settings(server, first))
        upserted(root, "carol", first.secret, ScramMechanism.SCRAM_SHA_256)
        confluent_crosses(confluent_settings(server, first), "carols")
        asyncio.run(asyncio.wait_for(crossed_by_aiokafka(server, first, "carols"), DEADLINE_S))
        other = Credentials("SCRAM-SHA-512", "carol", "her first")
        assert "uthentication" in confluent_error(confluent_settings(server, other))
        second = Credentials("SCRAM-SHA-256", "carol", "her second")
        upserted(root, "carol", second.secret, ScramMechanism.SCRAM_SHA_256)
        assert "uthentication" in confluent_error(confluent_settings(server, first))
        confluent_crosses(confluent_settings(server, second), "carols")
        found = root.describe_user_scram_credentials().result(DEADLINE_S)
        assert set(found) == {"alice", "bob", "carol"}
        (info,) = found["carol"].scram_credential_infos
        assert (info.mechanism, info.iterations) == (ScramMechanism.SCRAM_SHA_256, 4096)
        mine = AdminClient(confluent_settings(server, second))
        with pytest.raises(confluent.KafkaException, match="super-users"):
            upserted(mine, "dave", "his", ScramMechanism.SCRAM_SHA_256)
        for name in (ROOT, ALICE):
            with pytest.raises(confluent.KafkaException, match=r"security\.users_file"):
                upserted(root, name, "mine now", ScramMechanism.SCRAM_SHA_256)
        server.stop()
        server.start()
        confluent_crosses(confluent_settings(server, second), "carols")
        confluent_crosses(confluent_settings(server, of("SCRAM-SHA-256", ALICE)), "carols")
        root = AdminClient(confluent_settings(server, of("OAUTHBEARER", ROOT)))
        deleted(root, "carol", ScramMechanism.SCRAM_SHA_256)
        assert "uthentication" in confluent_error(confluent_settings(server, second))
        with pytest.raises(confluent.KafkaException, match="no credentials"):
            deleted(root, "carol", ScramMechanism.SCRAM_SHA_256)
        log = server.log_path.read_text()
        assert "her first" not in log
        assert "her second" not in log
