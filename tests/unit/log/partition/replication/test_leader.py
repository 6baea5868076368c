"""A leader: what counts as stored, and what an append that waits is told."""

from __future__ import annotations

from dataclasses import replace

import pytest

from magnetar.log.partition.leader_epochs import LeaderEpochs
from magnetar.log.partition.replication.leader import AppendOutcome, FetchRequest, PartitionLeader
from magnetar.log.partition.replication.partition_state import Member, PartitionState
from magnetar.model.errors import (
    FencedLeaderEpochError,
    NotEnoughReplicasError,
    OffsetOutOfRangeError,
    UnknownLeaderEpochError,
)

ME, OTHER, STRANGER = Member(1, 10), Member(2, 20), Member(9, 90)
ALONE = PartitionState((1, 2), 1, (ME,), (), 1, 100, 5)
BOTH = replace(ALONE, isr=(ME, OTHER))


def leading(state: PartitionState, log_end: int = 0, high_watermark: int = 0) -> PartitionLeader:
    epochs = LeaderEpochs()
    epochs.assign(4, 0)
    return PartitionLeader(
        ME, state, epochs,
        log_start=0, log_end=log_end, stored_end=log_end, high_watermark=high_watermark,
        now_ms=0, lag_ms_max=1000,
    )  # fmt: skip


def fetched(leader: PartitionLeader, offset: int, who: Member = OTHER, epoch: int = 5) -> None:
    leader.fetched(FetchRequest(who, epoch, offset, -1), 0)


def test_one_alone_has_committed_what_it_has_stored() -> None:
    leader = leading(ALONE)
    leader.appended(3)
    assert leader.high_watermark == 0, "nothing of it is stored"
    leader.stored(2)
    assert leader.high_watermark == 2
    assert [leader.outcome(each) for each in (1, 2)] == [
        AppendOutcome.COMMITTED,
        AppendOutcome.WAITS,
    ]
    assert [leader.stored_here(each) for each in (1, 2)] == [True, False]
    leader.stored(1)  # told late
    assert leader.high_watermark == 2
    assert leader.stored_here(1)


def test_with_another_in_sync_it_is_committed_when_both_have_it() -> None:
    leader = leading(BOTH)
    leader.appended(4)
    leader.stored(4)
    assert leader.high_watermark == 0
    fetched(leader, 3)
    assert leader.high_watermark == 3
    assert leader.outcome(3) is AppendOutcome.WAITS
    assert leader.stored_here(3)
    leader.appended(6)
    fetched(leader, 6)  # of what is not synced here
    assert leader.high_watermark == 4


def test_with_too_few_in_sync_nothing_is_taken_and_nothing_more_is_committed() -> None:
    leader = leading(replace(BOTH, min_isr=2))
    leader.check_append()
    leader.appended(4)
    leader.stored(4)
    fetched(leader, 2)
    leader.learnt(replace(ALONE, min_isr=2))
    with pytest.raises(NotEnoughReplicasError, match="1 of 2 replicas are in sync; 2 are needed"):
        leader.check_append()
    assert leader.high_watermark == 2
    assert [leader.outcome(each) for each in (1, 3)] == [
        AppendOutcome.TOO_FEW,
        AppendOutcome.WAITS,
    ]


def test_who_is_not_assigned_counts_for_nothing() -> None:
    leader = leading(ALONE, log_end=4, high_watermark=4)
    fetched(leader, 4, STRANGER)
    assert leader.pending is None
    fetched(leader, 4)
    assert leader.pending == (ME, OTHER)


def test_a_fetch_that_is_refused_counts_for_nothing() -> None:
    leader = leading(BOTH, log_end=4)
    for epoch, refusal in ((4, FencedLeaderEpochError), (6, UnknownLeaderEpochError)):
        with pytest.raises(refusal):
            fetched(leader, 4, epoch=epoch)
    with pytest.raises(OffsetOutOfRangeError):
        fetched(leader, 5)
    leader.trimmed(3)
    with pytest.raises(OffsetOutOfRangeError):
        fetched(leader, 2)
    assert leader.high_watermark == 0
    fetched(leader, 3)
    assert leader.high_watermark == 3


def test_one_that_parts_is_told_where_and_counts_for_nothing() -> None:
    """It has batches of epoch 4 that the leader has not, which began epoch 5 before them."""
    leader = leading(BOTH, log_end=4)
    grant = leader.fetched(FetchRequest(OTHER, 5, 9, 4), 0)
    assert grant.diverging == (4, 4)
    assert leader.high_watermark == 0


def test_one_that_joins_is_waited_for_from_when_it_is_asked_for() -> None:
    """The store may hold it already: what is committed without it would be lost with this one."""
    leader = leading(ALONE, log_end=4, high_watermark=4)
    fetched(leader, 3)
    assert leader.pending is None, "it lacks what is committed"
    fetched(leader, 4)
    assert leader.pending == (ME, OTHER)
    leader.appended(6)
    leader.stored(6)
    assert leader.high_watermark == 4
    leader.in_doubt()
    assert leader.high_watermark == 4
    leader.learnt(ALONE)  # it was not stored
    assert leader.high_watermark == 6


