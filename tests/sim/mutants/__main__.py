"""``python -m tests.sim.mutants``: plant every known bug, one at a time; each must be found.

Prints the table and writes it into docs/simulation.md between its marks. Ends with 1 when a bug
was not found.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from tests.sim.mutants.bookies import BOOKIES
from tests.sim.mutants.clients import CLIENTS
from tests.sim.mutants.logs import LOGS
from tests.sim.mutants.machines import MACHINES
from tests.sim.mutants.mutant import Found, Mutant, search

PROCESSES = 2
PAGE = Path(__file__).parents[3] / "docs" / "simulation.md"
BEGIN, END = "<!-- mutants -->", "<!-- /mutants -->"

MUTANTS: Sequence[Mutant] = (*MACHINES, *CLIENTS, *BOOKIES, *LOGS)


def find(index: int) -> tuple[int | None, str]:
    """In a process of its own; mutants are named by their place, since closures do not travel."""
    found = search(MUTANTS[index])
    return found.seeds, found.failure


def table(found: Sequence[Found]) -> str:
    rows = ["| bug | known as | ring | seeds until found |", "|---|---|---|---|"]
    for each in found:
        mutant = each.mutant
        seeds = f"not in {mutant.seeds_max}" if each.seeds is None else str(each.seeds)
        rows.append(f"| {mutant.name} | {mutant.known or '-'} | {mutant.ring} | {seeds} |")
    return "\n".join(rows)


def write_page(text: str) -> None:
    page = PAGE.read_text()
    before, after = page.index(BEGIN) + len(BEGIN), page.index(END)
    PAGE.write_text(f"{page[:before]}\n{text}\n{page[after:]}")


def main() -> int:
    found = []
    with ProcessPoolExecutor(PROCESSES) as pool:
        for mutant, (seeds, failure) in zip(
            MUTANTS, pool.map(find, range(len(MUTANTS))), strict=True
        ):
            found.append(Found(mutant, seeds, failure))
            told = "NOT FOUND" if seeds is None else f"found after {seeds} seeds: {failure[:120]}"
            print(f"ring {mutant.ring}  {mutant.name}: {told}", flush=True)
    write_page(table(found))
    return 1 if any(each.seeds is None for each in found) else 0


if __name__ == "__main__":
    sys.exit(main())
