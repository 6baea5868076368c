"""Policies of open topics are kept: a change of them comes into force, messages and subscriptions
expire.

Rules:

* A change is in force as soon as the metadata store tells of it, in every open topic of the
  namespace; a topic that is opened later is opened with it.
* Message expiry is logical, and per subscription: what is older than the time to live (by publish
  time) and not acknowledged counts as acknowledged, as far as everything before it does. Readers
  are left alone, and nothing is deleted by it: that is retention's.
* A subscription that had no consumer for longer than it may is deleted, with its backlog. The time
  counts from when the topic was opened here, at the earliest: it may live longer than it should,
  never shorter.
* Deduplication stores what it remembers (``deduplicating``).
* What a policy has compacted is (``compact`` decides).
* All are looked for every ``broker.expiry_check_interval_ms``. What cannot be done now is left for
  the next look.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Container, Sequence
from typing import Final, Protocol

import structlog

from magnetar.model.errors import MagnetarError, TopicNotFoundError
from magnetar.topics.consuming.subscription import Subscription
from magnetar.topics.policies_in_force import PoliciesInForce
from magnetar.topics.subscribable import SubscribableTopic

log = structlog.get_logger(__name__)

TOPICS_PER_TURN: Final = 100
RETRY_S: Final = 1.0


class Upkept(Protocol):
    """Open topics, and what holds for them."""

    @property
    def policies(self) -> PoliciesInForce: ...

    def loaded(self) -> Sequence[SubscribableTopic]: ...


class PolicyUpkeep:
    """Of a broker's open topics; see the module's text. ``now_ms`` is a wall clock."""

    def __init__(
        self,
        topics: Upkept,
        check_interval_ms: int,
        now_ms: Callable[[], int],
        compact: Callable[[SubscribableTopic], None] = lambda topic: None,
    ) -> None:
        self._topics = topics
        self._compact = compact
        self._policies: PoliciesInForce = topics.policies
        self._interval_s = check_interval_ms / 1000
        self._now_ms = now_ms

    # -- changes ------------------------------------------------------------------------------

    async def follow_changes(self) -> None:
        """Until cancelled."""
        while True:
            namespaces = await self._policies.wait_changed()
            failed = [
                topic.name.namespace
                async for topic in self._open(namespaces)
                if not await self._apply(topic)
            ]
            if failed:
                await asyncio.sleep(RETRY_S)
                for namespace in dict.fromkeys(failed):
                    self._policies.touch(namespace)

    async def apply_now(self) -> None:
        """What is stored of policies is in force in every open topic when it returns, as far as it
        is known here."""
        async for topic in self._open():
            await self._apply(topic)

    async def _open(
        self, namespaces: Container[str] | None = None
    ) -> AsyncIterator[SubscribableTopic]:
        """The open topics (of those namespaces), some in each turn of the loop."""
        for number, topic in enumerate(self._topics.loaded()):
            if number % TOPICS_PER_TURN == TOPICS_PER_TURN - 1:
                await asyncio.sleep(0)
            if not topic.closed and (namespaces is None or topic.name.namespace in namespaces):
                yield topic

    async def _apply(self, topic: SubscribableTopic) -> bool:
        """False if it has to be tried again."""
        try:
            policy = await self._policies.of(topic.name)
        except TopicNotFoundError:
            return True  # its namespace is gone: it stays as it is
        except MagnetarError as error:
            log.warning("policies not known now", topic=str(topic.name), error=str(error))
            return False
        if not topic.closed and policy != topic.policy:
            topic.set_policy(policy)
        return True

    # -- expiry -------------------------------------------------------------------------------

    async def run(self) -> None:
        """Look for what expires, until cancelled."""
        while True:
            await asyncio.sleep(self._interval_s)
            await self.look()

    async def look(self) -> None:
        async for topic in self._open():
            # Of policies that gave way in memory no change is told.
            if not await self._apply(topic):
                continue
            self._compact(topic)
            topic.look()
            try:
                await self._expire(topic)
            except MagnetarError as error:
                log.info("nothing expires now", topic=str(topic.name), error=str(error))

    async def _expire(self, topic: SubscribableTopic) -> None:
        policy, now_ms = topic.policy, self._now_ms()
        durable = [each for each in topic.subscriptions.values() if each.durable]
        if policy.message_ttl_ms:
            behind = [each for each in durable if each.cursor.backlog_entries()]
            await expire_messages(topic, behind, now_ms - policy.message_ttl_ms)
        if policy.subscription_expiry_ms:
            for subscription in durable:
                idle_ms = subscription.idle_ms
                unused = not subscription.consumers and subscription.bound is None
                if unused and idle_ms >= policy.subscription_expiry_ms:
                    await self._delete(topic, subscription, idle_ms)

    async def _delete(
        self, topic: SubscribableTopic, subscription: Subscription, idle_ms: int
    ) -> None:
        if topic.subscriptions.get(subscription.name) is not subscription:
            return
        log.info(
            "subscription expired: nobody used it",
            topic=str(topic.name),
            subscription=subscription.name,
            idle_s=idle_ms // 1000,
        )
        await topic.delete_subscription(subscription.name, force=False)


async def expire_messages(
    topic: SubscribableTopic, subscriptions: list[Subscription], published_ms: int
) -> None:
    """What was published at ``published_ms`` or before counts as acknowledged for each of
    ``subscriptions``. Raises what reading the log does."""
    if not subscriptions:
        return
    with topic.held():
        stop = await topic.readable.first_at(published_ms + 1)
        for subscription in subscriptions:
            expired = 0 if topic.closed else subscription.expire(stop)
            if expired:
                log.info(
                    "messages expired",
                    topic=str(topic.name),
                    subscription=subscription.name,
                    entries=expired,
                )
