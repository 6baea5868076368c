"""Numbers that only grow, kept in the metadata store: each increment is durable, and no two
processes get the same.

| path | counts |
|---|---|
| ``/admin/topic-epochs/<tenant>/<namespace>/persistent/<local>`` | exclusive producers of a topic |
| ``/admin/broker-starts`` | starts of brokers |
| ``/admin/kafka-producer-ids`` | blocks of producer ids that brokers have taken |

A topic's exclusive producers are numbered from the time of the first, milliseconds since 1970: it
may be deleted and made anew, and who had number 1 of the one must not be taken for who has number 1
of the other.

Values are decimal. Nothing is kept in memory: each is asked for once per load of a topic, or start.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from magnetar.cluster.topic_name import TopicName
from magnetar.env.emptied_nodes import delete_below
from magnetar.env.metadata import MetadataStore
from magnetar.model.errors import (
    BadVersionError,
    BrokerMetadataError,
    NodeExistsError,
    NoNodeError,
)

EPOCHS: Final = "/admin/topic-epochs"
STARTS: Final = "/admin/broker-starts"
PRODUCER_IDS: Final = "/admin/kafka-producer-ids"
RACES_MAX: Final = 100
"""Compare-and-sets that may lose in a row before an operation gives up."""


class Counters:
    """``now_ms`` is a wall clock."""

    def __init__(self, metadata: MetadataStore, now_ms: Callable[[], int]) -> None:
        self._metadata = metadata
        self._now_ms = now_ms

    async def count_start(self) -> int:
        """A number that no other start of a broker of this store gets."""
        return await self._increment(STARTS)

    async def producer_id_block(self) -> int:
        """A number that no other broker of this store gets: of a block of Kafka's producer ids."""
        return await self._increment(PRODUCER_IDS)

    async def topic_epoch(self, name: TopicName) -> int:
        """That of the topic's last exclusive producer; 0: it has had none."""
        path = _epoch_path(name)
        try:
            node = await self._metadata.get(path)
        except NoNodeError:
            return 0
        return _number(path, node.value)

    async def raise_topic_epoch(self, name: TopicName) -> int:
        """That of one more exclusive producer; durable when it returns."""
        return await self._increment(_epoch_path(name), first=max(1, self._now_ms()))

    async def forget_topic(self, name: TopicName) -> None:
        """The topic was deleted."""
        try:
            await self._metadata.delete(_epoch_path(name))
        except NoNodeError:
            return

    async def forget_namespace(self, namespace: str) -> None:
        """It was deleted, with all its topics."""
        await delete_below(self._metadata, f"{EPOCHS}/{namespace}/persistent", EPOCHS)

    async def _increment(self, path: str, first: int = 1) -> int:
        for _ in range(RACES_MAX):
            try:
                node = await self._metadata.get(path)
                value = _number(path, node.value) + 1
                await self._metadata.put(path, str(value).encode(), node.version)
            except NoNodeError:
                if not await self._create(path, str(first).encode()):
                    continue
                value = first
            except BadVersionError:
                continue
            return value
        raise BrokerMetadataError(f"{path} is changed by many at once; try again")

    async def _create(self, path: str, value: bytes) -> bool:
        try:
            await self._metadata.create(path, value)
        except NodeExistsError:
            return False
        return True


def _epoch_path(name: TopicName) -> str:
    return f"{EPOCHS}/{name.namespace}/persistent/{name.encoded_local}"


def _number(path: str, value: bytes) -> int:
    try:
        return int(value)
    except ValueError as error:
        raise BrokerMetadataError(f"{path} holds {value[:40]!r}, not a number") from error
