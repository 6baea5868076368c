"""Bugs of partitions' replicas: leader, follower, election."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

from magnetar.log.partition.leader_epochs import EpochEnd
from magnetar.log.partition.replication import election
from magnetar.log.partition.replication.election import LiveBroker
from magnetar.log.partition.replication.follower import AppendAnswer, CutTo, PartitionFollower, Step
from magnetar.log.partition.replication.isr_states import IsrEvent, RoleEvent
from magnetar.log.partition.replication.leader import FetchGrant, FetchRequest, PartitionLeader
from magnetar.log.partition.replication.partition_state import NO_LEADER, Member, PartitionState
from magnetar.log.partition.replication.replica import PartitionReplica
from tests.sim.mutants.mutant import Mutant, replaced

SEEDS_MAX = 3000


def _plant(*changes: tuple[Any, str, Any]) -> Callable[[], AbstractContextManager[object]]:
    return lambda: replaced(*changes)


def _cut_by_high_watermark(follower: PartitionFollower, theirs: EpochEnd) -> int:
    return follower.high_watermark


def _cut_by_their_end(follower: PartitionFollower, theirs: EpochEnd) -> int:
    return min(theirs.end_offset, follower.log_end)


def _advance_with_too_few(leader: PartitionLeader) -> None:
    state, leader.state = leader.state, replace(leader.state, min_isr=1)
    _ADVANCE(leader)
    leader.state = state


_ADVANCE = PartitionLeader._advance


def _only_pending(leader: PartitionLeader) -> tuple[Member, ...]:
    return leader.pending or leader.state.isr


def _only_stored(leader: PartitionLeader) -> tuple[Member, ...]:
    return leader.state.isr


def _same_epoch(state: PartitionState, broker: int, live: election.Live) -> PartitionState:
    following = _NEW_LEADER(state, broker, live)
    again = broker == state.leader
    return replace(following, leader_epoch=state.leader_epoch) if again else following


_NEW_LEADER = election._new_leader


def _counts_unsynced(leader: PartitionLeader, log_end: int) -> None:
    leader.log_end = leader._stored_end = log_end


def _appended_here(leader: PartitionLeader, last_offset: int) -> bool:
    return last_offset < leader.log_end


def _to_the_end(leader: PartitionLeader) -> int:
    return leader.log_end


def _anybody(state: PartitionState, live: election.Live, unclean: bool) -> PartitionState:
    return _LED(state, live, True)


_LED = election._led


def _no_eligible(
    state: PartitionState, in_sync: Sequence[Member], live: election.Live
) -> PartitionState:
    return replace(state, isr=tuple(in_sync), elr=())


def _any_answer(
    follower: PartitionFollower, request: FetchRequest, grant: FetchGrant, has_batches: bool
) -> Step:
    if grant.diverging is not None:
        return CutTo(follower._parting(grant.diverging))
    follower._told(grant.high_watermark)
    return AppendAnswer() if has_batches else None


def _never_parts(leader: PartitionLeader, request: FetchRequest) -> EpochEnd | None:
    return None


def _any_lineage(member: Member, live: election.Live) -> bool:
    return member.broker in live


def _forgets_nothing(member: Member, live: election.Live) -> bool:
    return False


def _joins_early(leader: PartitionLeader, follower: Member, progress: object, now_ms: int) -> None:
    if leader.pending is None:
        others = [each for each in leader.state.isr if each.broker != follower.broker]
        leader._change((*others, follower), IsrEvent.CAUGHT_UP)


def _any_start(replica: PartitionReplica, state: PartitionState) -> RoleEvent:
    if state.leader == replica.me.broker and state.leader_epoch != replica._epoch:
        return RoleEvent.ELECTED
    return _EVENT(replica, state)


_EVENT = PartitionReplica._event


def _sent_is_stored(leader: PartitionLeader, follower: Member, offset: int, now_ms: int) -> None:
    _COUNT(leader, follower, leader.log_end, now_ms)


_COUNT = PartitionLeader._count


def _old_leader(state: PartitionState, live: election.Live, unclean: bool) -> PartitionState:
    """One that is started again goes on, since it is still registered."""
    leader = live.get(state.leader, LiveBroker(-1, -1))
    if Member(state.leader, leader.lineage) in state.isr and state.leader != NO_LEADER:
        return replace(state, leader_start=leader.start)
    return _LED(state, live, unclean)


def _whole_all_the_same(state: PartitionState, member: Member) -> PartitionState:
    """Whoever is alone in sync has all that readers were given."""
    return replace(state, isr=(member,), elr=())


def _mutant(name: str, known: str, *changes: tuple[Any, str, Any]) -> Mutant:
    return Mutant(name, 1, known, _plant(*changes), SEEDS_MAX, partition=True)


PARTITIONS = (
    _mutant(
        "a follower cuts its log by the high watermark", "KIP-101",
        (PartitionFollower, "_parting", _cut_by_high_watermark),
    ),
    _mutant(
        "a follower cuts where the leader's epoch ends, not its own", "KIP-279",
        (PartitionFollower, "_parting", _cut_by_their_end),
    ),
    _mutant(
        "a leader does not see that logs part", "KIP-320",
        (PartitionLeader, "_divergence", _never_parts),
    ),
    _mutant(
        "the high watermark moves with too few in sync", "KIP-966",
        (PartitionLeader, "_advance", _advance_with_too_few),
    ),
    _mutant(
        "a shrink counts before it is stored", "KIP-497",
        (PartitionLeader, "_counted", _only_pending),
    ),
    _mutant(
        "a growth counts when it is known to be stored", "KIP-497",
        (PartitionLeader, "_counted", _only_stored),
    ),
    _mutant(
        "a leader that is elected again keeps its epoch", "",
        (election, "_new_leader", _same_epoch),
    ),
    _mutant(
        "a leader that is started again goes on", "",
        (election, "_led", _old_leader),
    ),
    _mutant(
        "a start leads for which another was elected", "",
        (PartitionReplica, "_event", _any_start),
    ),
    _mutant(
        "a leader counts what it has not synced", "",
        (PartitionLeader, "appended", _counts_unsynced),
    ),
    _mutant(
        "a producer that waits for the leader alone is told before its sync", "",
        (PartitionLeader, "stored_here", _appended_here),
    ),
    _mutant(
        "what is sent to a follower counts as stored", "",
        (PartitionLeader, "_count", _sent_is_stored),
    ),
    _mutant(
        "consumers are given what is not committed", "",
        (PartitionLeader, "readable_end", property(_to_the_end)),
    ),
    _mutant(
        "whoever lives is elected", "",
        (election, "_led", _anybody),
    ),
    _mutant(
        "nobody is eligible beside the in-sync set", "KIP-966",
        (election, "_with_eligible", _no_eligible),
    ),
    _mutant(
        "a log counts as whole after an unclean election", "KIP-320",
        (election, "alone_in_sync", _whole_all_the_same),
    ),
    _mutant(
        "a disk that has forgotten counts as before", "KIP-966",
        (election, "_lives", _any_lineage), (election, "_forgot", _forgets_nothing),
    ),
    _mutant(
        "a replica joins before it has caught up", "",
        (PartitionLeader, "_join", _joins_early),
    ),
    _mutant(
        "a follower takes any answer", "",
        (PartitionFollower, "answered", _any_answer),
    ),
)  # fmt: skip
