"""Flushes: their order on the disk, and what a failed one leaves."""

from __future__ import annotations

import asyncio
import errno
import threading
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import pytest

from magnetar.bookie.bookie import FENCE, Bookie
from magnetar.bookie.journal.journal_format import JournalPosition
from magnetar.bookie.ledgers import flusher
from magnetar.bookie.storage import storage as storage_module
from magnetar.bookie.storage.location_index import LocationIndex
from magnetar.bookie.storage.marks import decode_marks
from magnetar.bookie.storage.storage import READ_LANES, read_lane
from magnetar.metrics import Metrics
from magnetar.model.errors import BookieIOError, NoEntryError, NoLedgerError
from tests.unit.bookie.storage_kit import (
    KEY,
    WatchedDisk,
    add,
    crashed,
    entry,
    ids_of,
    running,
    settings,
)


def test_the_mark_is_written_after_the_entry_log_is_synced(tmp_path: Path) -> None:
    async def scenario() -> None:
        disk = WatchedDisk()
        async with running(settings(tmp_path), disk) as bookie:
            await add(bookie, 1, range(10))
            disk.events.clear()
        relevant = [event for event in disk.events if not event[1].endswith(".journal")]
        written = relevant.index(("write", "00000001.log"))
        synced = relevant.index(("sync", "00000001.log"))
        mark = relevant.index(("write", "lastmark.new"))
        assert written < synced < mark
        last_write = max(i for i, e in enumerate(relevant[:mark]) if e[0] == "write")
        assert last_write < synced

    asyncio.run(scenario())


def test_the_names_of_log_and_mark_are_durable(tmp_path: Path) -> None:
    """A log's before the index refers to it; the mark's before the journal is let go."""

    class NamingDisk(WatchedDisk):
        def sync_dir(self, path: Path) -> None:
            self.events.append(("sync", path.name))
            super().sync_dir(path)

    async def scenario() -> None:
        disk = NamingDisk()
        async with running(settings(tmp_path), disk) as bookie:
            await add(bookie, 1, range(10))
            disk.events.clear()
            await bookie._storages[0].flush(positions_of(bookie))
            events = list(disk.events)
        written = events.index(("write", "00000001.log"))
        mark = events.index(("write", "lastmark.new"))
        named = ("sync", "ledgers0")
        assert named in events[written:mark]
        assert named in events[mark:]

    asyncio.run(scenario())


def test_every_log_of_a_flush_is_durable_before_the_mark(tmp_path: Path) -> None:
    """Also those that it has filled, and does not write to any more."""

    async def scenario() -> None:
        disk, ids = WatchedDisk(), range(40)
        config = settings(tmp_path, entry_log_bytes_max=1 << 20, write_cache_bytes=32 << 20)
        at_mark: dict[str, tuple[int, int | None]] = {}

        def look(operation: str, name: str) -> None:
            if (operation, name) == ("write", "lastmark.new"):
                for log, end in disk.written_to.items():
                    if log.endswith(".log"):
                        at_mark[log] = (end, disk.synced_to.get(log))

        async with running(config, disk) as bookie:
            await add(bookie, 1, ids, entries=[entry(1, i, size=100_000) for i in ids])
            disk.fail = look
            await bookie._storages[0].flush(positions_of(bookie))
        assert len(at_mark) >= 3
        assert all(written == synced for written, synced in at_mark.values())

    asyncio.run(scenario())


