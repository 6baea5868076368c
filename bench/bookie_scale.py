"""A bookie that holds much and has held more: how long it starts after a kill -9, what it stops the
loop for, what a sweep for deleted ledgers costs, what memory it takes.

    python -m bench.bookie_scale --directory /path/on/the/disk [--ledgers 10000] [--deleted 100000]
        [--log-bytes 5000000000] [--entry-bytes 65536] [--keep]

Three processes, one after the other: one builds the ledger directory through the storage's own
flushes and the metadata store (SQLite); one takes adds until it is killed; one starts, and sweeps
with 0, 10 and 1 000 ledgers deleted in the store. Ledgers that live are spread evenly among all ids
that ever were. Each has its entries in several logs.

What is scaled: entry logs are sparse files. Lengths, headers, checksums, footers and the index are
those of real ones, but of each entry's bytes behind the first 64, which are zeros, nothing is
written. ``--entry-bytes`` sets how many rows the index has for so many bytes of logs.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import resource
import shutil
import signal
import sqlite3
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial, wraps
from pathlib import Path
from typing import Any

import structlog

from bench.measure import machine, resident_mib
from magnetar.bookie.bookie import Bookie
from magnetar.bookie.space.collector import Collector
from magnetar.bookie.storage import storage as storage_module
from magnetar.bookie.storage.ledger_record import LedgerRecord
from magnetar.bookie.storage.storage import LedgerStorage
from magnetar.config import BookieConfig, JournalConfig
from magnetar.env.files.disk import Buffer, DiskFile, RealDisk, RealFile
from magnetar.env.metadata import CreateMode
from magnetar.env.metadata_stores.sqlite_metadata import SqliteMetadataStore
from magnetar.env.metadata_stores.sqlite_tree import SqliteTree
from magnetar.ledger.catalog.metadata import LedgerManager
from magnetar.metrics import Metrics

KEY = b"k" * 20
WRITTEN_BYTES = 64
"""Of an entry in a sparse log."""
FLUSH_BYTES = 64 << 20
ADDED_BYTES = 1024
_HEAD = struct.Struct(">qqqq")


def config_of(data: Path) -> BookieConfig:
    return BookieConfig(
        bookie_id="scale",
        ledger_directories=(data / "ledgers",),
        disk_reserve_bytes=0,
        journal=JournalConfig(directories=(data / "journal",)),
    )


def living_ids(ledgers: int, deleted: int) -> range:
    """The ledgers that live, among 0 to ``ledgers + deleted - 1``."""
    step = (ledgers + deleted) // ledgers
    return range(0, step * ledgers, step)


def loaded_id(ledgers: int, deleted: int) -> int:
    """The ledger that takes adds until the bookie is killed."""
    return ledgers + deleted + 7


# -- building -------------------------------------------------------------------------------------


class SparseFile(RealFile):
    def pwritev(self, parts: Sequence[Buffer], offset: int) -> None:
        for part in parts:
            if len(part) > WRITTEN_BYTES and not any(bytes(part[WRITTEN_BYTES:]).lstrip(b"\0")):
                os.pwrite(self._fd, part[:WRITTEN_BYTES], offset)
            else:
                os.pwrite(self._fd, part, offset)
            offset += len(part)
        if os.fstat(self._fd).st_size < offset:
            os.ftruncate(self._fd, offset)


class SparseDisk(RealDisk):
    def open(self, path: Path, *, create: bool = False) -> DiskFile:
        file = super().open(path, create=create)
        if path.suffix != ".log" or not isinstance(file, RealFile):
            return file
        sparse = SparseFile(path, os.dup(file._fd))
        file.close()
        return sparse


class Record:
    def __init__(self, deleted: bool, last: int) -> None:
        self._record = LedgerRecord(False, deleted, 0, KEY, last, last - 1, -1, b"")

    def encode(self) -> bytes:
        return self._record.encode()


def _write(storage: LedgerStorage) -> None:
    storage.write(storage.take_work(), None, paced=False)
    storage.cache.flushed()


async def build(data: Path, ledgers: int, deleted: int, log_bytes: int, entry_bytes: int) -> None:
    config = config_of(data)
    storage = LedgerStorage(0, data / "ledgers", SparseDisk(), config, FLUSH_BYTES)
    storage.open(1, 1)
    living = living_ids(ledgers, deleted)
    dead = [each for each in range(ledgers + deleted) if each % living.step or each > living[-1]]
    for start in range(0, len(dead), 10_000):
        for ledger_id in dead[start : start + 10_000]:
            storage.dirty[ledger_id] = Record(True, 10)
            storage.deleted[ledger_id] = None
        _write(storage)
    zeros = bytes(entry_bytes - _HEAD.size)
    half = 0
    for number in range(log_bytes // entry_bytes):
        entry_id, at = divmod(number, len(living))
        ledger_id = living[at]
        entry = _HEAD.pack(ledger_id, entry_id, entry_id - 1, 0) + zeros
        storage.cache.active.put(ledger_id, [entry_id], [entry], entry_bytes)
        storage.dirty[ledger_id] = Record(False, entry_id)
        half += entry_bytes
        if half >= FLUSH_BYTES:
            _write(storage)
            half = 0
    _write(storage)
    await storage.close()
    _build_metadata(data / "metadata.db", [*living, loaded_id(ledgers, deleted)])


def _build_metadata(path: Path, living: Sequence[int]) -> None:
    db = sqlite3.connect(path, isolation_level=None)
    db.execute("PRAGMA journal_mode = WAL")
    tree = SqliteTree(db, str(path))
    tree.prepare(read_only=False)
    db.execute("BEGIN")
    manager = LedgerManager.__new__(LedgerManager)
    manager.root = "/ledgers"
    manager._layout = _layout()
    for ledger_id in living:
        tree.create(manager.path(ledger_id), b"", CreateMode.PERSISTENT)
    db.execute("COMMIT")
    db.close()


def _layout() -> Any:
    from magnetar.wire.bookie.metadata_layout import LedgerLayout

    return LedgerLayout.HIERARCHICAL


# -- being killed ---------------------------------------------------------------------------------


async def load(data: Path, first_id: int) -> None:
    """Adds without end; says so when a second's worth is acknowledged."""
    bookie = Bookie(config_of(data), Metrics())
    await bookie.start()
    body = bytes(ADDED_BYTES - _HEAD.size)
    started = time.perf_counter()
    entry_id = 0
    loop = asyncio.get_running_loop()
    while True:
        run: asyncio.Future[Exception | None] = loop.create_future()
        ids = list(range(entry_id, entry_id + 50))
        entries = [_HEAD.pack(first_id, each, each - 1, 0) + body for each in ids]
        bookie.add_entries(first_id, KEY, ids, entries, 0, partial(_answer, run))
        if await run is not None:
            raise SystemExit(f"refused: {run.result()}")
        entry_id += 50
        if time.perf_counter() - started > 3:
            print(json.dumps({"acknowledged_entries": entry_id}), flush=True)
            started = float("inf")


