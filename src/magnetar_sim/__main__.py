"""``python -m magnetar_sim [--ring 1|2] [--kind K] [--seeds N | --seed n]``: many runs, or one,
told whole."""

from __future__ import annotations

import gc
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from datetime import UTC, date, datetime
from functools import partial
from typing import Final, NamedTuple

import click

from magnetar.metrics import Metrics
from magnetar_sim.cluster_run import KINDS, PLAIN, run_cluster
from magnetar_sim.machines.ledger_run import run
from magnetar_sim.machines.partition_run import run_partition

DAY_SEEDS = 1_000_000
CHUNK_SEEDS = {1: 1000, 2: 20}
SEEDS = {1: 2000, 2: 200}
PARTITION: Final = "partition"
"""Of ring 1: the machines of partitions, and not those of ledgers."""
KIND_SHARE: Final = 10
"""Without a kind one run of each for so many plain ones, beside them."""


class SeedReport(NamedTuple):
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
@click.option("--kind", type=click.Choice((PLAIN, PARTITION, *KINDS)), default=None,
              help="Without it plain ones, and some of every other kind of the ring.")  # fmt: skip
@click.option("--processes", default=2, show_default=True, help="Processes that share the seeds.")
@click.option("--keep-going", is_flag=True, help="Run all seeds, and tell of each that fails.")
def main(
    ring: int,
    seeds: int | None,
    first: int | None,
    seed: int | None,
    kind: str | None,
    processes: int,
    keep_going: bool,
) -> None:
    """Drive machines or whole roles through faults, and check what must always hold.

    Seeds of today, so that a range is not worn out: what is run again and again has been mended
    until it holds, and says little of what was never run. The first seed is printed.

    \b
    python -m magnetar_sim --seeds 10000             ten thousand runs of ring 1
    python -m magnetar_sim --kind partition          replicas of partitions, ring 1
    python -m magnetar_sim --ring 2 --seed 4711      the transcript of one run of ring 2
    python -m magnetar_sim --ring 2 --kind steered   some with read-only brokers, by policy
    """
    if kind not in (None, PLAIN, *_kinds(ring)):
        raise click.UsageError(f"ring {ring} has no kind {kind!r}")
    if seed is not None:
        sys.exit(_one(ring, kind or PLAIN, seed))
    count = SEEDS[ring] if seeds is None else seeds
    if first is None:
        first = first_of(datetime.now(UTC).date())
    click.echo(f"ring {ring}: {count} seeds from {first} (again: --first {first})")
    jobs = {kind or PLAIN: range(first, first + count)}
    if kind is None:
        share = range(first, first + -(-count // KIND_SHARE))
        jobs |= dict.fromkeys(_kinds(ring), share)
    sys.exit(_many(ring, jobs, processes, keep_going))


def _kinds(ring: int) -> tuple[str, ...]:
    """That a ring has beside plain runs."""
    return tuple(KINDS) if ring == 2 else (PARTITION,)


def first_of(day: date) -> int:
    """The first of the day's seeds: 20261231000000 on the last of 2026."""
    return int(f"{day:%Y%m%d}") * DAY_SEEDS


def _one(ring: int, kind: str, seed: int) -> int:
    told = _run(ring, kind, seed, tracing=True)
    for line in told.trace:
        click.echo(line)
    click.echo(f"seed {seed}: {told.summary}")
    return _report(ring, kind, told)


def _many(ring: int, jobs: Mapping[str, range], processes: int, keep_going: bool) -> int:
    """``jobs``: which seeds of each kind."""
    began = time.perf_counter()
    done = 0
    failed: Counter[str] = Counter()
    size = CHUNK_SEEDS[ring]
    chunks = [
        (kind, seeds[start : start + size])
        for kind, seeds in jobs.items()
        for start in range(0, len(seeds), size)
    ]
    total = sum(map(len, jobs.values()))
    with ProcessPoolExecutor(max_workers=processes) as pool:
        found = pool.map(partial(run_chunk, ring, keep_going), chunks)
        for failures, (kind, seeds) in zip(found, chunks, strict=True):
            for each in failures:
                _report(ring, kind, each)
            if failures and not keep_going:
                pool.shutdown(wait=True, cancel_futures=True)
                return 1
            failed[kind] += len(failures)
            done += len(seeds)
            _tell_progress(done, total)
    seconds = time.perf_counter() - began
    for kind, seeds in jobs.items():
        how = f"{failed[kind]} FAILED" if failed[kind] else "held every invariant"
        click.echo(f"ring {ring}, {kind}: {len(seeds)} seeds from {seeds.start} {how}")
    click.echo(
        f"ring {ring}: {done} runs in {seconds:.0f} s; {done / seconds:.1f} seeds/s with "
        f"{processes} processes"
    )
    return 1 if failed.total() else 0


def _tell_progress(done: int, total: int) -> None:
    if sys.stderr.isatty():
        click.echo(f"\r{done} of {total} seeds", nl=done == total, err=True)


def run_chunk(ring: int, keep_going: bool, chunk: tuple[str, range]) -> list[SeedReport]:
    """The seeds that did not hold; of which the first ends it, if not ``keep_going``. In a process
    of its own."""
    metrics = Metrics()
    kind, seeds = chunk
    failures = []
    gc.freeze()
    for told in _runs(ring, kind, seeds, metrics):
        if told.failure is not None:
            failures.append(told)
            if not keep_going:
                break
        if ring == 2:
            gc.collect()
    return failures


def _runs(ring: int, kind: str, seeds: range, metrics: Metrics) -> Iterator[SeedReport]:
    for seed in seeds:
        yield _run(ring, kind, seed, tracing=False, metrics=metrics)


def _run(
    ring: int, kind: str, seed: int, tracing: bool, metrics: Metrics | None = None
) -> SeedReport:
    if ring == 2:
        whole = run_cluster(seed, metrics, tracing, kind)
        summary = (
            f"{whole.steps} steps in {whole.virtual_s:.0f} s of virtual time, {whole.ledgers} "
            f"ledgers, {whole.confirmed} entries confirmed, trace {whole.digest[:16]}"
        )
        return SeedReport(seed, whole.failure, summary, whole.trace)
    if kind == PARTITION:
        found = run_partition(seed, tracing)
        told = (
            f"{found.events} events, {found.elections} elections, {found.committed} batches "
            f"committed, {found.cuts} logs cut"
        )
        return SeedReport(seed, found.failure, told, found.trace)
    outcome = run(seed, tracing=tracing)
    summary = (
        f"{outcome.events} events, {outcome.confirmed} entries confirmed, "
        f"{outcome.recoveries} recoveries, {outcome.fragments} fragments"
    )
    return SeedReport(seed, outcome.failure, summary, outcome.trace)


def _report(ring: int, kind: str, told: SeedReport) -> int:
    if told.failure is None:
        return 0
    click.echo(f"seed {told.seed} FAILED: {told.failure}", err=True)
    of = "" if kind == PLAIN else f" KIND={kind}"
    click.echo(f"repeat it with: make sim RING={ring}{of} SEED={told.seed}", err=True)
    return 1


if __name__ == "__main__":
    main()
