"""One bookie that serves adds over TCP: CPU us/entry of its process, by shape of load.

    python -m bench.bookie_tcp [--source DIR ...] [--shapes 1kib many conns large] [--rounds 3]
    python -m bench.bookie_tcp serve DATA_DIR

The bookie runs in a process of its own, with the settings of the platform's processes and every
default (journal sync on, real disk); the load is frames of version 2 that are prepared once, into
which only the ids are written. Each ``--source`` is the ``src`` directory of a checkout: they
take turns, round by round, so that what the machine does meanwhile falls on all of them alike.

CPU is from /proc, user and system, all threads (loop, journal, flush, RocksDB's own), after a
warm-up that fills the first journal files. The load's own CPU is not in it.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import struct
import subprocess
import sys
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import uvloop

from bench.measure import CpuClock
from bench.server import work_directory
from bench.trees import ROOT

KEY = b"k" * 20
_ADD_HEAD = struct.Struct(">II20sqqqq")  # size, header, key, ledger, entry, LAC, length
_IDS = struct.Struct(">qqq")
_IDS_AT = 28
_ANSWER = struct.Struct(">IIiqq")
_ADD_HEADER = 2 << 24 | 1 << 16


@dataclass(frozen=True)
class Shape:
    """``batch`` adds a write, ``window`` of them outstanding on each connection; the ledgers of a
    connection take turns, ``run`` adds of one after the other."""

    entry_bytes: int
    connections: int
    ledgers: int
    batch: int
    window: int
    run: int


SHAPES = {
    "1kib": Shape(1024, 1, 1, 64, 2048, 64),
    "many": Shape(1024, 1, 1000, 50, 1000, 1),
    "conns": Shape(1024, 64, 64, 1, 1, 1),
    "large": Shape(128 << 10, 1, 1, 4, 64, 4),
}


def serve(data_dir: Path) -> None:
    """A bookie until the standard input ends; the first line of output is its port."""
    from magnetar.bookie.bookie import Bookie
    from magnetar.bookie.serving.server import BookieServer
    from magnetar.cli.process import tune_allocator, tune_collector
    from magnetar.config import BookieConfig, JournalConfig
    from magnetar.metrics import Metrics

    async def main() -> None:
        journal = JournalConfig(directories=(data_dir / "journal",))
        config = BookieConfig(ledger_directories=(data_dir / "ledgers",), journal=journal)
        bookie = Bookie(config, Metrics())
        await bookie.start()
        server = BookieServer(bookie, "127.0.0.1", 0)
        await server.start()
        tune_collector()
        print(server.port, flush=True)
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
        await server.close()
        await bookie.close()

    tune_allocator()
    sys.setswitchinterval(0.0001)
    uvloop.run(main())


class Writer(asyncio.BufferedProtocol):
    """One connection's load: keeps its window full, checks every answer."""

    def __init__(self, shape: Shape, first_ledger: int) -> None:
        self.shape = shape
        self.answered = 0
        self.stopped = False
        self.ended = asyncio.get_running_loop().create_future()
        count = max(1, shape.ledgers // shape.connections)
        self._next_ids = {first_ledger + i: 0 for i in range(count)}
        self._turns = deque(self._next_ids)
        self._outstanding = 0
        self._frame_bytes = 4 + 24 + shape.entry_bytes
        filler = os.urandom(self._frame_bytes)
        head = _ADD_HEAD.pack(self._frame_bytes - 4, _ADD_HEADER, KEY, 0, 0, 0, 0)
        self._chunk = bytearray((head + filler[len(head) :]) * shape.batch)
        self._buffer = bytearray(1 << 20)
        self._held = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport) or hasattr(transport, "write")
        self._transport: asyncio.Transport = transport  # type: ignore[assignment]
        self._fill()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.ended.done():
            self.ended.set_exception(exc or ConnectionError("the bookie ended the connection"))

    def _fill(self) -> None:
        shape = self.shape
        while not self.stopped and self._outstanding + shape.batch <= shape.window:
            self._write_ids()
            self._transport.write(bytes(self._chunk))
            self._outstanding += shape.batch

    def _write_ids(self) -> None:
        turns, ids = self._turns, self._next_ids
        for i in range(self.shape.batch):
            ledger_id = turns[0]
            entry_id = ids[ledger_id]
            ids[ledger_id] = entry_id + 1
            _IDS.pack_into(
                self._chunk, i * self._frame_bytes + _IDS_AT, ledger_id, entry_id, entry_id - 1
            )
            if (i + 1) % self.shape.run == 0:
                turns.rotate(-1)

    def get_buffer(self, sizehint: int) -> memoryview:
        return memoryview(self._buffer)[self._held :]

    def buffer_updated(self, nbytes: int) -> None:
        end = self._held + nbytes
        whole = end - end % _ANSWER.size
        for size, header, code, ledger_id, entry_id in _ANSWER.iter_unpack(
            memoryview(self._buffer)[:whole]
        ):
            if size != 24 or header != _ADD_HEADER or code:
                self.ended.set_exception(SystemExit(f"add {ledger_id}:{entry_id} got {code}"))
                return
        self._buffer[: end - whole] = self._buffer[whole:end]
        self._held = end - whole
        count = whole // _ANSWER.size
        self.answered += count
        self._outstanding -= count
        self._fill()
        if self.stopped and not self._outstanding and not self.ended.done():
            self.ended.set_result(None)


