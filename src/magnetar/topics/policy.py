"""What holds for one topic: policies (``cluster.policies``) over what is configured. Pure.

A log's part of it (retention, replication) goes to the log, which keeps to it from then on; the
rest is kept by the topic, its subscriptions, and ``upkeep``.

Why: docs/adr/0219-limits-are-kept-where-clients-come.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Final, NamedTuple

from magnetar.cluster.policies.backlog_quotas import NO_QUOTAS, BacklogQuotas
from magnetar.cluster.policies.policies import KafkaPolicy, Policies, RetentionPolicy
from magnetar.cluster.policies.rate_values import DispatchRate
from magnetar.cluster.policies.read_rules import NO_RULES, ReadRules
from magnetar.log.policy import UNLIMITED, CleanupRule, Engine, LogPolicy, PieceRule, Retention
from magnetar.topics.dispatch.delayed import DelayPolicy
from magnetar.topics.rate_limits import NO_RATE, RateLimit

MINUTE_MS: Final = 60_000
MEGABYTE: Final = 1 << 20


NONE_NAMED: Final[Mapping[str, RateLimit]] = MappingProxyType({})


class TopicRates(NamedTuple):
    """What is held back of a topic: of what is ``published``, of what it gives its subscriptions
    together (``dispatched``), and of what it gives each (``to_each``) but those that have a rate
    of their own (``to_named``). ``subscribed``: how often a consumer may come."""

    published: RateLimit = NO_RATE
    dispatched: RateLimit = NO_RATE
    to_each: RateLimit = NO_RATE
    subscribed: RateLimit = NO_RATE
    to_named: Mapping[str, RateLimit] = NONE_NAMED

    def to(self, subscription: str) -> RateLimit:
        """What the subscription of that name is given."""
        return self.to_named.get(subscription, self.to_each)


NO_RATES: Final = TopicRates()


class TopicLimits(NamedTuple):
    """How much there may be of a topic; 0: any number. ``unacked_each``: messages that a consumer
    of a shared subscription has and has not acknowledged; ``unacked_all``: all its consumers
    together."""

    producers: int = 0
    consumers: int = 0
    consumers_each: int = 0
    subscriptions: int = 0
    unacked_each: int = 0
    unacked_all: int = 0
    message_bytes: int = 0


NO_LIMITS: Final = TopicLimits()


class TopicPolicy(NamedTuple):
    """``message_ttl_ms``: age at which what a subscription has not acknowledged expires for it.
    ``subscription_expiry_ms``: time without consumers after which it is deleted. 0: never.
    ``reading``: which subscriptions read-only brokers serve. ``compaction_threshold_bytes``: how
    much that is not compacted has the topic compacted; 0: nothing does. ``deduplicates``: what a
    producer sends again is not stored again. ``kafka``: what holds for batches of Kafka's
    producers. ``makes_subscriptions``: one that is not there is made by its first consumer.
    ``backlog_quotas``: how far subscriptions may be behind; both kinds are there."""

    log: LogPolicy
    delays: DelayPolicy
    message_ttl_ms: int = 0
    subscription_expiry_ms: int = 0
    reading: ReadRules = NO_RULES
    compaction_threshold_bytes: int = 0
    deduplicates: bool = False
    kafka: KafkaPolicy = KafkaPolicy()
    makes_subscriptions: bool = True
    rates: TopicRates = NO_RATES
    limits: TopicLimits = NO_LIMITS
    backlog_quotas: BacklogQuotas = NO_QUOTAS


class TopicCreation(NamedTuple):
    """Whether a topic is made on its first use, and with how many partitions; 0: without."""

    allowed: bool
    partitions: int


def topic_creation(configured: TopicCreation, said: Policies) -> TopicCreation:
    """What ``said`` leaves open is as ``configured``."""
    if said.topic_creation is None:
        return configured
    return TopicCreation(said.topic_creation.allowed, said.topic_creation.partitions)


def topic_policy(configured: TopicPolicy, said: Policies) -> TopicPolicy:
    """What ``said`` leaves open is as ``configured``."""
    log, delays, ttl_ms, expiry_ms, reading, threshold_bytes, deduplicates, kafka, makes = (
        configured[:9]
    )
    if said.retention is not None:
        log = replace(log, retention=_retention(said.retention))
    if said.persistence is not None:
        log = replace(log, quorums=said.persistence.quorums)
    if said.delayed_delivery is not None:
        active, tick_ms, delay_ms_max = (
            said.delayed_delivery.active,
            said.delayed_delivery.tick_ms,
            said.delayed_delivery.delay_ms_max,
        )
        delays = DelayPolicy(active, tick_ms, delay_ms_max)
    if said.message_ttl_s is not None:
        ttl_ms = said.message_ttl_s * 1000
    if said.subscription_expiration_minutes is not None:
        expiry_ms = said.subscription_expiration_minutes * MINUTE_MS
    if said.read_only_brokers is not None:
        reading = said.read_only_brokers
    if said.engine is not None:
        log = replace(log, engine=Engine(said.engine))
    if said.partition_replication is not None:
        log = replace(
            log,
            replication_factor=said.partition_replication.replication_factor,
            min_insync_replicas=said.partition_replication.min_in_sync,
            unclean_election=said.partition_replication.unclean,
        )
    if said.compaction_threshold_bytes is not None:
        threshold_bytes = said.compaction_threshold_bytes
    if said.deduplication is not None:
        deduplicates = said.deduplication
    if said.kafka is not None:
        kafka = said.kafka
        log = _cut(log, kafka)
    if said.subscription_creation is not None:
        makes = said.subscription_creation.allowed
    quotas = configured.backlog_quotas
    if said.backlog_quotas is not None:
        quotas = said.backlog_quotas.over(quotas)
    return TopicPolicy(
        log,
        delays,
        ttl_ms,
        expiry_ms,
        reading,
        threshold_bytes,
        deduplicates,
        kafka,
        makes,
        rates=_rates(configured.rates, said),
        limits=_limits(configured.limits, said),
        backlog_quotas=quotas,
    )


def _limits(configured: TopicLimits, said: Policies) -> TopicLimits:
    found = (
        said.max_producers,
        said.max_consumers,
        said.max_consumers_per_subscription,
        said.max_subscriptions,
        said.max_unacked_per_consumer,
        said.max_unacked_per_subscription,
        said.max_message_bytes,
    )
    both = zip(found, configured, strict=True)
    return TopicLimits(*(default if limit is None else limit for limit, default in both))


def _rates(configured: TopicRates, said: Policies) -> TopicRates:
    published, dispatched, to_each, subscribed, to_named = configured
    if said.publish_rate is not None:
        messages, byte_count = said.publish_rate.messages, said.publish_rate.byte_count
        published = RateLimit(max(0, messages), max(0, byte_count))
    if said.dispatch_rate is not None:
        dispatched = _dispatch_limit(said.dispatch_rate)
    if said.subscription_dispatch_rate is not None:
        to_each = _dispatch_limit(said.subscription_dispatch_rate)
    if said.subscribe_rate is not None:
        subscribed = RateLimit(max(0, said.subscribe_rate.times), 0, said.subscribe_rate.period_s)
    if said.subscription_rates is not None:
        named = said.subscription_rates.rates
        to_named = {name: _dispatch_limit(rate) for name, rate in named}
    return TopicRates(published, dispatched, to_each, subscribed, to_named)


def _dispatch_limit(said: DispatchRate) -> RateLimit:
    return RateLimit(max(0, said.messages), max(0, said.byte_count), said.period_s, said.relative)


def _cut(log: LogPolicy, kafka: KafkaPolicy) -> LogPolicy:
    """Larger pieces than are configured are for the log's rule; smaller ones it looks at apart."""
    pieces = PieceRule(kafka.segment_bytes, kafka.segment_ms)
    roll = replace(
        log.roll,
        bytes_max=max(log.roll.bytes_max, pieces.bytes_max),
        age_ms_max=max(log.roll.age_ms_max, pieces.age_ms_max),
    )
    return replace(log, roll=roll, pieces=pieces, cleanup=_cleanup(kafka))


def _cleanup(kafka: KafkaPolicy) -> CleanupRule:
    """Logs on ledgers do not look at it."""
    words = kafka.cleanup.split(",") if kafka.cleanup else ["delete"]
    said = {
        "tombstones_kept_ms": kafka.tombstones_ms,
        "dirty_ratio_least": kafka.dirty_ratio,
        "lag_ms": kafka.lag_ms,
        "lag_ms_max": kafka.lag_ms_max,
    }
    rule = CleanupRule("delete" in words, "compact" in words)
    return replace(rule, **{name: value for name, value in said.items() if value >= 0})  # type: ignore[arg-type]


def _retention(said: RetentionPolicy) -> Retention:
    minutes, megabytes = said.minutes, said.megabytes
    return Retention(
        UNLIMITED if minutes == -1 else minutes * MINUTE_MS,
        UNLIMITED if megabytes == -1 else megabytes * MEGABYTE,
    )
