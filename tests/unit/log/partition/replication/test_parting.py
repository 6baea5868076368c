"""Whose log is a prefix of the leader's, and who may be counted on: steps of the machines."""

from __future__ import annotations

import pytest

from magnetar.log.partition.leader_epochs import EpochEnd, EpochStart, LeaderEpochs
from magnetar.log.partition.replication.follower import PartitionFollower
from magnetar.log.partition.replication.leader import FetchRequest, PartitionLeader
from magnetar.log.partition.replication.partition_state import Member, PartitionState

ME, OTHER, THIRD = Member(1, 10), Member(2, 20), Member(3, 30)


def leading(epochs: LeaderEpochs, log_end: int, high_watermark: int = 0) -> PartitionLeader:
    """In epoch 3; ``THIRD`` is in sync, and has not fetched yet."""
    state = PartitionState((1, 2, 3), 1, (ME, THIRD), (), 1, 7, 3)
    return PartitionLeader(
        ME,
        state,
        epochs,
        log_start=0,
        log_end=log_end,
        stored_end=log_end,
        high_watermark=high_watermark,
        now_ms=0,
        lag_ms_max=1000,
    )


def test_who_has_not_all_of_the_epochs_before_does_not_join() -> None:
    """The leader was elected with all that is committed, and hears only later how far that is."""
    leader = leading(LeaderEpochs([EpochStart(1, 0)]), log_end=10, high_watermark=3)
    leader.fetched(FetchRequest(OTHER, 3, 5, 1), now_ms=1)
    assert leader.proposal() is None
    leader.fetched(FetchRequest(OTHER, 3, 10, 1), now_ms=2)
    proposed = leader.proposal()
    assert proposed is not None
    assert proposed.isr == (ME, THIRD, OTHER)


@pytest.mark.parametrize(
    ("offset", "last_epoch", "diverging"),
    [
        (8, 1, None),
        (5, 1, None),
        (0, -1, None),
        (8, 2, EpochEnd(1, 8)),  # as long, and of an epoch that is not known here
        (5, 2, EpochEnd(1, 8)),
        (9, 1, EpochEnd(1, 8)),  # longer
    ],
)
def test_where_a_follower_parts_from_its_leader(
    offset: int, last_epoch: int, diverging: EpochEnd | None
) -> None:
    leader = leading(LeaderEpochs([EpochStart(1, 0)]), log_end=8)
    grant = leader.fetched(FetchRequest(OTHER, 3, offset, last_epoch), now_ms=1)
    assert grant.diverging == diverging


def test_an_epoch_that_was_led_without_a_batch_is_forgotten_by_who_follows() -> None:
    """The leader's log may have batches of earlier epochs at the same place."""
    epochs = LeaderEpochs([EpochStart(1, 0), EpochStart(5, 10)])
    follower = PartitionFollower(ME, 2, 6, epochs, log_end=10, high_watermark=10)
    assert epochs.last == 1
    assert follower.next_fetch().last_epoch == 1


def test_an_epoch_without_a_batch_is_forgotten_when_the_next_begins() -> None:
    epochs = LeaderEpochs([EpochStart(1, 0), EpochStart(5, 10)])
    assert epochs.assign(6, 10)
    assert epochs.starts == (EpochStart(1, 0), EpochStart(6, 10))
    assert epochs.end_of(5, 12) == EpochEnd(1, 10)
    assert not epochs.assign(6, 11), "it was known"
    assert not epochs.assign(5, 12), "it is over"
