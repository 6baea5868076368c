"""A location index that fails while its entry logs do not: flushes are repeated, and what they have
written already is neither written again nor given up."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from magnetar.bookie.bookie import Bookie
from magnetar.bookie.journal.journal import Journal
from magnetar.bookie.ledgers import flusher
from magnetar.bookie.space import upkeep
from magnetar.bookie.storage.location_index import LocationIndex, UsageChange
from magnetar.bookie.storage.location_runs import LocationRun
from magnetar.config import BookieConfig
from magnetar.metrics import Metrics
from magnetar.model.errors import BookieIOError
from tests.unit.bookie.storage_kit import add, crashed, entry, running
from tests.unit.bookie.test_compaction import eventually, log_bytes, logs, quick
from tests.unit.bookie.test_full_disk import Disk

SIZE = 1000
ENTRIES = 100


class FailingIndex(LocationIndex):
    """While ``failing`` it takes no locations; ``refused`` counts."""

    failing = False
    refused = 0
    why = "the index fails"

    def put_runs(self, runs: Sequence[LocationRun]) -> None:
        if self.failing:
            self.refused += 1
            raise BookieIOError(self.why)
        super().put_runs(runs)


@asynccontextmanager
async def failing(
    config: BookieConfig, disk: Disk | None = None
) -> AsyncIterator[tuple[Bookie, FailingIndex]]:
    bookie = Bookie(config, Metrics(), disk, open_index=FailingIndex)
    await bookie.start()
    index = bookie._storages[0].location_index
    assert isinstance(index, FailingIndex)
    try:
        yield bookie, index
    finally:
        await bookie.close()


def some(ledger_id: int, ids: Sequence[int]) -> list[bytes]:
    return [entry(ledger_id, i, size=SIZE) for i in ids]


async def check(bookie: Bookie, ledger_id: int) -> None:
    assert await bookie.read_batch(ledger_id, 0, ENTRIES, 1 << 30) == some(
        ledger_id, range(ENTRIES)
    )


def test_an_index_that_fails_does_not_fill_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flusher, "RETRY_S", 0.01)

    async def scenario() -> None:
        config = quick(tmp_path, percent=0)
        async with failing(config) as (bookie, index):
            index.failing = True
            await add(bookie, 1, range(ENTRIES), entries=some(1, range(ENTRIES)))
            await eventually(lambda: index.refused > 10)
            assert log_bytes(config) < 2 * ENTRIES * SIZE
            await check(bookie, 1)
            index.failing = False
            await eventually(lambda: not bookie.read_only)
            await eventually(lambda: index.location(1, 0) is not None)
            await check(bookie, 1)
            after = crashed(config, tmp_path)
        for what in (config, after):
            async with running(what) as again:
                await check(again, 1)

    asyncio.run(scenario())


def test_an_index_without_descriptors_for_long_makes_the_bookie_read_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RocksDB takes nothing any more once it could not open a file: that is told, not waited for
    with adds that nobody carries out."""
    monkeypatch.setattr(flusher, "RETRY_S", 0.01)
    monkeypatch.setattr(upkeep, "DESCRIPTOR_FAILURES_MAX", 8)

    async def scenario() -> None:
        config = quick(tmp_path, percent=0)
        async with failing(config) as (bookie, index):
            index.why = "IO error: While open a file for appending: Too many open files"
            index.failing = True
            await add(bookie, 1, range(ENTRIES), entries=some(1, range(ENTRIES)))
            await eventually(lambda: bookie.read_only)
            assert index.refused >= 8
            assert bookie.refusal is not None
            assert "ulimit -n" in bookie.refusal
            index.failing = False
            await eventually(lambda: not bookie.read_only)
            await check(bookie, 1)

    asyncio.run(scenario())


