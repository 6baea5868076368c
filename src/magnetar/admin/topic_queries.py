"""``TopicQueries`` over a broker: its answers as REST shows them."""

from __future__ import annotations

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
from magnetar.protocols.pulsar.broker import Broker
from magnetar.topics.stats import SubscriptionStats


class BrokerTopics:
    """What this process's broker knows. ``http_url`` is told to clients, with the real port."""

    def __init__(self, broker: Broker, http_url: str) -> None:
        self.cluster = broker.cluster
        self._broker = broker
        self._http_url = http_url

    async def tenants(self) -> list[str]:
        return await self._broker.tenants()

    async def namespaces(self, tenant: str) -> list[str]:
        return await self._broker.namespaces(tenant)

    async def create_tenant(self, tenant: str) -> None:
        await self._broker.create_tenant(tenant)

    async def create_namespace(self, namespace: str) -> None:
        await self._broker.create_namespace(namespace)

    async def topics(self, namespace: str) -> list[str]:
        return await self._broker.topics(namespace)

    async def partitioned_topics(self, namespace: str) -> list[str]:
        return await self._broker.partitioned_topics(namespace)

    async def lookup(self, topic: str) -> LookupView:
        url = await self._broker.lookup(topic)
        return LookupView(
            broker_url=url, broker_url_tls="", http_url=self._http_url, native_url=url
        )

    async def partitions(self, topic: str, create: bool) -> int:
        return await self._broker.partitions(topic, create)

    async def create_partitioned(self, topic: str, partitions: int) -> bool:
        return await self._broker.create_partitioned(topic, partitions)

    async def grow_partitions(self, topic: str, partitions: int) -> None:
        await self._broker.grow_partitions(topic, partitions)

    async def create(self, topic: str) -> bool:
        return await self._broker.create(topic)

    async def delete(self, topic: str, force: bool) -> None:
        await self._broker.delete(topic, force)

    async def subscriptions(self, topic: str) -> list[str]:
        return await self._broker.subscriptions(topic)

    async def delete_subscription(self, topic: str, subscription: str, force: bool) -> None:
        await self._broker.delete_subscription(topic, subscription, force)

    async def stats(self, topic: str) -> TopicStatsView:
        found = await self._broker.topic_stats(topic)
        return TopicStatsView(
            entries_in_counter=found.entries_in,
            bytes_in_counter=found.bytes_in,
            msg_out_counter=found.messages_out,
            bytes_out_counter=found.bytes_out,
            storage_size=found.stored_bytes,
            publishers=[
                ProducerView(
                    producer_id=each.producer_id,
                    producer_name=each.producer_name,
                    address=each.address,
                )
                for each in found.producers
            ],
            subscriptions={
                name: _subscription(each) for name, each in sorted(found.subscriptions.items())
            },
        )

    async def internal_stats(self, topic: str) -> InternalStatsView:
        found = await self._broker.log_stats(topic)
        return InternalStatsView(
            number_of_entries=found.entries,
            total_size=found.stored_bytes,
            last_confirmed_entry=str(found.readable),
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


def _subscription(stats: SubscriptionStats) -> SubscriptionView:
    return SubscriptionView(
        type=stats.kind,
        durable=stats.durable,
        msg_backlog=stats.backlog_entries,
        unacked_messages=stats.unacked_messages,
        mark_delete_position=stats.mark_delete,
        consumers=[
            ConsumerView(
                consumer_id=each.consumer_id,
                consumer_name=each.consumer_name,
                address=each.address,
                available_permits=each.available_permits,
                unacked_messages=each.unacked_messages,
            )
            for each in stats.consumers
        ],
    )
