"""Whether Spark, reading history, is felt by those who publish: the live latency with and without.

    python -m bench.history_read [--rounds 4] [--seconds 15] [--quick]

Bookies and a broker are processes of their own. 20 000 messages a second of 1 KiB are published in
batches of ten, at a fixed rate: latency counts from when a batch was due. Beside that, in turns:

* nothing;
* Spark scans another topic at the bookies (``readMode=storage``), without a pause;
* Spark scans Arrow batches that it makes itself (``arrow_ceiling``): about the same CPU time, and
  nothing of the platform. What this does to the latency is the cores' doing;
* both once more with Spark at ``nice`` 19: the cores go to who publishes, and what is left is what
  reading does to disks, caches and loops.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from bench import results
from bench.loadgen import PublishLoad, Target, publish
from bench.measure import machine
from bench.server import Server, Store, broker, ledger_store
from bench.spark_load import SparkLoad

MESSAGES_PER_S, BATCH, BYTES = 20_000, 10, 1024
HISTORY_MESSAGES = 600_000
HISTORY_BATCH = 100
AHEAD_S = 2.0
ALONE = "nothing"


class Beside(NamedTuple):
    """What Spark does meanwhile."""

    name: str
    nice: int
    format: str
    options: Mapping[str, str]


class Found(NamedTuple):
    """Latencies of who publishes, how late the generator itself was, and what Spark did."""

    latency_ms: Mapping[str, float]
    lag_ms: Mapping[str, float]
    spark_cores: float = 0.0
    rows_per_s: float = 0.0


Rounds = dict[str, list[Found]]
"""By what Spark did."""


def loads(server: Server) -> list[Beside]:
    history = {
        "service.url": f"pulsar://127.0.0.1:{server.broker_port}",
        "subscribe": "history",
        "columns": "key,value,message_id,publish_time",
        "readMode": "storage",
    }
    made = {
        "rows": str(HISTORY_MESSAGES),
        "bytes": str(BYTES),
        "columns": "key,value,message_id,publish_time",
    }
    return [
        Beside("history", 0, "magnetar", history),
        Beside("no platform, same CPU", 0, "arrow_ceiling", made),
        Beside("history, nice 19", 19, "magnetar", history),
        Beside("no platform, same CPU, nice 19", 19, "arrow_ceiling", made),
    ]


class Live:
    """Publishes at the rate, and tells what it took."""

    def __init__(self, server: Server, store: Store, seconds: float) -> None:
        self._target = Target("127.0.0.1", server.broker_port, "live", (server.pid, *store.pids))
        self._seconds = seconds

    def run(self) -> dict[str, Any]:
        load = PublishLoad(
            connections=4,
            rate=MESSAGES_PER_S / BATCH,
            seconds=self._seconds,
            depth=8,
            batch=BATCH,
            message_bytes=BYTES,
            warmup_entries=1_000,
        )
        return publish(self._target, load)


def measure(live: Live, beside: Beside | None, spark: SparkLoad | None, seconds: float) -> Found:
    """The live load, with Spark at work before, during and after."""
    if beside is None or spark is None:
        report = live.run()
        return Found(report["latency_ms"], report["generator_lag_ms"])
    cpu, begun = spark.cpu_s(), time.monotonic()
    spark.begin(beside.format, beside.options, seconds + 2 * AHEAD_S)
    time.sleep(AHEAD_S)
    report = live.run()
    scans = spark.wait()
    took = time.monotonic() - begun
    cores, rows_per_s = (spark.cpu_s() - cpu) / took, scans * HISTORY_MESSAGES / took
    return Found(report["latency_ms"], report["generator_lag_ms"], cores, rows_per_s)


def fill(server: Server, messages: int) -> None:
    load = PublishLoad(
        connections=1, depth=64, batch=HISTORY_BATCH, entries=messages // HISTORY_BATCH,
        message_bytes=BYTES,
    )  # fmt: skip
    publish(Target("127.0.0.1", server.broker_port, "history"), load)


def run(server: Server, store: Store, rounds: int, seconds: float) -> Rounds:
    live = Live(server, store, seconds)
    cases = loads(server)
    sessions = {nice: SparkLoad(nice) for nice in sorted({case.nice for case in cases})}
    found: Rounds = {ALONE: [], **{case.name: [] for case in cases}}
    try:
        for case in cases:  # compilers and workers begin with it
            sessions[case.nice].begin(case.format, case.options, 3.0)
            sessions[case.nice].wait()
        live.run()
        for number in range(rounds):
            order: list[Beside | None] = [None, *cases]
            for beside in order if number % 2 == 0 else reversed(order):
                name = ALONE if beside is None else beside.name
                spark = None if beside is None else sessions[beside.nice]
                found[name].append(measure(live, beside, spark, seconds))
                print(f"round {number + 1}, {name}: {found[name][-1]}", flush=True)
    finally:
        for spark_session in sessions.values():
            spark_session.close()
    return found


def line(name: str, rounds: list[Found], alone: list[Found]) -> list[object]:
    def median(values: Iterable[float]) -> str:
        return f"{statistics.median(values):.1f}"

    ratios = [
        one.latency_ms["p99"] / other.latency_ms["p99"]
        for one, other in zip(rounds, alone, strict=True)
    ]
    return [
        name,
        *(median(one.latency_ms[key] for one in rounds) for key in ("p50", "p99", "p99_9")),
        f"{statistics.median(ratios):.2f}",
        f"{min(ratios):.2f}-{max(ratios):.2f}",
        median(one.lag_ms["p99"] for one in rounds),
        median(one.spark_cores for one in rounds),
        round(statistics.median(one.rows_per_s for one in rounds)),
    ]


COLUMNS = (
    "beside it", "p50 ms", "p99 ms", "p99.9 ms", "p99 / alone", "rounds", "generator p99 ms",
    "Spark's cores", "Spark's rows/s",
)  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=15.0)
    parser.add_argument("--bookies", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="does it work?")
    args = parser.parse_args()
    where = machine()
    rounds, seconds = (1, 3.0) if args.quick else (args.rounds, args.seconds)
    messages = HISTORY_MESSAGES // (10 if args.quick else 1)
    copies = min(3, args.bookies)
    quorums = f"ensemble_size={copies} write_quorum={copies} ack_quorum={copies // 2 + 1}".split()
    settings = [word for one in quorums for word in ("--set", f"ledger.{one}")]
    with ledger_store(args.bookies) as store, broker(store, *settings) as server:
        fill(server, messages)
        print(f"{messages} messages of history are written", flush=True)
        found = run(server, store, rounds, seconds)
    head = (
        f"{MESSAGES_PER_S} messages/s of {BYTES} bytes in batches of {BATCH}; {args.bookies} "
        f"bookies ({', '.join(quorums)}), a broker; medians of {rounds} of {seconds:.0f} s.\n\n"
    )
    table = results.table(COLUMNS, [line(name, each, found[ALONE]) for name, each in found.items()])
    kept = {name: [one._asdict() for one in each] for name, each in found.items()}
    results.store("history_read", {"rounds": kept}, head + table, where)
    return 0


if __name__ == "__main__":
    sys.exit(main())
