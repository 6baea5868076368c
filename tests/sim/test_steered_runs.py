"""Ring 2 with policies that send consumers to read-only brokers: some seeds hold, meet what they
are for, and run the same again."""

from __future__ import annotations

from collections import Counter

import pytest

from magnetar.metrics import Metrics
from magnetar_sim.cluster_run import run_cluster
from tests.sim.mutants.mutant import Mutant, search
from tests.sim.mutants.steered import STEERED

SEEDS = range(8)


def test_every_invariant_holds_and_runs_meet_what_they_are_for() -> None:
    metrics = Metrics()
    happened: Counter[str] = Counter()
    for seed in SEEDS:
        outcome = run_cluster(seed, metrics, kind="steered")
        assert outcome.failure is None, f"seed {seed}: {outcome.failure}"
        happened.update(outcome.happened)
    for what in (
        "acknowledgements that were stored",
        "bindings",
        "bindings that ended",
        "brokers that crashed",
        "entries that consumers were sent",
        "seeks",
    ):
        assert happened[what], what
    assert happened["consumers that were sent elsewhere"] > 10 * len(SEEDS)


def test_a_broker_that_hears_late_that_ledgers_are_gone_goes_on() -> None:
    """Paused past its session: it had acknowledged a part of what was trimmed meanwhile."""
    assert run_cluster(20261127900000, kind="steered").failure is None


def test_a_consumer_that_has_unsubscribed_waits_for_nothing() -> None:
    """The broker had ended it with its subscription, and the run waited for what it would get."""
    assert run_cluster(20261129730244, kind="steered").failure is None


def test_who_was_seated_before_the_others_went_may_know_of_refusals() -> None:
    """The run held that all had gone and everything was forgotten."""
    assert run_cluster(20261129776132, kind="steered").failure is None


def test_a_seed_runs_the_same_again() -> None:
    first, again = (run_cluster(3, tracing=True, kind="steered") for _ in range(2))
    assert first.trace == again.trace
    assert first.digest == again.digest


@pytest.mark.parametrize("mutant", STEERED, ids=lambda each: each.name)
def test_a_bug_can_be_planted(mutant: Mutant) -> None:
    for _ in range(2):  # the second time: the first gave everything back
        with mutant.plant():
            pass


def test_a_planted_bug_is_found() -> None:
    assert search(STEERED[0]).seeds is not None
