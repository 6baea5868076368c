"""confluent-kafka (librdkafka) with ``group.protocol=consumer`` against a standalone, and against
two brokers of which one is killed."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import confluent_kafka as confluent
import pytest
from confluent_kafka import ConsumerGroupState, ConsumerGroupType
from confluent_kafka.admin import AdminClient, NewTopic

from magnetar.env.network.connections import Connections
from magnetar.model.errors import ServiceNotReadyError
from magnetar.protocols.kafka.peers import PeerLines
from magnetar.wire.kafka.apis import ApiKey
from magnetar.wire.kafka.cluster_messages import FindCoordinatorRequest, FoundCoordinator
from magnetar.wire.kafka.consumer_group_messages import ConsumerGroupDescribeRequest
from tests.integration.test_kafka_clients import DEADLINE_S, KafkaStandalone, produced
from tests.integration.test_kafka_several_brokers import bootstrap_of
from tests.integration.test_several_brokers import Several

PARTITIONS = 6
QUICK = ("--set", "kafka.consumer_heartbeat_interval_ms=300")
SHORT = ("--set", "kafka.consumer_session_timeout_ms=12000")
"""No shorter: on a slow machine a member may be silent for seconds."""
ANSWER_S = 10.0
NUMBERS = itertools.count()
ENDLESS = """
import confluent_kafka, sys
bootstrap, group, topic = sys.argv[1:]
said = {"bootstrap.servers": bootstrap, "group.id": group, "group.protocol": "consumer"}
consumer = confluent_kafka.Consumer(said)
consumer.subscribe([topic])
while True:
    consumer.poll(1.0)
"""
"""A member in a process of its own, that can be killed."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaStandalone]:
    with KafkaStandalone(tmp_path_factory.mktemp("kafka") / "data", *QUICK, *SHORT) as running:
        yield running


class Reader:
    """A consumer in a thread: what it has, and what it read."""

    def __init__(self, bootstrap: str, group: str, topics: list[str], **settings: Any) -> None:
        wanted = {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "group.protocol": "consumer",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            **settings,
        }
        self.consumer = confluent.Consumer(wanted)
        self.has: frozenset[tuple[str, int]] = frozenset()
        self.read: list[tuple[str, int, int]] = []
        self.errors: list[confluent.KafkaError] = []
        self._ends = threading.Event()
        self.consumer.subscribe(topics)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._ends.is_set():
            found = self.consumer.consume(200, 0.2)
            for each in found:
                if each.error() is not None:
                    self.errors.append(each.error())
                    continue
                self.read.append((each.topic(), each.partition(), each.offset()))
            if found:
                try:
                    self.consumer.commit(asynchronous=False)
                except confluent.KafkaException as error:
                    # A member that goes an epoch on while it commits commits with the next records.
                    if error.args[0].code() != confluent.KafkaError.STALE_MEMBER_EPOCH:
                        self.errors.append(error.args[0])
            self.has = frozenset((p.topic, p.partition) for p in self.consumer.assignment())

    def close(self) -> None:
        if not self._ends.is_set():
            self._ends.set()
            self._thread.join(DEADLINE_S)
            self.consumer.close()


def until(holds: Callable[[], bool], *readers: Reader) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not holds():
        assert time.monotonic() < deadline, [
            (sorted(each.has), len(each.read), each.errors[-3:]) for each in readers
        ]
        time.sleep(0.1)


def shared(topic: str, *readers: Reader) -> bool:
    """All partitions are with the readers, each with one of them, and evenly."""
    found = [part for each in readers for part in each.has]
    sizes = {len(each.has) for each in readers}
    everything = {(topic, number) for number in range(PARTITIONS)}
    return len(found) == PARTITIONS and set(found) == everything and max(sizes) - min(sizes) <= 1


def made(bootstrap: str, topic: str, partitions: int = PARTITIONS) -> AdminClient:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(topic, partitions)])[topic].result(DEADLINE_S)
    return admin


