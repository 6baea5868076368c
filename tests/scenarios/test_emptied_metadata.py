"""A broker that keeps partitions, on a real ZooKeeper that somebody empties under it: the files
stay where they are, and what was acknowledged is there when the store is restored.

Takes half a minute: ``make scenarios``.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from kazoo.client import KazooClient

from magnetar.env.network.free_ports import free_port
from tests.scenarios.cluster import Cluster
from tests.scenarios.shared_brokers import Brokers
from tests.scenarios.test_replicated_partitions import TOPIC, WAIT_S, Producing, read_all

pytestmark = [pytest.mark.zookeeper, pytest.mark.slow]

COUNT = 200
GRACE_MS = 500


def tree(client: KazooClient, path: str) -> Iterator[tuple[str, bytes]]:
    """The nodes that are not ephemeral, parents first."""
    value, stat = client.get(path)
    if stat.ephemeralOwner:
        return
    yield path, value
    for name in client.get_children(path):
        yield from tree(client, f"{path.rstrip('/')}/{name}")


def roots(client: KazooClient) -> list[str]:
    return [f"/{name}" for name in client.get_children("/") if name != "zookeeper"]


def empty(client: KazooClient) -> None:
    for path in roots(client):
        client.delete(path, recursive=True)


def test_an_emptied_store_costs_no_partition(tmp_path: Path, zookeeper_url: str) -> None:
    cluster = Cluster(tmp_path, zookeeper_url, 1)
    kafka_port, files = free_port(), tmp_path / "partitions"
    more = (
        "--kafka-port", str(kafka_port),
        "--set", f"partition.directory={files}",
        "--set", "broker.engine=partition",
        "--set", f"partition.deletion_grace_ms={GRACE_MS}",
    )  # fmt: skip
    brokers = Brokers(cluster, (1, 1, 1), 1, more={0: more})
    bootstrap = f"127.0.0.1:{kafka_port}"
    client = KazooClient(hosts=zookeeper_url.partition("://")[2])
    try:
        cluster.start_bookies()
        brokers.start(0)
        admin = AdminClient({"bootstrap.servers": bootstrap})
        for topic in (TOPIC, "deleted"):
            admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(WAIT_S)
        producing = Producing(bootstrap)
        producing.send(COUNT)
        producing.flush()
        assert len(producing.acknowledged) == COUNT
        segment = files / f"{TOPIC}-0" / f"{0:020d}.log"
        before = segment.read_bytes()

        client.start(WAIT_S)
        saved = [each for root in roots(client) for each in tree(client, root)]
        empty(client)
        time.sleep(10 * GRACE_MS / 1000)
        assert segment.read_bytes() == before, "the files are there, long after their grace"

        # Started anew on the empty store, it does not take the files for those of that cluster.
        brokers.role(0).kill()
        begun = cluster.begin_broker(brokers.ports[0][0], (1, 1, 1), more=more)
        assert begun.wait_ended() != 0
        assert "restore the store" in begun.log.lower()
        assert segment.read_bytes() == before
        cluster.bookies[0].kill()

        empty(client)
        for path, value in saved:
            client.create(path, value, makepath=True)
        cluster.start_bookies()
        brokers.start(0)
        assert read_all(bootstrap, COUNT) == list(range(COUNT))

        # In the store that they belong to, files of a topic that is deleted go.
        admin = AdminClient({"bootstrap.servers": bootstrap})
        admin.delete_topics(["deleted"])["deleted"].result(WAIT_S)
        deadline_s = time.monotonic() + WAIT_S
        while (files / "deleted-0").exists():
            assert time.monotonic() < deadline_s, "files of a deleted topic go"
            time.sleep(0.2)
    finally:
        client.stop()
        cluster.end()
