"""A standalone of ours beside Pulsar's, under Pulsar's own clients in Java.

    python -m bench.peers.pulsar_beside --kept DIR [--rounds 3] [--quick] [--rows WORD...|--topics]

``DIR``, outside the tree, is where Pulsar is fetched to, and stays. One system at a time, on an
empty directory of the same disk, the other one stopped; one bookie each, which syncs its journal.
The load is ``pulsar-perf`` on the same cores, so rates are mostly its limit, and **the server's CPU
time per message is the comparison**. Sides take turns, and who is first changes from round to
round; each is warmed first. A ratio above 1 is ours ahead: our rate by Pulsar's; Pulsar's CPU time,
latency, seconds or memory by ours.

A load's CPU time is counted from when its producers are there. ``--topics`` measures growth with
topics instead, by itself: a client of ours opens them, 200 at a time, and ``pulsar-perf`` publishes
to them round robin. Who has not opened so many in ten minutes has no row of them.

With ``--quick`` each row has a tenth of its messages, or of its topics: does it work?
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import psutil

from bench import results
from bench.many_topics import Connection, LostError, each
from bench.measure import cpu_of_trees, machine, process_table
from bench.peers.pulsar import (
    Endpoint,
    Perf,
    PerfSaid,
    PulsarJars,
    fetched_pulsar,
    pulsar_on,
)
from bench.server import standalone_on, work_directory

OURS, PULSAR = "Magnetar", "Pulsar"
FAST: Final = 10_000_000
"""A rate that nobody reaches."""
IDLE_S: Final = 20.0
REST_S: Final = 3.0
GROWTH: Final = (100, 1_000, 10_000)
"""Topics."""
OPEN_S: Final = 600.0
TRIES: Final = 20


@dataclass(frozen=True)
class Row:
    """A load: ``count`` messages, or ``seconds`` at ``rate``. Who consumes has what the row before
    it has published in that topic."""

    name: str
    command: str
    topic: str
    arguments: tuple[object, ...]
    count: int = 0
    rate: int = FAST
    seconds: int = 0


UNBATCHED = ("-s", 1024, "-db", "-o", 1000)
ROWS: Final = (
    Row("1 KiB unbatched, 1000 outstanding", "produce", "single", UNBATCHED, 200_000),
    Row("1 KiB batched", "produce", "batched", ("-s", 1024, "-o", 20_000), 1_000_000),
    Row("1 KiB unbatched, 5 000/s", "produce", "slow", UNBATCHED, 0, 5_000, 20),
    Row("1 KiB batched, 20 000/s", "produce", "steady", ("-s", 1024, "-o", 20_000), 0, 20_000, 20),
    Row("64 producers, one outstanding each", "produce", "many",
        ("-s", 1024, "-db", "-o", 1, "-n", 64, "-c", 16), 150_000),
    Row("100 KiB unbatched", "produce", "large", ("-s", 102_400, "-db", "-o", 100), 10_000),
    Row("catch-up, batched", "consume", "batched", ("-ss", "again", "-sp", "Earliest"), 1_000_000),
    Row("catch-up, unbatched", "consume", "single", ("-ss", "again", "-sp", "Earliest"), 200_000),
    Row("shared, 4 consumers", "consume", "single",
        ("-ss", "shared", "-sp", "Earliest", "-st", "Shared", "-n", 4), 200_000),
)  # fmt: skip

Found = dict[str, dict[str, list[float]]]
"""Side -> row -> a figure of each round."""


class Side:
    """One running platform under load: what it costs goes into ``rows``."""

    def __init__(self, endpoint: Endpoint, perf: Perf, share: int) -> None:
        self._pid = endpoint.pid
        self._perf = perf
        self._share = share
        self._begun_s = 0.0

    def cpu_s(self) -> float:
        return cpu_of_trees(process_table(), [self._pid])

    def load(self, row: Row, topic: str) -> PerfSaid:
        amount = (
            ("-time", max(row.seconds // self._share, 3))
            if row.seconds
            else ("-m", row.count // self._share)
        )
        rate = ("-r", row.rate) if row.command == "produce" else ()
        self._begun_s = self.cpu_s()
        return self._perf.run(
            row.command, *row.arguments, *rate, *amount, topic, when_created=self._begin
        )

    def _begin(self) -> None:
        self._begun_s = self.cpu_s()

    def measure(self, row: Row, rows: dict[str, list[float]]) -> None:
        said = self.load(row, row.topic)
        cpu_s = self.cpu_s() - self._begun_s
        if not row.seconds:
            rows[f"{row.name}: msg/s"].append(said.rate)
        rows[f"{row.name}: CPU us"].append(cpu_s / said.messages * 1e6)
        if row.command == "produce" and said.p50_ms is not None:
            rows[f"{row.name}: p50 ms"].append(said.p50_ms)
            rows[f"{row.name}: p99 ms"].append(said.p99_ms or 0.0)
            rows[f"{row.name}: p99.9 ms"].append(said.p99_9_ms or 0.0)
        time.sleep(REST_S)

    def memory_mib(self) -> float:
        first = psutil.Process(self._pid)
        every = (first, *first.children(recursive=True))
        return float(sum(each.memory_info().rss for each in every)) / 2**20


@contextmanager
def ours_on(folder: Path) -> Iterator[Endpoint]:
    with standalone_on(folder) as server:
        yield Endpoint(server.pid, server.broker_port, server.http_port, server.ready_s)


async def open_topics(port: int, topics: list[str]) -> None:
    """A producer and one acknowledged message in each."""
    connection = await Connection.open(("127.0.0.1", port))

    async def one(topic: str) -> None:
        for left in reversed(range(TRIES)):
            await connection.lookup(topic, False)
            try:
                await connection.produce(topic)
                return
            except LostError:
                if not left or connection.broken:
                    raise
                await asyncio.sleep(0.2)  # Pulsar's has not taken the bundle yet

    try:
        await asyncio.wait_for(each(topics, one), OPEN_S)
    finally:
        await connection.close()


def grow(side: Side, port: int, count: int, rows: dict[str, list[float]]) -> bool:
    """Open so many topics and publish to them round robin; False if that takes too long."""
    topics = [f"persistent://public/default/grow{count}-{i}" for i in range(count)]
    cpu_s, memory_mib, begun = side.cpu_s(), side.memory_mib(), time.monotonic()
    try:
        asyncio.run(open_topics(port, topics))
    except (TimeoutError, LostError) as error:
        print(f"{count} topics are not open after {time.monotonic() - begun:.0f} s: {error!r}")
        return False
    rows[f"opening {count} topics: topics/s"].append(count / (time.monotonic() - begun))
    rows[f"opening {count} topics: CPU us"].append((side.cpu_s() - cpu_s) / count * 1e6)
    grown_kib = (side.memory_mib() - memory_mib) * 1024 / count
    rows[f"memory of a topic, {count} topics, KiB"].append(max(grown_kib, 0.0))
    name = f"round robin over {count} topics, 5 000/s"
    row = Row(name, "produce", f"grow{count}", (*UNBATCHED, "-t", count), 0, 5_000, 20)
    side.measure(row, rows)
    return True


Start = Callable[[Path], AbstractContextManager[Endpoint]]
Measured = Callable[[Start, PulsarJars, dict[str, list[float]]], None]
"""What is measured of one side; the rows are added to."""


def warmed(endpoint: Endpoint, jars: PulsarJars, folder: Path, share: int) -> Side:
    side = Side(endpoint, Perf(jars.perf, folder, endpoint), share)
    for row in ROWS[:2]:
        side.load(row, "warm")
    return side


def loads(
    chosen: list[Row], share: int, start: Start, jars: PulsarJars, rows: dict[str, list[float]]
) -> None:
    with work_directory() as folder:
        with start(folder) as endpoint:
            side = warmed(endpoint, jars, folder, share)
            for row in chosen:
                side.measure(row, rows)
            before = side.cpu_s()
            time.sleep(IDLE_S)
            rows["idle: % of a core"].append((side.cpu_s() - before) / IDLE_S * 100)
            rows["memory after it, MiB"].append(side.memory_mib())
        with start(folder) as endpoint:
            rows["restart with that data, s"].append(endpoint.ready_s)


def growth(share: int, start: Start, jars: PulsarJars, rows: dict[str, list[float]]) -> None:
    with work_directory() as folder, start(folder) as endpoint:
        side = warmed(endpoint, jars, folder, share)
        for count in GROWTH:
            if not grow(side, endpoint.broker_port, count // share, rows):
                break


def run(jars: PulsarJars, measured: Measured, rounds: int) -> Found:
    sides: dict[str, Start] = {
        OURS: ours_on,
        PULSAR: lambda folder: pulsar_on(folder, jars.server),
    }
    found: Found = defaultdict(lambda: defaultdict(list))
    for number in range(rounds):
        turns = list(sides) if number % 2 == 0 else list(reversed(sides))
        for name in turns:
            began = time.monotonic()
            measured(sides[name], jars, found[name])
            took_s = time.monotonic() - began
            print(f"round {number + 1} of {rounds}, {name}: {took_s:.0f} s", flush=True)
    return found


def ratio(row: str, own: float, its: float) -> str:
    """Above 1: ours is ahead. Empty where one side had nothing to tell."""
    if not own or not its:
        return ""
    found = own / its if row.endswith(("msg/s", "topics/s")) else its / own
    return f"{found:.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kept", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="a tenth of the load: does it work?")
    parser.add_argument("--rows", nargs="*", default=[""], help="those with these words only")
    parser.add_argument("--topics", action="store_true", help="growth with topics, and no rows")
    given = parser.parse_args()
    chosen = [row for row in ROWS if any(word in row.name for word in given.rows)]
    share = 10 if given.quick else 1
    where = machine()
    jars = fetched_pulsar(given.kept)
    measured = partial(growth, share) if given.topics else partial(loads, chosen, share)
    found = run(jars, measured, given.rounds)
    cells = []
    for row, own in found[OURS].items():
        its = found[PULSAR].get(row)
        if not its:
            cells.append([row, f"{statistics.median(own):.4g}", "not reached", ""])
            continue
        medians = statistics.median(own), statistics.median(its)
        cells.append([row, *(f"{value:.4g}" for value in medians), ratio(row, *medians)])
    text = results.table(["medians", OURS, f"{PULSAR} 4.0.8", "ratio"], cells)
    name = "pulsar_topics" if given.topics else "pulsar_beside"
    results.store(name, {"rounds": found}, text, where)


if __name__ == "__main__":
    main()