@pytest.mark.parametrize("operation", ["write", "sync"])
def test_a_failed_flush_is_repeated_into_a_new_log(
    tmp_path: Path, operation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flusher, "RETRY_S", 0.02)

    async def scenario() -> None:
        disk = WatchedDisk()
        config = settings(tmp_path, flush_interval_ms=30)
        failed: list[str] = []

        def fail(happening: str, name: str) -> None:
            if happening == operation and name.endswith(".log") and not failed:
                failed.append(name)
                raise OSError(errno.EIO, "once")

        async with running(config, disk) as bookie:
            await add(bookie, 1, range(5))
            disk.fail = fail
            await add(bookie, 1, range(5, 10))
            deadline = asyncio.get_running_loop().time() + 60
            while bookie.info().write_cache_bytes and asyncio.get_running_loop().time() < deadline:
                for i in range(10):
                    assert await bookie.read_entry(1, i) == entry(1, i)
                await asyncio.sleep(0.01)
            assert failed
            assert bookie.info().write_cache_bytes == 0
            assert len(disk.list(config.ledger_directories[0])) >= 3
            remains = crashed(config, tmp_path)
        async with running(remains) as bookie:
            for i in range(10):
                assert await bookie.read_entry(1, i) == entry(1, i)

    asyncio.run(scenario())


def test_a_flush_under_way_at_the_end_is_not_made_twice(tmp_path: Path) -> None:
    """Both copies would count as live."""

    async def scenario() -> None:
        disk, syncing, go_on = WatchedDisk(), threading.Event(), threading.Event()
        config = settings(tmp_path, flush_interval_ms=20)

        def wait(happening: str, name: str) -> None:
            if happening == "sync" and name.endswith(".log"):
                syncing.set()
                go_on.wait(60)

        bookie = Bookie(config, Metrics(), disk)
        await bookie.start()
        disk.fail = wait
        await add(bookie, 1, range(50))
        async with asyncio.timeout(60):
            while not syncing.is_set():  # noqa: ASYNC110 - set by a thread
                await asyncio.sleep(0.01)
        closing = asyncio.create_task(bookie.close())
        for _ in range(100):
            await asyncio.sleep(0)
        go_on.set()
        await closing
        written = sum(path.stat().st_size for path in config.ledger_directories[0].glob("*.log"))
        assert written < 1.5 * 50 * len(entry(1, 0))
        async with running(config) as bookie:
            assert bookie.report is not None
            assert bookie.report.entries == 0
            for i in range(50):
                assert await bookie.read_entry(1, i) == entry(1, i)

    asyncio.run(scenario())


def test_a_failed_mark_stays_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flusher, "RETRY_S", 0.02)

    async def scenario() -> None:
        disk = WatchedDisk()
        config = settings(tmp_path, flush_interval_ms=20)
        async with running(config, disk) as bookie:
            before = bookie._storages[0].marks

            def fail(happening: str, name: str) -> None:
                if name == "lastmark.new":
                    raise OSError(errno.ENOSPC, "no room for a mark")

            disk.fail = fail
            await add(bookie, 1, range(5))
            await asyncio.sleep(0.2)
            assert bookie._storages[0].marks == before
            remains = crashed(config, tmp_path)
            disk.fail = lambda happening, name: None
        async with running(remains) as bookie:
            assert bookie.report is not None
            assert bookie.report.entries == 5
            assert ids_of(await bookie.list_entries(1)) == list(range(5))

    asyncio.run(scenario())


def positions_of(bookie: Bookie) -> list[JournalPosition]:
    return [journal.committed for journal in bookie._journals]


async def failed_flush(bookie: Bookie, disk: WatchedDisk) -> None:
    """One that ends with an error of its entry log; the next one works."""

    def fail(happening: str, name: str) -> None:
        if happening == "sync" and name.endswith(".log"):
            raise OSError(errno.EIO, "Input/output error")

    disk.fail = fail
    with pytest.raises(BookieIOError):
        await bookie._storages[0].flush(positions_of(bookie))
    disk.fail = lambda happening, name: None


def test_a_repeated_flush_does_not_move_the_mark_past_what_came_since(tmp_path: Path) -> None:
    async def scenario() -> None:
        disk, config = WatchedDisk(), settings(tmp_path)
        async with running(config, disk) as bookie:
            storage = bookie._storages[0]
            await add(bookie, 1, range(5))
            await failed_flush(bookie, disk)
            await add(bookie, 1, range(5, 10))
            await storage.flush(positions_of(bookie))
            assert ids_of(await bookie.list_entries(1)) == list(range(10))
            remains = crashed(config, tmp_path)
        async with running(remains) as bookie:
            for i in range(10):
                assert await bookie.read_entry(1, i) == entry(1, i)

    asyncio.run(scenario())


