"""A ``magnetar standalone`` process to measure, on a data directory that goes away after it."""

from __future__ import annotations

import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
WORK_DIR = ROOT / "out" / "bench"
READY_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 30.0


@dataclass(frozen=True)
class Server:
    """A running platform. ``ready_s``: from the start of the process to its ready line."""

    pid: int
    broker_port: int
    http_port: int
    ready_s: float
    data_dir: Path


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def standalone(bookies: int = 1, *arguments: str) -> Iterator[Server]:
    """Start a platform on an empty directory of a real disk; end it and remove the directory."""
    WORK_DIR.mkdir(parents=True, exist_ok=True)
    data_dir = Path(tempfile.mkdtemp(prefix="data-", dir=WORK_DIR))
    ports = free_port(), free_port()
    command = [
        sys.executable, "-m", "magnetar", "standalone", "--data-dir", str(data_dir),
        "--broker-port", str(ports[0]), "--http-port", str(ports[1]),
        "--bookies", str(bookies), *arguments,
    ]  # fmt: skip
    log_path = WORK_DIR / "server.log"
    begun = time.monotonic()
    with log_path.open("wb") as log:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log)
    try:
        _wait_ready(process, begun + READY_TIMEOUT_S, log_path)
        yield Server(process.pid, *ports, time.monotonic() - begun, data_dir)
    finally:
        _stop(process)
        shutil.rmtree(data_dir, ignore_errors=True)


def _wait_ready(process: subprocess.Popen[bytes], deadline: float, log_path: Path) -> None:
    assert process.stdout is not None
    descriptor = process.stdout.fileno()
    while time.monotonic() < deadline:
        if not select.select([descriptor], [], [], max(0.0, deadline - time.monotonic()))[0]:
            break
        if b"\n" in os.read(descriptor, 4096):
            return
        if process.poll() is not None:
            raise SystemExit(f"the platform ended with {process.returncode}: see {log_path}")
    raise SystemExit(f"the platform was not ready after {READY_TIMEOUT_S:.0f} s: see {log_path}")


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        print("the platform did not end on SIGTERM; killed", file=sys.stderr)
        process.kill()
        process.wait()


def disk_mb_per_s(size_mb: int = 512, piece_kb: int = 1024) -> float:
    """What the disk takes in one stream: pieces overwritten in place, fdatasync after each."""
    WORK_DIR.mkdir(parents=True, exist_ok=True)
    path = WORK_DIR / "disk-probe"
    piece = os.urandom(piece_kb * 1024)
    count = size_mb * 1024 // piece_kb
    fd = os.open(path, os.O_CREAT | os.O_RDWR)
    try:
        os.posix_fallocate(fd, 0, count * len(piece))
        for i in range(count):
            os.pwrite(fd, bytes(len(piece)), i * len(piece))
        os.fsync(fd)
        begun = time.perf_counter()
        for i in range(count):
            os.pwrite(fd, piece, i * len(piece))
            os.fdatasync(fd)
        return count * len(piece) / 1e6 / (time.perf_counter() - begun)
    finally:
        os.close(fd)
        path.unlink()
