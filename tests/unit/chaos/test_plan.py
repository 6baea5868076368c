"""Plans keep their rules, whatever the seed; gaps and the report are counted right."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest

from tests.chaos.whole import drivers
from tests.chaos.whole.checker import RULES, Verdict
from tests.chaos.whole.copies import Copies, Whole
from tests.chaos.whole.gaps import Gaps, InForce, acknowledgement_times, by_kind
from tests.chaos.whole.history import GOT, SENT
from tests.chaos.whole.plan import BROKER, CUTS, DISKS, EVERYTHING, KINDS, LANES, left_out, plan
from tests.chaos.whole.report import Run, as_json, as_text

GUARANTEES = Path(__file__).parents[3] / "docs" / "guarantees.md"
SEEDS = range(20)
MINUTES_20 = 1200.0


def test_a_seed_is_a_plan() -> None:
    assert plan(7, 300) == plan(7, 300)
    assert plan(7, 300) != plan(8, 300)


@pytest.mark.parametrize("seed", SEEDS)
def test_one_fault_of_a_lane_at_a_time(seed: int) -> None:
    faults = plan(seed, MINUTES_20)
    assert [each.number for each in faults] == list(range(len(faults)))
    for lane in LANES:
        mine = [each for each in faults if each.lane == lane]
        assert all(a.at_s + a.for_s < b.at_s for a, b in pairwise(mine)), lane
        assert mine[-1].at_s + mine[-1].for_s <= MINUTES_20


@pytest.mark.parametrize("seed", SEEDS)
def test_twenty_minutes_have_two_hundred_faults_of_every_kind(seed: int) -> None:
    faults = plan(seed, MINUTES_20)
    assert len(faults) >= 200
    for lane, kinds in KINDS.items():
        counts = Counter(each.kind for each in faults if each.lane == lane)
        assert set(counts) == {kind.name for kind in kinds}
        assert max(counts.values()) - min(counts.values()) <= 1, lane


@pytest.mark.parametrize("seed", SEEDS)
def test_brokers_meet_other_faults_in_their_order(seed: int) -> None:
    faults = plan(seed, MINUTES_20)
    met = [each for each in faults if each.meets >= 0]
    assert len(met) >= 10
    assert all(each.lane == BROKER != faults[each.meets].lane for each in met)
    for lane in LANES:
        others = [each.meets for each in met if faults[each.meets].lane == lane]
        assert others == sorted(set(others))


def test_the_guarantees_have_a_line_for_every_fault() -> None:
    page = GUARANTEES.read_text()
    for lane, kinds in KINDS.items():
        assert [each.name for each in kinds if f"| {lane}: {each.name} |" not in page] == []


def test_what_the_machine_cannot_do_is_left_out() -> None:
    every = {f"{lane}: {kind.name}" for lane, kinds in KINDS.items() for kind in kinds}
    for abilities in ((), (CUTS,), (CUTS, DISKS), EVERYTHING):
        names = {each.name for each in plan(1, MINUTES_20, abilities)}
        assert not names & set(left_out(abilities))
        assert {*names, *left_out(abilities)} == every
    assert left_out(EVERYTHING) == []


def test_every_kind_has_a_driver() -> None:
    names = {f"{lane}: {kind.name}" for lane, kinds in KINDS.items() for kind in kinds}
    assert set(drivers.Drivers.table(None, "x")) == names  # type: ignore[arg-type]


def test_a_fault_is_charged_with_the_gaps_that_begin_in_it() -> None:
    acknowledged = [1.0, 2.0, 3.0, 9.0, 10.0, 11.0, 30.0]
    records = [[at, SENT, "t", "p", 0, "(5,1,-1,-1)"] for at in acknowledged]
    times = acknowledgement_times([*records, [4.0, GOT, "t", "s", "p", 0, 0, "c", 0]])
    assert times == {"t -1": acknowledged}
    faults = [
        InForce("broker: killed", "b", 2.9, 4.0),
        InForce("broker: killed", "b", 9.5, 10.5),
        InForce("bookie: killed", "b", 4.0, 8.0),
    ]
    assert by_kind(faults, times) == {
        "bookie: killed": Gaps(1, 0.0, 0.0),
        "broker: killed": Gaps(2, 6.0, 6.0),
    }
    assert by_kind([InForce("x", "b", 11.0, 12.0)], times) == {"x": Gaps(1, 19.0, 19.0)}


@pytest.mark.parametrize("rule", [None, *RULES])
def test_the_report_says_what_was_found_and_how_to_repeat_it(rule: str | None) -> None:
    violations = {each: int(each == rule) for each in RULES}
    run = Run(
        7, 20, "servers", "apart", 6.0, 3, {"broker: killed": Gaps(2, 1.5, 6.25)}, 1,
        Verdict(violations, {"acknowledged": 5}, ["lost: one"] if rule else []),
        {}, [], ["disk"], 100, 2.0, Whole(1.0, Copies(9, 700)), "out/x", "make chaos SEED=7",
    )  # fmt: skip
    text = as_text(run)
    assert text.splitlines()[0].endswith("FAIL" if rule else "PASS")
    assert "make chaos SEED=7" in text
    assert "    2    1.5 s    6.2 s  broker: killed" in text
    assert as_json(run)["verdict"]["good"] is (rule is None)
    assert not run._replace(troubles=["late"]).good
    lacking = Whole(300.0, Copies(9, 699, ("7:3 at b1 is damaged",), 1))
    assert not run._replace(whole=lacking).good
    assert "7:3 at b1 is damaged" in as_text(run._replace(whole=lacking))
