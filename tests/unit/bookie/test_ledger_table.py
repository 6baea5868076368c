"""Which ledgers stay in memory: none is forgotten that the index does not have as it is."""

from __future__ import annotations

import asyncio
import errno
import shutil
import threading
from collections.abc import AsyncIterator, Awaitable
from pathlib import Path

import pytest

from magnetar.bookie import bookie as bookie_module
from magnetar.bookie.bookie import FENCE, RECOVERY, Bookie
from magnetar.bookie.ledgers import flusher, ledger_table
from magnetar.bookie.storage import storage as storage_module
from magnetar.bookie.storage.location_index import LocationIndex
from magnetar.bookie.storage.storage import LedgerStorage
from magnetar.metrics import Metrics
from magnetar.model.errors import BookieIOError, FencedError
from tests.unit.bookie.storage_kit import (
    KEY,
    WatchedDisk,
    add,
    entry,
    running,
    settings,
)

FAILED, SOUND = range(0, 40, 2), range(1, 41, 2)
"""Ledgers of the two directories."""


class FailingDisk(WatchedDisk):
    """The first ledger directory takes no entry logs."""

    failing = True

    def note(self, operation: str, path: Path) -> None:
        if self.failing and path.suffix == ".log" and path.parent.name == "ledgers0":
            raise OSError(errno.EIO, "Input/output error")
        super().note(operation, path)


async def fill(bookie: Bookie) -> None:
    """Entries, fences in the failing directory, and flushes of both."""
    for ledger_id in [*FAILED, *SOUND]:
        await add(bookie, ledger_id, range(3))
    for ledger_id in FAILED:
        await bookie.read_entry(ledger_id, 0, FENCE, KEY)


def test_ledgers_that_are_read_are_forgotten_while_flushes_fail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flusher, "RETRY_S", 0.02)

    async def scenario() -> None:
        config = settings(tmp_path, flush_interval_ms=20, ledgers_kept_max=4)
        async with running(config) as bookie:
            for ledger_id in range(40):
                await add(bookie, ledger_id, [0])
        disk = FailingDisk()
        async with running(config, disk) as bookie:
            await add(bookie, 0, [1])
            async with asyncio.timeout(60):
                while not bookie.read_only:  # noqa: ASYNC110 - nothing tells
                    await asyncio.sleep(0.01)
            for ledger_id in range(40):
                assert await bookie.read_entry(ledger_id, 0) == entry(ledger_id, 0)
            async with asyncio.timeout(60):
                while len(bookie._table._states) > 4:  # noqa: ASYNC110 - nothing tells
                    await asyncio.sleep(0.01)
            assert await bookie.read_entry(0, 1) == entry(0, 1)
            disk.failing = False

    asyncio.run(scenario())


def test_a_ledger_whose_flush_has_failed_is_not_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another directory's flushes succeed meanwhile, and let go of clean ledgers."""
    monkeypatch.setattr(flusher, "RETRY_S", 60)  # after a few failures the bookie is read-only

    async def scenario() -> None:
        disk = FailingDisk()
        config = settings(tmp_path, ledgers=2, flush_interval_ms=50, ledgers_kept_max=4)
        async with running(config, disk) as bookie:
            await fill(bookie)
            await asyncio.sleep(0.5)
            for ledger_id in FAILED:
                assert await bookie.read_entry(ledger_id, 2) == entry(ledger_id, 2)
                with pytest.raises(FencedError):
                    await add(bookie, ledger_id, [3])
            disk.failing = False
        async with running(config) as bookie:
            for ledger_id in [*FAILED, *SOUND]:
                assert await bookie.read_entry(ledger_id, 2) == entry(ledger_id, 2)

    asyncio.run(scenario())


def test_clean_ledgers_are_forgotten_and_come_back(tmp_path: Path) -> None:
    async def scenario() -> None:
        disk = FailingDisk()
        disk.failing = False
        config = settings(tmp_path, ledgers=2, flush_interval_ms=50, ledgers_kept_max=4)
        async with running(config, disk) as bookie:
            await fill(bookie)
            async with asyncio.timeout(60):
                while len(bookie._table._states) > 4:  # noqa: ASYNC110 - nothing tells
                    await asyncio.sleep(0.01)
            for ledger_id in FAILED:
                assert await bookie.read_entry(ledger_id, 2) == entry(ledger_id, 2)
                with pytest.raises(FencedError):
                    await add(bookie, ledger_id, [3])

    asyncio.run(scenario())


