"""Topics whose logs are replicated are served by who leads them; all others by bundles' owners."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import cast

import pytest

from magnetar.cluster.brokers.reports import BrokerReport
from magnetar.cluster.namespaces import Namespaces
from magnetar.cluster.ownership import At, Here, SoleBroker
from magnetar.cluster.sharing.led_topics import NOBODY, LedBy, LedTopics
from magnetar.cluster.topic_name import TopicName, parse_topic
from magnetar.model.errors import ServiceNotReadyError

ME, OTHER = LedBy(1, 10), LedBy(2, 20)
NAME, PLAIN = parse_topic("persistent://public/default/t"), parse_topic("plain")


class KnownLeaders:
    me = ME

    def __init__(self, led: LedBy | None) -> None:
        self.led = self.really = led

    def known(self, name: TopicName) -> LedBy | None:
        return self.led if name == NAME else None

    async def stored_leader(self, name: TopicName) -> LedBy | None:
        return self.really if name == NAME else None


async def _reports() -> Mapping[str, BrokerReport]:
    return {
        "b:8080": BrokerReport("b:8080", 5, "pulsar://b:6650", "http://b", node_id=2, process=20)
    }


def _topics(led: LedBy | None) -> tuple[LedTopics, KnownLeaders]:
    leaders = KnownLeaders(led)
    bundles = SoleBroker(cast(Namespaces, None))  # it is asked for nothing here
    return LedTopics(bundles, leaders, _reports), leaders


def test_the_leader_serves_and_nobody_else() -> None:
    async def scenario() -> None:
        topics, leaders = _topics(OTHER)
        there = At("pulsar://b:6650", "http://b")
        assert await topics.locate(NAME) == await topics.locate_reachable(NAME) == there
        with pytest.raises(ServiceNotReadyError, match="broker 2"):
            await topics.claim(NAME)
        leaders.led = ME
        assert await topics.locate(NAME) == Here()
        await topics.claim(NAME)
        topics.check(NAME)
        with pytest.raises(ServiceNotReadyError, match="broker 2"):
            await topics.verify(NAME)  # the metadata knows better

    asyncio.run(scenario())


@pytest.mark.parametrize("led", [LedBy(NOBODY, 0), LedBy(2, 19), LedBy(1, 9)])
def test_while_nobody_leads_clients_ask_again(led: LedBy) -> None:
    """Nobody; a start of a broker that has ended, be it another's or ours."""

    async def scenario() -> None:
        topics, _ = _topics(led)
        assert await topics.owner_of(NAME) is None
        with pytest.raises(ServiceNotReadyError, match="just now"):
            await topics.locate(NAME)

    asyncio.run(scenario())


def test_other_topics_are_those_of_bundles() -> None:
    async def scenario() -> None:
        topics, _ = _topics(OTHER)
        assert await topics.locate(PLAIN) == Here()
        await topics.claim(PLAIN)
        topics.check(PLAIN)
        await topics.verify(PLAIN)

    asyncio.run(scenario())
