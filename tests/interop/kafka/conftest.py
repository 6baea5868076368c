"""Kafka 4 from Maven, its tools and a broker on a directory that is kept over its restarts."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from pathlib import Path

import pytest

from bench.peers.kafka import HERE as BENCH_PEERS
from bench.peers.kafka import new_id
from magnetar.env.metadata_stores.zookeeper_server import find_java
from magnetar.env.network.free_ports import free_port

READY_S = 300.0  # on a machine that has other things to do


class KafkaPeer:
    """Kafka's classes, and one node on ``folder``."""

    def __init__(self, jars: Path, folder: Path) -> None:
        self.folder = folder
        self.log_dir = folder / "log"
        self.port = free_port()
        self._controller_port = free_port()
        self._java = [find_java(), "-Xmx512m", "-cp", str(jars / "*")]
        self._config = folder / "server.properties"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def tool(self, *command: str) -> str:
        """What a tool prints; it ends with 0."""
        found = subprocess.run(
            [*self._java, *command], capture_output=True, text=True, timeout=600, check=False
        )
        assert found.returncode == 0, found.stdout + found.stderr
        return found.stdout + found.stderr

    def format(self) -> None:
        """An empty log directory."""
        self._config.write_text(
            "process.roles=broker,controller\nnode.id=1\n"
            f"listeners=PLAINTEXT://{self.address},CONTROLLER://127.0.0.1:{self._controller_port}\n"
            f"advertised.listeners=PLAINTEXT://{self.address}\n"
            "controller.listener.names=CONTROLLER\n"
            f"controller.quorum.voters=1@127.0.0.1:{self._controller_port}\n"
            "listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT\n"
            f"log.dirs={self.log_dir}\nlog.segment.bytes=1048576\nlog.index.interval.bytes=500\n"
            "offsets.topic.replication.factor=1\ntransaction.state.log.replication.factor=1\n"
            "transaction.state.log.min.isr=1\ngroup.initial.rebalance.delay.ms=0\n"
            "auto.create.topics.enable=false\noffsets.topic.num.partitions=1\n"
            "transaction.state.log.num.partitions=1\n"
        )
        self.tool("kafka.tools.StorageTool", "format", "-t", new_id(), "-c", str(self._config))

    def start(self) -> None:
        with (self.folder / "kafka.log").open("ab") as log:
            self._process = subprocess.Popen(
                [*self._java, "kafka.Kafka", str(self._config)], stdout=log, stderr=log
            )
        deadline = time.monotonic() + READY_S
        while time.monotonic() < deadline:
            assert self._process.poll() is None, "Kafka has ended"
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
            time.sleep(0.2)
        raise TimeoutError(f"Kafka was not ready after {READY_S:.0f} s")

    def stop(self, *, kill: bool = False) -> None:
        process, self._process = self._process, None
        if process is not None:
            if kill:
                process.kill()
            else:
                process.terminate()
            process.wait(120)


@pytest.fixture(scope="session")
def jars(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Kafka's; kept below MAGNETAR_PEER_DIR if it is set."""
    for tool in ("java", "mvn"):
        if shutil.which(tool) is None:
            pytest.skip(f"{tool} is not installed")
    kept = os.environ.get("MAGNETAR_PEER_DIR")
    folder = (Path(kept) if kept else tmp_path_factory.mktemp("peer")) / "kafka" / "server"
    if not folder.exists():
        goal = ["dependency:copy-dependencies", "-DincludeScope=runtime"]
        pom = BENCH_PEERS / "server.pom.xml"
        command = ["mvn", "-q", "-B", "-f", str(pom), *goal, f"-DoutputDirectory={folder}"]
        subprocess.run(command, check=True, timeout=1800)
    return folder


@pytest.fixture
def kafka(jars: Path, tmp_path: Path) -> KafkaPeer:
    return KafkaPeer(jars, tmp_path)
