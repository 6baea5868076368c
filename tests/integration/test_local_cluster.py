"""``magnetar cluster up`` with a ZooKeeper ensemble and bookies: a cluster of processes, some of
which are killed and come back."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.integration.test_operators import magnetar, told
from tests.roles import Role

pytestmark = pytest.mark.zookeeper

PATIENCE_S = 120.0
FREE_PORTS = [
    word
    for name in ("--zookeeper-port", "--bookie-port", "--port", "--http-port")
    for word in (name, "0")
]


def eventually(holds: Callable[[], bool], what: str) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline_s, what
        time.sleep(0.5)


def process_of(folder: Path) -> int:
    """Who holds a data directory; 0 while the next one is about to say so."""
    found = re.search(r"process (\d+)", (folder / "LOCK").read_text())
    return int(found[1]) if found else 0


def test_a_whole_cluster_whose_servers_are_killed(tmp_path: Path) -> None:
    data = tmp_path / "data"
    role = Role(
        tmp_path, "cluster", "up", "--zookeepers", "3", "--bookies", "3", "--brokers", "1",
        "--data-dir", str(data), *FREE_PORTS,
        "--set", "bookie.journal.file_bytes=8MiB", "--set", "bookie.write_cache_bytes=16MiB",
    )  # fmt: skip
    try:
        line = role.wait_ready().ready_line
        urls = re.search(r"(pulsar://\S+).*metadata (zk://\S+),", line)
        assert urls, line
        service, metadata = urls[1], urls[2]
        assert metadata.count(":") == 4, "three servers, and the scheme"
        rows = told("bookie", "list", "--metadata", metadata)
        assert [each["bookieId"] for each in rows] == ["bookie-0", "bookie-1", "bookie-2"]
        magnetar("produce", "t", "-m", "one", "--service-url", service)
        for name in ("zookeeper-1", "bookie-2"):
            before = process_of(data / name)
            assert before
            os.kill(before, signal.SIGKILL)
            eventually(
                lambda b=before, n=name: process_of(data / n) not in (0, b),  # type: ignore[misc]
                f"{name} is back",
            )
        magnetar("produce", "t", "-m", "two", "--service-url", service)
        consumed = magnetar(
            "consume", "t", "--subscription", "s", "--from", "earliest", "--count", "2",
            "--service-url", service,
        )  # fmt: skip
        assert "one" in consumed
        assert "two" in consumed
        ledger = told("bookie", "ledgers", "bookie-0", "--metadata", metadata)[0]
        shown = json.loads(magnetar("ledger", "metadata", str(ledger), "--metadata", metadata))
        assert (shown["ensembleSize"], shown["ackQuorum"]) == (3, 2)
    finally:
        assert role.end() == 0, role.log
