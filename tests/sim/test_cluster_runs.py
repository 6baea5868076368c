"""Ring 2: whole roles hold every invariant under faults, the same seed gives the same run, and
planted bugs are found. ``make sim-mutants`` plants all that are known."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from click.testing import CliRunner

from magnetar.ledger.reading.reader import LedgerReader
from magnetar.ledger.tailing import TailingReader
from magnetar.metrics import Metrics
from magnetar.model.entry import Entry
from magnetar_sim import __main__ as command
from magnetar_sim.cluster_run import ClusterOutcome, run_cluster
from tests.sim.mutants.bookies import BOOKIES
from tests.sim.mutants.clients import CLIENTS
from tests.sim.mutants.mutant import Mutant, search
from tests.sim.mutants.recoveries import RECOVERIES

SEEDS = 20

FOUND_FROM = {
    "the ensemble is switched before the compare-and-set": 9,
    "a lost compare-and-set counts as won": 0,
    "rewrites lose the recovery flag": 0,
    "one negative stands for a run of entries": 1,
}
"""Bugs, and a seed at or shortly before one that finds it: when runs change, it takes longer."""


def test_every_invariant_holds() -> None:
    metrics = Metrics()
    outcomes = [run_cluster(seed, metrics) for seed in range(SEEDS)]
    failures = [f"seed {o.seed}: {o.failure}" for o in outcomes if o.failure is not None]
    assert not failures, failures[:3]
    assert sum(o.confirmed for o in outcomes) > 20 * SEEDS  # the runs are of some use
    assert all(o.virtual_s > 8 for o in outcomes)


def test_a_seed_repeats_its_run_whatever_the_hash_seed() -> None:
    """Nothing may follow from the order of a set, the address of an object or the real time."""
    code = (
        "from magnetar_sim.cluster_run import run_cluster\n"
        "for seed in (3, 11):\n"
        "    outcome = run_cluster(seed, tracing=True)\n"
        "    print(seed, outcome.steps, outcome.digest)\n"
    )
    told = []
    for hash_seed in ("0", "1", "77"):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        done = subprocess.run(
            [sys.executable, "-c", code], env=environment, capture_output=True, check=True
        )
        told.append(done.stdout)
    assert told[0]
    assert told[0] == told[1] == told[2]


def test_seeds_differ() -> None:
    assert run_cluster(1, tracing=True).digest != run_cluster(2, tracing=True).digest


def test_the_trace_reads_as_a_transcript() -> None:
    trace = run_cluster(1, tracing=True).trace
    assert "E=" in trace[1] or any("E=" in line for line in trace)
    assert any("writes ledger" in line for line in trace)
    assert any("all faults heal" in line for line in trace)
    times = [float(line.split()[0]) for line in trace]
    assert times == sorted(times)


@pytest.mark.parametrize(
    "mutant",
    [each for each in (*CLIENTS, *RECOVERIES) if each.name in FOUND_FROM],
    ids=lambda mutant: mutant.name,
)
def test_a_planted_bug_is_found(mutant: Mutant) -> None:
    assert search(mutant, FOUND_FROM[mutant.name]).seeds is not None


def test_a_damaged_last_commit_is_not_taken_for_a_torn_tail() -> None:
    """One byte of it changes, and of those that acknowledged an entry none says so in time."""
    bug = next(mutant for mutant in BOOKIES if mutant.known == "seed 10447")
    assert search(bug, first=335).seeds == 1
    assert run_cluster(335).failure is None


def test_acknowledgements_of_what_a_former_owner_never_had_are_not_confirmed_by_it() -> None:
    """One whose log opened late, and without its successor's ledger, called them stored."""
    assert run_cluster(20261203000779).failure is None


@pytest.mark.parametrize("who", ["t1/tail", "KeyError"])
def test_what_the_product_raises_fails_the_seed_whoever_called_it(
    who: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A follower, for which nobody waits; and the last look, for which the run does."""

    async def wrong(*_: object) -> list[Entry]:
        raise KeyError("a bug")

    monkeypatch.setattr(TailingReader if who == "t1/tail" else LedgerReader, "read", wrong)
    failure = run_cluster(5).failure or ""
    assert who in failure
    assert "a bug" in failure


def test_the_command_tells_a_failing_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(seed: int, _metrics: object, _tracing: bool, _kind: str) -> ClusterOutcome:
        return ClusterOutcome(seed, "entry 3 is lost", 1, 1, 1, 1.0, "", ("a line",))

    monkeypatch.setattr(command, "run_cluster", broken)
    told = CliRunner().invoke(command.main, ["--ring", "2", "--seed", "5"])
    assert told.exit_code == 1
    assert "a line" in told.output
    assert "repeat it with: make sim RING=2 SEED=5" in told.output