def test_a_failed_flush_leaves_the_log_that_it_went_on_in(tmp_path: Path) -> None:
    """What earlier flushes have written there is nowhere else."""

    async def scenario() -> None:
        disk, config = WatchedDisk(), settings(tmp_path)
        async with running(config, disk) as bookie:
            storage = bookie._storages[0]
            await add(bookie, 1, range(5))
            await storage.flush(positions_of(bookie))
            await add(bookie, 1, range(5, 10))
            await failed_flush(bookie, disk)
            await storage.flush(positions_of(bookie))
            for i in range(10):
                assert await bookie.read_entry(1, i) == entry(1, i)

    asyncio.run(scenario())


def test_a_fence_without_entries_is_durable_in_the_index_before_the_mark(tmp_path: Path) -> None:
    """Behind the mark no journal has it."""

    async def scenario() -> None:
        disk = WatchedDisk()

        class NotedIndex(LocationIndex):
            def put_ledgers(self, rows: Sequence[tuple[int, bytes]]) -> None:
                if rows:
                    disk.events.append(("put", "ledgers"))
                super().put_ledgers(rows)

            def sync(self) -> None:
                disk.events.append(("sync", "index"))
                super().sync()

        bookie = Bookie(settings(tmp_path), Metrics(), disk, open_index=NotedIndex)
        await bookie.start()
        try:
            with pytest.raises(NoEntryError):
                await bookie.read_entry(1, 0, FENCE, KEY)
            disk.events.clear()
            await bookie._storages[0].flush(positions_of(bookie))
            events = list(disk.events)
        finally:
            await bookie.close()
        put, synced = events.index(("put", "ledgers")), events.index(("sync", "index"))
        assert put < synced < events.index(("write", "lastmark.new"))

    asyncio.run(scenario())


def test_reads_are_shared_and_read_ahead_fills_the_cache(tmp_path: Path) -> None:
    async def scenario() -> None:
        config = settings(tmp_path, read_ahead_entries=10)
        async with running(config) as bookie:
            await add(bookie, 1, range(100))
        async with running(config) as bookie:
            same = await asyncio.gather(*[bookie.read_entry(1, 50) for _ in range(20)])
            assert set(same) == {entry(1, 50)}
            assert bookie.read_cached(1, 59) == entry(1, 59)
            assert bookie.read_cached(1, 60) is None
            read_cache_bytes = bookie.info().read_cache_bytes
            await bookie.read_entry(1, 50)
            assert bookie.info().read_cache_bytes == read_cache_bytes

    asyncio.run(scenario())


def test_a_cancelled_reader_does_not_take_the_read_from_others(tmp_path: Path) -> None:
    async def scenario() -> None:
        config = settings(tmp_path)
        async with running(config) as bookie:
            await add(bookie, 1, range(3))
        async with running(config) as bookie:
            first = asyncio.ensure_future(bookie.read_entry(1, 1))
            second = asyncio.ensure_future(bookie.read_entry(1, 1))
            await asyncio.sleep(0)
            first.cancel()
            assert await second == entry(1, 1)
            with pytest.raises(asyncio.CancelledError):
                await first

    asyncio.run(scenario())


