"""A replica whose log was cut when it was opened: who leads."""

from __future__ import annotations

import pytest

from magnetar.log.partition.replication.cut_short import CutShort
from magnetar.log.partition.replication.election import LiveBroker
from magnetar.log.partition.replication.partition_state import NO_LEADER, Member, PartitionState

ME, TWO, THREE = Member(1, 11), Member(2, 12), Member(3, 13)
LIVE = {each.broker: LiveBroker(100 + each.broker, each.lineage) for each in (ME, TWO, THREE)}


def state(*isr: Member, leader: int, elr: tuple[Member, ...] = ()) -> PartitionState:
    start = LIVE[leader].start if leader in LIVE else 0
    return PartitionState((1, 2, 3), 2, isr, elr, leader, start, 7)


@pytest.mark.parametrize("leader", [1, 2])
def test_another_that_counts_and_lives_leads(leader: int) -> None:
    """In a new epoch: what was fetched of the end that was cut is not counted on."""
    cut = CutShort(1)
    found = cut.decide(state(ME, TWO, THREE, leader=leader), LIVE)
    assert found is not None
    assert not cut.waits
    assert (found.leader, found.isr, found.elr) == (2, (TWO, THREE), ())
    assert found.leader_epoch == 8


def test_one_of_which_nothing_is_counted_on_goes_on() -> None:
    cut = CutShort(1)
    assert cut.decide(state(TWO, THREE, leader=2), LIVE) is None
    assert not cut.waits


@pytest.mark.parametrize(
    "alone",
    [state(ME, leader=1), PartitionState((1,), 1, (ME,), (), 1, 101, 7)],
    ids=["alone in sync", "the only replica"],
)
def test_the_only_one_that_counts_goes_on(alone: PartitionState) -> None:
    cut = CutShort(1)
    assert cut.decide(alone, LIVE) is None
    assert not cut.waits


@pytest.mark.parametrize(
    "before",
    [
        state(ME, TWO, THREE, leader=1),
        state(leader=NO_LEADER, elr=(ME, THREE)),
        state(ME, leader=1, elr=(TWO,)),
    ],
)
def test_it_waits_for_those_that_count(before: PartitionState) -> None:
    cut = CutShort(1)
    assert cut.decide(before, {1: LIVE[1]}) is None
    assert cut.waits
    found = cut.decide(before, LIVE)
    assert not cut.waits
    assert found is not None
    assert found.leader in (2, 3)
    assert not found.counts_on(ME)


def test_of_all_that_were_cut_the_last_one_leads() -> None:
    """After a loss of power: each asks the others, and somebody is left."""
    now = state(ME, TWO, THREE, leader=1)
    for broker in (1, 2):
        now = CutShort(broker).decide(now, LIVE) or now
    last = CutShort(3)
    assert last.decide(now, LIVE) is None
    assert not last.waits
    assert now.leader == 3
