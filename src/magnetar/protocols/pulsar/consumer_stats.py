"""The answer to CONSUMER_STATS. The rates that it has room for are means since the consumer
connected."""

from __future__ import annotations

from datetime import UTC, datetime

from magnetar.topics.consuming.backlog import Backlog
from magnetar.topics.consuming.consumer import Consumer
from magnetar.topics.consuming.subscription import Subscription
from magnetar.topics.stats import KIND_NAMES
from magnetar.wire.pulsar.pulsar_pb2 import BaseCommand


def consumer_stats_reply(
    subscription: Subscription, consumer: Consumer, backlog: Backlog, request_id: int, now_ms: int
) -> BaseCommand:
    """The answer for ``consumer`` of ``subscription``; ``now_ms``: since 1970."""
    seconds = max(0.001, (now_ms - consumer.connected_at_ms) / 1000)
    answer = BaseCommand(type=BaseCommand.CONSUMER_STATS_RESPONSE)
    reply = answer.consumerStatsResponse
    reply.request_id = request_id
    reply.msgRateOut = consumer.messages_out / seconds
    reply.msgThroughputOut = consumer.bytes_out / seconds
    reply.msgRateRedeliver = consumer.redelivered / seconds
    reply.consumerName = consumer.name
    reply.availablePermits = max(0, consumer.seat.permits)
    reply.unackedMessages = consumer.seat.unacked
    reply.blockedConsumerOnUnackedMsgs = subscription.is_full(consumer)
    reply.address = consumer.client.peer
    connected = datetime.fromtimestamp(consumer.connected_at_ms / 1000, UTC)
    reply.connectedSince = connected.isoformat(timespec="milliseconds")
    reply.type = KIND_NAMES[subscription.kind]
    reply.msgBacklog = backlog.messages
    reply.messageAckRate = consumer.acknowledged / seconds
    return answer
