"""A ledger that was given up here comes back when a repair adds to it, and only then."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path

import pytest

from magnetar.bookie.bookie import DEFERRED_SYNC, FENCE, RECOVERY, Bookie
from magnetar.bookie.journal.journal_format import DELETE, encode_delete
from magnetar.model.errors import (
    FencedError,
    NoEntryError,
    NoLedgerError,
    ReadOnlyBookieError,
    TooManyRequestsError,
    UnauthorizedError,
)
from tests.unit.bookie.storage_kit import (
    KEY,
    OTHER_KEY,
    add,
    crashed,
    entry,
    ids_of,
    running,
    settings,
)
from tests.unit.bookie.test_full_disk import Disk

QUICK = 20


async def revive(bookie: Bookie, ledger_id: int, entry_ids: list[int]) -> None:
    """As a repair does: again, until the deletion is written."""
    async with asyncio.timeout(30):
        while True:
            try:
                await add(bookie, ledger_id, entry_ids, flags=RECOVERY)
                return
            except TooManyRequestsError:
                await asyncio.sleep(0.01)


async def check(bookie: Bookie, held: list[int]) -> None:
    assert ids_of(await bookie.list_entries(1)) == held
    for entry_id in held:
        assert await bookie.read_entry(1, entry_id) == entry(1, entry_id)
    with pytest.raises(NoEntryError):
        await bookie.read_entry(1, 3)
    with pytest.raises(FencedError):
        await add(bookie, 1, [9])
    reply = await bookie.read_lac(1, FENCE, KEY)
    assert reply.last_entry == entry(1, held[-1])


def test_nothing_is_added_to_it_before_its_deletion_is_written(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(settings(tmp_path)) as bookie:
            await add(bookie, 1, range(8))
            await bookie.delete_ledger(1)
            with pytest.raises(TooManyRequestsError):
                await add(bookie, 1, [4], flags=RECOVERY)
            with pytest.raises(FencedError):
                await add(bookie, 1, [4])
            with pytest.raises(FencedError):
                await add(bookie, 1, [4], flags=DEFERRED_SYNC)
            with pytest.raises(NoLedgerError):
                await bookie.read_entry(1, 4)

    asyncio.run(scenario())


@pytest.mark.parametrize("flushed", [True, False])
@pytest.mark.parametrize("fenced", [True, False])
def test_it_holds_what_the_repair_added_and_nothing_of_before(
    tmp_path: Path, flushed: bool, fenced: bool
) -> None:
    async def scenario() -> None:
        config = settings(tmp_path, flush_interval_ms=QUICK if flushed else 60_000)
        async with running(config) as bookie:
            await add(bookie, 1, range(8))
            if fenced:
                await bookie.read_lac(1, FENCE, KEY)
            await bookie.delete_ledger(1)
            await revive(bookie, 1, [2, 5])
            await check(bookie, [2, 5])
            if flushed:
                await asyncio.sleep(0.3)
            killed = crashed(config, tmp_path)
        async with running(killed) as bookie:
            await check(bookie, [2, 5])
        async with running(killed) as bookie:
            await check(bookie, [2, 5])
        async with running(config) as bookie:
            await check(bookie, [2, 5])

    asyncio.run(scenario())


def test_a_deletion_that_a_flush_has_overtaken_does_not_take_what_came_behind_it(
    tmp_path: Path,
) -> None:
    """The index knows of it before the journal does, and a repair adds at once. A replay meets the
    deletion once more: it has to be over before what was added is put into the index."""

    async def scenario() -> None:
        config = settings(tmp_path)
        async with running(config) as bookie:
            (storage,), (journal,) = bookie._storages, bookie._journals
            await add(bookie, 1, range(8))
            before = journal.committed
            assert bookie._fences.mark_deleted(1) is not None
            await storage.flush([before])
            await journal.write(DELETE, encode_delete(1))
            bookie._flusher.want = lambda: None  # type: ignore[method-assign]
            await revive(bookie, 1, [2, 5])
            killed = crashed(config, tmp_path)
        for other in (3, 4):  # replayed; and from the index
            async with running(killed) as bookie:
                await check(bookie, [2, 5])
                storage = bookie._storages[0]
                await storage.free_deleted()  # as on a full disk
                await bookie._flusher.flush_all()
                await storage.flush_lane.run(partial(storage.end_log, 0.9))
                await add(bookie, other, [0])
                await bookie.delete_ledger(other)
                await bookie._flusher.flush_all()  # removes what is dead
                await check(bookie, [2, 5])

    asyncio.run(scenario())


def test_again_and_again(tmp_path: Path) -> None:
    """Every life is deleted with all that lies in logs, and the last one stays."""

    async def scenario() -> None:
        config = settings(tmp_path, flush_interval_ms=QUICK)
        async with running(config) as bookie:
            for life in range(6):
                await revive(bookie, 1, [life, life + 10])
                assert ids_of(await bookie.list_entries(1)) == [life, life + 10]
                if life % 2:
                    await asyncio.sleep(0.1)
                await bookie.delete_ledger(1)
            await revive(bookie, 1, [2, 5])
            await check(bookie, [2, 5])
            killed = crashed(config, tmp_path)
        for each in (killed, config):
            async with running(each) as bookie:
                await check(bookie, [2, 5])

    asyncio.run(scenario())


def test_an_add_that_is_refused_does_not_bring_it_back(tmp_path: Path) -> None:
    async def scenario() -> None:
        disk = Disk()
        async with running(settings(tmp_path), disk) as bookie:
            await add(bookie, 1, range(3))
            await bookie.delete_ledger(1)
            await bookie._flusher.flush_all()
            with pytest.raises(UnauthorizedError):
                await add(bookie, 1, [0], key=OTHER_KEY, flags=RECOVERY)
            disk.free_bytes = 0
            bookie._upkeep.look()
            with pytest.raises(ReadOnlyBookieError):
                await add(bookie, 1, [0], flags=RECOVERY)
            with pytest.raises(NoLedgerError):
                await bookie.read_entry(1, 0)
            assert await bookie.ledgers() == []
            disk.free_bytes = 1 << 40
            bookie._upkeep.look()
            await add(bookie, 1, [0], flags=RECOVERY)
            assert await bookie.ledgers() == [1]

    asyncio.run(scenario())


def test_nothing_that_was_read_of_it_before_is_given_again(tmp_path: Path) -> None:
    async def scenario() -> None:
        config = settings(tmp_path)
        async with running(config) as bookie:
            await add(bookie, 1, range(8))
        async with running(config) as bookie:
            for entry_id in range(8):
                assert await bookie.read_entry(1, entry_id) == entry(1, entry_id)
            reading = asyncio.ensure_future(bookie.read_batch(1, 0, 8, 1 << 20))
            await bookie.delete_ledger(1)
            await asyncio.gather(reading, return_exceptions=True)
            await bookie._flusher.flush_all()
            await add(bookie, 1, [2, 5], flags=RECOVERY)
            await check(bookie, [2, 5])
            for entry_id in (0, 1, 3, 4):
                assert bookie.read_cached(1, entry_id) is None

    asyncio.run(scenario())


def test_a_deleted_ledger_cannot_be_fenced(tmp_path: Path) -> None:
    """Its reader must not take it for one without entries."""

    async def scenario() -> None:
        config = settings(tmp_path, ledgers_kept_max=0)
        async with running(config) as bookie:
            await add(bookie, 1, range(3))
            await bookie.delete_ledger(1)
            for _ in range(2):  # in memory, and looked up
                with pytest.raises(NoLedgerError):
                    await bookie.read_lac(1, FENCE, KEY)
                with pytest.raises(NoLedgerError):
                    await bookie.read_entry(1, 0, FENCE, KEY)
                await bookie._flusher.flush_all()

    asyncio.run(scenario())


def test_what_becomes_of_it_later_is_not_overwritten(tmp_path: Path) -> None:
    """By its record as it was when it came back."""

    async def scenario() -> None:
        config = settings(tmp_path, ledgers_kept_max=0)
        async with running(config) as bookie:
            await add(bookie, 1, range(3))
            await bookie.delete_ledger(1)
            await bookie._flusher.flush_all()
            await add(bookie, 1, [2], flags=RECOVERY)
            await bookie._flusher.flush_all()
            await add(bookie, 1, [5], flags=RECOVERY)
            await bookie._flusher.flush_all()
            await add(bookie, 2, [0])
            await bookie._flusher.flush_all()
            await check(bookie, [2, 5])

    asyncio.run(scenario())


def test_its_log_is_not_taken_for_a_dead_one(tmp_path: Path) -> None:
    """The log that its entries are written to is closed in the flush that brings it back."""

    async def scenario() -> None:
        config = settings(tmp_path, entry_log_bytes_max=1 << 20, write_cache_bytes=8 << 20)
        large = [entry(1, entry_id, size=100_000) for entry_id in range(30)]
        async with running(config) as bookie:
            await add(bookie, 1, range(30), entries=large)
            await bookie.delete_ledger(1)
            await bookie._flusher.flush_all()
            await add(bookie, 1, range(30), flags=RECOVERY, entries=large)
            await bookie._flusher.flush_all()
            await add(bookie, 2, range(3))
            await bookie.delete_ledger(2)
            await bookie._flusher.flush_all()  # removes what is dead
            assert ids_of(await bookie.list_entries(1)) == list(range(30))
            for entry_id in range(30):
                assert await bookie.read_entry(1, entry_id) == large[entry_id]

    asyncio.run(scenario())


@pytest.mark.parametrize("come", ["nobody", "an add", "a question"])
def test_a_ledger_is_given_up_unless_somebody_comes_for_it(tmp_path: Path, come: str) -> None:
    async def scenario() -> None:
        async with running(settings(tmp_path)) as bookie:
            await add(bookie, 1, range(3))
            with bookie.giving_up(1) as delete:
                if come == "an add":
                    await add(bookie, 1, [3], flags=RECOVERY)
                if come == "a question":
                    await bookie.list_entries(1)
                assert await delete() == (come == "nobody")
            assert await bookie.ledgers() == ([] if come == "nobody" else [1])

    asyncio.run(scenario())
