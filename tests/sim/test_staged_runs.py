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
        outcome = run_cluster(seed, metrics, kind="staged")
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


@pytest.mark.parametrize(
    ("seed", "why"),
    [
        (1310089, "a topic that came to a broker took in a later batch first"),
        (1320122, "a release did not wait for topics that ended with the broker"),
        (1320454, "a bundle was cut after the session of an owner that did not know yet"),
    ],
)
def test_a_seed_that_broke_once_holds(seed: int, why: str) -> None:
    outcome = run_cluster(seed, kind="staged")
    assert outcome.failure is None, f"{why}: {outcome.failure}"


def test_who_is_behind_loses_topics_in_the_middle_of_batches() -> None:
    """A topic that comes to the other owner then must not take in a later batch first."""
    seed = 96
    outcome = run_cluster(seed, kind="staged")
    assert outcome.failure is None, outcome.failure
    (late,) = (each for each in STAGED if each.name.endswith("takes in a later batch first"))
    with late.plant():
        assert "is not there" in (run_cluster(seed, kind="staged").failure or "")


def test_a_seed_runs_the_same_again() -> None:
    first, again = (run_cluster(2, tracing=True, kind="staged") for _ in range(2))
    assert first.trace == again.trace
    assert first.digest == again.digest


@pytest.mark.parametrize("mutant", STAGED, ids=lambda each: each.name)
def test_a_bug_can_be_planted(mutant: Mutant) -> None:
    for _ in range(2):  # the second time: the first gave everything back
        with mutant.plant():
            pass
