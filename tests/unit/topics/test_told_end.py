"""An owner tells how far a log may be read, as long as somebody wants to know."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import cast

from magnetar.cluster.topic_name import TopicName, parse_topic
from magnetar.env.tasks import TaskScope, fails
from magnetar.model.errors import MagnetarError, ServiceNotReadyError
from magnetar.model.ids import Position
from magnetar.topics.following.remote_acks import CursorOwners, NewsKind, OwnerNews
from magnetar.topics.following.told_end import ToldEnd
from magnetar_sim.world.virtual_time import run_virtual

TOPIC = parse_topic("public/default/t")


class Owner:
    """What it is asked, and what it then tells to whom."""

    def __init__(self, scope: TaskScope) -> None:
        self.asked = 0
        self.failures: list[MagnetarError] = []
        self.told: Callable[[OwnerNews], None] | None = None
        self.heard: list[Position] = []
        self.end = ToldEnd(TOPIC, cast(CursorOwners, self), scope, self.heard.append)

    async def follow(self, topic: TopicName, told: Callable[[OwnerNews], None]) -> Position:
        assert topic == TOPIC
        self.asked += 1
        await asyncio.sleep(0.01)
        if self.failures:
            raise self.failures.pop(0)
        self.told = told
        return Position(1, 4)

    def unfollow(self, topic: TopicName) -> None:
        assert topic == TOPIC
        self.told = None

    def tell(self, news: OwnerNews) -> None:
        assert self.told is not None
        self.told(news)


def run(scenario: Callable[[Owner], Awaitable[None]]) -> None:
    async def main() -> None:
        defects: list[BaseException] = []
        scope = TaskScope("end", fails(lambda _task, error: defects.append(error)))
        await scenario(Owner(scope))
        await scope.close()
        assert defects == []

    run_virtual(main())


def test_it_is_asked_once_and_tells_from_then_on() -> None:
    async def scenario(owner: Owner) -> None:
        owner.end.want(False)
        await asyncio.sleep(1)
        assert owner.asked == 0
        owner.end.want(True)
        owner.end.want(True)
        await asyncio.sleep(60)
        owner.tell(OwnerNews(NewsKind.GREW, 0, Position(1, 7)))
        owner.tell(OwnerNews(NewsKind.GREW, 0, Position(2, 0)))
        assert (owner.asked, owner.heard) == (1, [Position(1, 4), Position(1, 7), Position(2, 0)])

    run(scenario)


def test_the_next_owner_is_asked_once_too() -> None:
    async def scenario(owner: Owner) -> None:
        owner.end.want(True)
        await asyncio.sleep(1)
        owner.tell(OwnerNews(NewsKind.SAY_AGAIN))
        await asyncio.sleep(60)
        assert owner.asked == 2

    run(scenario)


def test_an_owner_that_cannot_say_is_asked_less_and_less_often() -> None:
    async def scenario(owner: Owner) -> None:
        owner.failures = [ServiceNotReadyError("not now")] * 12
        owner.end.want(True)
        await asyncio.sleep(60)
        assert 8 < owner.asked < 13
        await asyncio.sleep(60)
        assert owner.heard == [Position(1, 4)]
        asked = owner.asked
        owner.tell(OwnerNews(NewsKind.SAY_AGAIN))
        await asyncio.sleep(0.5)
        assert owner.asked == asked + 1, "it is soon asked again: it has answered since"

    run(scenario)


def test_nobody_is_told_who_wants_to_know_no_more() -> None:
    async def scenario(owner: Owner) -> None:
        owner.end.want(True)
        await asyncio.sleep(1)
        owner.end.want(False)
        await asyncio.sleep(1)
        assert owner.told is None, "the owner has heard of it"
        assert owner.asked == 1
        owner.end.want(True)
        await asyncio.sleep(1)
        assert owner.asked == 2

    run(scenario)