def test_members_come_go_and_crash(server: KafkaStandalone) -> None:
    topic, group = f"t{next(NUMBERS)}", "come and go"
    admin = made(server.bootstrap, topic)
    produced(server, topic, 300)
    readers = [Reader(server.bootstrap, group, [topic]) for _ in range(2)]
    try:
        until(lambda: shared(topic, *readers), *readers)
        readers.append(
            Reader(server.bootstrap, group, [topic], **{"group.remote.assignor": "range"})
        )
        until(lambda: shared(topic, *readers), *readers)
        (found,) = admin.list_consumer_groups(
            types={ConsumerGroupType.CONSUMER}
        ).result(DEADLINE_S).valid  # fmt: skip
        assert (found.group_id, found.type) == (group, ConsumerGroupType.CONSUMER)
        described = admin.describe_consumer_groups([group])[group].result(DEADLINE_S)
        assert described.type is ConsumerGroupType.CONSUMER
        assert described.state is ConsumerGroupState.STABLE
        parts = [
            (part.topic, part.partition)
            for member in described.members
            for part in member.assignment.topic_partitions
        ]
        assert sorted(parts) == [(topic, number) for number in range(PARTITIONS)]
        readers.pop(0).close()
        until(lambda: shared(topic, *readers), *readers)
        until(lambda: sum(len(each.read) for each in readers) > 0, *readers)
        produced(server, topic, 300)
        until(lambda: len({place for each in readers for place in each.read}) >= 300, *readers)
        assert all(each.errors == [] for each in readers)
    finally:
        for each in readers:
            each.close()
    assert admin.delete_consumer_groups([group])[group].result(DEADLINE_S) is None


def test_offsets_are_committed_and_read_back(server: KafkaStandalone) -> None:
    topic, group = f"t{next(NUMBERS)}", "offsets"
    made(server.bootstrap, topic)
    produced(server, topic, 200)
    first = Reader(server.bootstrap, group, [topic])
    until(lambda: len(first.read) == 200, first)
    first.close()
    produced(server, topic, 100)
    second = Reader(server.bootstrap, group, [topic])
    until(lambda: len(second.read) == 100, second)
    second.close()
    assert not set(first.read) & set(second.read)
    old = confluent.Consumer(
        {"bootstrap.servers": server.bootstrap, "group.id": group, "auto.offset.reset": "earliest"}
    )
    old.subscribe([topic])  # the group is empty: it becomes a classic one, and keeps its offsets
    produced(server, topic, 10)
    found = old.consume(10, DEADLINE_S)
    assert len(found) == 10
    old.close()


def test_who_takes_partitions_by_itself_commits_offsets(server: KafkaStandalone) -> None:
    """It is no member of anything, and says the id that it has made for itself all the same."""
    topic, group = f"t{next(NUMBERS)}", "by itself"
    made(server.bootstrap, topic, 1)
    settings = {
        "bootstrap.servers": server.bootstrap,
        "group.id": group,
        "group.protocol": "consumer",
    }
    place = confluent.TopicPartition(topic, 0, 5)
    for _ in range(2):  # also when the group has offsets
        consumer = confluent.Consumer(settings)
        consumer.assign([place])
        (said,) = consumer.commit(offsets=[place], asynchronous=False)
        assert said.error is None
        assert [each.offset for each in consumer.committed([place], DEADLINE_S)] == [5]
        consumer.close()


