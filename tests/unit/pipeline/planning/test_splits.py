"""The contract between ranges and splits."""

from __future__ import annotations

import pickle
from dataclasses import replace
from itertools import pairwise

import pytest

from magnetar.pipeline.places import START, Place
from magnetar.pipeline.planning.splits import PlannedRange, Split, WholeRanges, check_cover, whole

PART = PlannedRange("persistent://public/default/t", Place(1, 0, 0), Place(4, 2, 0), 7)
CUTS = [Place(1, 0, 0), Place(1, 5, 0), Place(3, 0, 0), Place(4, 2, 0)]


def pieces(*cuts: Place) -> list[Split]:
    return [Split(replace(PART, start=start, end=end)) for start, end in pairwise(cuts)]


def test_splits_lie_side_by_side() -> None:
    check_cover(PART, pieces(*CUTS))
    check_cover(PART, WholeRanges().split(PART))
    assert whole(replace(PART, start=PART.end)) == []


@pytest.mark.parametrize(
    "splits",
    [
        [],
        pieces(*CUTS[1:]),
        pieces(*CUTS[:-1]),
        [*pieces(*CUTS[:2]), *pieces(*CUTS[2:])],
        pieces(CUTS[0], CUTS[2], CUTS[1], CUTS[3]),
        pieces(CUTS[0], CUTS[0], CUTS[3]),
        [Split(replace(PART, topic="another"))],
        [Split(replace(PART, created_ms=8))],
    ],
    ids=["none", "late", "early", "gap", "back", "empty", "topic", "made anew"],
)
def test_a_splitter_that_leaves_something_out_is_found(splits: list[Split]) -> None:
    with pytest.raises(AssertionError):
        check_cover(PART, splits)


def test_an_empty_range_has_no_split() -> None:
    empty = replace(PART, start=START, end=START)
    check_cover(empty, [])
    with pytest.raises(AssertionError):
        check_cover(empty, [Split(empty)])


def test_a_split_travels() -> None:
    assert pickle.loads(pickle.dumps(Split(PART))) == Split(PART)
