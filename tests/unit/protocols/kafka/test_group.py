"""Groups: what is refused, and what must hold whatever members do."""

from __future__ import annotations

import random

import pytest

from magnetar.model.errors import ProtocolError
from magnetar.protocols.kafka.coordination.classic_records import (
    VERSION,
    ClassicGroupKey,
    ClassicGroupRecord,
    ClassicMemberRecord,
)
from magnetar.protocols.kafka.coordination.coordinator_state import (
    CoordinatorState,
    decode_changes,
    encode_changes,
)
from magnetar.protocols.kafka.coordination.group import (
    SESSION_MS_MOST,
    Answers,
    ClassicGroup,
    Joining,
)
from magnetar.protocols.kafka.coordination.group_states import NEXT, GroupState
from magnetar.wire.kafka.errors import ErrorCode
from magnetar.wire.kafka.group_messages import JoinGroupResponse, SyncGroupResponse
from magnetar.wire.kafka.records import KafkaRecord, batch_of


def said(
    member_id: str = "",
    new_id: str = "new",
    *,
    instance: str | None = None,
    protocols: tuple[tuple[str, bytes], ...] = (("range", b""),),
    kind: str = "consumer",
    session_ms: int = 10_000,
    knows_ids: bool = True,
) -> Joining:
    return Joining(
        member_id, new_id, instance, "me", "host", session_ms, 5_000, kind, protocols, knows_ids
    )


def errors(answers: Answers) -> list[ErrorCode]:
    return [ErrorCode(answer.error_code) for _, answer in answers]


