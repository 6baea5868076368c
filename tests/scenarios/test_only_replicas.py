"""A partition with one replica, on a broker that does not wait for syncs and is killed: it goes on
with what it has. Its log directory may have forgotten something, so that nobody is in sync; and
nobody else can know more.

Takes half a minute: ``make scenarios``.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from magnetar.env.network.free_ports import free_port
from tests.scenarios.cluster import Cluster
from tests.scenarios.shared_brokers import Brokers
from tests.scenarios.test_replicated_partitions import TOPIC, WAIT_S, Producing, read_all

pytestmark = [pytest.mark.zookeeper, pytest.mark.slow]

COUNT = 100


def test_it_goes_on_after_a_kill(tmp_path: Path, zookeeper_url: str) -> None:
    cluster = Cluster(tmp_path, zookeeper_url, 1)
    kafka_port = free_port()
    more = (
        "--kafka-port", str(kafka_port),
        "--set", f"partition.directory={tmp_path / 'partitions'}",
        "--set", "partition.sync=interval",
        "--set", "broker.engine=partition",
    )  # fmt: skip
    brokers = Brokers(cluster, (1, 1, 1), 1, more={0: more})
    bootstrap = f"127.0.0.1:{kafka_port}"
    try:
        cluster.start_bookies()
        brokers.start(0)
        admin = AdminClient({"bootstrap.servers": bootstrap})
        admin.create_topics([NewTopic(TOPIC, 1, 1)])[TOPIC].result(WAIT_S)
        producing = Producing(bootstrap)
        producing.send(COUNT)
        producing.flush()
        brokers.role(0).kill()
        brokers.start(0)
        producing.send(COUNT)
        producing.flush()
        assert producing.acknowledged == list(range(2 * COUNT))
        # The system lives: what was written is there.
        assert read_all(bootstrap, 2 * COUNT) == list(range(2 * COUNT))
        assert "the only replica of a partition goes on" in brokers.role(0).log
    finally:
        cluster.end()
