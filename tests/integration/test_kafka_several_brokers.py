"""Kafka's clients on several brokers: leaders, coordinators, and one that is killed."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import confluent_kafka as confluent
import httpx
import pytest
from confluent_kafka.admin import (
    AdminClient,
    ConfigResource,
    NewTopic,
    PartitionMetadata,
    ResourceType,
)

from tests.integration.test_kafka_clients import DEADLINE_S, polled
from tests.integration.test_several_brokers import Several, eventually

TOPIC, PARTITIONS, COUNT = "spread", 8, 400
DELETED = 11


@pytest.fixture
def several(tmp_path: Path) -> Iterator[Several]:
    made = Several(tmp_path, "--brokers", "2", "--kafka-port", "0")
    try:
        yield made
    finally:
        made.role.kill()


def bootstrap_of(several: Several) -> str:
    found = re.search(r"kafka (\S+) ", several.role.ready_line)
    assert found is not None, several.role.ready_line
    return found[1]


def produced(bootstrap: str, first: int) -> None:
    producer = confluent.Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
    errors: list[object] = []
    for number in range(first, first + COUNT):
        producer.produce(
            TOPIC,
            partition=number % PARTITIONS,
            value=b"%d" % number,
            on_delivery=lambda error, _: errors.append(error) if error else None,
        )
    assert producer.flush(DEADLINE_S) == 0
    assert errors == []


JOINS_AGAIN = {
    confluent.KafkaError.UNKNOWN_MEMBER_ID,
    confluent.KafkaError.ILLEGAL_GENERATION,
    confluent.KafkaError.REBALANCE_IN_PROGRESS,
    confluent.KafkaError._NO_OFFSET,
}
"""What a commit may be told as long as the client has not joined again at a new coordinator."""


def commit_all(consumer: confluent.Consumer) -> None:
    """Until all that is there is committed. A client that has to join again goes on from what was
    committed last."""
    everywhere = [confluent.TopicPartition(TOPIC, number) for number in range(PARTITIONS)]
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline:
        try:
            consumer.commit(asynchronous=False)
        except confluent.KafkaException as error:
            if error.args[0].code() not in JOINS_AGAIN:
                raise
        if sum(each.offset for each in consumer.committed(everywhere, DEADLINE_S)) == 2 * COUNT:
            return
        consumer.consume(500, 1.0)
    raise AssertionError("the group does not commit")


def test_partitions_and_groups_are_spread_and_go_on_when_a_broker_dies(several: Several) -> None:
    bootstrap = bootstrap_of(several)
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(TOPIC, PARTITIONS)])[TOPIC].result(DEADLINE_S)
    produced(bootstrap, 0)
    known = admin.list_topics(timeout=DEADLINE_S)
    assert len(known.brokers) == 2
    leaders = {each.leader for each in known.topics[TOPIC].partitions.values()}
    assert leaders == set(known.brokers), "each has some"
    addresses = ",".join(f"{each.host}:{each.port}" for each in known.brokers.values())
    consumer = confluent.Consumer(
        {
            "bootstrap.servers": addresses,
            "group.id": "readers",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    consumer.subscribe([TOPIC])
    values = [int(each.value()) for each in polled(consumer, COUNT)]
    assert sorted(values) == list(range(COUNT))
    consumer.commit(asynchronous=False)
    other = "with-partitions-of-both"
    producer = confluent.Producer({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(other, PARTITIONS)])[other].result(DEADLINE_S)
    for number in range(PARTITIONS):
        producer.produce(other, partition=number, value=b"x")
    assert producer.flush(DEADLINE_S) == 0
    admin.delete_topics([other])[other].result(DEADLINE_S)
    assert other not in admin.list_topics(timeout=DEADLINE_S).topics
    os.kill(several.pids()[-1], signal.SIGKILL)
    produced(addresses, COUNT)
    deadline = time.monotonic() + DEADLINE_S
    later: set[int] = set()
    while len(later) < COUNT and time.monotonic() < deadline:
        for each in consumer.consume(500, 1.0):
            if each.error() is None:
                later.add(int(each.value()))
    assert later >= set(range(COUNT, 2 * COUNT))
    commit_all(consumer)
    consumer.close()


def in_transactions(addresses: str, name: str, first: int, rounds: int) -> set[int]:
    """Values of committed transactions over all partitions; every third one is aborted. One that
    fails by a broker that went is aborted too, and begun again."""
    committed: set[int] = set()
    producer: confluent.Producer | None = None
    deadline = time.monotonic() + DEADLINE_S
    at = 0
    while at < rounds:
        assert time.monotonic() < deadline, f"{at} of {rounds} transactions of {name}"
        values = range(first + at * PARTITIONS, first + (at + 1) * PARTITIONS)
        try:
            if producer is None:
                settings = {"bootstrap.servers": addresses, "transactional.id": name}
                producer = confluent.Producer(settings)
                producer.init_transactions(DEADLINE_S)
            producer.begin_transaction()
            for value in values:
                producer.produce(MANY, partition=value % PARTITIONS, value=b"%d" % value)
            if at % 3 == 1:
                producer.flush(DEADLINE_S)
                producer.abort_transaction(DEADLINE_S)
            else:
                producer.commit_transaction(DEADLINE_S)
                committed.update(values)
            at += 1
        except confluent.KafkaException:
            # Whether it was committed is not known: these values are not used again.
            producer, first = None, first + PARTITIONS
    return committed


MANY = "in-transactions"


def test_transactions_over_several_brokers_and_one_that_dies(several: Several) -> None:
    """Coordinators and leaders are on different brokers, and one of both kinds goes."""
    bootstrap = bootstrap_of(several)
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(MANY, PARTITIONS)])[MANY].result(DEADLINE_S)
    known = admin.list_topics(timeout=DEADLINE_S)
    addresses = ",".join(f"{each.host}:{each.port}" for each in known.brokers.values())
    committed: set[int] = set()
    for number in range(4):
        committed |= in_transactions(addresses, f"producer-{number}", number * 10_000, 6)
    open_one = confluent.Producer({"bootstrap.servers": addresses, "transactional.id": "open"})
    open_one.init_transactions(DEADLINE_S)
    open_one.begin_transaction()
    for partition in range(PARTITIONS):
        open_one.produce(MANY, partition=partition, value=b"-1")
    assert open_one.flush(DEADLINE_S) == 0
    os.kill(several.pids()[-1], signal.SIGKILL)
    for number in range(4):
        committed |= in_transactions(addresses, f"producer-{number}", number * 10_000 + 1_000, 6)
    committed |= in_transactions(addresses, "open", 90_000, 1)
    consumer = confluent.Consumer(
        {"bootstrap.servers": addresses, "group.id": "r", "auto.offset.reset": "earliest"}
    )
    consumer.subscribe([MANY])
    read: list[int] = []
    deadline = time.monotonic() + DEADLINE_S
    while not committed <= set(read):
        assert time.monotonic() < deadline, sorted(committed - set(read))
        read += [int(each.value()) for each in consumer.consume(500, 1.0) if not each.error()]
    consumer.close()
    assert len(read) == len(set(read)), "once"
    assert -1 not in read, "the open one was aborted when its id was used again"
    told = {value // PARTITIONS for value in read}
    assert all(value in read for each in told for value in _of(each)), "all of it or nothing"


def _of(number: int) -> range:
    """The values of a transaction."""
    return range(number * PARTITIONS, (number + 1) * PARTITIONS)


def test_a_broker_that_drains_leads_no_partition(tmp_path: Path) -> None:
    """It stays in sync, so that producers who need both replicas go on, and leads again later."""
    settings = {
        "broker.engine": "partition",
        "partition.replication_factor": 2,
        "partition.min_insync_replicas": 2,
        "partition.preferred_leader_interval_ms": 1000,
    }
    pairs = [part for each in settings.items() for part in ("--set", "{}={}".format(*each))]
    several = Several(tmp_path, "--brokers", "2", "--kafka-port", "0", *pairs)
    try:
        bootstrap = bootstrap_of(several)
        admin = AdminClient({"bootstrap.servers": bootstrap})
        admin.create_topics([NewTopic(TOPIC, PARTITIONS, 2)])[TOPIC].result(DEADLINE_S)
        produced(bootstrap, 0)

        def partitions() -> list[PartitionMetadata]:
            return list(
                admin.list_topics(TOPIC, timeout=DEADLINE_S).topics[TOPIC].partitions.values()
            )

        led_before = {each.id: each.leader for each in partitions()}
        assert len(set(led_before.values())) == 2
        drained = several.brokers()[0]
        address = f"{drained['httpUrl']}/magnetar/v1/brokers/{drained['brokerId']}"
        assert httpx.put(f"{address}/drain", timeout=DEADLINE_S).status_code == 204
        eventually(lambda: len({each.leader for each in partitions()}) == 1, "one leads all")
        (leader,) = {each.leader for each in partitions()}
        assert [len(each.isrs) for each in partitions()] == [2] * PARTITIONS
        produced(bootstrap, COUNT)
        assert {each.leader for each in partitions()} == {leader}
        eventually(lambda: several.brokers()[0]["topics"] == 0, "it has closed them")
        assert httpx.put(f"{address}/undrain", timeout=DEADLINE_S).status_code == 204
        eventually(
            lambda: {each.id: each.leader for each in partitions()} == led_before,
            "each is led by its preferred replica again",
        )
        produced(bootstrap, 2 * COUNT)
        consumer = confluent.Consumer(
            {"bootstrap.servers": bootstrap, "group.id": "g", "auto.offset.reset": "earliest"}
        )
        consumer.subscribe([TOPIC])
        by_partition: dict[int, list[int]] = {number: [] for number in range(PARTITIONS)}
        for each in polled(consumer, 3 * COUNT):
            by_partition[each.partition()].append(int(each.value()))
        for number, values in by_partition.items():
            assert values == list(range(number, 3 * COUNT, PARTITIONS))
        consumer.close()
    finally:
        several.role.kill()


def test_what_is_to_be_compacted_has_as_many_copies_as_on_ledgers(tmp_path: Path) -> None:
    """Where neither engine nor replicas are said, by whichever broker is asked."""
    quorums = {"ensemble_size": 2, "write_quorum": 2, "ack_quorum": 2}
    pairs = [part for each in quorums.items() for part in ("--set", "ledger.{}={}".format(*each))]
    command = ("--brokers", "2", "--bookies", "2", "--kafka-port", "0", *pairs)
    several = Several(tmp_path, *command)
    try:
        admin = AdminClient({"bootstrap.servers": bootstrap_of(several)})
        new = NewTopic(TOPIC, PARTITIONS, config={"cleanup.policy": "compact"})
        admin.create_topics([new])[TOPIC].result(DEADLINE_S)
        resource = ConfigResource(ResourceType.TOPIC, TOPIC)
        found = admin.describe_configs([resource])[resource].result(DEADLINE_S)
        assert found["magnetar.engine"].value == "partition"
        assert found["min.insync.replicas"].value == "2"
        producer = confluent.Producer({"bootstrap.servers": bootstrap_of(several)})
        for number in range(PARTITIONS):
            producer.produce(TOPIC, b"v", b"k", number)
        assert producer.flush(DEADLINE_S) == 0
        known = admin.list_topics(TOPIC, timeout=DEADLINE_S)
        for each in known.topics[TOPIC].partitions.values():
            assert sorted(each.replicas) == sorted(each.isrs) == sorted(known.brokers)
    finally:
        several.role.kill()


@pytest.mark.slow
def test_partitions_have_replicas_on_all_brokers(tmp_path: Path) -> None:
    """The leader is killed: what was acknowledged is read from the other, or from itself when it
    is started again."""
    settings = ("--set", "broker.engine=partition", "--set", "partition.replica_lag_ms_max=3000")
    several = Several(tmp_path, "--brokers", "2", "--kafka-port", "0", *settings)
    try:
        bootstrap = bootstrap_of(several)
        admin = AdminClient({"bootstrap.servers": bootstrap})
        admin.create_topics([NewTopic(TOPIC, PARTITIONS, 2)])[TOPIC].result(DEADLINE_S)
        unused = admin.list_topics(TOPIC, timeout=DEADLINE_S).topics[TOPIC].partitions
        produced(bootstrap, 0)
        known = admin.list_topics(TOPIC, timeout=DEADLINE_S)
        partitions = known.topics[TOPIC].partitions.values()
        assert all(sorted(each.replicas) == sorted(known.brokers) for each in partitions)
        shown = {number: (each.replicas, each.isrs) for number, each in unused.items()}
        assert shown == {each.id: (each.replicas, each.isrs) for each in partitions}
        folders = [several.data_dir / name for name in ("partitions", "partitions-1")]
        for folder in folders:
            assert {f"{TOPIC}-{number}" for number in range(PARTITIONS)} <= {
                each.name for each in folder.iterdir()
            }
        addresses = ",".join(f"{each.host}:{each.port}" for each in known.brokers.values())
        begun = [confluent.TopicPartition(TOPIC, n, DELETED) for n in range(PARTITIONS)]
        deleted = admin.delete_records(begun)
        assert {each.result(DEADLINE_S).low_watermark for each in deleted.values()} == {DELETED}
        time.sleep(2)  # followers learn of it with their next fetch
        os.kill(several.pids()[-1], signal.SIGKILL)
        produced(addresses, COUNT)
        consumer = confluent.Consumer(
            {"bootstrap.servers": addresses, "group.id": "g", "auto.offset.reset": "earliest"}
        )
        consumer.assign(
            [
                confluent.TopicPartition(TOPIC, n, confluent.OFFSET_BEGINNING)
                for n in range(PARTITIONS)
            ]
        )
        gone = DELETED * PARTITIONS
        found = [int(each.value()) for each in polled(consumer, 2 * COUNT - gone)]
        assert sorted(found) == list(range(gone, 2 * COUNT)), "what was deleted stays so"
        consumer.close()
    finally:
        several.role.kill()
