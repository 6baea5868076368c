"""What Kafka's clients are told of topics, leaders and brokers while the metadata store does not
answer.

A read that finds the store out of reach waits for it, 15 s as a rule. Clients that look for a
broker would wait as long for each answer, with all that stands behind it on their connection, and
some give up, while brokers serve what they own all the time. So each question of a request is
waited for ``ANSWER_S``, and once one had no answer none is asked any more for that request: it is
answered by what the store said last, or by an error on which clients ask again.

Rules:

* What this broker owns, as far as it knows, is led here. Of others it is told who led them last: a
  broker that does not any more says so, and clients ask again.
* A topic is told only as it was found last, never that it does not exist. Lists of all topics are
  told as the store has them or not at all: who subscribes by a pattern would drop what is left out.
* At most ``KEPT_MAX`` of each are remembered, the last that were asked for.
"""

from __future__ import annotations

import uuid
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, Generic, NamedTuple, TypeVar

from magnetar.cluster.topic_name import TopicName
from magnetar.model.errors import (
    BrokerMetadataError,
    MetadataUnavailableError,
    SessionExpiredError,
)
from magnetar.protocols.kafka.lookups import StoreSilentError, in_time

T = TypeVar("T")
N = TypeVar("N")
"""A broker, as clients are told of it."""

KEPT_MAX: Final = 100_000
SILENT: Final = (StoreSilentError, MetadataUnavailableError, SessionExpiredError)
STORE_AWAY: Final = (BrokerMetadataError, *SILENT)
"""Also of a node that cannot be read: what was told last may be right still."""


class Questions:
    """Those of one request to the metadata store."""

    def __init__(self) -> None:
        self._silent = False

    async def ask(self, question: Callable[[], Awaitable[T]]) -> T:
        """Raises one of ``SILENT``, soon, and what ``question`` raises."""
        if self._silent:
            raise StoreSilentError("the metadata store does not answer; ask again")
        try:
            return await in_time(question())
        except SILENT:  # and not of what cannot be read: other questions have answers
            self._silent = True
            raise


class FoundTopic(NamedTuple):
    """``partitions``: how many; 0: it is one without."""

    partitions: int
    topic_id: uuid.UUID


class KnownPlaces(Generic[N]):
    """Of one broker's sessions: what the store said last."""

    def __init__(self) -> None:
        self.nodes: Mapping[str, N] = {}
        self._shapes: OrderedDict[TopicName, FoundTopic] = OrderedDict()
        self._leaders: OrderedDict[TopicName, N] = OrderedDict()

    def shape(self, topic: TopicName) -> FoundTopic | None:
        return self._shapes.get(topic)

    def found(self, topic: TopicName, shape: FoundTopic) -> None:
        _keep(self._shapes, topic, shape)

    def is_gone(self, topic: TopicName) -> None:
        """There is no such topic."""
        self._shapes.pop(topic, None)

    def leader(self, topic: TopicName) -> N | None:
        return self._leaders.get(topic)

    def led(self, topic: TopicName, node: N) -> None:
        _keep(self._leaders, topic, node)


V = TypeVar("V")


def _keep(kept: OrderedDict[TopicName, V], topic: TopicName, value: V) -> None:
    kept[topic] = value
    kept.move_to_end(topic)
    if len(kept) > KEPT_MAX:
        kept.popitem(last=False)
