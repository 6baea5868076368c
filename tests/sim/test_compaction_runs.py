"""Ring 2 with a log that is compacted by key: every invariant holds, also while owners change."""

from __future__ import annotations

from collections import Counter

from magnetar.metrics import Metrics
from magnetar_sim.cluster_run import run_cluster

SEEDS = range(2)


def test_every_invariant_holds_while_a_log_is_compacted() -> None:
    metrics, happened = Metrics(), Counter[str]()
    for seed in SEEDS:
        outcome = run_cluster(seed, metrics, kind="compacted")
        assert outcome.failure is None, f"seed {seed}: {outcome.failure}"
        happened.update(outcome.happened)
    assert happened["compactions by the owner"] >= 5
    assert happened["compactions by jobs that were taken over"] >= 2
    assert happened["readings of the compacted view"] >= 20