def test_a_list_of_ledgers_is_true_when_a_flush_comes_between(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the index did not know yet when it was read is no longer in memory after it."""

    async def scenario() -> None:
        config = settings(tmp_path, flush_interval_ms=60_000, ledgers_kept_max=0)
        async with running(config) as bookie:
            await add(bookie, 2, range(3))
            await bookie._flusher.flush_all()
            await add(bookie, 4, range(3))
            await bookie.delete_ledger(2)
            storage = bookie._storages[0]
            listed = storage.ledgers

            async def ledgers(first: int, behind: int) -> AsyncIterator[list[int]]:
                rows = [some async for some in listed(first, behind)]
                await bookie._flusher.flush_all()
                for some in rows:
                    yield some

            monkeypatch.setattr(storage, "ledgers", ledgers)
            assert await bookie.ledgers() == [4]

    asyncio.run(scenario())


def held_up(storage: LedgerStorage) -> threading.Event:
    """Its flushes wait for the event."""
    go_on = threading.Event()
    storage.flush_lane.submit(lambda: go_on.wait(60) and None)
    return go_on


def test_a_ledger_is_listed_and_known_while_its_first_flush_is_under_way(tmp_path: Path) -> None:
    """Its record is neither among those that changed since nor in the index."""

    async def scenario() -> None:
        config = settings(tmp_path, ledgers_kept_max=0)
        async with running(config) as bookie:
            await add(bookie, 2, range(3))
            go_on = held_up(bookie._storages[0])
            flushing = asyncio.create_task(bookie._flusher.flush_all())
            await asyncio.sleep(0.01)
            await bookie._table.shrink()
            assert await bookie.ledgers() == [2]
            assert await bookie.read_entry(2, 2) == entry(2, 2)
            go_on.set()
            await flushing
            assert await bookie.ledgers() == [2]

    asyncio.run(scenario())


def test_a_ledger_is_listed_and_known_while_records_are_encoded_ahead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storage_module, "ENCODED_AT_ONCE", 1)
    monkeypatch.setattr(storage_module, "ENCODE_PAUSE_S", 60.0)

    async def scenario() -> None:
        config = settings(tmp_path, ledgers_kept_max=0)
        async with running(config) as bookie:
            for ledger_id in (2, 4):
                await add(bookie, ledger_id, range(3))
            await bookie._fences.fence(2, KEY)
            encoding = asyncio.create_task(bookie._storages[0].encode_ahead())
            await asyncio.sleep(0.01)
            await bookie._table.shrink()
            assert await bookie.ledgers() == [2, 4]
            assert await bookie.read_entry(2, 2) == entry(2, 2)
            encoding.cancel()
            monkeypatch.setattr(storage_module, "ENCODE_PAUSE_S", 0.0)
            await add(bookie, 2, [3], flags=RECOVERY)  # it changes once more
            await bookie._flusher.flush_all()
            assert await bookie.ledgers() == [2, 4]
            assert await bookie.read_entry(2, 3) == entry(2, 3)
            with pytest.raises(FencedError):
                await add(bookie, 2, [4])

    asyncio.run(scenario())


def test_a_list_of_ledgers_leaves_out_those_whose_deletion_is_being_flushed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The flush ends while the index is read, and memory forgets that they were deleted."""

    async def scenario() -> None:
        config = settings(tmp_path, ledgers_kept_max=0)
        async with running(config) as bookie:
            for ledger_id in (2, 4):
                await add(bookie, ledger_id, range(3))
            await bookie._flusher.flush_all()
            await bookie.delete_ledger(2)
            storage = bookie._storages[0]
            listed, go_on = storage.ledgers, held_up(storage)
            flushing = asyncio.create_task(bookie._flusher.flush_all())
            await asyncio.sleep(0.01)

            async def ledgers(first: int, behind: int) -> AsyncIterator[list[int]]:
                rows = [some async for some in listed(first, behind)]
                go_on.set()
                await flushing
                for some in rows:
                    yield some

            monkeypatch.setattr(storage, "ledgers", ledgers)
            assert await bookie.ledgers() == [4]

    asyncio.run(scenario())


async def turns_of(work: Awaitable[object]) -> int:
    """How many turns of the loop others have while ``work`` goes on."""
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count())
    await work
    counting.cancel()
    return turns