def test_a_reader_that_shares_an_older_read_does_not_share_its_no(tmp_path: Path) -> None:
    """The older read looked before the entry came; by now the entry is in the index."""

    async def scenario() -> None:
        async with running(settings(tmp_path)) as bookie:
            await add(bookie, 1, [0, 5])
            storage = bookie._storages[0]
            read, held = storage.read, asyncio.get_running_loop().create_future()
            storage.read = lambda *arguments: held  # type: ignore[method-assign]
            older = asyncio.ensure_future(bookie.read_entry(1, 3))
            await asyncio.sleep(0)
            storage.read = read  # type: ignore[method-assign]
            await add(bookie, 1, [3])
            await bookie._flusher.flush_all()
            younger = asyncio.ensure_future(bookie.read_entry(1, 3))
            await asyncio.sleep(0)
            held.set_result([])
            assert await younger == entry(1, 3)
            with pytest.raises(NoEntryError):
                await older

    asyncio.run(scenario())


def test_entries_of_a_flush_cut_short_whose_ledger_has_no_record_can_be_forgotten(
    tmp_path: Path,
) -> None:
    """Else rows of the index stay for ever: nobody knows the ledger, so nobody deletes it."""

    async def scenario() -> None:
        config = settings(tmp_path)
        async with running(config) as bookie:
            await add(bookie, 1, range(3))
        index = LocationIndex(tmp_path / "ledgers0" / "index")
        index.put_locations([(77, 0, 1, 64), (77, 1, 1, 128), (79, 5, 1, 192)])
        index.close()
        async with running(config) as bookie:
            assert await bookie.ledgers() == [1, 77, 79]
            with pytest.raises(NoLedgerError):
                await bookie.read_entry(77, 0)
            await bookie.delete_ledger(77)
            assert await bookie.ledgers() == [1, 79]
            await bookie.delete_ledger(4711)
            assert await bookie.ledgers() == [1, 79]
        index = LocationIndex(tmp_path / "ledgers0" / "index")
        assert list(index.located()) == [1, 79]
        index.close()
        async with running(config) as bookie:
            assert await bookie.ledgers() == [1, 79]
            assert await bookie.read_entry(1, 2) == entry(1, 2)

    asyncio.run(scenario())


def test_a_ledger_without_record_that_was_deleted_is_not_listed_any_more(tmp_path: Path) -> None:
    """Also when it is forgotten by now that it was deleted: whoever lists what is here to delete it
    would do so for ever."""

    async def scenario() -> None:
        config = settings(tmp_path, ledgers_kept_max=0)
        async with running(config) as bookie:
            await add(bookie, 1, range(3))
        index = LocationIndex(tmp_path / "ledgers0" / "index")
        index.put_locations([(77, 0, 1, 64), (79, 5, 1, 192)])
        index.close()
        async with running(config) as bookie:
            assert await bookie.ledgers() == [1, 77, 79]
            await bookie.delete_ledger(77)
            await bookie._flusher.flush_all()
            assert not bookie._table._states
            assert await bookie.ledgers() == [1, 79]

    asyncio.run(scenario())


