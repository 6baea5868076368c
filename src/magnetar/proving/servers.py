"""Servers of a stage, each a process as an operator runs it: started, killed, paused, started again
on what its disk holds.

They end with this process, however that ends.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from magnetar.env.child_process import ends_with
from magnetar.model.errors import StartError

MAGNETAR: Final = (sys.executable, "-m", "magnetar")
READY_S: Final = 120.0
END_S: Final = 30.0


class Server:
    """``magnetar ARGUMENTS...``; its logs go to ``folder``. To be started in a thread that lives as
    long as it shall."""

    def __init__(self, folder: Path, name: str, arguments: Sequence[str]) -> None:
        self.name = name
        self.environment: Mapping[str, str] = {}
        """Beside this process's."""
        self._folder = folder
        self._command = [*MAGNETAR, *arguments]
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
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,  # Ctrl-C stops us, and we stop it
                preexec_fn=ends_with(os.getpid(), signal.SIGKILL),
            )

    def wait_ready(self) -> None:
        """Raises ``StartError``."""
        process = self._process
        assert process is not None
        assert process.stdout is not None
        ready = select.select([process.stdout], [], [], READY_S)[0]
        if not ready or not process.stdout.readline():
            lines = self.log.splitlines()[-5:]
            raise StartError(f"{self.name} did not start; its last lines: {' | '.join(lines)}")

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
