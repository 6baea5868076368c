"""Fixtures of BookKeeper's peers: what was fetched for them, ZooKeeper, and bookie processes."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from magnetar.env.zookeeper_server import ZooKeeperServer


@pytest.fixture(scope="session")
def work_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    for tool in ("java", "javac", "mvn"):
        if shutil.which(tool) is None:
            pytest.skip(f"{tool} is not installed")
    kept = os.environ.get("MAGNETAR_PEER_DIR")
    return Path(kept) / "bookkeeper" if kept else tmp_path_factory.mktemp("peer")


@pytest.fixture(scope="module")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperServer]:
    with ZooKeeperServer(tmp_path_factory.mktemp("zk") / "data") as server:
        yield server


@contextlib.contextmanager
def bookie_process(
    zookeeper: ZooKeeperServer, data_dir: Path, bookie_id: str, *settings: str
) -> Iterator[subprocess.Popen[str]]:
    """A bookie process of a cluster in ZooKeeper, which ends well."""
    command = [
        sys.executable, "-m", "magnetar", "bookie",
        "--data-dir", str(data_dir),
        "--port", "0", "--set", f"bookie.bookie_id={bookie_id}",
        "--metadata", f"zk://{zookeeper.address}/magnetar",
        *(part for setting in settings for part in ("--set", setting)),
    ]  # fmt: skip
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert "ready" in process.stdout.readline()
    yield process
    process.terminate()
    assert process.wait(30) == 0
