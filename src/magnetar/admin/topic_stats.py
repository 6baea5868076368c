"""A topic's stats as REST shows them, read off the open topic. Nothing here changes anything."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Final, TypeVar

from magnetar.admin.key_shared_stats import Hashes, hashes_of, of_consumer, of_subscription
from magnetar.admin.lent_stats import ServedThere, merged
from magnetar.admin.retention import retention_view
from magnetar.admin.stats_views import (
    CompactedLedgerView,
    ConsumerView,
    CursorView,
    HoldView,
    InternalStatsView,
    PartitionedStatsView,
    PublisherView,
    SubscriptionView,
    TopicLedgerView,
    TopicStatsView,
    TopicTotals,
)
from magnetar.log.seam import CompactedStats, LogStats, StoredAt
from magnetar.model.url_secrets import without_passwords
from magnetar.topics.consuming.backlog import Backlog, backlogs
from magnetar.topics.consuming.consumer import Consumer
from magnetar.topics.consuming.subscription import Subscription
from magnetar.topics.following.followed_topic import FollowedTopic
from magnetar.topics.publishing.access import AccessMode
from magnetar.topics.publishing.producer import Producer
from magnetar.topics.quota_keeping import oldest_in
from magnetar.topics.quotas import backlog_bytes
from magnetar.topics.rates import Rates
from magnetar.topics.stats import KIND_NAMES
from magnetar.topics.topic import Topic

Totals = TypeVar("Totals", bound=TopicTotals)

ASK_AGE: Final = "getEarliestTimeInBacklog"
"""Pulsar's name in a query: how old is what is not acknowledged?"""
NOTHING_LENT: Mapping[str, ServedThere] = MappingProxyType({})

ACCESS_MODES: Mapping[AccessMode, str] = {
    AccessMode.SHARED: "Shared",
    AccessMode.EXCLUSIVE: "Exclusive",
    AccessMode.WAIT_FOR_EXCLUSIVE: "WaitForExclusive",
    AccessMode.EXCLUSIVE_WITH_FENCING: "ExclusiveWithFencing",
}


async def topic_stats(
    topic: Topic,
    rates: Rates,
    owner: str,
    topic_epoch: int,
    lent: Mapping[str, ServedThere] = NOTHING_LENT,
    *,
    with_age: bool = False,
) -> TopicStatsView:
    """``lent``: what read-only brokers say of subscriptions that they serve. ``with_age``: somebody
    wants to know how old the oldest message is that is not acknowledged, wherever it lies."""
    named = sorted(topic.subscriptions.items())
    left = await backlogs(topic.log, [each.cursor for _, each in named])
    quotas = topic.policy.backlog_quotas
    # Who looks at all topics each minute would have an entry of each read from its bookies.
    oldest = await oldest_in(topic, read=with_age or quotas.limit_s > 0)
    stored = topic.log.stats()
    subscriptions = {
        name: merged(_subscription(each, backlog, stored, rates), lent.get(name))
        for (name, each), backlog in zip(named, left, strict=True)
    }
    coming, views = rates.of(topic), subscriptions.values()
    throttle = topic.publish_throttle
    return TopicStatsView(
        msg_rate_in=coming.messages,
        msg_throughput_in=coming.byte_count,
        msg_rate_out=sum(each.msg_rate_out for each in views),
        msg_throughput_out=sum(each.msg_throughput_out for each in views),
        msg_in_counter=topic.messages_in,
        bytes_in_counter=topic.bytes_in,
        entries_in_counter=topic.entries_in,
        msg_out_counter=sum(each.msg_out_counter for each in views),
        bytes_out_counter=sum(each.bytes_out_counter for each in views),
        average_msg_size=_average(topic.bytes_in, topic.messages_in),
        storage_size=stored.stored_bytes,
        stored_entries=stored.entries,
        total_messages=topic.log.positions.end_offset,
        # Of the slowest subscription, as in Pulsar: what cannot go before it is acknowledged.
        backlog_size=max((each.backlog_size for each in views if each.is_durable), default=0),
        oldest_backlog_message_age_seconds=-1 if oldest is None else oldest.age_ms // 1000,
        oldest_backlog_message_subscription_name=None if oldest is None else oldest.who,
        backlog_quota_limit_size=quotas.limit_bytes,
        backlog_quota_limit_time=quotas.limit_s,
        delayed_message_index_size_in_bytes=sum(
            each.delayed_message_index_size_in_bytes for each in views
        ),
        publishers=[_publisher(each, rates) for each in topic.producers.values()],
        waiting_publishers=len(topic.waiting),
        subscriptions=subscriptions,
        replication={},
        topic_creation_time_stamp=stored.created_ms,
        last_publish_timestamp=topic.last_published_ms,
        deduplication_status="Enabled" if topic.policy.deduplicates else "Disabled",
        topic_epoch=topic_epoch,
        owner_broker=owner,
        loaded_at=_time(topic.loaded_at_ms),
        retention=retention_view(topic.policy.log.retention),
        storage_problem=topic.storage_problem,
        terminated=topic.log.end.terminated,
        quota_exceeded="" if topic.over_quota is None else str(topic.over_quota),
        publish_rate_limited_times=0 if throttle is None else throttle.held,
    )