def test_ledgers_and_entries_with_the_highest_ids_are_like_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever may add may choose them. No list could be made any more, so nothing was collected;
    and the last entry outlived its ledger in the index."""
    monkeypatch.setattr(storage_module, "ENTRIES_LISTED_AT_ONCE", 2)  # a page, just full
    last = 2**63 - 1

    async def scenario() -> None:
        config = settings(tmp_path)
        async with running(config) as bookie:
            for ledger_id in (1, last):
                await add(bookie, ledger_id, [0, last])
        async with running(config) as bookie:
            assert await bookie.ledgers() == [1, last]
            for ledger_id in (1, last):
                assert ids_of(await bookie.list_entries(ledger_id)) == [0, last]
                for entry_id in (0, last):
                    found = await bookie.read_batch(ledger_id, entry_id, 5, 1 << 20)
                    assert found == [entry(ledger_id, entry_id)]
                await bookie.delete_ledger(ledger_id)
            assert await bookie.ledgers() == []
        index = LocationIndex(tmp_path / "ledgers0" / "index")
        assert list(index.located()) == []
        index.close()

    asyncio.run(scenario())


def test_deletions_that_are_in_the_index_are_not_remembered(tmp_path: Path) -> None:
    """What is kept for a full disk to be tidied up goes with the flush, or it would only grow."""

    async def scenario() -> None:
        async with running(settings(tmp_path, flush_interval_ms=20)) as bookie:
            storage = bookie._storages[0]
            for ledger_id in range(30):
                await add(bookie, ledger_id, [0])
                await bookie.delete_ledger(ledger_id)
            async with asyncio.timeout(60):
                while storage.deleted or storage.has_failed_work:  # noqa: ASYNC110 - nothing tells
                    await asyncio.sleep(0.01)
            assert not storage._journaled

    asyncio.run(scenario())


def test_a_deletion_is_not_done_by_a_flush_that_has_not_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Asked for again it was answered as done, though neither journal nor index had it: after a
    power loss the ledger was there again."""

    async def fails(*_: object) -> None:
        raise BookieIOError("a disk of tests")

    def fails_at_once(*_: object, **__: object) -> None:
        raise BookieIOError("a disk of tests")

    async def scenario() -> None:
        async with running(settings(tmp_path)) as bookie:
            storage, journal = bookie._storages[0], bookie._journals[0]
            await add(bookie, 1, [0])
            with monkeypatch.context() as broken:
                broken.setattr(journal, "write", fails)
                broken.setattr(storage, "write", fails_at_once)
                for _ in range(2):
                    with pytest.raises(BookieIOError):
                        await bookie.delete_ledgers([1])
                    with pytest.raises(BookieIOError):
                        await storage.flush(positions_of(bookie))
            await bookie.delete_ledgers([1])
            await storage.flush(positions_of(bookie))
            assert await bookie.ledgers() == []

    asyncio.run(scenario())


def test_a_deletion_that_was_flushed_before_its_journal_answered_is_not_remembered(
    tmp_path: Path,
) -> None:
    """A repair may have brought the ledger back by the time that a full disk is tidied up by it."""

    async def scenario() -> None:
        async with running(settings(tmp_path)) as bookie:
            storage = bookie._storages[0]
            await add(bookie, 1, [0])
            assert bookie._fences.mark_deleted(1) is not None
            await storage.flush(positions_of(bookie))
            storage.deletion_journaled(1)
            assert not storage._journaled

    asyncio.run(scenario())


@pytest.mark.parametrize("directories", [1, 2, 3, 4, 6, 8])
@pytest.mark.parametrize("step", [1, 2, 3, 10])
def test_ledgers_of_one_directory_are_shared_out_over_its_read_lanes(
    directories: int, step: int
) -> None:
    """The directory is the id modulo their number: that must not choose the lane as well."""
    for directory in range(directories):
        ids = [i for i in range(0, 400 * directories * step, step) if i % directories == directory]
        counts = Counter(read_lane(ledger_id) for ledger_id in ids)
        assert not ids or min(counts[lane] for lane in range(READ_LANES)) > len(ids) * 0.4


