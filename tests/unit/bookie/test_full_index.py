"""A disk without a byte on which every entry log holds something that lives: deletions bring room
wherever the flush that would tell the index of them ends."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from magnetar.bookie.bookie import Bookie
from magnetar.bookie.ledgers import flusher
from magnetar.bookie.storage import compaction_plan
from magnetar.bookie.storage.location_index import LocationIndex, Share, UsageChange
from magnetar.bookie.storage.log_usage import LogUsage, LogUse
from magnetar.bookie.storage.usage_store import UsageStore
from magnetar.metrics import Metrics
from magnetar.model.errors import BookieIOError
from tests.unit.bookie import test_holes
from tests.unit.bookie.storage_kit import crashed, running
from tests.unit.bookie.test_full_disk import no_space

STEPS = ("usage", "records", "sync", "mark")
"""What a flush with deletions writes, in this order."""


class FullIndex(LocationIndex):
    """Has no room for one of ``STEPS``."""

    full = ""

    def _need_room(self, step: str) -> None:
        if self.full == step:
            raise BookieIOError("location index: IO error: No space left on device")

    def change_usage(self, change: UsageChange) -> None:
        self._need_room("usage")
        super().change_usage(change)

    def put_ledgers(self, rows: Sequence[tuple[int, bytes]]) -> None:
        if rows:
            self._need_room("records")
        super().put_ledgers(rows)

    def sync(self) -> None:
        self._need_room("sync")
        super().sync()


class FullDisk(test_holes.NoRoom):
    """Has no room for a mark either, with ``no_mark``."""

    no_mark = False

    def _fail(self, operation: str, name: str) -> None:
        if self.no_mark and name.startswith("lastmark"):
            raise no_space()
        super()._fail(operation, name)


def all_gave(stored: Mapping[Path, int]) -> bool:
    """Whether each log has less than half of the blocks that it had."""
    return all(path.stat().st_blocks < blocks * 0.5 for path, blocks in stored.items())


@pytest.mark.parametrize("step", STEPS)
def test_deletions_bring_room_wherever_their_flush_meets_the_full_disk(
    tmp_path: Path, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compaction_plan, "PRESSING_S", 0.05)
    monkeypatch.setattr(flusher, "RETRY_S", 0.05)

    async def scenario() -> None:
        config, disk = test_holes.quick(tmp_path), FullDisk()
        await test_holes.fill(config, 3)
        stored = {path: path.stat().st_blocks for path in test_holes.mixed(config)}
        bookie = Bookie(config, Metrics(), disk, open_index=FullIndex)
        await bookie.start()
        try:
            index = bookie._storages[0].location_index
            assert isinstance(index, FullIndex)
            disk.armed, index.full, disk.no_mark = True, step, step == "mark"
            await bookie.delete_ledger(2)
            await bookie.delete_ledger(3)
            async with asyncio.timeout(60):
                while not all_gave(stored):  # noqa: ASYNC110 - nothing tells
                    await asyncio.sleep(0.01)
            await test_holes.check_bookie(bookie, 3)
            killed = crashed(config, tmp_path)
            disk.armed, index.full, disk.no_mark = False, "", False
            async with asyncio.timeout(60):
                while index.shares(3) or bookie.read_only:  # noqa: ASYNC110 - nothing tells
                    await asyncio.sleep(0.01)
            await test_holes.check_bookie(bookie, 3)
        finally:
            await bookie.close()
        for what in (config, killed):
            async with running(what) as again:
                await test_holes.check_bookie(again, 3)

    asyncio.run(scenario())


def test_what_the_index_refused_to_forget_counts_as_dead_once(tmp_path: Path) -> None:
    index = FullIndex(tmp_path / "index")
    usage = LogUsage()
    store = UsageStore(index, usage)
    store.open([])
    usage.add(1, 600, 600)
    store.add(1, 600, {1: 100, 2: 200, 3: 300}, False, frozenset())
    store.store(2, ())
    store.take([1])  # behind this the flush meets the full disk
    index.full = "usage"
    for _ in range(3):
        with pytest.raises(BookieIOError):
            store.take([1, 2])  # it is repeated
        store.forget_early([1, 2])
        assert usage.uses(9) == [LogUse(1, 600, 300)]
        assert store.dead_early(1)
        assert store.dead_early(2)
    index.full = ""
    store.take([1, 2])
    assert store.dead_early(2), "until it is durable"
    store.apply()
    assert usage.uses(9) == [LogUse(1, 600, 300)]
    assert not store.dead_early(1)
    assert not store.dead_early(2)
    assert not store.undecided(2)
    assert index.shares(2) == []
    assert index.shares(3) == [Share(1, 300)]
    assert index.logs()[0][0].live_bytes == 300
    index.close()
