"""A ``magnetar`` server process for tests: started, watched until it is ready, faulted, ended."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

READY_S = 90.0
END_S = 60.0


class Role:
    """``magnetar ARGUMENTS...`` as a child; its log goes to a file in ``folder``."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self.log_path = folder / f"{arguments[0]}-{time.monotonic_ns()}.log"
        self.ready_line = ""
        with self.log_path.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "magnetar", *arguments], stdout=subprocess.PIPE, stderr=log
            )

    def wait_ready(self) -> Role:
        assert self.process.stdout is not None
        if not select.select([self.process.stdout], [], [], READY_S)[0]:
            raise TimeoutError(self.log)
        self.ready_line = self.process.stdout.readline().decode()
        assert self.ready_line, self.log
        return self

    @property
    def log(self) -> str:
        return self.log_path.read_text()

    @property
    def running(self) -> bool:
        return self.process.poll() is None

    def pause(self) -> None:
        """SIGSTOP: alive, connected, and silent."""
        os.kill(self.process.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.kill(self.process.pid, signal.SIGCONT)

    def kill(self) -> None:
        """SIGKILL: no goodbye. Of a process that is paused too."""
        self.end(signal.SIGKILL)

    def ask_to_end(self) -> None:
        """SIGTERM; ``wait_ended`` waits, so that several can end at the same time."""
        self.process.send_signal(signal.SIGTERM)

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Send the signal and wait; returns the exit code. Fine when it has ended already."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        return self.wait_ended()

    def wait_ended(self) -> int:
        """Returns the exit code."""
        try:
            return self.process.wait(END_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise
        finally:
            assert self.process.stdout is not None
            self.process.stdout.close()
