"""A log is taken from an owner that lives: what that one does to cursors meanwhile, before
whichever request of the new owner, is found, or is refused to it; nothing of which it heard that it
was stored is lost."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from magnetar.log.managed.managed_log import ManagedLog
from magnetar.log.managed.records import cursor_path, log_path
from magnetar.log.managed.store import ManagedLogStore
from magnetar.model.errors import LogFencedError, MagnetarError, NoSuchLogError
from magnetar.model.ids import EARLIEST, Position
from magnetar_sim.world.virtual_time import run_virtual
from tests.unit.log.doubles import NAME, Process, World
from tests.unit.log.test_cursor import CONFIG, TINY, acked, filled
from tests.unit.log.test_handing_over import owned
from tests.unit.log.test_managed_log import publish, read_all, values

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


async def deleted_and_not_known_to_be(world: World) -> ManagedLogStore:
    """A former owner makes a cursor of a log that another has deleted: below a node that stands
    where the log's record was."""
    await filled(world)
    former = await Process(world).store(CONFIG).open(NAME)
    store = Process(world).store(CONFIG)
    await store.delete(NAME)
    with pytest.raises(LogFencedError):
        await former.cursors.open("late", EARLIEST)
    assert {log_path(NAME), cursor_path(NAME, "late")} <= world.nodes.keys()
    return store


def test_a_log_that_was_deleted_may_be_made_anew_whatever_a_former_owner_has_left() -> None:
    async def scenario() -> None:
        world = World()
        store = await deleted_and_not_known_to_be(world)
        assert not await store.exists(NAME)
        assert await store.names("") == []
        with pytest.raises(NoSuchLogError):
            await store.follow(NAME)
        with pytest.raises(NoSuchLogError):
            await store.open(NAME, create=False)
        log = await store.open(NAME)
        assert log.cursors.durable() == {}
        await publish(log, 0, 3)
        again = await Process(world).store(CONFIG).open(NAME)
        assert again.cursors.durable() == {}, "nobody has asked this log for it"
        assert values(await read_all(again)) == [0, 1, 2]

    run_virtual(scenario())


def test_what_a_former_owner_has_left_of_a_deleted_log_is_deleted_with_it() -> None:
    async def scenario() -> None:
        world = World()
        store = await deleted_and_not_known_to_be(world)
        await store.delete(NAME)
        assert not {log_path(NAME), cursor_path(NAME, "late")} & world.nodes.keys()
        assert world.alive() == set()
        await store.delete(NAME)

    run_virtual(scenario())
