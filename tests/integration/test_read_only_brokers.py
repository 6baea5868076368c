"""A read-only broker as a process beside an owner: a real ZooKeeper, the official Python client.

The lookup that the client is given names the read-only broker, so that it is there from the start.
"""

from __future__ import annotations

import socketserver
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pulsar
import pytest

from magnetar.wire.pulsar.commands import decode_command, encode_command
from magnetar.wire.pulsar.pulsar_pb2 import BaseCommand
from tests.scenarios.cluster import Cluster
from tests.scenarios.publisher import QUIET, connect
from tests.scenarios.shared_brokers import WAIT_S, Brokers
from tests.scenarios.steered_brokers import say

pytestmark = pytest.mark.zookeeper

OWNER, READING, STANDBY = 0, 1, 2
RECEIVE_MS = 60_000
QUIET_MS = 2_000


class Pointing(socketserver.ThreadingTCPServer):
    """Answers lookups, and nothing else: every topic is served by one broker."""

    allow_reuse_address = True
    daemon_threads = True

    def __init__(self, broker_url: str) -> None:
        super().__init__(("127.0.0.1", 0), _Lookups)
        self.broker_url = broker_url
        self.url = f"pulsar://127.0.0.1:{self.server_address[1]}"
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def stop(self) -> None:
        self.shutdown()
        self.server_close()


class _Lookups(socketserver.StreamRequestHandler):
    server: Pointing

    def handle(self) -> None:
        while head := self.rfile.read(4):
            frame = self.rfile.read(int.from_bytes(head, "big"))
            command = decode_command(memoryview(frame), 0, len(frame))
            answer = self._answer(command)
            if answer is not None:
                self.wfile.write(encode_command(answer))

    def _answer(self, command: BaseCommand) -> BaseCommand | None:
        answer = BaseCommand()
        if command.type == BaseCommand.CONNECT:
            answer.type = BaseCommand.CONNECTED
            answer.connected.server_version, answer.connected.protocol_version = "lookups", 20
        elif command.type == BaseCommand.PING:
            answer.type = BaseCommand.PONG
            answer.pong.SetInParent()
        elif command.type == BaseCommand.PARTITIONED_METADATA:
            answer.type = BaseCommand.PARTITIONED_METADATA_RESPONSE
            partitions = answer.partitionMetadataResponse
            partitions.request_id, partitions.partitions = command.partitionMetadata.request_id, 0
            partitions.response = partitions.Success
        elif command.type == BaseCommand.LOOKUP:
            answer.type = BaseCommand.LOOKUP_RESPONSE
            found = answer.lookupTopicResponse
            found.request_id, found.response = command.lookupTopic.request_id, found.Connect
            found.brokerServiceUrl, found.authoritative = self.server.broker_url, True
        else:
            return None
        return answer


class Served:
    """One broker that owns everything, one that reads, and another that may own."""

    def __init__(self, cluster: Cluster) -> None:
        self.brokers = Brokers(cluster, (1, 1, 1), read_only=(READING,))
        self.brokers.start(OWNER, READING)
        say(self.brokers, {"to": "any"})  # or the read-only broker would send consumers back
        self.owners = connect(self.brokers.service_url)
        port = self.brokers.ports[READING][0]
        self._lookup = Pointing(f"pulsar://127.0.0.1:{port}")
        self.reading = pulsar.Client(self._lookup.url, operation_timeout_seconds=60, logger=QUIET)

    def publish(self, topic: str, first: int, count: int) -> None:
        producer = self.owners.create_producer(topic)
        for number in range(first, first + count):
            producer.send(b"%d" % number)
        producer.close()

    def subscribe(self, topic: str, kind: pulsar.ConsumerType = pulsar.ConsumerType.Shared):  # type: ignore[no-untyped-def]
        return self.reading.subscribe(
            topic,
            "s",
            consumer_type=kind,
            initial_position=pulsar.InitialPosition.Earliest,
            negative_ack_redelivery_delay_ms=100,
        )

    def stats(self, topic: str) -> dict[str, object]:
        index = next(i for i in (OWNER, STANDBY) if self._runs(i))
        found: dict[str, object] = self.brokers.ask(
            index, f"/admin/v2/persistent/public/default/{topic}/stats"
        )["subscriptions"]["s"]
        return found

    def _runs(self, index: int) -> bool:
        role = self.brokers.roles[index]
        return role is not None and role.running

    def end(self) -> None:
        self.reading.close()
        self.owners.close()
        self._lookup.stop()


