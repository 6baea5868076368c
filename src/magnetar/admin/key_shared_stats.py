"""What is said of Key_Shared subscriptions: who has which hashes, and what drains. Nothing here
changes anything."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from magnetar.admin.stats_views import ConsumerView, DrainingHashView
from magnetar.topics.consuming.consumer import Consumer
from magnetar.topics.consuming.subscription import Subscription
from magnetar.topics.dispatch.key_policy import HashRange
from magnetar.topics.dispatch.keyed import Draining
from magnetar.topics.dispatch.seats import Seat

DRAINING_MAX: Final = 100
NOTHING: Final[Mapping[Any, Any]] = MappingProxyType({})


class Hashes(NamedTuple):
    """Of all consumers of a subscription, found in one look: what each has, and what drains
    there."""

    ranges: Mapping[Seat[Consumer], Sequence[HashRange]]
    draining: Mapping[Seat[Consumer], Sequence[Draining]]


def hashes_of(subscription: Subscription) -> Hashes:
    """Nothing if it is of another kind."""
    keyed = subscription.keyed
    return Hashes(NOTHING, NOTHING) if keyed is None else Hashes(keyed.ranges(), keyed.draining())


def of_consumer(
    subscription: Subscription, consumer: Consumer, hashes: Hashes
) -> Mapping[str, Any]:
    """Its fields of a ``ConsumerView``."""
    keyed, seat = subscription.keyed, consumer.seat
    if keyed is None:
        return NOTHING
    mine, draining = hashes.ranges.get(seat, ()), hashes.draining.get(seat, ())
    return {
        "key_hash_range_arrays": [tuple(each) for each in mine],
        "key_hash_ranges": [str(each) for each in mine],
        "draining_hashes_count": len(draining),
        "draining_hashes_cleared_total": keyed.drained(seat),
        "draining_hashes_unacked_messages": sum(each.entries for each in draining),
        "draining_hashes": [
            DrainingHashView(
                hash=each.hashed, unack_msgs=each.entries, blocked_attempts=each.blocked
            )
            for each in draining[:DRAINING_MAX]
        ],
    }


def of_subscription(subscription: Subscription, consumers: list[ConsumerView]) -> Mapping[str, Any]:
    """Its fields of a ``SubscriptionView``."""
    keyed = subscription.keyed
    if keyed is None or not consumers:
        return NOTHING
    totals = (
        "draining_hashes_count",
        "draining_hashes_cleared_total",
        "draining_hashes_unacked_messages",
    )
    return {
        "key_shared_mode": keyed.policy.mode.name,
        "allow_out_of_order_delivery": keyed.policy.out_of_order,
        "msg_in_replay": len(keyed.waiting),
        **{name: sum(getattr(each, name) for each in consumers) for name in totals},
    }
