"""The judge of the loss comparison: what is planted wrong is reported, and nothing else."""

from __future__ import annotations

from dataclasses import replace

import pytest

from magnetar.log.policy import Engine
from magnetar.proving.counting import EXPOSED, RESENT, Back, Expected, Observed, count, judge
from magnetar.proving.running import MAKERS
from magnetar.proving.scenarios import SCENARIOS

SOUND = Observed(acknowledged=300, back=Back.ANOTHER, unavailable_s=4.0)
LOSSY = Expected(lost=EXPOSED, exposed=200)


@pytest.mark.parametrize(
    ("acknowledged", "read", "counted"),
    [
        ([], [], (0, 0, 0)),
        (range(5), range(5), (0, 0, 0)),
        (range(5), [0, 1, 2], (2, 0, 0)),
        (range(3), [0, 1, 2, 3], (0, 0, 0)),  # one more than was told
        (range(3), [0, 1, 1, 2, 0], (0, 2, 0)),
        (range(4), [0, 2, 1, 3], (0, 0, 1)),
        (range(6), [0, 5, 1, 2, 2], (2, 1, 2)),
    ],
)
def test_counts(acknowledged: object, read: object, counted: tuple[int, int, int]) -> None:
    assert count(list(acknowledged), list(read)) == counted  # type: ignore[call-overload]


def test_what_comes_as_expected_is_not_reported() -> None:
    assert judge(Expected(), SOUND) == []
    assert judge(LOSSY, replace(SOUND, exposed=200, lost=200)) == []
    assert judge(Expected(lost=EXPOSED), replace(SOUND, exposed=7, lost=7)) == []
    assert judge(Expected(back=None), replace(SOUND, back=Back.SAME)) == []
    assert judge(Expected(duplicated=RESENT), replace(SOUND, resent=2, duplicated=1)) == []
    held = Expected(back=Back.NOBODY)
    assert judge(held, replace(SOUND, back=Back.NOBODY, unavailable_s=None)) == []


@pytest.mark.parametrize(
    ("expected", "observed", "said"),
    [
        (Expected(), replace(SOUND, lost=1), "lost: expected 0, observed 1"),
        (LOSSY, replace(SOUND, exposed=200, lost=199), "lost: expected 200, observed 199"),
        (LOSSY, replace(SOUND, exposed=200, lost=201), "lost: expected 200, observed 201"),
        (LOSSY, replace(SOUND, exposed=150, lost=150), "exposed: expected 200, observed 150"),
        (Expected(lost=EXPOSED), SOUND, "the fault was not made"),
        (Expected(lost=EXPOSED), replace(SOUND, exposed=3), "lost: expected 3, observed 0"),
        (Expected(), replace(SOUND, duplicated=1), "duplicated: expected 0 at most"),
        (Expected(duplicated=RESENT), replace(SOUND, duplicated=1), "duplicated: expected 0"),
        (Expected(), replace(SOUND, reordered=1), "reordered: expected 0, observed 1"),
        (Expected(), replace(SOUND, back=Back.SAME), "taken again by: expected another broker"),
        (Expected(), replace(SOUND, refused=2), "not taken while it lasted: expected no"),
        (Expected(refused=True), SOUND, "not taken while it lasted: expected yes, observed no"),
        (Expected(), Observed(back=Back.ANOTHER), "nothing was acknowledged"),
        (Expected(back=Back.NOBODY), SOUND, "taken again by: expected nobody"),
    ],
)
def test_a_planted_wrong_count_is_reported(
    expected: Expected, observed: Observed, said: str
) -> None:
    (wrong,) = judge(expected, observed)
    assert said in wrong


def test_the_scenarios_are_whole() -> None:
    assert set(MAKERS) == {each.name for each in SCENARIOS}
    for scenario in SCENARIOS:
        names = [lane.name for lane in scenario.lanes]
        assert len(set(names)) == len(names), scenario.name
    lanes = [lane for each in SCENARIOS for lane in each.lanes]
    # Each setting that decides is there on the one engine, and both engines in each fault of both.
    partitions = [lane for lane in lanes if lane.engine is Engine.PARTITION]
    assert {(lane.min_isr, lane.unclean) for lane in partitions if lane.acks == -1} == {
        (1, False), (1, True), (2, False), (2, True),
    }  # fmt: skip
    assert all(
        lane.expected.lost == 0
        for lane in lanes
        if lane.engine is Engine.LEDGER and lane.name not in ("closed-two-wiped", "ledger-all")
    )
