"""Which leader wrote what: the ends that replicas compare before one of them cuts its log."""

from __future__ import annotations

import sys

import pytest

from magnetar.log.partition.leader_epochs import UNKNOWN_END, EpochStart, LeaderEpochs


def epochs(*starts: tuple[int, int]) -> LeaderEpochs:
    return LeaderEpochs(EpochStart(*each) for each in starts)


def starts(found: LeaderEpochs) -> list[tuple[int, int]]:
    return [tuple(each) for each in found.starts]


def test_an_epoch_ends_where_the_next_one_begins() -> None:
    known = epochs((3, 2), (5, 4), (6, 8))
    assert known.end_of(3, 10) == (3, 4)
    assert known.end_of(5, 10) == (5, 8)
    assert known.end_of(6, 10) == (6, 10), "the last one with the log"
    assert known.end_of(4, 10) == (3, 4), "of one that wrote nothing here, the one before it"
    assert known.end_of(2, 10) == (2, 2), "before all that is known"


def test_nothing_is_known_of_what_comes_later() -> None:
    assert epochs((3, 2)).end_of(4, 10) == UNKNOWN_END
    assert epochs((3, 2)).end_of(-1, 10) == UNKNOWN_END
    assert epochs().end_of(0, 10) == UNKNOWN_END
    assert epochs().last == -1


def test_an_epoch_begins_once_and_none_goes_back() -> None:
    known = epochs((3, 0), (5, 4))
    assert not known.assign(5, 6)
    assert not known.assign(4, 6)
    assert not known.assign(6, -1)
    assert starts(known) == [(3, 0), (5, 4)]
    assert known.assign(7, 4), "its predecessor wrote nothing"
    assert starts(known) == [(3, 0), (7, 4)]
    assert known.last == 7


def test_whose_batch_is_at_an_offset() -> None:
    known = epochs((3, 2), (5, 4))
    assert [known.epoch_at(each) for each in (1, 2, 3, 4, 99)] == [-1, 3, 3, 5, 5]


def test_a_log_that_is_cut_forgets_who_wrote_what_is_gone() -> None:
    known = epochs((3, 0), (5, 4))
    known.truncate(5)
    assert starts(known) == [(3, 0), (5, 4)]
    known.truncate(4)
    assert starts(known) == [(3, 0)]
    known.truncate(0)
    assert starts(known) == []


def test_who_wrote_what_is_left_of_a_trimmed_log_stays_known() -> None:
    for begin, left in (
        (0, [(3, 1), (5, 4), (6, 8)]),
        (2, [(3, 2), (5, 4), (6, 8)]),
        (4, [(5, 4), (6, 8)]),
        (6, [(5, 6), (6, 8)]),
        (9, [(6, 9)]),
    ):
        known = epochs((3, 1), (5, 4), (6, 8))
        known.trim(begin)
        assert starts(known) == left


KNOWN = [(each, 100 * each) for each in range(1, 5)]


def asked_while_trimmed(epoch: int, moment: int) -> tuple[int, int]:
    """``moment``: of the steps of the answer."""
    known, steps = epochs(*KNOWN), 0

    def step(*_: object) -> object:
        nonlocal steps
        steps += 1
        if steps == moment:
            sys.settrace(None)
            known.trim(320)
        return step

    former = sys.gettrace()
    try:
        sys.settrace(step)
        return tuple(known.end_of(epoch, 500))
    finally:
        sys.settrace(former)


@pytest.mark.parametrize("epoch", range(1, 5))
def test_what_is_asked_while_the_log_is_trimmed_is_of_before_or_after(epoch: int) -> None:
    """A leader answers a follower on the loop, and lets old segments go on the log's lane. An end
    that was of another epoch had a follower keep what it does not share."""
    before, after = epochs(*KNOWN), epochs(*KNOWN)
    after.trim(320)
    ends = before.end_of(epoch, 500), after.end_of(epoch, 500)
    for moment in range(40):
        assert asked_while_trimmed(epoch, moment) in ends
