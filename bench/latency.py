"""Publish latency of a standalone platform at fixed rates, journal sync on.

``python -m bench.latency [--quick] [--bookies 1 3]`` writes ``bench/results/latency.json`` and
``.md``. A message's latency counts from when it was due, not from when it could be sent, so a
pause shows in every message that it delayed. The generator's own lateness is in the table: where
it is near a latency, the machine was too busy to tell.
"""

from __future__ import annotations

import argparse

from bench.loadgen import PublishLoad, Target, publish
from bench.measure import machine
from bench.results import store, table
from bench.server import Server, standalone
from bench.wire_client import RefusedError

RATES = (
    ("1 000/s of 1 KiB, 1 connection", PublishLoad(connections=1, rate=1_000)),
    ("5 000/s of 1 KiB, 4 connections", PublishLoad(connections=4, rate=5_000)),
    ("20 000/s of 1 KiB, 4 connections", PublishLoad(connections=4, rate=20_000)),
    ("20 000/s of 1 KiB, 64 connections", PublishLoad(connections=64, rate=20_000)),
    ("1 000/s batches of 32 x 1 KiB", PublishLoad(connections=4, rate=1_000, batch=32)),
)
WARMUP_ENTRIES = 5_000


def measure(server: Server, seconds: float) -> list[dict[str, object]]:
    """Every rate on one platform."""
    reports: list[dict[str, object]] = []
    for index, (name, shape) in enumerate(RATES):
        target = Target("127.0.0.1", server.broker_port, f"latency-{index}", (server.pid,))
        load = PublishLoad(
            connections=shape.connections,
            rate=shape.rate,
            batch=shape.batch,
            seconds=seconds,
            depth=8,
            warmup_entries=WARMUP_ENTRIES,
        )
        try:
            reports.append({"name": name, **publish(target, load)})
        except RefusedError as error:
            reports.append({"name": name, "failed": str(error)})
    return reports


def row(bookies: int, report: dict[str, object]) -> list[object]:
    """A line of the table."""
    if "failed" in report:
        return [bookies, report["name"], f"failed: {report['failed']}", "", "", "", "", ""]
    latency, lag = report["latency_ms"], report["generator_lag_ms"]
    assert isinstance(latency, dict)
    assert isinstance(lag, dict)
    found = [latency[key] for key in ("p50", "p99", "p99_9", "max")]
    return [
        bookies,
        report["name"],
        *found,
        lag["p99"],
        report["server_cpu_us_per_entry"],
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="3 s instead of 20 s for each rate")
    parser.add_argument("--bookies", type=int, nargs="+", default=[1, 3])
    options = parser.parse_args()
    where = machine()
    runs = []
    for bookies in options.bookies:
        with standalone(bookies) as server:
            runs.append((bookies, measure(server, 3.0 if options.quick else 20.0)))
    columns = (
        "bookies", "load", "p50 ms", "p99 ms", "p99.9 ms", "max ms", "generator p99 ms",
        "CPU us/entry",
    )  # fmt: skip
    lines = [row(bookies, report) for bookies, reports in runs for report in reports]
    stored = {"runs": [{"bookies": bookies, "cases": reports} for bookies, reports in runs]}
    store("latency", stored, table(columns, lines), where)


if __name__ == "__main__":
    main()
