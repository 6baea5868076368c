"""What is kept of a group and of its members: in memory and, in this form, in the log.

Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Any, NamedTuple, TypeAlias

from magnetar.protocols.kafka.consumers.id_partitions import (
    NOWHERE,
    IdPartitions,
    partitions_from_json,
    partitions_to_json,
)
from magnetar.wire.kafka.consumer_group_messages import LEAVE_FOR_A_WHILE_EPOCH


class MemberState(StrEnum):
    """How far a member is on its way to what it is to have (``reconciliation``)."""

    STABLE = "stable"
    """It has all that the target of its epoch gives it."""
    UNREVOKED = "unrevoked"
    """It is to give something up, and has not said that it did."""
    UNRELEASED = "unreleased"
    """It waits for what others have not given up."""


class ConsumerGroupKey(NamedTuple):
    group: str


class ConsumerMemberKey(NamedTuple):
    group: str
    member_id: str


class ConsumerGroupRecord(NamedTuple):
    """``epoch``: of the group, raised by all that changes who is to have what."""

    epoch: int
    assignment_epoch: int


class ConsumerMemberRecord(NamedTuple):
    """``names`` is sorted; empty texts say that nothing was said. ``assigned`` is what the member
    may use, ``revoking`` what it has had and is to give up: both are its own, and nobody
    else's."""

    instance_id: str
    rack_id: str
    client_id: str
    client_host: str
    rebalance_ms: int
    names: tuple[str, ...]
    pattern: str
    assignor: str
    epoch: int = 0
    previous_epoch: int = -1
    state: MemberState = MemberState.STABLE
    assigned: IdPartitions = NOWHERE
    revoking: IdPartitions = NOWHERE

    @property
    def holds(self) -> IdPartitions:
        return self.assigned | self.revoking

    @property
    def is_away(self) -> bool:
        """A static member that has said that it will be back."""
        return self.epoch == LEAVE_FOR_A_WHILE_EPOCH


ConsumerGroupChange: TypeAlias = tuple[ConsumerGroupKey, ConsumerGroupRecord | None]
ConsumerMemberChange: TypeAlias = tuple[ConsumerMemberKey, ConsumerMemberRecord | None]
ConsumerChange: TypeAlias = ConsumerGroupChange | ConsumerMemberChange


class ConsumerRecords:
    """All groups of one log, as they are stored."""

    def __init__(self) -> None:
        self.groups: dict[str, ConsumerGroupRecord] = {}
        self._members: dict[str, dict[str, ConsumerMemberRecord]] = {}

    def __len__(self) -> int:
        return len(self.groups) + sum(map(len, self._members.values()))

    def members(self, group: str) -> dict[str, ConsumerMemberRecord]:
        return self._members.get(group, {})

    def set_group(self, key: ConsumerGroupKey, record: ConsumerGroupRecord | None) -> None:
        if record is not None:
            self.groups[key.group] = record
        else:
            self.groups.pop(key.group, None)

    def set_member(self, key: ConsumerMemberKey, record: ConsumerMemberRecord | None) -> None:
        found = self._members.setdefault(key.group, {})
        if record is not None:
            found[key.member_id] = record
        else:
            found.pop(key.member_id, None)
        if not found:
            del self._members[key.group]

    def all(self) -> list[ConsumerChange]:
        found: list[ConsumerChange] = [
            (ConsumerGroupKey(name), record) for name, record in self.groups.items()
        ]
        for name, members in self._members.items():
            found += [(ConsumerMemberKey(name, each), record) for each, record in members.items()]
        return found


def member_to_json(record: ConsumerMemberRecord) -> list[Any]:
    return [
        *record[:5],
        list(record.names),
        *record[6:11],
        partitions_to_json(record.assigned),
        partitions_to_json(record.revoking),
    ]


def member_from_json(said: Sequence[Any]) -> ConsumerMemberRecord:
    """Raises ``ValueError``, ``TypeError``."""
    instance_id, rack_id, client_id, host, rebalance_ms, names, pattern, assignor, *rest = said
    epoch, previous_epoch, state, assigned, revoking, *_ = rest
    return ConsumerMemberRecord(
        str(instance_id),
        str(rack_id),
        str(client_id),
        str(host),
        int(rebalance_ms),
        tuple(map(str, names)),
        str(pattern),
        str(assignor),
        int(epoch),
        int(previous_epoch),
        MemberState(state),
        partitions_from_json(assigned),
        partitions_from_json(revoking),
    )
