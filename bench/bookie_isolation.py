"""The p99 of adds alone, beside a reader that catches up at full speed, and beside compaction.

    python -m bench.bookie_isolation [--seconds 10] [--directory /path/on/the/disk]

A bookie in a process of its own serves TCP. One connection adds 1 KiB entries at a fixed rate
(each add is timed from when it was due); another reads a ledger of ``--backlog-mib`` from its
beginning, over and over, by batch reads, three under way, as fast as it can. For compaction, small
entry logs are filled with many ledgers, and every other one is deleted; it copies the others at the
rate that is the default. Rounds of the three kinds alternate, because a busy machine drifts; the
medians over the rounds are compared.
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
from typing import TypeAlias

from magnetar.bookie.bookie import Bookie
from magnetar.bookie.serving.server import BookieServer
from magnetar.config import BookieConfig, JournalConfig
from magnetar.ledger.bookies import AddFlag
from magnetar.ledger.connections.pool import ConnectionPool
from magnetar.metrics import Metrics
from magnetar.model.errors import MagnetarError
from magnetar.model.ids import BookieId

KEY = b"k" * 20
ENTRY_BYTES = 1024
BATCH_ENTRIES = 500
BATCH_BYTES = 1 << 20
READS_AT_ONCE = 3
LOG_BYTES = 8 << 20
COMPACTED_PAIRS = 64
"""Ledgers that stay, each beside one that is deleted."""
BEGIN_S = 60.0
IDLE_S = 4.0
"""No log removed for so long: nothing is left to compact."""
_HEAD = struct.Struct(">qqqq")
_FILLER = bytes(range(256)) * 4

Found: TypeAlias = dict[str, float]


def make_entry(ledger_id: int, entry_id: int) -> bytes:
    """An entry of ``ENTRY_BYTES``."""
    return (_HEAD.pack(ledger_id, entry_id, entry_id - 1, 0) + _FILLER)[:ENTRY_BYTES]


class Served:
    """The bookie's process: tells its port, then does what it is told line by line."""

    def __init__(self, directory: Path) -> None:
        config = BookieConfig(
            port=0,
            ledger_directories=(directory / "ledgers",),
            journal=JournalConfig(directories=(directory / "journal",)),
            entry_log_bytes_max=LOG_BYTES,
            compaction_minor_percent=80,
            compaction_minor_interval_ms=200,
        )
        self._bookie = Bookie(config, Metrics())

    async def run(self) -> None:
        sys.setswitchinterval(0.0001)
        await self._bookie.start()
        server = BookieServer(self._bookie, "127.0.0.1", 0)
        await server.start()
        print(server.port, flush=True)
        loop = asyncio.get_running_loop()
        while words := (await loop.run_in_executor(None, sys.stdin.readline)).split():
            print(await self._answer(words), flush=True)

    async def _answer(self, words: Sequence[str]) -> int:
        """``delete FIRST END STEP``: how many."""
        assert words[0] == "delete"
        ledger_ids = range(*map(int, words[1:]))
        for ledger_id in ledger_ids:
            await self._bookie.delete_ledger(ledger_id)
        return len(ledger_ids)


