"""``python -m magnetar.sim [--seeds N | --seed n]``: many runs, or one with its transcript."""

from __future__ import annotations

import sys
import time

import click

from magnetar.sim.ledger_run import Outcome, run


@click.command()
@click.option("--seeds", default=2000, show_default=True, help="How many seeds, from --first on.")
@click.option("--first", default=0, show_default=True, help="The first seed.")
@click.option("--seed", type=int, default=None, help="One seed, with its transcript.")
def main(seeds: int, first: int, seed: int | None) -> None:
    """Drive the ledger's deciding machines through faults, and check what must always hold.

    \b
    python -m magnetar.sim --seeds 10000     ten thousand runs
    python -m magnetar.sim --seed 4711       the transcript of one
    """
    if seed is not None:
        sys.exit(_one(seed))
    sys.exit(_many(range(first, first + seeds)))


def _one(seed: int) -> int:
    outcome = run(seed, tracing=True)
    for line in outcome.trace:
        click.echo(line)
    click.echo(
        f"seed {seed}: {outcome.events} events, {outcome.confirmed} entries confirmed, "
        f"{outcome.recoveries} recoveries, {outcome.fragments} fragments"
    )
    return _report(outcome)


def _many(seeds: range) -> int:
    began = time.perf_counter()
    outcomes = []
    for seed in seeds:
        outcome = run(seed)
        outcomes.append(outcome)
        if outcome.failure is not None:
            return _report(outcome)
    seconds = time.perf_counter() - began
    events = sum(outcome.events for outcome in outcomes)
    click.echo(
        f"{len(outcomes)} seeds from {seeds.start} held every invariant: {events} events, "
        f"{sum(outcome.confirmed for outcome in outcomes)} entries confirmed, "
        f"{sum(outcome.recoveries for outcome in outcomes)} recoveries, "
        f"{sum(outcome.fragments - 1 for outcome in outcomes)} ensemble changes kept; "
        f"{len(outcomes) / seconds:.0f} seeds/s, {events / seconds:.0f} events/s"
    )
    return 0


def _report(outcome: Outcome) -> int:
    if outcome.failure is None:
        return 0
    click.echo(f"seed {outcome.seed} FAILED: {outcome.failure}", err=True)
    click.echo(f"repeat it with: make sim SEED={outcome.seed}", err=True)
    return 1


if __name__ == "__main__":
    main()