def _answer(run: asyncio.Future[Exception | None], error: Exception | None, _: object) -> None:
    run.set_result(error)


# -- starting and sweeping ------------------------------------------------------------------------


class Stalls:
    """How late a timer of a millisecond comes, and how much CPU time the loop's thread has taken
    between two of them: on a machine with other work that says more."""

    def __init__(self) -> None:
        self.longest_s = self.busiest_s = 0.0
        self.over_10_ms = 0
        self._task = asyncio.create_task(self._watch())

    async def _watch(self) -> None:
        while True:
            before, cpu = time.perf_counter(), time.thread_time()
            await asyncio.sleep(0.001)
            late = time.perf_counter() - before - 0.001
            self.busiest_s = max(self.busiest_s, time.thread_time() - cpu)
            self.longest_s = max(self.longest_s, late)
            self.over_10_ms += late > 0.010

    def take(self) -> dict[str, float]:
        found = {
            "loop_cpu_ms": round(self.busiest_s * 1000, 1),
            "stall_ms": round(self.longest_s * 1000, 1),
            "over_10_ms": self.over_10_ms,
        }
        self.longest_s = self.busiest_s = 0.0
        self.over_10_ms = 0
        return found


PHASES: dict[str, float] = {}


def timed(owner: Any, name: str, phase: str) -> None:
    original: Callable[..., Any] = getattr(owner, name)

    @wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        started = time.perf_counter()
        try:
            return original(*args, **kwargs)
        finally:
            PHASES[phase] = PHASES.get(phase, 0.0) + time.perf_counter() - started

    setattr(owner, name, call)


