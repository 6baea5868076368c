"""A real ZooKeeper server as a child process, from the jars that PySpark brings along.

For development and tests: one server, or a member of an ensemble, bound to loopback, small heap.
Its data directory holds ``zoo.cfg``, ``zookeeper.log``, ``zookeeper.pid`` and ZooKeeper's own
``version-2`` (and ``myid``, of a member). In production, run an ensemble from ZooKeeper's
distribution and point ``--metadata`` at it.

The server ends with the thread that launched it, however that ends: it asks the kernel for a
SIGKILL then (``PR_SET_PDEATHSIG``), which ZooKeeper survives as it does a crash.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

from magnetar.env.child_process import ends_with
from magnetar.env.network.free_ports import free_port
from magnetar.model.errors import ConfigError, MetadataUnavailableError

HOST = "127.0.0.1"

_MAIN_CLASS = "org.apache.zookeeper.server.ZooKeeperServerMain"
_MEMBER_CLASS = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
_MEMBER_SETTINGS = {"initLimit": "20", "syncLimit": "5"}
_JVM_FLAGS = (
    "-Xms16m",
    "-Xmx256m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-Dorg.apache.logging.log4j.level=WARN",
    "-Dzookeeper.preAllocSize=1024",
)
_SETTINGS = {
    "tickTime": "500",
    "minSessionTimeout": "500",
    "maxSessionTimeout": "60000",
    "clientPortAddress": HOST,
    "maxClientCnxns": "0",
    "admin.enableServer": "false",
    "4lw.commands.whitelist": "ruok,srvr",
    "autopurge.snapRetainCount": "3",
    "autopurge.purgeInterval": "1",
}
_STOP_TIMEOUT_S = 10.0
_POLL_S = 0.02


def find_java() -> str:
    """The ``java`` command. Raises ``ConfigError`` that says what to install."""
    home = os.environ.get("JAVA_HOME")
    candidates = [str(Path(home) / "bin" / "java")] if home else []
    for candidate in [*candidates, "java"]:
        found = shutil.which(candidate)
        if found:
            return found
    raise ConfigError(
        "ZooKeeper needs Java 17 or newer, and there is no java on the PATH"
        + (f" nor in JAVA_HOME ({home})" if home else "")
        + "; install it (Debian: apt install openjdk-17-jre-headless) or set JAVA_HOME"
    )


def find_jars() -> Path:
    """PySpark's directory of jars. Raises ``ConfigError`` that says what to install."""
    spec = importlib.util.find_spec("pyspark")
    if spec is None or not spec.submodule_search_locations:
        raise ConfigError(
            "the ZooKeeper server comes with PySpark's jars, and PySpark is not installed; "
            "install it with: pip install 'magnetar[spark]'"
        )
    jars = Path(spec.submodule_search_locations[0]) / "jars"
    if not any(jars.glob("zookeeper-[0-9]*.jar")):
        raise ConfigError(
            f"PySpark's jars in {jars} hold no ZooKeeper server; install a PySpark from PyPI: "
            f"pip install --force-reinstall 'magnetar[spark]'"
        )
    return jars


class EnsembleMember(NamedTuple):
    """This server is ``members[number]`` of an ensemble; each has a port for its leader and one for
    elections."""

    number: int
    members: Sequence[tuple[int, int]]


