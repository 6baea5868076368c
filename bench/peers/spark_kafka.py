"""The platform's Spark source and sink beside Spark's own for Kafka: same rows, same session.

    python -m bench.peers.spark_kafka --kept DIR [--rounds 3] [--latency-rounds 2]
        [--no-rows] [--no-latency] [--quick]

``DIR``, outside the tree, is where Kafka is fetched to, and stays. One Spark session (``local[2]``)
with both; a platform with one bookie, which syncs its journal; a Kafka broker as shipped, which
leaves syncing to the kernel. Each round each side writes the rows (with keys) into a new topic and
scans it to Spark's ``noop`` sink: values at once, beside the servers that still bring them to the
disk, then, when those rest, values and all columns; the sides take turns, and so
does who is first. Then micro-batches: 1 000 messages a second go into a topic, a query copies it,
and a consumer at its end says how old they are.

CPU time is all that was spent: Spark (Java and Python workers) and servers. A ratio is Kafka's cost
divided by ours, so 2 means twice as fast, or half the CPU time. Kafka's sink is at least once; ours
is measured exactly once (the commit waits until consumers can see the rows), and at least once.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from pyspark.sql import DataFrame, SparkSession

from bench import results
from bench.arrow_ceiling import ArrowCeiling
from bench.compare_figures import figure
from bench.measure import cpu_of_trees, machine, process_table
from bench.peers.kafka import Fetched, fetched, kafka
from bench.peers.spark_sides import KafkaSide, Magnetar, Side
from bench.server import standalone
from bench.trees import ROOT

SIZES = {100: 1_000_000, 1024: 400_000}
PARTITIONS = 2
NUMBER_BYTES = 20
"""At the end of a value; what is before them is the same in all."""
RATE, WARM_S, SECONDS = 1_000, 8.0, 20.0
STREAMED_BYTES = 100
REST_S, IDLE_CPU_S = 30.0, 0.1
AT_ONCE = "read at once, value"

EXACTLY, LEAST, KAFKA, CEILING = "exactly once", "at least once", "Kafka", "ceiling"


class Cost(NamedTuple):
    """Seconds."""

    wall: float
    spark: float
    servers: float

    @property
    def cpu(self) -> float:
        return self.spark + self.servers


Found = dict[tuple[str, int, str], list[Cost]]
"""(case, bytes, side) -> rounds."""


@contextmanager
def session(parts: Fetched) -> Iterator[SparkSession]:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    jars = ",".join(str(jar) for jar in sorted(parts.connector.glob("*.jar")))
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.jars", jars)
        .config("spark.driver.memory", "2g")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.log.level", "ERROR")
        .getOrCreate()
    )
    spark.dataSource.register(ArrowCeiling)
    try:
        yield spark
    finally:
        spark.stop()


class Meter:
    """What a step takes."""

    def __init__(self, spark: SparkSession) -> None:
        self._java = spark.sparkContext._gateway.proc.pid

    def _seconds(self, servers: tuple[int, ...]) -> tuple[float, float]:
        table = process_table()
        own = table[os.getpid()][1]
        return own + cpu_of_trees(table, [self._java]), cpu_of_trees(table, servers)

    def cost(self, servers: tuple[int, ...], step: Callable[[], object]) -> Cost:
        before, begun = self._seconds(servers), time.monotonic()
        step()
        wall = time.monotonic() - begun
        after = self._seconds(servers)
        return Cost(wall, after[0] - before[0], after[1] - before[1])

    def rest(self, servers: tuple[int, ...]) -> None:
        """Wait until what was written is on its way to no disk any more, at most ``REST_S``: both
        sides bring it there behind the writer's back, and who reads meanwhile shares the cores."""
        os.sync()
        end = time.monotonic() + REST_S
        while time.monotonic() < end:
            before = self._seconds(servers)[1]
            time.sleep(1.0)
            if self._seconds(servers)[1] - before < IDLE_CPU_S:
                return


def scan(frame: DataFrame) -> None:
    frame.write.format("noop").mode("append").save()


def made_rows(spark: SparkSession, size: int, rows: int) -> DataFrame:
    """With a key and a value of ``size`` bytes each, in two partitions. What all values begin with
    is a literal: ``lpad`` to 1 KiB sets it byte by byte, which takes as much CPU as a sink."""
    common, number = "x" * (size - NUMBER_BYTES), f"lpad(cast(id as string), {NUMBER_BYTES}, 'x')"
    return spark.range(0, rows, 1, 2).selectExpr(
        "concat('k', id % 1000) as key", f"concat('{common}', {number}) as value"
    )


