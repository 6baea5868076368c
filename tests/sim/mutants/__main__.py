"""``python -m tests.sim.mutants``: plant every known bug, one at a time; each must be found.

Prints each row of the table as it is done, with the command that repeats what was found, and
writes the table into docs/simulation.md between its marks. Ends with 1 when a bug was not found.
Rows begin at seed 0 and end with the first seed that finds the bug, so that a run can be repeated.

``--only NAME`` (a part of it) takes some rows and leaves the page as it is; with ``--seed`` it
prints the transcript of that seed with the bug in it.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path

import click

from tests.sim.mutants.abreast import ABREAST
from tests.sim.mutants.bookie_rules import BOOKIE_RULES
from tests.sim.mutants.bookies import BOOKIES
from tests.sim.mutants.clients import CLIENTS
from tests.sim.mutants.clocked import CLOCKED
from tests.sim.mutants.compactions import COMPACTIONS
from tests.sim.mutants.cursors import CURSORS
from tests.sim.mutants.deduplicated import DEDUPLICATED
from tests.sim.mutants.directories import DIRECTORIES
from tests.sim.mutants.dispatch import DISPATCH
from tests.sim.mutants.kafka import KAFKA
from tests.sim.mutants.kafka_groups import KAFKA_GROUPS
from tests.sim.mutants.keyed import KEYED
from tests.sim.mutants.led import LED
from tests.sim.mutants.logs import LOGS
from tests.sim.mutants.machines import MACHINES
from tests.sim.mutants.mutant import Found, Mutant, search, transcript
from tests.sim.mutants.owners import OWNERS
from tests.sim.mutants.partitions import PARTITIONS
from tests.sim.mutants.read_only import READ_ONLY
from tests.sim.mutants.recoveries import RECOVERIES
from tests.sim.mutants.repairs import REPAIRS
from tests.sim.mutants.replicas import REPLICAS
from tests.sim.mutants.staged import STAGED
from tests.sim.mutants.steered import STEERED
from tests.sim.mutants.tabled import TABLED
from tests.sim.mutants.topic_lives import TOPIC_LIVES
from tests.sim.mutants.upkeep import UPKEEP

PAGE = Path(__file__).parents[3] / "docs" / "simulation.md"
BEGIN, END = "<!-- mutants -->", "<!-- /mutants -->"
FAILURE_WIDTH = 140

MUTANTS: Sequence[Mutant] = (
    *MACHINES, *CLIENTS, *RECOVERIES, *BOOKIE_RULES, *BOOKIES, *LOGS, *UPKEEP, *DIRECTORIES,
    *DISPATCH, *CURSORS, *TOPIC_LIVES, *DEDUPLICATED, *OWNERS, *READ_ONLY, *STEERED, *STAGED,
    *REPAIRS, *PARTITIONS, *REPLICAS, *COMPACTIONS, *KEYED, *LED, *TABLED,
    *ABREAST, *CLOCKED, *KAFKA, *KAFKA_GROUPS,
)  # fmt: skip


def find(index: int) -> tuple[int, int | None, int, str]:
    """In a process of its own; mutants are named by their place, since closures do not travel."""
    try:
        found = search(MUTANTS[index])
    except Exception as error:  # noqa: BLE001 (the others are to be tried all the same)
        return index, None, -1, f"the search ended with {error!r}"
    return index, found.seeds, found.seed, found.failure


def find_all(indices: Iterable[int], processes: int) -> Iterator[Found]:
    """In the order in which they are done; ring 2 takes longer and begins."""
    first = sorted(indices, key=lambda index: -MUTANTS[index].ring)
    with ProcessPoolExecutor(processes) as pool:
        for done in as_completed([pool.submit(find, index) for index in first]):
            index, seeds, seed, failure = done.result()
            yield Found(MUTANTS[index], seeds, seed, failure)


def told(found: Found) -> str:
    mutant = found.mutant
    head = f"ring {mutant.ring}  {mutant.name}"
    if found.seeds is None:
        return f"{head}: NOT FOUND: {found.failure or f'not in {mutant.seeds_max} seeds'}"
    return (
        f"{head}: found after {found.seeds} seeds: {found.failure[:FAILURE_WIDTH]}\n"
        f'        make sim-mutants MUTANT="{mutant.name}" RING={mutant.ring} '
        f"SEED={found.seed}"
    )


def table(found: Mapping[Mutant, Found]) -> str:
    rows = ["| bug | known as | ring | seeds until found |", "|---|---|---|---|"]
    for mutant in MUTANTS:
        count = found[mutant].seeds
        seeds = f"not in {mutant.seeds_max}" if count is None else str(count)
        rows.append(f"| {mutant.name} | {mutant.known or '-'} | {mutant.ring} | {seeds} |")
    return "\n".join(rows)


def write_page(text: str) -> None:
    page = PAGE.read_text()
    before, after = page.index(BEGIN) + len(BEGIN), page.index(END)
    PAGE.write_text(f"{page[:before]}\n{text}\n{page[after:]}")


@click.command()
@click.option("--only", default="", help="Rows whose name has this in it.")
@click.option("--ring", type=click.IntRange(1, 2), default=None, help="Rows of this ring.")
@click.option("--seed", type=int, default=None, help="One seed, with its transcript.")
@click.option("--processes", default=os.cpu_count() or 2, help="Processes that share the rows.")
def main(only: str, ring: int | None, seed: int | None, processes: int) -> None:
    """Plant known bugs one at a time; each must be found."""
    indices = [
        index
        for index, mutant in enumerate(MUTANTS)
        if only in mutant.name and ring in (None, mutant.ring)
    ]
    if not indices:
        raise click.UsageError(f"no bug has {only!r} in its name")
    if seed is not None:
        sys.exit(_tell(MUTANTS[indices[0]], seed))
    began = time.perf_counter()
    found = {}
    for each in find_all(indices, processes):
        found[each.mutant] = each
        click.echo(told(each))
    missing = [mutant.name for mutant, each in found.items() if each.seeds is None]
    click.echo(
        f"{len(found) - len(missing)} of {len(found)} bugs found in "
        f"{time.perf_counter() - began:.0f} s with {processes} processes"
    )
    if len(found) == len(MUTANTS):
        write_page(table(found))
    sys.exit(1 if missing else 0)


def _tell(mutant: Mutant, seed: int) -> int:
    lines, failure = transcript(mutant, seed)
    for line in lines:
        click.echo(line)
    click.echo(f"ring {mutant.ring}, seed {seed}, planted: {mutant.name}: {failure or 'it held'}")
    return 0 if failure else 1


if __name__ == "__main__":
    main()
