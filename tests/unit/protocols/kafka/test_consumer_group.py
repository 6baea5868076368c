"""A group whose coordinator assigns, with members that come, go, fall silent and lose answers."""

from __future__ import annotations

import json
import uuid
from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from magnetar.protocols.kafka.consumers import consumer_group
from magnetar.protocols.kafka.consumers.consumer_group import (
    ConsumerGroup,
    ConsumerHeartbeat,
    HeartbeatAnswer,
)
from magnetar.protocols.kafka.consumers.consumer_records import (
    ConsumerChange,
    ConsumerGroupRecord,
    ConsumerMemberKey,
    ConsumerMemberRecord,
    ConsumerRecords,
    member_from_json,
    member_to_json,
)
from magnetar.protocols.kafka.consumers.id_partitions import (
    NOWHERE,
    IdPartitions,
    TopicIdPartition,
    TopicShape,
)
from magnetar.wire.kafka.errors import ErrorCode

SESSION_MS, REBALANCE_MS = 45_000, 60_000
GONE = (ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID)


def topic_id(number: int) -> uuid.UUID:
    return uuid.UUID(int=number)


@dataclass
class Client:
    """A consumer, as far as the protocol goes. ``using``: what it reads now."""

    member_id: str
    names: tuple[str, ...]
    instance_id: str | None = None
    pattern: str = ""
    epoch: int = 0
    using: IdPartitions = NOWHERE
    target: IdPartitions = NOWHERE
    unsure: bool = True  # an answer was lost: it says everything again
    told: IdPartitions | None = None  # what it has said last that it has

    def says(self) -> ConsumerHeartbeat:
        said = ConsumerHeartbeat(self.member_id, "new", self.epoch, self.instance_id)
        if self.epoch == 0 or self.unsure:
            return said._replace(
                rebalance_ms=REBALANCE_MS,
                names=self.names,
                pattern=self.pattern,
                owned=self.using,
            )
        return said._replace(owned=self.using) if self.told != self.using else said

    def hears(self, answer: HeartbeatAnswer) -> None:
        if answer.error is not ErrorCode.NONE:
            assert answer.assigned is None, "who is refused gets nothing"
        if answer.error in GONE:
            self.epoch, self.using, self.target = 0, NOWHERE, NOWHERE
            self.unsure, self.told = True, None
            return
        assert answer.error is ErrorCode.NONE, answer
        assert answer.member_id == self.member_id
        assert answer.epoch >= self.epoch, "epochs only grow"
        self.epoch = answer.epoch
        self.told, self.unsure = self.using, False
        if answer.assigned is not None:
            self.target = answer.assigned
            self.using |= self.target  # what is to be given up takes its time

    def settles(self) -> None:
        self.using = self.target


@dataclass
class Store:
    """What was stored of a group, in the form that the log has."""

    records: ConsumerRecords = field(default_factory=ConsumerRecords)

    def keep(self, changes: list[ConsumerChange]) -> None:
        for key, value in changes:
            if isinstance(key, ConsumerMemberKey):
                assert value is None or isinstance(value, ConsumerMemberRecord)
                if value is not None:
                    read = member_from_json(json.loads(json.dumps(member_to_json(value))))
                    assert read == value
                self.records.set_member(key, value)
            else:
                assert value is None or isinstance(value, ConsumerGroupRecord)
                before = self.records.groups.get(key.group)
                assert value is None or before is None or value.epoch >= before.epoch
                self.records.set_group(key, value)

    def group(self, now_ms: int) -> ConsumerGroup:
        record = self.records.groups.get("g")
        if record is None:
            return ConsumerGroup("g", SESSION_MS, 100, now_ms)
        members = self.records.members("g")
        return ConsumerGroup.restored("g", record, members, SESSION_MS, 100, now_ms)


