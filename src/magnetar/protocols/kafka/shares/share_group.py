"""One share group (KIP-932). A machine: heartbeats in, answers out.

Members say what they subscribe to, and are told which partitions to read (``simple_assignor``).
The group has an *epoch*, which each change of its members, of what they subscribe to or of the
topics raises; a member has that of the target that it was told last.

Rules:

* A member is in the group from its first heartbeat (epoch 0) on, until it leaves (epoch -1) or is
  not heard of within the session timeout. Who is not in it joins again.
* Epochs only grow, while one coordinator has the group. A member that names a later epoch than its
  own is fenced; an earlier one, it has not got its last answer, and is told again.
* Members are in memory only. A coordinator that goes on elsewhere knows the group, and not them:
  they join again within one heartbeat, and meanwhile go on reading, for what they read is between
  them and the partitions' leaders.

Time comes in with each call, in milliseconds; ``next_ms`` says when ``tick`` has something to do.

Pure. Why: docs/adr/0167-share-groups.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from magnetar.protocols.kafka.consumers.id_partitions import NOWHERE, IdPartitions, TopicShape
from magnetar.protocols.kafka.shares.simple_assignor import shared_out
from magnetar.wire.kafka.consumer_group_messages import JOIN_EPOCH, LEAVE_EPOCH
from magnetar.wire.kafka.errors import ErrorCode

EMPTY: Final = "Empty"
STABLE: Final = "Stable"
"""States of a group, as Kafka names them to admins."""


class ShareHeartbeat(NamedTuple):
    """What a client says; None: as before."""

    member_id: str
    epoch: int
    rack_id: str | None = None
    names: tuple[str, ...] | None = None
    client_id: str = ""
    client_host: str = ""


class ShareAnswer(NamedTuple):
    """``assigned`` None: as before. ``heartbeat_ms``: as ``HeartbeatAnswer`` has it."""

    error: ErrorCode = ErrorCode.NONE
    why: str = ""
    epoch: int = 0
    assigned: IdPartitions | None = None
    heartbeat_ms: int = 0


@dataclass(slots=True)
class ShareMember:
    member_id: str
    names: frozenset[str]
    rack_id: str
    client_id: str
    client_host: str
    epoch: int
    alive_until_ms: int
    assigned: IdPartitions = NOWHERE


class ShareGroup:
    """See the module's text. ``epoch``: where it begins."""

    def __init__(
        self, group_id: str, session_ms: int, members_max: int, now_ms: int, epoch: int = 0
    ) -> None:
        self.group_id = group_id
        self.epoch = epoch
        self.members: dict[str, ShareMember] = {}
        self.topics: Mapping[str, TopicShape] = {}
        """By name; of those that members subscribe to, the ones that are there."""
        self.looked_up: frozenset[str] = frozenset()
        """The names that ``topics`` has the answers of."""
        self.empty_since_ms = now_ms
        self.session_ms = session_ms
        self._members_max = members_max
        self._target: dict[str, IdPartitions] = {}
        self._target_epoch = epoch

    @property
    def phase(self) -> str:
        return STABLE if self.members else EMPTY

    def names(self) -> set[str]:
        """All that members subscribe to."""
        return {name for member in self.members.values() for name in member.names}

    # -- heartbeats ---------------------------------------------------------------------------

    def heartbeat(self, said: ShareHeartbeat, now_ms: int) -> ShareAnswer:
        member = self.members.get(said.member_id)
        if said.epoch == LEAVE_EPOCH:
            if member is None:
                return self._unknown(said.member_id)
            self._remove(member, now_ms)
            return ShareAnswer(epoch=LEAVE_EPOCH)
        if said.epoch == JOIN_EPOCH and member is None:
            if len(self.members) >= self._members_max:
                why = f"group {self.group_id} has {self._members_max} members, which is the most"
                return ShareAnswer(ErrorCode.GROUP_MAX_SIZE_REACHED, why)
            member = self._add(said, now_ms)
        if member is None:
            return self._unknown(said.member_id)
        if said.epoch > member.epoch:
            why = f"member {said.member_id} has epoch {member.epoch}, not {said.epoch}: join again"
            return ShareAnswer(ErrorCode.FENCED_MEMBER_EPOCH, why)
        self._update(member, said)
        member.alive_until_ms = now_ms + self.session_ms
        self._make_target()
        assigned = self._target[member.member_id]
        told = said.epoch == self.epoch and said.names is None and assigned == member.assigned
        member.epoch, member.assigned = self.epoch, assigned
        return ShareAnswer(epoch=member.epoch, assigned=None if told else assigned)

    def _unknown(self, member_id: str) -> ShareAnswer:
        why = f"group {self.group_id} has no member {member_id}: it must join again"
        return ShareAnswer(ErrorCode.UNKNOWN_MEMBER_ID, why)

    def _add(self, said: ShareHeartbeat, now_ms: int) -> ShareMember:
        member = ShareMember(
            said.member_id,
            frozenset(said.names or ()),
            said.rack_id or "",
            said.client_id,
            said.client_host,
            0,
            now_ms,
        )
        self.members[said.member_id] = member
        self.epoch += 1
        return member

    def _update(self, member: ShareMember, said: ShareHeartbeat) -> None:
        if said.rack_id is not None:
            member.rack_id = said.rack_id
        if said.names is not None and member.names != frozenset(said.names):
            member.names = frozenset(said.names)
            self.epoch += 1

    def _remove(self, member: ShareMember, now_ms: int) -> None:
        del self.members[member.member_id]
        self.epoch += 1
        if not self.members:
            self.empty_since_ms = now_ms

    # -- topics and time ----------------------------------------------------------------------

    def learn(self, names: frozenset[str], topics: Mapping[str, TopicShape]) -> None:
        """``topics``: those of ``names`` that are there."""
        if topics != self.topics:
            self.epoch += 1
        self.topics, self.looked_up = topics, names

    def _make_target(self) -> None:
        if self._target_epoch == self.epoch and self._target.keys() == self.members.keys():
            return
        said = {name: member.names for name, member in self.members.items()}
        self._target, self._target_epoch = shared_out(said, self.topics), self.epoch

    def tick(self, now_ms: int) -> list[str]:
        """Members that are silent are out. Returns who, and why."""
        silent = [each for each in self.members.values() if each.alive_until_ms <= now_ms]
        for member in silent:
            self._remove(member, now_ms)
        return [f"{each.member_id}: silent for {self.session_ms} ms" for each in silent]

    def next_ms(self) -> int | None:
        return min((each.alive_until_ms for each in self.members.values()), default=None)
