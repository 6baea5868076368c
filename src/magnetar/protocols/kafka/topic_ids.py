"""Ids of topics, which Kafka's clients are told in Metadata, and by which groups speak of topics.

A partitioned topic has the id that it got when it was made. One of before there were ids, and one
without partitions, has an id that is made of its name: it is the same if it is made anew.

Clients ask for what they were told, perhaps by another broker: an id that is not known here is
looked for among the topics of the default namespace, by one search at a time.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterable
from typing import Final

from magnetar.cluster.control_plane import ControlPlane
from magnetar.cluster.topic_name import DEFAULT_NAMESPACE, TopicName
from magnetar.model.errors import TopicNotFoundError
from magnetar.protocols.kafka.names import kafka_name, topic_of
from magnetar.topics.registry import Topics

OF_NAMES: Final = uuid.UUID("6d61676e-6574-4172-8001-746f70696373")
IDS_KEPT_MAX: Final = 100_000


class TopicIds:
    """Of one broker's sessions."""

    def __init__(self, control: ControlPlane, topics: Topics) -> None:
        self._control = control
        self._topics = topics
        self._names: dict[uuid.UUID, str] = {}
        """That were told; whether they are right still is asked each time."""
        self._searching = asyncio.Lock()

    async def of(self, topic: TopicName) -> uuid.UUID:
        """Of a topic, or of the one that it is a partition of, whether it exists or not. Raises
        ``MetadataError``."""
        whole = topic.partitioned
        found = (await self._control.partitioned.topic(whole)).topic_id
        topic_id = uuid.uuid5(OF_NAMES, str(whole)) if found is None else found
        if topic_id not in self._names:
            if len(self._names) >= IDS_KEPT_MAX:
                self._names.clear()
            self._names[topic_id] = kafka_name(whole)
        return topic_id

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
        name = self._names.get(topic_id)
        if name is None:
            return None
        topic = topic_of(name)
        try:
            there = await self._topics.partitions(topic, create=False) >= 0
        except TopicNotFoundError:
            there = False
        if there and await self.of(topic) == topic_id:
            return name
        self._names.pop(topic_id, None)
        return None

    async def _searched(self, topic_id: uuid.UUID) -> str | None:
        topics = await self._topics.names(DEFAULT_NAMESPACE)
        for topic in dict.fromkeys(each.partitioned for each in topics):
            if await self.of(topic) == topic_id:
                return kafka_name(topic)
        return None