class Groups(RuleBasedStateMachine):
    @initialize()
    def begins(self) -> None:
        self.now_ms = 0
        self.number = 0
        self.store = Store()
        self.group = self.store.group(0)
        self.clients: list[Client] = []
        self.topics = {"t": TopicShape(topic_id(1), 3), "u": TopicShape(topic_id(2), 2)}
        self.looks_up()

    # -- the broker -----------------------------------------------------------------------

    def looks_up(self) -> None:
        matched = {"t|v": frozenset({"t", "v"} & self.topics.keys())}
        self.group.learn({"t", "u", "v"}, dict(self.topics), matched, self.now_ms)
        self.store.keep(self.group.take_changes())

    def beats(self, client: Client, lost: bool = False) -> None:
        if not self.group.knows_topics:
            self.looks_up()
        answer = self.group.heartbeat(client.says(), self.now_ms)
        self.store.keep(self.group.take_changes())
        if lost:
            client.unsure = True
        else:
            client.hears(answer)

    # -- what happens ---------------------------------------------------------------------

    @rule(
        names=st.sets(st.sampled_from(["t", "u", "v"])),
        static=st.sampled_from([None, None, "one", "two"]),
        pattern=st.booleans(),
    )
    @precondition(lambda self: len(self.clients) < 5)
    def comes(self, names: set[str], static: str | None, pattern: bool) -> None:
        if any(each.instance_id == static is not None for each in self.clients):
            return
        self.number += 1
        client = Client(f"m{self.number}", () if pattern else tuple(names), static)
        client.pattern = "t|v" if pattern else ""
        answer = self.group.heartbeat(client.says(), self.now_ms)
        self.store.keep(self.group.take_changes())
        if answer.error is ErrorCode.UNRELEASED_INSTANCE_ID:
            assert static in self.group._static  # one that has crashed, and whose session lasts
            return
        self.clients.append(client)
        client.hears(answer)

    def pick(self, data: st.DataObject) -> Client:
        return data.draw(st.sampled_from(self.clients))

    @rule(data=st.data(), lost=st.booleans())
    @precondition(lambda self: self.clients)
    def one_beats(self, data: st.DataObject, lost: bool) -> None:
        self.beats(self.pick(data), lost)

    @rule(data=st.data())
    @precondition(lambda self: self.clients)
    def one_gives_up(self, data: st.DataObject) -> None:
        self.pick(data).settles()

    @rule(data=st.data(), names=st.sets(st.sampled_from(["t", "u", "v"])))
    @precondition(lambda self: self.clients)
    def one_subscribes_otherwise(self, data: st.DataObject, names: set[str]) -> None:
        client = self.pick(data)
        client.names, client.pattern, client.unsure = tuple(names), "", True

    @rule(data=st.data(), for_good=st.booleans())
    @precondition(lambda self: self.clients)
    def one_leaves(self, data: st.DataObject, for_good: bool) -> None:
        client = self.pick(data)
        if client.epoch:
            epoch = -1 if for_good or client.instance_id is None else -2
            said = ConsumerHeartbeat(client.member_id, "new", epoch, client.instance_id)
            assert self.group.heartbeat(said, self.now_ms).error in (ErrorCode.NONE, *GONE)
            self.store.keep(self.group.take_changes())
        self.clients.remove(client)

    @rule(data=st.data())
    @precondition(lambda self: self.clients)
    def one_crashes(self, data: st.DataObject) -> None:
        self.clients.remove(self.pick(data))

    @rule(data=st.data(), epoch=st.integers(-1, 50))
    @precondition(lambda self: self.clients)
    def a_stale_heartbeat_comes(self, data: st.DataObject, epoch: int) -> None:
        client = self.pick(data)
        known = self.group.members.get(client.member_id)
        if known is None or epoch in (0, -1, known.record.epoch, known.record.previous_epoch):
            return
        said = ConsumerHeartbeat(client.member_id, "new", epoch)
        answer = self.group.heartbeat(said, self.now_ms)
        assert (answer.error, answer.assigned) == (ErrorCode.FENCED_MEMBER_EPOCH, None)
        assert not self.group.has_changed

    @rule(name=st.sampled_from(["t", "u", "v"]), count=st.integers(0, 5))
    def a_topic_changes(self, name: str, count: int) -> None:
        """It grows, or it is deleted and made anew."""
        known = self.topics.get(name)
        if known is not None and count > known.partitions:
            self.topics[name] = known._replace(partitions=count)
        elif count:
            self.number += 1
            self.topics[name] = TopicShape(topic_id(self.number + 100), count)
        else:
            self.topics.pop(name, None)
        self.looks_up()

    @rule(ms=st.sampled_from([1_000, 20_000, 50_000]))
    def time_passes(self, ms: int) -> None:
        self.now_ms += ms
        due = self.group.next_ms()
        changed = self.group.tick(self.now_ms)
        assert not (due is None or due > self.now_ms) or not changed
        self.store.keep(self.group.take_changes())

    @rule(data=st.data(), unstored=st.booleans())
    def the_coordinator_moves(self, data: st.DataObject, unstored: bool) -> None:
        if unstored and self.clients:  # what was not stored has not been told
            self.group.heartbeat(self.pick(data).says(), self.now_ms)
        self.group = self.store.group(self.now_ms)

    # -- what holds -----------------------------------------------------------------------

    @invariant()
    def nobody_uses_what_another_member_uses(self) -> None:
        used: dict[TopicIdPartition, str] = {}
        for client in self.clients:
            if client.member_id in self.group.members:
                for place in client.using:
                    assert place not in used, (place, client.member_id, used[place])
                    used[place] = client.member_id

    @invariant()
    def what_a_member_uses_is_its_own(self) -> None:
        for client in self.clients:
            member = self.group.members.get(client.member_id)
            if member is not None and client.epoch in (
                member.record.epoch,
                member.record.previous_epoch,
            ):
                assert client.using <= member.record.holds

    def teardown(self) -> None:
        """In the end everybody has what there is for them, and it is even."""
        if not hasattr(self, "group") or not self.clients:
            return
        self.now_ms += 1
        for _ in range(12):
            for client in self.clients:
                self.beats(client)
                client.settles()
            self.now_ms += 4_000
            self.group.tick(self.now_ms)
        waiting = {each.member_id for each in self.clients} ^ self.group.members.keys()
        for _ in range(12):  # who has crashed is out by now
            self.now_ms += 5_000
            self.group.tick(self.now_ms)
            for client in self.clients:
                self.beats(client)
                client.settles()
        assert self.group.members.keys() == {each.member_id for each in self.clients}, waiting
        found = [place for each in self.clients for place in each.using]
        names = {name for each in self.clients for name in each.names}
        names |= {"t", "v"} if any(each.pattern for each in self.clients) else set()
        wanted = {
            TopicIdPartition(self.topics[name].topic_id, number)
            for name in names & self.topics.keys()
            for number in range(self.topics[name].partitions)
        }
        assert len(found) == len(set(found))
        assert set(found) == wanted
        assert self.group.phase == "Stable"