class BookieProcess:
    """That process, seen from the outside; a context manager."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory / "ledgers"
        self._process = _child("bookie", str(directory))
        self.port = self._number()

    def _number(self) -> int:
        """The next line that is a number; its log comes between."""
        assert self._process.stdout is not None
        while line := self._process.stdout.readline():
            if line.strip().isdigit():
                return int(line)
        raise SystemExit("the bookie ended")

    def tell(self, words: str) -> int:
        assert self._process.stdin is not None
        self._process.stdin.write(words + "\n")
        self._process.stdin.flush()
        return self._number()

    def logs(self) -> dict[str, int]:
        """The entry logs that there are, with their bytes."""
        found = {}
        for path in sorted(self._directory.rglob("*.log")):
            with suppress(FileNotFoundError):
                found[path.name] = path.stat().st_size
        return found

    def wait_idle(self) -> None:
        """Until no log was removed for a while: nothing is left to compact."""
        removed, since_s = self.logs(), time.monotonic()
        while time.monotonic() - since_s < IDLE_S:
            time.sleep(0.1)
            if removed.keys() - (now := self.logs()).keys():
                removed, since_s = now, time.monotonic()

    def wait_removed(self) -> None:
        """Until compaction has removed a log."""
        before, deadline_s = self.logs().keys(), time.monotonic() + BEGIN_S
        while not before - self.logs().keys():
            if time.monotonic() > deadline_s:
                raise SystemExit("nothing is compacted: nothing to measure")
            time.sleep(0.05)

    def __enter__(self) -> BookieProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait()


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

    async def go_on() -> None:
        nonlocal position, read
        while not ended.done():
            first, position = position, (position + BATCH_ENTRIES) % (count - BATCH_ENTRIES)
            entries = await client.read_batch(ledger_id, first, BATCH_ENTRIES, BATCH_BYTES)
            read += sum(map(len, entries))

    await asyncio.gather(*(go_on() for _ in range(READS_AT_ONCE)))
    print(round(read / (time.perf_counter() - started) / 1e6, 1), flush=True)


def percentile(values: list[float], share: float) -> float:
    """In ms."""
    ordered = sorted(values)
    return round(ordered[min(len(ordered) - 1, int(len(ordered) * share))] * 1e3, 3)


class Rounds:
    """Rounds of one kind at a time; each gives what the adds saw."""

    def __init__(self, bookie: BookieProcess, args: argparse.Namespace) -> None:
        self._bookie = bookie
        self._args = args
        self._next_ledger_id = 100

    def alone(self) -> Found:
        return self._add()

    def beside_reader(self) -> Found:
        """A reader goes over the backlog meanwhile, again and again."""
        reader = _child("catch-up", str(self._bookie.port), "1", str(self._args.backlog_mib * 1024))
        assert reader.stdout is not None
        reader.stdout.readline()
        found = self._add()
        found["read_mb_per_s"] = float(reader.communicate("end\n")[0].split()[-1])
        return found

    def beside_compaction(self) -> Found:
        """Half of what was written before is deleted, ledger by ledger: half of each log."""
        first = self._next_ledger_id
        self._next_ledger_id = end = first + 2 * COMPACTED_PAIRS
        count = self._args.compact_mib * 1024 // (end - first)
        for ledger_id in range(first, end):
            asyncio.run(fill(self._bookie.port, ledger_id, count))
        self._bookie.wait_idle()
        self._bookie.tell(f"delete {first} {end} 2")
        self._bookie.wait_removed()
        before, began = self._bookie.logs(), time.perf_counter()
        found = self._add()
        seconds, after = time.perf_counter() - began, self._bookie.logs()
        self._bookie.wait_idle()
        removed_bytes = sum(size for name, size in before.items() if name not in after)
        if not removed_bytes:
            raise SystemExit("nothing was compacted meanwhile: nothing measured")
        found["compacted_mb_per_s"] = round(removed_bytes / seconds / 1e6, 1)
        return found

    def _add(self) -> Found:
        self._next_ledger_id += 1
        adder = asyncio.run(self._adder(self._next_ledger_id - 1))
        return {
            "p50_ms": percentile(adder.latencies_s, 0.5),
            "p99_ms": percentile(adder.latencies_s, 0.99),
            "refused": adder.refused,
        }

    async def _adder(self, ledger_id: int) -> Adder:
        adder = Adder(self._bookie.port, ledger_id, self._args.rate)
        await adder.run(self._args.seconds)
        return adder


def _child(*words: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "bench.bookie_isolation", "--as", *words]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def measure(directory: Path, args: argparse.Namespace) -> dict[str, list[Found]]:
    """Kind of round -> what each of them found."""
    with BookieProcess(directory) as bookie:
        asyncio.run(fill(bookie.port, 1, args.backlog_mib * 1024))
        rounds = Rounds(bookie, args)
        kinds = {
            "alone": rounds.alone,
            "reader": rounds.beside_reader,
            "compaction": rounds.beside_compaction,
        }
        found: dict[str, list[Found]] = {kind: [] for kind in kinds}
        rounds.alone()  # files are made and caches fill: not counted
        for _ in range(args.rounds):
            for kind, run in kinds.items():
                found[kind].append(run())
                print(json.dumps({"beside": kind, **found[kind][-1]}), flush=True)
    return found


def summary(found: dict[str, list[Found]]) -> dict[str, float]:
    """Medians of the p99, and how they compare with that of the adds alone."""
    medians = {
        kind: statistics.median(one["p99_ms"] for one in rounds) for kind, rounds in found.items()
    }
    text = {f"p99_{kind}_ms": round(value, 3) for kind, value in medians.items()}
    for kind in ("reader", "compaction"):
        text[f"{kind}_ratio"] = round(medians[kind] / medians["alone"], 2)
    return text


def serve_as(role: str, words: Sequence[str]) -> None:
    """A child's side."""
    with suppress(KeyboardInterrupt):
        if role == "bookie":
            asyncio.run(Served(Path(words[0])).run())
        else:
            asyncio.run(catch_up(int(words[0]), int(words[1]), int(words[2])))


def main() -> None:
    if sys.argv[1:2] == ["--as"]:
        serve_as(sys.argv[2], sys.argv[3:])
        return
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--directory", type=Path, default=Path(tempfile.gettempdir()))
    parser.add_argument("--seconds", type=float, default=10.0, help="of a round")
    parser.add_argument("--rounds", type=int, default=3, help="of each kind")
    parser.add_argument("--rate", type=int, default=5000, help="adds per second")
    parser.add_argument("--backlog-mib", type=int, default=512)
    parser.add_argument("--compact-mib", type=int, default=192, help="in logs to compact")
    args = parser.parse_args()
    data = Path(tempfile.mkdtemp(dir=args.directory))
    try:
        print(json.dumps(summary(measure(data, args))))
    finally:
        shutil.rmtree(data)


if __name__ == "__main__":
    main()
