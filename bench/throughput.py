"""Rates and costs of a standalone platform, journal sync on.

``python -m bench.throughput [--quick] [--bookies 1 3]`` starts the platform itself, publishes and
consumes with ``bench.loadgen``, and writes ``bench/results/throughput.json`` and ``.md``.

The targets are of the platform with one bookie. CPU is that of the platform's process, user and
system, all threads, divided by the acknowledged entries; unlike rates it does not depend on what
else the machine does. Large entries cost what the kernel takes to copy and write them: the share of
system time is in the table, and below it what the disk takes of the same writes from one thread
that does nothing else.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass, replace

from bench.loadgen import ConsumeLoad, PublishLoad, Target, consume, publish
from bench.measure import CpuClock, machine, resident_mib
from bench.results import store, table
from bench.server import Server, disk_mb_per_s, standalone
from bench.wire_client import RefusedError

IDLE_S = 10.0


@dataclass(frozen=True)
class Case:
    """A load with a name, and the CPU per entry (or MB/s) that is aimed at with one bookie."""

    name: str
    load: PublishLoad
    cpu_us_max: float | None = None
    mb_per_s_min: float | None = None
    consume_too: bool = False


CASES = (
    Case(
        "1 KiB, 4 connections, pipelined",
        PublishLoad(connections=4, depth=1000, entries=400_000, warmup_entries=40_000),
        cpu_us_max=12.0,
        consume_too=True,
    ),
    Case(
        "1 KiB, 64 connections, 1 outstanding",
        PublishLoad(connections=64, depth=1, entries=150_000, warmup_entries=10_000),
        cpu_us_max=40.0,
    ),
    Case(
        "1 KiB, batches of 32, 4 connections",
        PublishLoad(connections=4, depth=64, entries=40_000, warmup_entries=4_000, batch=32),
        consume_too=True,
    ),
    Case(
        "128 KiB batches (127 x 1 KiB), 4 connections",
        PublishLoad(connections=4, depth=16, entries=12_000, warmup_entries=1_000, batch=127),
        mb_per_s_min=300.0,
        consume_too=True,
    ),
)


def run_case(server: Server, case: Case, index: int) -> list[dict[str, object]]:
    """Publish, and consume what was published; a report for each."""
    target = Target("127.0.0.1", server.broker_port, f"throughput-{index}", (server.pid,))
    report: dict[str, object] = {"name": case.name, **publish(target, case.load)}
    report["resident_mib"] = round(resident_mib(server.pid))
    reports = [report]
    if case.consume_too:
        entries = case.load.entries + case.load.warmup_entries
        load = ConsumeLoad(messages=entries * max(1, case.load.batch), batch=case.load.batch)
        reports.append({"name": f"consume: {case.name}", **consume(target, load)})
    return reports


def idle(server: Server) -> dict[str, object]:
    """What a platform costs that nobody uses."""
    time.sleep(2.0)  # what a start leaves to be done is not idling
    clock = CpuClock([server.pid])
    time.sleep(IDLE_S)
    return {
        "ready_s": round(server.ready_s, 2),
        "resident_mib": round(resident_mib(server.pid), 1),
        "core_percent": round(clock.total_s() / IDLE_S * 100, 2),
    }


def measure(bookies: int, cases: tuple[Case, ...]) -> dict[str, object]:
    """All cases on one platform; a case that fails says so and the others go on."""
    reports: list[dict[str, object]] = []
    with standalone(bookies) as server:
        at_rest = idle(server)
        for index, case in enumerate(cases):
            try:
                reports += run_case(server, case, index)
            except RefusedError as error:
                reports.append({"name": case.name, "failed": str(error)})
    return {"bookies": bookies, "idle": at_rest, "cases": reports}


def verdict(case: Case | None, report: dict[str, object], bookies: int) -> str:
    """Whether the target was met; empty where there is none."""
    if case is None or bookies != 1 or "failed" in report:
        return ""
    if case.cpu_us_max is not None:
        cpu = float(str(report["server_cpu_us_per_entry"]))
        return f"{'met' if cpu <= case.cpu_us_max else 'MISSED'}: {case.cpu_us_max:.0f} us"
    if case.mb_per_s_min is not None:
        rate = float(str(report["mb_per_s"]))
        return f"{'met' if rate >= case.mb_per_s_min else 'MISSED'}: {case.mb_per_s_min:.0f} MB/s"
    return ""


def rows(run: dict[str, object], cases: tuple[Case, ...]) -> list[list[object]]:
    """The table's lines of one platform."""
    by_name = {case.name: case for case in cases}
    bookies = int(str(run["bookies"]))
    found = []
    reports = run["cases"]
    assert isinstance(reports, list)
    for report in reports:
        if "failed" in report:
            found.append([bookies, report["name"], "failed", report["failed"], "", "", "", "", ""])
            continue
        per_million = (
            float(report["server_cpu_s"]) * 1e6 / (report["messages_per_s"] * report["seconds"])
        )
        latency = report.get("latency_ms") or {}
        found.append([
            bookies,
            report["name"],
            report["messages_per_s"],
            report["mb_per_s"],
            report.get("server_cpu_us_per_entry"),
            report.get("server_cpu_in_kernel_percent"),
            round(per_million, 2),
            latency.get("p99"),
            verdict(by_name.get(report["name"]), report, bookies),
        ])  # fmt: skip
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a tenth of the entries")
    parser.add_argument("--bookies", type=int, nargs="+", default=[1, 3])
    options = parser.parse_args()
    cases: tuple[Case, ...] = CASES
    if options.quick:
        cases = tuple(
            replace(case, load=replace(case.load, entries=case.load.entries // 10))
            for case in CASES
        )
    where = machine()
    disk = round(disk_mb_per_s())
    runs = [measure(bookies, cases) for bookies in options.bookies]
    columns = (
        "bookies", "load", "messages/s", "MB/s", "CPU us/entry", "in kernel %", "CPU s/million",
        "p99 ms", "target",
    )  # fmt: skip
    lines = [line for run in runs for line in rows(run, cases)]
    idle_columns = ("bookies", "ready s", "resident MiB", "% of a core")
    idle_rows = [[run["bookies"], *run["idle"].values()] for run in runs]  # type: ignore[attr-defined]
    text = (
        f"{table(columns, lines)}\n\nIdle:\n\n{table(idle_columns, idle_rows)}\n\n"
        f"The disk alone, each MiB overwritten with fdatasync and appended to a file: {disk} MB/s."
    )
    store("throughput", {"disk_mb_per_s": disk, "runs": runs}, text, where)


if __name__ == "__main__":
    main()