def test_many_ledgers_are_listed_deleted_and_forgotten_in_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No turn of the loop goes over all; a batch of deletions is one commit."""
    monkeypatch.setattr(bookie_module, "LOOKED_AT_ONCE", 20)
    monkeypatch.setattr(ledger_table, "LOOKED_AT_ONCE", 20)

    async def scenario() -> None:
        config = settings(tmp_path, ledgers=2, flush_interval_ms=60_000, ledgers_kept_max=100)
        async with running(config) as bookie:
            for ledger_id in range(400):
                await add(bookie, ledger_id, [0])
            listed: list[list[int]] = []

            async def look() -> None:
                listed.append(await bookie.ledgers(10, 390))

            assert await turns_of(look()) >= 380 // 20
            assert listed == [[*range(10, 390)]]
            before = bookie._journals[0]._sequence
            await bookie.delete_ledgers([*range(50)])
            assert bookie._journals[0]._sequence == before + 1
            assert await bookie.ledgers() == [*range(50, 400)]
            assert len(bookie._table._states) == 400
            assert await turns_of(bookie._flusher.flush_all()) >= 350 // 20
            assert len(bookie._table._states) <= 100
            assert await bookie.ledgers() == [*range(50, 400)]
        async with running(config) as bookie:
            assert await bookie.ledgers() == [*range(50, 400)]

    asyncio.run(scenario())


def test_deletions_of_a_batch_outlive_a_kill(tmp_path: Path) -> None:
    async def scenario() -> None:
        config = settings(tmp_path, ledgers=2, flush_interval_ms=60_000)
        killed = Bookie(config, Metrics())
        await killed.start()
        for ledger_id in range(10):
            await add(killed, ledger_id, [0])
        await killed.delete_ledgers([*range(0, 10, 2), 77])
        copy = tmp_path / "copy"
        for name in ("ledgers0", "ledgers1", "journal0"):
            shutil.copytree(tmp_path / name, copy / name)
        await killed.close()
        async with running(settings(copy, ledgers=2, flush_interval_ms=60_000)) as bookie:
            assert await bookie.ledgers() == [*range(1, 10, 2)]

    asyncio.run(scenario())


def test_a_reader_of_a_forgotten_ledger_writes_nothing_of_what_it_knew(tmp_path: Path) -> None:
    """It asks the writer how far the ledger is confirmed, once it has read. What it knew of the
    ledger took the place of what has become of it meanwhile: a fence was forgotten, and entries
    were denied."""

    async def scenario() -> None:
        config = settings(tmp_path, ledgers_kept_max=0)
        async with running(config) as bookie:
            bookie.add_lac_source(lambda ledger_id: (7, b"confirmed"))
            await add(bookie, 1, range(3))
            await bookie._flusher.flush_all()
            assert not bookie._table._states
            storage = bookie._storages[0]
            read, held = storage.read, asyncio.get_running_loop().create_future()
            found = await read(1, 2, 1, 1 << 20)
            storage.read = lambda *arguments: held  # type: ignore[method-assign]
            reading = asyncio.ensure_future(bookie.read_lac(1))
            async with asyncio.timeout(60):
                while not bookie._reads._under_way:  # noqa: ASYNC110 - nothing tells
                    await asyncio.sleep(0.001)
            storage.read = read  # type: ignore[method-assign]
            await bookie._flusher.flush_all()
            assert not bookie._table._states
            await bookie._fences.fence(1, KEY)
            await add(bookie, 1, [3], flags=RECOVERY)
            held.set_result(found)
            assert (await reading).last_entry == entry(1, 2)
            await bookie._flusher.flush_all()
            assert not bookie._table._states
            assert await bookie.read_entry(1, 3) == entry(1, 3)
            with pytest.raises(FencedError):
                await add(bookie, 1, [4])

    asyncio.run(scenario())


def test_a_ledger_whose_record_is_damaged_is_not_taken_for_a_new_one(tmp_path: Path) -> None:
    """Its key would be bound anew, and its fence forgotten."""

    async def scenario() -> None:
        config = settings(tmp_path)
        async with running(config) as bookie:
            await add(bookie, 1, range(3))
            await add(bookie, 2, range(3))
        index = LocationIndex(config.ledger_directories[0] / "index")
        index.put_ledgers([(1, bytes(20))])
        index.close()
        async with running(config) as bookie:
            for _ in range(2):
                with pytest.raises(BookieIOError, match="record of ledger 1 is damaged"):
                    await bookie.read_entry(1, 0)
                with pytest.raises(BookieIOError, match="record of ledger 1 is damaged"):
                    await add(bookie, 1, [3])
                with pytest.raises(BookieIOError, match="record of ledger 1 is damaged"):
                    await bookie._fences.fence(1, KEY)
            assert await bookie.read_entry(2, 0) == entry(2, 0)

    asyncio.run(scenario())
