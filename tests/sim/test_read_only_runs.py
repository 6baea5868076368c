"""Ring 2 with read-only brokers: some seeds hold, meet what they are for, and run the same again.
(Thousands of seeds, and the planted bugs: docs/simulation.md.)"""

from __future__ import annotations

from collections import Counter

import pytest

from magnetar.metrics import Metrics
from magnetar_sim.cluster_run import run_cluster
from tests.sim.mutants.mutant import Mutant, search
from tests.sim.mutants.read_only import READ_ONLY

SEEDS = range(10)

FOUND_FROM = {
    "two brokers dispatch a subscription": 5,
    "a lent cursor begins before its log is seen": 7,
    "a delta is answered before it is stored": 2,
}
"""Bugs, and a seed at or shortly before one that finds it: when runs change, it takes longer."""


def test_every_invariant_holds_and_runs_meet_what_they_are_for() -> None:
    metrics = Metrics()
    happened: Counter[str] = Counter()
    for seed in SEEDS:
        outcome = run_cluster(seed, metrics, kind="read_only")
        assert outcome.failure is None, f"seed {seed}: {outcome.failure}"
        happened.update(outcome.happened)
    for what in (
        "acknowledgements that were stored",
        "bindings",
        "bindings that ended",
        "brokers that crashed",
        "brokers that served",
        "connections to owners that broke",
        "entries that consumers were sent",
        "seeks",
    ):
        assert happened[what], what
    assert happened["bindings"] > 2 * len(SEEDS)


def test_a_seed_runs_the_same_again() -> None:
    first, again = (run_cluster(3, tracing=True, kind="read_only") for _ in range(2))
    assert first.trace == again.trace
    assert first.digest == again.digest


@pytest.mark.parametrize(
    "mutant",
    [each for each in READ_ONLY if each.name in FOUND_FROM],
    ids=lambda each: each.name,
)
def test_a_planted_bug_is_found(mutant: Mutant) -> None:
    assert search(mutant, FOUND_FROM[mutant.name]).seeds is not None


@pytest.mark.parametrize("mutant", READ_ONLY, ids=lambda each: each.name)
def test_a_bug_can_be_planted(mutant: Mutant) -> None:
    for _ in range(2):  # the second time: the first gave everything back
        with mutant.plant():
            pass
