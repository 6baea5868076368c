"""Stats of subscriptions that read-only brokers serve: who is connected to them is known there.

The topic's owner asks those brokers for its own answer. One that does not answer soon, or what
cannot be read here, leaves its subscriptions without consumers in it, and names itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final, NamedTuple
from urllib.parse import quote

import structlog

from magnetar.admin.peers import PeerError, PeerRequest, Peers, read_answer
from magnetar.admin.stats_views import SubscriptionView
from magnetar.cluster.brokers.reports import BrokerReport
from magnetar.cluster.topic_name import TopicName
from magnetar.model.errors import MagnetarError
from magnetar.topics.subscribable import SubscribableTopic

log = structlog.get_logger(__name__)

ASK_S: Final = 2.0
KNOWN_THERE: Final = (
    "type", "msg_rate_out", "msg_throughput_out", "msg_rate_redeliver", "message_ack_rate",
    "msg_out_counter", "bytes_out_counter", "msg_delayed", "delayed_message_index_size_in_bytes",
    "unacked_messages", "blocked_subscription_on_unacked_msgs", "active_consumer_name", "consumers",
    "key_shared_mode", "allow_out_of_order_delivery", "msg_in_replay", "draining_hashes_count",
    "draining_hashes_cleared_total", "draining_hashes_unacked_messages",
    "last_consumed_flow_timestamp", "last_consumed_timestamp", "last_acked_timestamp",
)  # fmt: skip
"""Of a subscription, by the broker that serves it; all else by the topic's owner."""


class ServedThere(NamedTuple):
    """A subscription that is served at ``served_by``; ``there`` None: that one does not say."""

    served_by: str
    there: SubscriptionView | None


def merged(here: SubscriptionView, lent: ServedThere | None) -> SubscriptionView:
    """What the owner says of a subscription, and who serves it."""
    if lent is None:
        return here
    known = {} if lent.there is None else {name: getattr(lent.there, name) for name in KNOWN_THERE}
    return here.model_copy(update={**known, "served_by": lent.served_by})


async def lent_stats(
    topic: SubscribableTopic, peers: Peers, reports: Mapping[str, BrokerReport]
) -> dict[str, ServedThere]:
    """Of those subscriptions of an owner's topic that are served elsewhere. Never raises for what
    another broker does."""
    served_by = {
        name: each.bound.binding
        for name, each in topic.subscriptions.items()
        if each.bound is not None
    }
    brokers = dict.fromkeys(binding.broker_id for binding in served_by.values())
    told = await asyncio.gather(*(_ask(topic.name, peers, reports.get(each)) for each in brokers))
    there = dict(zip(brokers, told, strict=True))
    return {
        name: ServedThere(binding.service_url, there[binding.broker_id].get(name))
        for name, binding in served_by.items()
    }


async def _ask(
    topic: TopicName, peers: Peers, report: BrokerReport | None
) -> Mapping[str, SubscriptionView]:
    if report is None or not report.http_url:
        return {}
    path = f"/magnetar/v1/read-only/{topic.namespace}/{quote(topic.local, safe='')}/subscriptions"
    try:
        async with asyncio.timeout(ASK_S):
            found = await peers.ask(report.http_url, PeerRequest("GET", path))
        if not isinstance(found, dict):
            raise PeerError(f"{report.http_url}{path} answers with no object")
        views = {
            name: read_answer(SubscriptionView, each, report.http_url)
            for name, each in found.items()
        }
    except (MagnetarError, TimeoutError) as error:
        log.info("no stats of a read-only broker", broker=report.broker_id, error=str(error))
        return {}
    return views
