"""``python -m magnetar_sim [--ring 1|2] [--seeds N | --seed n]``: many runs, or one, told whole."""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from datetime import UTC, date, datetime
from typing import NamedTuple

import click

from magnetar.metrics import Metrics
from magnetar_sim.cluster_run import run_cluster
from magnetar_sim.ledger_run import run

DAY_SEEDS = 1_000_000
CHUNK_SEEDS = {1: 1000, 2: 20}
SEEDS = {1: 2000, 2: 200}


class Told(NamedTuple):
    """How a run ended, for people."""

    seed: int
    failure: str | None
    summary: str
    trace: Sequence[str]


@click.command()
@click.option("--ring", type=click.IntRange(1, 2), default=1, show_default=True,
              help="1: the deciding machines; 2: whole roles.")  # fmt: skip
@click.option("--seeds", type=int, default=None, help="How many seeds, from --first on.")
@click.option("--first", type=int, default=None,
              help="The first seed. Without it: one that belongs to today (UTC).")  # fmt: skip
@click.option("--seed", type=int, default=None, help="One seed, with its transcript.")
@click.option("--processes", default=2, show_default=True, help="Processes that share the seeds.")
def main(ring: int, seeds: int | None, first: int | None, seed: int | None, processes: int) -> None:
    """Drive machines or whole roles through faults, and check what must always hold.

    Seeds of today, so that a range is not worn out: what is run again and again has been mended
    until it holds, and says little of what was never run. The first seed is printed.

    \b
    python -m magnetar_sim --seeds 10000             ten thousand runs of ring 1
    python -m magnetar_sim --ring 2 --seed 4711      the transcript of one run of ring 2
    """
    if seed is not None:
        sys.exit(_one(ring, seed))
    count = SEEDS[ring] if seeds is None else seeds
    if first is None:
        first = first_of(datetime.now(UTC).date())
    click.echo(f"ring {ring}: {count} seeds from {first} (again: --first {first})")
    sys.exit(_many(ring, range(first, first + count), processes))


def first_of(day: date) -> int:
    """The first of the day's seeds: 20261231000000 on the last of 2026."""
    return int(f"{day:%Y%m%d}") * DAY_SEEDS


def _one(ring: int, seed: int) -> int:
    told = _run(ring, seed, tracing=True)
    for line in told.trace:
        click.echo(line)
    click.echo(f"seed {seed}: {told.summary}")
    return _report(ring, told)


def _many(ring: int, seeds: range, processes: int) -> int:
    began = time.perf_counter()
    done = 0
    size = CHUNK_SEEDS[ring]
    chunks = [seeds[start : start + size] for start in range(0, len(seeds), size)]
    with ProcessPoolExecutor(max_workers=processes) as pool:
        for count, failed in pool.map(_run_chunk, [ring] * len(chunks), chunks):
            if failed is not None:
                pool.shutdown(wait=True, cancel_futures=True)
                return _report(ring, failed)
            done += count
            _tell_progress(done, len(seeds))
    seconds = time.perf_counter() - began
    click.echo(
        f"ring {ring}: {done} seeds from {seeds.start} held every invariant in {seconds:.0f} s; "
        f"{done / seconds:.1f} seeds/s with {processes} processes"
    )
    return 0


def _tell_progress(done: int, total: int) -> None:
    if sys.stderr.isatty():
        click.echo(f"\r{done} of {total} seeds", nl=done == total, err=True)


def _run_chunk(ring: int, seeds: range) -> tuple[int, Told | None]:
    """How many seeds held, and the first that did not. In a process of its own."""
    metrics = Metrics()
    gc.freeze()
    for count, told in enumerate(_runs(ring, seeds, metrics)):
        if told.failure is not None:
            return count, told
        if ring == 2:
            gc.collect()
    return len(seeds), None


def _runs(ring: int, seeds: range, metrics: Metrics) -> Iterator[Told]:
    for seed in seeds:
        yield _run(ring, seed, tracing=False, metrics=metrics)


def _run(ring: int, seed: int, tracing: bool, metrics: Metrics | None = None) -> Told:
    if ring == 2:
        whole = run_cluster(seed, metrics, tracing)
        summary = (
            f"{whole.steps} steps in {whole.virtual_s:.0f} s of virtual time, {whole.ledgers} "
            f"ledgers, {whole.confirmed} entries confirmed, trace {whole.digest[:16]}"
        )
        return Told(seed, whole.failure, summary, whole.trace)
    outcome = run(seed, tracing=tracing)
    summary = (
        f"{outcome.events} events, {outcome.confirmed} entries confirmed, "
        f"{outcome.recoveries} recoveries, {outcome.fragments} fragments"
    )
    return Told(seed, outcome.failure, summary, outcome.trace)


def _report(ring: int, told: Told) -> int:
    if told.failure is None:
        return 0
    click.echo(f"seed {told.seed} FAILED: {told.failure}", err=True)
    click.echo(f"repeat it with: make sim RING={ring} SEED={told.seed}", err=True)
    return 1


if __name__ == "__main__":
    main()