Groups.TestCase.settings = settings(max_examples=120, stateful_step_count=40, deadline=None)
TestGroups = Groups.TestCase


# -- one thing after the other ----------------------------------------------------------------


def group_of(count: int = 4) -> ConsumerGroup:
    group = ConsumerGroup("g", SESSION_MS, 100)
    group.learn({"t"}, {"t": TopicShape(topic_id(1), count)}, {}, 0)
    return group


def joined(group: ConsumerGroup, name: str, instance_id: str | None = None) -> Client:
    client = Client(name, ("t",), instance_id)
    client.hears(group.heartbeat(client.says(), 0))
    return client


def beaten(group: ConsumerGroup, client: Client, now_ms: int = 0) -> Client:
    client.hears(group.heartbeat(client.says(), now_ms))
    return client


def test_a_partition_goes_over_when_it_was_given_up() -> None:
    group = group_of()
    first = joined(group, "a")
    assert (len(first.using), first.epoch, group.phase) == (4, 1, "Stable")
    second = joined(group, "b")
    assert (second.using, second.epoch, group.phase) == (NOWHERE, 2, "Reconciling")
    beaten(group, first)
    assert (len(first.target), first.epoch) == (2, 1)
    assert beaten(group, second).using == NOWHERE, "it is not given up"
    first.settles()
    assert beaten(group, first).epoch == 2
    assert len(beaten(group, second).using) == 2
    assert group.phase == "Stable"


def test_who_never_began_with_a_partition_need_not_give_it_up() -> None:
    """It was told of four, has begun with two, and says so again as it has lost an answer: just
    then it is to give up the others. It has nothing to do, and nothing more to say of them."""
    group = group_of()
    first, second = joined(group, "a"), joined(group, "b")
    (kept,) = (view.target for view in group.described() if view.member_id == "a")
    whole = first.says()._replace(rebalance_ms=REBALANCE_MS, names=("t",), pattern="", owned=kept)
    answer = group.heartbeat(whole, 0)
    assert answer.assigned == kept
    assert beaten(group, second).using == NOWHERE, "it may have begun with them since"
    plain = ConsumerHeartbeat("a", "new", answer.epoch)
    assert group.heartbeat(plain, 0).epoch == 2
    assert len(beaten(group, second).using) == 2


def test_who_does_not_give_up_in_time_is_out() -> None:
    group = group_of()
    first, second = joined(group, "a"), joined(group, "b")
    beaten(group, first, 0)
    for now_ms in range(0, REBALANCE_MS, 5_000):
        beaten(group, first, now_ms)
        beaten(group, second, now_ms)
        assert group.tick(now_ms) == []
    assert group.next_ms() == REBALANCE_MS
    assert "has not given up in time" in group.tick(REBALANCE_MS)[0]
    assert len(beaten(group, second, REBALANCE_MS).using) == 4
    answer = group.heartbeat(first.says(), REBALANCE_MS)
    assert (answer.error, answer.assigned) == (ErrorCode.UNKNOWN_MEMBER_ID, None)


