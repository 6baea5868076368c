"""The p99 of adds with and without a reader that catches up at full speed.

    python -m bench.bookie_isolation [--seconds 10] [--directory /path/on/the/disk]

A bookie in a process of its own serves TCP. One connection adds 1 KiB entries at a fixed rate
(each add is timed from when it was due); another reads a ledger of ``--backlog-mib`` from its
beginning, over and over, by batch reads, as fast as it can. Rounds without and with the reader
alternate, because a busy machine drifts; the medians over the rounds are compared.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from magnetar.bookie.bookie import Bookie
from magnetar.bookie.server import BookieServer
from magnetar.config import BookieConfig, JournalConfig
from magnetar.ledger.bookies import AddFlag
from magnetar.ledger.pool import ConnectionPool
from magnetar.metrics import Metrics
from magnetar.model.errors import MagnetarError
from magnetar.model.ids import BookieId

KEY = b"k" * 20
ENTRY_BYTES = 1024
BATCH_ENTRIES = 500
BATCH_BYTES = 1 << 20
_HEAD = struct.Struct(">qqqq")
_FILLER = bytes(range(256)) * 4


def make_entry(ledger_id: int, entry_id: int) -> bytes:
    """An entry of ``ENTRY_BYTES``."""
    return (_HEAD.pack(ledger_id, entry_id, entry_id - 1, 0) + _FILLER)[:ENTRY_BYTES]


async def serve(directory: Path) -> None:
    """The bookie's process: tells its port, runs until it is ended."""
    sys.setswitchinterval(0.0001)
    config = BookieConfig(
        port=0,
        ledger_directories=(directory / "ledgers",),
        journal=JournalConfig(directories=(directory / "journal",)),
    )
    bookie = Bookie(config, Metrics())
    await bookie.start()
    server = BookieServer(bookie, "127.0.0.1", 0)
    await server.start()
    print(server.port, flush=True)
    await asyncio.Event().wait()


def pool_to(port: int) -> ConnectionPool:
    """Connections of one client's own."""

    async def resolve(_bookie_id: BookieId) -> tuple[str, int]:
        return "127.0.0.1", port

    async def available() -> list[BookieId]:
        return [BookieId("b")]

    return ConnectionPool(resolve, available)


class Adder:
    """Adds at a fixed rate; a batch per loop turn of what is due."""

    def __init__(self, port: int, ledger_id: int, rate: int) -> None:
        self.client = pool_to(port).client(BookieId("b"))
        self.ledger_id = ledger_id
        self.rate = rate
        self.latencies_s: list[float] = []
        self.refused = 0
        self.under_way = 0

    async def run(self, seconds: float) -> None:
        started = time.perf_counter()
        sent = 0
        while (elapsed := time.perf_counter() - started) < seconds:
            due = int(elapsed * self.rate)
            if due > sent:
                self._add(range(sent, due), started)
                sent = due
            await asyncio.sleep(0.0005)
        async with asyncio.timeout(30):
            while self.under_way:  # noqa: ASYNC110 - counts down in callbacks
                await asyncio.sleep(0.01)

    def _add(self, ids: range, started: float) -> None:
        def done(error: MagnetarError | None, entry_ids: Sequence[int]) -> None:
            now = time.perf_counter()
            self.under_way -= len(entry_ids)
            if error is not None:
                self.refused += len(entry_ids)
                return
            self.latencies_s += [now - started - one / self.rate for one in entry_ids]

        self.under_way += len(ids)
        entries = [make_entry(self.ledger_id, one) for one in ids]
        self.client.add_entries(self.ledger_id, KEY, list(ids), entries, AddFlag(0), done)


async def fill(port: int, ledger_id: int, count: int) -> None:
    """The backlog, as fast as it is taken."""
    client = pool_to(port).client(BookieId("b"))
    for first in range(0, count, BATCH_ENTRIES):
        ids = list(range(first, min(count, first + BATCH_ENTRIES)))
        answered = asyncio.get_running_loop().create_future()
        left = len(ids)

        def done(error: MagnetarError | None, entry_ids: Sequence[int]) -> None:
            nonlocal left
            left -= len(entry_ids)
            if not left and not answered.done():  # noqa: B023
                answered.set_result(error)  # noqa: B023

        client.add_entries(
            ledger_id, KEY, ids, [make_entry(ledger_id, i) for i in ids], AddFlag(0), done
        )
        error = await answered
        if error is not None:
            raise error