def followed_stats(topic: FollowedTopic, rates: Rates) -> dict[str, SubscriptionView]:
    """At a read-only broker: of the subscriptions that it serves. What is left of them its owner
    knows."""
    stored = topic.readable.stats()
    return {
        name: _subscription(each, Backlog(0, 0), stored, rates)
        for name, each in sorted(topic.subscriptions.items())
        if each.durable
    }


def _publisher(producer: Producer, rates: Rates) -> PublisherView:
    coming = rates.of(producer)
    return PublisherView(
        producer_id=producer.producer_id,
        producer_name=producer.name,
        access_mode=ACCESS_MODES[producer.mode],
        address=producer.client.peer,
        client_version=producer.client_version,
        connected_since=_time(producer.connected_at_ms),
        metadata=dict(producer.properties),
        msg_rate_in=coming.messages,
        msg_throughput_in=coming.byte_count,
        average_msg_size=_average(producer.bytes_in, producer.messages_in),
        msg_in_counter=producer.messages_in,
        bytes_in_counter=producer.bytes_in,
    )


def _subscription(
    subscription: Subscription, backlog: Backlog, stored: LogStats, rates: Rates
) -> SubscriptionView:
    going, cursor = rates.of(subscription), subscription.cursor
    consumers, dispatcher = subscription.consumers, subscription.dispatcher
    # While another becomes active Pulsar's brokers name it already, and admins read no null.
    active, delays = subscription.chosen, dispatcher.delays
    delayed = 0 if delays is None else len(delays.index)
    hashes = hashes_of(subscription)
    views = [_consumer(subscription, each, rates, hashes) for each in consumers]
    return SubscriptionView(
        type=KIND_NAMES[subscription.kind] if consumers else "None",
        is_durable=subscription.durable,
        msg_rate_out=going.messages,
        msg_throughput_out=going.byte_count,
        msg_rate_redeliver=going.redelivered,
        message_ack_rate=going.acknowledged,
        msg_out_counter=dispatcher.messages_out,
        bytes_out_counter=dispatcher.bytes_out,
        msg_backlog=backlog.messages,
        msg_backlog_no_delayed=max(0, backlog.messages - delayed),
        entries_backlog=backlog.entries,
        backlog_size=backlog_bytes(stored, cursor.mark_delete, backlog.entries),
        msg_delayed=delayed,
        delayed_message_index_size_in_bytes=0 if delays is None else delays.index.size_bytes,
        unacked_messages=sum(consumer.seat.unacked for consumer in consumers),
        blocked_subscription_on_unacked_msgs=bool(consumers)
        and all(subscription.is_full(consumer) for consumer in consumers),
        active_consumer_name=active.name if active is not None else None,
        mark_delete_position=str(cursor.mark_delete),
        last_consumed_flow_timestamp=subscription.last_asked_ms,
        last_consumed_timestamp=dispatcher.last_sent_ms,
        last_acked_timestamp=subscription.last_acked_ms,
        subscription_properties=dict(cursor.properties),
        consumers=views,
        **of_subscription(subscription, views),
    )


