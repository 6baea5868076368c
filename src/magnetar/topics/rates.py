"""How fast topics, producers and consumers move: the counters that they keep anyway, looked at
every ``SAMPLE_INTERVAL_S``. Nothing is done per message or entry.

A rate is what was counted since the last sample but one, by the time since then: over the last one
to two intervals. What is newer than that sample counts from zero. Counters that stand at zero are
not kept, so topics that nobody uses cost a look each interval and no memory.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple, Protocol, TypeAlias

from magnetar.topics.consumer import Consumer
from magnetar.topics.producer import Producer
from magnetar.topics.subscribable import SubscribableTopic
from magnetar.topics.subscription import Subscription
from magnetar.topics.topic import Topic

SAMPLE_INTERVAL_S: Final = 10.0
TOPICS_PER_TURN: Final = 200
"""Looked at in one turn of the loop, which others need too."""

Counted: TypeAlias = Topic | Producer | Subscription | Consumer


class Counts(NamedTuple):
    """What one of them has counted since it is here. Bytes are of entries, as stored or sent."""

    messages: int = 0
    byte_count: int = 0
    redelivered: int = 0
    acknowledged: int = 0


class Rate(NamedTuple):
    """Per second."""

    messages: float
    byte_count: float
    redelivered: float
    acknowledged: float


NOTHING: Final = Counts()


def counts_of(counted: Counted) -> Counts:
    """Of a topic or producer what came in, of a subscription or consumer what went out."""
    if isinstance(counted, Topic | Producer):
        return Counts(counted.messages_in, counted.bytes_in)
    if isinstance(counted, Consumer):
        return Counts(
            counted.messages_out, counted.bytes_out, counted.redelivered, counted.acknowledged
        )
    dispatcher, consumers = counted.dispatcher, counted.consumers
    return Counts(
        dispatcher.messages_out,
        dispatcher.bytes_out,
        sum(consumer.redelivered for consumer in consumers),
        sum(consumer.acknowledged for consumer in consumers),
    )


class _Sample(NamedTuple):
    at_s: float
    counts: dict[Counted, Counts]


class RatedTopics(Protocol):
    """The topics of a broker: its own, or at a read-only broker those that it follows."""

    def loaded(self) -> Sequence[SubscribableTopic]: ...


class Rates:
    """The rates of a broker's open topics."""

    def __init__(self, topics: RatedTopics) -> None:
        self._topics = topics
        self._loop = asyncio.get_running_loop()
        self._older = self._newer = _Sample(self._loop.time(), {})
        self.messages_in_per_s = 0.0
        """Of all topics together, between the last two samples."""
        self.messages_out_per_s = 0.0

    async def run(self) -> None:
        """Sample until cancelled."""
        while True:
            await asyncio.sleep(SAMPLE_INTERVAL_S)
            await self.sample()

    async def sample(self) -> None:
        taken = _Sample(self._loop.time(), {})
        for number, topic in enumerate(self._topics.loaded()):
            if number % TOPICS_PER_TURN == TOPICS_PER_TURN - 1:
                await asyncio.sleep(0)
            for counted in _parts(topic):
                counts = counts_of(counted)
                if counts != NOTHING:
                    taken.counts[counted] = counts
        self._older, self._newer = self._newer, taken
        self._sum_up()

    def _sum_up(self) -> None:
        """What has come in and gone out since the sample before, of what is still here."""
        passed_s = self._newer.at_s - self._older.at_s
        coming = going = 0
        for counted, counts in self._newer.counts.items():
            more = max(0, counts.messages - self._older.counts.get(counted, NOTHING).messages)
            if isinstance(counted, Topic):
                coming += more
            elif isinstance(counted, Subscription):
                going += more
        if passed_s > 0:
            self.messages_in_per_s = coming / passed_s
            self.messages_out_per_s = going / passed_s

    def of(self, counted: Counted) -> Rate:
        """Now; zeros in the first second after a start."""
        passed_s = self._loop.time() - self._older.at_s
        if passed_s < 1:
            return Rate(0.0, 0.0, 0.0, 0.0)
        before = self._older.counts.get(counted, NOTHING)
        # A consumer that left takes its share of its subscription's counts along.
        changes = (max(0, now - then) for now, then in zip(counts_of(counted), before, strict=True))
        return Rate(*(change / passed_s for change in changes))


def _parts(topic: SubscribableTopic) -> Iterator[Counted]:
    if isinstance(topic, Topic):
        yield topic
        yield from topic.producers.values()
    for subscription in topic.subscriptions.values():
        yield subscription
        yield from subscription.consumers
