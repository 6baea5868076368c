"""Members of share groups, what they are to read, and their sessions."""

from __future__ import annotations

import uuid
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from magnetar.protocols.kafka.consumers.id_partitions import TopicIdPartition, TopicShape
from magnetar.protocols.kafka.shares.share_group import (
    EMPTY,
    STABLE,
    ShareGroup,
    ShareHeartbeat,
)
from magnetar.protocols.kafka.shares.share_sessions import (
    EPOCH_MAX,
    SessionKey,
    ShareSession,
    ShareSessions,
)
from magnetar.protocols.kafka.shares.simple_assignor import shared_out
from magnetar.wire.kafka.errors import ErrorCode

SESSION_MS = 45_000
IDS = {name: uuid.UUID(int=number) for number, name in enumerate("xyz", 1)}
KEY = SessionKey("group", "a")


def topics(**partitions: int) -> dict[str, TopicShape]:
    return {name: TopicShape(IDS[name], count) for name, count in partitions.items()}


def group(members_max: int = 10, **partitions: int) -> ShareGroup:
    made = ShareGroup("group", SESSION_MS, members_max, now_ms=0)
    made.learn(frozenset("xyz"), topics(**partitions))
    return made


def joins(to: ShareGroup, name: str, *names: str, now_ms: int = 0) -> int:
    answer = to.heartbeat(ShareHeartbeat(name, 0, names=names), now_ms)
    assert answer.error is ErrorCode.NONE
    return answer.epoch


# -- what members are to read ---------------------------------------------------------------------


@given(st.integers(1, 12), st.lists(st.integers(0, 8), min_size=3, max_size=3))
def test_members_of_one_subscription_share_evenly(members: int, counts: list[int]) -> None:
    there = topics(**dict(zip("xyz", counts, strict=True)))
    names = [f"member-{number}" for number in range(members)]
    found = shared_out(dict.fromkeys(names, frozenset("xyz")), there)
    total = sum(counts)
    read = Counter(place for places in found.values() for place in places)
    assert len(read) == total
    sizes = {len(places) for places in found.values()}
    if members >= total > 0:
        assert sizes == {1}
        assert max(read.values()) - min(read.values()) <= 1
    else:
        assert set(read.values()) <= {1}
        assert max(sizes) - min(sizes) <= 1


@given(
    st.dictionaries(st.sampled_from("abcdef"), st.frozensets(st.sampled_from("xyz")), min_size=1),
    st.dictionaries(st.sampled_from("xyz"), st.integers(1, 5)),
)
def test_everybody_reads_what_it_says_and_everything_is_read(
    subscriptions: dict[str, frozenset[str]], partitions: dict[str, int]
) -> None:
    there = topics(**partitions)
    found = shared_out(subscriptions, there)
    assert found.keys() == subscriptions.keys()
    for member, names in subscriptions.items():
        ids = {IDS[name] for name in names}
        assert {place.topic_id for place in found[member]} <= ids
        assert found[member] or not names & there.keys() or len(subscriptions) > 1
    wanted = frozenset[str]().union(*subscriptions.values())
    read = frozenset[TopicIdPartition]().union(*found.values())
    assert len(read) == sum(count for name, count in partitions.items() if name in wanted)


# -- members --------------------------------------------------------------------------------------


def test_members_come_and_go() -> None:
    found = group(x=2)
    assert found.phase == EMPTY
    first = joins(found, "a", "x")
    assert found.phase == STABLE
    again = found.heartbeat(ShareHeartbeat("a", first), 1_000)
    assert (again.epoch, again.assigned) == (first, None)
    second = joins(found, "b", "x", now_ms=1_000)
    assert second > first
    told = found.heartbeat(ShareHeartbeat("a", first), 2_000)
    assert told.assigned == {TopicIdPartition(IDS["x"], 0)}
    assert found.heartbeat(ShareHeartbeat("b", -1), 3_000).epoch == -1
    told = found.heartbeat(ShareHeartbeat("a", told.epoch), 4_000)
    assert told.assigned is not None
    assert len(told.assigned) == 2


def test_who_is_not_a_member_joins_again() -> None:
    found = group(x=1)
    for epoch in (-1, 1, 7):
        answer = found.heartbeat(ShareHeartbeat("a", epoch), 0)
        assert answer.error is ErrorCode.UNKNOWN_MEMBER_ID
    epoch = joins(found, "a", "x")
    answer = found.heartbeat(ShareHeartbeat("a", epoch + 1), 0)
    assert answer.error is ErrorCode.FENCED_MEMBER_EPOCH
    assert found.heartbeat(ShareHeartbeat("a", epoch - 1), 0).assigned is not None


def test_a_silent_member_is_out() -> None:
    found = group(x=1)
    joins(found, "a", "x")
    joins(found, "b", "x", now_ms=1_000)
    assert found.next_ms() == SESSION_MS
    assert len(found.tick(SESSION_MS)) == 1
    assert list(found.members) == ["b"]
    assert len(found.tick(SESSION_MS + 1_000)) == 1
    assert (found.phase, found.empty_since_ms) == (EMPTY, SESSION_MS + 1_000)


def test_members_are_bounded() -> None:
    found = group(members_max=2, x=1)
    joins(found, "a", "x")
    joins(found, "b", "x")
    answer = found.heartbeat(ShareHeartbeat("c", 0, names=("x",)), 0)
    assert answer.error is ErrorCode.GROUP_MAX_SIZE_REACHED
    joins(found, "a", "x")  # which is there already


def test_topics_that_are_made_later_are_told() -> None:
    found = group()
    epoch = joins(found, "a", "x", "y")
    found.learn(frozenset("xy"), topics(y=2))
    told = found.heartbeat(ShareHeartbeat("a", epoch), 0)
    assert told.assigned == {TopicIdPartition(IDS["y"], each) for each in (0, 1)}


# -- sessions -------------------------------------------------------------------------------------


def test_epochs_of_a_session_go_on_by_one() -> None:
    sessions = ShareSessions()
    assert sessions.used(KEY, 1, 0) is ErrorCode.SHARE_SESSION_NOT_FOUND
    made = sessions.opened(KEY, "here")
    assert isinstance(made, ShareSession)
    assert sessions.used(KEY, 2, "here") is ErrorCode.INVALID_SHARE_SESSION_EPOCH
    assert sessions.used(KEY, 1, "here") is made
    assert sessions.used(KEY, 1, "here") is ErrorCode.INVALID_SHARE_SESSION_EPOCH
    made.epoch = EPOCH_MAX
    assert sessions.used(KEY, EPOCH_MAX, "there") is made
    assert (made.epoch, sessions.of("there"), sessions.of("here")) == (1, [made], [])
    assert sessions.used(KEY, -1, "there") is made
    assert len(sessions) == 0


def test_sessions_are_bounded() -> None:
    sessions = ShareSessions(sessions_max=1)
    sessions.opened(KEY, "here")
    other = sessions.opened(SessionKey("group", "b"), "here")
    assert other is ErrorCode.SHARE_SESSION_LIMIT_REACHED


def test_places_take_turns() -> None:
    session = ShareSession(KEY, "here")
    places = [TopicIdPartition(IDS["x"], number) for number in range(3)]
    session.change(places, [])
    session.rotate()
    assert list(session.places) == [places[1], places[2], places[0]]
    session.change([], places[2:])
    assert list(session.places) == [places[1], places[0]]