def test_a_member_that_stops_sending_heartbeats_is_replaced(server: KafkaStandalone) -> None:
    topic, group = f"t{next(NUMBERS)}", "silent"
    admin = made(server.bootstrap, topic)
    child = subprocess.Popen([sys.executable, "-c", ENDLESS, server.bootstrap, group, topic])
    try:
        reader = Reader(server.bootstrap, group, [topic])

        def members() -> int:
            described = admin.describe_consumer_groups([group])[group].result(DEADLINE_S)
            return len(described.members)

        until(lambda: members() == 2 and len(reader.has) == PARTITIONS // 2, reader)
        child.kill()
        until(lambda: shared(topic, reader), reader)
        assert members() == 1
        reader.close()
    finally:
        child.kill()
        child.wait()


def test_a_regular_expression(server: KafkaStandalone) -> None:
    name = f"some-{next(NUMBERS)}"
    admin = made(server.bootstrap, f"{name}-a", 1)
    reader = Reader(server.bootstrap, "expression", [f"^{name}-.*"])
    until(lambda: reader.has == {(f"{name}-a", 0)}, reader)
    admin.create_topics([NewTopic(f"{name}-b", 2)])[f"{name}-b"].result(DEADLINE_S)
    until(lambda: len(reader.has) == 3, reader)
    produced(server, f"{name}-b", 20)
    until(lambda: len(reader.read) == 20, reader)
    reader.close()


def test_static_members(server: KafkaStandalone) -> None:
    topic, group = f"t{next(NUMBERS)}", "static"
    made(server.bootstrap, topic)
    one, two = (
        Reader(server.bootstrap, group, [topic], **{"group.instance.id": name})
        for name in ("one", "two")
    )
    until(lambda: shared(topic, one, two), one, two)
    had, others = one.has, two.has
    one.close()  # for a while
    again = Reader(server.bootstrap, group, [topic], **{"group.instance.id": "one"})
    until(lambda: again.has == had, again, two)
    assert two.has == others
    twin = Reader(server.bootstrap, group, [topic], **{"group.instance.id": "one"})
    until(lambda: bool(twin.errors), twin, again)
    assert twin.errors[0].code() == confluent.KafkaError._FATAL
    assert "instance ID is still used" in twin.errors[0].str()
    assert again.has == had
    for each in (twin, again, two):
        each.close()


def test_the_other_protocol_is_refused_while_the_group_has_members(
    server: KafkaStandalone,
) -> None:
    topic, group = f"t{next(NUMBERS)}", "both"
    made(server.bootstrap, topic)
    classic = Reader(server.bootstrap, group, [topic], **{"group.protocol": "classic"})
    until(lambda: shared(topic, classic), classic)
    late = Reader(server.bootstrap, group, [topic])
    until(lambda: bool(late.errors), late)
    assert late.errors[0].code() == confluent.KafkaError._FATAL
    assert "group id does not exist" in late.errors[0].str()
    assert shared(topic, classic)
    late.close()
    classic.close()
    first = Reader(server.bootstrap, group, [topic])
    until(lambda: shared(topic, first), first)
    first.close()


@pytest.fixture
def several(tmp_path: Path) -> Iterator[Several]:
    running = Several(tmp_path, "--brokers", "2", "--kafka-port", "0", *QUICK)
    try:
        yield running
    finally:
        running.role.kill()


def asked(address: str, key: ApiKey, version: int, request: Any) -> Any:
    """The answer of that broker, to one question by a connection of its own: librdkafka's admin
    asks a coordinator that has gone for as long as it waits for an answer. None: it does not
    answer."""
    host, _, port = address.rpartition(":")

    async def ask() -> Any:
        lines = PeerLines(Connections())
        try:
            async with asyncio.timeout(ANSWER_S):
                return await lines.ask(host, int(port), key, version, request)
        finally:
            lines.close()

    try:
        return asyncio.run(ask())
    except (ServiceNotReadyError, OSError, TimeoutError):
        return None


def coordinators(address: str, *groups: str) -> dict[str, FoundCoordinator]:
    """Of those groups that have one now, as that broker says."""
    answer = asked(address, ApiKey.FIND_COORDINATOR, 4, FindCoordinatorRequest(keys=list(groups)))
    found = [] if answer is None else answer.coordinators
    return {each.key: each for each in found if not each.error_code}


def is_stable(address: str, group: str) -> bool:
    found = coordinators(address, group).get(group)
    if found is None:
        return False
    request = ConsumerGroupDescribeRequest([group])
    where = f"{found.host}:{found.port}"
    answer = asked(where, ApiKey.CONSUMER_GROUP_DESCRIBE, 0, request)
    return answer is not None and answer.groups[0].state == "Stable"


def test_the_group_goes_on_when_its_coordinator_is_killed(several: Several) -> None:
    """Its members stay, and what they have, whoever the next coordinator is."""
    bootstrap, topic = bootstrap_of(several), "moved"
    admin = made(bootstrap, topic)
    known = admin.list_topics(timeout=DEADLINE_S).brokers.values()
    addresses = ",".join(f"{each.host}:{each.port}" for each in known)
    stays = int(bootstrap.rpartition(":")[2])
    names = [str(number) for number in range(100)]
    until(lambda: any(each.port != stays for each in coordinators(bootstrap, *names).values()))
    where = coordinators(bootstrap, *names)
    group = next(name for name in names if where[name].port != stays)
    readers = [Reader(addresses, group, [topic]) for _ in range(2)]
    try:
        until(lambda: shared(topic, *readers) and is_stable(bootstrap, group), *readers)
        before = [each.has for each in readers]
        os.kill(several.pids()[-1], signal.SIGKILL)
        producer = confluent.Producer({"bootstrap.servers": addresses})
        for number in range(60):
            producer.produce(topic, b"%d" % number, partition=number % PARTITIONS)
        assert producer.flush(DEADLINE_S) == 0
        until(lambda: len({place for r in readers for place in r.read}) == 60, *readers)
        until(lambda: shared(topic, *readers) and is_stable(bootstrap, group), *readers)
        assert [each.has for each in readers] == before, "nobody was asked to join again"
    finally:
        for each in readers:
            each.close()
