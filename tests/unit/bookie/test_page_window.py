"""Which pages of the entry logs are given back to the kernel."""

from __future__ import annotations

import asyncio
from pathlib import Path

from magnetar.bookie.journal.journal_format import JournalPosition
from magnetar.bookie.storage.page_window import PageWindow
from magnetar.bookie.storage.storage import LedgerStorage
from magnetar.config import BookieConfig
from magnetar.env.files.disk import RealDisk


class ForgettingDisk(RealDisk):
    """Notes what it was told to forget."""

    def __init__(self) -> None:
        self.dropped: list[tuple[str, int, int]] = []

    def drop_cached(self, path: Path, start: int, end: int) -> None:
        super().drop_cached(path, start, end)
        self.dropped.append((path.name, start, end))


def test_the_oldest_runs_leave_the_window_first(tmp_path: Path) -> None:
    disk = ForgettingDisk()
    window = PageWindow(disk, 100)
    a, b = tmp_path / "a", tmp_path / "b"
    window.written(a, 0, 30)
    window.written(a, 30, 60)
    window.synced()
    window.written(a, 60, 100)
    window.synced()
    assert disk.dropped == []
    window.written(b, 0, 50)
    assert disk.dropped == []  # not durable yet: the kernel could not drop it
    window.synced()
    assert disk.dropped == [("a", 0, 60)]
    window.written(b, 50, 200)
    window.synced()
    assert disk.dropped == [("a", 0, 60), ("a", 60, 100), ("b", 0, 50), ("b", 50, 200)]


def test_flushed_entries_are_read_from_the_disk_after_their_pages_are_gone(tmp_path: Path) -> None:
    async def scenario() -> None:
        disk = ForgettingDisk()
        config = BookieConfig(entry_log_cached_bytes_max=0)
        storage = LedgerStorage(0, tmp_path / "ledgers", disk, config, 1 << 20)
        storage.open(1, 1)
        ids = list(range(9))
        entries = [encode_ids(7, entry_id) + bytes(5000) for entry_id in ids]
        storage.cache.active.put(7, ids, entries, sum(map(len, entries)))
        await storage.flush([JournalPosition(1, 512)])
        assert disk.dropped
        logs = {path.name: path.stat().st_size for path in (tmp_path / "ledgers").glob("*.log")}
        assert {name: end for name, _, end in disk.dropped} == logs
        found = await storage.read(7, 0, 9, 1 << 20)
        assert found == entries
        await storage.close()

    asyncio.run(scenario())


def encode_ids(ledger_id: int, entry_id: int) -> bytes:
    return ledger_id.to_bytes(8, "big") + entry_id.to_bytes(8, "big")


def test_a_log_that_was_removed_in_the_meantime_is_fine(tmp_path: Path) -> None:
    RealDisk().drop_cached(tmp_path / "missing", 0, 10)
