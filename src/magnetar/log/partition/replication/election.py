"""Who leads a partition, and who counts as in sync: every change of a ``PartitionState``.

Owns the rules, which the controller (a broker comes or goes) and the leader (a follower falls
behind or catches up) both apply before they compare and set. Pure.

Rules:

* Only a replica in sync is elected, or, when none is left, an eligible one: any other may lack what
  was committed. Both must be alive, of the lineage that they are counted with.
* A leader stays while it is in sync and its process is the one that was elected. A process that was
  started again is another leader, with a new epoch: what it had written and not synced may be on
  followers and not in its own log, so that one epoch must not be written from two memories.
* A broker that drains leads only what nobody else can (``relieve``). It stays in sync, which costs
  no copy and is undone at once.
* A replica that is not alive leaves the in-sync set. If the set is too small to commit then, it
  becomes eligible: nothing can be committed without it from here on, so it has everything. As soon
  as the set is large enough again, nobody is eligible: things are committed without them.
* A replica whose log has failed is out of sync until it has caught up (``give_up``). Where syncs
  are not waited for it may lack what it counted as stored: then it is not eligible either, as a
  process that is started again is not (KIP-966's unclean shutdown), unless nobody else is left who
  has what is committed. The epoch is another one after that, so that no fetch of before, wherever
  it was held up, says that it has what it lost. Why:
  docs/adr/0169-a-replica-that-failed-is-not-believed.md.
* A replica joins the in-sync set only while it lives (KIP-841): a fetch of one that has died may
  still be held back, and count; whoever joined by it would be taken out again at once, and so on.
* The only replica of a partition goes on with what it has, whatever it has forgotten: nobody else
  can know more.
* With ``unclean``, of the topic or of the broker that decides, any live replica will do if no other
  is there, and is then alone in sync. What it lacks is lost; that is off unless somebody says so.
* Every change of the leader, to nobody too, has a new epoch: what an earlier one still sends is
  refused.
* Who is in sync or eligible has all that readers were given, so that ``whole_since`` stays over any
  election of such a replica, and ends with any other. It begins with the next epoch in which a
  topic's owner leads (``move``), never with the election itself: a reader that knows of that one
  alone has to find out what is gone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from magnetar.log.partition.replication.partition_state import (
    NO_LEADER,
    NOT_KNOWN,
    Member,
    PartitionState,
)


class LiveBroker(NamedTuple):
    """A registered broker: which start of it, what its disk remembers, and whether it is to lead
    nothing that another can lead."""

    start: int
    lineage: int
    drains: bool = False


Live = Mapping[int, LiveBroker]


def elect(state: PartitionState, live: Live, *, unclean: bool = False) -> PartitionState | None:
    """``state`` as it has to be with these brokers; None: as it is."""
    if _is_settled(state, live):
        return None
    in_sync = tuple(member for member in state.isr if _lives(member, live))
    kept = _with_eligible(state, in_sync, live)
    found = _led(kept, live, unclean or state.unclean)
    found.check()
    return None if found == state else found


def _is_settled(state: PartitionState, live: Live) -> bool:
    """It leads who was elected, and all live who are in sync: so of nearly all partitions at nearly
    all looks, of which there is one for each change of any of them."""
    leader = live.get(state.leader)
    if leader is None or leader.start != state.leader_start or state.elr:
        return False
    return len(state.isr) >= state.least_in_sync and all(_lives(each, live) for each in state.isr)


def _lives(member: Member, live: Live) -> bool:
    broker = live.get(member.broker)
    return broker is not None and broker.lineage == member.lineage


def _forgot(member: Member, live: Live) -> bool:
    """It is back, and not what it was."""
    broker = live.get(member.broker)
    return broker is not None and broker.lineage != member.lineage


def _with_eligible(state: PartitionState, in_sync: Sequence[Member], live: Live) -> PartitionState:
    """With ``in_sync`` in sync, and who is eligible beside it."""
    if len(in_sync) >= state.least_in_sync:
        return replace(state, isr=tuple(in_sync), elr=())
    brokers = {member.broker for member in in_sync}
    eligible = tuple(
        member
        for member in (*state.elr, *state.isr)
        if member.broker not in brokers and not _forgot(member, live)
    )
    return replace(state, isr=tuple(in_sync), elr=eligible)


def _led(state: PartitionState, live: Live, unclean: bool) -> PartitionState:
    """With a leader, if there can be one."""
    in_sync = {member.broker: member for member in state.isr}
    leader = live.get(state.leader)
    if state.leader in in_sync and leader is not None and leader.start == state.leader_start:
        return state
    candidates = _candidates(state, live)
    for broker in candidates:
        if broker in in_sync:
            return _new_leader(state, broker, live)
    eligible = {member.broker: member for member in state.elr if _lives(member, live)}
    for broker in candidates:
        if broker in eligible:
            rest = tuple(member for member in state.elr if member.broker != broker)
            alone = replace(state, isr=(eligible[broker],), elr=rest)
            return _new_leader(_only_if_needed(alone), broker, live)
    if unclean or len(state.replicas) == 1:
        for broker in candidates:
            if broker in live:
                member = Member(broker, live[broker].lineage)
                return _new_leader(alone_in_sync(state, member), broker, live)
    if state.leader == NO_LEADER:
        return state
    return replace(state, leader=NO_LEADER, leader_start=0, leader_epoch=state.leader_epoch + 1)


def alone_in_sync(state: PartitionState, member: Member) -> PartitionState:
    """With that one, which may lack what was committed."""
    return replace(state, isr=(member,), elr=(), whole_since=NOT_KNOWN)


def _candidates(state: PartitionState, live: Live) -> list[int]:
    """Its replicas, those that drain last."""
    return sorted(state.replicas, key=lambda broker: broker in live and live[broker].drains)


def _only_if_needed(state: PartitionState) -> PartitionState:
    return state if state.too_few else replace(state, elr=())


def _new_leader(state: PartitionState, broker: int, live: Live) -> PartitionState:
    return replace(
        state,
        leader=broker,
        leader_start=live[broker].start,
        leader_epoch=state.leader_epoch + 1,
    )


def give_up(
    state: PartitionState, live: Live, broker: int, *, forgets: bool
) -> PartitionState | None:
    """The log of ``broker``'s replica has failed, and is to be opened anew; None: nothing follows.
    ``forgets``: it may lack then what it counted as stored."""
    others = {number: each for number, each in live.items() if number != broker}
    found = elect(state, others) or state
    elr = tuple(member for member in found.elr if member.broker != broker)
    counted = [member for member in (*state.isr, *state.elr) if member.broker == broker]
    if forgets and counted and not (found.isr or elr):
        found = replace(found, whole_since=NOT_KNOWN)
    elif forgets and counted:
        found = replace(found, elr=elr)
        if found.leader_epoch == state.leader_epoch and found.leader != NO_LEADER:
            found = _new_leader(found, found.leader, live)
    found.check()
    return None if found == state else found


def prefer(state: PartitionState, live: Live) -> PartitionState | None:
    """Led by its preferred replica, if that is alive, in sync and not to drain; None: it is so, or
    cannot be."""
    first = state.replicas[0]
    if state.leader in (first, NO_LEADER) or first not in _leads_on(state, live):
        return None
    return _new_leader(state, first, live)


def rescue(state: PartitionState, live: Live) -> PartitionState | None:
    """Led by any replica that lives, because somebody says so, though it may lack what was
    committed; None: it has a leader, or nobody lives."""
    if state.leader != NO_LEADER:
        return None
    found = elect(state, live, unclean=True)
    return found if found is not None and found.leader != NO_LEADER else None


def relieve(state: PartitionState, live: Live) -> PartitionState | None:
    """Led by another, if the leader drains; it stays in sync. None: it does not, or nobody else is
    there who can lead without a loss."""
    leader = live.get(state.leader)
    if leader is None or not leader.drains:
        return None
    others = _leads_on(state, live)
    return _new_leader(state, others[0], live) if others else None


def _leads_on(state: PartitionState, live: Live) -> list[int]:
    """Who is alive, in sync and does not drain, the preferred leader first."""
    in_sync = {member.broker for member in state.isr if _lives(member, live)}
    return [each for each in state.replicas if each in in_sync and not live[each].drains]


def move(
    state: PartitionState, live: Live, broker: int, *, unclean: bool = False
) -> PartitionState | None:
    """Led by ``broker``, in a new epoch in any case; as ``elect`` if it is not in sync. (Whoever
    owns a topic leads it: what it wrote before, as an earlier owner, is of an earlier epoch.)"""
    found = elect(state, live, unclean=unclean) or state
    if found.leader == broker and found.leader_epoch > state.leader_epoch:
        return _whole(found)
    in_sync = [member for member in found.isr if member.broker == broker]
    if not in_sync or not _lives(in_sync[0], live):
        return None if found == state else found
    return _whole(_new_leader(found, broker, live))


def _whole(state: PartitionState) -> PartitionState:
    known = state.whole_since != NOT_KNOWN
    return state if known else replace(state, whole_since=state.leader_epoch)


def may_join(state: PartitionState, isr: Sequence[Member], live: Live) -> bool:
    """Whether all of ``isr`` live who are not in sync yet."""
    return all(member in state.isr or _lives(member, live) for member in isr)


def with_isr(state: PartitionState, isr: Sequence[Member]) -> PartitionState:
    """What a leader stores: ``isr`` is in sync from now on, itself included. The epoch stays."""
    found = _with_eligible(state, isr, {})
    found.check()
    return found
