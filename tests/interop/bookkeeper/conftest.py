"""Fixtures of BookKeeper's peers: what was fetched for them, ZooKeeper, and bookie processes."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from magnetar.env.metadata_stores.zookeeper_metadata import ZooKeeperMetadataStore
from magnetar.env.metadata_stores.zookeeper_server import ZooKeeperServer
from magnetar.env.network.free_ports import free_port
from magnetar.ledger.catalog.metadata import LedgerManager

HERE = Path(__file__).parent
JAVA_START_S = 180.0


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


async def initialize(metadata_url: str) -> None:
    """Make the cluster that bookies of either kind join; BookKeeper's do not make one."""
    store = await ZooKeeperMetadataStore.open(metadata_url)
    try:
        await LedgerManager(store).initialize()
    finally:
        await store.close()


@contextlib.contextmanager
def java_bookie(
    work_dir: Path,
    zookeeper: ZooKeeperServer,
    data_dir: Path,
    bookie_id: str,
    root: str = "/magnetar",
    http: bool = False,
) -> Iterator[subprocess.Popen[str]]:
    """A bookie of BookKeeper's own in the same cluster; ``http``: with its REST. Its end is the
    caller's, or a kill."""
    data_dir.mkdir(parents=True, exist_ok=True)
    port, http_port = free_port(), free_port()
    configuration = data_dir / "bookie.conf"
    configuration.write_text(
        f"metadataServiceUri=zk+hierarchical://{zookeeper.address}{root}/ledgers\n"
        f"bookiePort={port}\nbookieId={bookie_id}\nadvertisedAddress=127.0.0.1\n"
        f"journalDirectories={data_dir}/journal\nledgerDirectories={data_dir}/ledgers\n"
        f"indexDirectories={data_dir}/index\n"
        "allowLoopback=true\nautoRecoveryDaemonEnabled=false\n"
        f"httpServerEnabled={str(http).lower()}\nhttpServerHost=127.0.0.1\n"
        f"httpServerPort={http_port}\n"
        "httpServerClass=org.apache.bookkeeper.http.vertx.VertxHttpServer\n"
        "zkTimeout=4000\ndiskUsageThreshold=0.99\ndiskUsageWarnThreshold=0.98\n"
        "numAddWorkerThreads=2\nnumReadWorkerThreads=2\nserverNumIOThreads=2\n"
    )
    with (data_dir / "bookie.log").open("w") as log:
        process = subprocess.Popen(
            [HERE / "run.sh", work_dir, "bookie", configuration], stdout=log, stderr=log, text=True
        )
    try:
        _wait_listening(process, port, data_dir / "bookie.log")
        yield process
    finally:
        process.kill()
        process.wait()


def _wait_listening(process: subprocess.Popen[str], port: int, log: Path) -> None:
    deadline_s = time.monotonic() + JAVA_START_S
    while time.monotonic() < deadline_s and process.poll() is None:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1.0):
            return
        time.sleep(0.2)
    raise RuntimeError(f"BookKeeper's bookie does not serve:\n{log.read_text()[-4000:]}")


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
