"""One group: who its members are, and who gets what. A machine: calls in, answers out.

Members join, are told the generation and, the leader, who all of them are; the leader says who
gets what (``sync``), and everybody is told their part. Whoever comes, leaves or falls silent
begins that anew (``group_states`` has the table).

Time comes in with each call, in milliseconds; ``next_ms`` says when ``tick`` has something to do.
An answer to a call may have to wait for others: each ``join`` and ``sync`` has a *ticket*, any
object, and answers come as ``(ticket, response)`` pairs, perhaps of other calls.

Rules:

* A member that waits for the answer to a join is alive. All others must be heard of within their
  session timeout.
* A rebalance ends when all members have joined again, or after the greatest rebalance timeout of
  them; who has not joined by then is out, but for static members, who are as long as their session
  is.
* A dynamic member's first join (version 4 and later) is answered with its id only, so that one
  whose client gave up does not stay as a member that nobody is.
* A static member that comes back has a new id; whoever has the old one is fenced. If it says what
  it said before, and all is stable, the group goes on without a rebalance, also if it leads.
* What the leader has said, that a static member has another id, and that nobody is left, are
  stored: ``take_record`` has them after a call, ``stored`` says what has become of them, and who
  waits for the first two is answered then. A coordinator that goes on from the log (``restored``)
  so knows what members were told, and they go on with their ids and generation; of a rebalance
  that was not complete it knows nothing, and has the members join again.
* A generation is never given twice while the group's coordinator is the same, and one that was
  stored never again.

Source: Kafka's group protocol (KIP-62, 134, 345, 394, 814). Why members are stored:
docs/adr/0191-members-of-classic-groups-are-stored.md.

Pure.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias

from magnetar.protocols.kafka.coordination.classic_records import (
    ClassicGroupRecord,
    ClassicMemberRecord,
)
from magnetar.protocols.kafka.coordination.group_states import NEXT, GroupEvent, GroupState
from magnetar.wire.kafka.errors import ErrorCode
from magnetar.wire.kafka.group_messages import (
    DescribedGroup,
    DescribedMember,
    JoinedMember,
    JoinGroupResponse,
    JoinProtocol,
    SyncGroupResponse,
)

SESSION_MS_LEAST: Final = 1_000
SESSION_MS_MOST: Final = 1_800_000
REBALANCE_MS_MOST: Final = 3_600_000
MEMBERS_MAX: Final = 10_000

Ticket: TypeAlias = Hashable
Answer: TypeAlias = tuple[Ticket, JoinGroupResponse | SyncGroupResponse]
Answers: TypeAlias = list[Answer]


class Joining(NamedTuple):
    """What a client says when it joins. ``new_id``: the id that it gets if it has none;
    ``knows_ids``: it joins again with the id that it is told."""

    member_id: str
    new_id: str
    instance_id: str | None
    client_id: str
    host: str
    session_ms: int
    rebalance_ms: int
    protocol_type: str
    protocols: tuple[tuple[str, bytes], ...]
    knows_ids: bool = True
    skips_assignment: bool = False


@dataclass(slots=True)
class GroupMember:
    member_id: str
    said: Joining
    alive_until_ms: int
    assignment: bytes = b""
    join_ticket: Ticket | None = None
    sync_ticket: Ticket | None = None
    synced: bool = False  # it has asked for its part of this generation
    former_id: str = ""  # a static member's, before it came back
    id_number: int = 0  # of the record that has its id, while its join waits for that
    is_stored: bool = False  # as the log has it, and not heard of since that was read

    def heard(self, now_ms: int) -> None:
        self.alive_until_ms = now_ms + self.said.session_ms
        self.is_stored = False

    @property
    def supports(self) -> frozenset[str]:
        return frozenset(name for name, _ in self.said.protocols)

    def metadata(self, protocol: str) -> bytes:
        return next((data for name, data in self.said.protocols if name == protocol), b"")

    @property
    def record(self) -> ClassicMemberRecord:
        said, places = self.said, (self.said.client_id, self.said.host)
        times = (said.session_ms, said.rebalance_ms)
        return ClassicMemberRecord(
            self.member_id, said.instance_id, *places, *times, said.protocols, self.assignment
        )


class ClassicGroup:
    """See the module's text."""

    def __init__(self, group_id: str, rebalance_delay_ms: int = 0) -> None:
        self.group_id = group_id
        self.state = GroupState.EMPTY
        self.generation = 0
        self.protocol_type = ""
        self.protocol = ""
        self.leader = ""
        self.members: dict[str, GroupMember] = {}
        self.empty_since_ms = 0
        self._static: dict[str, str] = {}  # instance id -> member id
        self._pending: dict[str, int] = {}  # ids that were told and not used yet -> until when
        self._delay_ms = rebalance_delay_ms
        self._until_ms = 0  # PREPARING: when it ends; COMPLETING: when all must have synced
        self._initial = False  # PREPARING out of EMPTY: more members may come
        self._began_ms = 0  # PREPARING: when that began
        self._to_store = 0  # the number of what is to be stored last
        self._taken = 0  # and of what was given to be stored last
        self._assigned_number = 0  # COMPLETING: of what the leader has said; 0: it has not

    @classmethod
    def restored(
        cls, group_id: str, record: ClassicGroupRecord, rebalance_delay_ms: int, now_ms: int
    ) -> ClassicGroup:
        """As the log has it: members have a whole session to be heard of."""
        group = cls(group_id, rebalance_delay_ms)
        group.generation = record.generation
        group.protocol_type, group.protocol = record.protocol_type, record.protocol
        group.leader, group.empty_since_ms = record.leader, record.empty_since_ms
        for each in record.members:
            said = Joining(
                each.member_id,
                each.member_id,
                each.instance_id,
                each.client_id,
                each.host,
                each.session_ms,
                each.rebalance_ms,
                record.protocol_type,
                each.protocols,
            )
            group.members[each.member_id] = GroupMember(
                each.member_id, said, now_ms + each.session_ms, each.assignment, synced=True,
                is_stored=True,
            )  # fmt: skip
            if each.instance_id is not None:
                group._static[each.instance_id] = each.member_id
        if group.members:
            group._move(GroupEvent.RESTORED)
        return group

    def _move(self, event: GroupEvent) -> None:
        self.state = NEXT[self.state, event]

    # -- joining ------------------------------------------------------------------------------

    def join(self, said: Joining, ticket: Ticket, now_ms: int) -> Answers:
        refused = self._join_refused(said)
        if refused is not ErrorCode.NONE:
            return [(ticket, _refused_join(said.member_id, refused))]
        if not said.member_id:
            return self._join_new(said, ticket, now_ms)
        if said.member_id in self._pending:
            del self._pending[said.member_id]
            return self._add(said.member_id, said, ticket, now_ms)
        error = self.check_member(said.member_id, said.instance_id)
        if error is ErrorCode.FENCED_INSTANCE_ID and self._may_be_later(said.instance_id):
            error = ErrorCode.UNKNOWN_MEMBER_ID
        if error is not ErrorCode.NONE:
            return [(ticket, _refused_join(said.member_id, error))]
        return self._join_again(self.members[said.member_id], said, ticket, now_ms)

    def _join_refused(self, said: Joining) -> ErrorCode:
        if not SESSION_MS_LEAST <= said.session_ms <= SESSION_MS_MOST:
            return ErrorCode.INVALID_SESSION_TIMEOUT
        if not said.protocols or not said.protocol_type:
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        others = [each for each in self.members.values() if each.member_id != said.member_id]
        if others and said.protocol_type != self.protocol_type:
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        names = {name for name, _ in said.protocols}
        if others and not names & frozenset.intersection(*(each.supports for each in others)):
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        unknown = said.member_id not in self.members and said.member_id not in self._pending
        if unknown and len(self.members) + len(self._pending) >= MEMBERS_MAX:
            return ErrorCode.GROUP_MAX_SIZE_REACHED
        return ErrorCode.NONE

    def _join_new(self, said: Joining, ticket: Ticket, now_ms: int) -> Answers:
        if said.instance_id is not None:
            former = self._static.get(said.instance_id)
            if former is not None:
                return self._replace(self.members[former], said, ticket, now_ms)
        elif said.knows_ids:
            self._pending[said.new_id] = now_ms + said.session_ms
            return [(ticket, _refused_join(said.new_id, ErrorCode.MEMBER_ID_REQUIRED))]
        return self._add(said.new_id, said, ticket, now_ms)

    def _add(self, member_id: str, said: Joining, ticket: Ticket, now_ms: int) -> Answers:
        member = GroupMember(member_id, said, now_ms + said.session_ms, join_ticket=ticket)
        self.members[member_id] = member
        self.protocol_type = said.protocol_type
        if said.instance_id is not None:
            self._static[said.instance_id] = member_id
        if self._initial:  # the first members wait for more, but not without end
            most_ms = self._began_ms + max(self._delay_ms, self._rebalance_ms())
            self._until_ms = min(now_ms + self._delay_ms, most_ms)
        return self._rebalance(GroupEvent.MEMBER_CAME, now_ms)

    def _join_again(
        self, member: GroupMember, said: Joining, ticket: Ticket, now_ms: int
    ) -> Answers:
        same = said.protocols == member.said.protocols
        member.said = said
        member.heard(now_ms)
        settled = self.state is GroupState.STABLE and member.member_id != self.leader
        if same and (settled or self.state is GroupState.COMPLETING):
            return [(ticket, self._joined(member))]
        fenced = self._fence_join(member, ErrorCode.UNKNOWN_MEMBER_ID)
        member.join_ticket = ticket
        return fenced + self._rebalance(GroupEvent.MEMBER_CAME, now_ms)

    def _replace(self, former: GroupMember, said: Joining, ticket: Ticket, now_ms: int) -> Answers:
        """A static member is back, under a new id."""
        answers = self._fence_join(former, ErrorCode.FENCED_INSTANCE_ID)
        answers += self._fence_sync(former, ErrorCode.FENCED_INSTANCE_ID)
        former_id, same = former.member_id, said.protocols == former.said.protocols
        member = GroupMember(
            said.new_id,
            said,
            now_ms + said.session_ms,
            former.assignment,
            join_ticket=ticket,
            synced=former.synced,
            former_id=former_id,
        )
        # In the place of the former: the leader may go by the order.
        self.members = {
            (said.new_id if name == former_id else name): (member if name == former_id else each)
            for name, each in self.members.items()
        }
        assert said.instance_id is not None
        self._static[said.instance_id] = said.new_id
        if self.leader == former_id:
            self.leader = said.new_id
        if same and self.state is GroupState.STABLE:
            # Told when it is stored: by the log the former is the member.
            member.id_number = self._must_store()
            return answers
        return answers + self._rebalance(GroupEvent.MEMBER_CAME, now_ms)

    def _is_back(self, member: GroupMember) -> JoinGroupResponse:
        """For a static member, while nothing has changed but its id."""
        leads, skips = self.leader == member.member_id, member.said.skips_assignment
        answer = self._joined(member, skip=leads and skips)
        if leads and not skips:
            # A client from before version 9 that leads makes an assignment, for which nobody
            # waits: it is not told.
            answer.leader, answer.members = member.former_id, []
        return answer

    def _fence_join(self, member: GroupMember, error: ErrorCode) -> Answers:
        ticket, member.join_ticket = member.join_ticket, None
        return [] if ticket is None else [(ticket, _refused_join(member.member_id, error))]

    def _fence_sync(self, member: GroupMember, error: ErrorCode) -> Answers:
        ticket, member.sync_ticket = member.sync_ticket, None
        return [] if ticket is None else [(ticket, SyncGroupResponse(error_code=error))]

    # -- the rebalance ------------------------------------------------------------------------

    def _rebalance(self, event: GroupEvent, now_ms: int) -> Answers:
        """Have everybody join again."""
        answers: Answers = []
        before = self.state
        self._move(event)
        if before is not GroupState.PREPARING:
            for member in self.members.values():
                answers += self._fence_sync(member, ErrorCode.REBALANCE_IN_PROGRESS)
                member.synced = False
            self._assigned_number = 0
            self._initial, self._began_ms = before is GroupState.EMPTY, now_ms
            wait_ms = self._delay_ms if self._initial else self._rebalance_ms()
            self._until_ms = now_ms + wait_ms
        return answers + self._try_complete(now_ms)

    def _rebalance_ms(self) -> int:
        wanted = max((each.said.rebalance_ms for each in self.members.values()), default=0)
        return min(wanted, REBALANCE_MS_MOST)

    def _try_complete(self, now_ms: int) -> Answers:
        if self.state is not GroupState.PREPARING:
            return []
        late = now_ms >= self._until_ms
        if self._initial and not late:
            return []
        missing = [each for each in self.members.values() if each.join_ticket is None]
        if (missing or self._pending) and not late:
            return []
        for member in missing:
            if member.said.instance_id is None:
                self._drop(member)
        return self._complete(now_ms)

    def _complete(self, now_ms: int) -> Answers:
        self.generation += 1
        self._initial = False
        joined = [each for each in self.members.values() if each.join_ticket is not None]
        if not self.members:
            self._move(GroupEvent.NOBODY_JOINED)
            self.protocol = self.leader = ""
            self.empty_since_ms = now_ms
            self._must_store()
            return []
        if not joined:  # static members only, and none of them is back: wait for their sessions
            self._until_ms = min(each.alive_until_ms for each in self.members.values())
            return []
        self._move(GroupEvent.ALL_JOINED)
        self._assigned_number = 0
        self._until_ms = now_ms + self._rebalance_ms()
        self.protocol = self._chosen_protocol()
        if self.leader not in {each.member_id for each in joined}:
            self.leader = joined[0].member_id
        answers: Answers = []
        for member in joined:
            ticket, member.join_ticket = member.join_ticket, None
            member.alive_until_ms = now_ms + member.said.session_ms
            member.assignment, member.synced = b"", False
            answers.append((ticket, self._joined(member)))
        return answers

    def _chosen_protocol(self) -> str:
        """Of those that all support, the one that most like best."""
        common = frozenset.intersection(*(each.supports for each in self.members.values()))
        votes: dict[str, int] = {}
        for member in self.members.values():
            best = next((name for name, _ in member.said.protocols if name in common), "")
            votes[best] = votes.get(best, 0) + 1
        return max(votes, key=lambda name: votes[name])

    def _joined(self, member: GroupMember, skip: bool = False) -> JoinGroupResponse:
        members: list[JoinedMember] = []
        if member.member_id == self.leader:
            members = [
                JoinedMember(each.member_id, each.said.instance_id, each.metadata(self.protocol))
                for each in self.members.values()
            ]
        return JoinGroupResponse(
            generation=self.generation,
            protocol_type=self.protocol_type,
            protocol_name=self.protocol,
            leader=self.leader,
            skip_assignment=skip,
            member_id=member.member_id,
            members=members,
        )

    # -- syncing ------------------------------------------------------------------------------

    def sync(
        self,
        member_id: str,
        instance_id: str | None,
        generation: int,
        protocol: tuple[str | None, str | None],
        assignments: Iterable[tuple[str, bytes]],
        ticket: Ticket,
        now_ms: int,
    ) -> Answers:
        error = self._check(member_id, instance_id, generation)
        kind, name = protocol
        if error is ErrorCode.NONE and (
            kind not in (None, self.protocol_type) or name not in (None, self.protocol)
        ):
            error = ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        if error is ErrorCode.NONE and self.state is GroupState.PREPARING:
            error = ErrorCode.REBALANCE_IN_PROGRESS
        if error is not ErrorCode.NONE:
            return [(ticket, SyncGroupResponse(error_code=error))]
        member = self.members[member_id]
        member.heard(now_ms)
        member.synced = True
        if self.state is GroupState.STABLE:
            return [(ticket, self._assigned(member))]
        answers = self._fence_sync(member, ErrorCode.UNKNOWN_MEMBER_ID)
        member.sync_ticket = ticket
        if member_id != self.leader or self._assigned_number:
            return answers
        given = dict(assignments)
        for each in self.members.values():
            each.assignment = given.get(each.member_id, b"")
        self._assigned_number = self._must_store()
        return answers

    def _tell_assignments(self, now_ms: int) -> Answers:
        answers: Answers = []
        for member in self.members.values():
            ticket, member.sync_ticket = member.sync_ticket, None
            if ticket is not None:
                member.alive_until_ms = now_ms + member.said.session_ms
                answers.append((ticket, self._assigned(member)))
        return answers

    def _assigned(self, member: GroupMember) -> SyncGroupResponse:
        return SyncGroupResponse(
            protocol_type=self.protocol_type,
            protocol_name=self.protocol,
            assignment=member.assignment,
        )

    # -- what is stored -----------------------------------------------------------------------

    def _must_store(self) -> int:
        self._to_store += 1
        return self._to_store

    def take_record(self) -> tuple[int, ClassicGroupRecord] | None:
        """What is to be stored since it was asked for last, with its number. To be asked for after
        every call: what is taken is the group as it is."""
        if self._taken == self._to_store:
            return None
        assert self.state is not GroupState.PREPARING, "what it is then is not stored"
        self._taken = self._to_store
        return self._taken, ClassicGroupRecord(
            self.generation,
            self.protocol_type,
            self.protocol,
            self.leader,
            self.empty_since_ms,
            tuple(each.record for each in self.members.values()),
        )

    def stored(self, number: int, error: ErrorCode, now_ms: int) -> Answers:
        """The record with that number is in the log; with ``error``: it may be, or not, and whoever
        waits for it is told that. Records have their outcome in the order of their numbers."""
        if self.state is GroupState.COMPLETING and number == self._assigned_number:
            if error is not ErrorCode.NONE:
                return self._not_assigned(error, now_ms)
            self._move(GroupEvent.ASSIGNED)
            return self._tell_assignments(now_ms)
        answers: Answers = []
        if self.state is GroupState.STABLE:  # else those who are back take part in a rebalance
            for member in self.members.values():
                if member.join_ticket is None or member.id_number != number:
                    continue
                if error is not ErrorCode.NONE:
                    answers += self._fence_join(member, error)
                    continue
                ticket, member.join_ticket = member.join_ticket, None
                member.alive_until_ms = now_ms + member.said.session_ms
                answers.append((ticket, self._is_back(member)))
        return answers

    def _not_assigned(self, error: ErrorCode, now_ms: int) -> Answers:
        """Nobody has been told anything of it: all join again."""
        answers: Answers = []
        for member in self.members.values():
            answers += self._fence_sync(member, error)
            member.assignment = b""
        return answers + self._rebalance(GroupEvent.NOT_STORED, now_ms)

    # -- being a member -----------------------------------------------------------------------

    def check_member(self, member_id: str, instance_id: str | None) -> ErrorCode:
        if instance_id is not None:
            known = self._static.get(instance_id)
            if known is None:
                return ErrorCode.UNKNOWN_MEMBER_ID
            if known != member_id:
                return ErrorCode.FENCED_INSTANCE_ID
        return ErrorCode.NONE if member_id in self.members else ErrorCode.UNKNOWN_MEMBER_ID

    def _check(self, member_id: str, instance_id: str | None, generation: int) -> ErrorCode:
        error = self.check_member(member_id, instance_id)
        if error is ErrorCode.NONE and generation != self.generation:
            error = ErrorCode.ILLEGAL_GENERATION
        if error is ErrorCode.FENCED_INSTANCE_ID and generation > self.generation:
            error = ErrorCode.UNKNOWN_MEMBER_ID  # see _may_be_later
        return error

    def _may_be_later(self, instance_id: str | None) -> bool:
        """Whoever comes may have taken the place of the static member that the log has, in a
        rebalance that was lost with the coordinator before it was stored. Told that it is replaced
        it would end, and nobody be left; told that it is unknown it joins anew."""
        former = self.members.get(self._static.get(instance_id or "", ""))
        return former is not None and former.is_stored

    def heartbeat(
        self, member_id: str, instance_id: str | None, generation: int, now_ms: int
    ) -> ErrorCode:
        error = self._check(member_id, instance_id, generation)
        if error is not ErrorCode.NONE:
            return error
        member = self.members[member_id]
        member.heard(now_ms)
        preparing = self.state is GroupState.PREPARING
        return ErrorCode.REBALANCE_IN_PROGRESS if preparing else ErrorCode.NONE

    def check_commit(
        self, member_id: str, instance_id: str | None, generation: int, now_ms: int
    ) -> ErrorCode:
        """Whether offsets may be committed. Without a generation: by who is in no group protocol,
        while the group has no members. It may say an id: clients of the protocol whose coordinator
        assigns make their own, before they are members of anything."""
        if generation < 0 and not self.members:
            return ErrorCode.NONE
        error = self._check(member_id, instance_id, generation)
        if error is not ErrorCode.NONE:
            return error
        if self.state is GroupState.COMPLETING:
            return ErrorCode.REBALANCE_IN_PROGRESS
        member = self.members[member_id]
        member.heard(now_ms)
        return ErrorCode.NONE

    def leave(
        self, member_id: str, instance_id: str | None, now_ms: int
    ) -> tuple[ErrorCode, Answers]:
        if member_id in self._pending:
            del self._pending[member_id]
            return ErrorCode.NONE, self._try_complete(now_ms)
        if instance_id is not None and not member_id:
            member_id = self._static.get(instance_id, "")
        error = self.check_member(member_id, instance_id)
        if error is not ErrorCode.NONE:
            return error, []
        return ErrorCode.NONE, self._remove([self.members[member_id]], now_ms)

    def _remove(self, members: Sequence[GroupMember], now_ms: int) -> Answers:
        answers: Answers = []
        for member in members:
            answers += self._fence_join(member, ErrorCode.UNKNOWN_MEMBER_ID)
            answers += self._fence_sync(member, ErrorCode.UNKNOWN_MEMBER_ID)
            self._drop(member)
        return answers + self._rebalance(GroupEvent.MEMBER_LEFT, now_ms)

    def _drop(self, member: GroupMember) -> None:
        del self.members[member.member_id]
        instance_id = member.said.instance_id
        if instance_id is not None and self._static.get(instance_id) == member.member_id:
            del self._static[instance_id]

    # -- time ---------------------------------------------------------------------------------

    def next_ms(self) -> int | None:
        """When ``tick`` has something to do; None while nothing can happen by itself."""
        times = list(self._pending.values())
        times += [each.alive_until_ms for each in self.members.values() if not _waits(each)]
        if self.state is GroupState.PREPARING or self._waits_for_syncs:
            times.append(self._until_ms)
        return min(times, default=None)

    def tick(self, now_ms: int) -> Answers:
        self._pending = {name: until for name, until in self._pending.items() if until > now_ms}
        silent = [
            each
            for each in self.members.values()
            if each.alive_until_ms <= now_ms and not _waits(each)
        ]
        if self._waits_for_syncs and now_ms >= self._until_ms:
            # The leader, or whoever else did not ask for its part, has given up.
            silent += [e for e in self.members.values() if not e.synced and e not in silent]
        if silent:
            return self._remove(silent, now_ms)
        return self._try_complete(now_ms)

    @property
    def _waits_for_syncs(self) -> bool:
        return self.state is GroupState.COMPLETING and not self._assigned_number

    # -- for admins ---------------------------------------------------------------------------

    def describe(self) -> DescribedGroup:
        stable = self.state is GroupState.STABLE
        return DescribedGroup(
            group_id=self.group_id,
            state=self.state.value,
            protocol_type=self.protocol_type,
            protocol=self.protocol if stable else "",
            members=[
                DescribedMember(
                    each.member_id,
                    each.said.instance_id,
                    each.said.client_id,
                    f"/{each.said.host}",
                    each.metadata(self.protocol) if stable else b"",
                    each.assignment if stable else b"",
                )
                for each in self.members.values()
            ],
        )


def _waits(member: GroupMember) -> bool:
    return member.join_ticket is not None or member.sync_ticket is not None


def _refused_join(member_id: str, error: ErrorCode) -> JoinGroupResponse:
    return JoinGroupResponse(error_code=error, member_id=member_id)


def protocols_of(said: Sequence[JoinProtocol]) -> tuple[tuple[str, bytes], ...]:
    return tuple((each.name, each.metadata) for each in said)
