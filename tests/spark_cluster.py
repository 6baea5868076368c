"""A real Spark standalone cluster of pip's PySpark on loopback: a master and its workers.

Each worker has a loopback address of its own (127.0.0.1, 127.0.0.2, ...): Spark starts a second
attempt of a slow task on another host only, so workers of one address would never speculate.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

import httpx
import pyspark

from magnetar.env.network.free_ports import free_port

HOME = Path(pyspark.__file__).parent
READY_S = 150.0

JAVA_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""For ``JDK_JAVA_OPTIONS``, which every JVM started below reads: tests end before what the second
compiler and a collector with threads of its own cost is gained back (half of a session's CPU)."""


def environment(address: str = "127.0.0.1") -> dict[str, str]:
    """Of a process of Spark that listens on ``address``."""
    return os.environ | {
        "SPARK_HOME": str(HOME),
        "SPARK_NO_DAEMONIZE": "1",
        "SPARK_LOCAL_IP": address,
        "SPARK_DAEMON_MEMORY": "256m",
        "JDK_JAVA_OPTIONS": JAVA_OPTIONS,
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
    }


class SparkCluster:
    """A master with ``workers`` workers; their logs, and those of executors, go to ``folder``."""

    def __init__(self, folder: Path, workers: int = 1, cores: int = 1, memory: str = "1g") -> None:
        self._folder = folder
        self._workers, self._cores, self._memory = workers, cores, memory
        self._processes: list[subprocess.Popen[bytes]] = []
        self._web_port = free_port()
        self.url = f"spark://127.0.0.1:{free_port()}"

    @property
    def worker_pids(self) -> list[int]:
        """Executors are their children."""
        return [process.pid for process in self._processes[1:]]

    def start(self) -> None:
        """Returns when every worker is known to the master."""
        self._begin(
            "127.0.0.1", "master.Master",
            "--port", self.url.rpartition(":")[2], "--webui-port", str(self._web_port),
        )  # fmt: skip
        for number in range(1, self._workers + 1):
            self._begin(
                f"127.0.0.{number}", "worker.Worker",
                "--port", str(free_port()), "--webui-port", str(free_port()),
                "-c", str(self._cores), "-m", self._memory,
                "-d", str(self._folder / f"work-{number}"), self.url,
            )  # fmt: skip
        self._wait_alive()

    def _begin(self, address: str, name: str, *arguments: str) -> None:
        command = [str(HOME / "bin" / "spark-class"), f"org.apache.spark.deploy.{name}"]
        with (self._folder / f"{name}-{address}.log").open("ab") as log:
            process = subprocess.Popen(
                [*command, "--host", address, *arguments],
                stdout=log,
                stderr=log,
                env=environment(address),
                start_new_session=True,
            )
        self._processes.append(process)

    def _wait_alive(self) -> None:
        deadline = time.monotonic() + READY_S
        status = f"http://127.0.0.1:{self._web_port}/json/"
        while time.monotonic() < deadline:
            try:
                if httpx.get(status).json()["aliveworkers"] == self._workers:
                    return
            except (httpx.HTTPError, ValueError):
                pass
            time.sleep(0.2)
        raise TimeoutError(f"not {self._workers} workers at {status}; see {self._folder}")

    def end(self) -> None:
        """The workers first, with their executors."""
        while self._processes:
            end_group(self._processes.pop())

    def __enter__(self) -> SparkCluster:
        try:
            self.start()
        except BaseException:
            self.end()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.end()


def submit(master: str, conf: Sequence[str], job: Path, *arguments: str) -> list[str]:
    """The command that runs ``job`` with this process's machine as its driver."""
    settings = [word for setting in conf for word in ("--conf", setting)]
    return [
        str(HOME / "bin" / "spark-submit"), "--master", master,
        "--conf", "spark.driver.host=127.0.0.1", "--conf", "spark.ui.enabled=false",
        *settings, str(job), *arguments,
    ]  # fmt: skip


def end_group(process: subprocess.Popen[bytes]) -> None:
    """SIGKILL to a process that leads a group, and to all of that."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
