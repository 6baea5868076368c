"""The roles of a cluster as processes of their own, with a real ZooKeeper."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import httpx
import pulsar
import pytest

from magnetar.env.network.free_ports import free_port
from magnetar.ledger import LedgerConfig, NotEnoughBookiesError, sync
from tests.roles import END_S, Role

pytestmark = pytest.mark.zookeeper

SESSION = ("--set", "metadata.session_timeout_ms=4000")
QUIET = pulsar.FileLogger(pulsar.LoggerLevel.Error, os.devnull)


class Cluster:
    """ZooKeeper and three bookies; brokers come and go."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.broker_port, self.http_port = free_port(), free_port()
        zookeeper_port = free_port()
        data = ("--data-dir", str(folder / "zookeeper"))
        self.zookeeper = Role(folder, "zookeeper", *data, "--port", str(zookeeper_port))
        self.metadata = ("--metadata", f"zk://127.0.0.1:{zookeeper_port}/test", *SESSION)
        self.roles = [self.zookeeper.wait_ready()]
        self.bookies = [self.bookie(index, free_port()) for index in range(3)]
        for bookie in self.bookies:
            bookie.wait_ready()

    def bookie(self, index: int, port: int, *more: str) -> Role:
        data = ("--data-dir", str(self.folder / f"bookie-{index}"), "--port", str(port))
        return self._keep(Role(self.folder, "bookie", *data, *self.metadata, *more))

    def broker(self, ensemble: int = 3) -> Role:
        ports = ("--port", str(self.broker_port), "--http-port", str(self.http_port))
        ensembles = ("--set", f"ledger.ensemble_size={ensemble}")
        quorums = ("--set", f"ledger.write_quorum={ensemble}", "--set", "ledger.ack_quorum=2")
        return self._keep(Role(self.folder, "broker", *ports, *self.metadata, *ensembles, *quorums))

    def kill_zookeeper(self) -> None:
        """The server itself, as a crash would; its role notices."""
        pid = self.zookeeper.process.pid
        for children in Path(f"/proc/{pid}/task").glob("*/children"):
            for child in children.read_text().split():
                os.kill(int(child), signal.SIGKILL)

    def _keep(self, role: Role) -> Role:
        self.roles.append(role)
        return role

    def client(self) -> pulsar.Client:
        url = f"pulsar://127.0.0.1:{self.broker_port}"
        return pulsar.Client(url, operation_timeout_seconds=60, logger=QUIET)

    def end(self) -> None:
        for role in reversed(self.roles[1:]):
            role.end(signal.SIGKILL)
        self.zookeeper.end()  # asked to, so that it takes its server along


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    made = Cluster(tmp_path)
    yield made
    made.end()


def publish(client: pulsar.Client, bodies: list[bytes]) -> None:
    producer = client.create_producer("t", batching_enabled=False)
    for body in bodies:
        producer.send(body)
    producer.close()


def read(client: pulsar.Client, count: int) -> list[bytes]:
    reader = client.create_reader("t", pulsar.MessageId.earliest)
    return [reader.read_next(timeout_millis=60_000).data() for _ in range(count)]


def test_a_cluster_of_processes_goes_on_when_one_is_killed(cluster: Cluster) -> None:
    broker = cluster.broker().wait_ready()
    bodies = [b"%d" % n for n in range(300)]
    client = cluster.client()
    publish(client, bodies[:100])

    cluster.bookies[0].end(signal.SIGKILL)
    publish(client, bodies[100:200])  # two of three confirm
    client.close()

    broker.end(signal.SIGKILL)
    cluster.broker(ensemble=2).wait_ready()  # recovers with the two that are left
    client = cluster.client()
    publish(client, bodies[200:])
    assert read(client, 300) == bodies
    client.close()


def test_a_broker_that_starts_again_has_at_once_what_its_last_start_had(cluster: Cluster) -> None:
    """The other broker says that the topics are there, as long as that one's session lives."""
    broker = cluster.broker().wait_ready()
    client = cluster.client()
    publish(client, [b"1"])
    client.close()
    first = (cluster.broker_port, cluster.http_port)
    cluster.broker_port, cluster.http_port = free_port(), free_port()
    cluster.broker().wait_ready()

    broker.end(signal.SIGKILL)
    cluster.broker_port, cluster.http_port = first
    cluster.broker().wait_ready()
    client = cluster.client()
    publish(client, [b"2"])
    assert read(client, 2) == [b"1", b"2"]
    client.close()
    found = httpx.get(f"http://127.0.0.1:{cluster.http_port}/admin/v2/brokers").json()
    assert len(found) == 2


def test_every_role_ends_cleanly(cluster: Cluster) -> None:
    broker = cluster.broker().wait_ready()
    url = f"http://127.0.0.1:{cluster.http_port}/magnetar/v1/bookies"
    assert len(httpx.get(url, trust_env=False, timeout=60).json()) == 3
    client = cluster.client()
    publish(client, [b"x"])
    client.close()
    assert broker.end() == 0
    assert [bookie.end() for bookie in cluster.bookies] == [0, 0, 0]
    assert cluster.zookeeper.end() == 0
    for role in cluster.roles:
        assert "Traceback" not in role.log


def test_roles_end_without_zookeeper_too(cluster: Cluster) -> None:
    broker = cluster.broker().wait_ready()
    cluster.kill_zookeeper()
    assert cluster.zookeeper.process.wait(END_S) == 1
    assert "ZooKeeper ended with code" in cluster.zookeeper.log
    assert broker.process.wait(END_S) == 1, "a broker that lost its claim stops"
    assert "other brokers of cluster 'standalone' may have this one's topics by now" in broker.log
    for bookie in cluster.bookies:
        bookie.ask_to_end()
    assert [bookie.wait_ended() for bookie in cluster.bookies] == [0, 0, 0]


def test_a_bookie_that_lost_its_journal_denies_nothing_until_an_operator_says_so(
    cluster: Cluster,
) -> None:
    striped = LedgerConfig(ensemble_size=3, write_quorum=2, ack_quorum=2, add_timeout_ms=3000)
    url = cluster.metadata[1]
    with sync.connect(url, striped) as client:
        old = client.create()
        old.add_all(b"%d" % i for i in range(30))
        port = int(cluster.bookies[0].ready_line.split("127.0.0.1:")[1].split()[0])
        cluster.bookies[0].kill()
        for file in (cluster.folder / "bookie-0" / "journal").glob("*.journal"):
            file.unlink()
        returned = cluster.bookie(0, port).wait_ready()
        assert "start it once with --leave-limbo" in returned.log
        with pytest.raises(NotEnoughBookiesError, match=r"failed .* \(no other is registered\)"):
            old.add_all(b"%d" % i for i in range(30, 33))  # one for each pair of bookies
        with client.open(old.ledger_id) as reader:
            assert len(list(reader)) >= 30
        with client.create() as new:  # no spare bookie: the one in limbo must take it
            new.add_all(b"%d" % i for i in range(30))
        with client.open(new.ledger_id) as reader:
            assert len(list(reader)) == 30
        assert returned.end() == 0
        repaired = cluster.bookie(0, port, "--leave-limbo").wait_ready()
        assert repaired.end() == 0
        assert "limbo=False" in cluster.bookie(0, port).wait_ready().log