@dataclass(frozen=True)
class Result:
    user_us: float
    system_us: float
    entries_per_s: float

    @property
    def total_us(self) -> float:
        return self.user_us + self.system_us


async def load(port: int, pid: int, shape: Shape, warmup_s: float, seconds: float) -> Result:
    loop = asyncio.get_running_loop()
    writers: list[Writer] = []
    base = time.time_ns() // 1000  # ledgers that this bookie has not seen
    each = max(1, shape.ledgers // shape.connections)
    for i in range(shape.connections):
        writer = Writer(shape, base + i * each)
        writers.append(writer)
        await loop.create_connection(lambda w=writer: w, "127.0.0.1", port)  # type: ignore[misc]
    waiters = [writer.ended for writer in writers]
    await asyncio.wait(waiters, timeout=warmup_s, return_when=asyncio.FIRST_EXCEPTION)
    before, clock, began = sum(w.answered for w in writers), CpuClock([pid]), time.perf_counter()
    await asyncio.wait(waiters, timeout=seconds, return_when=asyncio.FIRST_EXCEPTION)
    entries = sum(w.answered for w in writers) - before
    user_s, system_s, took_s = clock.user_s(), clock.system_s(), time.perf_counter() - began
    for writer in writers:
        writer.stopped = True
    async with asyncio.timeout(30):
        await asyncio.gather(*waiters)
    return Result(user_s / entries * 1e6, system_s / entries * 1e6, entries / took_s)


class BookieUnderLoad:
    """The bookie's process, from the sources in ``source``."""

    def __init__(self, source: Path, data_dir: Path) -> None:
        environment = {**os.environ, "PYTHONPATH": str(source)}
        command = [sys.executable, "-m", "bench.bookie_tcp", "serve", str(data_dir)]
        self.process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        while line and not line.strip().isdigit():  # its log comes on the same output
            line = self.process.stdout.readline()
        self.port = int(line)

    def close(self) -> None:
        self.process.communicate(timeout=30)


def measure(source: Path, shapes: Sequence[str], warmup_s: float, seconds: float) -> list[Result]:
    """One bookie, all shapes one after the other."""
    with work_directory() as data_dir:
        bookie = BookieUnderLoad(source, data_dir)
        pid = bookie.process.pid
        try:
            uvloop.run(load(bookie.port, pid, SHAPES["1kib"], 0.0, warmup_s))  # new journal files
            return [
                uvloop.run(load(bookie.port, pid, SHAPES[name], warmup_s / 4, seconds))
                for name in shapes
            ]
        finally:
            bookie.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--source", type=Path, nargs="*", default=[ROOT / "src"])
    parser.add_argument("--shapes", nargs="*", default=list(SHAPES), choices=list(SHAPES))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--warmup", type=float, default=2.0, help="seconds")
    args = parser.parse_args()
    found: dict[tuple[Path, str], list[Result]] = {}
    for _ in range(args.rounds):
        for source in args.source:
            results = measure(source, args.shapes, args.warmup, args.seconds)
            for name, result in zip(args.shapes, results, strict=True):
                found.setdefault((source, name), []).append(result)
    for name in args.shapes:
        for source in args.source:
            results = found[source, name]
            total, user, system, rate = (
                statistics.median(getattr(result, field) for result in results)
                for field in ("total_us", "user_us", "system_us", "entries_per_s")
            )
            rate_mb = rate * SHAPES[name].entry_bytes / 1e6
            cpu = f"{total:7.2f} us/entry = user {user:6.2f} + system {system:6.2f}"
            where = str(source)[-24:]
            print(f"{name:6} {where:24} {cpu}; {rate:9,.0f} entries/s, {rate_mb:6.0f} MB/s")


if __name__ == "__main__":
    if sys.argv[1:2] == ["serve"]:
        serve(Path(sys.argv[2]))
    else:
        main()
