"""``TopicService``: what REST asks and tells about topics. It asks the registry of open topics and
the control plane; it keeps nothing.

Names are those of clients, full or short. A question about a topic that another broker serves ends
in ``ServedElsewhereError``.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Final

from magnetar.admin.stats_views import (
    InternalStatsView,
    PartitionedStatsView,
    TopicStatsView,
)
from magnetar.admin.topic_stats import internal_stats, partitioned_stats, topic_stats
from magnetar.admin.views import LookupView
from magnetar.cluster.control_plane import ControlPlane
from magnetar.cluster.ownership import At
from magnetar.cluster.topic_name import TopicName, parse_namespace, parse_topic
from magnetar.model.errors import BrokerError, SubscriptionNotFoundError, TopicNotFoundError
from magnetar.topics.rates import Rates
from magnetar.topics.registry import Topics
from magnetar.topics.topic import Topic
from magnetar.topics.upkeep import expire_messages

OPENED_AT_A_TIME: Final = 32
"""Partitions that one request may be opening; others open topics, too."""


class ServedElsewhereError(BrokerError):
    """Another broker serves the topic; ``http_url`` is its REST."""

    def __init__(self, name: TopicName, http_url: str) -> None:
        super().__init__(f"topic {name} is served by the broker at {http_url}; ask there")
        self.http_url = http_url


class PartitionedTopicError(BrokerError):
    """The request is one for a topic without partitions."""


class TopicService:
    """``service_url`` and ``http_url`` are told to clients; ``now_ms`` is a wall clock."""

    def __init__(
        self,
        control: ControlPlane,
        topics: Topics,
        rates: Rates,
        service_url: str,
        http_url: str,
        now_ms: Callable[[], int],
    ) -> None:
        self._control = control
        self._topics = topics
        self._rates = rates
        self._service_url = service_url
        self._http_url = http_url
        self._now_ms = now_ms

    # -- names --------------------------------------------------------------------------------

    async def names(self, namespace: str) -> list[str]:
        """All topics of ``tenant/namespace``, each partition by itself, sorted."""
        await self._control.namespaces.check_namespace(parse_namespace(namespace))
        return [str(name) for name in await self._topics.names(namespace)]

    async def partitioned_names(self, namespace: str) -> list[str]:
        await self._control.namespaces.check_namespace(parse_namespace(namespace))
        return [str(name) for name in await self._control.partitioned.names(namespace)]

    async def lookup(self, topic: str) -> LookupView:
        """Where the topic is served; it need not exist."""
        name = parse_topic(topic)
        await self._control.namespaces.check(name)
        owner = await self._control.ownership.owner_of(name)
        here = (self._service_url, self._http_url)
        url, http_url = owner if isinstance(owner, At) else here
        return LookupView(broker_url=url, broker_url_tls="", http_url=http_url, native_url=url)

    # -- partitions ---------------------------------------------------------------------------

    async def partitions(self, topic: str, create: bool = False) -> int:
        """0 when the topic is not partitioned (or not there). ``create``: make it first, if
        topics are made on their first use. Raises ``TopicNotFoundError`` for an unknown
        namespace."""
        name = parse_topic(topic)
        if create:
            return await self._topics.partitions(name, True)
        await self._control.namespaces.check(name)
        return await self._control.partitioned.partitions(name)

    async def create_partitioned(self, topic: str, partitions: int) -> bool:
        """False when the topic exists already, partitioned or not."""
        name = parse_topic(topic)
        await self._control.namespaces.check(name)
        if await self._topics.exists(name):
            return False
        return await self._control.partitioned.create(name, partitions)

    async def grow_partitions(self, topic: str, partitions: int) -> None:
        """Raises ``NotAllowedError`` when that would be fewer than now. Partitions are opened on
        first use; the subscriptions of the others are made on the new ones at once, so that they
        miss nothing."""
        name = parse_topic(topic)
        before = await self._control.partitioned.partitions(name)
        await self._control.partitioned.grow(name, partitions)
        await self._topics.copy_subscriptions(name, before, partitions)

    async def delete_partitioned(self, topic: str, force: bool = False) -> None:
        """Delete a partitioned topic with its partitions. With ``force`` connected clients are
        sent away; without, they are an error. Raises ``TopicNotFoundError``."""
        name = parse_topic(topic)
        count = await self._control.partitioned.partitions(name)
        if not count:
            raise TopicNotFoundError(f"{name} is not a partitioned topic")
        parts = [name.of_partition(index) for index in range(count)]
        if not force:
            self._check_unused(parts)
        for part in parts:
            with contextlib.suppress(TopicNotFoundError):  # never used, or deleted already
                await self._topics.delete(part, force)
        await self._control.schemas.forget_topic(name)
        await self._control.policies.forget_topic(name)
        # Last: until then a deletion that fails half way can be asked for again.
        await self._control.partitioned.delete(name)

    def _check_unused(self, parts: list[TopicName]) -> None:
        for part in parts:
            topic = self._topics.find(part)
            if topic is not None:
                topic.check_unused()

    # -- topics -------------------------------------------------------------------------------

    async def create(self, topic: str) -> bool:
        """Make a topic without partitions; False when it exists already."""
        return await self._topics.create(parse_topic(topic))

    async def delete(self, topic: str, force: bool = False) -> None:
        """Delete one topic, or one partition. Raises ``TopicNotFoundError``, and
        ``PartitionedTopicError`` for the name of a partitioned topic."""
        name = parse_topic(topic)
        await self._check_plain(name)
        await self._topics.delete(name, force)

    async def _check_plain(self, name: TopicName) -> None:
        count = await self._control.partitioned.partitions(name)
        if count:
            raise PartitionedTopicError(
                f"{name} has {count} partitions; name one ({name}-partition-0), or use "
                ".../partitions or .../partitioned-stats for all of them"
            )

    async def _open(self, name: TopicName) -> Topic:
        owner = await self._control.ownership.owner_of(name)
        if isinstance(owner, At):
            raise ServedElsewhereError(name, owner.http_url)
        return await self._topics.get(name, create=False)

    async def _parts(self, name: TopicName) -> list[TopicName]:
        """The topic itself, or its partitions."""
        count = await self._control.partitioned.partitions(name)
        return [name.of_partition(index) for index in range(count)] or [name]

    # -- stats --------------------------------------------------------------------------------

    async def stats(self, topic: str) -> TopicStatsView:
        """Raises ``TopicNotFoundError``."""
        name = parse_topic(topic)
        await self._check_plain(name)
        return await self._stats(await self._open(name))

    async def _stats(self, topic: Topic) -> TopicStatsView:
        return await topic_stats(topic, self._rates, self._service_url)

    async def partitioned_stats(self, topic: str, per_partition: bool) -> PartitionedStatsView:
        """All partitions together. Raises ``TopicNotFoundError``."""
        name = parse_topic(topic)
        count = await self._control.partitioned.partitions(name)
        if not count:
            raise TopicNotFoundError(f"{name} is not a partitioned topic")
        views: dict[str, TopicStatsView] = {}
        for start in range(0, count, OPENED_AT_A_TIME):
            indexes = range(start, min(start + OPENED_AT_A_TIME, count))
            names = [name.of_partition(index) for index in indexes]
            topics = await asyncio.gather(*map(self._open, names))
            found = await asyncio.gather(*map(self._stats, topics))
            views.update(zip(map(str, names), found, strict=True))
        together = partitioned_stats(views, count)
        return together if per_partition else together.model_copy(update={"partitions": {}})

    async def internal_stats(self, topic: str) -> InternalStatsView:
        """Raises ``TopicNotFoundError``."""
        name = parse_topic(topic)
        await self._check_plain(name)
        return internal_stats(await self._open(name))

    # -- subscriptions ------------------------------------------------------------------------

    async def subscriptions(self, topic: str) -> list[str]:
        """Names, sorted; of a partitioned topic, those its partitions together."""
        names: dict[str, None] = {}
        for part in await self._parts(parse_topic(topic)):
            names.update(dict.fromkeys((await self._open(part)).subscriptions))
        return sorted(names)

    async def delete_subscription(self, topic: str, subscription: str, force: bool = False) -> None:
        """Of a partitioned topic, from each partition that has it. Raises
        ``TopicNotFoundError``, ``SubscriptionNotFoundError``, ``NotAllowedError``."""
        found = False
        for part in await self._parts(parse_topic(topic)):
            opened = await self._open(part)
            if subscription in opened.subscriptions:
                found = True
                await opened.delete_subscription(subscription, force)
        if not found:
            raise SubscriptionNotFoundError(f"topic {topic} has no subscription {subscription}")

    async def expire_messages(self, topic: str, subscription: str | None, age_s: int) -> None:
        """What is ``age_s`` old or older counts as acknowledged for the subscription, or for all
        durable ones if none is named; stored when it returns. Of a partitioned topic, in each
        partition. Raises ``TopicNotFoundError``, ``SubscriptionNotFoundError``."""
        before_ms, found = self._now_ms() - 1000 * age_s, False
        for part in await self._parts(parse_topic(topic)):
            opened = await self._open(part)
            meant = [
                each
                for each in opened.subscriptions.values()
                if each.name == subscription or (subscription is None and each.durable)
            ]
            found = found or bool(meant)
            await expire_messages(opened, meant, before_ms)
            for each in meant:
                await each.cursor.wait_stored()
        if not found and subscription is not None:
            raise SubscriptionNotFoundError(f"topic {topic} has no subscription {subscription}")
