"""``PolicyService``: what REST asks and says of policies, at namespaces and at topics.

Values are those of bodies, in Pulsar's fields; None where nothing is said. A topic that is named by
one of its partitions is the partitioned topic: that has the policies.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from magnetar.cluster.control_plane import ControlPlane
from magnetar.cluster.policies.backlog_quotas import (
    KINDS,
    NOTHING,
    BacklogQuota,
    BacklogQuotas,
    check_retention,
)
from magnetar.cluster.policies.policies import (
    NAMES,
    DelayedDeliveryPolicy,
    PersistencePolicy,
    Policies,
    RetentionPolicy,
    SubscriptionCreationPolicy,
    encode_value,
)
from magnetar.cluster.policies.rate_values import (
    NO_LIMIT,
    DispatchRate,
    PublishRate,
    SubscribeRate,
    SubscriptionRates,
)
from magnetar.cluster.topic_name import TopicName, parse_namespace, parse_topic
from magnetar.config import LedgerConfig
from magnetar.log.policy import UNLIMITED
from magnetar.model.errors import TopicNotFoundError
from magnetar.model.ledger import Quorums
from magnetar.topics.engine_rules import EngineRules
from magnetar.topics.policy import MEGABYTE, MINUTE_MS, TopicPolicy
from magnetar.topics.rate_limits import RateLimit
from magnetar.topics.registry import Topics

OF_SCHEMAS: Final = {
    "schema_strategy": "strategy",
    "schema_validation_enforced": "validation_enforced",
}
"""Field -> that of ``SchemaPolicy``."""
OF_LIMITS: Final = {
    "max_producers": "producers",
    "max_consumers": "consumers",
    "max_consumers_per_subscription": "consumers_each",
    "max_subscriptions": "subscriptions",
    "max_unacked_per_consumer": "unacked_each",
    "max_unacked_per_subscription": "unacked_all",
    "max_message_bytes": "message_bytes",
}
"""Field -> that of ``TopicLimits``."""
OF_RATES: Final = {
    "publish_rate": "published",
    "dispatch_rate": "dispatched",
    "subscription_dispatch_rate": "to_each",
    "subscribe_rate": "subscribed",
}
"""Field -> that of ``TopicRates``."""
QUOTAS: Final = "backlog_quotas"
NAMED_RATES: Final = "subscription_rates"


class PolicyService:
    """``quorums``: of ledgers of which no policy says how they are replicated."""

    def __init__(self, control: ControlPlane, topics: Topics, quorums: Quorums) -> None:
        self._control = control
        self._policies = control.policies
        self._topics = topics
        self._quorums = quorums
        self._engines = EngineRules(control, topics)

    # -- namespaces ---------------------------------------------------------------------------

    async def of_namespace(self, namespace: str, field: str) -> object:
        """What it says itself. Raises ``TopicNotFoundError``."""
        said = await self._policies.of_namespace(parse_namespace(namespace))
        return encode_value(getattr(said, field))

    async def set_namespace(self, namespace: str, field: str, body: object) -> None:
        """Raises ``InvalidPolicyError``, ``TopicNotFoundError``."""
        value, name = NAMES[field][1](body), parse_namespace(namespace)
        await self._engines.check_namespace(name, field, value)
        if field == "retention":
            _check_quotas(value, await self._policies.of_namespace(name))
        await self._policies.set_namespace(name, field, value)

    async def remove_namespace(self, namespace: str, field: str) -> None:
        """Leave it to the configuration."""
        await self._policies.set_namespace(parse_namespace(namespace), field, None)

    # -- topics -------------------------------------------------------------------------------

    async def of_topic(self, topic: str, field: str, applied: bool) -> object:
        """What it says itself; with ``applied`` what is in force, whoever says it. Raises
        ``TopicNotFoundError``."""
        name = await self._existing(topic)
        if applied and field in OF_SCHEMAS:
            found = await self._control.schemas.policies.effective(name)
            return encode_value(getattr(found, OF_SCHEMAS[field]))
        if applied:
            return encode_value(self._in_force(field, await self._topics.policies.of(name)))
        return encode_value(getattr(await self._policies.of_topic(name), field))

    async def set_topic(self, topic: str, field: str, body: object) -> None:
        """Raises ``InvalidPolicyError``, ``TopicNotFoundError``, ``NotAllowedError``."""
        value, name = NAMES[field][1](body), await self._existing(topic)
        await self._engines.check_topic(name, field, value)
        if field == "retention":
            _check_quotas(value, await self._policies.effective(name))
        await self._policies.set_topic(name, field, value)

    async def remove_topic(self, topic: str, field: str) -> None:
        """Leave it to the namespace."""
        await self._policies.set_topic(await self._existing(topic), field, None)

    # -- backlog quotas, a kind at a time ------------------------------------------------------

    async def set_namespace_quota(self, namespace: str, kind: str, body: object) -> None:
        """``kind`` is one of ``backlog_quotas.KINDS``. Raises as ``set_namespace``."""
        quota, name = BacklogQuota.decode(body), parse_namespace(namespace)
        await self._engines.check_namespace(name, QUOTAS, NOTHING.with_kind(kind, quota))
        if KINDS[kind] == "storage":  # as in Pulsar, which does not hold the other against it
            _check_retention(quota, await self._policies.of_namespace(name))
        await self._policies.change_namespace(name, QUOTAS, partial(_changed, kind, quota))

    async def remove_namespace_quota(self, namespace: str, kind: str) -> None:
        """Leave it to the configuration."""
        name = parse_namespace(namespace)
        await self._policies.change_namespace(name, QUOTAS, partial(_changed, kind, None))

    async def set_topic_quota(self, topic: str, kind: str, body: object) -> None:
        """Raises as ``set_topic``."""
        quota, name = BacklogQuota.decode(body), await self._existing(topic)
        await self._engines.check_topic(name, QUOTAS, NOTHING.with_kind(kind, quota))
        _check_retention(quota, await self._policies.effective(name))
        await self._policies.change_topic(name, QUOTAS, partial(_changed, kind, quota))

    async def remove_topic_quota(self, topic: str, kind: str) -> None:
        """Leave it to the namespace."""
        name = await self._existing(topic)
        await self._policies.change_topic(name, QUOTAS, partial(_changed, kind, None))

    # -- rates of single subscriptions ---------------------------------------------------------

    async def of_subscription(self, topic: str, subscription: str, applied: bool) -> object:
        """The rate of dispatch that the topic says of the subscription, which need not be there;
        with ``applied`` the one in force. Raises ``TopicNotFoundError``."""
        name = await self._existing(topic)
        if applied:
            limit = (await self._topics.policies.of(name)).rates.to(subscription)
            return encode_value(_dispatch_in_force(limit))
        said = (await self._policies.of_topic(name)).subscription_rates
        return encode_value(None if said is None else said.of(subscription))

    async def set_subscription(self, topic: str, subscription: str, body: object) -> None:
        """Raises as ``set_topic``."""
        rate, name = DispatchRate.decode(body), await self._existing(topic)
        change = partial(_with_rate, subscription, rate)
        await self._policies.change_topic(name, NAMED_RATES, change)

    async def remove_subscription(self, topic: str, subscription: str) -> None:
        """Leave it to what is said of each."""
        name = await self._existing(topic)
        change = partial(_with_rate, subscription, None)
        await self._policies.change_topic(name, NAMED_RATES, change)

    async def _existing(self, topic: str) -> TopicName:
        name = parse_topic(topic)
        try:
            await self._topics.partitions(name.partitioned, create=False)
        except TopicNotFoundError:
            if name.partition < 0 or not await self._topics.exists(name):
                raise
        return name

    def _in_force(self, field: str, policy: TopicPolicy) -> object:
        if field == "retention":
            kept = policy.log.retention
            return RetentionPolicy(
                _whole(kept.kept_ms, MINUTE_MS), _whole(kept.kept_bytes, MEGABYTE)
            )
        if field == "persistence":
            return PersistencePolicy(policy.log.quorums or self._quorums)
        if field == "delayed_delivery":
            return DelayedDeliveryPolicy(*policy.delays)
        if field == "read_only_brokers":
            return policy.reading
        if field == "engine":
            return policy.log.engine.value
        if field == "compaction_threshold_bytes":
            return policy.compaction_threshold_bytes
        if field == "deduplication":
            return policy.deduplicates
        if field == "subscription_creation":
            return SubscriptionCreationPolicy(policy.makes_subscriptions)
        if field in OF_LIMITS:
            return getattr(policy.limits, OF_LIMITS[field])
        if field in OF_RATES:
            return _rate_in_force(field, policy)
        if field == QUOTAS:
            return policy.backlog_quotas
        if field == "message_ttl_s":
            return _whole(policy.message_ttl_ms, 1000)
        return _whole(policy.subscription_expiry_ms, MINUTE_MS)


def _rate_in_force(field: str, policy: TopicPolicy) -> PublishRate | DispatchRate | SubscribeRate:
    said = _dispatch_in_force(getattr(policy.rates, OF_RATES[field]))
    if field == "publish_rate":
        return PublishRate(said.messages, said.byte_count)
    if field == "subscribe_rate":
        return SubscribeRate(said.messages, said.period_s)
    return said


def _dispatch_in_force(limit: RateLimit) -> DispatchRate:
    messages, byte_count = limit.messages or NO_LIMIT, limit.byte_count or NO_LIMIT
    return DispatchRate(messages, byte_count, limit.period_s, limit.relative)


def _with_rate(
    subscription: str, rate: DispatchRate | None, said: SubscriptionRates | None
) -> SubscriptionRates | None:
    return (said or SubscriptionRates()).with_rate(subscription, rate)


def _changed(
    kind: str, quota: BacklogQuota | None, said: BacklogQuotas | None
) -> BacklogQuotas | None:
    return (said or NOTHING).with_kind(kind, quota)


def _check_retention(quota: BacklogQuota, said: Policies) -> None:
    """Against what is said of retention, by the namespace or the topic."""
    kept = said.retention
    if kept is not None:
        why = "keep more, or set a smaller quota"
        check_retention(quota, kept.minutes, kept.megabytes, why)


def _check_quotas(kept: RetentionPolicy, said: Policies) -> None:
    """A retention against the quotas that are said."""
    quotas = said.backlog_quotas or NOTHING
    for quota in (quotas.storage, quotas.age):
        check_retention(quota, kept.minutes, kept.megabytes, "keep more, or lower the quota first")


def quorums_of(config: LedgerConfig) -> Quorums:
    """How ledgers are replicated where no policy says."""
    return Quorums(config.ensemble_size, config.write_quorum, config.ack_quorum)


def _whole(value: int, unit: int) -> int:
    """In Pulsar's unit, which may be coarser than a setting's: rounded up, so that what is said to
    be kept is."""
    return value if value == UNLIMITED else -(-value // unit)
