"""Ring 2 with brokers: whole brokers and clients that speak Pulsar's protocol to them hold every
invariant under faults, the same seed gives the same run, and planted bugs are found."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter

import pytest

from magnetar.metrics import Metrics
from magnetar.topics.consuming.feed import EntryFeed
from magnetar_sim.brokers.broker_run import has_brokers
from magnetar_sim.cluster_run import run_cluster
from tests.sim.mutants.cursors import CURSORS
from tests.sim.mutants.deduplicated import DEDUPLICATED
from tests.sim.mutants.dispatch import DISPATCH
from tests.sim.mutants.mutant import Mutant, search
from tests.sim.mutants.topic_lives import TOPIC_LIVES

SEEDS = 12

FOUND_FROM = {
    "receipts leave in the wrong order": 4,
    "an entry is skipped after a read from bookies": 4,
    "refusals are not counted": 4,
    "acknowledgements from before a seek outlive it": 37,
    "a part of a batch acknowledges all of it": 4,
    "a topic that is deleted is only closed": 8,
    "chunks of a message go to consumers in turn": 21,
    "a delayed entry is sent a moment early": 4,
    "a snapshot of ids is not read": 10,
    "a repeat is answered out of turn": 10,
    "a repeat of the last message is new": 10,
}
"""Bugs, and a seed at or shortly before one that finds it: when runs change, it takes longer."""


def seeds_with_brokers(count: int, first: int = 0) -> list[int]:
    found: list[int] = []
    seed = first
    while len(found) < count:
        if has_brokers(seed):
            found.append(seed)
        seed += 1
    return found


def test_every_invariant_holds_and_runs_meet_what_they_are_for() -> None:
    metrics = Metrics()
    happened: Counter[str] = Counter()
    for seed in seeds_with_brokers(SEEDS):
        outcome = run_cluster(seed, metrics)
        assert outcome.failure is None, f"seed {seed}"
        assert outcome.confirmed > 0, f"seed {seed}"
        happened.update(outcome.happened)
    for what in (
        "brokers that served",
        "brokers that crashed",
        "receipts",
        "entries that consumers were sent",
        "acknowledgements that were stored",
        "seeks",
        "quiet times that unloaded topics",
        "topics that were deleted",
        "chunks that shared consumers were sent",
        "entries that followers read",
        "delayed entries that shared consumers were sent",
        "times to live that were set and removed",
        "times that what was answered was sent again",
        "repeats that are not stored again",
    ):
        assert happened[what], what
    assert happened["brokers that served"] > SEEDS  # some took over from others


def test_a_broker_is_held_to_the_acknowledgements_that_it_knows() -> None:
    """A crash lost one that had no receipt, so the entry was out again at the next broker; a part
    of it was acknowledged there, and the rest refused."""
    assert run_cluster(861201).failure is None


def test_a_command_may_acknowledge_parts_of_an_entry_twice() -> None:
    """The entry was sent again before its consumer had looked at it."""
    assert run_cluster(850701).failure is None


def test_who_asks_a_broker_that_ends_meanwhile_is_told() -> None:
    """The broker ended while it took a bundle, and whoever waited for that was cancelled too."""
    assert run_cluster(20261129001882).failure is None


def test_what_arrives_while_expired_messages_are_looked_for_is_delivered() -> None:
    """The search gave the log's end as it was when it had ended: what came meanwhile expired."""
    assert run_cluster(20261129771181).failure is None


def test_a_seed_repeats_its_run_whatever_the_hash_seed() -> None:
    code = (
        "from magnetar_sim.cluster_run import run_cluster\n"
        f"for seed in {seeds_with_brokers(2)}:\n"
        "    outcome = run_cluster(seed, tracing=True)\n"
        "    print(seed, outcome.steps, outcome.digest)\n"
    )
    told = []
    for hash_seed in ("0", "77"):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        done = subprocess.run(
            [sys.executable, "-c", code], env=environment, capture_output=True, check=True
        )
        told.append(done.stdout)
    assert told[0]
    assert told[0] == told[1]


def test_what_a_broker_raises_fails_the_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever called it: here a read that nobody waits for."""

    async def wrong(*_: object) -> None:
        raise KeyError("a bug")

    monkeypatch.setattr(EntryFeed, "_read_new", wrong)
    failures = [run_cluster(seed).failure or "" for seed in seeds_with_brokers(5)]
    assert any("a bug" in failure for failure in failures)


@pytest.mark.parametrize(
    "mutant",
    [
        each
        for each in (*DISPATCH, *CURSORS, *TOPIC_LIVES, *DEDUPLICATED)
        if each.name in FOUND_FROM
    ],
    ids=lambda mutant: mutant.name,
)
def test_a_planted_bug_is_found(mutant: Mutant) -> None:
    assert search(mutant, FOUND_FROM[mutant.name]).seeds is not None