class ZooKeeperServer:
    """One server over ``data_dir`` on ``port`` (0 takes a free one); a context manager. With a
    ``membership`` it serves once most members of the ensemble run."""

    def __init__(
        self, data_dir: Path, port: int = 0, membership: EnsembleMember | None = None
    ) -> None:
        self.data_dir = data_dir
        self.port = port or free_port()
        self._membership = membership
        self._main_class = _MAIN_CLASS if membership is None else _MEMBER_CLASS
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        return f"{HOST}:{self.port}"

    @property
    def pid(self) -> int | None:
        """The JVM's process id while it runs."""
        return self._process.pid if self._process else None

    def start(self, timeout_s: float = 30.0) -> None:
        """``launch``, and wait until the server answers. Raises ``ConfigError``,
        ``MetadataUnavailableError``."""
        self.launch()
        self.wait_ready(timeout_s)

    def launch(self) -> None:
        """Start the server. To be called in a thread that lives as long as the server shall.
        Raises ``ConfigError`` for what is not installed, a taken port, or a server of this data
        directory that still runs."""
        command = [find_java(), *_JVM_FLAGS, "-cp", self._class_path(), self._main_class]
        self._check_left_behind()
        self._check_port()
        self.data_dir.mkdir(parents=True, exist_ok=True)
        with self._log_path.open("ab") as log_file:
            self._process = subprocess.Popen(
                [*command, str(self._write_settings())],
                stdin=subprocess.DEVNULL,
                stdout=log_file,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C stops the caller, and the caller stops it
                preexec_fn=ends_with(os.getpid(), signal.SIGKILL),
            )
        self._pid_path.write_text(f"{self._process.pid}\n")

    def wait_ready(self, timeout_s: float = 30.0) -> None:
        """Until the server answers on its port; it is stopped if it does not. Raises
        ``MetadataUnavailableError``."""
        try:
            self._wait_answer(time.monotonic() + timeout_s)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """End the server: first asked to, then made to. Idempotent."""
        process, self._process = self._process, None
        if process is None:
            return
        self._pid_path.unlink(missing_ok=True)
        process.terminate()
        try:
            process.wait(_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def kill(self) -> None:
        """End the server as a crash would."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()

    def exit_code(self) -> int | None:
        """The server's exit code if it has ended by itself, else None."""
        return self._process.poll() if self._process else None

    def __enter__(self) -> ZooKeeperServer:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def _check_port(self) -> None:
        """Before the start: afterwards, whoever has the port would answer in our name."""
        try:
            socket.create_server((HOST, self.port)).close()
        except OSError as error:
            raise ConfigError(
                f"ZooKeeper cannot listen on {self.address}: {error.strerror}; stop what uses the "
                "port, or choose another (0 takes a free one)"
            ) from error

    def _check_left_behind(self) -> None:
        """Two servers over one directory would write into each other's logs."""
        try:
            pid = int(self._pid_path.read_text())
            command = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        except (OSError, ValueError):
            return  # it ended, in order or not
        if self._main_class.encode() in command and os.fsencode(self._settings_path) in command:
            raise ConfigError(
                f"process {pid} is a ZooKeeper server of {self.data_dir} that is left of an "
                f"earlier start and holds its port; end it (kill {pid}), then start again"
            )

    @property
    def _pid_path(self) -> Path:
        return self.data_dir / "zookeeper.pid"

    @property
    def _log_path(self) -> Path:
        return self.data_dir / "zookeeper.log"

    @property
    def _settings_path(self) -> Path:
        return self.data_dir.absolute() / "zoo.cfg"

    def _class_path(self) -> str:
        jars = find_jars()
        first = sorted(str(jar) for jar in jars.glob("zookeeper-*.jar"))
        return ":".join([*first, str(jars / "*")])

    def _write_settings(self) -> Path:
        settings = {
            **_SETTINGS,
            "dataDir": str(self.data_dir.absolute()),
            "clientPort": str(self.port),
        }
        if self._membership is not None:
            settings |= _MEMBER_SETTINGS
            for number, (leader, election) in enumerate(self._membership.members, 1):
                settings[f"server.{number}"] = f"{HOST}:{leader}:{election}"
            (self.data_dir / "myid").write_text(f"{self._membership.number + 1}\n")
        path = self._settings_path
        path.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        return path

    def _wait_answer(self, deadline_s: float) -> None:
        """Poll with ``srvr``: a server that takes connections but does not serve yet says so."""
        while time.monotonic() < deadline_s:
            code = self.exit_code()
            if code is not None:
                raise MetadataUnavailableError(
                    f"ZooKeeper ended with code {code} while it started on {self.address}; is the "
                    f"port taken? Its last lines ({self._log_path}): {self._log_tail()}"
                )
            if "Mode:" in four_letter_word(self.port, b"srvr"):
                return
            time.sleep(_POLL_S)
        raise MetadataUnavailableError(
            f"ZooKeeper does not answer on {self.address} in time; its last lines "
            f"({self._log_path}): {self._log_tail()}"
        )

    def _log_tail(self) -> str:
        lines = self._log_path.read_text(errors="replace").splitlines()
        return " | ".join(line for line in lines[-8:] if line.strip()) or "(none)"


def four_letter_word(port: int, word: bytes, timeout_s: float = 2.0) -> str:
    """A local server's answer to one of ZooKeeper's four-letter words; empty without one."""
    try:
        with socket.create_connection((HOST, port), timeout=timeout_s) as connection:
            connection.sendall(word)
            answer = b""
            while chunk := connection.recv(4096):
                answer += chunk
    except OSError:
        return ""
    return answer.decode("utf-8", "replace")
