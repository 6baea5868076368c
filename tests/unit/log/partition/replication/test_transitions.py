"""The tables of a partition's replica say what it does: random walks against them."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from magnetar.log.partition.leader_epochs import LeaderEpochs
from magnetar.log.partition.replication import election
from magnetar.log.partition.replication.election import LiveBroker
from magnetar.log.partition.replication.isr_states import (
    ISR_TRANSITIONS,
    ROLE_TRANSITIONS,
    IsrEvent,
    IsrState,
    RoleEvent,
    RoleState,
)
from magnetar.log.partition.replication.leader import FetchRequest, PartitionLeader
from magnetar.log.partition.replication.partition_state import Member, PartitionState
from magnetar.log.partition.replication.replica import PartitionReplica

WALKS, STEPS = 200, 80
MEMBERS = tuple(Member(number, number) for number in (1, 2, 3))


def _changed(
    rng: random.Random, state: PartitionState, live: dict[int, LiveBroker]
) -> PartitionState | None:
    """What a controller or another leader may store next."""
    choice = rng.randrange(4)
    if choice == 0:
        broker = rng.randrange(1, 4)
        if broker in live and rng.random() < 0.6:
            del live[broker]
        else:
            live[broker] = LiveBroker(rng.randint(1, 2), broker, rng.random() < 0.2)
        return election.elect(state, live)
    if choice == 1:
        return election.relieve(state, live) or election.prefer(state, live)
    if choice == 2 and state.leader > 0:
        others = [each for each in MEMBERS if each.broker != state.leader and rng.random() < 0.6]
        return election.with_isr(state, [Member(state.leader, state.leader), *others])
    if choice == 3 and rng.random() < 0.5:  # a topic is opened again where it was
        return election.move(state, live, 1)
    return None


def test_a_replica_does_what_its_tables_say(monkeypatch: pytest.MonkeyPatch) -> None:
    met_isr: set[tuple[IsrState, IsrEvent, IsrState]] = set()
    met_role: set[tuple[RoleState, RoleEvent, RoleState]] = set()
    move, event_of, learnt = PartitionLeader._move, PartitionReplica._event, PartitionReplica.learnt

    def told(leader: PartitionLeader, event: IsrEvent) -> None:
        before = leader.isr_state
        move(leader, event)
        met_isr.add((before, event, leader.isr_state))

    def event_told(replica: PartitionReplica, state: PartitionState) -> RoleEvent:
        events.append((replica.role, event_of(replica, state)))
        return events[-1][1]

    monkeypatch.setattr(PartitionLeader, "_move", told)
    monkeypatch.setattr(PartitionReplica, "_event", event_told)
    whole = 0
    for seed in range(WALKS):
        rng = random.Random(seed)
        replica = PartitionReplica(MEMBERS[0], 1, high_watermark=0, lag_ms_max=10)
        state = PartitionState((1, 2, 3), 2, isr=MEMBERS)
        live: dict[int, LiveBroker] = {}
        version, now_ms, end = 0, 0, 0
        for _ in range(STEPS):
            events: list[tuple[RoleState, RoleEvent]] = []
            now_ms += rng.randint(0, 8)
            following = _changed(rng, state, live)
            if following is not None:
                state, version = following, version + 1
            # It hears late, and not of every state that there was.
            if version > replica.version and rng.random() < 0.35:
                learnt(
                    replica, state, version, LeaderEpochs(),
                    log_start=0, log_end=end, stored_end=end, now_ms=now_ms,
                )  # fmt: skip
                assert replica.version == version
                met_role |= {(before, event, replica.role) for before, event in events}
            if (leader := replica.leader) is not None:
                known = leader.state.whole_since
                assert replica.whole_since == (leader.epoch if known < 0 else known)
                whole += replica.whole_since < leader.epoch
                mark = leader.high_watermark
                end += 1
                leader.appended(end)
                leader.stored(end)
                for member in MEMBERS[1:]:
                    if rng.random() < 0.5:
                        leader.fetched(FetchRequest(member, leader.epoch, end, -1), now_ms)
                leader.tick(now_ms)
                if rng.random() < 0.3:
                    leader.in_doubt()
                if (proposal := leader.proposal()) is not None:
                    proposal.check()
                    assert replace(proposal, isr=(), elr=()) == replace(
                        leader.state, isr=(), elr=()
                    )
                assert mark <= leader.high_watermark <= end
    assert whole, "nobody led what is whole since an earlier epoch"
    assert met_isr == {(each.state, each.event, each.following) for each in ISR_TRANSITIONS}
    assert met_role == {(each.state, each.event, each.following) for each in ROLE_TRANSITIONS}
