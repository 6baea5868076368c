"""Three brokers that replicate partitions among themselves, as processes on a real ZooKeeper, and
Kafka's clients: the leader is killed, and nothing that was acknowledged is lost or out of order.

Takes about a minute: ``make scenarios``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import confluent_kafka as confluent
import pulsar
import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from magnetar.env.network.free_ports import free_port
from tests.scenarios.cluster import Cluster
from tests.scenarios.shared_brokers import Brokers

pytestmark = [pytest.mark.zookeeper, pytest.mark.slow]

WAIT_S = 90.0
TOPIC = "replicated"
BATCHES, BATCH = 30, 200
PRODUCER = {
    "acks": "all",
    "enable.idempotence": True,
    "message.timeout.ms": int(WAIT_S * 1000),
    "topic.metadata.refresh.interval.ms": 1000,
    "linger.ms": 5,
}


class Replicating:
    """Brokers with log directories and Kafka ports that they keep over restarts."""

    def __init__(self, folder: Path, metadata_url: str) -> None:
        self.cluster = Cluster(folder, metadata_url, 1)
        self.cluster.start_bookies()
        ports = [free_port() for _ in range(3)]
        more = {
            index: (
                "--kafka-port", str(port),
                "--set", f"partition.directory={folder / f'partitions-{index}'}",
                "--set", f"partition.broker_id={index + 1}",
                "--set", "partition.replica_lag_ms_max=4000",
                "--set", "broker.engine=partition",
            )
            for index, port in enumerate(ports)
        }  # fmt: skip
        self.brokers = Brokers(self.cluster, (1, 1, 1), more=more)
        self.brokers.start(0, 1, 2)
        self.bootstrap = ",".join(f"127.0.0.1:{port}" for port in ports)
        self.admin = AdminClient({"bootstrap.servers": self.bootstrap})

    def create(self, topic: str, partitions: int = 1) -> None:
        new = NewTopic(topic, partitions, 3, config={"min.insync.replicas": "2"})
        self.admin.create_topics([new])[topic].result(WAIT_S)

    def partition(self, topic: str, number: int = 0) -> Any:
        return self.admin.list_topics(topic, timeout=WAIT_S).topics[topic].partitions[number]

    def kill(self, node_id: int) -> None:
        self.brokers.role(node_id - 1).kill()

    def start(self, node_id: int) -> None:
        self.brokers.start(node_id - 1)


@pytest.fixture
def replicating(tmp_path: Path, zookeeper_url: str) -> Iterator[Replicating]:
    made = Replicating(tmp_path, zookeeper_url)
    try:
        yield made
    finally:
        made.cluster.end()


def eventually(what: Callable[[], object], said: str) -> None:
    deadline_s = time.monotonic() + WAIT_S
    while True:
        try:
            if what():
                return
        except confluent.KafkaException as error:
            said = f"{said}: {error}"
        assert time.monotonic() < deadline_s, said
        time.sleep(0.3)


class Producing:
    """Numbers in order, each acknowledged or not."""

    def __init__(self, bootstrap: str, **more: object) -> None:
        self.producer = confluent.Producer({"bootstrap.servers": bootstrap, **PRODUCER, **more})
        self.acknowledged: list[int] = []
        self.refused: list[str] = []
        self._next = 0

    def send(self, count: int) -> None:
        for number in range(self._next, self._next + count):
            self.producer.produce(
                TOPIC, partition=0, value=b"%d" % number, on_delivery=self._told(number)
            )
        self._next += count
        self.producer.poll(0)

    def _told(self, number: int) -> Callable[[object, object], None]:
        def told(error: object, _message: object) -> None:
            if error is None:
                self.acknowledged.append(number)
            else:
                self.refused.append(f"{number}: {error}")

        return told

    def flush(self) -> None:
        assert self.producer.flush(WAIT_S) == 0


def read_all(bootstrap: str, count: int) -> list[int]:
    consumer = confluent.Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "g", "enable.auto.commit": False}
    )
    consumer.assign([confluent.TopicPartition(TOPIC, 0, 0)])
    found: list[int] = []
    deadline_s = time.monotonic() + WAIT_S
    while len(found) < count and time.monotonic() < deadline_s:
        found += [int(each.value()) for each in consumer.consume(500, 1.0) if not each.error()]
    found += [int(each.value()) for each in consumer.consume(500, 1.0) if not each.error()]
    consumer.close()
    return found


def test_a_leader_that_is_killed_loses_nothing(replicating: Replicating) -> None:
    replicating.create(TOPIC)
    producing = Producing(replicating.bootstrap)
    producing.send(1)
    producing.flush()
    eventually(lambda: len(replicating.partition(TOPIC).isrs) == 3, "all are in sync")
    before = replicating.partition(TOPIC)
    assert sorted(before.replicas) == [1, 2, 3]
    for number in range(BATCHES):
        producing.send(BATCH)
        time.sleep(0.02)
        if number == BATCHES // 3:
            replicating.kill(before.leader)
    producing.flush()
    assert producing.refused == []
    eventually(
        lambda: replicating.partition(TOPIC).leader not in (before.leader, -1), "another leads"
    )
    count = 1 + BATCHES * BATCH
    assert producing.acknowledged == list(range(count)), "in order, each once"
    assert read_all(replicating.bootstrap, count) == list(range(count))
    replicating.start(before.leader)
    eventually(lambda: len(replicating.partition(TOPIC).isrs) == 3, "it is in sync again")

    # Pulsar's clients are sent to the leader, whoever owns the bundle.
    client = pulsar.Client(replicating.brokers.service_url)
    reader = client.create_reader(f"{TOPIC}-partition-0", pulsar.MessageId.earliest)
    values = [int(reader.read_next(int(WAIT_S * 1000)).data()) for _ in range(count)]
    assert values == list(range(count))
    client.close()


def test_too_few_replicas_take_nothing(replicating: Replicating) -> None:
    replicating.create(TOPIC)
    producing = Producing(replicating.bootstrap)
    producing.send(10)
    producing.flush()
    eventually(lambda: len(replicating.partition(TOPIC).isrs) == 3, "all are in sync")
    leader = replicating.partition(TOPIC).leader
    for node_id in {1, 2, 3} - {leader}:
        replicating.kill(node_id)
    eventually(lambda: replicating.partition(TOPIC).isrs == [leader], "the leader is alone")
    alone = Producing(replicating.bootstrap, **{"message.timeout.ms": 3000})
    alone.send(5)
    alone.producer.flush(WAIT_S)
    assert (alone.acknowledged, len(alone.refused)) == ([], 5)
    for node_id in {1, 2, 3} - {leader}:
        replicating.start(node_id)
    eventually(lambda: len(replicating.partition(TOPIC).isrs) == 3, "all are in sync again")
    again: Mapping[str, object] = {}
    last = Producing(replicating.bootstrap, **again)
    last.send(10)
    last.flush()
    assert len(last.acknowledged) == 10
