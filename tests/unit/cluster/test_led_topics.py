"""Topics whose logs are replicated are served by who leads them; all others by bundles' owners."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Mapping
from typing import cast

import pytest

from magnetar.cluster.brokers.reports import BrokerReport
from magnetar.cluster.namespaces import Namespaces
from magnetar.cluster.ownership import At, Here, SoleBroker
from magnetar.cluster.sharing import held_lookups
from magnetar.cluster.sharing.led_topics import NOBODY, LedBy, LedTopics
from magnetar.cluster.topic_name import TopicName, parse_topic
from magnetar.model.errors import ServiceNotReadyError

ME, OTHER = LedBy(1, 10), LedBy(2, 20)
NAME, PLAIN = parse_topic("persistent://public/default/t"), parse_topic("plain")


class KnownLeaders:
    me = ME

    def __init__(self, led: LedBy | None) -> None:
        self.led = self.really = led
        self.changed: Callable[[Hashable], None] = lambda _: None

    def known(self, name: TopicName) -> LedBy | None:
        return self.led if name == NAME else None

    async def stored_leader(self, name: TopicName) -> LedBy | None:
        return self.really if name == NAME else None

    def watch(self, changed: Callable[[Hashable], None]) -> None:
        self.changed = changed

    def place(self, name: TopicName) -> Hashable:
        return name.log_name


async def _reports() -> Mapping[str, BrokerReport]:
    return {
        "b:8080": BrokerReport("b:8080", 5, "pulsar://b:6650", "http://b", node_id=2, process=20)
    }


class Reachable:
    """``back``: of who takes no connections."""

    def __init__(self) -> None:
        self.back: asyncio.Future[None] | None = None

    async def find_gone(self, url: str) -> asyncio.Future[None] | None:
        return self.back


def _topics(
    led: LedBy | None, reachable: Reachable | None = None
) -> tuple[LedTopics, KnownLeaders]:
    leaders = KnownLeaders(led)
    bundles = SoleBroker(cast(Namespaces, None))  # it is asked for nothing here
    find_gone = (reachable or Reachable()).find_gone
    return LedTopics(bundles, leaders, _reports, find_gone), leaders


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


@pytest.mark.parametrize("led", [LedBy(NOBODY, 0), LedBy(2, 19)])
def test_a_lookup_is_held_while_nobody_leads(led: LedBy) -> None:
    """A client that is told so ends its connection, with all that others do on it."""

    async def scenario() -> None:
        topics, leaders = _topics(led)
        held = asyncio.ensure_future(topics.locate_reachable(NAME))
        await asyncio.sleep(0.01)
        assert not held.done()
        leaders.led = OTHER
        leaders.changed(NAME.log_name)
        assert await held == At("pulsar://b:6650", "http://b")

    asyncio.run(asyncio.wait_for(scenario(), 10))


def test_a_lookup_is_held_while_the_leader_is_gone() -> None:
    async def scenario() -> None:
        reachable = Reachable()
        topics, leaders = _topics(OTHER, reachable)
        reachable.back = asyncio.get_running_loop().create_future()
        held = asyncio.ensure_future(topics.locate_reachable(NAME))
        await asyncio.sleep(0.01)
        assert not held.done()
        leaders.led = ME
        leaders.changed(NAME.log_name)
        assert await held == Here()

    asyncio.run(asyncio.wait_for(scenario(), 10))


def test_a_lookup_that_is_held_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(held_lookups, "HELD_S", 0.02)

    async def scenario() -> None:
        topics, _ = _topics(LedBy(NOBODY, 0))
        with pytest.raises(ServiceNotReadyError, match="just now"):
            await topics.locate_reachable(NAME)

    asyncio.run(scenario())


def test_other_topics_are_those_of_bundles() -> None:
    async def scenario() -> None:
        topics, _ = _topics(OTHER)
        assert await topics.locate(PLAIN) == Here()
        await topics.claim(PLAIN)
        topics.check(PLAIN)
        await topics.verify(PLAIN)

    asyncio.run(scenario())
