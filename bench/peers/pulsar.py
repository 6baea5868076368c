"""Pulsar to measure beside: what is fetched, a standalone of it, and ``pulsar-perf``, which is the
load for both sides.

All of it comes from Maven (``pulsar.pom.xml``, and the clients of ``tests/interop/java``) into a
directory outside the tree that is kept. The standalone runs as it is shipped (heap 2 GiB, direct
memory 4 GiB, one bookie in its process, its metadata in RocksDB) but for one setting: its bookie
syncs its journal, as bookies of a cluster do and as ours does; Pulsar's standalone leaves that to
the kernel.
"""

from __future__ import annotations

import os
import re
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from bench.peers.jars import fetched_jars
from bench.server import work_directory
from bench.trees import ROOT
from magnetar.env.metadata_stores.zookeeper_server import find_java
from magnetar.env.network.free_ports import free_port

HERE = Path(__file__).parent
READY_S = 300.0
STOP_S = 60.0
RUN_S = 900.0
CREATED = re.compile(r"Created \d+ producers")
OPEN = (
    "java.base/jdk.internal.loader", "java.base/java.util.zip", "java.base/sun.net",
    "java.base/java.nio", "java.base/java.lang", "java.base/jdk.internal.misc",
    "java.base/jdk.internal.platform", "java.management/sun.management",
    "jdk.management/com.sun.management.internal",
)  # fmt: skip
OPENED = tuple(f"--add-opens={name}=ALL-UNNAMED" for name in OPEN)
JVM_FLAGS = (
    "-Xms2g", "-Xmx2g", "-XX:MaxDirectMemorySize=4g", *OPENED,
    "-Dio.netty.tryReflectionSetAccessible=true", "-Dpulsar.allocator.exit_on_oom=true",
    "-Dio.netty.leakDetectionLevel=disabled", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
)  # fmt: skip


@dataclass(frozen=True)
class PulsarJars:
    """Where the parts lie: what a standalone needs, and ``pulsar-perf``."""

    server: Path
    perf: Path


def fetched_pulsar(folder: Path) -> PulsarJars:
    """Fetched if it is not there yet. Raises ``NotFetchedError``."""
    folder.mkdir(parents=True, exist_ok=True)
    server = fetched_jars(HERE / "pulsar.pom.xml", folder.resolve() / "pulsar-server")
    clients = ROOT / "tests" / "interop" / "java" / "pom.xml"
    return PulsarJars(server, fetched_jars(clients, folder.resolve() / "pulsar-clients"))


@dataclass(frozen=True)
class Endpoint:
    """A running platform, ours or Pulsar's. ``ready_s``: from the start of the process on."""

    pid: int
    broker_port: int
    http_port: int
    ready_s: float


@contextmanager
def pulsar(jars: Path) -> Iterator[Endpoint]:
    """A standalone on an empty directory of the disk that is measured; ended, and the directory
    removed."""
    with work_directory() as folder, pulsar_on(folder, jars) as running:
        yield running


@contextmanager
def pulsar_on(folder: Path, jars: Path) -> Iterator[Endpoint]:
    """As ``pulsar``, on a directory that is there and stays."""
    ports = free_port(), free_port(), free_port()
    config = _configured(folder, ports[0], ports[1])
    command = [
        find_java(), *JVM_FLAGS, "-cp", f"{jars}/*", "org.apache.pulsar.PulsarStandaloneStarter",
        "--config", str(config), "--no-functions-worker", "--no-stream-storage",
        "--bookkeeper-port", str(ports[2]), "--bookkeeper-dir", str(folder / "bookkeeper"),
        "--metadata-dir", str(folder / "metadata"), "--advertised-address", "127.0.0.1",
    ]  # fmt: skip
    begun = time.monotonic()
    with (folder / "pulsar.log").open("ab") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, cwd=folder)
    try:
        _wait_ready(process, ports[0], ports[1], folder / "pulsar.log")
        yield Endpoint(process.pid, ports[0], ports[1], time.monotonic() - begun)
    finally:
        process.terminate()
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _configured(folder: Path, broker_port: int, http_port: int) -> Path:
    path = folder / "standalone.conf"
    path.write_text(
        f"brokerServicePort={broker_port}\nwebServicePort={http_port}\n"
        "bindAddress=127.0.0.1\nadvertisedAddress=127.0.0.1\nclusterName=standalone\n"
        "managedLedgerDefaultEnsembleSize=1\nmanagedLedgerDefaultWriteQuorum=1\n"
        "managedLedgerDefaultAckQuorum=1\nallowLoopback=true\n"
        "journalSyncData=true\njournalWriteData=true\njournalMaxGroupWaitMSec=1\n"
        "ledgerStorageClass=org.apache.bookkeeper.bookie.storage.ldb.DbLedgerStorage\n"
        "nettyMaxFrameSizeBytes=5253120\nflushInterval=60000\ngcWaitTime=300000\n"
        "diskUsageThreshold=0.99\ndiskUsageWarnThreshold=0.99\n"
        "zookeeperServers=\nconfigurationStoreServers=\nloadBalancerEnabled=false\n"
        "webSocketServiceEnabled=false\nwebServiceTlsProvider=\n"
        # Ledgers that were rolled over go at once otherwise, where nobody has subscribed yet.
        "defaultRetentionTimeInMinutes=-1\ndefaultRetentionSizeInMB=-1\n"
    )
    return path


