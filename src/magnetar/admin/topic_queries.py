"""``TopicQueries`` over a broker's topics and namespaces."""

from __future__ import annotations

from collections.abc import Sequence

from magnetar.admin.views import (
    ConsumerView,
    CursorView,
    InternalStatsView,
    LookupView,
    ProducerView,
    SubscriptionView,
    TopicLedgerView,
    TopicStatsView,
)
from magnetar.broker.consumer import Consumer
from magnetar.broker.namespaces import Namespaces
from magnetar.broker.subscription import Subscription
from magnetar.broker.topic import Topic
from magnetar.broker.topic_name import TopicName, parse_namespace, parse_topic
from magnetar.broker.topics import Topics
from magnetar.log.seam import LogStore
from magnetar.model.errors import NotAllowedError, TopicNotFoundError


class BrokerTopics:
    """What this process's broker knows. ``service_url`` and ``http_url`` are what it tells to
    clients, with the real ports."""

    def __init__(
        self,
        topics: Topics,
        namespaces: Namespaces,
        logs: LogStore,
        cluster: str,
        service_url: str,
        http_url: str,
    ) -> None:
        self.cluster = cluster
        self._topics = topics
        self._namespaces = namespaces
        self._logs = logs
        self._service_url = service_url
        self._http_url = http_url

    # -- names --------------------------------------------------------------------------------

    async def tenants(self) -> list[str]:
        return await self._namespaces.tenants()

    async def namespaces(self, tenant: str) -> list[str]:
        return await self._namespaces.namespaces(tenant)

    async def create_tenant(self, tenant: str) -> None:
        await self._namespaces.create_tenant(tenant)

    async def create_namespace(self, namespace: str) -> None:
        await self._namespaces.create_namespace(parse_namespace(namespace))

    async def topics(self, namespace: str) -> list[str]:
        await self._namespaces.check_namespace(parse_namespace(namespace))
        return [str(name) for name in await self._topics.names(namespace)]

    async def partitioned_topics(self, namespace: str) -> list[str]:
        await self._namespaces.check_namespace(parse_namespace(namespace))
        return [str(name) for name in await self._namespaces.partitioned_topics(namespace)]

    async def lookup(self, topic: str) -> LookupView:
        await self._namespaces.check(parse_topic(topic))
        return LookupView(
            broker_url=self._service_url,
            broker_url_tls="",
            http_url=self._http_url,
            native_url=self._service_url,
        )

    # -- partitioned topics -------------------------------------------------------------------

    async def partitions(self, topic: str) -> int:
        name = parse_topic(topic)
        await self._namespaces.check(name)
        return await self._namespaces.partitions(name)

    async def create_partitioned(self, topic: str, partitions: int) -> bool:
        name = parse_topic(topic)
        if await self._logs.exists(name.log_name):
            return False  # a topic that is not partitioned has the name
        return await self._namespaces.create_partitioned(name, partitions)

    async def grow_partitions(self, topic: str, partitions: int) -> None:
        await self._namespaces.grow(parse_topic(topic), partitions)

    # -- topics -------------------------------------------------------------------------------

    async def create(self, topic: str) -> bool:
        return await self._topics.create(parse_topic(topic))

    async def delete(self, topic: str, force: bool) -> None:
        name = parse_topic(topic)
        partitions = await self._namespaces.partitions(name)
        if not partitions:
            await self._topics.delete(name, force)
            return
        parts = [name.of_partition(index) for index in range(partitions)]
        if not force:
            self._check_unused(parts)  # all of them before the first is gone
        for part in parts:
            try:
                await self._topics.delete(part, force)
            except TopicNotFoundError:
                continue  # a partition that nobody has used yet
        await self._namespaces.delete_partitioned(name)

    def _check_unused(self, names: Sequence[TopicName]) -> None:
        for name in names:
            topic = self._topics.find(name)
            if topic is None:
                continue
            consumers = sum(len(each.consumers) for each in topic.subscriptions.values())
            if topic.producers or consumers:
                raise NotAllowedError(
                    f"{name} has {len(topic.producers)} producers and {consumers} consumers "
                    "connected; close them first, or force it"
                )

    async def stats(self, topic: str) -> TopicStatsView:
        return _stats(await self._get(topic))

    async def internal_stats(self, topic: str) -> InternalStatsView:
        found = (await self._get(topic)).log.stats()
        return InternalStatsView(
            number_of_entries=found.entries,
            total_size=found.stored_bytes,
            last_confirmed_entry=str(found.confirmed),
            state="LedgerOpened",
            ledgers=[
                TopicLedgerView(ledger_id=ledger_id, entries=entries, size=size, state=state)
                for ledger_id, entries, size, state in found.ledgers
            ],
            cursors={
                name: CursorView(mark_delete_position=str(position))
                for name, position in sorted(found.cursors.items())
            },
        )

    async def subscriptions(self, topic: str) -> list[str]:
        name = parse_topic(topic)
        partitions = await self._namespaces.partitions(name)
        if not partitions:
            return sorted((await self._topics.get(name, create=False)).subscriptions)
        found: set[str] = set()
        for index in range(partitions):
            part = await self._topics.get(name.of_partition(index), create=False)
            found.update(part.subscriptions)
        return sorted(found)

    async def delete_subscription(self, topic: str, subscription: str, force: bool) -> None:
        await (await self._get(topic)).delete_subscription(subscription, force)

    async def _get(self, topic: str) -> Topic:
        name = parse_topic(topic)
        partitions = await self._namespaces.partitions(name)
        if partitions:
            raise TopicNotFoundError(
                f"{name} is partitioned; ask for its partitions, {name.of_partition(0)} to "
                f"-{partitions - 1}"
            )
        return await self._topics.get(name, create=False)


def _stats(topic: Topic) -> TopicStatsView:
    subscriptions = topic.subscriptions
    return TopicStatsView(
        msg_in_counter=topic.entries_in,
        bytes_in_counter=topic.bytes_in,
        msg_out_counter=sum(each.messages_out for each in subscriptions.values()),
        bytes_out_counter=sum(each.bytes_out for each in subscriptions.values()),
        storage_size=topic.log.stats().stored_bytes,
        publishers=[
            ProducerView(
                producer_id=producer.producer_id,
                producer_name=producer.name,
                address=producer.session.peer,
            )
            for producer in topic.producers.values()
        ],
        subscriptions={name: _subscription(each) for name, each in sorted(subscriptions.items())},
    )


def _subscription(subscription: Subscription) -> SubscriptionView:
    consumers = [_consumer(each) for each in subscription.consumers]
    return SubscriptionView(
        type=subscription.kind.name.capitalize() if consumers else "None",
        durable=subscription.durable,
        msg_backlog=subscription.cursor.backlog_entries(),
        unacked_messages=sum(each.unacked_messages for each in consumers),
        mark_delete_position=str(subscription.cursor.mark_delete),
        consumers=consumers,
    )


def _consumer(consumer: Consumer) -> ConsumerView:
    return ConsumerView(
        consumer_id=consumer.consumer_id,
        consumer_name=consumer.name,
        address=consumer.session.peer,
        available_permits=consumer.seat.permits,
        unacked_messages=sum(consumer.pending.values()),
    )