class Rounds:
    """Writes and scans."""

    def __init__(self, spark: SparkSession, sides: dict[str, Side]) -> None:
        self._spark, self._sides = spark, sides
        self._meter = Meter(spark)
        self.found: Found = defaultdict(list)

    def run(self, label: str, number: int, size: int, rows: int) -> None:
        """One round of a size: every side, then the ceiling."""
        names = [*self._sides]
        for name in names if number % 2 == 0 else reversed(names):
            self._side(name, f"{label}-{size}-{number}-{name.replace(' ', '-')}", size, rows)
        for case, columns in (("read, value only", "value"), ("read, all columns", "")):
            reader = self._spark.read.format("arrow_ceiling")
            reader = reader.option("rows", rows).option("bytes", size)
            frame = (reader.option("columns", columns) if columns else reader).load()
            self._keep(case, size, CEILING, (), lambda frame=frame: scan(frame))

    def _side(self, name: str, topic: str, size: int, rows: int) -> None:
        side = self._sides[name]
        side.make(topic, PARTITIONS)
        made = made_rows(self._spark, size, rows)
        self._keep("write", size, name, side.pids, lambda: side.write(made, topic))
        if name == LEAST:
            return  # reads as what was written exactly once
        for case, every in (
            (AT_ONCE, False),
            ("read, value only", False),
            ("read, all columns", True),
        ):
            if case != AT_ONCE:
                self._meter.rest(side.pids)
            frame = side.read(topic, all_columns=every)
            self._keep(case, size, name, side.pids, lambda frame=frame: scan(frame))

    def _keep(
        self, case: str, size: int, name: str, servers: tuple[int, ...], step: Callable[[], object]
    ) -> None:
        cost = self._meter.cost(servers, step)
        self.found[case, size, name].append(cost)
        print(f"{case:18} {size:5} {name:14} wall {cost.wall:6.2f} cpu {cost.cpu:6.2f}", flush=True)


def check_rows(side: Side, topic: str, rows: int) -> None:
    found = side.read(topic, all_columns=False).count()
    if found != rows:
        raise SystemExit(f"{topic} has {found} rows, and {rows} were written")


