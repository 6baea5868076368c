"""A broker looks at its bundles at even intervals: cuts what has grown, gives away what is too much
(``cluster.balance`` decides)."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final

import structlog

from magnetar.cluster.bundles import Bundle
from magnetar.cluster.sharing.balance import Balance, BundleLimits, BundleLoad, Cut, Decision
from magnetar.cluster.sharing.shared_topics import SharedTopics
from magnetar.config import BrokerConfig
from magnetar.model.errors import MagnetarError
from magnetar.topics.rates import Rates
from magnetar.topics.registry import Topics
from magnetar.topics.topic import Topic

log = structlog.get_logger(__name__)

TOPICS_PER_TURN: Final = 200
"""Looked at in one turn of the loop, which others need too."""


class Balancing:
    """Of a broker that shares its cluster's topics, once it has begun to."""

    def __init__(
        self, config: BrokerConfig, bundles: SharedTopics, topics: Topics, rates: Rates
    ) -> None:
        self._interval_s = config.balance_interval_ms / 1000
        self._bundles = bundles
        self._topics = topics
        self._rates = rates
        limits = BundleLimits(config.bundle_topics_max, config.bundle_messages_per_s_max)
        self._balance = Balance(bundles.broker_id, limits)

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await asyncio.sleep(self._interval_s)
            try:
                await self.look()
            except MagnetarError as error:
                log.warning("bundles not balanced", error=str(error))

    async def look(self) -> Decision | None:
        """One look, and what comes of it. Raises ``MagnetarError``."""
        loads = await self._loads()
        reports = await self._bundles.reports()
        cut_already = {
            namespace: len((await self._bundles.layout(namespace)).bundles())
            for namespace in {bundle.namespace for bundle in loads}
        }
        decision = self._balance.look(loads, reports, cut_already)
        if isinstance(decision, Cut):
            bundle = decision.bundle
            log.info("a bundle has grown and is cut", bundle=str(bundle), **loads[bundle]._asdict())
            names = [topic.name for topic in self._topics.loaded()]
            await self._bundles.cut(bundle, bundle.median(names))
        elif decision is not None:
            log.info("a bundle is given away: others have less to do", bundle=str(decision.bundle))
            await self._bundles.release(decision.bundle)
        return decision

    async def _loads(self) -> Mapping[Bundle, BundleLoad]:
        loads = dict.fromkeys(self._bundles.owned(), BundleLoad(0, 0.0))
        for number, topic in enumerate(self._topics.loaded(), 1):
            if number % TOPICS_PER_TURN == 0:
                await asyncio.sleep(0)
            bundle = (await self._bundles.layout(topic.name.namespace)).bundle_of(topic.name)
            if bundle in loads:
                topics, messages_per_s = loads[bundle]
                loads[bundle] = BundleLoad(topics + 1, messages_per_s + self._rate(topic))
        return loads

    def _rate(self, topic: Topic) -> float:
        """Messages a second, in and out."""
        out = sum(self._rates.of(each).messages for each in topic.subscriptions.values())
        return self._rates.of(topic).messages + out
