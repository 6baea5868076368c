"""A subscription that another broker serves: how its owner speaks to that one."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from magnetar.log.seam import Binding
from magnetar.model.ids import Position
from magnetar.topics.consuming.bound import GIVEN_BACK_S, BoundSubscription, SeatsTaken
from magnetar_sim.world.virtual_time import run_virtual

BINDING = Binding(3, "a:8080", 7, "pulsar://a:6650")


class Line:
    """A connection of the broker."""

    def __init__(self) -> None:
        self.connected = True
        self.told: list[str] = []

    def tell_ended(self, binding: Binding) -> None:
        assert binding == BINDING
        self.told.append("ended")

    def tell_wanted(self, binding: Binding) -> None:
        assert binding == BINDING
        self.told.append("wanted")

    def tell_asked(self, binding: Binding) -> None:
        assert binding == BINDING
        self.told.append("asked")

    def tell_moved(self, binding: Binding, mark_delete: Position, reset_epoch: int) -> None:
        assert binding == BINDING
        self.told.append(f"moved to {mark_delete}")

    def tell_closed(self, service_url: str = "") -> None:
        self.told.append("closed")


def run(scenario: Callable[[BoundSubscription], Awaitable[None]]) -> None:
    async def main() -> None:
        await scenario(BoundSubscription(BINDING, asyncio.get_running_loop().time))

    run_virtual(main())


def test_it_is_asked_back_by_each_connection_that_it_speaks_by() -> None:
    """The first may break before it has heard of that."""

    async def scenario(bound: BoundSubscription) -> None:
        first, second = Line(), Line()
        bound.heard(first)
        loop = asyncio.get_running_loop()
        begun_s = loop.time()
        giving = asyncio.ensure_future(bound.give_back())
        await asyncio.sleep(1)
        assert first.told == ["wanted"]
        first.connected = False
        await asyncio.sleep(1)
        bound.heard(second)
        await asyncio.sleep(0.1)
        assert second.told == ["wanted"]
        bound.end()
        await giving
        assert loop.time() - begun_s < GIVEN_BACK_S, "nobody waits longer than that"
        assert (first.told, second.told) == (["wanted"], ["wanted"])

    run(scenario)


def test_one_that_is_not_given_back_is_taken_after_a_while() -> None:
    async def scenario(bound: BoundSubscription) -> None:
        begun_s = asyncio.get_running_loop().time()
        await bound.give_back()
        assert asyncio.get_running_loop().time() - begun_s == GIVEN_BACK_S
        assert not bound.over.is_set()

    run(scenario)


def test_how_long_it_has_said_nothing() -> None:
    async def scenario(bound: BoundSubscription) -> None:
        await asyncio.sleep(30)
        assert bound.silent_s == 30
        bound.heard(Line())
        await asyncio.sleep(7)
        assert bound.silent_s == 7

    run(scenario)


def test_a_connection_that_is_gone_is_found_once() -> None:
    async def scenario(bound: BoundSubscription) -> None:
        line = Line()
        assert not bound.lost(), "there was none"
        bound.heard(line)
        assert not bound.lost()
        assert bound.client is line
        line.connected = False
        assert bound.client is None
        bound.ask()
        assert line.told == []
        assert [bound.lost(), bound.lost()] == [True, False]

    run(scenario)


def test_who_asks_for_seats_gets_the_answer_that_comes_in_time() -> None:
    async def scenario(bound: BoundSubscription) -> None:
        assert await bound.seats(1.0) is None, "there is nobody to ask"
        line = Line()
        bound.heard(line)
        late = await bound.seats(1.0)
        assert (late, line.told) == (None, ["asked"])
        first = asyncio.ensure_future(bound.seats(1.0))
        second = asyncio.ensure_future(bound.seats(1.0))
        await asyncio.sleep(0.5)
        bound.heard_seats(SeatsTaken(1, 2))
        assert [await first, await second] == [SeatsTaken(1, 2)] * 2
        assert bound._ask_seats == [], "those who gave up wait for nothing"

    run(scenario)
