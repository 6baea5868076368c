"""Where results go: ``bench/results/NAME.json`` for programs, ``NAME.md`` for people."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from bench.measure import machine

RESULTS = Path(__file__).parent / "results"
BUSY_PERCENT = 10.0


def table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A Markdown table."""
    cells = [list(columns), *[[_cell(value) for value in row] for row in rows]]
    widths = [max(len(row[i]) for row in cells) for i in range(len(columns))]
    lines = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |"
        for row in cells
    ]
    lines.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return "\n".join(lines)


def _cell(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, int) and abs(value) >= 10_000:
        return f"{value:,}".replace(",", " ")
    return str(value)


def store(
    name: str, report: Mapping[str, object], text: str, where: Mapping[str, str] | None = None
) -> None:
    """Write both files, with the machine and the commit, and print the text.

    ``where`` is ``machine()`` as it was before the benchmark put its own load on it; a machine
    that was busy then is pointed out, as its rates and latencies are not the platform's.
    """
    where = where or machine()
    stamp = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())
    RESULTS.mkdir(exist_ok=True)
    whole = {"measured": stamp, "machine": where, **report}
    (RESULTS / f"{name}.json").write_text(json.dumps(whole, indent=2) + "\n")
    head = (
        f"# {name}\n\n{stamp}, commit {where['commit']}; {where['cpu']}, {where['cores']} cores, "
        f"Linux {where['kernel']}, Python {where['python']}; before: load average "
        f"{where['load_average']}, CPU pressure {where['cpu_pressure_percent']} %\n"
    )
    if float(where["cpu_pressure_percent"] or 0) > BUSY_PERCENT:
        head += (
            "\n**The machine was busy with other work**: compare CPU per entry only; rates and "
            "latencies say little.\n"
        )
    (RESULTS / f"{name}.md").write_text(f"{head}\n{text}\n")
    print(f"{head}\n{text}\n")