def latency(side: Side, parts: Fetched, name: str, seconds: float) -> dict[str, Any]:
    """One query between two new topics, watched from a process of its own."""
    topics = f"{name}-in", f"{name}-out"
    for topic in topics:
        side.make(topic, 1)
    command = [
        sys.executable, "-m", "bench.peers.probe", side.kind, side.address, *topics,
        str(RATE), str(WARM_S), str(seconds), str(STREAMED_BYTES),
    ]  # fmt: skip
    path = f"{os.environ.get('PYTHONPATH', '')}:{parts.python}".strip(":")
    probe = subprocess.Popen(
        command, cwd=ROOT, env=os.environ | {"PYTHONPATH": path}, text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    assert probe.stdin is not None
    assert probe.stdout is not None
    with tempfile.TemporaryDirectory() as checkpoint:
        if probe.stdout.readline() != "ready\n":
            raise SystemExit(f"the probe of {side.kind} did not begin")
        query = side.stream(*topics, checkpoint)
        try:
            print("go", file=probe.stdin, flush=True)
            found: dict[str, Any] = json.loads(probe.stdout.readline() or "{}")
        finally:
            error = query.exception()
            query.stop()
            probe.kill()
            probe.wait()
    if error is not None or not found or found["received"] != found["sent"]:
        raise SystemExit(f"{name}: {found}; {error}")
    print(name, found["latency_ms"], flush=True)
    return found


def figures(found: Found, sizes: dict[int, int]) -> list[list[object]]:
    """A line for each case and size: ours beside Kafka's, or beside the ceiling."""
    lines: list[list[object]] = []
    for case, size, name in found:
        if name in (KAFKA, CEILING):
            continue
        ours = found[case, size, name]
        label = f"{case}, {name}" if case == "write" else case
        for other in (KAFKA, CEILING):
            theirs = found.get((case, size, other))
            if theirs:
                lines.append(_line(label, size, other, sizes[size], ours, theirs))
    return sorted(lines, key=lambda line: (str(line[2]) == CEILING, int(str(line[1])), line[0]))


def _line(
    label: str, size: int, other: str, rows: int, ours: list[Cost], theirs: list[Cost]
) -> list[object]:
    wall = figure([cost.wall for cost in ours], [cost.wall for cost in theirs])
    # A worker of Spark that is killed with its parent takes its time along, at times more than a
    # step took.
    pairs = [pair for pair in zip(ours, theirs, strict=True) if min(c.cpu for c in pair) > 0]
    cpu = figure([one.cpu for one, _ in pairs], [other.cpu for _, other in pairs])
    return [
        label, size, other,
        round(rows / wall.before), round(rows / wall.after), f"{wall.ratio:.2f}",
        _us(ours, rows), _us(theirs, rows), f"{cpu.ratio:.2f}",
        f"{cpu.lowest:.2f}-{cpu.highest:.2f}",
    ]  # fmt: skip


def _us(costs: list[Cost], rows: int) -> str:
    whole = statistics.median(cost.cpu for cost in costs) * 1e6 / rows
    servers = statistics.median(cost.servers for cost in costs) * 1e6 / rows
    return f"{whole:.2f} ({servers:.2f})"


COLUMNS = (
    "case", "bytes", "beside", "our rows/s", "its rows/s", "ratio", "our CPU us/row (servers)",
    "its", "CPU ratio", "rounds",
)  # fmt: skip


LATENCY_COLUMNS = (
    "micro-batches, 1 000 messages/s", "p50 ms", "p90 ms", "p99 ms", "max ms", "p50 of rounds",
)  # fmt: skip


def latency_lines(found: dict[str, list[dict[str, Any]]]) -> list[list[object]]:
    lines: list[list[object]] = []
    for name, runs in found.items():
        each = {
            key: [run["latency_ms"][key] for run in runs] for key in ("p50", "p90", "p99", "max")
        }
        medians = [round(statistics.median(values)) for values in each.values()]
        spread = f"{min(each['p50']):.0f}-{max(each['p50']):.0f}"
        lines.append([name, *medians, spread])
    return lines


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--kept", type=Path, required=True, help="where Kafka is fetched to")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="a tenth of the rows: does it work?")
    parser.add_argument("--no-rows", action="store_true", help="micro-batches only")
    parser.add_argument("--no-latency", action="store_true", help="writes and scans only")
    parser.add_argument("--latency-rounds", type=int, default=2)
    return parser.parse_args()


@contextmanager
def all_sides(parts: Fetched) -> Iterator[tuple[SparkSession, dict[str, Side]]]:
    """Everything runs, on empty directories."""
    with standalone() as server, kafka(parts) as broker, session(parts) as spark:
        sides: dict[str, Side] = {
            EXACTLY: Magnetar(spark, server, "exactly-once"),
            LEAST: Magnetar(spark, server, "at-least-once"),
            KAFKA: KafkaSide(spark, broker, parts),
        }
        yield spark, sides


def rows_found(
    spark: SparkSession, sides: dict[str, Side], sizes: dict[int, int], count: int
) -> Found:
    """Of ``count`` rounds, after one that is not counted: compilers and workers begin with it."""
    warm = Rounds(spark, sides)
    for size, rows in sizes.items():
        warm.run("warm", 0, size, rows // 5)
    for name, side in sides.items():
        check_rows(side, f"warm-100-0-{name.replace(' ', '-')}", sizes[100] // 5)
    rounds = Rounds(spark, sides)
    for number in range(count):
        for size, rows in sizes.items():
            rounds.run("rows", number, size, rows)
    return rounds.found


def latencies_found(
    sides: dict[str, Side], parts: Fetched, count: int, seconds: float
) -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in sides}
    for number in range(count):
        for name in sides if number % 2 == 0 else reversed(sides):
            topic = f"stream-{number}-{name.replace(' ', '-')}"
            found[name].append(latency(sides[name], parts, topic, seconds))
    return found


def main() -> int:
    args = arguments()
    parts, where = fetched(args.kept), machine()
    sizes = {size: rows // (10 if args.quick else 1) for size, rows in SIZES.items()}
    with all_sides(parts) as (spark, sides):
        found = rows_found(spark, sides, sizes, 0 if args.no_rows else args.rounds)
        seconds = SECONDS / (4 if args.quick else 1)
        count = 0 if args.no_latency else args.latency_rounds
        waited = latencies_found(sides, parts, count, seconds)
    text = results.table(COLUMNS, figures(found, sizes))
    if not args.no_latency:
        text += "\n\n" + results.table(LATENCY_COLUMNS, latency_lines(waited))
    stored = [
        {
            "case": case, "bytes": size, "side": name, "rows": sizes[size],
            "rounds": [cost._asdict() for cost in costs],
        }
        for (case, size, name), costs in found.items()
    ]  # fmt: skip
    results.store("spark_kafka", {"costs": stored, "micro_batches": waited}, text, where)
    return 0


if __name__ == "__main__":
    sys.exit(main())
