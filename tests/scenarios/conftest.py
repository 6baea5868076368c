"""What every scenario starts with, and where its counts go: a table at the end of the run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.scenarios.cluster import Cluster
from tests.scenarios.counts import Counts

COUNTED = "counted"


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


@pytest.fixture
def counts(record_property: Callable[[str, object], None]) -> Counts:
    """``counts(text)``: what a scenario has measured, once it holds."""
    return lambda text: record_property(COUNTED, text)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    reports = [
        (report.nodeid.rpartition("::")[2], text)
        for report in terminalreporter.getreports("passed")
        for name, text in report.user_properties
        if name == COUNTED
    ]
    if reports:
        terminalreporter.section("counted")
    for name, text in reports:
        terminalreporter.write_line(f"{name}\n    {text}")
