"""What ``spark_fire`` burns: the platform's processes and the query's, which can be ended and begun
again, and their descendants."""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path

import psutil

from magnetar.env.metadata_stores.zookeeper_server import ZooKeeperServer
from magnetar.env.network.free_ports import free_port
from tests.roles import Role
from tests.spark_cluster import SparkCluster, end_group, environment, submit

CONF = (
    "spark.executor.memory=600m",
    "spark.driver.memory=600m",
    "spark.log.level=WARN",
    "spark.sql.shuffle.partitions=4",
    "spark.sql.streaming.stateStore.maintenanceInterval=5s",
    "spark.speculation=true",
    "spark.speculation.interval=100ms",
    "spark.speculation.quantile=0.5",
    "spark.speculation.multiplier=1.5",
    "spark.eventLog.enabled=true",
    "spark.eventLog.compress=false",
    "spark.eventLog.rolling.enabled=false",
)


class Platform:
    """ZooKeeper, bookies and a broker; what is killed comes back on its directory and port."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.zookeeper = ZooKeeperServer(folder / "zookeeper")
        self._ports = [free_port() for _ in range(5)]
        self._bookies: list[Role] = []
        self._broker: Role | None = None

    @property
    def metadata_url(self) -> str:
        return f"zk://{self.zookeeper.address}/fire"

    @property
    def service_url(self) -> str:
        return f"pulsar://127.0.0.1:{self._ports[3]}"

    @property
    def http_url(self) -> str:
        return f"http://127.0.0.1:{self._ports[4]}"

    def start(self) -> None:
        self.zookeeper.start()
        self._bookies = [self._bookie(index) for index in range(3)]
        for bookie in self._bookies:
            bookie.wait_ready()
        self._broker = self._new_broker().wait_ready()

    def _role(self, *arguments: str) -> Role:
        metadata = ("--metadata", self.metadata_url, "--set", "metadata.session_timeout_ms=4000")
        return Role(self._folder, *arguments, *metadata)

    def _bookie(self, index: int) -> Role:
        data, port = self._folder / f"bookie-{index}", self._ports[index]
        return self._role("bookie", "--data-dir", str(data), "--port", str(port))

    def _new_broker(self) -> Role:
        ports = ("--port", str(self._ports[3]), "--http-port", str(self._ports[4]))
        copies = ("ensemble_size=3", "write_quorum=3", "ack_quorum=2")
        quorums = (word for copy in copies for word in ("--set", f"ledger.{copy}"))
        return self._role("broker", *ports, *quorums)

    def burn_broker(self, down_s: float) -> None:
        assert self._broker is not None
        self._broker.kill()
        time.sleep(down_s)
        self._broker = self._new_broker().wait_ready()

    def burn_bookie(self, index: int, down_s: float) -> None:
        self._bookies[index].kill()
        time.sleep(down_s)
        self._bookies[index] = self._bookie(index).wait_ready()

    def end(self) -> None:
        for role in [*([self._broker] if self._broker else []), *self._bookies]:
            if role.running:
                role.kill()
        self.zookeeper.stop()


class Query:
    """The query, started again on its checkpoint whenever it was killed or has ended. ``asked``:
    the metadata store that it asks; without, it asks the brokers."""

    def __init__(
        self, folder: Path, platform: Platform, cluster: SparkCluster, rows: int, *asked: str
    ) -> None:
        self._folder = folder
        self._arguments = (platform.service_url, str(folder), str(rows), *asked)
        self._master = cluster.url
        self._process: subprocess.Popen[bytes] | None = None
        self._events = folder / "events"
        self._events.mkdir()
        self.ended_by_itself: list[str] = []
        self.starts = 0

    def start(self) -> None:
        job = Path(__file__).with_name("fire_job.py")
        conf = (*CONF, f"spark.eventLog.dir=file://{self._events}")
        self.starts += 1
        with self._log_path.open("wb") as log:
            self._process = subprocess.Popen(
                submit(self._master, conf, job, *self._arguments),
                stdout=log,
                stderr=log,
                env=environment(),
                start_new_session=True,
            )

    @property
    def _log_path(self) -> Path:
        return self._folder / f"driver-{self.starts}.log"

    def kill(self) -> None:
        assert self._process is not None
        end_group(self._process)

    def look_after(self) -> None:
        """Start it again if it has ended by itself."""
        assert self._process is not None
        if self._process.poll() is None:
            return
        end_group(self._process)
        lines = self._log_path.read_text(errors="replace").splitlines()
        why = [line for line in lines if line.startswith("Caused by:") or "Error: " in line]
        after = [i + 1 for i, line in enumerate(lines) if "terminated with error" in line]
        why = [*why[-2:], *(lines[i] for i in after[-1:] if i < len(lines))] or lines[-1:]
        self.ended_by_itself.append(" | ".join(why)[:800])
        print(f"the query ended by itself: {self.ended_by_itself[-1]}", flush=True)
        self.start()

    @property
    def processes(self) -> list[psutil.Process]:
        assert self._process is not None
        return descendants(self._process.pid)

    @property
    def batches(self) -> int:
        """How many are over, by Spark's own log."""
        folder = self._folder / "checkpoint" / "commits"
        names = [path.name for path in folder.glob("*")] if folder.exists() else []
        return max((int(name) for name in names if name.isdigit()), default=-1) + 1

    @property
    def rows_read(self) -> int:
        """Of the source, by the batches that are over; Spark's log has the offsets."""
        if not self.batches:
            return 0
        path = self._folder / "checkpoint" / "offsets" / str(self.batches - 1)
        return sum(json.loads(path.read_text().splitlines()[-1])["offsets"].values())

    @property
    def id(self) -> str:
        return str(json.loads((self._folder / "checkpoint" / "metadata").read_text())["id"])

    def speculative_tasks(self) -> int:
        return sum(
            '"SparkListenerTaskStart"' in line and '"Speculative":true' in line
            for path in self._events.iterdir()
            for line in path.read_text(errors="replace").splitlines()
        )


def command_of(process: psutil.Process) -> str:
    """Empty for one that is gone, or that nobody has asked about since it ended."""
    try:
        return " ".join(process.cmdline())
    except psutil.NoSuchProcess:
        return ""


def descendants(pid: int) -> list[psutil.Process]:
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []
