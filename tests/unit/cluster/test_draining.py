"""Bundles are given away one after the other, and not faster than others can take them."""

from __future__ import annotations

import asyncio

import pytest

from magnetar.cluster.bundles import Bundle
from magnetar.cluster.sharing.draining import OPENING, WAITING_S_MAX, release_in_turn
from magnetar_sim.world.virtual_time import run_virtual


class Owner:
    """Of some bundles; each takes ``seconds`` to close."""

    def __init__(self, count: int, seconds: float) -> None:
        self.held = [Bundle("public/default", number, number + 1) for number in range(count)]
        self.released_s: list[float] = []
        self._seconds = seconds

    async def release(self, bundle: Bundle) -> None:
        if bundle not in self.held:
            return  # somebody else released it meanwhile
        await asyncio.sleep(self._seconds)
        self.held.remove(bundle)
        self.released_s.append(asyncio.get_running_loop().time())

    async def drain(self, taken: bool = True) -> float:
        """How long it took, from the first second on."""
        begun_s = asyncio.get_running_loop().time()
        await release_in_turn(lambda: [*self.held], self.release, taken)
        assert not self.held
        self.released_s = [at - begun_s for at in self.released_s]
        return asyncio.get_running_loop().time() - begun_s


def test_each_is_given_the_time_that_opening_its_topics_takes() -> None:
    async def scenario() -> None:
        owner = Owner(4, seconds=0.1)
        took_s = await owner.drain()
        apart = 0.1 * (1 + OPENING)
        assert owner.released_s == pytest.approx([0.1 + n * apart for n in range(4)])
        assert took_s == pytest.approx(0.1 + 3 * apart), "nobody waits after the last"

    run_virtual(scenario())


def test_a_stop_does_not_wait_for_ever() -> None:
    async def scenario() -> None:
        took_s = await Owner(100, seconds=1.0).drain()
        assert took_s == pytest.approx(100 + WAITING_S_MAX)

    run_virtual(scenario())


def test_nobody_is_waited_for_who_is_not_there() -> None:
    async def scenario() -> None:
        assert await Owner(10, seconds=0.1).drain(taken=False) == pytest.approx(1.0)

    run_virtual(scenario())


def test_one_that_comes_meanwhile_is_released_too() -> None:
    async def scenario() -> None:
        owner = Owner(3, seconds=0.1)

        async def cut() -> None:
            await asyncio.sleep(0.15)
            whole = owner.held.pop()
            owner.held += [whole._replace(high=whole.low), whole._replace(low=whole.high)]

        cutting = asyncio.ensure_future(cut())
        await owner.drain()
        await cutting
        assert len(owner.released_s) == 4

    run_virtual(scenario())
