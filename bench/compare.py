"""Two source trees against each other, in alternating rounds on one machine.

    python -m bench.compare --before DIR --after DIR [--rounds 5] [--no-spark] [--quick]

``DIR`` is a checkout. Each round runs all rows (``compare_rows``) of one tree and then of the
other; the next round the other way about. Servers start anew in every round, on empty directories
of the disk that this checkout is on. What is printed, and stored in ``bench/results/compare.*``:
for each row the median CPU time per message before and after, the ratio after / before, and the
noise that the rounds show (``compare_figures``).
"""

from __future__ import annotations

import argparse
import math
import subprocess
import time
from pathlib import Path

from bench.compare_figures import Figure, figure
from bench.compare_rows import ROWS, Costs, Sizes, measure
from bench.compare_spark import SparkSide
from bench.measure import machine
from bench.results import store, table

ROUNDS = 5


def source_of(checkout: Path) -> Path:
    source = checkout.resolve() / "src"
    if not (source / "magnetar").is_dir():
        raise SystemExit(f"{checkout} is no checkout: it has no src/magnetar")
    return source


def commit_of(source: Path) -> str:
    command = ["git", "describe", "--always", "--dirty", "--abbrev=7"]
    return subprocess.run(
        command, cwd=source, capture_output=True, text=True, check=False
    ).stdout.strip()


def run_rounds(
    before: Path, after: Path, rounds: int, sizes: Sizes, sessions: dict[Path, SparkSide]
) -> tuple[list[Costs], list[Costs]]:
    """The costs before and after, round by round. The first of a pair takes turns, so that what the
    first leaves behind (a warm disk, a hot core) favours neither."""
    found: dict[str, list[Costs]] = {"before": [], "after": []}
    sides = [("before", before), ("after", after)]
    for number in range(rounds):
        for name, source in sides if number % 2 == 0 else reversed(sides):
            began = time.monotonic()
            found[name].append(measure(source, sessions.get(source), sizes))
            took_s = time.monotonic() - began
            print(f"round {number + 1} of {rounds}, {name}: {took_s:.0f} s", flush=True)
    return found["before"], found["after"]


def figures(before: list[Costs], after: list[Costs]) -> dict[str, Figure]:
    """The rows that were measured, in their order."""
    names = [name for name in ROWS if name in before[0]]
    return {name: figure([c[name] for c in before], [c[name] for c in after]) for name in names}


def text_of(found: dict[str, Figure]) -> str:
    columns = ("CPU us per message", "before", "after", "ratio", "noise", "rounds", "")
    rows = [
        (
            name,
            f"{item.before:.2f}",
            f"{item.after:.2f}",
            f"{item.ratio:.3f}",
            "" if math.isnan(item.noise) else f"± {item.noise * 100:.1f} %",
            f"{item.lowest:.2f} to {item.highest:.2f}",
            item.verdict,
        )
        for name, item in found.items()
    ]
    return table(columns, rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--before", type=Path, required=True, help="a checkout")
    parser.add_argument("--after", type=Path, required=True, help="a checkout")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--no-spark", action="store_true")
    parser.add_argument("--quick", action="store_true", help="a fifth of the load: does it work?")
    args = parser.parse_args()
    before, after = source_of(args.before), source_of(args.after)
    where, sizes = machine(), Sizes(args.quick)
    sessions: dict[Path, SparkSide] = {}
    try:
        if not args.no_spark:
            sessions = {source: SparkSide(source) for source in {before, after}}
        costs = run_rounds(before, after, args.rounds, sizes, sessions)
    finally:
        for session in sessions.values():
            session.close()
    found = figures(*costs)
    commits = {"before": commit_of(before), "after": commit_of(after)}
    head = (
        f"Before: {commits['before']}, after: {commits['after']}; {args.rounds} rounds. The noise "
        'is half of the 95 % interval of the ratio\'s mean; "same" where that holds 1.\n\n'
    )
    report = {"commits": commits, "before": costs[0], "after": costs[1]}
    store("compare", report, head + text_of(found), where)


if __name__ == "__main__":
    main()
