"""A log is taken from an owner that lives: what that one does to cursors meanwhile, before
whichever request of the new owner, is found, or is refused to it; nothing of which it heard that it
was stored is lost."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from magnetar.log.managed.managed_log import ManagedLog
from magnetar.model.errors import LogFencedError, MagnetarError
from magnetar.model.ids import EARLIEST, Position
from magnetar_sim.world.virtual_time import run_virtual
from tests.unit.log.doubles import NAME, Process, World
from tests.unit.log.test_cursor import CONFIG, TINY, acked, filled
from tests.unit.log.test_handing_over import owned

Deed = Callable[[ManagedLog, list[Position]], Awaitable[object]]

REQUESTS_MAX = 40


async def acknowledges(log: ManagedLog, positions: list[Position]) -> None:
    cursor = log.cursors.durable()["s"]
    cursor.acknowledge([positions[20]])
    await cursor.wait_stored()


async def makes_a_cursor(log: ManagedLog, _positions: list[Position]) -> object:
    return await log.cursors.open("another", EARLIEST)


async def deletes_it(log: ManagedLog, _positions: list[Position]) -> None:
    await log.cursors.delete("s")


async def deletes_and_makes_it(log: ManagedLog, positions: list[Position]) -> None:
    await log.cursors.delete("s")
    cursor = await log.cursors.open("s", EARLIEST)
    cursor.acknowledge([positions[30]])
    await cursor.wait_stored()
    await log.cursors.open("beside", EARLIEST)


class Meddled:
    """The new owner's requests to the metadata store; ``deed`` is done before one of them."""

    def __init__(self, process: Process, at: int, deed: Callable[[], Awaitable[None]]) -> None:
        self.asked = 0
        for name in ("get", "put", "create", "children", "children_stamp", "delete"):
            asked = getattr(process.metadata, name)

            async def noted(*args: Any, asked: Any = asked) -> Any:
                self.asked += 1
                if self.asked == at:
                    await deed()
                return await asked(*args)

            setattr(process.metadata, name, noted)


def test_a_cursor_that_is_made_anew_meanwhile_with_a_node_of_the_same_version() -> None:
    """Nothing is stored beside either node, so that no ledger says that it is another one."""

    async def one(at: int) -> bool:
        world = World()
        positions = await filled(world)
        former = await Process(world).store(CONFIG, TINY).open(NAME)
        await former.cursors.open("s", EARLIEST)
        told: list[bool] = []

        async def done() -> None:
            try:
                await former.cursors.delete("s")
                await former.cursors.open("s", positions[30])
                told.append(True)
            except MagnetarError:
                told.append(False)

        process = Process(world)
        Meddled(process, at, done)
        log = await process.store(CONFIG, TINY).open(NAME)
        if told == [True]:
            got = log.cursors.durable()["s"].mark_delete
            assert positions[0] < got < positions[30], f"request {at}"
        return bool(told)

    at = 1
    while run_virtual(one(at)):
        at += 1
        assert at < REQUESTS_MAX
    assert at > 4, "it was meddled with"


@pytest.mark.parametrize("holes", [False, True])
@pytest.mark.parametrize("deed", [acknowledges, makes_a_cursor, deletes_it, deletes_and_makes_it])
def test_whatever_the_former_owner_does_meanwhile(deed: Deed, holes: bool) -> None:
    async def one(at: int) -> bool:
        world = World()
        former, positions = await owned(world, holes)
        before = acked(former.cursors.durable()["s"], positions)
        told: list[bool] = []

        async def done() -> None:
            try:
                await deed(former, positions)
                told.append(True)
            except MagnetarError:
                told.append(False)

        process = Process(world)
        meddled = Meddled(process, at, done)
        log = await process.store(CONFIG, TINY).open(NAME)
        if not told:
            return False
        cursors = log.cursors.durable()
        if deed is acknowledges:
            now, more = acked(cursors["s"], positions), before | {positions[20]}
            assert now == more or (now == before and told == [False]), f"request {at}: {told}"
        elif deed is makes_a_cursor:
            assert "another" in cursors or told == [False], f"request {at}"
        elif deed is deletes_it:
            assert ("s" not in cursors) or told == [False], f"request {at}"
        elif told == [True]:
            assert acked(cursors["s"], positions) == {positions[30]}, f"request {at}"
        with pytest.raises(LogFencedError):
            await former.cursors.open("late", EARLIEST)
        assert meddled.asked >= at
        return True

    at = 1
    while run_virtual(one(at)):
        at += 1
        assert at < REQUESTS_MAX
    assert at > 4, "it was meddled with"
