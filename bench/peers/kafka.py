"""Kafka to measure beside: what is fetched, and a broker of it.

The broker and Spark's connector come from Maven (``server.pom.xml``, ``connector.pom.xml``), the
client for Python (librdkafka) from PyPI, into a directory outside the tree that is kept. The broker
runs as it is shipped: one node, KRaft, a heap of 1 GiB, and the kernel syncs when it likes.
"""

from __future__ import annotations

import base64
import os
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.peers.jars import fetched_jars
from bench.server import work_directory
from magnetar.env.metadata_stores.zookeeper_server import find_java
from magnetar.env.network.free_ports import free_port

HERE = Path(__file__).parent
PYTHON_CLIENT = "confluent-kafka"
READY_S = 300.0  # on a machine that has other things to do
JVM_FLAGS = (
    "-Xms1g", "-Xmx1g", "-server", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35", "-XX:+ExplicitGCInvokesConcurrent",
)  # fmt: skip


@dataclass(frozen=True)
class Fetched:
    """Where the parts lie."""

    folder: Path

    @property
    def server(self) -> Path:
        return self.folder / "server"

    @property
    def connector(self) -> Path:
        return self.folder / "connector"

    @property
    def python(self) -> Path:
        """To be put on a process's PYTHONPATH."""
        return self.folder / "python"


def fetched(folder: Path) -> Fetched:
    """Fetch what is not there yet. Raises ``SystemExit`` that says what is missing."""
    found = Fetched(folder.resolve())
    fetched_server(folder)
    fetched_jars(HERE / "connector.pom.xml", found.connector)
    if not found.python.exists():
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, "--target", str(found.python), PYTHON_CLIENT], check=True)
    return found


def fetched_server(folder: Path) -> Path:
    """The broker alone: its directory of jars. Raises as ``fetched``."""
    folder.mkdir(parents=True, exist_ok=True)
    return fetched_jars(HERE / "server.pom.xml", Fetched(folder.resolve()).server)


def new_id() -> str:
    """Of a cluster or a directory: 16 bytes in base64. One that begins with "-" would be taken for
    an option by Kafka's tools."""
    while (made := base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("="))[0] == "-":
        pass
    return made


@dataclass(frozen=True)
class Kafka:
    """A running broker. ``ready_s``: from the start of the process until it listens."""

    pid: int
    port: int
    ready_s: float

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"


@contextmanager
def kafka(parts: Fetched, settings: str = "") -> Iterator[Kafka]:
    """Start a broker on an empty directory of the disk that is measured; end it. ``settings``:
    lines of its configuration beside what it is shipped with."""
    with work_directory() as folder, kafka_on(folder, parts, settings) as running:
        yield running


@contextmanager
def kafka_on(folder: Path, parts: Fetched, settings: str = "") -> Iterator[Kafka]:
    """As ``kafka``, on a directory that is there and stays."""
    ports = free_port(), free_port()
    config = _configured(folder, *ports, settings)
    java = [find_java(), *JVM_FLAGS, "-cp", str(parts.server / "*")]
    if not (folder / "log").exists():
        form = ["kafka.tools.StorageTool", "format", "-t", new_id(), "-c", str(config)]
        subprocess.run([*java, *form], check=True, stdout=subprocess.DEVNULL)
    begun = time.monotonic()
    with (folder / "kafka.log").open("ab") as log:
        process = subprocess.Popen(
            [*java, "kafka.Kafka", str(config)], stdout=log, stderr=log, env=dict(os.environ)
        )
    try:
        _wait_listening(process, ports[0])
        yield Kafka(process.pid, ports[0], time.monotonic() - begun)
    finally:
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _configured(folder: Path, port: int, controller_port: int, settings: str) -> Path:
    path = folder / "server.properties"
    path.write_text(
        "process.roles=broker,controller\nnode.id=1\n"
        f"listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}\n"
        f"advertised.listeners=PLAINTEXT://127.0.0.1:{port}\n"
        "controller.listener.names=CONTROLLER\n"
        f"controller.quorum.voters=1@127.0.0.1:{controller_port}\n"
        "listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT\n"
        f"log.dirs={folder / 'log'}\n"
        "offsets.topic.replication.factor=1\ntransaction.state.log.replication.factor=1\n"
        "transaction.state.log.min.isr=1\ngroup.initial.rebalance.delay.ms=0\n"
        f"{settings}"
    )
    return path


def _wait_listening(process: subprocess.Popen[bytes], port: int) -> None:
    """The port opens last."""
    deadline = time.monotonic() + READY_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise SystemExit(f"Kafka ended with {process.returncode}")
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.1)
    raise SystemExit(f"Kafka was not ready after {READY_S:.0f} s")
