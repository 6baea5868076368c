"""What is asked for all partitions of a topic is tried for each, and what failed is said."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import pytest

from magnetar.admin.peers import PeerAnswer
from magnetar.cluster.topic_name import TopicName, parse_topic
from magnetar.model.errors import LogClosedError, NotAllowedError, ServiceNotReadyError
from magnetar.model.ids import LATEST
from magnetar.topics.topic import Topic
from tests.doubles.admin import topic_service
from tests.doubles.ownership import divide
from tests.unit.admin.test_api import P, Platform, serve
from tests.unit.protocols.pulsar.harness import TOPIC, World, run

SUBSCRIPTION = f"{P}/t/subscription/s"


async def prepared(p: Platform) -> None:
    """Three partitions, with a message each that the subscription has not acknowledged."""
    assert await p.status("PUT", f"{P}/t/partitions", json=3) == 204
    for number in range(3):
        peer = p.world.peer()
        await peer.produce(f"{TOPIC}-partition-{number}")
        peer.publish(1)
        await peer.heard()
        peer.lose()
    earliest = {"ledgerId": -1, "entryId": -1}
    assert await p.status("PUT", SUBSCRIPTION, json=earliest) == 204


def breaks_the_first(p: Platform, monkeypatch: pytest.MonkeyPatch) -> None:
    """Partition 0 cannot be opened."""
    get = p.world.broker.topics.get

    async def failing(name: TopicName, create: bool = True) -> Topic:
        if name.partition == 0:
            raise LogClosedError(f"{name} cannot be opened")
        return await get(name, create)

    monkeypatch.setattr(p.world.broker.topics, "get", failing)


async def left(p: Platform) -> list[int]:
    """Messages that are not acknowledged, by partition; -1: there is no such subscription."""
    found = []
    for number in range(3):
        stats = (await p.client.get(f"{P}/t-partition-{number}/stats")).json()
        about = stats["subscriptions"].get("s")
        found.append(-1 if about is None else about["msgBacklog"])
    return found


Ask = tuple[str, str, list[int]]
ASKED: list[Ask] = [
    ("DELETE", SUBSCRIPTION, [1, -1, -1]),
    ("POST", f"{SUBSCRIPTION}/skip_all", [1, 0, 0]),
    ("POST", f"{SUBSCRIPTION}/resetcursor/9999999999999", [1, 0, 0]),
    ("POST", f"{SUBSCRIPTION}/expireMessages/0", [1, 0, 0]),
    ("POST", f"{P}/t/all_subscription/expireMessages/0", [1, 0, 0]),
]


@pytest.mark.parametrize(("method", "path", "expected"), ASKED, ids=[each[1] for each in ASKED])
def test_one_that_fails_keeps_no_other(
    monkeypatch: pytest.MonkeyPatch, method: str, path: str, expected: list[int]
) -> None:
    """The first failure ended the request, which said nothing of the others."""

    async def scenario(p: Platform) -> None:
        await prepared(p)
        p.world.now_s += 1e6
        breaks_the_first(p, monkeypatch)
        status, reason = await p.reason(method, path)
        assert (status, "2 of the 3 partitions" in reason) == (503, True)
        assert "t-partition-0: " in reason
        monkeypatch.undo()
        assert await left(p) == expected
        assert await p.status(method, path) == 204  # again, for what is left
        assert await left(p) == [expected[1]] * 3

    serve(scenario)


def test_a_subscription_is_made_on_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(p: Platform) -> None:
        await prepared(p)
        make = p.world.broker.topics.make_subscription

        async def failing(name: TopicName, subscription: str, start: Any) -> None:
            if name.partition == 1:
                raise LogClosedError(f"{name} cannot be opened")
            await make(name, subscription, start)

        monkeypatch.setattr(p.world.broker.topics, "make_subscription", failing)
        status, reason = await p.reason("PUT", f"{P}/t/subscription/new")
        assert (status, "2 of the 3 partitions" in reason) == (503, True)
        found = [
            (await p.client.get(f"{P}/t-partition-{number}/subscriptions")).json()
            for number in range(3)
        ]
        assert found == [["new", "s"], ["s"], ["new", "s"]]

    serve(scenario)


def test_the_others_are_unloaded(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(p: Platform) -> None:
        await prepared(p)
        unload, tried = p.world.broker.topics.unload, list[int]()

        async def failing(name: TopicName, service_url: str = "") -> bool:
            tried.append(name.partition)
            if name.partition == 0:
                raise ServiceNotReadyError("not now")
            return await unload(name, service_url)

        monkeypatch.setattr(p.world.broker.topics, "unload", failing)
        status, reason = await p.reason("PUT", f"{P}/t/unload")
        assert (status, "2 of the 3 partitions" in reason) == (503, True)
        assert tried == [0, 1, 2]

    serve(scenario)


def test_who_is_connected_keeps_its_own_partition_only() -> None:
    """All that failed say the same, on which nobody asks again."""

    async def scenario(p: Platform) -> None:
        await prepared(p)
        assert (await p.world.peer().subscribe(topic=f"{TOPIC}-partition-0")).success
        status, reason = await p.reason("DELETE", SUBSCRIPTION)
        assert (status, "consumers" in reason) == (409, True)
        assert await left(p) == [1, -1, -1]

    serve(scenario)


def test_one_partition_that_is_asked_for_says_its_own_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario(p: Platform) -> None:
        await prepared(p)
        breaks_the_first(p, monkeypatch)
        status, reason = await p.reason("DELETE", f"{P}/t-partition-0/subscription/s")
        assert (status, "cannot be opened" in reason, "of the" in reason) == (503, True, False)
        assert (await p.reason("DELETE", f"{P}/t-partition-1/subscription/none"))[0] == 404

    serve(scenario)


def test_the_bundles_of_a_namespace_are_all_released(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(p: Platform) -> None:
        bundles, released = p.world.broker.control.bundles, list[str]()
        release: Callable[..., Awaitable[None]] = bundles.release

        async def failing(bundle: Any) -> None:
            released.append(bundle.range_name)
            if len(released) == 1:
                raise ServiceNotReadyError("not now")
            await release(bundle)

        monkeypatch.setattr(bundles, "release", failing)
        status, reason = await p.reason("PUT", "/admin/v2/namespaces/public/default/unload")
        assert (status, "3 of the 4 bundles" in reason) == (503, True)
        assert len(released) == 4

    serve(scenario)


class Others:
    """The broker of the other partitions: they have the subscription or another reader's."""

    def __init__(self, *answers: PeerAnswer) -> None:
        self._answers = iter(answers)

    async def ask(
        self, method: str, url: str, query: Mapping[str, str], body: object
    ) -> PeerAnswer:
        return next(self._answers)


def test_a_subscription_that_another_broker_has_is_no_error() -> None:
    made = PeerAnswer(204, None)
    exists = PeerAnswer(409, {"reason": "Subscription already exists for topic: s of t"})
    refused = PeerAnswer(409, {"reason": "subscription s exists and is not durable"})

    async def scenario(world: World) -> None:
        control = world.services.control
        await control.partitioned.create(parse_topic(TOPIC), 2)
        divide(control, lambda name: name.partition == 1)
        service = topic_service(world.broker, Others(exists, exists, made, refused))
        for wanted in (True, False, True):
            assert await service.create_subscription(TOPIC, "s", LATEST) is wanted
        with pytest.raises(NotAllowedError, match="is not durable"):
            await service.create_subscription(TOPIC, "s", LATEST)

    run(scenario)
