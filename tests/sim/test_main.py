"""The simulator's command: which seeds it runs."""

from __future__ import annotations

import gc
from datetime import date

from click.testing import CliRunner

from magnetar_sim.__main__ import KINDS, first_of, main, run_chunk
from tests.sim.mutants.machines import MACHINES


def test_every_day_has_seeds_of_its_own() -> None:
    assert first_of(date(2026, 12, 31)) == 20_261_231_000_000
    assert first_of(date(2027, 1, 1)) - first_of(date(2026, 12, 31)) >= 1_000_000


def test_the_first_seed_is_printed_so_that_a_run_can_be_repeated() -> None:
    today = CliRunner().invoke(main, ["--seeds", "1", "--processes", "1"])
    assert today.exit_code == 0
    first = int(today.output.split("--first ")[1].split(")")[0])
    again = CliRunner().invoke(main, ["--seeds", "1", "--processes", "1", "--first", str(first)])
    assert f"1 seeds from {first} held every invariant" in again.output


def test_runs_of_ring_2_have_some_of_every_kind_beside_them() -> None:
    arguments = ["--ring", "2", "--seeds", "1", "--processes", "1", "--first", "5"]
    found = CliRunner().invoke(main, arguments)
    assert found.exit_code == 0, found.output
    for kind in ("plain", *KINDS):
        assert f"ring 2, {kind}: 1 seeds from 5 held every invariant" in found.output
    one = CliRunner().invoke(main, [*arguments, "--kind", "steered"])
    assert one.exit_code == 0
    assert "ring 2: 1 runs" in one.output


def test_behind_a_seed_that_fails_nothing_is_run_unless_asked_for() -> None:
    chunk = "plain", range(1, 101)
    try:
        with MACHINES[0].plant():
            (first,) = run_chunk(1, False, chunk)
            every = run_chunk(1, True, chunk)
    finally:
        gc.unfreeze()
    assert first == every[0]
    assert len({each.seed for each in every}) == len(every) > 1
    assert all(each.failure for each in every)
