"""BookKeeper's own client against bookies of BookKeeper's and ours, in turns.

    python -m bench.peers.bookies --kept DIR [--seconds 20] [--rounds 3] [--quick] [--source FILE]

Three bookies and a ZooKeeper as processes on this machine, and one client in Java: BookKeeper's,
E3 Qw3 Qa2, under ``AddsLoad.java``; both kinds sync every add to the journal before they answer.
``DIR`` is where BookKeeper's jars are fetched to. Given are adds a second, CPU microseconds of all
three bookies an add, latencies (of who waits behind its own adds, where many are outstanding), and
the bookies' memory. A ratio above 1 is ours ahead. What a load begins with is slower on both (code
that is not compiled yet, connections), so one run that does not count comes first.

BookKeeper's own benchmark, ``BenchThroughputLatency``, is in no jar that can be fetched. With
``--source``, its file of BookKeeper's sources of that version
(``bookkeeper-benchmark/src/main/java/.../BenchThroughputLatency.java``), it is the load instead; it
tells no latencies, and looks for the end of its adds once a second, so ``--seconds`` should be 20.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import re
import shutil
import statistics
import subprocess
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil

from bench import results
from bench.measure import machine
from bench.server import work_directory
from magnetar.env.metadata_stores.zookeeper_server import ZooKeeperServer
from tests.interop.bookkeeper.conftest import HERE, initialize, java_bookie
from tests.roles import Role

BOOKIES: Final = 3
OURS, JAVA = "Magnetar", "BookKeeper 4.17.2"
LOADS: Final = (
    ("1 KiB, 1000 outstanding", 1024, 1000),
    ("1 KiB, one outstanding", 1024, 1),
    ("16 KiB, 200 outstanding", 16_384, 200),
)
"""Bytes of an entry, and adds outstanding."""
BENCHMARK_LOADS: Final = (
    ("1 KiB, 20 000 outstanding", 1024, 20_000),
    ("16 KiB, 4 000 outstanding", 16_384, 4_000),
)
"""Large: what that client calls its throttle bounds the adds of a second, too, and 200 measure a
client that sends 200 a second."""
WARM_S: Final = 5
FREE_GB: Final = 30
"""What the adds of a load may take on the disk, of three bookies with their journals."""
KEPT_FREE: Final = 0.06
"""Of the disk: bookies of both kinds take no adds any more where less is free (they say 0.05)."""
PATIENCE_S: Final = 300
OWN_LOAD: Final = Path(__file__).with_name("AddsLoad.java")
SAID: Final = re.compile(r"adds (\d+) of (\d+) in (\d+) ms, us: ([\d.]+) ([\d.]+) ([\d.]+)")
BENCHMARK_SAID: Final = re.compile(r"(\d+) completions in (\d+) milliseconds")

Found = dict[str, dict[str, list[float]]]
"""Side -> row -> a figure of each round."""


@contextlib.contextmanager
def java_bookies(kept: Path, zookeeper: ZooKeeperServer, folder: Path) -> Iterator[list[int]]:
    """The processes' ids."""
    with contextlib.ExitStack() as stack:
        yield [
            stack.enter_context(
                java_bookie(kept, zookeeper, folder / f"java-{n}", f"java-{n}", root="")
            ).pid
            for n in range(BOOKIES)
        ]


@contextlib.contextmanager
def our_bookies(zookeeper: ZooKeeperServer, folder: Path) -> Iterator[list[int]]:
    url = f"zk://{zookeeper.address}"
    roles = [
        Role(
            folder, "bookie", "--data-dir", str(folder / f"ours-{n}"), "--port", "0",
            "--metadata", url, "--set", f"bookie.bookie_id=ours-{n}",
        )
        for n in range(BOOKIES)
    ]  # fmt: skip
    try:
        for role in roles:
            role.wait_ready()
        yield [role.process.pid for role in roles]
    finally:
        for role in roles:
            role.kill()


def cpu_s(pids: Sequence[int]) -> float:
    times = [psutil.Process(pid).cpu_times() for pid in pids]
    return float(sum(each.user + each.system for each in times))


class LoadFailedError(Exception):
    """The client gave up, with what it said: it does when a bookie does not answer for long."""