def test_a_log_given_up_meanwhile_is_written_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a disk that is nearly full the open log is closed and compacted; the index has nothing of
    what the flush that failed has left in it."""
    monkeypatch.setattr(flusher, "RETRY_S", 0.2)

    async def scenario() -> None:
        config, disk = quick(tmp_path), Disk()
        async with failing(config, disk) as (bookie, index):
            for ledger_id in range(2, 12):
                await add(
                    bookie, ledger_id, range(ENTRIES), entries=some(ledger_id, range(ENTRIES))
                )
            await eventually(lambda: index.location(11, ENTRIES - 1) is not None)
            for ledger_id in range(2, 12):
                await bookie.delete_ledger(ledger_id)
            await eventually(lambda: not index.entry_ids(11))
            index.failing = True
            await add(bookie, 1, range(ENTRIES), entries=some(1, range(ENTRIES)))
            await eventually(lambda: index.refused > 1)
            before = logs(config)
            disk.free_bytes = 1 << 20
            await eventually(lambda: not set(before) & set(logs(config)))
            index.failing = False
            await eventually(lambda: index.location(1, 0) is not None)
            disk.free_bytes = 1 << 40
            await check(bookie, 1)
            after = crashed(config, tmp_path)
        for what in (config, after):
            async with running(what) as again:
                await check(again, 1)

    asyncio.run(scenario())


def test_a_log_with_a_flush_that_never_worked_is_counted_by_the_next_start(tmp_path: Path) -> None:
    """What that flush has left in it is of no use, and is flushed again, elsewhere."""

    async def scenario() -> None:
        config = quick(tmp_path, flush_interval_ms=60_000)
        async with failing(config) as (bookie, index):
            await add(bookie, 2, [0])
            await bookie._flusher.flush_all()
            index.failing = True
            await add(bookie, 1, range(10), entries=some(1, range(10)))
            bookie._flusher.want()
            await eventually(lambda: index.refused > 0)
        stored = LocationIndex(config.ledger_directories[0] / "index")
        assert stored.logs()[0] == []
        stored.close()
        async with running(config) as bookie:
            assert await bookie.read_batch(1, 0, 10, 1 << 30) == some(1, range(10))

    asyncio.run(scenario())


class EndingIndex(LocationIndex):
    """After ``left`` writes to it the process is as good as dead: no more of them arrive."""

    left: int | None = None

    def put_ledgers(self, rows: Sequence[tuple[int, bytes]]) -> None:
        if rows:
            self._one_less()
        super().put_ledgers(rows)

    def change_usage(self, change: UsageChange) -> None:
        if change.no_locations:
            self._one_less()
        super().change_usage(change)

    def _one_less(self) -> None:
        if self.left is not None:
            self.left -= 1
            if self.left < 0:
                raise BookieIOError("the index fails")


@pytest.mark.parametrize("writes", [0, 1, 2])
def test_a_deletion_that_no_journal_knows_is_in_the_index_whole_or_is_made_again(
    tmp_path: Path, writes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a ledger whose record says that it is deleted keeps its rows and its space for ever."""

    async def scenario() -> None:
        config = quick(tmp_path)
        async with running(config) as bookie:
            await add(bookie, 1, range(3))
            await add(bookie, 2, range(3))
        bookie = Bookie(config, Metrics(), open_index=EndingIndex)
        await bookie.start()
        storage = bookie._storages[0]
        assert isinstance(storage.location_index, EndingIndex)

        async def broken(*_: object) -> None:
            raise BookieIOError("the journal is broken")

        with monkeypatch.context() as patched:
            patched.setattr(Journal, "write", broken)
            storage.location_index.left = writes
            with pytest.raises(BookieIOError, match="journal is broken"):
                await bookie.delete_ledger(1)
        await bookie.close()
        async with running(config) as bookie:
            if 1 in await bookie.ledgers():
                await bookie.delete_ledger(1)
            assert await bookie.ledgers() == [2]
        index = LocationIndex(tmp_path / "ledgers0" / "index")
        assert list(index.located()) == [2]
        index.close()

    asyncio.run(scenario())
