"""Ring 2 with Key_Shared subscriptions: some seeds hold, meet what they are for, and run the same
again."""

from __future__ import annotations

from collections import Counter

import pytest

from magnetar.metrics import Metrics
from magnetar_sim.cluster_run import run_cluster
from tests.sim.mutants.keyed import KEYED
from tests.sim.mutants.mutant import Mutant, search

SEEDS = range(8)


def test_every_invariant_holds_and_runs_meet_what_they_are_for() -> None:
    metrics = Metrics()
    happened: Counter[str] = Counter()
    for seed in SEEDS:
        outcome = run_cluster(seed, metrics, kind="keyed")
        assert outcome.failure is None, f"seed {seed}: {outcome.failure}"
        happened.update(outcome.happened)
    for what in (
        "acknowledgements that were stored",
        "brokers that crashed",
        "delayed entries that shared consumers were sent",
        "seeks",
    ):
        assert happened[what], what
    assert happened["entries that were sent by key"] > 100 * len(SEEDS)


def test_a_reader_may_begin_anew_whose_connection_ended_as_it_came_back() -> None:
    """The run held it to where it had sought."""
    assert run_cluster(20261129781028, kind="keyed").failure is None


def test_a_seed_runs_the_same_again() -> None:
    first, again = (run_cluster(3, tracing=True, kind="keyed") for _ in range(2))
    assert first.trace == again.trace
    assert first.digest == again.digest


@pytest.mark.parametrize("mutant", KEYED, ids=lambda each: each.name)
def test_a_bug_can_be_planted(mutant: Mutant) -> None:
    for _ in range(2):  # the second time: the first gave everything back
        with mutant.plant():
            pass


def test_a_planted_bug_is_found() -> None:
    assert search(KEYED[0]).seeds is not None