async def measure(data: Path, ledgers: int, deleted: int) -> dict[str, Any]:
    import magnetar.bookie.replay as replay

    timed(LedgerStorage, "_check_index", "check the index")
    timed(LedgerStorage, "_open_logs", "look at the entry logs")
    timed(storage_module, "LocationIndex", "open the index")
    timed(replay, "replay_journal", "replay the journal")
    rows: dict[str, Any] = {}
    stalls = Stalls()
    await asyncio.sleep(0.01)
    stalls.take()
    started, cpu = time.perf_counter(), time.process_time()
    open_index = storage_module.LocationIndex
    bookie = Bookie(config_of(data), Metrics(), open_index=open_index)
    report = await bookie.start()
    rows["start"] = {
        "seconds": round(time.perf_counter() - started, 3),
        "cpu_s": round(time.process_time() - cpu, 3),
        "replayed_entries": report.entries,
        "phases_s": {name: round(seconds, 3) for name, seconds in PHASES.items()},
        "resident_mib": round(resident_mib(os.getpid())),
        **stalls.take(),
    }
    await asyncio.sleep(5)
    started = time.perf_counter()
    await _settled(bookie)
    rows["after the start"] = {
        "seconds": round(5 + time.perf_counter() - started, 1),
        **stalls.take(),
    }
    store = await SqliteMetadataStore.open(data / "metadata.db")
    manager = LedgerManager(store)
    instance_id = await manager.initialize()
    collector = _collector(bookie, manager, instance_id)
    rows["first sweep"] = await _timed_sweep(collector, stalls)
    gone = iter(living_ids(ledgers, deleted)[5::7])
    for changed in (0, 10, 1000):
        for _ in range(changed):
            await store.delete(manager.path(next(gone)))
        stalls.take()
        found = await _timed_sweep(collector, stalls)
        again = await _timed_sweep(collector, stalls)
        assert again["deleted"] == changed, again
        started = time.perf_counter()
        await bookie._flusher.flush_all()
        flush_s = time.perf_counter() - started
        index = bookie._storages[0].location_index
        started = time.perf_counter()
        index.location(living_ids(ledgers, deleted)[1], 0)
        get_s = time.perf_counter() - started
        rows[f"{changed} ledgers deleted"] = {
            "sweep that misses them": found,
            "sweep that deletes them": again,
            "flush_ms": round(flush_s * 1000, 1),
            "next_get_ms": round(get_s * 1000, 2),
            "flush_stalls": stalls.take(),
        }
    rows["resident_mib"] = round(resident_mib(os.getpid()))
    rows["peak_mib"] = round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
    await store.close()
    return rows


def _collector(bookie: Bookie, manager: LedgerManager, instance_id: str) -> Collector:
    return Collector(bookie, lambda: manager.living_ranges(instance_id), 0.0)


async def _settled(bookie: Bookie) -> None:
    """What the crash has left is dealt with."""
    reclaimer = bookie._storages[0].reclaimer
    while reclaimer.unknown or reclaimer.unfinished:  # noqa: ASYNC110 - nothing tells
        await asyncio.sleep(0.1)


async def _timed_sweep(collector: Collector, stalls: Stalls) -> dict[str, Any]:
    gc.collect()
    await asyncio.sleep(0.01)  # what that took is no sweep's
    stalls.take()
    started, cpu = time.perf_counter(), time.process_time()
    found = await collector.sweep()
    return {
        "ms": round(1000 * (time.perf_counter() - started), 1),
        "cpu_ms": round(1000 * (time.process_time() - cpu), 1),
        "deleted": len(found),
        **stalls.take(),
    }


# -- all of it ------------------------------------------------------------------------------------


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--directory", type=Path, required=True)
    parser.add_argument("--ledgers", type=int, default=10_000)
    parser.add_argument("--deleted", type=int, default=100_000)
    parser.add_argument("--log-bytes", type=int, default=5_000_000_000)
    parser.add_argument("--entry-bytes", type=int, default=65_536)
    parser.add_argument("--keep", action="store_true", help="leave what was built")
    parser.add_argument("--role", choices=("build", "load", "measure"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    sizes = (args.ledgers, args.deleted)
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    if args.role == "build":
        asyncio.run(build(args.directory, *sizes, args.log_bytes, args.entry_bytes))
    elif args.role == "load":
        asyncio.run(load(args.directory, loaded_id(*sizes)))
    elif args.role == "measure":
        print(json.dumps(asyncio.run(measure(args.directory, *sizes))), flush=True)
        os._exit(0)  # nothing of what closing costs is asked for
    else:
        _run(args, Path(tempfile.mkdtemp(prefix="bookie-scale-", dir=args.directory)))


def _run(args: argparse.Namespace, data: Path) -> None:
    def child(role: str, **kwargs: Any) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "bench.bookie_scale", "--role", role]
        for name in ("ledgers", "deleted", "log_bytes", "entry_bytes"):
            command += [f"--{name.replace('_', '-')}", str(getattr(args, name))]
        command += ["--directory", str(data)]
        return subprocess.Popen(command, text=True, stdout=subprocess.PIPE, **kwargs)

    found: dict[str, Any] = {"machine": machine(), "directory": str(data)}
    try:
        started = time.perf_counter()
        built = child("build")
        if built.wait():
            raise SystemExit("not built")
        found["built_s"] = round(time.perf_counter() - started, 1)
        logs = list((data / "ledgers").glob("*.log"))
        found["logs"] = {
            "count": len(logs),
            "bytes": sum(each.stat().st_size for each in logs),
            "on_disk_bytes": sum(each.stat().st_blocks * 512 for each in logs),
            "index_bytes": sum(e.stat().st_size for e in (data / "ledgers/index").iterdir()),
        }
        loaded = child("load")
        assert loaded.stdout is not None
        try:
            found["load"] = json.loads(loaded.stdout.readline())
        finally:
            loaded.send_signal(signal.SIGKILL)
            loaded.wait()
        measured = child("measure")
        said = measured.communicate()[0]
        found.update(json.loads(said.strip().splitlines()[-1]))
        print(json.dumps(found, indent=2))
    finally:
        if not args.keep:
            shutil.rmtree(data, ignore_errors=True)


if __name__ == "__main__":
    main()