def _wait_ready(
    process: subprocess.Popen[bytes], broker_port: int, http_port: int, log: Path
) -> None:
    """Its namespace is made last."""
    deadline = time.monotonic() + READY_S
    url = f"http://127.0.0.1:{http_port}/admin/v2/namespaces/public"
    while time.monotonic() < deadline:
        if process.poll() is not None:
            said = log.read_text(errors="replace")[-2000:]
            raise SystemExit(f"Pulsar ended with {process.returncode}:\n{said}")
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", broker_port)) == 0:
                try:
                    if "public/default" in httpx.get(url, timeout=5).text:
                        return
                except httpx.HTTPError:
                    pass
        time.sleep(0.2)
    raise SystemExit(f"Pulsar was not ready after {READY_S:.0f} s; see {log}")


@dataclass(frozen=True)
class PerfSaid:
    """What ``pulsar-perf`` says at its end. Latencies in ms: None of consumers."""

    messages: int
    rate: float
    p50_ms: float | None
    p99_ms: float | None
    p99_9_ms: float | None


class Perf:
    """Pulsar's own load generator, against one endpoint."""

    def __init__(self, jars: Path, folder: Path, endpoint: Endpoint) -> None:
        self._jars = jars
        self._config = folder / f"client-{endpoint.broker_port}.conf"
        self._config.write_text(
            f"brokerServiceUrl=pulsar://127.0.0.1:{endpoint.broker_port}\n"
            f"webServiceUrl=http://127.0.0.1:{endpoint.http_port}\n"
        )

    def run(self, *arguments: object, when_created: Callable[[], None] = lambda: None) -> PerfSaid:
        """``when_created`` is called when all producers are there and the load begins. Raises
        ``SystemExit`` with what it said if it fails or lost something."""
        command = [
            find_java(), "-Xmx1g", *OPENED, "-Dorg.slf4j.simpleLogger.defaultLogLevel=info",
            "-cp", f"{self._jars}/*", "org.apache.pulsar.testclient.PulsarPerfTestTool",
            str(self._config), *map(str, arguments),
        ]  # fmt: skip
        lines = []
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            env={**os.environ, "TZ": "UTC"},
        ) as process:  # fmt: skip
            assert process.stdout is not None
            late = threading.Timer(RUN_S, process.kill)
            late.start()
            for line in process.stdout:
                lines.append(line)
                if CREATED.search(line):
                    when_created()
            late.cancel()
        whole = "".join(lines)
        found = re.findall(
            r"Aggregated throughput stats --- +(\d+) records \w+ --- +([\d.]+) msg/s", whole
        )
        if process.returncode or not found:
            raise SystemExit(f"pulsar-perf {arguments}: {whole[-3000:]}")
        latency = re.search(
            r"Aggregated latency stats --- Latency: mean: +[\d.]+ ms - med: +([\d.]+)"
            r".*? 99pct: +([\d.]+) - 99.9pct: +([\d.]+)",
            whole,
        )
        values = [float(each) for each in latency.groups()] if latency else [None] * 3
        return PerfSaid(int(found[-1][0]), float(found[-1][1]), *values)
