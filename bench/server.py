"""Platforms to measure, on a data directory of a real disk that goes away after them: a whole one
in one process (``standalone``), or a ledger store of bookies and a ZooKeeper (``ledger_store``)."""

from __future__ import annotations

import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.trees import ROOT, environment_of
from magnetar.env.metadata_stores.zookeeper_server import ZooKeeperServer
from magnetar.env.network.free_ports import free_port

WORK_DIR = ROOT / "out" / "bench"
READY_TIMEOUT_S = 120.0  # on a machine that has other things to do
STOP_TIMEOUT_S = 30.0
JOURNAL_MB = 128  # a recycled journal file


@dataclass(frozen=True)
class Server:
    """A running platform. ``ready_s``: from the start of the process to its ready line."""

    pid: int
    broker_port: int
    http_port: int
    ready_s: float
    data_dir: Path


@contextmanager
def standalone(bookies: int = 1, *arguments: str, source: Path | None = None) -> Iterator[Server]:
    """Start a platform on an empty directory of a real disk; end it and remove the directory.
    ``source``: the ``src`` directory of another checkout to run."""
    with (
        work_directory() as data_dir,
        standalone_on(data_dir, bookies, *arguments, source=source) as server,
    ):
        yield server


@contextmanager
def standalone_on(
    data_dir: Path,
    bookies: int = 1,
    *arguments: str,
    source: Path | None = None,
    module: str = "magnetar",
) -> Iterator[Server]:
    """As ``standalone``, on a directory that is there and stays. ``module``: what is run."""
    ports = free_port(), free_port()
    log_path = WORK_DIR / "server.log"
    begun = time.monotonic()
    process = _begin(
        log_path, source, "standalone", "--data-dir", str(data_dir),
        "--broker-port", str(ports[0]), "--http-port", str(ports[1]),
        "--bookies", str(bookies), *arguments, module=module,
    )  # fmt: skip
    try:
        _wait_ready(process, begun + READY_TIMEOUT_S, log_path)
        yield Server(process.pid, *ports, time.monotonic() - begun, data_dir)
    finally:
        _stop(process)


class BookieProcess:
    """One bookie: a directory and a port that it keeps, and the process that runs on them."""

    def __init__(
        self, folder: Path, index: int, metadata_url: str, source: Path | None = None
    ) -> None:
        self._source = source
        self.data_dir = folder / f"bookie-{index}"
        self.port = free_port()
        self._log_path = WORK_DIR / f"bookie-{index}.log"
        self._metadata_url = metadata_url
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def begin(self) -> None:
        """Start without waiting until it is ready."""
        self._process = _begin(
            self._log_path, self._source, "bookie", "--data-dir", str(self.data_dir),
            "--port", str(self.port), "--metadata", self._metadata_url,
        )  # fmt: skip

    def wait_ready(self) -> None:
        assert self._process is not None
        _wait_ready(self._process, time.monotonic() + READY_TIMEOUT_S, self._log_path)

    def stop(self) -> None:
        """End it cleanly: what it has cached is in its files afterwards. Idempotent."""
        process, self._process = self._process, None
        if process is not None:
            _stop(process)


@dataclass(frozen=True)
class Store:
    """A running ledger store."""

    metadata_url: str
    bookies: tuple[BookieProcess, ...]

    @property
    def pids(self) -> tuple[int, ...]:
        return tuple(bookie.pid for bookie in self.bookies)

    def start(self) -> None:
        """All bookies, at once."""
        for bookie in self.bookies:
            bookie.begin()
        for bookie in self.bookies:
            bookie.wait_ready()

    def stop(self) -> None:
        for bookie in self.bookies:
            bookie.stop()


@contextmanager
def ledger_store(bookies: int = 3, source: Path | None = None) -> Iterator[Store]:
    """Bookies with every setting at its default (journal sync on) and a ZooKeeper of their own,
    on an empty directory of a real disk, which is removed in the end."""
    with work_directory() as folder, ZooKeeperServer(folder / "zookeeper") as zookeeper:
        url = f"zk://{zookeeper.address}/bench"
        made = (BookieProcess(folder, index, url, source) for index in range(bookies))
        store = Store(url, tuple(made))
        try:
            store.start()
            yield store
        finally:
            store.stop()


@contextmanager
def broker(store: Store, *arguments: str) -> Iterator[Server]:
    """A broker over the bookies of ``store``, in a process of its own."""
    ports = free_port(), free_port()
    log_path = WORK_DIR / ("read-only.log" if "--read-only" in arguments else "broker.log")
    begun = time.monotonic()
    process = _begin(
        log_path, None, "broker", "--metadata", store.metadata_url,
        "--port", str(ports[0]), "--http-port", str(ports[1]), *arguments,
    )  # fmt: skip
    try:
        _wait_ready(process, begun + READY_TIMEOUT_S, log_path)
        yield Server(process.pid, *ports, time.monotonic() - begun, store.bookies[0].data_dir)
    finally:
        _stop(process)


@contextmanager
def work_directory() -> Iterator[Path]:
    """An empty directory of the disk that is measured."""
    WORK_DIR.mkdir(parents=True, exist_ok=True)
    directory = Path(tempfile.mkdtemp(prefix="data-", dir=WORK_DIR))
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _begin(
    log_path: Path, source: Path | None, *arguments: str, module: str = "magnetar"
) -> subprocess.Popen[bytes]:
    """``magnetar ARGUMENTS...``, its log in a file."""
    command = [sys.executable, "-m", module, *arguments]
    with log_path.open("wb") as log:
        return subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=log, env=environment_of(source)
        )


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


def disk_mb_per_s(size_mb: int = 1024) -> float:
    """What the disk takes of the platform's writes, in MB/s of what is stored.

    Each MiB is written twice, as a bookie does: over prepared blocks of one file, with fdatasync
    (the journal), and at the end of another, without (the entry log).
    """
    WORK_DIR.mkdir(parents=True, exist_ok=True)
    paths = WORK_DIR / "probe-journal", WORK_DIR / "probe-entry-log"
    piece = os.urandom(1 << 20)
    journal, entry_log = (os.open(path, os.O_CREAT | os.O_RDWR) for path in paths)
    try:
        for i in range(JOURNAL_MB):
            os.pwrite(journal, bytes(len(piece)), i << 20)
        os.fsync(journal)
        begun = time.perf_counter()
        for i in range(size_mb):
            os.pwrite(journal, piece, (i % JOURNAL_MB) << 20)
            os.fdatasync(journal)
            os.pwrite(entry_log, piece, i << 20)
        return size_mb * len(piece) / 1e6 / (time.perf_counter() - begun)
    finally:
        for fd, path in zip((journal, entry_log), paths, strict=True):
            os.close(fd)
            path.unlink()