async def catch_up(port: int, ledger_id: int, count: int) -> None:
    """The reader, in a process of its own: prints MB/s when it is ended by its input."""
    client = pool_to(port).client(BookieId("b"))
    loop = asyncio.get_running_loop()
    ended = loop.run_in_executor(None, sys.stdin.readline)
    started, read, position = time.perf_counter(), 0, 0
    print("reading", flush=True)
    while not ended.done():
        entries = await client.read_batch(ledger_id, position, BATCH_ENTRIES, BATCH_BYTES)
        read += sum(map(len, entries))
        position = (position + len(entries)) % count
    print(round(read / (time.perf_counter() - started) / 1e6, 1), flush=True)


def percentile(values: list[float], share: float) -> float:
    """In ms."""
    ordered = sorted(values)
    return round(ordered[min(len(ordered) - 1, int(len(ordered) * share))] * 1e3, 3)


def run_round(
    port: int, ledger_id: int, args: argparse.Namespace, reading: bool
) -> dict[str, float]:
    """One round; ``reading``: beside a reader."""
    count = args.backlog_mib * 1024
    reader = None
    if reading:
        reader = _child("catch-up", str(port), "1", str(count))
        assert reader.stdout is not None
        reader.stdout.readline()

    async def add() -> Adder:
        adder = Adder(port, ledger_id, args.rate)
        await adder.run(args.seconds)
        return adder

    adder = asyncio.run(add())
    found = {
        "p50_ms": percentile(adder.latencies_s, 0.5),
        "p99_ms": percentile(adder.latencies_s, 0.99),
        "refused": adder.refused,
    }
    if reader is not None:
        found["read_mb_per_s"] = float(reader.communicate("end\n")[0].split()[-1])
    return found


def _child(*words: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "bench.bookie_isolation", "--as", *words]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def main() -> None:
    if sys.argv[1:2] == ["--as"]:
        role, *words = sys.argv[2:]
        with suppress(KeyboardInterrupt):
            if role == "bookie":
                asyncio.run(serve(Path(words[0])))
            else:
                asyncio.run(catch_up(int(words[0]), int(words[1]), int(words[2])))
        return
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--directory", type=Path, default=Path(tempfile.gettempdir()))
    parser.add_argument("--seconds", type=float, default=10.0, help="of a round")
    parser.add_argument("--rounds", type=int, default=3, help="of each kind")
    parser.add_argument("--rate", type=int, default=5000, help="adds per second")
    parser.add_argument("--backlog-mib", type=int, default=512)
    args = parser.parse_args()
    data = Path(tempfile.mkdtemp(dir=args.directory))
    bookie = _child("bookie", str(data))
    try:
        assert bookie.stdout is not None
        port = 0
        while not port:  # log lines come before
            line = bookie.stdout.readline()
            port = int(line) if line.strip().isdigit() else 0
        asyncio.run(fill(port, 1, args.backlog_mib * 1024))
        alone, beside = [], []
        for number in range(args.rounds):
            alone.append(run_round(port, 100 + number, args, reading=False))
            print(json.dumps({"reader": False, **alone[-1]}), flush=True)
            beside.append(run_round(port, 200 + number, args, reading=True))
            print(json.dumps({"reader": True, **beside[-1]}), flush=True)
    finally:
        bookie.terminate()
        bookie.wait()
        shutil.rmtree(data)
    quiet = statistics.median(one["p99_ms"] for one in alone)
    busy = statistics.median(one["p99_ms"] for one in beside)
    print(
        json.dumps({"p99_ms": quiet, "p99_with_reader_ms": busy, "ratio": round(busy / quiet, 2)})
    )


if __name__ == "__main__":
    main()