def test_who_does_not_say_what_it_has_begun_with_has_given_nothing_up() -> None:
    """It said that it has nothing when it joined, and was told of four since."""
    group = group_of()
    first, second = joined(group, "a"), joined(group, "b")
    for _ in range(3):
        group.heartbeat(ConsumerHeartbeat("a", "new", first.epoch), 0)
        assert beaten(group, second).using == NOWHERE


def test_who_has_given_up_and_is_to_give_up_more_has_the_time_for_that_anew() -> None:
    group = group_of(3)
    first = joined(group, "a")
    joined(group, "b")
    beaten(group, first, 0)
    joined(group, "c")
    first.settles()
    beaten(group, first, REBALANCE_MS - 1)
    assert (first.epoch, len(first.target), len(first.using)) == (2, 1, 2)
    group.members["b"].alive_until_ms = group.members["c"].alive_until_ms = 1 << 40
    group.members["a"].alive_until_ms = 1 << 40
    assert group.tick(2 * REBALANCE_MS - 2) == []
    assert "a has not given up in time" in group.tick(2 * REBALANCE_MS - 1)[0]


def test_the_time_to_give_up_begins_anew_with_another_coordinator() -> None:
    group, store = group_of(), Store()
    first = Client("a", ("t",))
    first.hears(group.heartbeat(first.says()._replace(rebalance_ms=10_000), 0))
    joined(group, "b")
    beaten(group, first)
    store.keep(group.take_changes())
    again = store.group(5_000)
    again.learn({"t"}, {"t": TopicShape(topic_id(1), 4)}, {}, 5_000)
    assert again.tick(14_999) == []
    assert "a has not given up in time" in again.tick(15_000)[0]


def test_who_is_silent_is_out_after_its_session() -> None:
    group = group_of()
    first, second = joined(group, "a"), joined(group, "b")
    beaten(group, second, 40_000)
    assert group.next_ms() == SESSION_MS
    assert "was not heard of" in group.tick(SESSION_MS)[0]
    assert len(beaten(group, second, SESSION_MS).using) == 4
    assert first.using, "it does not know, and its offsets are refused"
    assert group.check_commit("a", first.epoch) is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_static_member_comes_back_to_what_it_had() -> None:
    group = group_of()
    first, second = joined(group, "a", "one"), joined(group, "b", "two")
    for _ in range(3):
        for client in (first, second):
            beaten(group, client).settles()
    again = ConsumerHeartbeat("c", "", 0, "one", None, REBALANCE_MS, ("t",), None, None, NOWHERE)
    assert group.heartbeat(again, 0).error is ErrorCode.UNRELEASED_INSTANCE_ID
    epoch = group.epoch
    left = group.heartbeat(ConsumerHeartbeat("a", "", -2, "one"), 0)
    assert (left.error, left.epoch) == (ErrorCode.NONE, -2)
    found = group.heartbeat(again, 0)
    assert (found.assigned, found.epoch, group.epoch) == (first.using, epoch, epoch)
    fenced = group.heartbeat(ConsumerHeartbeat("a", "", epoch, "one"), 0)
    assert fenced.error is ErrorCode.FENCED_INSTANCE_ID
    unknown = group.heartbeat(ConsumerHeartbeat("a", "", epoch, "three"), 0)
    assert unknown.error is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_static_member_that_comes_back_to_less_has_an_epoch() -> None:
    """Another has come meanwhile, and is to have a part of what it had. It was to give that up
    first, and had the epoch of one that joins until then: its client says that again, which is no
    heartbeat, and fails for good."""
    group = group_of()
    first = joined(group, "a", "one")
    group.heartbeat(ConsumerHeartbeat("a", "new", -2, "one"), 0)
    second = joined(group, "b")
    assert second.using == NOWHERE, "it may come back"
    back = joined(group, "a2", "one")
    assert (back.epoch, len(back.using)) == (group.epoch, 2)
    assert back.using < first.using
    assert len(beaten(group, second).using) == 2


def test_a_static_member_that_does_not_come_back_is_out_after_its_session() -> None:
    group = group_of()
    joined(group, "a", "one")
    group.heartbeat(ConsumerHeartbeat("a", "", -2, "one"), 10)
    assert group.tick(SESSION_MS - 1) == []
    assert len(group.tick(SESSION_MS)) == 1
    assert group.phase == "Empty"


