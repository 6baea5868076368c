"""Adds with deferred sync: answered before the disk, durable after ``force``, never without end."""

from __future__ import annotations

import asyncio
import errno
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from magnetar.bookie.bookie import DEFERRED_SYNC
from magnetar.model.errors import (
    BookieIOError,
    MagnetarError,
    NoEntryError,
    ReadOnlyBookieError,
)
from tests.memory_bookie import until
from tests.unit.bookie.storage_kit import (
    KEY,
    WatchedDisk,
    add,
    crashed,
    entry,
    running,
    settings,
)


class GatedDisk(WatchedDisk):
    """Journal syncs wait while the gate is closed."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = threading.Event()
        self.gate.set()

    def note(self, operation: str, path: Path) -> None:
        if operation == "sync" and path.suffix == ".journal":
            assert self.gate.wait(20)
        super().note(operation, path)


def refuse_syncs(operation: str, name: str) -> None:
    if operation == "sync" and name.endswith(".journal"):
        raise OSError(errno.EIO, "Input/output error")


def test_answered_before_the_sync_and_durable_after_force(tmp_path: Path) -> None:
    async def scenario() -> None:
        disk, config = GatedDisk(), settings(tmp_path / "b")
        async with running(config, disk) as bookie:
            await add(bookie, 1, range(3))
            disk.gate.clear()
            await add(bookie, 1, range(3, 6), flags=DEFERRED_SYNC)
            usual = asyncio.ensure_future(add(bookie, 2, range(3)))
            forcing = asyncio.ensure_future(bookie.force(1))
            await asyncio.sleep(0.1)
            assert not usual.done()  # the ledger beside it is served as ever
            assert not forcing.done()
            assert await bookie.read_entry(1, 5) == entry(1, 5)
            disk.gate.set()
            await asyncio.gather(usual, forcing)
            after = crashed(config, tmp_path / "b")
        async with running(after) as bookie:
            assert await bookie.read_entry(1, 5) == entry(1, 5)

    asyncio.run(scenario())


def test_a_journal_that_is_behind_makes_them_wait(tmp_path: Path) -> None:
    async def scenario() -> None:
        disk = GatedDisk()
        config = settings(tmp_path, journal_pending_bytes_max=1 << 20)
        async with running(config, disk) as bookie:
            await add(bookie, 1, [0])
            disk.gate.clear()
            told: list[int] = []

            def done(error: MagnetarError | None, ids: Sequence[int]) -> None:
                assert error is None
                told.extend(ids)

            for entry_id in range(1, 9):
                data = entry(1, entry_id, size=64 << 10)
                bookie.add_entries(1, KEY, [entry_id], [data], DEFERRED_SYNC, done)
            await until(lambda: len(told) >= 4)
            await asyncio.sleep(0.1)
            assert told == [1, 2, 3, 4]  # a quarter of what may wait
            disk.gate.set()
            await bookie.force(1)
            await asyncio.sleep(0)
            assert told == list(range(1, 9))

    asyncio.run(scenario())


def test_force_tells_of_a_disk_that_failed(tmp_path: Path) -> None:
    async def scenario() -> None:
        disk = GatedDisk()
        async with running(settings(tmp_path), disk) as bookie:
            await add(bookie, 1, [0])
            disk.fail = refuse_syncs
            await add(bookie, 1, [1], flags=DEFERRED_SYNC)
            with pytest.raises(BookieIOError):
                await bookie.force(1)
            with pytest.raises(NoEntryError):
                await bookie.read_entry(1, 2)

    asyncio.run(scenario())


class NoRoomOnce(WatchedDisk):
    """The journal has no room for one commit."""

    def __init__(self) -> None:
        super().__init__()
        self.full = False

    def note(self, operation: str, path: Path) -> None:
        if self.full and path.suffix == ".journal":
            self.full = False
            raise OSError(errno.ENOSPC, "No space left on device")
        super().note(operation, path)


def test_force_tells_of_entries_that_the_journal_had_no_room_for(tmp_path: Path) -> None:
    """They were answered already: force is the one that can tell, though its barrier finds room."""

    async def scenario() -> None:
        disk, config = NoRoomOnce(), settings(tmp_path / "b")
        async with running(config, disk) as bookie:
            await add(bookie, 1, [0])
            disk.full = True
            await add(bookie, 1, [1], flags=DEFERRED_SYNC)
            with pytest.raises(ReadOnlyBookieError, match="entries of ledger 1"):
                await bookie.force(1)
            async with asyncio.timeout(10):
                while bookie.read_only:  # noqa: ASYNC110 - nothing tells
                    await asyncio.sleep(0.01)
            with pytest.raises(ReadOnlyBookieError, match="entries of ledger 1"):
                await bookie.force(1)
            await bookie.force(2)
            after = crashed(config, tmp_path / "b")
        async with running(after) as bookie:
            with pytest.raises(NoEntryError):
                await bookie.read_entry(1, 1)

    asyncio.run(scenario())