@pytest.fixture
def served(tmp_path: Path, zookeeper_url: str) -> Iterator[Served]:
    cluster = Cluster(tmp_path, zookeeper_url, 1)
    try:
        cluster.start_bookies()
        made = Served(cluster)
        yield made
        made.end()
    finally:
        cluster.end()


def receive(consumer, count: int) -> list[int]:  # type: ignore[no-untyped-def]
    """The next ``count`` messages, acknowledged."""
    found = []
    for _ in range(count):
        message = consumer.receive(RECEIVE_MS)
        found.append(int(message.data()))
        consumer.acknowledge(message)
    return found


def eventually(what: Callable[[], bool], said: str) -> None:
    deadline_s = time.monotonic() + WAIT_S
    while not what():
        assert time.monotonic() < deadline_s, said
        time.sleep(0.1)


def test_every_kind_of_consumer_is_served_and_the_owner_keeps_the_place(served: Served) -> None:
    for kind in (
        pulsar.ConsumerType.Shared,
        pulsar.ConsumerType.Exclusive,
        pulsar.ConsumerType.Failover,
        pulsar.ConsumerType.KeyShared,
    ):
        topic = f"read-{kind.name.lower()}"
        served.publish(topic, 0, 20)
        consumer = served.subscribe(topic, kind)
        assert receive(consumer, 20) == list(range(20))
        served.publish(topic, 20, 5)
        assert receive(consumer, 5) == list(range(20, 25))
        eventually(
            lambda topic=topic: served.stats(topic)["msgBacklog"] == 0,  # type: ignore[misc]
            "the owner's cursor has what was acknowledged",
        )
        consumer.seek(pulsar.MessageId.earliest)
        assert receive(consumer, 25) == list(range(25))
        consumer.unsubscribe()
    reader = served.reading.create_reader("read-shared", pulsar.MessageId.earliest)
    numbers = []
    while reader.has_message_available():
        numbers.append(int(reader.read_next(RECEIVE_MS).data()))
    assert numbers == list(range(25))


def test_the_owner_is_killed_and_nothing_acknowledged_comes_again(served: Served) -> None:
    topic = "read-on"
    served.brokers.start(STANDBY)
    served.publish(topic, 0, 50)
    consumer = served.subscribe(topic)
    assert receive(consumer, 30) == list(range(30))
    loaded = [each for each in served.brokers.loaded() if each != READING]
    served.brokers.role(loaded[0]).kill()
    assert receive(consumer, 20) == list(range(30, 50)), "it is served on without its owner"
    served.publish(topic, 50, 10)
    assert receive(consumer, 10) == list(range(50, 60))
    eventually(lambda: served.stats(topic)["msgBacklog"] == 0, "the next owner has all of it")


def test_a_read_only_broker_is_killed_and_the_place_is_where_it_was(served: Served) -> None:
    topic = "read-killed"
    served.publish(topic, 0, 40)
    consumer = served.subscribe(topic)
    first = receive(consumer, 15)
    eventually(lambda: served.stats(topic)["msgBacklog"] == 25, "acknowledgements are stored")
    served.brokers.role(READING).kill()
    # Its registration ends with its session; then the owner serves whoever asks.
    at_owner = served.owners.subscribe(topic, "s", consumer_type=pulsar.ConsumerType.Shared)
    rest = receive(at_owner, 25)
    assert sorted(first + rest) == list(range(40))
    with pytest.raises(pulsar.Timeout):
        at_owner.receive(QUIET_MS)


def test_a_rate_of_dispatch_holds_here_too(served: Served) -> None:
    topic, rate = "read-limited", 50
    served.publish(topic, 0, 3 * rate)
    brokers = served.brokers
    path = f"/admin/v2/persistent/public/default/{topic}"
    answer = brokers.rest.post(
        f"http://{brokers.broker_id(OWNER)}{path}/dispatchRate",
        json={"dispatchThrottlingRateInMsg": rate},
    )
    assert answer.is_success, answer.text
    for kind in (pulsar.ConsumerType.Shared, pulsar.ConsumerType.Exclusive):
        consumer = served.subscribe(topic, kind)
        begun_s = time.monotonic()
        assert receive(consumer, 3 * rate) == list(range(3 * rate))
        assert time.monotonic() - begun_s >= 1.5, "a burst of a second's, and the rest in two"
        consumer.unsubscribe()
        time.sleep(1.5)
