"""Lookups do not name owners that are gone: what is held, for how long, and what ends it."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

import pytest

from magnetar.cluster.brokers import reach
from magnetar.cluster.brokers.reach import Reach, connects
from magnetar.cluster.brokers.reports import BrokerReport, owner_path
from magnetar.cluster.bundles import Layout, even_boundaries
from magnetar.cluster.ownership import At, Here, Owner
from magnetar.cluster.sharing import held_lookups
from magnetar.cluster.sharing.held_lookups import HeldLookups
from magnetar.cluster.topic_name import TopicName, parse_topic
from magnetar.env.tasks import TaskScope, awaited

NAME = parse_topic("t")
A, B = "pulsar://a:6650", "pulsar://b:6650"
AT_A, AT_B = At(A, ""), At(B, "")
LAYOUT = Layout(NAME.namespace, even_boundaries(1))


def report(url: str, start: int = 1) -> BrokerReport:
    return BrokerReport(url.partition("://")[2], start, url, "")


class World:
    """``down``: who takes no connections. ``owner``: what a lookup says."""

    def __init__(self, scope: TaskScope) -> None:
        self.down: set[str] = set()
        self.tried: Counter[str] = Counter()
        self.owner: Owner | None = AT_A
        self.asked = 0
        self.parked = 0
        self.reach = Reach(scope, self._connect)
        self.lookups = HeldLookups(self._locate, self._place, self.reach.find_gone)

    async def _connect(self, url: str) -> bool:
        self.tried[url] += 1
        await asyncio.sleep(0)
        return url not in self.down

    async def _locate(self, name: TopicName, authoritative: bool) -> Owner | None:
        self.asked += 1
        return self.owner

    async def _place(self, name: TopicName) -> str:
        return owner_path(LAYOUT.bundle_of(name))

    @contextmanager
    def _park(self) -> Iterator[None]:
        self.parked += 1
        try:
            yield
        finally:
            self.parked -= 1

    def look_up(self) -> asyncio.Task[Owner | None]:
        return asyncio.ensure_future(self.lookups.locate(NAME, False, self._park))

    def moves(self, owner: Owner) -> None:
        self.owner = owner
        self.lookups.moved(owner_path(LAYOUT.bundle_of(NAME)))

    def forget_when(self) -> None:
        """As if ``FRESH_S`` had passed."""
        for met in self.reach._met.values():
            met.at_s -= reach.FRESH_S


def run(scenario: Callable[[World], Awaitable[None]]) -> None:
    async def main() -> None:
        scope = TaskScope("test", awaited(by="the test"))
        try:
            world = World(scope)
            await world.reach.meet([report(A), report(B)])
            world.forget_when()
            await scenario(world)
        finally:
            await scope.close()

    asyncio.run(asyncio.wait_for(main(), 30))


async def turns() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


def test_an_owner_that_is_there_is_named_at_once() -> None:
    async def scenario(world: World) -> None:
        assert await asyncio.gather(*(world.look_up() for _ in range(50))) == [AT_A] * 50
        assert world.tried[A] == 2, "one connection for all, beside the first meeting"
        assert await world.look_up() == AT_A
        assert world.tried[A] == 2, "which counts for a while"

    run(scenario)


def test_a_move_while_the_question_is_answered_is_not_waited_for() -> None:
    async def scenario(world: World) -> None:
        world.down.add(A)

        async def late(name: TopicName, authoritative: bool) -> Owner | None:
            found = await world._locate(name, authoritative)
            if world.asked == 2:
                world.moves(AT_B)
            return found

        world.lookups._locate = late
        assert await asyncio.wait_for(world.look_up(), 5) == AT_B
        assert world.asked == 3

    run(scenario)


def test_what_is_here_is_asked_of_nobody() -> None:
    async def scenario(world: World) -> None:
        world.owner = Here()
        assert await world.look_up() == Here()
        assert world.tried == {A: 1, B: 1}

    run(scenario)


def test_an_owner_that_is_gone_is_named_by_nobody_until_the_bundle_has_moved() -> None:
    async def scenario(world: World) -> None:
        world.down = {A}
        held = [world.look_up() for _ in range(5)]
        await turns()
        assert not any(each.done() for each in held)
        assert world.parked == 5
        world.moves(AT_B)
        assert await asyncio.gather(*held) == [AT_B] * 5
        assert world.parked == 0

    run(scenario)


def test_one_that_is_back_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reach, "AGAIN_S", 0.01)

    async def scenario(world: World) -> None:
        world.down = {A}
        held = world.look_up()
        await turns()
        assert world.reach.gone(A) is not None
        world.down.clear()
        assert await held == AT_A
        assert world.reach.gone(A) is None

    run(scenario)


def test_nobody_is_held_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(held_lookups, "HELD_S", 0.05)

    async def scenario(world: World) -> None:
        world.down = {A}
        assert await world.look_up() == AT_A

    run(scenario)


def test_so_many_are_held_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(held_lookups, "HELD_MAX", 2)

    async def scenario(world: World) -> None:
        world.down = {A}
        asked = [world.look_up() for _ in range(3)]
        await turns()
        assert [each.done() for each in asked] == [False, False, True]
        world.moves(AT_B)
        assert await asyncio.gather(*asked) == [AT_B, AT_B, AT_A]

    run(scenario)


def test_what_nobody_serves_is_held_until_somebody_does(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(world: World) -> None:
        world.owner = None
        held = [world.look_up() for _ in range(3)]
        await turns()
        assert not any(each.done() for each in held)
        world.moves(AT_B)
        assert await asyncio.gather(*held) == [AT_B] * 3
        assert not world.lookups._moves, "nothing is kept of what nobody waits for"
        monkeypatch.setattr(held_lookups, "LOOK_S", 0.01)
        world.owner = None
        held = [world.look_up()]
        await turns()
        world.owner = AT_A  # without a word: it has registered
        assert await held[0] == AT_A
        monkeypatch.setattr(held_lookups, "HELD_S", 0.03)
        world.owner = None
        assert await world.look_up() is None

    run(scenario)


def test_addresses_that_were_never_reached_from_here_are_named() -> None:
    """They may be meant for clients alone."""

    async def scenario(world: World) -> None:
        stranger = "pulsar://outside:6650"
        world.down, world.owner = {stranger}, At(stranger, "")
        for _ in range(10):
            await world.reach.meet([report(stranger)])
        assert world.tried[stranger] == reach.MEETINGS_MAX
        assert await world.look_up() == At(stranger, "")
        await world.reach.meet([report(stranger, start=2)])
        assert world.tried[stranger] == reach.MEETINGS_MAX + 1, "another start is another chance"

    run(scenario)


def test_one_that_was_gone_for_long_is_a_stranger(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reach, "AGAIN_S", 0.001)
    monkeypatch.setattr(reach, "GONE_S", 0.02)

    async def scenario(world: World) -> None:
        world.down = {A}
        assert await world.look_up() == AT_A
        assert A not in world.reach._met

    run(scenario)


def test_a_connection_is_what_is_asked_for() -> None:
    async def main() -> None:
        # Its side is closed too: from Python 3.12 on a server waits for all of its connections.
        server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        assert await connects(f"pulsar://127.0.0.1:{port}")
        server.close()
        await server.wait_closed()
        assert not await connects(f"pulsar://127.0.0.1:{port}")

    asyncio.run(main())
