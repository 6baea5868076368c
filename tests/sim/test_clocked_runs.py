"""Ring 2 with brokers whose clocks are set: some seeds hold, meet what they are for, and run the
same again."""

from __future__ import annotations

from collections import Counter

import pytest

from magnetar.metrics import Metrics
from magnetar_sim.cluster_run import run_cluster
from tests.sim.mutants.clocked import CLOCKED
from tests.sim.mutants.mutant import Mutant

SEEDS = range(8)


def test_every_invariant_holds_and_runs_meet_what_they_are_for() -> None:
    metrics = Metrics()
    happened: Counter[str] = Counter()
    for seed in SEEDS:
        outcome = run_cluster(seed, metrics, kind="clocked")
        assert outcome.failure is None, f"seed {seed}: {outcome.failure}"
        happened.update(outcome.happened)
    assert happened["clocks that were set"] > len(SEEDS)
    assert happened["delayed entries that shared consumers were sent"]


def test_a_seed_runs_the_same_again() -> None:
    first, again = (run_cluster(3, tracing=True, kind="clocked") for _ in range(2))
    assert first.trace == again.trace
    assert first.digest == again.digest


@pytest.mark.parametrize("mutant", CLOCKED, ids=lambda each: each.name)
def test_a_bug_can_be_planted(mutant: Mutant) -> None:
    for _ in range(2):  # the second time: the first gave everything back
        with mutant.plant():
            pass
