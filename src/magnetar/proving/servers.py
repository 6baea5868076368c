"""Servers of a stage, each a process as an operator runs it: started, killed, paused, started again
on what its disk holds.

They end with this process, however that ends.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Final

from magnetar.env.child_process import ends_with
from magnetar.model.errors import StartError

MAGNETAR: Final = (sys.executable, "-m", "magnetar")
READY_S: Final = 120.0
END_S: Final = 30.0


class Server:
    """A command that says a line when it is ready; its logs go to ``folder``. To be started in a
    thread that lives as long as it shall."""

    def __init__(self, folder: Path, name: str, command: Sequence[str]) -> None:
        self.name = name
        self.environment: Mapping[str, str] = {}
        """Beside this process's."""
        self._folder = folder
        self._command = [*command]
        self._process: subprocess.Popen[bytes] | None = None
        self._lives = 0

    @property
    def pid(self) -> int:
        assert self._process is not None, f"{self.name} was not started"
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def log(self) -> str:
        return self._log_path.read_text(errors="replace")

    @property
    def _log_path(self) -> Path:
        return self._folder / f"{self.name}-{self._lives}.log"

    def begin(self) -> None:
        """Start it, without waiting until it is ready."""
        self._lives += 1
        with self._log_path.open("wb") as log:
            self._process = subprocess.Popen(
                self._command,
                env={**os.environ, **self.environment},
                stdin=subprocess.DEVNULL,
                stdout=self._stdout(log),
                stderr=log,
                start_new_session=True,  # Ctrl-C stops us, and we stop it
                preexec_fn=ends_with(os.getpid(), signal.SIGKILL),
            )

    def _stdout(self, log: IO[bytes]) -> IO[bytes] | int:
        return subprocess.PIPE

    def wait_ready(self) -> None:
        """Raises ``StartError``."""
        process = self._process
        assert process is not None
        assert process.stdout is not None
        ready = select.select([process.stdout], [], [], READY_S)[0]
        if not ready or not process.stdout.readline():
            raise self._not_started()

    def _not_started(self) -> StartError:
        lines = self.log.splitlines()[-5:]
        ended = "" if self.running else f" (it ended with {self._process and self._process.poll()})"
        said = " | ".join(lines) or "it has said nothing"
        return StartError(f"{self.name} did not start{ended}; its last lines: {said}")

    def pause(self) -> None:
        """SIGSTOP: alive, connected, and silent."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def kill(self) -> None:
        """SIGKILL: no goodbye. Fine when it has ended."""
        process = self._process
        if process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        process.wait(END_S)
        if process.stdout is not None:
            process.stdout.close()

    def wait_ended(self, within_s: float) -> bool:
        """Whether it has ended by itself."""
        deadline_s = time.monotonic() + within_s
        while self.running and time.monotonic() < deadline_s:
            time.sleep(0.05)
        return not self.running


class ListeningServer(Server):
    """One that is ready when it takes connections at ``address``; what it says goes to its log."""

    def __init__(
        self,
        folder: Path,
        name: str,
        command: Sequence[str],
        address: tuple[str, int],
        ready_s: float = READY_S,
    ) -> None:
        super().__init__(folder, name, command)
        self._address = address
        self._ready_s = ready_s

    def _stdout(self, log: IO[bytes]) -> IO[bytes] | int:
        return log

    def wait_ready(self) -> None:
        """Raises ``StartError``."""
        deadline_s = time.monotonic() + self._ready_s
        while self.running and time.monotonic() < deadline_s:
            with contextlib.suppress(OSError), socket.create_connection(self._address, 1.0):
                return
            time.sleep(0.1)
        raise self._not_started()
