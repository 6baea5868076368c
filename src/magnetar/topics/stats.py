"""What the broker says about itself: counters of topics, subscriptions and consumers.

Counters only grow while the topic stays open; whoever wants a rate divides their difference by
the time between two reads.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from magnetar.topics.consumer import Consumer
from magnetar.topics.subscription import Kind, Subscription
from magnetar.topics.topic import Topic

KIND_NAMES: Mapping[Kind, str] = {
    Kind.EXCLUSIVE: "Exclusive",
    Kind.SHARED: "Shared",
    Kind.FAILOVER: "Failover",
}


@dataclass(frozen=True, slots=True)
class ProducerStats:
    producer_id: int
    producer_name: str
    address: str
    entries_in: int
    bytes_in: int


@dataclass(frozen=True, slots=True)
class ConsumerStats:
    consumer_id: int
    consumer_name: str
    address: str
    available_permits: int
    unacked_messages: int
    messages_out: int
    bytes_out: int


@dataclass(frozen=True, slots=True)
class SubscriptionStats:
    """``kind`` is "None" while nobody is connected; ``backlog_entries`` are not acknowledged."""

    kind: str
    durable: bool
    backlog_entries: int
    unacked_messages: int
    mark_delete: str
    consumers: tuple[ConsumerStats, ...]


@dataclass(frozen=True, slots=True)
class TopicStats:
    entries_in: int
    bytes_in: int
    messages_out: int
    bytes_out: int
    stored_bytes: int
    producers: tuple[ProducerStats, ...]
    subscriptions: Mapping[str, SubscriptionStats]


def topic_stats(topic: Topic) -> TopicStats:
    subscriptions = topic.subscriptions
    return TopicStats(
        topic.entries_in,
        topic.bytes_in,
        sum(item.dispatcher.messages_out for item in subscriptions.values()),
        sum(item.dispatcher.bytes_out for item in subscriptions.values()),
        topic.log.stats().stored_bytes,
        tuple(
            ProducerStats(p.producer_id, p.name, p.client.peer, p.entries_in, p.bytes_in)
            for p in topic.producers.values()
        ),
        {name: subscription_stats(item) for name, item in subscriptions.items()},
    )


def subscription_stats(subscription: Subscription) -> SubscriptionStats:
    consumers = subscription.consumers
    return SubscriptionStats(
        KIND_NAMES[subscription.kind] if consumers else "None",
        subscription.durable,
        subscription.cursor.backlog_entries(),
        sum(consumer.seat.unacked for consumer in consumers),
        str(subscription.cursor.mark_delete),
        tuple(_consumer_stats(consumer) for consumer in consumers),
    )


def _consumer_stats(consumer: Consumer) -> ConsumerStats:
    return ConsumerStats(
        consumer.consumer_id,
        consumer.name,
        consumer.client.peer,
        max(0, consumer.seat.permits),
        consumer.seat.unacked,
        consumer.messages_out,
        consumer.bytes_out,
    )
