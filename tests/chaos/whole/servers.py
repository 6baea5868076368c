"""The servers as processes: each keeps its directory and address, and is started again.

A server that a fault has taken down is *held* down until the fault is over. One that ends by
itself is started again at once, as an operator's supervisor does, and counted: a broker that
finds its session lost ends on purpose.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, Protocol

from magnetar.env.metadata_stores.zookeeper_server import find_jars, find_java
from tests.chaos.whole.plan import SESSION_MS

READY_S: Final = 120.0
END_S: Final = 60.0
POLL_S: Final = 0.1


class Network(Protocol):
    """``network.Namespaces``, ``relays.Relays``."""

    @property
    def description(self) -> str: ...
    @property
    def hosts(self) -> list[str]: ...
    def start(self) -> None: ...
    def address(self, host: str) -> str: ...
    def told(self, host: str) -> str: ...
    def reached(self, caller: str, host: str, port: int) -> tuple[str, int]: ...
    def command(self, host: str, command: Sequence[str]) -> list[str]: ...
    def cut(self, host: str, others: Sequence[str], both: bool = True) -> Callable[[], None]: ...
    def end(self) -> None: ...


class Server:
    """One process after the other of one command. ``kill`` and ``stop`` hold it down; ``begin``
    starts it, in an environment that has ``environment`` beside ours."""

    def __init__(self, name: str, command: Sequence[str], folder: Path) -> None:
        self.name = name
        self.ended_by_itself = 0
        self.environment: Mapping[str, str] = {}
        self._command = command
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        self._held = True
        self._lock = threading.Lock()

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None else None

    @property
    def log_path(self) -> Path:
        return self._folder / f"{self.name}.log"

    @property
    def _out_path(self) -> Path:
        return self._folder / f"{self.name}.out"

    @property
    def ready(self) -> bool:
        """Whether it runs, and has said that it serves."""
        with self._lock:
            running = self._process is not None and self._process.poll() is None
            return running and self._says_ready()

    def _says_ready(self) -> bool:
        return b"\n" in self._out_path.read_bytes()

    def begin(self) -> None:
        with self._lock:
            self._held = False
            self._start()

    def _start(self) -> None:
        with self._out_path.open("wb") as out, self.log_path.open("ab") as log:
            log.write(f"--- started at {time.monotonic():.3f}\n".encode())
            log.flush()
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=log,
                env={**os.environ, **self.environment},
            )

    def signal(self, number: signal.Signals) -> None:
        with self._lock:
            if self._process is not None and self._process.poll() is None:
                os.kill(self._process.pid, number)

    def pause(self) -> None:
        self.signal(signal.SIGSTOP)

    def resume(self) -> None:
        self.signal(signal.SIGCONT)

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """In order; killed if it takes too long, which is an error: ``RuntimeError``."""
        self._end(signal.SIGTERM)

    def _end(self, number: signal.Signals) -> None:
        with self._lock:
            self._held = True
            process = self._process
        if process is None:
            return
        if process.poll() is None:
            process.send_signal(number)
        try:
            process.wait(END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise RuntimeError(
                f"{self.name} did not end in {END_S:.0f} s of {number.name}"
            ) from None

    def look_after(self) -> str | None:
        """Start it again if it has ended by itself; returns what there is to say of it."""
        with self._lock:
            process = self._process
            if self._held or process is None or process.poll() is None:
                return None
            self.ended_by_itself += 1
            self._start()
            return f"{self.name} ended by itself with code {process.returncode}; started again"

    def wait_ready(self) -> None:
        deadline_s = time.monotonic() + READY_S
        while not self.ready:
            if time.monotonic() > deadline_s:
                raise RuntimeError(
                    f"{self.name} is not ready in {READY_S:.0f} s; see {self.log_path}"
                )
            time.sleep(POLL_S)


class Quorum:
    """ZooKeeper's side of a ``Server``: asked over the network, for it prints nothing."""

    def __init__(self, servers: Sequence[Server], modes: Callable[[], dict[str, str]]) -> None:
        self._servers = {server.name: server for server in servers}
        self._modes = modes

    def leader(self) -> str | None:
        return next((name for name, mode in self._modes().items() if mode == "leader"), None)

    def wait_whole(self) -> None:
        """Until all serve, and one leads."""
        deadline_s = time.monotonic() + READY_S
        while True:
            modes = self._modes()
            if sorted(modes.values()) == ["follower"] * (len(self._servers) - 1) + ["leader"]:
                return
            if time.monotonic() > deadline_s:
                raise RuntimeError(f"ZooKeeper is not whole in {READY_S:.0f} s: {modes}")
            time.sleep(POLL_S)


class Supervisor(threading.Thread):
    """Looks after all servers until it is ended."""

    def __init__(self, servers: Sequence[Server], say: Callable[[str], None]) -> None:
        super().__init__(name="supervisor", daemon=True)
        self._servers = servers
        self._say = say
        self._over = threading.Event()

    def run(self) -> None:
        while not self._over.wait(POLL_S):
            for server in self._servers:
                said = server.look_after()
                if said is not None:
                    self._say(said)

    def end(self) -> None:
        self._over.set()
        self.join()

    @property
    def ended(self) -> dict[str, int]:
        return {each.name: each.ended_by_itself for each in self._servers if each.ended_by_itself}


def magnetar(*arguments: str, sets: Sequence[str]) -> list[str]:
    words = [word for each in sets for word in ("--set", each)]
    return [sys.executable, "-m", "magnetar", *arguments, *words]


def zookeeper_command(
    number: int, addresses: Sequence[str], data_dir: Path, client_port: int
) -> list[str]:
    """The command of one member of an ensemble; writes its configuration."""
    data_dir.mkdir(parents=True, exist_ok=True)
    (data_dir / "myid").write_text(str(number + 1))
    settings = {
        "tickTime": "500",
        "initLimit": "20",
        "syncLimit": "5",
        "minSessionTimeout": "500",
        "maxSessionTimeout": "60000",
        "dataDir": str(data_dir.absolute()),
        "clientPort": str(client_port),
        "clientPortAddress": addresses[number],
        "maxClientCnxns": "0",
        "admin.enableServer": "false",
        "4lw.commands.whitelist": "ruok,srvr",
        **{f"server.{i + 1}": f"{address}:2888:3888" for i, address in enumerate(addresses)},
    }
    path = data_dir / "zoo.cfg"
    path.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    jars = find_jars()
    first = sorted(str(jar) for jar in jars.glob("zookeeper-*.jar"))
    return [
        find_java(), "-Xms16m", "-Xmx192m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1",
        "-Dorg.apache.logging.log4j.level=WARN", "-Dzookeeper.preAllocSize=1024",
        "-Dzookeeper.cnxTimeout=1000", "-cp", ":".join([*first, str(jars / "*")]),
        "org.apache.zookeeper.server.quorum.QuorumPeerMain", str(path),
    ]  # fmt: skip


def session_setting() -> str:
    return f"metadata.session_timeout_ms={SESSION_MS}"
