"""Who is to have what: everything is given once, evenly, and mostly to whom had it."""

from __future__ import annotations

import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.protocols.kafka.consumers.assignors import ASSIGNORS, RANGE, UNIFORM, Subscriber
from magnetar.protocols.kafka.consumers.id_partitions import NOWHERE, TopicIdPartition

TOPICS = [uuid.UUID(int=number) for number in range(1, 5)]


@st.composite
def groups(draw: st.DrawFn) -> tuple[list[Subscriber], dict[uuid.UUID, int]]:
    counts = {topic: draw(st.integers(0, 7)) for topic in TOPICS}
    number = draw(st.integers(1, 6))
    places = [TopicIdPartition(topic, n) for topic in TOPICS for n in range(9)]
    had = draw(st.lists(st.integers(0, number), min_size=len(places), max_size=len(places)))
    same = draw(st.booleans())
    everything = frozenset(draw(st.sets(st.sampled_from(TOPICS))))
    members = [
        Subscriber(
            f"m{each}",
            everything if same else frozenset(draw(st.sets(st.sampled_from(TOPICS)))),
            frozenset(place for place, owner in zip(places, had, strict=True) if owner == each),
        )
        for each in range(number)
    ]
    return members, counts


@pytest.mark.parametrize("name", [UNIFORM, RANGE])
@given(groups())
def test_all_that_is_subscribed_to_goes_to_one_who_subscribes(
    name: str, group: tuple[list[Subscriber], dict[uuid.UUID, int]]
) -> None:
    members, counts = group
    target = ASSIGNORS[name](members, counts)
    assert target.keys() == {each.member_id for each in members}
    found = [place for mine in target.values() for place in mine]
    wanted = {
        TopicIdPartition(topic, number)
        for topic in frozenset().union(*(each.topics for each in members))
        for number in range(counts[topic])
    }
    assert len(found) == len(wanted)
    assert set(found) == wanted
    for member in members:
        assert {place.topic_id for place in target[member.member_id]} <= member.topics
    again = [each._replace(has=target[each.member_id]) for each in members]
    assert ASSIGNORS[name](again, counts) == target, "who has it keeps it"


@given(groups())
def test_uniform_is_even(group: tuple[list[Subscriber], dict[uuid.UUID, int]]) -> None:
    members, counts = group
    target = ASSIGNORS[UNIFORM](members, counts)
    for member in members:
        for other in members:
            more = len(target[member.member_id]) - len(target[other.member_id])
            if more > 1:
                could = {place.topic_id for place in target[member.member_id]} & other.topics
                assert not could, "what could go to the other has not"


def test_uniform_takes_no_more_than_it_must() -> None:
    places = [TopicIdPartition(TOPICS[0], number) for number in range(9)]
    topics = frozenset(TOPICS[:1])
    three = [Subscriber(f"m{n}", topics, frozenset(places[n * 3 : n * 3 + 3])) for n in range(3)]
    four = [*three, Subscriber("m3", topics, NOWHERE)]
    target = ASSIGNORS[UNIFORM](four, {TOPICS[0]: 9})
    kept = [len(target[each.member_id] & each.has) for each in three]
    assert sorted(kept) == [2, 2, 3]
    left = ASSIGNORS[UNIFORM](three[:2], {TOPICS[0]: 9})
    assert all(left[each.member_id] >= each.has for each in three[:2])


def test_range_gives_the_same_numbers_of_all_topics_to_one_member() -> None:
    topics = frozenset(TOPICS[:2])
    members = [Subscriber(f"m{number}", topics, NOWHERE) for number in range(3)]
    target = ASSIGNORS[RANGE](members, {TOPICS[0]: 8, TOPICS[1]: 8})
    numbers = [sorted(place.partition for place in target[f"m{n}"]) for n in range(3)]
    assert numbers == [[0, 0, 1, 1, 2, 2], [3, 3, 4, 4, 5, 5], [6, 6, 7, 7]]


def test_a_large_group_is_assigned_in_linear_work() -> None:
    """Not timed: a quadratic one would take minutes."""
    topics = frozenset(TOPICS)
    members = [Subscriber(f"m{n:05}", topics, NOWHERE) for n in range(2_000)]
    members[0] = members[0]._replace(topics=frozenset(TOPICS[:1]))
    counts = dict.fromkeys(TOPICS, 2_500)
    for assign in ASSIGNORS.values():
        assert sum(map(len, assign(members, counts).values())) == 10_000
