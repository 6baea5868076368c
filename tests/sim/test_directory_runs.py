"""Ring 2 with bookies of several directories: what such runs are to meet really happens."""

from __future__ import annotations

import random
from collections import Counter

from magnetar.metrics import Metrics
from magnetar_sim.brokers.broker_run import has_brokers
from magnetar_sim.cluster.shapes import SHARE, draw_shape
from magnetar_sim.cluster_run import run_cluster

MET = (
    "runs with 2 ledger directories", "runs with 2 journals", "a directory fails writes",
    "a directory fails reads", "a directory is full", "a directory is slow",
    "flushes of one directory that failed", "ledgers looked up again", "orderly closes",
    "orderly closes in trouble", "directories that failed in a burst of adds",
    "forces that were granted", "forces that were refused for want of room",
    "reads of sectors that are unreadable", "entries beside unreadable sectors, looked at",
)  # fmt: skip


def test_everything_happens_and_every_invariant_holds() -> None:
    metrics, met = Metrics(), Counter[str]()
    shaped = (s for s in range(130) if random.Random(f"{s}/shape").random() < SHARE)
    seeds = [s for s in shaped if not has_brokers(s)]
    for seed in seeds:
        outcome = run_cluster(seed, metrics)
        assert outcome.failure is None, f"seed {seed}"
        met.update(outcome.happened)
    assert [what for what in MET if not met[what]] == []


def test_a_shape_follows_from_its_seed() -> None:
    for seed in range(20):
        first, again = (draw_shape(random.Random(seed), 4, 0.5, 7.0) for _ in range(2))
        assert first == again