def test_one_that_leaves_is_waited_for_until_that_is_stored() -> None:
    leader = leading(BOTH, log_end=4, high_watermark=4)
    leader.appended(6)
    leader.stored(6)
    leader.tick(1000)
    assert leader.pending is None, "its time is not over"
    leader.tick(1001)
    assert leader.pending == (ME,)
    assert leader.high_watermark == 4
    leader.learnt(ALONE)
    assert leader.high_watermark == 6


def test_a_new_disk_of_a_member_is_another_one() -> None:
    """What the broker had before it lost its disk is nobody's: the new one has what it fetches."""
    leader = leading(BOTH, log_end=4, high_watermark=0)
    fetched(leader, 4)
    leader.learnt(ALONE)
    leader.appended(8)
    leader.stored(8)
    new = Member(OTHER.broker, 21)
    fetched(leader, 0, new)
    assert leader.pending is None
    fetched(leader, 8, new)
    assert leader.pending == (ME, new)


THIRD = Member(3, 30)
THREE = replace(ALONE, replicas=(1, 2, 3), isr=(ME, OTHER, THIRD))


def test_who_is_to_leave_counts_until_that_is_stored() -> None:
    """Until then it can be elected, and must have what is committed."""
    leader = leading(THREE)
    leader.appended(4)
    leader.stored(4)
    fetched(leader, 4)
    leader.tick(1001)
    assert leader.pending == (ME, OTHER)
    leader.appended(6)
    leader.stored(6)
    fetched(leader, 6)
    assert leader.high_watermark == 0
    leader.in_doubt()
    fetched(leader, 6)
    assert leader.high_watermark == 0, "the outcome is not known"
    leader.learnt(replace(THREE, isr=(ME, OTHER)))
    assert leader.high_watermark == 6


def test_who_is_to_join_counts_from_then_on() -> None:
    """It can be elected as soon as that is stored, which is known later."""
    leader = leading(ALONE)
    leader.appended(4)
    leader.stored(4)
    fetched(leader, 4)
    assert leader.pending == (ME, OTHER)
    leader.appended(6)
    leader.stored(6)
    leader.in_doubt()
    leader.stored(6)
    assert leader.high_watermark == 4


def test_nobody_joins_who_has_what_the_epoch_began_with_and_not_all_that_is_committed() -> None:
    leader = leading(ALONE)
    leader.appended(100)
    leader.stored(100)
    assert (leader.epoch_start, leader.high_watermark) == (0, 100)
    for offset in (0, 50, 99):
        fetched(leader, offset)
        assert leader.pending is None
    fetched(leader, 100)
    assert leader.pending == (ME, OTHER)


def test_one_whose_disk_was_replaced_takes_its_own_place() -> None:
    leader, again = leading(THREE), Member(OTHER.broker, 21)
    fetched(leader, 0, again)
    assert leader.pending == (ME, THIRD, again)
    proposed = leader.proposal()
    assert proposed is not None
    proposed.check()


def test_nothing_is_committed_without_one_that_was_not_heard_of() -> None:
    """Another has changed the set."""
    leader = leading(BOTH)
    leader.learnt(THREE)
    leader.appended(4)
    leader.stored(4)
    fetched(leader, 4)
    assert leader.high_watermark == 0
    fetched(leader, 4, THIRD)
    assert leader.high_watermark == 4


def test_one_that_is_always_a_fetch_behind_is_in_sync() -> None:
    """It has had all that there was, a moment ago."""
    leader = leading(BOTH, log_end=4)

    def at(now_ms: int, offset: int, log_end: int) -> None:
        leader.appended(log_end)
        leader.fetched(FetchRequest(OTHER, 5, offset, -1), now_ms)

    at(100, 4, 4)
    leader.tick(5000)
    assert leader.pending is None, "it is at the end, and nothing comes"
    at(5000, 4, 4)
    at(5500, 4, 6)  # what came since the last time is on its way to it
    at(5900, 6, 9)  # it has what there was at 5500
    leader.tick(6500)
    assert leader.pending is None
    leader.tick(6501)
    assert leader.pending == (ME,)


def test_one_that_fetches_and_does_not_come_to_the_end_leaves() -> None:
    leader = leading(BOTH, log_end=100)
    for second in range(5):
        leader.fetched(FetchRequest(OTHER, 5, second, -1), 300 * second)
    leader.tick(1001)
    assert leader.pending == (ME,)


def test_only_who_would_join_is_put_off_when_a_change_is_withdrawn() -> None:
    third = Member(3, 30)
    leader = leading(replace(BOTH, replicas=(1, 2, 3)), log_end=4)
    fetched(leader, 4)
    fetched(leader, 4, third)
    assert leader.pending == (ME, OTHER, third)
    leader.withdraw()
    assert leader.pending is None
    fetched(leader, 4, third)
    assert leader.pending is None, "not before the next look at the clock"
    leader.tick(10)
    fetched(leader, 4, third)
    assert leader.pending == (ME, OTHER, third)


def test_one_that_was_at_the_end_has_its_time_from_then_on() -> None:
    leader = leading(BOTH, log_end=4)
    leader.fetched(FetchRequest(OTHER, 5, 4, -1), 100)
    leader.appended(6)
    leader.tick(1100)
    assert leader.pending is None
    leader.tick(1101)
    assert leader.pending == (ME,)
