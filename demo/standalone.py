"""Starts the platform for the demo, the way a user would, and stops it again."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

READY_SECONDS_MAX = 30.0
SETTINGS = ("ledger.ledger_bytes_max=512KiB", "ledger.tabled_ledger_ms_least=0")
"""What other topics have in months is to happen here in a minute: many ledgers, which leave the
bookies at once when they are in a table."""


def port_or_free(wanted: int) -> int:
    """``wanted`` if nobody listens there, else a free port."""
    for port in (wanted, 0):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return int(probe.getsockname()[1])
    raise SystemExit("no free port on 127.0.0.1")


class Platform:
    """A ``magnetar standalone`` process of its own session, so that it can outlive the demo."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.broker_port = port_or_free(6650)
        self.http_port = port_or_free(8080)
        self.log = folder / "platform.log"
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def service_url(self) -> str:
        return f"pulsar://127.0.0.1:{self.broker_port}"

    @property
    def http_url(self) -> str:
        return f"http://127.0.0.1:{self.http_port}"

    def start(self) -> float:
        """Start it and wait for its ready line; returns the seconds it took."""
        command = [sys.executable, "-m", "magnetar", "standalone"]
        command += ["--data-dir", str(self.folder / "data")]
        command += ["--broker-port", str(self.broker_port), "--http-port", str(self.http_port)]
        command += [word for setting in SETTINGS for word in ("--set", setting)]
        begun = time.monotonic()
        with self.log.open("wb") as log, (self.folder / "ready").open("wb") as ready:
            self.process = subprocess.Popen(
                command, stdout=ready, stderr=log, start_new_session=True
            )
        while not (self.folder / "ready").read_bytes().endswith(b"\n"):
            if self.process.poll() is not None:
                raise SystemExit(f"the platform did not start:\n{self.log.read_text()}")
            if time.monotonic() - begun > READY_SECONDS_MAX:
                raise SystemExit(f"the platform is not ready; see {self.log}")
            time.sleep(0.01)
        return time.monotonic() - begun

    def stop(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()
            self.process.wait(30)


@contextlib.contextmanager
def running(folder: Path, *, keep: bool) -> Iterator[Platform]:
    """The platform for as long as the block runs; with ``keep`` it goes on afterwards."""
    refuse_if_one_runs(folder)
    platform = Platform(folder)
    platform.start()
    assert platform.process is not None
    pid_file = folder / "platform.pid"
    pid_file.write_text(str(platform.process.pid))
    good = False
    try:
        yield platform
        good = True
    finally:
        if not (keep and good):
            platform.stop()
            pid_file.unlink(missing_ok=True)


def refuse_if_one_runs(folder: Path) -> None:
    """An earlier demo's platform (KEEP=1) still uses the folder: say how to end it."""
    pid_file = folder / "platform.pid"
    if not pid_file.exists():
        return
    pid = int(pid_file.read_text())
    command_line = Path(f"/proc/{pid}/cmdline")
    if command_line.exists() and b"magnetar" in command_line.read_bytes():
        raise SystemExit(
            f"the platform of an earlier demo still runs as process {pid}; end it first: kill {pid}"
        )
    pid_file.unlink()
