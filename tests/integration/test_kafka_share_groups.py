"""confluent-kafka's share consumer (librdkafka) against a standalone that is killed, on both
engines, and against two brokers of which one is killed."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import confluent_kafka as confluent
import pytest
from confluent_kafka import AcknowledgeType
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
)

from tests.integration.test_kafka_clients import DEADLINE_S, KafkaStandalone, produced
from tests.integration.test_kafka_several_brokers import bootstrap_of
from tests.integration.test_several_brokers import Several

QUICK = ("--set", "kafka.consumer_heartbeat_interval_ms=300")
ENGINES = ("ledger", "partition")
ACCEPT, RELEASE, REJECT = AcknowledgeType.ACCEPT, AcknowledgeType.RELEASE, AcknowledgeType.REJECT
Place = tuple[int, int]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaStandalone]:
    with KafkaStandalone(tmp_path_factory.mktemp("kafka") / "data", *QUICK) as running:
        yield running


def configured(bootstrap: str, group: str, **said: str) -> None:
    changes = [
        ConfigEntry(name.replace("_", "."), value, incremental_operation=AlterConfigOpType.SET)
        for name, value in said.items()
    ]
    resource = ConfigResource(ConfigResource.Type.GROUP, group, incremental_configs=changes)
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for each in admin.incremental_alter_configs([resource]).values():
        each.result(DEADLINE_S)


def made(bootstrap: str, topic: str, partitions: int = 1, engine: str = "ledger") -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    topics = [NewTopic(topic, partitions, config={"magnetar.engine": engine})]
    admin.create_topics(topics)[topic].result(DEADLINE_S)


def sharing(bootstrap: str, group: str, topic: str, **settings: Any) -> confluent.ShareConsumer:
    """One that says itself what becomes of each record."""
    consumer = confluent.ShareConsumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "share.acknowledgement.mode": "explicit",
            **settings,
        }
    )
    consumer.subscribe([topic])
    return consumer


def polled(consumer: confluent.ShareConsumer) -> list[confluent.Message]:
    found = list(consumer.poll(1.0))
    for each in found:
        assert each.error() is None, each.error()
    return found


def some(consumer: confluent.ShareConsumer) -> list[confluent.Message]:
    """The first records that come."""
    deadline = time.monotonic() + DEADLINE_S
    while not (found := polled(consumer)):
        assert time.monotonic() < deadline, "nothing came"
    return found


def place(message: confluent.Message) -> Place:
    return message.partition(), message.offset()


def committed(consumer: confluent.ShareConsumer) -> None:
    for where, error in consumer.commit_sync(DEADLINE_S).items():
        assert error is None, (where, error)


@pytest.mark.parametrize("engine", ENGINES)
def test_members_share_partitions_and_get_each_record_once(
    server: KafkaStandalone, engine: str
) -> None:
    topic, group, count = f"shared-{engine}", f"sharers-{engine}", 600
    made(server.bootstrap, topic, 2, engine)
    configured(server.bootstrap, group, share_auto_offset_reset="earliest")
    produced(server, topic, count)
    consumers = [sharing(server.bootstrap, group, topic) for _ in range(3)]
    seen: Counter[Place] = Counter()
    deadline = time.monotonic() + DEADLINE_S
    while len(seen) < count:
        assert time.monotonic() < deadline, len(seen)
        for each in consumers:
            for message in polled(each):
                seen[place(message)] += 1
                assert message.delivery_count() == 1
                each.acknowledge(message, ACCEPT)
    for each in consumers:
        each.close()
    assert set(seen.values()) == {1}
    later = sharing(server.bootstrap, group, topic)
    assert [place(each) for _ in range(3) for each in polled(later)] == []
    later.close()


def test_records_come_back_until_they_are_given_up(server: KafkaStandalone) -> None:
    topic, group = "returned", "returners"
    made(server.bootstrap, topic)
    configured(
        server.bootstrap,
        group,
        share_auto_offset_reset="earliest",
        share_delivery_count_limit="2",
    )
    produced(server, topic, 4)
    consumer = sharing(server.bootstrap, group, topic)
    counts: dict[int, list[int]] = {}
    deadline = time.monotonic() + DEADLINE_S
    what = {0: ACCEPT, 1: RELEASE, 2: REJECT, 3: RELEASE}
    while sum(map(len, counts.values())) < 6:
        assert time.monotonic() < deadline, counts
        for message in polled(consumer):
            counts.setdefault(message.offset(), []).append(message.delivery_count())
            consumer.acknowledge(message, what[message.offset()])
    assert counts == {0: [1], 1: [1, 2], 2: [1], 3: [1, 2]}
    committed(consumer)
    assert polled(consumer) == []
    consumer.close()


def test_a_lock_that_is_over_is_nobodys(server: KafkaStandalone) -> None:
    topic, group = "slow", "slow"
    made(server.bootstrap, topic)
    configured(
        server.bootstrap,
        group,
        share_auto_offset_reset="earliest",
        share_record_lock_duration_ms="1000",
    )
    produced(server, topic, 1)
    slow, other = (sharing(server.bootstrap, group, topic) for _ in range(2))
    (message,) = some(slow)
    (again,) = some(other)
    assert (place(again), again.delivery_count()) == (place(message), 2)
    slow.acknowledge(message, ACCEPT)
    errors = [error for error in slow.commit_sync(DEADLINE_S).values() if error is not None]
    assert [each.args[0].code() for each in errors] == [confluent.KafkaError.INVALID_RECORD_STATE]
    other.acknowledge(again, ACCEPT)
    other.close()
    slow.close()


def test_transactions_that_are_aborted_are_not_delivered(server: KafkaStandalone) -> None:
    topic, group = "transacted", "committed"
    made(server.bootstrap, topic)
    configured(
        server.bootstrap,
        group,
        share_auto_offset_reset="earliest",
        share_isolation_level="read_committed",
    )
    producer = confluent.Producer(
        {"bootstrap.servers": server.bootstrap, "transactional.id": "shares"}
    )
    producer.init_transactions(DEADLINE_S)
    for ends in ("aborted", "committed", "aborted", "committed"):
        producer.begin_transaction()
        for number in range(3):
            producer.produce(topic, f"{ends}-{number}")
        if ends == "aborted":
            producer.flush(DEADLINE_S)
            producer.abort_transaction(DEADLINE_S)
        else:
            producer.commit_transaction(DEADLINE_S)
    consumer = sharing(server.bootstrap, group, topic)
    values: list[bytes] = []
    while len(values) < 6:
        for message in some(consumer):
            values.append(message.value())
            consumer.acknowledge(message, ACCEPT)
    assert values == [b"committed-0", b"committed-1", b"committed-2"] * 2
    committed(consumer)
    assert polled(consumer) == []
    consumer.close()


@pytest.mark.parametrize("engine", ENGINES)
def test_kill_9_loses_no_outcome(tmp_path: Path, engine: str) -> None:
    """What was accepted, and answered, never comes again; what was acquired does, and so does what
    was released; nothing is passed over."""
    server = KafkaStandalone(tmp_path / "data", *QUICK)
    topic, group, count = "killed", "killed", 300
    accepted: set[Place] = set()
    try:
        server.start()
        made(server.bootstrap, topic, 2, engine)
        configured(server.bootstrap, group, share_auto_offset_reset="earliest")
        produced(server, topic, count)
        for _ in range(2):
            consumer = sharing(
                server.bootstrap, group, topic, **{"max.poll.records": 20, "log_level": 0}
            )
            for _ in range(3):
                found = some(consumer)
                assert not accepted & set(map(place, found))
                for number, message in enumerate(found):
                    kind = ACCEPT if number % 3 else RELEASE
                    consumer.acknowledge(message, kind)
                committed(consumer)
                accepted |= {place(each) for number, each in enumerate(found) if number % 3}
            held = set(map(place, some(consumer)))
            assert held
            server.kill()
            server.start()
            consumer.close()
        reader = sharing(server.bootstrap, group, topic)
        came: Counter[Place] = Counter()
        deadline = time.monotonic() + DEADLINE_S
        while len(came) + len(accepted) < count:
            assert time.monotonic() < deadline, (len(came), len(accepted))
            for message in polled(reader):
                came[place(message)] += 1
                reader.acknowledge(message, ACCEPT)
        reader.close()
        assert not accepted & came.keys()
        assert set(came.values()) == {1}
    finally:
        server.kill()


@pytest.fixture
def several(tmp_path: Path) -> Iterator[Several]:
    running = Several(tmp_path, "--brokers", "2", "--kafka-port", "0", *QUICK)
    try:
        yield running
    finally:
        running.role.kill()


def until(holds: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not holds():
        assert time.monotonic() < deadline, what
        time.sleep(0.1)


def test_a_broker_that_dies_takes_no_outcome_with_it(several: Several) -> None:
    """Partitions and groups are with two brokers: leaders ask coordinators over the wire, and each
    is replaced by the other one."""
    bootstrap = bootstrap_of(several)
    topic, partitions, count = "spread", 8, 400
    made(bootstrap, topic, partitions)
    groups = [f"spread-{number}" for number in range(3)]
    producer = confluent.Producer({"bootstrap.servers": bootstrap})
    for number in range(count):
        producer.produce(topic, b"%d" % number, partition=number % partitions)
    assert producer.flush(DEADLINE_S) == 0
    accepted: dict[str, set[Place]] = {group: set() for group in groups}
    consumers = {}
    for group in groups:
        configured(bootstrap, group, share_auto_offset_reset="earliest")
        consumer = consumers[group] = sharing(bootstrap, group, topic, **{"max.poll.records": 30})
        while len(accepted[group]) < count // 3:
            found = some(consumer)
            for message in found:
                consumer.acknowledge(message, ACCEPT)
            committed(consumer)
            accepted[group] |= set(map(place, found))
    os.kill(several.pids()[1], signal.SIGKILL)
    for group, consumer in consumers.items():
        came: Counter[Place] = Counter()
        deadline = time.monotonic() + DEADLINE_S
        while len(came.keys() | accepted[group]) < count:
            assert time.monotonic() < deadline, (group, len(came), len(accepted[group]))
            for message in consumer.poll(1.0):
                if message.error() is None:
                    came[place(message)] += 1
                    consumer.acknowledge(message, ACCEPT)
        assert not accepted[group] & came.keys(), group
        consumer.close()
