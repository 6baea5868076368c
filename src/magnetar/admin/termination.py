"""What REST asks about terminating topics: nothing more is published to one, for good."""

from __future__ import annotations

from typing import Final

from magnetar.admin.messages import MessageService
from magnetar.admin.peers import Peers, about_topic, read_answer
from magnetar.admin.topics import TopicService
from magnetar.admin.views import MessageIdView
from magnetar.cluster.ownership import At
from magnetar.cluster.topic_name import KAFKA_GROUPS, TopicName, parse_topic
from magnetar.model.errors import NotAllowedError
from magnetar.topics.parts import each_part
from magnetar.topics.terminating import terminate

PATH: Final = "/terminate"


class TerminationService:
    def __init__(self, topics: TopicService, messages: MessageService, peers: Peers) -> None:
        self._topics = topics
        self._messages = messages
        self._peers = peers

    async def topic(self, topic: str) -> MessageIdView:
        """Of a topic without partitions, or of one partition; the id of its last message, also if
        it was terminated before. Raises ``TopicNotFoundError``, ``PartitionedTopicError``,
        ``ServedElsewhereError``, and as ``topics.terminating.terminate``."""
        _check_name(parse_topic(topic))
        await terminate(await self._topics.opened(topic))
        return await self._messages.last_id(topic)

    async def partitions(self, topic: str) -> dict[int, MessageIdView]:
        """Of each partition, by its number. Raises ``NotAllowedError`` for a topic without, and as
        ``parts.each_part``."""
        name = parse_topic(topic)
        _check_name(name)
        count = await self._topics.partitions(topic)
        if not count:
            raise NotAllowedError(f"{name} has no partitions; ask for {PATH} of it")
        parts = [name.of_partition(index) for index in range(count)]
        found = await each_part(name, parts, "terminated", self._part)
        return {part.partition: last for part, last in found.items()}

    async def _part(self, part: TopicName) -> MessageIdView:
        owner = await self._topics.locate(part)
        if not isinstance(owner, At):
            return await self.topic(str(part))
        told = await self._peers.ask(owner.http_url, about_topic("POST", part, PATH))
        return read_answer(MessageIdView, told, owner.http_url)


def _check_name(name: TopicName) -> None:
    if name.namespace == KAFKA_GROUPS:
        raise NotAllowedError(
            f"{name} cannot be terminated: what Kafka's clients do as groups is kept there"
        )