@dataclass(frozen=True)
class Load:
    """A client in Java, for so many seconds after its warm-up."""

    kept: Path
    source: Path | None
    seconds: int

    def run(self, address: str, entry_bytes: int, outstanding: int, folder: Path) -> Said:
        if self.source is None:
            arguments = (entry_bytes, outstanding, WARM_S, self.seconds)
            said = self._java(OWN_LOAD, "AddsLoad", address, *arguments)
            done = SAID.search(said)
            assert done is not None, said[-4000:]
            count, total, took_ms, *latencies_us = map(float, done.groups())
            return Said(count * 1000 / took_ms, total, tuple(us / 1000 for us in latencies_us))
        said = self._java(
            self.source, "org.apache.bookkeeper.benchmark.BenchThroughputLatency",
            "-zookeeper", address, "-entrysize", entry_bytes, "-throttle", outstanding,
            "-time", self.seconds, "-ensemble", 3, "-quorum", 3, "-ackQuorum", 2,
            "-sendlimit", 4_000_000, "-skipwarmup", "-latencyFile", folder / "latencies",
        )  # fmt: skip
        done = BENCHMARK_SAID.search(said)
        assert done is not None, said[-4000:]
        count, took_ms = map(float, done.groups())
        if not count:
            raise SystemExit(f"no add of {outstanding} outstanding was stored in 5 s")
        return Said(count * 1000 / took_ms, count, ())

    def _java(self, source: Path, *arguments: object) -> str:
        command = [str(HERE / "run.sh"), str(self.kept), "load", str(source), *map(str, arguments)]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=PATIENCE_S, check=False
        )
        if done.returncode:
            said = f"{done.stdout[-1000:]}\n{done.stderr[-2000:]}"
            raise LoadFailedError(f"{arguments} ended with {done.returncode}: {said}")
        return done.stdout


@dataclass(frozen=True)
class Said:
    """``count``: all adds, also those of the warm-up. Latencies: p50, p99, p99.9, if told."""

    adds_per_s: float
    count: float
    latencies_ms: tuple[float, ...]


def check_room(folder: Path) -> None:
    """A bookie of either kind refuses adds on a disk that is nearly full, and what this client says
    then is that its ledger was closed."""
    disk = shutil.disk_usage(folder)
    free_gb, wanted_gb = disk.free / 1e9, FREE_GB + KEPT_FREE * disk.total / 1e9
    if free_gb < wanted_gb:
        raise SystemExit(
            f"{folder}: {free_gb:.0f} GB free, {wanted_gb:.0f} wanted; make room first"
        )


def one_side(kind: str, load: Load, rows: dict[str, list[float]]) -> None:
    with work_directory() as folder, ZooKeeperServer(folder / "zookeeper") as zookeeper:
        check_room(folder)
        asyncio.run(initialize(f"zk://{zookeeper.address}"))
        running = (
            java_bookies(load.kept, zookeeper, folder)
            if kind == JAVA
            else our_bookies(zookeeper, folder)
        )
        loads = BENCHMARK_LOADS if load.source else LOADS
        with running as pids:
            load.run(zookeeper.address, *loads[0][1:], folder)  # what runs first is slower, of both
            for what, entry_bytes, outstanding in loads:
                begun_s = cpu_s(pids)
                said = load.run(zookeeper.address, entry_bytes, outstanding, folder)
                rows[f"{what}: adds/s"].append(said.adds_per_s)
                rows[f"{what}: CPU us"].append((cpu_s(pids) - begun_s) * 1e6 / said.count)
                for name, value in zip(("p50", "p99", "p99.9"), said.latencies_ms, strict=False):
                    rows[f"{what}: {name} ms"].append(value)
            resident = sum(psutil.Process(pid).memory_info().rss for pid in pids)
            rows["memory after it, MiB"].append(resident / 2**20)


def run(load: Load, rounds: int) -> Found:
    found: Found = {OURS: defaultdict(list), JAVA: defaultdict(list)}
    for number in range(rounds):
        for kind in found if number % 2 == 0 else reversed(found):
            try:
                one_side(kind, load, found[kind])
            except LoadFailedError as error:  # a disk that stalls, say: other rounds count
                print(f"round {number + 1} of {rounds}, {kind}: not finished: {error}", flush=True)
                continue
            print(f"round {number + 1} of {rounds}, {kind}", flush=True)
    return found


def ratio(row: str, own: float, its: float) -> float:
    """Above 1: ours is ahead."""
    return own / its if row.endswith("adds/s") else its / max(own, 1e-9)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--kept", type=Path, required=True)
    parser.add_argument("--source", type=Path, help="BookKeeper's own benchmark, to be the load")
    parser.add_argument("--seconds", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="for 3 s: does it work?")
    given = parser.parse_args()
    where = machine()
    source = given.source.resolve() if given.source else None
    load = Load(given.kept.resolve(), source, 3 if given.quick else given.seconds)
    found = run(load, given.rounds)
    cells = []
    if not found[OURS]:
        raise SystemExit(f"no round of {OURS} got to a load: see what its client said")
    for row, own in found[OURS].items():
        if not found[JAVA][row]:
            raise SystemExit(f"no round of {JAVA} got to {row!r}: see what its client said")
        medians = statistics.median(own), statistics.median(found[JAVA][row])
        figures = (f"{value:.4g}" for value in medians)
        cells.append([row, *figures, f"{ratio(row, *medians):.2f}"])
    text = f"E3 Qw3 Qa2, three bookies of a kind; {given.rounds} rounds in turns.\n\n"
    text += results.table(["medians", OURS, JAVA, "ratio"], cells)
    results.store("bookies", {"rounds": found}, text, where)


if __name__ == "__main__":
    main()