def _consumer(
    subscription: Subscription, consumer: Consumer, rates: Rates, hashes: Hashes
) -> ConsumerView:
    going = rates.of(consumer)
    return ConsumerView(
        consumer_id=consumer.consumer_id,
        consumer_name=consumer.name,
        address=consumer.client.peer,
        client_version=consumer.client_version,
        connected_since=_time(consumer.connected_at_ms),
        metadata=dict(consumer.properties),
        last_consumed_flow_timestamp=consumer.last_asked_ms,
        last_consumed_timestamp=consumer.last_sent_ms,
        last_acked_timestamp=consumer.last_acked_ms,
        msg_rate_out=going.messages,
        msg_throughput_out=going.byte_count,
        msg_rate_redeliver=going.redelivered,
        message_ack_rate=going.acknowledged,
        msg_out_counter=consumer.messages_out,
        bytes_out_counter=consumer.bytes_out,
        available_permits=max(0, consumer.seat.permits),
        unacked_messages=consumer.seat.unacked,
        avg_messages_per_entry=round(_average(consumer.messages_out, consumer.entries_out)),
        blocked_consumer_on_unacked_msgs=subscription.is_full(consumer),
        **of_consumer(subscription, consumer, hashes),
    )


def internal_stats(topic: Topic) -> InternalStatsView:
    stored = topic.log.stats()
    open_ledgers = [each for each in stored.ledgers if each.state == "open"]
    return InternalStatsView(
        entries_added_counter=topic.entries_in,
        number_of_entries=stored.entries,
        total_size=stored.stored_bytes,
        current_ledger_entries=open_ledgers[-1].entries if open_ledgers else 0,
        current_ledger_size=open_ledgers[-1].stored_bytes if open_ledgers else 0,
        last_confirmed_entry=str(stored.readable),
        state=_state(topic, bool(open_ledgers)),
        compacted_ledger=_compacted(topic.log.compaction.stats),
        ledgers=[
            TopicLedgerView(
                ledger_id=each.ledger_id,
                entries=each.entries,
                size=each.stored_bytes,
                offloaded=each.stored is StoredAt.TABLE,
                in_table=each.stored is not StoredAt.LEDGER,
                state=each.state,
            )
            for each in stored.ledgers
        ],
        # Those of readers, too, as Pulsar's: while they are there.
        cursors={name: _cursor(topic, each) for name, each in sorted(topic.subscriptions.items())},
        holds=[
            HoldView(holder=each.holder, ledger_id=each.ledger_id, until=_time(each.until_ms))
            for each in stored.holds
        ],
        table=None if stored.table is None else without_passwords(stored.table.where),
        ledgers_awaiting_table=stored.awaiting_table,
    )


def _state(topic: Topic, has_open_ledger: bool) -> str:
    """In Pulsar's words. A log without an open ledger makes one with the next append."""
    if topic.log.end.terminated:
        return "Terminated"
    return "LedgerOpened" if has_open_ledger else "ClosedLedger"


def _compacted(found: CompactedStats | None) -> CompactedLedgerView | None:
    if found is None:
        return None
    return CompactedLedgerView(
        ledger_id=found.ledger_id,
        entries=found.entries,
        size=found.stored_bytes,
        horizon=str(found.horizon),
        finished=_time(found.finished_ms),
    )


def _cursor(topic: Topic, subscription: Subscription) -> CursorView:
    cursor, positions = subscription.cursor, topic.log.positions
    after = positions.entries_between(cursor.mark_delete, positions.readable)
    return CursorView(
        mark_delete_position=str(cursor.mark_delete),
        read_position=str(positions.next_position(cursor.mark_delete)),
        messages_consumed_counter=topic.log.stats().entries - after,
        number_of_entries_since_first_not_acked_message=after,
        properties=dict(cursor.properties),
    )


