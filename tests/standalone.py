"""A real ``magnetar standalone`` process for tests that need to start, kill and restart one."""

from __future__ import annotations

import os
import re
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType

from magnetar.env.network.free_ports import free_port

READY_TIMEOUT_S = 90.0
END_S = 60.0


class Standalone:
    """One platform process on ``data_dir``; its ports stay the same over restarts. ``module``: what
    is run, which takes magnetar's arguments."""

    def __init__(self, data_dir: Path, *arguments: str, module: str = "magnetar") -> None:
        self.data_dir = data_dir
        self.broker_port = free_port()
        self.http_port = free_port()
        self.arguments = arguments
        self._module = module
        self.ready_line = ""
        self._rest = ""
        self.log_path = data_dir.parent / f"{data_dir.name}.log"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def service_url(self) -> str:
        return f"pulsar://127.0.0.1:{self.broker_port}"

    @property
    def http_url(self) -> str:
        return f"http://127.0.0.1:{self.http_port}"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> float:
        """Start and wait for the ready line; returns the seconds it took."""
        assert self._process is None, "already running"
        begun = time.monotonic()
        command = [
            sys.executable, "-m", self._module, "standalone",
            "--data-dir", str(self.data_dir),
            "--broker-port", str(self.broker_port),
            "--http-port", str(self.http_port),
            *self.arguments,
        ]  # fmt: skip
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log)
        self.ready_line = self._wait_ready(begun + READY_TIMEOUT_S)
        return time.monotonic() - begun

    def _wait_ready(self, deadline: float) -> str:
        assert self._process is not None
        assert self._process.stdout is not None
        descriptor = self._process.stdout.fileno()
        text = b""
        while b"\n" not in text:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([descriptor], [], [], left)[0]:
                raise TimeoutError(f"not ready; see {self.log_path}")
            chunk = os.read(descriptor, 4096)
            if not chunk:
                code = self._process.wait()
                raise RuntimeError(f"ended with {code} before it was ready; see {self.log_path}")
            text += chunk
        first, _, self._rest = text.decode().partition("\n")
        return first

    def rest_of_output(self) -> str:
        """What it has printed beside the ready line."""
        return self._rest

    def kill(self) -> None:
        """SIGKILL: no goodbye."""
        self._end(signal.SIGKILL)

    def stop(self, timeout_s: float = END_S) -> int:
        """SIGTERM; returns the exit code."""
        return self._end(signal.SIGTERM, timeout_s)

    def _end(self, number: int, timeout_s: float = END_S) -> int:
        process, self._process = self._process, None
        if process is None:
            return 0
        process.send_signal(number)
        try:
            return process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise
        finally:
            assert process.stdout is not None
            process.stdout.close()

    def resident_bytes(self) -> int:
        text = Path(f"/proc/{self.pid}/status").read_text()
        match = re.search(r"VmRSS:\s+(\d+) kB", text)
        assert match is not None
        return int(match.group(1)) * 1024

    def cpu_seconds(self) -> float:
        fields = Path(f"/proc/{self.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def __enter__(self) -> Standalone:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._end(signal.SIGKILL if kind else signal.SIGTERM)
