"""How a member gets from what it has to what it is to have: a step at each of its heartbeats.

==============  =================================================  ====================
a member is     and at its heartbeat                               is then
==============  =================================================  ====================
``STABLE``      nothing newer is there for it                      ``STABLE``
any             it holds what it is to give up                     ``UNREVOKED``
``UNREVOKED``   it has not said that it gave that up               ``UNREVOKED``
any             others hold what it is to have                     ``UNRELEASED``
any             it has all that it is to have                      ``STABLE``
==============  =================================================  ====================

A member gives up first, and what it gave up is free from then on; it is told of what it gets when
nobody holds that any more. It has the epoch of the target once it has given up all that the target
does not give it; one that has given up something while a newer target asks for more goes one epoch
on, which begins the time that it has for that anew.

Source: Kafka's consumer groups (KIP-848), which differ in one thing: a member that does not name a
partition which it is to give up is not told of the revocation there, and is here. It may have begun
with it since it sent that; so the partition stays its own until its next heartbeat, which names it,
or says nothing, where nothing has changed.

Pure.
"""

from __future__ import annotations

from collections.abc import Callable

from magnetar.protocols.kafka.consumers.consumer_records import ConsumerMemberRecord, MemberState
from magnetar.protocols.kafka.consumers.id_partitions import NOWHERE, IdPartitions, TopicIdPartition


def reconciled(
    member: ConsumerMemberRecord,
    target: IdPartitions,
    target_epoch: int,
    is_free: Callable[[TopicIdPartition], bool],
    owned: IdPartitions | None,
) -> ConsumerMemberRecord:
    """The member after a step towards ``target``. ``is_free``: no other member holds the partition;
    ``owned``: what the member says that it has, or has said and stands by; None: not known."""
    if member.state is MemberState.UNREVOKED:
        if owned is None or owned & member.revoking:
            return member
        return _step(member, member.epoch + 1, target, target_epoch, is_free)
    if member.state is MemberState.STABLE and member.epoch == target_epoch:
        return member
    return _step(member, member.epoch, target, target_epoch, is_free)


def _step(
    member: ConsumerMemberRecord,
    epoch: int,
    target: IdPartitions,
    target_epoch: int,
    is_free: Callable[[TopicIdPartition], bool],
) -> ConsumerMemberRecord:
    kept = member.assigned & target
    revoking = member.assigned - kept
    if revoking:
        state, assigned = MemberState.UNREVOKED, kept
    else:
        epoch = target_epoch
        wanted = target - kept
        free = frozenset(filter(is_free, wanted))
        assigned = kept | free
        state = MemberState.STABLE if free == wanted else MemberState.UNRELEASED
    return member._replace(
        epoch=epoch,
        previous_epoch=member.epoch if epoch != member.epoch else member.previous_epoch,
        state=state,
        assigned=assigned,
        revoking=revoking or NOWHERE,
    )