def test_a_static_member_that_comes_back_with_a_members_id_takes_that_ones_place() -> None:
    group = group_of()
    first, static = joined(group, "a"), joined(group, "s", "i")
    for _ in range(2):
        for each in (first, static):
            beaten(group, each).settles()
    group.heartbeat(ConsumerHeartbeat("s", "new", -2, "i"), 0)
    back = Client("a", ("t",), "i")
    beaten(group, back)
    other = joined(group, "b")
    for _ in range(3):
        for each in (back, other):
            beaten(group, each).settles()
    assert group.members.keys() == {"a", "b"}
    assert len(back.using | other.using) == 4, "nothing stays with who is gone"


def test_of_two_that_were_stored_with_one_partition_the_second_joins_again() -> None:
    """A change of very many members was written in part."""
    place = frozenset({TopicIdPartition(topic_id(1), 0)})
    record = ConsumerMemberRecord("", "", "", "", 1, ("t",), "", "", 3, 2, assigned=place)
    members = {"a": record, "b": record._replace(epoch=4)}
    group = ConsumerGroup.restored("g", ConsumerGroupRecord(4, 4), members, SESSION_MS, 9, 0)
    assert group.members.keys() == {"a"}
    assert (ConsumerMemberKey("g", "b"), None) in group.take_changes()
    late = group.heartbeat(ConsumerHeartbeat("b", "new", 4), 0)
    assert late.error is ErrorCode.UNKNOWN_MEMBER_ID
    assert group.tick(SESSION_MS), "and nothing is lost track of"


def test_what_was_not_stored_is_to_be_stored_again() -> None:
    group = group_of()
    joined(group, "a")
    changes = group.take_changes()
    assert not group.has_changed
    group.not_stored(changes)
    assert group.has_changed
    assert group.take_changes() == changes


def test_offsets_are_committed_by_members_with_their_epoch() -> None:
    group = group_of()
    assert group.check_commit("", -1) is ErrorCode.NONE, "an admin, of an empty group"
    client = joined(group, "a")
    assert group.check_commit("", -1) is ErrorCode.UNKNOWN_MEMBER_ID
    assert group.check_commit("a", client.epoch) is ErrorCode.NONE
    assert group.check_commit("a", client.epoch - 1) is ErrorCode.STALE_MEMBER_EPOCH
    assert group.check_commit("a", client.epoch, 8) is ErrorCode.UNSUPPORTED_VERSION
    assert group.check_fetch(None, -1) is ErrorCode.NONE
    assert group.check_fetch("a", client.epoch) is ErrorCode.NONE
    assert group.check_fetch("a", 99) is ErrorCode.STALE_MEMBER_EPOCH
    assert group.check_fetch("b", 1) is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_group_has_so_many_members_at_most() -> None:
    group = ConsumerGroup("g", SESSION_MS, 1)
    joined(group, "a")
    assert group.heartbeat(Client("b", ("t",)).says(), 0).error is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert group.heartbeat(Client("a", ("t",)).says(), 0).error is ErrorCode.NONE


def test_a_group_goes_on_elsewhere_without_another_epoch() -> None:
    group, store = group_of(), Store()
    clients = [joined(group, "a"), joined(group, "b", "one")]
    for _ in range(3):
        for client in clients:
            beaten(group, client).settles()
    store.keep(group.take_changes())
    other = store.group(7)
    assert not other.knows_topics
    other.learn({"t"}, group.topics, {}, 7)
    assert (other.epoch, other.assignment_epoch, other.phase) == (group.epoch, 2, "Stable")
    assert not other.has_changed
    for client in clients:
        before = client.using
        assert beaten(other, client).using == before
    assert other.next_ms() == SESSION_MS


@pytest.mark.parametrize("asked", [["range", "range", None], ["uniform", None, None]])
def test_the_assignor_that_most_ask_for(asked: list[str | None]) -> None:
    group = group_of()
    for number, name in enumerate(asked):
        said = Client(f"m{number}", ("t",)).says()._replace(assignor=name)
        group.heartbeat(said, 0)
    assert group.assignor == asked[0]


def test_a_large_group_waits_for_more_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consumer_group, "SMALL", 1)
    monkeypatch.setattr(consumer_group, "UNITS_PER_MS", 0.01)
    group = group_of()
    first = joined(group, "a")
    assert len(first.using) == 4
    second = joined(group, "b")
    assert (group.phase, second.epoch) == ("Assigning", 1)
    due = group.next_ms()
    assert due is not None
    assert 0 < due <= consumer_group.PAUSE_MS_MAX
    assert group.tick(due) == []
    assert (group.phase, group.assignment_epoch) == ("Reconciling", 2)