def test_lists_are_made_of_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of ledgers with records, of those without, and of entries in the index and before it."""
    monkeypatch.setattr(storage_module, "LISTED_AT_ONCE", 3)
    monkeypatch.setattr(storage_module, "LOCATED_AT_ONCE", 2)
    monkeypatch.setattr(storage_module, "ENTRIES_LISTED_AT_ONCE", 4)
    strays, known = [5, 11, 12, 30], [1, 2, 3, 10, 13, 20, 21]

    async def scenario() -> None:
        config = settings(tmp_path)
        async with running(config) as bookie:
            for ledger_id in known:
                await add(bookie, ledger_id, [0])
        index = LocationIndex(tmp_path / "ledgers0" / "index")
        index.put_locations([(ledger_id, 0, 1, 64) for ledger_id in strays])
        index.close()
        async with running(config) as bookie:
            everything = sorted([*strays, *known])
            assert await bookie.ledgers() == everything
            assert bookie._storages[0].strays == frozenset(strays)
            for first, behind in ((0, 11), (11, 13), (3, 30), (30, 31), (22, 30)):
                found = [each for each in everything if first <= each < behind]
                assert await bookie.ledgers(first, behind) == found
            await add(bookie, 40, range(0, 40, 2))
            await bookie._flusher.flush_all()
            await add(bookie, 40, [1, 7, 8, 21, 50, 51, 60])
            held = sorted({*range(0, 40, 2), 1, 7, 21, 50, 51, 60})
            assert ids_of(await bookie.list_entries(40)) == held

    asyncio.run(scenario())


def test_limbo_is_durable_and_so_is_its_end(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(settings(tmp_path)) as bookie:
            storage = bookie._storages[0]

            def stored() -> bool:
                marks = decode_marks((storage.path / "lastmark").read_bytes())
                assert marks is not None
                return marks.limbo

            assert not stored()
            await storage.flush_lane.run(storage.enter_limbo)
            assert stored()
            await bookie.leave_limbo()
            assert not stored()

    asyncio.run(scenario())


def open_logs(root: Path) -> list[str]:
    """The entry logs below ``root`` that this process has open, removed ones too."""
    found = []
    for link in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):
            name = str(link.readlink())
            if name.startswith(str(root)) and ".log" in name and "ledgers" in name:
                found.append(name.rsplit("/", 1)[1])
    return [name for name in found if len(name.split(".")[0]) == 8]


def test_a_log_that_was_removed_is_not_kept_open(tmp_path: Path) -> None:
    """By who has read it: its space would not come back."""

    async def scenario() -> None:
        config = settings(tmp_path)
        for ledger_id in (1, 2):
            async with running(config) as bookie:
                await add(bookie, ledger_id, range(3))
        async with running(config) as bookie:
            for ledger_id in (1, 2):
                assert await bookie.read_entry(ledger_id, 0) == entry(ledger_id, 0)
            assert sorted(open_logs(tmp_path)) == ["00000001.log", "00000002.log"]
            await bookie.delete_ledger(1)
            await bookie._flusher.flush_all()
            async with asyncio.timeout(60):
                while open_logs(tmp_path) != ["00000002.log"]:  # noqa: ASYNC110 - nothing tells
                    await asyncio.sleep(0.01)
            assert await bookie.read_entry(2, 1) == entry(2, 1)
        assert open_logs(tmp_path) == []

    asyncio.run(scenario())


def test_what_a_reader_leaves_behind_is_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storage_module, "READERS_KEPT_MAX", 5)

    async def scenario() -> None:
        config = settings(tmp_path)
        async with running(config) as bookie:
            for ledger_id in range(40):
                await add(bookie, ledger_id, range(2))
        async with running(config) as bookie:
            for ledger_id in range(40):
                await bookie.read_entry(ledger_id, 0)
            storage = bookie._storages[0]
            for kept in (*storage._following, *storage._entry_bytes):
                assert 0 < len(kept) <= 5

    asyncio.run(scenario())


def test_a_log_that_is_mostly_of_use_takes_more_though_the_disk_is_nearly_full(
    tmp_path: Path,
) -> None:
    async def scenario() -> None:
        config = settings(tmp_path)
        async with running(config) as bookie:
            storage = bookie._storages[0]
            for life in range(3):
                await add(bookie, 1, range(5 * life, 5 * life + 5))
                await bookie._flusher.flush_all()
                await storage.flush_lane.run(lambda: storage.end_log(0.9))
            assert [path.name for path in storage.path.glob("*.log")] == ["00000001.log"]
            await bookie.delete_ledger(1)
            await add(bookie, 2, [0])
            await bookie._flusher.flush_all()
            await storage.flush_lane.run(lambda: storage.end_log(0.9))
            assert storage.settled_id > 1
            await add(bookie, 2, [1])
            await bookie._flusher.flush_all()
            assert (storage.path / "00000002.log").exists()

    asyncio.run(scenario())
