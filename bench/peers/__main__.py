"""Every peer beside us, one after the other, and one table of ratios.

    python -m bench.peers --kept DIR [--rounds 3] [--quick] [--parts PART...]

``DIR``, outside the tree, is where Maven fetches the peers to (``DIR/pulsar``, ``DIR/kafka``,
``DIR/bookkeeper``), and they stay. Each part is a program of its own (``PARTS``) and writes its
page; ``bench/results/peers.md`` is made of the results of all parts that there are, also of those
that did not run now, with the commit and the machine of each. A part that fails is named at the
end, and does not keep the others from running.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from bench import results
from bench.measure import machine
from bench.peers import summary
from bench.trees import ROOT


@dataclass(frozen=True)
class Part:
    """``program``: with its arguments; ``kept``: where its peer is; ``results``: their name;
    ``read`` takes them."""

    program: str
    kept: str
    read: Callable[[Mapping[str, Any]], list[summary.Compared]]
    results: str
    arguments: tuple[str, ...] = ()


PARTS: Final = {
    "pulsar": Part("pulsar_beside", "pulsar", summary.of_pulsar, "pulsar_beside"),
    "topics": Part("pulsar_beside", "pulsar", summary.of_pulsar, "pulsar_topics", ("--topics",)),
    "kafka": Part("kafka_engines", "kafka", summary.of_kafka, "kafka_engines"),
    "bookies": Part("bookies", "bookkeeper", summary.of_bookies, "bookies"),
    "spark": Part("spark_kafka", "kafka", summary.of_spark, "spark_kafka"),
}
REST_S: Final = 75.0
"""Between parts: each says how busy the machine was in the minute before it, and what the one
before it left to the disk comes to an end."""
COLUMNS: Final = ("peer", "load", *summary.LOAD, "goal", "goal of p99")


def run(part: Part, kept: Path, rounds: int, quick: bool) -> bool:
    command = [
        sys.executable, "-m", f"bench.peers.{part.program}", "--kept", str(kept / part.kept),
        "--rounds", str(rounds), *(["--quick"] if quick else []), *part.arguments,
    ]  # fmt: skip
    print(f"== {part.results}", flush=True)
    return subprocess.run(command, cwd=ROOT, check=False).returncode == 0


def page() -> tuple[dict[str, object], str]:
    """The report and the text, of the results that are there."""
    rows, taken = [], []
    for name, part in PARTS.items():
        file = results.RESULTS / f"{part.results}.json"
        if not file.exists():
            taken.append([name, "no result yet", "", "", ""])
            continue
        report = json.loads(file.read_text())
        rows += part.read(report)
        where = report["machine"]
        busy = float(where["cpu_pressure_percent"] or 0) > results.BUSY_PERCENT
        machine_name = f"{where['cpu']}, {where['cores']} cores"
        cells = [name, report["measured"], where["commit"], machine_name]
        taken.append([*cells, "yes: CPU only counts" if busy else "no"])
    loads, others = summary.lines(rows)
    reached = [row.reached for row in rows if row.is_load]
    text = (
        "Ratios above 1 are ours ahead: our rate by the peer's; the peer's CPU time of its "
        "servers, latency, seconds or memory by ours. The goal is a rate of "
        f"{summary.RATE_GOAL} or a CPU time of {summary.CPU_GOAL}, and at 5 000/s and 20 000/s "
        f"beside Pulsar a p99 of {summary.P99_GOAL}; {sum(map(bool, reached))} of {len(reached)} "
        "loads reach the first.\n\n"
    )
    text += results.table(("part", "measured", "commit", "machine", "machine was busy"), taken)
    text += "\n\n" + results.table(COLUMNS, loads)
    text += "\n\n" + results.table(("peer", "beside the loads", "ratio"), others)
    listed = [
        {"part": row.part, "row": row.row, "ratios": row.ratios, "goal": row.reached,
         "goal_p99": row.reached_p99}
        for row in rows
    ]  # fmt: skip
    return {"rows": listed}, text


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--kept", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="a tenth of the load: does it work?")
    parser.add_argument(
        "--parts", nargs="*", choices=PARTS, default=list(PARTS), metavar="PART",
        help=f"of {', '.join(PARTS)}; none: the table alone, of what is there",
    )  # fmt: skip
    given = parser.parse_args()
    where = machine()
    kept = given.kept.resolve()
    failed = []
    for name in given.parts:
        if name != given.parts[0] and not given.quick:
            time.sleep(REST_S)
        if not run(PARTS[name], kept, given.rounds, given.quick):
            failed.append(name)
    report, text = page()
    results.store("peers", report, text, where)
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
