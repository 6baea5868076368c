"""Ring 2 with collectors and compaction at work: every invariant holds, and bugs are found."""

from __future__ import annotations

import random

import pytest

from magnetar.metrics import Metrics
from magnetar_sim.brokers.broker_run import has_brokers
from magnetar_sim.cluster.upkeep_workload import SHARE
from magnetar_sim.cluster_run import run_cluster
from tests.sim.mutants.mutant import Mutant, search
from tests.sim.mutants.upkeep import UPKEEP

SEEDS = 8
FOUND_FROM = {
    "the mark goes back": 11,
    "the store is listed before the bookie": 64,
    "a deletion is not replayed": 15,
}
"""Bugs, and a seed at or shortly before one that finds it: when runs change, it takes longer."""


def seeds_with_upkeep(count: int) -> list[int]:
    found: list[int] = []
    seed = 0
    while len(found) < count:
        if random.Random(f"{seed}/upkeep").random() < SHARE and not has_brokers(seed):
            found.append(seed)
        seed += 1
    return found


def test_every_invariant_holds() -> None:
    metrics = Metrics()
    outcomes = [run_cluster(seed, metrics) for seed in seeds_with_upkeep(SEEDS)]
    failures = [f"seed {o.seed}: {o.failure}" for o in outcomes if o.failure is not None]
    assert not failures, failures[:3]


@pytest.mark.parametrize(
    ("seed", "what"),
    [
        (15, "a compacted log was kept while no add came"),
        (32, "a small log was compacted for ever"),
        (91, "a small log was compacted for ever"),
        (143, "records of a flush that was cut short counted as live for good"),
        (98, "a compacted log was kept while no add came"),
        (921, "rows of a flush that was cut short stayed in the index for good"),
        (700085, "a log that could not be read for two seconds was kept for good"),
        (700495, "a bookie was held to entries that nobody had been told of"),
        (700868, "a bookie was held to entries that nobody had been told of"),
        (800398, "a journal of one page, and that unreadable, kept its bookie from starting"),
        (804310, "an owner of the past was ended by what the next one had stored"),
        (1201, "a slow compaction of large logs was not waited for"),
        (20261125000074, "a deleted ledger that was repaired was held against its bookie"),
        (20261129773719, "a bookie that had stood was held to a look-up that it gave up"),
    ],
)
def test_what_once_broke_holds(seed: int, what: str) -> None:
    assert run_cluster(seed).failure is None, what


def test_bookies_do_remove_and_compact_logs() -> None:
    outcomes = [run_cluster(seed, tracing=True) for seed in seeds_with_upkeep(8)]
    lines = [line for outcome in outcomes for line in outcome.trace]
    for what in ("deleted ledgers forgotten", "entry logs removed", "entry logs compacted"):
        assert sum(what in line for line in lines) > 3, what


@pytest.mark.parametrize(
    "mutant", [each for each in UPKEEP if each.name in FOUND_FROM], ids=lambda mutant: mutant.name
)
def test_a_planted_bug_is_found(mutant: Mutant) -> None:
    assert search(mutant, FOUND_FROM[mutant.name]).seeds is not None
