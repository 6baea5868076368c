"""What every scenario starts with."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.scenarios.cluster import Cluster


@pytest.fixture
def start_cluster(tmp_path: Path, zookeeper_url: str) -> Iterator[Callable[[int], Cluster]]:
    """``start_cluster(bookies)``: running bookies on a ZooKeeper that stays up."""
    started: list[Cluster] = []

    def start(bookies: int) -> Cluster:
        cluster = Cluster(tmp_path, zookeeper_url, bookies)
        started.append(cluster)
        cluster.start_bookies()
        return cluster

    yield start
    for cluster in started:
        cluster.end()
