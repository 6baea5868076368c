"""Who is to have what: the assignors of the server's side, by the names that Kafka gives them.

* ``uniform``: everybody has as many partitions as anybody else, or one more; who had a partition
  keeps it unless that would be uneven.
* ``range``: of each topic everybody has consecutive partitions, and all topics are cut alike, so
  that partitions of one number go to one member. Members stay in the order of what they have.

Each partition of a topic goes to exactly one of the members that subscribe to the topic. The same
members, topics and former assignment give the same result.

Work is about ``(members + partitions) * log(members)``; with members that subscribe to different
topics, ``uniform`` may go over the partitions ``ROUNDS_MAX`` times.

Pure.
"""

from __future__ import annotations

import heapq
import uuid
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Final, NamedTuple, TypeAlias

from magnetar.protocols.kafka.consumers.id_partitions import IdPartitions, TopicIdPartition

ROUNDS_MAX: Final = 20
UNIFORM, RANGE = "uniform", "range"
LAST: Final = 1 << 31
"""Behind any partition's number."""


class Subscriber(NamedTuple):
    """A member. ``topics``: those that it subscribes to, of ids that are there; ``has``: what it
    was to have until now."""

    member_id: str
    topics: frozenset[uuid.UUID]
    has: IdPartitions


PartitionCounts: TypeAlias = Mapping[uuid.UUID, int]
"""How many each topic has."""
Target: TypeAlias = dict[str, IdPartitions]
"""By member id; of every member."""
Assignor: TypeAlias = Callable[[Sequence[Subscriber], PartitionCounts], Target]


def uniform(members: Sequence[Subscriber], topics: PartitionCounts) -> Target:
    if not members:
        return {}
    in_order = sorted(members)
    if len({each.topics for each in in_order}) == 1:
        return _even(in_order, topics)
    return _Balance(in_order, topics).target()


def _even(members: Sequence[Subscriber], topics: PartitionCounts) -> Target:
    """All subscribe to the same."""
    places = [
        TopicIdPartition(topic, index)
        for topic in sorted(members[0].topics)
        for index in range(topics.get(topic, 0))
    ]
    free = dict.fromkeys(places)
    least, one_more = divmod(len(places), len(members))
    given: dict[str, list[TopicIdPartition]] = {}
    for member in members:
        kept = sorted(place for place in member.has if place in free)
        may_have = least + (1 if one_more and len(kept) > least else 0)
        one_more -= may_have - least
        given[member.member_id] = kept[:may_have]
        for place in kept[:may_have]:
            del free[place]
    rest = list(reversed(free))
    for mine in given.values():
        while len(mine) < least:
            mine.append(rest.pop())
    for mine in given.values():
        if rest and len(mine) == least:
            mine.append(rest.pop())
    assert not rest, "everything is given"
    return {name: frozenset(mine) for name, mine in given.items()}


class _Balance:
    """Members that subscribe to different topics: what is free goes to who has least, and then from
    who has most to who has least, while that makes it more even."""

    def __init__(self, members: Sequence[Subscriber], topics: PartitionCounts) -> None:
        self._members = [each.member_id for each in members]
        self._load = [0] * len(members)
        self._owner: dict[TopicIdPartition, int] = {}
        subscribed: dict[uuid.UUID, list[int]] = {}
        for number, member in enumerate(members):
            for topic in member.topics:
                if topics.get(topic, 0):
                    subscribed.setdefault(topic, []).append(number)
        # Those that few can have come first: others can go elsewhere.
        self._topics = [
            (topic, topics[topic], subscribed[topic])
            for topic in sorted(subscribed, key=lambda each: (len(subscribed[each]), each))
        ]
        for number, member in enumerate(members):
            for place in sorted(member.has):
                there = place.partition < topics.get(place.topic_id, 0)
                if there and place.topic_id in member.topics and place not in self._owner:
                    self._owner[place] = number
                    self._load[number] += 1

    def target(self) -> Target:
        for topic, count, numbers in self._topics:
            heap = self._by_load(numbers)
            for index in range(count):
                place = TopicIdPartition(topic, index)
                if place not in self._owner:
                    self._give(place, self._least(heap))
        for _ in range(ROUNDS_MAX):
            if not self._round():
                break
        found: dict[str, list[TopicIdPartition]] = {name: [] for name in self._members}
        for place, number in self._owner.items():
            found[self._members[number]].append(place)
        return {name: frozenset(mine) for name, mine in found.items()}

    def _round(self) -> bool:
        """Whether anything has moved."""
        moved = False
        for topic, count, numbers in self._topics:
            heap = self._by_load(numbers)
            for index in range(count):
                place = TopicIdPartition(topic, index)
                has, least = self._owner[place], self._least(heap)
                if self._load[has] > self._load[least] + 1:
                    self._load[has] -= 1
                    self._give(place, least)
                    heapq.heappush(heap, (self._load[has], has))
                    moved = True
        return moved

    def _by_load(self, numbers: Sequence[int]) -> list[tuple[int, int]]:
        heap = [(self._load[number], number) for number in numbers]
        heapq.heapify(heap)
        return heap

    def _least(self, heap: list[tuple[int, int]]) -> int:
        """Of the heap's members the one with least. An entry whose load has changed since it was
        pushed is put right when it comes to the top."""
        while True:
            load, number = heap[0]
            if load == self._load[number]:
                return number
            heapq.heapreplace(heap, (self._load[number], number))

    def _give(self, place: TopicIdPartition, number: int) -> None:
        self._owner[place] = number
        self._load[number] += 1


def by_range(members: Sequence[Subscriber], topics: PartitionCounts) -> Target:
    def where(member: Subscriber) -> tuple[int, str]:
        return min((place.partition for place in member.has), default=LAST), member.member_id

    in_order = sorted(members, key=where)
    found: dict[str, list[TopicIdPartition]] = {each.member_id: [] for each in in_order}
    subscribed: dict[uuid.UUID, list[str]] = {}
    for member in in_order:
        for topic in member.topics:
            subscribed.setdefault(topic, []).append(member.member_id)
    for topic, names in subscribed.items():
        least, one_more = divmod(topics.get(topic, 0), len(names))
        start = 0
        for number, name in enumerate(names):
            end = start + least + (number < one_more)
            found[name] += [TopicIdPartition(topic, index) for index in range(start, end)]
            start = end
    return {name: frozenset(mine) for name, mine in found.items()}


ASSIGNORS: Final[Mapping[str, Assignor]] = MappingProxyType({UNIFORM: uniform, RANGE: by_range})
"""The first is taken where members ask for none."""
DEFAULT_ASSIGNOR: Final = UNIFORM
