"""Ring 2 with tables that take topics: some seeds hold, meet what they are for, and run the same
again."""

from __future__ import annotations

from collections import Counter

import pytest

from magnetar.metrics import Metrics
from magnetar_sim.cluster_run import run_cluster
from tests.sim.mutants.mutant import Mutant, search
from tests.sim.mutants.tabled import TABLED

SEEDS = range(8)


def test_every_invariant_holds_and_runs_meet_what_they_are_for() -> None:
    metrics = Metrics()
    happened: Counter[str] = Counter()
    for seed in SEEDS:
        outcome = run_cluster(seed, metrics, kind="tabled")
        assert outcome.failure is None, f"seed {seed}: {outcome.failure}"
        happened.update(outcome.happened)
    for what in (
        "acknowledgements that were stored",
        "entries that were erased",
        "faults of the warehouse",
        "jobs that died",
        "jobs that had another one beside them",
        "jobs that slept",
        "ledgers that are in a table only",
        "readers of the warehouse that fell behind",
        "seeks",
        "small files that became one",
    ):
        assert happened[what], what
    assert happened["ledgers that are in a table"] > 5 * len(SEEDS)


def test_a_seed_runs_the_same_again() -> None:
    first, again = (run_cluster(3, tracing=True, kind="tabled") for _ in range(2))
    assert first.trace == again.trace
    assert first.digest == again.digest


@pytest.mark.parametrize("mutant", TABLED, ids=lambda each: each.name)
def test_a_bug_can_be_planted(mutant: Mutant) -> None:
    for _ in range(2):  # the second time: the first gave everything back
        with mutant.plant():
            pass


def test_a_planted_bug_is_found() -> None:
    assert search(TABLED[0]).seeds is not None
