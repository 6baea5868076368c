"""One group whose coordinator says who gets what (KIP-848). A machine: heartbeats in, answers out.

The group has an *epoch*, which each change of its members, of what they subscribe to, or of the
topics raises; an assignor then says who is to have what (the *target*), which has that epoch; and
each member is brought there step by step at its own heartbeats (``reconciliation``), with an epoch
of its own, by which it is fenced.

Rules:

* A partition is held by one member at most: by whom it is assigned to, or who is to give it up and
  has not said so. Nobody is told of a partition that another holds.
* Epochs only grow.
* A member that is not heard of within the session timeout is out, and so is one that does not give
  up what it is to within its rebalance timeout; what it held is free then. A static member that
  leaves for a while keeps what it holds within its session, for whoever comes back in its name.
* A member that joins (epoch 0) says that it has nothing: what it held is free, but for a static
  one's that comes back. One with an epoch that is not its own is fenced: it gives up everything and
  joins again. The epoch before counts if it claims nothing that is not assigned to it: it has not
  got its last answer.
* What changes is said by ``take_changes``, to be stored *before* the answer leaves; from what is
  stored a group goes on elsewhere (``restored``), with its members, their partitions and epochs.
  Only the target is made anew there.

A target costs time in proportion to the group: the larger it is, the longer the group waits for
more changes before it makes another (``_target_pause_ms``). Small ones do not wait.

Time comes in with each call, in milliseconds; ``next_ms`` says when ``tick`` has something to do.

Pure. Why: docs/adr/0162-groups-by-heartbeats.md.
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from magnetar.protocols.kafka.consumers.assignors import (
    ASSIGNORS,
    DEFAULT_ASSIGNOR,
    Subscriber,
    Target,
)
from magnetar.protocols.kafka.consumers.consumer_records import (
    ConsumerChange,
    ConsumerGroupKey,
    ConsumerGroupRecord,
    ConsumerMemberKey,
    ConsumerMemberRecord,
    MemberState,
)
from magnetar.protocols.kafka.consumers.id_partitions import (
    NOWHERE,
    IdPartitions,
    TopicIdPartition,
    TopicShape,
)
from magnetar.protocols.kafka.consumers.reconciliation import reconciled
from magnetar.wire.kafka.consumer_group_messages import (
    JOIN_EPOCH,
    LEAVE_EPOCH,
    LEAVE_FOR_A_WHILE_EPOCH,
)
from magnetar.wire.kafka.errors import ErrorCode

MEMBER_EPOCHS_SINCE: Final = 9
"""The version of OffsetCommit from which on members of such groups commit."""
SMALL: Final = 1_000
"""Members and partitions of a group whose target is made at each change."""
UNITS_PER_MS: Final = 10
"""A larger one waits a millisecond for each so many."""
PAUSE_MS_MAX: Final = 5_000
REBALANCE_MS_MOST: Final = 3_600_000


class GroupPhase:
    """States of a group, as Kafka names them to admins."""

    EMPTY: Final = "Empty"
    ASSIGNING: Final = "Assigning"
    RECONCILING: Final = "Reconciling"
    STABLE: Final = "Stable"


class ConsumerHeartbeat(NamedTuple):
    """What a client says. None, and -1 of the timeout: as before. ``new_id``: the id that it gets
    if it has none."""

    member_id: str
    new_id: str
    epoch: int
    instance_id: str | None = None
    rack_id: str | None = None
    rebalance_ms: int = -1
    names: tuple[str, ...] | None = None
    pattern: str | None = None
    assignor: str | None = None
    owned: IdPartitions | None = None
    client_id: str = ""
    client_host: str = ""

    @property
    def subscribes(self) -> bool:
        return self.names is not None or self.pattern is not None

    @property
    def says_all(self) -> bool:
        """It joins, or is not sure of what has arrived: it is to be told what it has."""
        full = self.rebalance_ms != -1 and self.subscribes and self.owned is not None
        return self.epoch == JOIN_EPOCH or full


class HeartbeatAnswer(NamedTuple):
    """``assigned`` None: as before. ``heartbeat_ms``: when the member is to be heard of again; said
    by who has asked the group."""

    error: ErrorCode = ErrorCode.NONE
    why: str = ""
    member_id: str = ""
    epoch: int = 0
    assigned: IdPartitions | None = None
    heartbeat_ms: int = 0


@dataclass(slots=True)
class LiveMember:
    """``revoked_until_ms``: when it must have given up what it is to; None: nothing. ``named``:
    what it said last that it has, if it was told of nothing else since; None: not known."""

    member_id: str
    record: ConsumerMemberRecord
    alive_until_ms: int
    revoked_until_ms: int | None = None
    named: IdPartitions | None = None


class MemberView(NamedTuple):
    member_id: str
    record: ConsumerMemberRecord
    target: IdPartitions


class ConsumerGroup:
    """See the module's text."""

    def __init__(self, group_id: str, session_ms: int, members_max: int, now_ms: int = 0) -> None:
        self.group_id = group_id
        self.epoch = 0
        self.assignment_epoch = 0
        self.members: dict[str, LiveMember] = {}
        self.topics: Mapping[str, TopicShape] = {}
        """By name; of those that members subscribe to, the ones that are there."""
        self.matched: Mapping[str, frozenset[str]] = {}
        """The topics that each regular expression of a member stands for."""
        self.looked_up: tuple[frozenset[str], frozenset[str]] = frozenset(), frozenset()
        """Names and regular expressions that ``topics`` and ``matched`` have the answers of."""
        self.empty_since_ms = now_ms
        self.session_ms = session_ms
        self._members_max = members_max
        self._static: dict[str, str] = {}  # instance id -> member id
        self._holder: dict[TopicIdPartition, str] = {}  # -> member id
        self._target: Target = {}
        self.is_restored = False
        """It knows its members from what was stored, and no topics and no target yet."""
        self._next_target_ms = 0
        self._changed: dict[str, None] = {}  # members that are to be stored
        self._group_changed = False

    @classmethod
    def restored(
        cls,
        group_id: str,
        group: ConsumerGroupRecord,
        members: Mapping[str, ConsumerMemberRecord],
        session_ms: int,
        members_max: int,
        now_ms: int,
    ) -> ConsumerGroup:
        """From what was stored. Its members have a whole session to be heard of."""
        found = cls(group_id, session_ms, members_max, now_ms)
        found.epoch, found.assignment_epoch = group
        for member_id, record in members.items():
            if any(place in found._holder for place in record.holds):
                # A change of very many members is written in pieces, and the last ones are missing:
                # nobody was told of it. Who has what is not known of this one: it joins again.
                found._changed[member_id] = None
                continue
            late = None
            if record.state is MemberState.UNREVOKED:
                late = now_ms + record.rebalance_ms
            found.members[member_id] = LiveMember(member_id, record, now_ms + session_ms, late)
            if record.instance_id:
                found._static[record.instance_id] = member_id
            found._holder.update(dict.fromkeys(record.holds, member_id))
            found._target[member_id] = record.assigned
        found.is_restored = bool(members)
        return found

    # -- heartbeats ---------------------------------------------------------------------------

    def heartbeat(self, said: ConsumerHeartbeat, now_ms: int) -> HeartbeatAnswer:
        if said.epoch in (LEAVE_EPOCH, LEAVE_FOR_A_WHILE_EPOCH):
            return self._leave(said, now_ms)
        found = self._joins(said, now_ms) if said.epoch == JOIN_EPOCH else self._known(said)
        if isinstance(found, HeartbeatAnswer):
            return found
        before = found.record
        member = _updated(before, said)
        is_new = before is _NEWCOMER
        if is_new or (member.names, member.pattern) != (before.names, before.pattern):
            self._raise_epoch()
        self._set(found, member)
        self._make_target(now_ms)
        target = self._target.get(found.member_id, NOWHERE)
        if said.epoch == JOIN_EPOCH:
            # A static one that comes back says that it has nothing, so it has nothing to give up.
            member = member._replace(assigned=member.assigned & target)
        owned = found.named if said.owned is None else said.owned
        self._set(
            found, reconciled(member, target, self.assignment_epoch, self._is_free(found), owned)
        )
        # Told of more than it named, it may have begun with that before it says so.
        knows_more = owned is None or not found.record.assigned <= owned
        found.named = None if knows_more else owned
        self._heard(found, before, now_ms)
        changed = found.record.assigned != before.assigned
        assigned = found.record.assigned if said.says_all or changed else None
        return HeartbeatAnswer(
            member_id=found.member_id, epoch=found.record.epoch, assigned=assigned
        )

    def _is_free(self, member: LiveMember) -> Callable[[TopicIdPartition], bool]:
        holder, mine = self._holder, member.member_id
        return lambda place: holder.get(place, mine) == mine

    def _joins(self, said: ConsumerHeartbeat, now_ms: int) -> LiveMember | HeartbeatAnswer:
        member_id = said.member_id or said.new_id
        former_id = self._static.get(said.instance_id) if said.instance_id else member_id
        former = self.members.get(former_id or member_id)
        if former is None:
            if len(self.members) >= self._members_max:
                why = f"group {self.group_id} has {self._members_max} members, which is the most"
                return HeartbeatAnswer(ErrorCode.GROUP_MAX_SIZE_REACHED, why)
            member = LiveMember(member_id, _NEWCOMER, now_ms)
            self.members[member_id] = member
            return member
        if former.record.is_away:
            return self._come_back(former, member_id, now_ms)
        if former.member_id != member_id:
            return HeartbeatAnswer(
                ErrorCode.UNRELEASED_INSTANCE_ID,
                f"member {former.member_id} of group {self.group_id} is {said.instance_id}, and "
                "has not left",
            )
        # It has nothing, it says: it was fenced, or has not got the answer to its last join.
        self._set(
            former,
            former.record._replace(
                epoch=JOIN_EPOCH,
                previous_epoch=-1,
                state=MemberState.STABLE,
                assigned=NOWHERE,
                revoking=NOWHERE,
            ),
        )
        return former

    def _come_back(self, former: LiveMember, member_id: str, now_ms: int) -> LiveMember:
        """A static member, with what it had."""
        record = former.record._replace(
            epoch=JOIN_EPOCH, previous_epoch=-1, state=MemberState.STABLE
        )
        target = self._target.get(former.member_id, NOWHERE)
        self._drop(former)
        other = self.members.get(member_id)
        if other is not None:  # it was in the group under another name, or none
            self._drop(other)
        member = LiveMember(member_id, _NEWCOMER, now_ms)
        self.members[member_id] = member
        self._target[member_id] = target
        self._set(member, record)
        return member

    def _known(self, said: ConsumerHeartbeat) -> LiveMember | HeartbeatAnswer:
        found = self._named(said.member_id, said.instance_id)
        if isinstance(found, HeartbeatAnswer):
            return found
        record = found.record
        lost = said.epoch == record.previous_epoch and (
            said.owned is not None and said.owned <= record.assigned
        )
        if said.epoch == record.epoch or lost:
            return found
        return HeartbeatAnswer(
            ErrorCode.FENCED_MEMBER_EPOCH,
            f"member {said.member_id} of group {self.group_id} says epoch {said.epoch} and has "
            f"{record.epoch}: it must give up its partitions and join again",
        )

    def _named(self, member_id: str, instance_id: str | None) -> LiveMember | HeartbeatAnswer:
        if instance_id is not None:
            known = self._static.get(instance_id)
            if known is None:
                why = f"group {self.group_id} has no static member {instance_id}"
                return HeartbeatAnswer(ErrorCode.UNKNOWN_MEMBER_ID, why)
            if known != member_id:
                why = f"{instance_id} of group {self.group_id} is member {known} by now"
                return HeartbeatAnswer(ErrorCode.FENCED_INSTANCE_ID, why)
        found = self.members.get(member_id)
        if found is None:
            why = f"group {self.group_id} has no member {member_id}: it must join again"
            return HeartbeatAnswer(ErrorCode.UNKNOWN_MEMBER_ID, why)
        return found

    def _heard(self, member: LiveMember, before: ConsumerMemberRecord, now_ms: int) -> None:
        member.alive_until_ms = now_ms + self.session_ms
        record = member.record
        if record.state is not MemberState.UNREVOKED:
            member.revoked_until_ms = None
        elif member.revoked_until_ms is None or record.epoch != before.epoch:
            member.revoked_until_ms = now_ms + record.rebalance_ms

    # -- who is here --------------------------------------------------------------------------

    def _set(self, member: LiveMember, record: ConsumerMemberRecord) -> None:
        before = member.record
        if record == before:
            return
        for place in before.holds - record.holds:
            del self._holder[place]
        for place in record.holds - before.holds:
            assert place not in self._holder, "a partition has one holder"
            self._holder[place] = member.member_id
        if record.instance_id != before.instance_id:
            self._forget_instance(member)
            self._static[record.instance_id] = member.member_id
        member.record = record
        self._changed[member.member_id] = None

    def _forget_instance(self, member: LiveMember) -> None:
        instance_id = member.record.instance_id
        if self._static.get(instance_id) == member.member_id:
            del self._static[instance_id]

    def _drop(self, member: LiveMember) -> None:
        for place in member.record.holds:
            del self._holder[place]
        self._forget_instance(member)
        del self.members[member.member_id]
        self._target.pop(member.member_id, None)
        self._changed[member.member_id] = None

    def _leave(self, said: ConsumerHeartbeat, now_ms: int) -> HeartbeatAnswer:
        found = self._named(said.member_id, said.instance_id)
        if isinstance(found, HeartbeatAnswer):
            return found
        if said.epoch == LEAVE_FOR_A_WHILE_EPOCH and found.record.instance_id:
            found.revoked_until_ms = None
            self._set(
                found,
                found.record._replace(
                    epoch=LEAVE_FOR_A_WHILE_EPOCH, state=MemberState.STABLE, revoking=NOWHERE
                ),
            )
        else:
            self._remove([found], now_ms)
        return HeartbeatAnswer(member_id=said.member_id, epoch=said.epoch)

    def remove(self, member_id: str, instance_id: str | None, now_ms: int) -> ErrorCode:
        """For admins, who name static members by their instance alone."""
        if instance_id is not None and not member_id:
            member_id = self._static.get(instance_id, "")
        found = self._named(member_id, instance_id)
        if isinstance(found, HeartbeatAnswer):
            return found.error
        self._remove([found], now_ms)
        return ErrorCode.NONE

    def _remove(self, members: Iterable[LiveMember], now_ms: int) -> None:
        for member in members:
            self._drop(member)
        self._raise_epoch()
        self._make_target(now_ms)
        if not self.members:
            self.empty_since_ms = now_ms

    # -- who is to have what ------------------------------------------------------------------

    def subscriptions(self) -> tuple[frozenset[str], frozenset[str]]:
        """The names and the regular expressions that its members have said."""
        kinds = {(each.record.names, each.record.pattern) for each in self.members.values()}
        names = frozenset(name for names, _ in kinds for name in names)
        return names, frozenset(pattern for _, pattern in kinds if pattern)

    def pattern_of(self, said: ConsumerHeartbeat) -> str:
        """The regular expression of who says that: the one that it says, or said before."""
        if said.pattern is not None:
            return said.pattern
        member = self.members.get(said.member_id)
        return "" if member is None else member.record.pattern

    @property
    def knows_topics(self) -> bool:
        """It was told of all that its members subscribe to."""
        (names, patterns), (known, known_patterns) = self.subscriptions(), self.looked_up
        return not self.is_restored and names <= known and patterns <= known_patterns

    def learn(
        self,
        names: Iterable[str],
        topics: Mapping[str, TopicShape],
        matched: Mapping[str, frozenset[str]],
        now_ms: int,
    ) -> None:
        """``topics``: those that there are, of ``names`` and of what regular expressions
        (``matched``) stand for."""
        before = self._subscribed()
        self.topics, self.matched = topics, matched
        self.looked_up = frozenset(names), frozenset(matched)
        if self.is_restored:
            self.is_restored = False
            if self._is_settled():
                return
        elif self._subscribed() == before:
            return
        self._raise_epoch()
        self._make_target(now_ms)

    def _is_settled(self) -> bool:
        """What its members have is what a target would give them: a group that was restored goes
        on without an epoch more."""
        target = self._computed()
        return self.epoch == self.assignment_epoch and all(
            each.record.assigned == target[member_id]
            and each.record.state is MemberState.STABLE
            and each.record.epoch == self.epoch
            for member_id, each in self.members.items()
        )

    def _subscribed(self) -> tuple[dict[str, TopicShape], dict[str, frozenset[str]]]:
        """All that its members subscribe to, as far as it is there."""
        kinds = {(each.record.names, each.record.pattern) for each in self.members.values()}
        found: dict[str, TopicShape] = {}
        for names, pattern in kinds:
            for name in (*names, *self.matched.get(pattern, ())):
                if name in self.topics:
                    found[name] = self.topics[name]
        return found, {
            pattern: self.matched.get(pattern, frozenset()) for _, pattern in kinds if pattern
        }

    def _raise_epoch(self) -> None:
        self.epoch += 1
        self._group_changed = True

    def _make_target(self, now_ms: int) -> None:
        if self.assignment_epoch == self.epoch or self.is_restored or now_ms < self._next_target_ms:
            return
        self._target = self._computed()
        self.assignment_epoch = self.epoch
        self._group_changed = True
        self._next_target_ms = now_ms + self._target_pause_ms()

    def _target_pause_ms(self) -> int:
        size = len(self.members) + sum(each.partitions for each in self.topics.values())
        return 0 if size < SMALL else min(PAUSE_MS_MAX, size // UNITS_PER_MS)

    def _computed(self) -> Target:
        ids: dict[tuple[tuple[str, ...], str], frozenset[uuid.UUID]] = {}
        subscribers = []
        for member in self.members.values():
            names, pattern = kind = member.record.names, member.record.pattern
            if kind not in ids:
                wanted = (*names, *self.matched.get(pattern, ()))
                ids[kind] = frozenset(
                    self.topics[name].topic_id for name in wanted if name in self.topics
                )
            has = self._target.get(member.member_id, NOWHERE)
            subscribers.append(Subscriber(member.member_id, ids[kind], has))
        partitions = {each.topic_id: each.partitions for each in self.topics.values()}
        return ASSIGNORS[self.assignor](subscribers, partitions)

    @property
    def assignor(self) -> str:
        """The one that most members ask for, of those that ask for one."""
        votes = Counter(each.record.assignor for each in self.members.values())
        del votes[""]
        return max(sorted(votes), key=lambda name: votes[name], default=DEFAULT_ASSIGNOR)

    # -- offsets ------------------------------------------------------------------------------

    def check_commit(
        self, member_id: str, epoch: int, version: int = MEMBER_EPOCHS_SINCE
    ) -> ErrorCode:
        """Whether offsets may be committed. Without an epoch: by who is in no group, while this one
        has no members."""
        if epoch < 0 and not self.members:
            return ErrorCode.NONE
        error = self._check_epoch(member_id, epoch)
        if error is not ErrorCode.UNKNOWN_MEMBER_ID and version < MEMBER_EPOCHS_SINCE:
            return ErrorCode.UNSUPPORTED_VERSION
        return error

    def check_fetch(self, member_id: str | None, epoch: int) -> ErrorCode:
        """Whether committed offsets may be told: to members with their epoch, and to those who do
        not say that they are any."""
        if not member_id and epoch < 0:
            return ErrorCode.NONE
        return self._check_epoch(member_id or "", epoch)

    def _check_epoch(self, member_id: str, epoch: int) -> ErrorCode:
        member = self.members.get(member_id)
        if member is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        same = member.record.epoch == epoch
        return ErrorCode.NONE if same else ErrorCode.STALE_MEMBER_EPOCH

    # -- time ---------------------------------------------------------------------------------

    def next_ms(self) -> int | None:
        """When ``tick`` has something to do; None while nothing can happen by itself."""
        times = [each.alive_until_ms for each in self.members.values()]
        times += [
            each.revoked_until_ms
            for each in self.members.values()
            if each.revoked_until_ms is not None
        ]
        if self.members and self.assignment_epoch != self.epoch and not self.is_restored:
            times.append(self._next_target_ms)
        return min(times, default=None)

    def tick(self, now_ms: int) -> list[str]:
        """Who is out, and why: for the log."""
        gone: dict[str, str] = {}
        for member_id, member in self.members.items():
            if member.alive_until_ms <= now_ms:
                gone[member_id] = "was not heard of within its session"
            elif member.revoked_until_ms is not None and member.revoked_until_ms <= now_ms:
                gone[member_id] = "has not given up in time what it was to"
        if gone:
            self._remove([self.members[member_id] for member_id in gone], now_ms)
        else:
            self._make_target(now_ms)
        return [f"{member_id} {why}" for member_id, why in gone.items()]

    # -- what is stored -----------------------------------------------------------------------

    @property
    def has_changed(self) -> bool:
        return self._group_changed or bool(self._changed)

    def take_changes(self) -> list[ConsumerChange]:
        """What has changed since it was asked for last."""
        found: list[ConsumerChange] = []
        if self._group_changed:
            record = ConsumerGroupRecord(self.epoch, self.assignment_epoch)
            found.append((ConsumerGroupKey(self.group_id), record))
        for member_id in self._changed:
            member = self.members.get(member_id)
            key = ConsumerMemberKey(self.group_id, member_id)
            found.append((key, None if member is None else member.record))
        self._group_changed = False
        self._changed.clear()
        return found

    def not_stored(self, changes: Iterable[ConsumerChange]) -> None:
        """``changes``, which were taken, are perhaps not stored: they are to be, before anybody is
        told anything. (A record is written whole, so what it is by then does.)"""
        for key, _ in changes:
            if isinstance(key, ConsumerMemberKey):
                self._changed[key.member_id] = None
            else:
                self._group_changed = True

    # -- for admins ---------------------------------------------------------------------------

    @property
    def phase(self) -> str:
        if not self.members:
            return GroupPhase.EMPTY
        if self.epoch > self.assignment_epoch:
            return GroupPhase.ASSIGNING
        reconciled_all = all(
            each.record.state is MemberState.STABLE and each.record.epoch == self.assignment_epoch
            for each in self.members.values()
        )
        return GroupPhase.STABLE if reconciled_all else GroupPhase.RECONCILING

    def described(self) -> list[MemberView]:
        return [
            MemberView(name, each.record, self._target.get(name, NOWHERE))
            for name, each in self.members.items()
        ]

    def subscribes_to(self, topic: str) -> bool:
        return any(
            topic in each.record.names or topic in self.matched.get(each.record.pattern, ())
            for each in self.members.values()
        )


_NEWCOMER: Final = ConsumerMemberRecord("", "", "", "", 0, (), "", "")


def _updated(before: ConsumerMemberRecord, said: ConsumerHeartbeat) -> ConsumerMemberRecord:
    """With what the member says anew."""
    rebalance_ms = before.rebalance_ms
    if said.rebalance_ms != -1:
        rebalance_ms = max(0, min(said.rebalance_ms, REBALANCE_MS_MOST))
    return before._replace(
        instance_id=before.instance_id if said.instance_id is None else said.instance_id,
        rack_id=before.rack_id if said.rack_id is None else said.rack_id,
        client_id=said.client_id,
        client_host=said.client_host,
        rebalance_ms=rebalance_ms,
        names=before.names if said.names is None else tuple(sorted(set(said.names))),
        pattern=before.pattern if said.pattern is None else said.pattern,
        assignor=before.assignor if said.assignor is None else said.assignor,
    )
