"""Ring 2, with Kafka's clients: one rule broken each of groups whose coordinator assigns, and of
share groups."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from magnetar.protocols.kafka.consumers import consumer_group
from magnetar.protocols.kafka.consumers.consumer_group import ConsumerGroup
from magnetar.protocols.kafka.consumers.consumer_records import MemberState
from magnetar.protocols.kafka.consumers.id_partitions import NOWHERE
from magnetar.protocols.kafka.consumers.reconciliation import reconciled
from magnetar.protocols.kafka.handlers.led_share_partition import LedSharePartition
from magnetar.protocols.kafka.shares.share_partition import SharePartition
from magnetar.wire.kafka.errors import ErrorCode
from tests.sim.mutants.mutant import Mutant, replaced

SEEDS_MAX = 300


def _given_up_without_a_word() -> AbstractContextManager[None]:
    """What a member is to give up is free at once."""

    def at_once(member: Any, *args: Any) -> Any:
        found = reconciled(member, *args)
        if found.state is MemberState.UNREVOKED:
            found = found._replace(revoking=NOWHERE)
        return found

    return replaced((consumer_group, "reconciled", at_once))


def _restored_members_are_late() -> AbstractContextManager[None]:
    """Who takes a group over waits a tenth of the session for its members."""
    original = ConsumerGroup.restored

    def restored(*args: Any) -> ConsumerGroup:
        found = original(*args)
        for member in found.members.values():
            member.alive_until_ms -= found.session_ms * 9 // 10
        return found

    return replaced((ConsumerGroup, "restored", staticmethod(restored)))


def _old_epochs_commit() -> AbstractContextManager[None]:
    """Who is a member commits, whatever epoch it says."""

    def check_epoch(self: Any, member_id: str, epoch: int) -> ErrorCode:
        return ErrorCode.NONE

    return replaced((ConsumerGroup, "_check_epoch", check_epoch))


def _acknowledged_before_kept() -> AbstractContextManager[None]:
    """A share group's member is told before the coordinator has its word."""

    async def acknowledge(self: Any, member: str, said: Any) -> ErrorCode:
        self._check()
        self._expire()
        error: ErrorCode = self.machine.acknowledge(member, said)
        if error is ErrorCode.NONE and said:
            self._plan()
            self._wake()
            self._services.scope.spawn(self._store_quietly(), "stores what was told")
        return error

    return replaced((LedSharePartition, "acknowledge", acknowledge))


def _done_with_is_passed_over() -> AbstractContextManager[None]:
    """Who comes too late for a record is told that its word counts."""
    original = SharePartition._check

    def check(self: Any, member: str, said: Any) -> ErrorCode:
        return ErrorCode.NONE if said.last < self.start else original(self, member, said)

    return replaced((SharePartition, "_check", check))


def _mutant(name: str, plant: Any, known: str = "") -> Mutant:
    return Mutant(name, 2, known, plant, SEEDS_MAX, kind="kafka")


KAFKA_GROUPS = (
    _mutant("what a member is to give up is free at once", _given_up_without_a_word),
    _mutant("members of a group that moved are soon out", _restored_members_are_late),
    _mutant("a member commits by an epoch that it had", _old_epochs_commit),
    _mutant("a share group's word counts before it is kept", _acknowledged_before_kept),
    _mutant("who is too late for a record is told that it counts", _done_with_is_passed_over),
)
