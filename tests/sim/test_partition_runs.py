"""Ring 1: seeded runs of a partition's replicas hold every invariant, and planted bugs are
found."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from magnetar_sim.__main__ import main
from magnetar_sim.machines.partition_run import run_partition
from tests.sim.mutants.mutant import Mutant, search
from tests.sim.mutants.partitions import PARTITIONS

SEEDS = 150


def test_every_invariant_holds() -> None:
    outcomes = [run_partition(seed) for seed in range(SEEDS)]
    failures = [f"seed {o.seed}: {o.failure}" for o in outcomes if o.failure is not None]
    assert not failures, failures[:3]
    # The runs are of some use: batches committed and read, leaders elected, logs cut.
    assert sum(o.committed for o in outcomes) > 100 * SEEDS
    assert sum(o.elections for o in outcomes) > 2 * SEEDS
    assert sum(o.cuts for o in outcomes) > SEEDS / 3
    assert sum(o.consumed for o in outcomes) > 100 * SEEDS
    # Acknowledged at acks=1, and in part lost with a leader.
    assert sum(o.alone for o in outcomes) > 20 * SEEDS
    assert sum(o.lost_alone for o in outcomes) > SEEDS
    assert sum(o.whole for o in outcomes) > SEEDS


def test_a_new_disk_is_filled_before_the_end_of_the_run() -> None:
    """It was slow, the log long, and the run was over before its replica was in sync."""
    assert run_partition(20261127900234).failure is None


def test_a_topic_is_not_opened_anew_under_the_last_value() -> None:
    """Whoever waited for it was sent to look for the leader, and sent nothing more."""
    assert run_partition(20261129702811).failure is None


def test_a_broker_that_is_slow_twice_is_not_slow_for_ever() -> None:
    """The end of the second time brought back what the first had made of it: a run never healed."""
    assert run_partition(20261129703049).failure is None


def test_a_seed_repeats_its_run_exactly() -> None:
    for seed in range(5):
        assert run_partition(seed, tracing=True) == run_partition(seed, tracing=True)
    assert run_partition(1, tracing=True).trace != run_partition(2, tracing=True).trace


@pytest.mark.parametrize("mutant", PARTITIONS, ids=lambda each: each.name)
def test_a_planted_bug_is_found(mutant: Mutant) -> None:
    assert search(mutant).seeds is not None


def test_the_command_runs_them() -> None:
    many = CliRunner().invoke(
        main, ["--kind", "partition", "--first", "0", "--seeds", "3", "--processes", "1"]
    )
    assert many.exit_code == 0, many.output
    assert "ring 1, partition: 3 seeds from 0 held every invariant" in many.output
    one = CliRunner().invoke(main, ["--kind", "partition", "--seed", "7"])
    assert one.exit_code == 0
    assert "leads epoch 1" in one.output
    other = CliRunner().invoke(main, ["--ring", "2", "--kind", "partition", "--seed", "7"])
    assert other.exit_code == 2
