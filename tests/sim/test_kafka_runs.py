"""Ring 2 with Kafka's clients: some seeds hold, meet what they are for, and run the same again."""

from __future__ import annotations

from collections import Counter

import pytest

from magnetar.metrics import Metrics
from magnetar_sim.cluster_run import run_cluster
from tests.sim.mutants.kafka import KAFKA
from tests.sim.mutants.kafka_groups import KAFKA_GROUPS
from tests.sim.mutants.mutant import Mutant, search

SEEDS = (*range(10), 59, 148)
"""The last two are of acknowledgements that come too late, which are rare."""


def test_every_invariant_holds_and_runs_meet_what_they_are_for() -> None:
    metrics = Metrics()
    happened: Counter[str] = Counter()
    for seed in SEEDS:
        outcome = run_cluster(seed, metrics, kind="kafka")
        assert outcome.failure is None, f"seed {seed}: {outcome.failure}"
        happened.update(outcome.happened)
    for what in (
        "acknowledgements of share groups that come too late",
        "assignments by coordinators",
        "assignments in share groups",
        "assignments of group members",
        "batches that are sent again",
        "brokers that crashed",
        "epochs that producers of transactions took",
        "epochs that producers took themselves",
        "fenced producers",
        "offsets that were committed",
        "members that were put out",
        "producers that others replaced",
        "records that share groups have settled",
        "records that share groups were given again",
        "static members that were replaced",
        "transactions that timed out",
        "transactions that were aborted",
        "transactions that were committed",
    ):
        assert happened[what], what
    assert happened["batches that were acknowledged"] > 50 * len(SEEDS)


def test_a_seed_runs_the_same_again() -> None:
    first, again = (run_cluster(6, tracing=True, kind="kafka") for _ in range(2))
    assert first.trace == again.trace
    assert first.digest == again.digest


@pytest.mark.parametrize("mutant", [*KAFKA, *KAFKA_GROUPS], ids=lambda each: each.name)
def test_a_bug_can_be_planted(mutant: Mutant) -> None:
    for _ in range(2):  # the second time: the first gave everything back
        with mutant.plant():
            pass


def test_a_planted_bug_is_found() -> None:
    assert search(KAFKA[0]).seeds is not None
