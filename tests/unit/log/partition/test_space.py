"""What partitions do while their disk fills up: what is kept free, and what goes on meanwhile."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

from magnetar.config import LedgerConfig
from magnetar.env.files.disk import DiskSpace, RealDisk
from magnetar.env.files.disk_space import Level, SpaceRules
from magnetar.log.managed.store import policy_of
from magnetar.log.partition.hosting import PartitionHost
from magnetar.log.partition.room import DiskRoom
from magnetar.log.policy import Engine
from magnetar.log.seam import Run, WritableLog
from magnetar.model.errors import MagnetarError, NoSpaceError
from magnetar.model.ids import Position
from tests.unit.log.doubles import NAME, Process, World
from tests.unit.log.partition.world import PartitionWorld

MIB = 1 << 20
RULES = SpaceRules(2.0, 2.0, 2.0, 64 * MIB)


class TellingDisk(RealDisk):
    """``free``: what it says that it has. ``looks``: how often it was asked."""

    def __init__(self, free: int = 1 << 40, total: int = 1 << 40) -> None:
        super().__init__()
        self.free, self.total = free, total
        self.fails = False
        self.looks = 0

    def space(self, path: Path) -> DiskSpace:
        self.looks += 1
        if self.fails:
            raise OSError(errno.EIO, "Input/output error")
        return DiskSpace(self.total, self.free)


async def appended(log: WritableLog, payload: bytes) -> MagnetarError | None:
    told: asyncio.Future[MagnetarError | None] = asyncio.get_running_loop().create_future()

    def done(error: MagnetarError | None, _runs: tuple[Run, ...]) -> None:
        told.set_result(error)

    log.append([payload], done)
    async with asyncio.timeout(10):
        return await told


def run(
    scenario: Callable[[TellingDisk, WritableLog, PartitionHost], Awaitable[None]],
) -> None:
    async def body() -> None:
        disk = TellingDisk()
        parts, process, config = PartitionWorld(), Process(World()), LedgerConfig()
        policy = replace(policy_of(config), engine=Engine.PARTITION)
        async with parts.running(disk=disk, space=RULES):
            assert parts.host is not None
            store = parts.store(process, process.store(config), policy, 100)
            log = await store.open(NAME)
            await scenario(disk, log, parts.host)
            await log.close()

    asyncio.run(body())


def test_appends_are_refused_at_the_reserve_and_taken_when_there_is_room() -> None:
    async def scenario(disk: TellingDisk, log: WritableLog, host: PartitionHost) -> None:
        assert await appended(log, b"one") is None
        disk.free = 63 * MIB
        host.room.look()
        error = await appended(log, b"two")
        assert isinstance(error, NoSpaceError)
        for said in (str(host.directory.path), f"{63 * MIB} of", "delete topics", "by itself"):
            assert said in str(error)
        first = await log.read(Position(0, 0), 10, 1000)
        assert len(first) == 1  # what is there is read
        disk.free = 79 * MIB  # not yet: it would flap
        host.room.look()
        assert isinstance(await appended(log, b"two"), NoSpaceError)
        disk.free = 81 * MIB
        host.room.look()
        assert await appended(log, b"two") is None

    run(scenario)


def test_it_is_looked_again_before_the_reserve_can_be_used_up() -> None:
    async def scenario(disk: TellingDisk, log: WritableLog, host: PartitionHost) -> None:
        disk.free = 63 * MIB
        refused = 0
        for _ in range(12):
            refused += await appended(log, bytes(MIB)) is not None
        assert refused >= 3

    run(scenario)


def test_a_disk_that_cannot_tell_its_space_is_not_called_full() -> None:
    """Whoever asks is told of want of space and of nothing else; the append tells the rest."""

    async def body() -> None:
        disk = TellingDisk()
        parts, process, config = PartitionWorld(), Process(World()), LedgerConfig()
        policy = replace(policy_of(config), engine=Engine.PARTITION)
        async with parts.running(disk=disk, space=RULES):
            store = parts.store(process, process.store(config), policy, 100)
            log = await store.open(NAME)
            await store.check_space(NAME)
            disk.fails = True
            await store.check_space(NAME)
            disk.fails, disk.free = False, MIB
            try:
                await store.check_space(NAME)
            except NoSpaceError:
                pass
            else:
                raise AssertionError("there is no room, and nothing is said")
            await log.close()

    asyncio.run(body())


def test_a_small_disk_keeps_an_eighth(tmp_path: Path) -> None:
    disk = TellingDisk(free=17 * MIB, total=128 * MIB)
    room = DiskRoom(disk, tmp_path, RULES)
    room.look()
    assert room.level is Level.WRITABLE
    disk.free = 15 * MIB
    room.look()
    assert room.level is Level.READ_ONLY
    assert room.follows
    disk.free = 3 * MIB
    room.look()
    assert room.level is Level.EXHAUSTED
    assert not room.follows
    assert "is full" in room.why
