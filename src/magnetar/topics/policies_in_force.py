"""Which policy holds for which topic, and which namespaces have changed theirs since somebody
looked. Answers come from memory once it is warm (``cluster.topic_policies``).

A change that comes while a topic is being opened is not missed: what was asked for before it is
asked again once the topic is open (``opened``).
"""

from __future__ import annotations

import asyncio
from dataclasses import replace

from magnetar.cluster.policies.backlog_quotas import (
    NONE,
    BacklogQuota,
    BacklogQuotas,
    QuotaAction,
)
from magnetar.cluster.policies.rate_values import SUBSCRIBE_PERIOD_S
from magnetar.cluster.policies.topic_policies import TopicPolicies
from magnetar.cluster.topic_name import TopicName
from magnetar.config import BrokerConfig
from magnetar.log.policy import Engine, LogPolicy
from magnetar.topics.dispatch.delayed import DelayPolicy
from magnetar.topics.policy import (
    TopicCreation,
    TopicLimits,
    TopicPolicy,
    TopicRates,
    topic_creation,
    topic_policy,
)
from magnetar.topics.rate_limits import RateLimit


class PoliciesInForce:
    """``configured`` is what holds for logs where nobody says otherwise."""

    def __init__(
        self, config: BrokerConfig, configured: LogPolicy, policies: TopicPolicies
    ) -> None:
        self.changes = 0
        """Grows with every change that is told of."""
        self._policies = policies
        self._configured = TopicPolicy(
            replace(configured, engine=Engine(config.engine)),
            DelayPolicy(tick_ms=config.delayed_delivery_tick_ms),
            config.message_ttl_ms,
            config.subscription_expiry_ms,
            deduplicates=config.deduplication,
            rates=_rates(config),
            limits=TopicLimits(
                consumers=config.consumers_per_topic_max,
                subscriptions=config.subscriptions_per_topic_max,
                unacked_each=config.unacknowledged_per_consumer_max,
                unacked_all=config.unacknowledged_per_subscription_max,
            ),
            backlog_quotas=_configured_quotas(config),
        )
        self._topics_max = config.topics_per_namespace_max
        self._creation = TopicCreation(config.auto_create_topics, config.auto_create_partitions)
        self._changed: dict[str, None] = {}
        self._news = asyncio.Event()
        policies.watch(self.touch)

    async def of(self, name: TopicName) -> TopicPolicy:
        """Raises ``TopicNotFoundError`` for an unknown namespace, ``MetadataError``."""
        return topic_policy(self._configured, await self._policies.effective(name))

    async def of_namespace(self, namespace: str) -> TopicPolicy:
        """Of topics in it that say nothing themselves. Raises as ``of``."""
        return topic_policy(self._configured, await self._policies.of_namespace(namespace))

    async def creation(self, name: TopicName) -> TopicCreation:
        """Of a topic that is not there, when somebody uses it. Raises as ``of``."""
        said = await self._policies.of_namespace(name.namespace)
        return topic_creation(self._creation, said)

    async def topics_max(self, namespace: str) -> int:
        """How many topics the namespace may have; 0: any number. Raises as ``of``."""
        said = (await self._policies.of_namespace(namespace)).max_topics
        return self._topics_max if said is None else said

    def touch(self, namespace: str) -> None:
        """Its open topics are to be looked at."""
        self.changes += 1
        self._changed[namespace] = None
        self._news.set()

    def opened(self, name: TopicName, changes: int) -> None:
        """A topic was opened with what held when ``changes`` was read."""
        if self.changes != changes:
            self.touch(name.namespace)

    async def wait_changed(self) -> list[str]:
        """Namespaces that have changed, or may have; they are taken for looked at."""
        await self._news.wait()
        self._news.clear()
        found, self._changed = list(self._changed), {}
        return found


def _rates(config: BrokerConfig) -> TopicRates:
    return TopicRates(
        RateLimit(config.topic_publish_messages_per_s_max, config.topic_publish_bytes_per_s_max),
        RateLimit(config.topic_dispatch_messages_per_s_max, config.topic_dispatch_bytes_per_s_max),
        RateLimit(
            config.subscription_dispatch_messages_per_s_max,
            config.subscription_dispatch_bytes_per_s_max,
        ),
        RateLimit(config.consumer_subscribes_max, 0, SUBSCRIBE_PERIOD_S),
    )


def _configured_quotas(config: BrokerConfig) -> BacklogQuotas:
    """Those of topics of which nobody says any."""
    made = BacklogQuota(
        config.backlog_quota_bytes or NONE,
        -(-config.backlog_quota_age_ms // 1000) or NONE,
        QuotaAction(config.backlog_quota_policy),
    )
    return BacklogQuotas(made, made)
