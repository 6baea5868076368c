"""A follower: which answers change something, and where its log is cut."""

from __future__ import annotations

import pytest

from magnetar.log.partition.leader_epochs import EpochEnd, LeaderEpochs
from magnetar.log.partition.replication.follower import (
    AppendAnswer,
    CutTo,
    PartitionFollower,
    RestartAt,
)
from magnetar.log.partition.replication.leader import FetchGrant
from magnetar.log.partition.replication.partition_state import NO_LEADER, Member, PartitionState
from magnetar.log.partition.replication.replica import PartitionReplica
from magnetar.model.errors import ProtocolError

ME = Member(2, 20)


def following(*starts: tuple[int, int], log_end: int, high_watermark: int = 0) -> PartitionFollower:
    """In epoch 7. ``starts``: (epoch, first offset)."""
    epochs = LeaderEpochs()
    for epoch, first in starts:
        epochs.assign(epoch, first)
    return PartitionFollower(ME, 1, 7, epochs, log_end=log_end, high_watermark=high_watermark)


def granted(
    high_watermark: int = 0, parts: tuple[int, int] | None = None, epoch: int = 7
) -> FetchGrant:
    return FetchGrant(epoch, high_watermark, 0, -1, None if parts is None else EpochEnd(*parts))


def test_it_asks_with_the_epoch_of_its_last_batch() -> None:
    follower = following((3, 0), (5, 4), log_end=6)
    request = follower.next_fetch()
    assert (request.follower, request.leader_epoch) == (ME, 7)
    assert (request.offset, request.last_epoch) == (6, 5)
    assert following(log_end=0).next_fetch().last_epoch == -1
    assert following((3, 0), log_end=1).next_fetch().last_epoch == 3


def test_an_answer_to_what_was_asked_before_changes_nothing() -> None:
    follower = following((3, 0), log_end=6)
    before = follower.next_fetch()
    request = follower.next_fetch()
    assert follower.answered(before, granted(6), True) is None
    assert follower.out_of_range(before, 9, 20) is None
    assert follower.answered(request, granted(6, epoch=8), True) is None, "nor of another leader"
    assert follower.high_watermark == 0
    assert follower.answered(request, granted(6), True) == AppendAnswer()
    assert follower.high_watermark == 6
    assert follower.answered(request, granted(6), True) is None, "nor one that comes twice"
    request = follower.next_fetch()
    assert follower.out_of_range(request, 9, 20) == RestartAt(9)
    assert follower.out_of_range(request, 9, 20) is None


def test_a_log_that_ends_where_the_leaders_begins_goes_on() -> None:
    follower = following((3, 0), log_end=6)
    assert follower.out_of_range(follower.next_fetch(), 7, 20) == RestartAt(7)
    assert follower.out_of_range(follower.next_fetch(), 6, 20) == CutTo(6)
    assert follower.out_of_range(follower.next_fetch(), 0, 4) == CutTo(4)


def test_it_is_cut_at_the_end_of_the_last_epoch_that_both_may_have() -> None:
    def cut(theirs: tuple[int, int]) -> object:
        follower = following((3, 0), (5, 4), (6, 8), log_end=10)
        return follower.answered(follower.next_fetch(), granted(parts=theirs), False)

    assert cut((6, 9)) == CutTo(9), "their epoch 6 ends sooner"
    assert cut((5, 6)) == CutTo(6)
    assert cut((5, 20)) == CutTo(8), "ours ends sooner"
    # We have nothing of their epoch 4: what comes after it goes, and 3 is compared next.
    assert cut((4, 6)) == CutTo(4)
    assert cut((3, 2)) == CutTo(2)
    assert cut((1, 2)) == CutTo(0), "we know nothing of epoch 1"
    with pytest.raises(ProtocolError, match="at no offset"):
        cut((6, -1))
    assert cut((3, 0)) == CutTo(0)


def test_what_is_cut_though_it_was_committed_is_counted() -> None:
    """A leader was elected uncleanly."""
    follower = following((3, 0), log_end=10, high_watermark=8)
    follower.cut(9)
    assert (follower.log_end, follower.high_watermark, follower.lost) == (9, 8, 0)
    follower.cut(8)
    assert (follower.high_watermark, follower.lost) == (8, 0)
    follower.cut(5)
    assert (follower.log_end, follower.high_watermark, follower.lost) == (5, 5, 3)


def test_what_is_committed_is_told_as_far_as_the_log_reaches() -> None:
    follower = following((3, 0), log_end=4, high_watermark=9)
    assert follower.high_watermark == 4
    follower.stored(8, 6)
    assert follower.high_watermark == 6
    follower.stored(9, 20)
    assert follower.high_watermark == 9
    follower.answered(follower.next_fetch(), granted(7), False)
    assert follower.high_watermark == 9, "it does not go back"


def test_an_epoch_that_it_led_and_wrote_nothing_in_is_forgotten() -> None:
    follower = following((3, 0), (5, 6), log_end=6)
    assert follower.next_fetch().last_epoch == 3
    follower.stored(8, 0)
    assert follower.next_fetch().last_epoch == 3


def test_a_state_that_is_older_than_the_known_one_changes_nothing() -> None:
    replica = PartitionReplica(ME, 100, high_watermark=0, lag_ms_max=1000)
    epochs = LeaderEpochs()

    def learnt(leader: int, epoch: int, version: int) -> bool:
        state = PartitionState((1, 2), 1, (Member(1, 10), ME), (), leader, 100, epoch)
        return replica.learnt(
            state, version, epochs, log_start=0, log_end=0, stored_end=0, now_ms=0
        )

    assert learnt(2, 5, 8)
    assert replica.leader is not None
    for version in (7, 8):
        assert not learnt(1, 6, version)
        assert replica.leader is not None
    assert replica.version == 8
    assert not learnt(2, 5, 9), "it is the same epoch"
    assert learnt(1, 6, 10)
    assert replica.leader is None
    assert replica.follower is not None


def test_who_leads_was_elected_as_it_is_now() -> None:
    """By this start of its process, and with the disk that it has: another one lacks what counts,
    and would cut it from those who have it."""

    def leads(leader: int, start: int, lineage: int) -> bool:
        replica = PartitionReplica(ME, 100, high_watermark=0, lag_ms_max=1000)
        isr = (Member(1, 10), Member(ME.broker, lineage))
        state = PartitionState((1, 2), 1, isr, (), leader, start, 5)
        assert replica.learnt(
            state, 0, LeaderEpochs(), log_start=0, log_end=0, stored_end=0, now_ms=0
        )
        assert (replica.follower is not None) is (leader == 1)
        return replica.leader is not None

    assert leads(2, 100, 20)
    assert not leads(2, 99, 20), "of a process that is gone"
    assert not leads(2, 100, 19), "of a disk that is gone"
    assert not leads(1, 100, 20)
    assert not leads(NO_LEADER, 100, 20), "and nobody is followed"
