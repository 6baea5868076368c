"""How fast topics, producers and consumers move: the counters that they keep anyway, looked at
every ``SAMPLE_INTERVAL_S``. Nothing is done per message or entry.

A rate is what was counted since the last sample but one, by the time since then: over the last one
to two intervals. What is newer than that sample counts from zero. Counters that stand at zero are
not kept, so topics that nobody uses cost a look each interval and no memory.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol, TypeAlias

from magnetar.topics.consuming.consumer import Consumer
from magnetar.topics.consuming.subscription import Subscription
from magnetar.topics.publishing.producer import Producer
from magnetar.topics.subscribable import SubscribableTopic
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
_TAKING: Final = (Topic, Producer)


def counts_of(counted: Counted) -> Counts:
    """Of a topic or producer what came in, of a subscription or consumer what went out."""
    if isinstance(counted, _TAKING):
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
        coming = going = 0
        for number, topic in enumerate(self._topics.loaded()):
            if number % TOPICS_PER_TURN == TOPICS_PER_TURN - 1:
                await asyncio.sleep(0)
            if isinstance(topic, Topic):
                if topic.messages_in:
                    coming += self._take(topic, taken)
                for producer in topic.producers.values():
                    if producer.messages_in:
                        self._take(producer, taken)
            for subscription in topic.subscriptions.values():
                going += self._take(subscription, taken)
                for consumer in subscription.consumers:
                    self._take(consumer, taken)
        passed_s = taken.at_s - self._newer.at_s
        if passed_s > 0:
            self.messages_in_per_s = coming / passed_s
            self.messages_out_per_s = going / passed_s
        self._older, self._newer = self._newer, taken

    def _take(self, counted: Counted, taken: _Sample) -> int:
        """How many messages it has counted since the sample before."""
        counts, before = counts_of(counted), self._newer.counts.get(counted, NOTHING)
        if counts == before:
            counts = before  # of most topics nothing is new: it is in memory once
        if counts != NOTHING:
            taken.counts[counted] = counts
        return max(0, counts.messages - before.messages)

    def of(self, counted: Counted) -> Rate:
        """Now; zeros in the first second after a start."""
        passed_s = self._loop.time() - self._older.at_s
        if passed_s < 1:
            return Rate(0.0, 0.0, 0.0, 0.0)
        before = self._older.counts.get(counted, NOTHING)
        # A consumer that left takes its share of its subscription's counts along.
        changes = (max(0, now - then) for now, then in zip(counts_of(counted), before, strict=True))
        return Rate(*(change / passed_s for change in changes))
