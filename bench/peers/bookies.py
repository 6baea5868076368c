"""BookKeeper's own benchmark client against bookies of BookKeeper's and ours, in turns.

    python -m bench.peers.bookies KEPT SOURCE [--seconds 20] [--rounds 3] [--directory out]

Three bookies and a ZooKeeper as processes on this machine, one client (Java,
``BenchThroughputLatency``) with so many adds outstanding; both kinds sync every add to the journal
before they answer. ``KEPT`` is where BookKeeper's jars are fetched to; the benchmark is in none of
them, so ``SOURCE`` is its file of BookKeeper's sources of that version
(``bookkeeper-benchmark/src/main/java/.../BenchThroughputLatency.java``). Given are adds a second
and CPU microseconds of all three bookies an add (latencies would be those of waiting behind one's
own adds). Ratios are BookKeeper's figure and ours, above 1 where ours is better. What a load begins
with is slower on both (code that is not compiled yet, connections), so one run that does not count
comes first, and ``--seconds`` should be 20 at least: the client looks for the end of its adds once
a second.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import re
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import psutil

from bench.measure import machine
from bench.results import store, table
from magnetar.env.zookeeper_server import ZooKeeperServer
from tests.interop.bookkeeper.conftest import HERE, initialize, java_bookie
from tests.roles import Role

BOOKIES: Final = 3
LOADS: Final = (("1 KiB", 1024, 20_000), ("16 KiB", 16_384, 4_000))
"""Bytes of an entry, and adds outstanding. Large: what the client calls its throttle bounds the
adds of a second, too, and 200 measure a client that sends 200 a second."""
DONE: Final = re.compile(r"(\d+) completions in (\d+) milliseconds")
PATIENCE_S: Final = 300


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


def load(
    kept: Path, source: Path, zookeeper: ZooKeeperServer, folder: Path, pids: Sequence[int],
    entry_bytes: int, outstanding: int, seconds: int,
) -> dict[str, float]:  # fmt: skip
    begun_s = cpu_s(pids)
    said = subprocess.run(
        [
            HERE / "run.sh", kept, "benchmark", source, "-zookeeper", zookeeper.address,
            "-entrysize", str(entry_bytes), "-throttle", str(outstanding), "-time", str(seconds),
            "-ensemble", "3", "-quorum", "3", "-ackQuorum", "2", "-sendlimit", "4000000",
            "-skipwarmup", "-latencyFile", str(folder / "latencies"),
        ],
        capture_output=True, text=True, timeout=PATIENCE_S, check=True,
    ).stdout  # fmt: skip
    done = DONE.search(said)
    assert done is not None, said[-4000:]
    count = int(done[1])
    if not count:
        raise SystemExit(f"no add of {outstanding} outstanding was stored in 5 s: lower --share")
    return {
        "adds_per_s": count * 1000 / int(done[2]),
        "cpu_us": (cpu_s(pids) - begun_s) * 1e6 / count,
    }


def one(
    kept: Path, source: Path, directory: Path, kind: str, seconds: int, share: float
) -> dict[str, dict[str, float]]:
    with (
        tempfile.TemporaryDirectory(prefix="bookies-", dir=directory) as name,
        ZooKeeperServer(Path(name) / "zookeeper") as zookeeper,
    ):
        folder = Path(name)
        asyncio.run(initialize(f"zk://{zookeeper.address}"))
        running = (
            java_bookies(kept, zookeeper, folder)
            if kind == "java"
            else our_bookies(zookeeper, folder)
        )
        with running as pids:

            def run(entry_bytes: int, outstanding: int) -> dict[str, float]:
                most = round(outstanding * share)
                return load(kept, source, zookeeper, folder, pids, entry_bytes, most, seconds)

            run(*LOADS[0][1:])  # what runs first is slower, of both
            return {what: run(entry_bytes, most) for what, entry_bytes, most in LOADS}


def median(values: Sequence[float]) -> float:
    return sorted(values)[len(values) // 2]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("kept", type=Path)
    parser.add_argument("source", type=Path)
    parser.add_argument("--seconds", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--share", type=float, default=1.0,
        help="of the adds outstanding: on a slow machine; one that takes 5 s fails",
    )  # fmt: skip
    parser.add_argument("--directory", type=Path, default=Path("out"))
    args = parser.parse_args()
    args.directory.mkdir(parents=True, exist_ok=True)
    kept, where = args.kept.absolute() / "bookkeeper", machine()
    rounds = [
        {
            kind: one(kept, args.source, args.directory, kind, args.seconds, args.share)
            for kind in ("java", "ours")
        }
        for _ in range(args.rounds)
    ]
    rows = []
    for what, _, most in LOADS:
        for figure, better in (("adds_per_s", 1), ("cpu_us", -1)):
            java, ours = (
                median([each[kind][what][figure] for each in rounds]) for kind in ("java", "ours")
            )
            rows.append(
                [
                    what,
                    round(most * args.share),
                    figure,
                    f"{java:.2f}",
                    f"{ours:.2f}",
                    f"{(ours / java) ** better:.2f}",
                ]
            )
    text = (
        f"BookKeeper 4.17.2's BenchThroughputLatency, E3 Qw3 Qa2, three bookies of a kind; medians "
        f"of {args.rounds} rounds of {args.seconds} s in turns.\n\n"
        + table(("entries", "outstanding", "figure", "BookKeeper's bookies", "ours", "ratio"), rows)
    )
    store("bookies", {"rounds": rounds}, text, where)


if __name__ == "__main__":
    main()
