"""``magnetar zookeeper`` as a process: its Java server ends with it, however it ends."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

import pytest

from magnetar.env.metadata_stores.zookeeper_server import ZooKeeperServer
from magnetar.env.network.free_ports import free_port
from magnetar.model.errors import ConfigError
from tests.roles import Role

pytestmark = pytest.mark.zookeeper

PATIENCE_S = 60.0


def test_the_server_ends_when_its_owner_is_killed(tmp_path: Path) -> None:
    port = free_port()
    arguments = ("zookeeper", "--data-dir", str(tmp_path), "--port", str(port))
    role = Role(tmp_path, *arguments).wait_ready()
    java = int((tmp_path / "zookeeper.pid").read_text())
    assert runs(java)
    role.kill()
    deadline = time.monotonic() + PATIENCE_S
    while runs(java) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not runs(java)
    again = Role(tmp_path, *arguments).wait_ready()  # the port is free, the pid file is stale
    assert again.end() == 0


def test_one_that_was_left_behind_is_named(tmp_path: Path) -> None:
    first = ZooKeeperServer(tmp_path)
    first.start()
    try:
        with pytest.raises(ConfigError, match=rf"process {first.pid} .*kill {first.pid}"):
            ZooKeeperServer(tmp_path, first.port).launch()
        with pytest.raises(ConfigError, match=f"process {first.pid}"):
            ZooKeeperServer(tmp_path).launch()  # on another port, over the same files
    finally:
        first.stop()


def test_another_process_under_the_old_number_is_no_server(tmp_path: Path) -> None:
    other = subprocess.Popen(["sleep", "600"])
    try:
        (tmp_path / "zookeeper.pid").write_text(f"{other.pid}\n")
        with ZooKeeperServer(tmp_path) as server:
            assert server.pid != other.pid
    finally:
        other.kill()
        other.wait()


def runs(pid: int) -> bool:
    """Whether the process is there, and no zombie that nobody has waited for."""
    try:
        os.kill(pid, 0)
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except (ProcessLookupError, FileNotFoundError):
        return False
