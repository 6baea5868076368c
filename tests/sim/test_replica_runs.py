"""Ring 2 with brokers that replicate partitions: some seeds hold, do what they are for, and run the
same again."""

from __future__ import annotations

import pytest

from magnetar_sim.cluster_run import run_cluster
from tests.sim.mutants.mutant import Mutant, search
from tests.sim.mutants.replicas import REPLICAS

SEEDS = range(5)


def test_every_invariant_holds_and_leaders_change() -> None:
    confirmed = elections = 0
    for seed in SEEDS:
        outcome = run_cluster(seed, kind="replicated")
        assert outcome.failure is None, f"seed {seed}: {outcome.failure}"
        confirmed += outcome.confirmed
        elections += outcome.ledgers
    assert confirmed > 50 * len(SEEDS)
    assert elections > 2 * len(SEEDS)


def test_a_seed_runs_the_same_again() -> None:
    first, again = (run_cluster(2, tracing=True, kind="replicated") for _ in range(2))
    assert first.trace == again.trace


def test_disks_that_take_nothing_more_and_syncs_that_fail() -> None:
    """Seed 20 lost what was acknowledged: a log counted what a failed sync had left."""
    for seed, met in ((15, "takes nothing any more"), (20, "syncs on the disk")):
        outcome = run_cluster(seed, tracing=True, kind="replicated")
        assert outcome.failure is None, f"seed {seed}: {outcome.failure}"
        assert any(met in line for line in outcome.trace), f"seed {seed} does not meet it"


FOUND_FROM = {
    "a follower's log counts before it is synced": 0,
    "a replica whose log has failed counts as before": 235,
    "a follower waits for what its leader has deleted": 39,
    "a leader is not told that its log begins later": 39,
}
"""Where the search for each begins; the first runs that find it take too long in a unit test."""


@pytest.mark.parametrize(
    "mutant", [each for each in REPLICAS if each.name in FOUND_FROM], ids=lambda mutant: mutant.name
)
def test_a_planted_bug_is_found(mutant: Mutant) -> None:
    assert search(mutant, FOUND_FROM[mutant.name]).seeds is not None
