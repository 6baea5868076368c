"""Ring 2 with queries that write by staged ledgers: some seeds hold, meet what they are for, and
run the same again. (Thousands of seeds, and the planted bugs: docs/simulation.md.)"""

from __future__ import annotations

from collections import Counter

import pytest

from magnetar.metrics import Metrics
from magnetar_sim.cluster_run import run_cluster
from tests.sim.mutants.mutant import Mutant
from tests.sim.mutants.staged import STAGED

SEEDS = range(28, 38)
"""One of them answers a commit with "already", which few do."""


def test_every_invariant_holds_and_runs_meet_what_they_are_for() -> None:
    metrics = Metrics()
    happened: Counter[str] = Counter()
    for seed in SEEDS:
        outcome = run_cluster(seed, metrics, staged=True)
        assert outcome.failure is None, f"seed {seed}: {outcome.failure}"
        happened.update(outcome.happened)
    for what in (
        "attempts that failed",
        "batches that were committed",
        "batches with staged ledgers",
        "brokers that served",
        "commits answered with committed",
        "commits answered with already",
        "drivers that died after its commit",
        "drivers that died before its commit",
        "drivers that lived on",
        "runs that were refused",
        "staged ledgers left over and deleted",
        "tasks with twins",
        "workers that were lost",
    ):
        assert happened[what] > 0, what


def test_a_seed_runs_the_same_again() -> None:
    first, again = (run_cluster(2, tracing=True, staged=True) for _ in range(2))
    assert first.trace == again.trace
    assert first.digest == again.digest


@pytest.mark.parametrize("mutant", STAGED, ids=lambda each: each.name)
def test_a_bug_can_be_planted(mutant: Mutant) -> None:
    for _ in range(2):  # the second time: the first gave everything back
        with mutant.plant():
            pass