SUMMED = (
    "msg_rate_in", "msg_throughput_in", "msg_rate_out", "msg_throughput_out", "msg_in_counter",
    "bytes_in_counter", "entries_in_counter", "msg_out_counter", "bytes_out_counter",
    "storage_size", "stored_entries", "total_messages", "backlog_size", "waiting_publishers",
    "delayed_message_index_size_in_bytes",
)  # fmt: skip
SUBSCRIPTION_SUMMED = (
    "msg_rate_out", "msg_throughput_out", "msg_rate_redeliver", "message_ack_rate",
    "msg_out_counter", "bytes_out_counter", "msg_backlog", "msg_backlog_no_delayed",
    "entries_backlog", "backlog_size", "unacked_messages", "msg_delayed",
    "delayed_message_index_size_in_bytes", "msg_in_replay", "draining_hashes_count",
    "draining_hashes_cleared_total", "draining_hashes_unacked_messages",
)  # fmt: skip

SUBSCRIPTION_LATEST = (
    "last_consumed_flow_timestamp", "last_consumed_timestamp", "last_acked_timestamp",
)  # fmt: skip


def partitioned_stats(partitions: Mapping[str, TopicStatsView], count: int) -> PartitionedStatsView:
    """The partitions together; ``count`` counts those that are not loaded, too."""
    views = list(partitions.values())
    sums = {name: sum(getattr(each, name) for each in views) for name in SUMMED}
    made_ms = [each.topic_creation_time_stamp for each in views]
    oldest = max(views, key=lambda each: each.oldest_backlog_message_age_seconds, default=None)
    return PartitionedStatsView(
        **sums,
        average_msg_size=_average(sums["bytes_in_counter"], sums["msg_in_counter"]),
        backlog_quota_limit_size=max((v.backlog_quota_limit_size for v in views), default=-1),
        backlog_quota_limit_time=max((v.backlog_quota_limit_time for v in views), default=-1),
        oldest_backlog_message_age_seconds=(
            -1 if oldest is None else oldest.oldest_backlog_message_age_seconds
        ),
        oldest_backlog_message_subscription_name=(
            None if oldest is None else oldest.oldest_backlog_message_subscription_name
        ),
        publishers=[producer for each in views for producer in each.publishers],
        subscriptions=_together(views),
        replication={},
        topic_creation_time_stamp=min(filter(None, made_ms), default=0),
        last_publish_timestamp=max((each.last_publish_timestamp for each in views), default=0),
        deduplication_status=next((each.deduplication_status for each in views), "Disabled"),
        metadata={"partitions": count},
        partitions=dict(partitions),
    )


def left_out(view: Totals, publishers: bool, consumers: bool) -> Totals:
    """The same without the producers, or the subscriptions' consumers, one by one."""
    update: dict[str, object] = {}
    if publishers:
        update["publishers"] = []
    if consumers:
        update["subscriptions"] = {
            name: each.model_copy(update={"consumers": []})
            for name, each in view.subscriptions.items()
        }
    if isinstance(view, PartitionedStatsView):
        update["partitions"] = {
            name: left_out(each, publishers, consumers) for name, each in view.partitions.items()
        }
    return view.model_copy(update=update)


def _together(views: list[TopicStatsView]) -> dict[str, SubscriptionView]:
    found: dict[str, SubscriptionView] = {}
    for view in views:
        for name, each in view.subscriptions.items():
            before = found.get(name)
            if before is None:
                found[name] = each.model_copy(update={"mark_delete_position": ""})
                continue
            sums = {
                field: getattr(before, field) + getattr(each, field)
                for field in SUBSCRIPTION_SUMMED
            }
            consumers = [*before.consumers, *each.consumers]
            kind = each.type if before.type == "None" else before.type
            latest = {
                field: max(getattr(before, field), getattr(each, field))
                for field in SUBSCRIPTION_LATEST
            }
            update = {**sums, **latest, "consumers": consumers, "type": kind}
            found[name] = before.model_copy(update=update)
    return found


def _average(total: float, count: int) -> float:
    return total / count if count else 0.0


def _time(time_ms: int) -> str:
    return datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(timespec="milliseconds")
