"""Ids of topics, which Kafka's clients are told in Metadata, and by which they fetch, delete, and
speak of topics in groups. A topic that is made anew under its name has another id.

=============================  =============================================================
topic                          its id
=============================  =============================================================
partitioned                    the one that it got when it was made
partitioned, by an older       made of its name, until it is deleted
release
without partitions             made of its name, and of when its log was made
=============================  =============================================================

Clients ask for what they were told, perhaps by another broker: an id that is not known here is
looked for among all topics, those of the default namespace first, by one search at a time, which
rests for ``SEARCH_S``, and for as long as it took. Clients of a topic that is gone ask again and
again: what was not found is looked for each time after twice as long, ``MISSED_S_MAX`` at most. (A
node for each id would save the search, and could disagree with the topic's own.)
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterable
from contextlib import suppress
from typing import Final, NamedTuple

import structlog

from magnetar.cluster.control_plane import ControlPlane
from magnetar.cluster.partitioned_topics import PartitionedTopic
from magnetar.cluster.topic_name import DEFAULT_NAMESPACE, TopicName
from magnetar.model.errors import (
    DamagedTopicError,
    MetadataFormatError,
    NoSuchLogError,
    TopicNotFoundError,
)
from magnetar.protocols.kafka.names import kafka_name, topic_of
from magnetar.topics.registry import Topics
from magnetar.topics.topic import Topic

log = structlog.get_logger(__name__)

OF_NAMES: Final = uuid.UUID("6d61676e-6574-4172-8001-746f70696373")
IDS_KEPT_MAX: Final = 100_000
SEARCH_S: Final = 1.0
MISSED_S_MAX: Final = 60.0
MISSED_MAX: Final = 10_000
READS_AT_ONCE: Final = 64


class _Named(NamedTuple):
    name: str
    topic: TopicName


class _Missed(NamedTuple):
    """An id that nothing has. ``due_s``: when it is looked for again; ``rest_s``: how long not,
    the next time."""

    due_s: float
    rest_s: float


class TopicIds:
    """Of one broker's sessions."""

    def __init__(self, control: ControlPlane, topics: Topics) -> None:
        self._control = control
        self._topics = topics
        self._names: dict[uuid.UUID, _Named] = {}
        """That were told; whether they are right still is asked each time."""
        self._searching = asyncio.Lock()
        self._next_search_s = float("-inf")
        self._missed: dict[uuid.UUID, _Missed] = {}

    async def of(self, topic: TopicName) -> uuid.UUID:
        """Of a topic, or of the one that it is a partition of, whether it exists or not. Raises
        ``MetadataError``."""
        whole = topic.partitioned
        node = await self._control.partitioned.topic(whole)
        created_ms = 0
        if not node.partitions:
            with suppress(NoSuchLogError):  # it has one when it is made
                created_ms = await self._topics.created_ms(whole)
        return self._keep(whole, _id_of(whole, node, created_ms))

    async def of_open(self, topic: Topic) -> uuid.UUID:
        """As ``of``, of a topic that is open here: of the log that it has. Raises
        ``MetadataError``."""
        whole = topic.name.partitioned
        node = await self._control.partitioned.topic(whole)
        created_ms = 0 if node.partitions else topic.log.stats().created_ms
        return self._keep(whole, _id_of(whole, node, created_ms))

    def _keep(self, whole: TopicName, topic_id: uuid.UUID) -> uuid.UUID:
        if topic_id not in self._names:
            if len(self._names) >= IDS_KEPT_MAX:
                self._names.clear()
            self._names[topic_id] = _Named(kafka_name(whole), whole)
        return topic_id

    def told(self, topic_id: uuid.UUID) -> str | None:
        """The name that goes with an id, by what is known without asking anybody; None: ``names``
        has to be asked. Of a topic whose id is not in its node, and while the store is out of
        reach, the name may have been right before: what is open under it says (``of_open``)."""
        named, partitioned = self._names.get(topic_id), self._control.partitioned
        if named is None:
            return None
        node = partitioned.known(named.topic)
        if node is None:
            return None if partitioned.connected else named.name
        return named.name if node.topic_id in (None, topic_id) else None

    async def names(self, ids: Iterable[uuid.UUID]) -> dict[uuid.UUID, str]:
        """The names, as Kafka's clients know them, of those that there are. Raises
        ``MetadataError``."""
        found: dict[uuid.UUID, str] = {}
        for topic_id in ids:
            name = await self._known(topic_id)
            if name is None:
                async with self._searching:
                    name = await self._known(topic_id) or await self._searched(topic_id)
            if name is not None:
                found[topic_id] = name
        return found

    async def _known(self, topic_id: uuid.UUID) -> str | None:
        named = self._names.get(topic_id)
        if named is None:
            return None
        topic = topic_of(named.name)
        try:
            await self._topics.partitions(topic, create=False)  # it is there
            if await self.of(topic) == topic_id:
                return named.name
        except TopicNotFoundError:
            pass
        except (DamagedTopicError, MetadataFormatError) as error:
            # Its id cannot be read any more. It hides no other that is asked for beside it.
            log.warning("a topic is not found by its id", error=str(error))
        self._names.pop(topic_id, None)
        return None

    async def _searched(self, topic_id: uuid.UUID) -> str | None:
        """All ids of the namespaces that were looked through are known after it."""
        loop = asyncio.get_running_loop()
        begun_s = loop.time()
        if topic_id not in self._missed:
            if len(self._missed) >= MISSED_MAX:
                self._missed.clear()
            self._missed[topic_id] = _Missed(begun_s, SEARCH_S)
        if begun_s < max(self._next_search_s, self._missed[topic_id].due_s):
            return None
        try:
            found = await self._search(topic_id)
        finally:
            now_s = loop.time()
            self._next_search_s = now_s + max(SEARCH_S, now_s - begun_s)
        if found is not None:
            del self._missed[topic_id]
            return found
        for other, (_, rest_s) in self._missed.items():  # all of them were looked for
            self._missed[other] = _Missed(now_s + rest_s, min(2 * rest_s, MISSED_S_MAX))
        return None

    async def _search(self, topic_id: uuid.UUID) -> str | None:
        named: _Named | None = None
        for namespace in await self._namespaces():
            found = await self._topics.names(namespace)
            wholes = list(dict.fromkeys(each.partitioned for each in found))
            for start in range(0, len(wholes), READS_AT_ONCE):
                await asyncio.gather(*map(self._look, wholes[start : start + READS_AT_ONCE]))
                named = named or self._names.get(topic_id)  # of very many not all are kept
            if named is not None:
                return named.name
        return None

    async def _look(self, whole: TopicName) -> None:
        """One whose node cannot be read hides no other: whoever asks for it is told why."""
        with suppress(DamagedTopicError, MetadataFormatError):
            await self.of(whole)

    async def _namespaces(self) -> list[str]:
        """That of most topics first."""
        found = await self._control.namespaces.everywhere()
        others = [each for each in found if each != DEFAULT_NAMESPACE]
        return [DEFAULT_NAMESPACE, *others]


def _id_of(whole: TopicName, node: PartitionedTopic, created_ms: int) -> uuid.UUID:
    if node.topic_id is not None:
        return node.topic_id
    made = f"{whole} {created_ms}" if created_ms and not node.partitions else str(whole)
    return uuid.uuid5(OF_NAMES, made)