@pytest.mark.parametrize(
    ("asked", "error"),
    [
        (said(session_ms=0), ErrorCode.INVALID_SESSION_TIMEOUT),
        (said(session_ms=SESSION_MS_MOST + 1), ErrorCode.INVALID_SESSION_TIMEOUT),
        (said(protocols=()), ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        (said(kind=""), ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        (said("nobody"), ErrorCode.UNKNOWN_MEMBER_ID),
        (said("nobody", instance="x"), ErrorCode.UNKNOWN_MEMBER_ID),
        (said(), ErrorCode.MEMBER_ID_REQUIRED),
    ],
    ids=lambda each: each.name if isinstance(each, ErrorCode) else "",
)
def test_a_join_is_refused(asked: Joining, error: ErrorCode) -> None:
    assert errors(ClassicGroup("g").join(asked, 1, 0)) == [error]


def test_a_member_must_share_a_protocol_with_all_others() -> None:
    group = ClassicGroup("g")
    group.join(said(new_id="a", knows_ids=False), 1, 0)
    other = said(new_id="b", knows_ids=False, protocols=(("sticky", b""),))
    assert errors(group.join(other, 2, 0)) == [ErrorCode.INCONSISTENT_GROUP_PROTOCOL]
    kind = said(new_id="b", knows_ids=False, kind="connect")
    assert errors(group.join(kind, 3, 0)) == [ErrorCode.INCONSISTENT_GROUP_PROTOCOL]


def test_the_protocol_that_most_like_best_is_chosen() -> None:
    group = ClassicGroup("g", rebalance_delay_ms=10)
    for name, order in (("a", ("x", "y")), ("b", ("y", "x")), ("c", ("z", "y", "x"))):
        protocols = tuple((each, each.encode()) for each in order)
        group.join(said(new_id=name, knows_ids=False, protocols=protocols), name, 0)
    answers = group.tick(20)
    assert len(answers) == 3
    assert group.protocol == "y"


def test_the_first_members_wait_for_more_but_not_without_end() -> None:
    """Each that came had all of them wait anew."""
    group = ClassicGroup("g", rebalance_delay_ms=3_000)
    answered = []
    for number in range(10):
        now_ms = number * 2_000
        asked = said(new_id=f"m{number}", knows_ids=False)
        answered += [*group.tick(now_ms), *group.join(asked, number, now_ms)]
        if answered:
            break
    assert [ticket for ticket, _ in answered] == [0, 1, 2]
    assert group.generation == 1, "within the time that members have for a rebalance"


def test_who_does_not_join_again_in_time_is_out() -> None:
    group = ClassicGroup("g")
    group.join(said(new_id="a", knows_ids=False), "a", 0)
    group.join(said(new_id="b", knows_ids=False, protocols=(("range", b"2"),)), "b", 1)
    assert group.state is GroupState.PREPARING
    assert group.next_ms() == 5_001, "a's session outlives the rebalance"
    answers = group.tick(5_001)
    assert [ticket for ticket, _ in answers] == ["b"]
    assert list(group.members) == ["b"]
    assert group.leader == "b"


def test_who_waits_for_others_is_alive_however_long_that_takes() -> None:
    group = ClassicGroup("g")
    group.join(said(new_id="a", knows_ids=False), "a", 0)
    group.join(said(new_id="b", knows_ids=False, session_ms=1_000), "b", 1)
    assert group.tick(3_000) == []
    assert [ticket for ticket, _ in group.join(said("a"), "a again", 4_000)] == ["a again", "b"]
    protocol = None, None
    assert group.sync("b", None, 2, protocol, [], "b's part", 4_010) == []
    assert group.tick(8_000) == []
    assert group.sync("a", None, 2, protocol, [("b", b"1")], "a's part", 8_010) == []
    taken = group.take_record()
    assert taken is not None
    told = group.stored(taken[0], ErrorCode.NONE, 8_020)
    assert [ticket for ticket, _ in told] == ["a's part", "b's part"]
    assert group.tick(9_010) == [], "its session begins when it is told"
    assert list(group.members) == ["a", "b"]


def test_a_rebalance_waits_for_who_was_told_an_id() -> None:
    group = ClassicGroup("g")
    group.join(said(new_id="a", knows_ids=False), "a", 0)
    assert errors(group.join(said(new_id="b"), "told", 1)) == [ErrorCode.MEMBER_ID_REQUIRED]
    assert group.join(said("a", protocols=(("range", b"2"),)), "a again", 2) == []
    assert [ticket for ticket, _ in group.join(said("b"), "b", 3)] == ["a again", "b"]
    assert group.generation == 2


def test_who_does_not_ask_for_its_part_in_time_is_out() -> None:
    group = ClassicGroup("g")
    group.join(said(new_id="a", knows_ids=False, session_ms=60_000), "a", 0)
    assert group.state is GroupState.COMPLETING
    group.tick(5_000)
    assert group.members == {}
    assert group.state is GroupState.EMPTY


def test_a_static_member_that_does_not_join_again_in_time_stays() -> None:
    """As long as its session is."""
    group = ClassicGroup("g")
    group.join(said(new_id="s", instance="one", knows_ids=False, session_ms=60_000), "s", 0)
    group.join(said(new_id="a", knows_ids=False, session_ms=60_000), "a", 1)
    answers = group.tick(5_001)
    assert [ticket for ticket, _ in answers] == ["a"]
    assert list(group.members) == ["s", "a"]
    assert group.check_member("s", "one") is ErrorCode.NONE
    assert group.sync("a", None, 2, (None, None), [("s", b"1"), ("a", b"2")], "a", 5_002) == []
    taken = group.take_record()
    assert taken is not None
    group.stored(taken[0], ErrorCode.NONE, 5_003)
    assert group.members["s"].assignment == b"1"
    group.tick(60_001)
    assert "s" not in group.members


def test_nobody_is_out_while_what_the_leader_has_said_is_stored() -> None:
    group = ClassicGroup("g")
    for name in "ab":
        group.join(said(new_id=name, knows_ids=False, session_ms=60_000), name, 0)
    group.join(said("a", session_ms=60_000), "a", 1)
    assert group.sync("a", None, 2, (None, None), [("a", b"1")], "a's part", 2) == []
    assert group.tick(20_000) == [], "b has not asked for its part, and would not be told yet"
    assert list(group.members) == ["a", "b"]


def test_a_static_member_that_is_back_is_told_when_its_own_id_is_stored() -> None:
    group = ClassicGroup("g")
    for name in ("s", "t"):
        asked = said(new_id=name, instance=name, knows_ids=False, session_ms=60_000)
        group.join(asked, name, 0)
    group.join(said("s", instance="s", session_ms=60_000), "s", 1)
    group.sync("s", "s", 2, (None, None), [], "s's part", 2)
    assigned = group.take_record()
    assert assigned is not None
    group.stored(assigned[0], ErrorCode.NONE, 3)
    assert group.state is GroupState.STABLE
    numbers = []
    for name in ("s", "t"):
        again = said(new_id=f"{name}2", instance=name, session_ms=60_000)
        assert group.join(again, f"{name} again", 4) == []
        taken = group.take_record()
        assert taken is not None
        numbers.append(taken[0])
    told = [group.stored(each, ErrorCode.NONE, 5) for each in numbers]
    assert [[ticket for ticket, _ in each] for each in told] == [["s again"], ["t again"]]


def test_a_commit_without_a_group_protocol_is_for_groups_without_members() -> None:
    group = ClassicGroup("g")
    assert group.check_commit("", None, -1, 0) is ErrorCode.NONE
    assert group.check_commit("my own", "static", -1, 0) is ErrorCode.NONE
    assert group.check_commit("my own", None, 0, 0) is ErrorCode.UNKNOWN_MEMBER_ID
    group.join(said(new_id="a", knows_ids=False), "a", 0)
    for nobody in ("", "my own"):
        assert group.check_commit(nobody, None, -1, 0) is ErrorCode.UNKNOWN_MEMBER_ID
    assert group.check_commit("a", None, 1, 0) is ErrorCode.REBALANCE_IN_PROGRESS
    assert group.check_commit("a", None, 0, 0) is ErrorCode.ILLEGAL_GENERATION


def test_the_table_has_every_state() -> None:
    assert {state for state, _ in NEXT} == set(GroupState) == set(NEXT.values())


@pytest.mark.parametrize("seed", range(30))
def test_whatever_members_do_every_call_is_answered_once(seed: int) -> None:
    """Random calls, and a log that is slow and fails now and then; then all members fall silent.
    Every ticket gets exactly one answer, a generation has one leader, what a member is told was
    stored before, and nothing is left."""
    source = random.Random(seed)
    group = ClassicGroup("g", rebalance_delay_ms=source.choice((0, 100)))
    asked: set[str] = set()
    answered: list[str] = []
    leaders: dict[int, set[str]] = {}
    under_way: list[tuple[int, ClassicGroupRecord]] = []
    kept: list[ClassicGroupRecord] = []
    now = 0

    def told(answers: Answers) -> None:
        taken = group.take_record()
        if taken is not None:
            under_way.append(taken)
            assert taken[1].members or group.state is GroupState.EMPTY
        for ticket, answer in answers:
            answered.append(str(ticket))
            if isinstance(answer, JoinGroupResponse) and not answer.error_code:
                leaders.setdefault(answer.generation, set()).add(answer.leader)
            if isinstance(answer, SyncGroupResponse) and not answer.error_code:
                assert any(each.generation == group.generation for each in kept)

    def stored(error: ErrorCode) -> None:
        number, record = under_way.pop(0)
        if error is ErrorCode.NONE:
            assert all(record.generation >= each.generation for each in kept)
            kept.append(record)
        told(group.stored(number, error, now))

    for step in range(300):
        now += source.randint(0, 3_000)
        ticket = f"{step}"
        ids = ["", "ghost", *group.members, *group._pending]
        member = source.choice(ids)
        instance = source.choice((None, None, None, "one", "two"))
        action = source.random()
        while under_way and source.random() < 0.6:
            failed = source.random() < 0.2
            stored(ErrorCode.COORDINATOR_NOT_AVAILABLE if failed else ErrorCode.NONE)
        if action < 0.45:
            asked.add(ticket)
            protocols = (("range", bytes([source.randrange(2)])),)
            known = group.members.get(member)
            if known is not None:
                instance = known.said.instance_id
            join = said(member, f"m{step}", instance=instance, protocols=protocols)
            told(group.join(join, ticket, now))
        elif action < 0.7:
            asked.add(ticket)
            parts = [(each, b"part") for each in group.members]
            told(group.sync(member, None, group.generation, (None, None), parts, ticket, now))
        elif action < 0.8:
            group.heartbeat(member, None, group.generation, now)
        elif action < 0.9:
            told(group.leave(member, None, now)[1])
        else:
            told(group.tick(now))
    for _ in range(1_000):
        while under_way:
            stored(ErrorCode.NONE)
        when = group.next_ms()
        if when is None:
            break
        now = max(now, when)
        told(group.tick(now))
    assert group.state is GroupState.EMPTY
    assert group.members == {}
    assert sorted(answered) == sorted(asked)
    changed = {number: who for number, who in leaders.items() if len(who) > 2}
    assert not changed, "a leader changes its id only by coming back under its instance's"


OFFER = (("range", b"\0\xff"), ("sticky", b""))
GROUP_RECORD = ClassicGroupRecord(
    7,
    "consumer",
    "range",
    "a",
    0,
    (
        ClassicMemberRecord("a", None, "me", "host", 10_000, 60_000, OFFER, b"\1\0"),
        ClassicMemberRecord("b", "ä", "", "host", 45_000, 5_000, OFFER, b""),
        ClassicMemberRecord("c", None, "me", "::1", 45_000, 5_000, OFFER[:1], b"x"),
    ),
)


def test_a_group_is_restored_as_it_was_stored() -> None:
    group = ClassicGroup.restored("g", GROUP_RECORD, 0, 1_000)
    assert (group.state, group.generation, list(group.members)) == (GroupState.STABLE, 7, [*"abc"])
    assert group.take_record() is None, "nothing has changed"
    assert group.next_ms() == 11_000, "a session, from now on"
    described = group.describe().members
    assert [each.assignment for each in described] == [b"\1\0", b"", b"x"]
    assert [each.metadata for each in described] == [b"\0\xff"] * 3
    for each in "ab":
        assert group.heartbeat(each, {"b": "ä"}.get(each), 7, 2_000) is ErrorCode.NONE
    empty = ClassicGroup.restored("g", GROUP_RECORD.without_members(5), 0, 1_000)
    assert (empty.state, empty.generation, empty.empty_since_ms) == (GroupState.EMPTY, 7, 5)
    assert empty.next_ms() is None


def test_members_of_a_group_that_is_not_stable_are_told_without_what_they_said_and_have() -> None:
    """As in Kafka: what they have said may not be what counts, and what they have is void."""
    group = ClassicGroup.restored("g", GROUP_RECORD, 0, 1_000)
    assert group.describe().protocol == "range"
    group.leave("a", None, 2_000)
    found = group.describe()
    assert (found.state, found.protocol) == ("PreparingRebalance", "")
    assert [(each.member_id, each.metadata, each.assignment) for each in found.members] == [
        ("b", b"", b""),
        ("c", b"", b""),
    ]


def test_who_took_a_static_members_place_in_a_rebalance_that_is_lost_joins_anew() -> None:
    """With its coordinator, before it was stored: the log has the former one. Told that it was
    replaced its client would end, and nobody was left."""
    group = ClassicGroup("g")
    group.join(said(new_id="a", instance="x"), 1, 0)
    group.sync("a", "x", 1, (None, None), [("a", b"part")], 2, 0)
    taken = group.take_record()
    assert taken is not None
    group.stored(taken[0], ErrorCode.NONE, 0)
    later = said(new_id="b", instance="x", protocols=(("range", b"other"),))
    ((_, joined),) = group.join(later, 3, 1)
    assert isinstance(joined, JoinGroupResponse)
    assert (joined.member_id, joined.generation) == ("b", 2)

    def restored() -> ClassicGroup:
        return ClassicGroup.restored("g", taken[1], 0, 2)

    unknown, fenced = ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID
    assert errors(restored().sync("b", "x", 2, (None, None), [], 4, 2)) == [unknown]
    assert restored().heartbeat("b", "x", 2, 2) is unknown
    assert errors(restored().join(said("b", instance="x"), 4, 2)) == [unknown]
    again = restored()
    assert again.heartbeat("b", "x", 1, 2) is fenced, "that generation is stored, and another's"
    assert again.heartbeat("a", "x", 1, 2) is ErrorCode.NONE
    assert errors(again.join(said("b", instance="x"), 4, 2)) == [fenced], "the former one lives"


def test_members_are_in_one_record_and_what_they_offer_once() -> None:
    key, known = ClassicGroupKey("g"), CoordinatorState()
    (batch,) = encode_changes([(key, GROUP_RECORD)], 5, 1 << 20)
    known.apply(decode_changes(memoryview(batch)))
    assert known.all() == [(key, GROUP_RECORD)]
    assert len(known) == 1
    many = tuple(GROUP_RECORD.members[0]._replace(member_id=f"{n:064}") for n in range(10_000))
    record = GROUP_RECORD._replace(members=many)
    (batch,) = encode_changes([(key, record)], 5, 5 << 20)
    assert len(batch) < 130 * len(many)
    known.apply([(key, None)])
    assert known.all() == []


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (f'[{VERSION + 1},"what is not known yet"]', "newer release"),
        (f'[{VERSION},7,"consumer","range","a",0,[],[["a",null,"","",1,1,0,""]]]', "offer 0 of 0"),
        (f'[{VERSION},7,"consumer","range","a",0,[[["range","?"]]],[]]', "none"),
        (f"[{VERSION}]", "none"),
        ("[]", "none"),
    ],
)
def test_what_is_no_record_of_members(value: str, why: str) -> None:
    record = KafkaRecord(0, 0, b'["classic-group","g"]', value.encode())
    with pytest.raises(ProtocolError, match=why):
        decode_changes(memoryview(batch_of([record], 0)))
