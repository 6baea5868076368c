"""Compaction: the space of deleted ledgers comes back, and no crash on the way loses anything."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from magnetar.bookie.bookie import RECOVERY, Bookie
from magnetar.bookie.ledgers import flusher
from magnetar.bookie.storage import entry_log
from magnetar.bookie.storage.entry_log_format import (
    HEADER_BYTES,
    WALK_BYTES,
    RecordWalk,
    log_ids,
    log_path,
)
from magnetar.bookie.storage.location_index import BATCH_MAX, LocationIndex
from magnetar.config import BookieConfig
from magnetar.env.files.disk import Buffer, DiskFile, RealDisk
from magnetar.metrics import Metrics
from magnetar.model.errors import BookieIOError, NoLedgerError
from tests.unit.bookie.storage_kit import (
    WatchedDisk,
    add,
    copy_at_rest,
    entry,
    flip_bit,
    ids_of,
    running,
    settings,
)

LIVES = 3
PER_LIFE = 40


def quick(root: Path, percent: int = 60, **changes: object) -> BookieConfig:
    """Compacts at once whatever is less live than ``percent``."""
    own: dict[str, object] = {
        "compaction_minor_percent": percent,
        "compaction_minor_interval_ms": 10,
        "compaction_bytes_per_s": 1 << 30,
        "disk_check_interval_ms": 10,
        "flush_interval_ms": 20,
    }
    return settings(root, **(own | changes))  # type: ignore[arg-type]


def idle(root: Path) -> BookieConfig:
    return quick(root, percent=0, flush_interval_ms=60_000)


def logs(config: BookieConfig) -> list[int]:
    return log_ids(RealDisk().list(config.ledger_directories[0]))


def log_bytes(config: BookieConfig) -> int:
    directory = config.ledger_directories[0]
    sizes = 0
    for log_id in logs(config):
        with contextlib.suppress(FileNotFoundError):  # removed since it was listed
            sizes += log_path(directory, log_id).stat().st_size
    return sizes


async def fill(config: BookieConfig) -> None:
    """Ledgers 1, 2 and 3 in ``LIVES`` logs, and 2 and 3 deleted."""
    for life in range(LIVES):
        async with running(config) as bookie:
            for ledger_id in (1, 2, 3):
                await add(bookie, ledger_id, range(life * PER_LIFE, (life + 1) * PER_LIFE))
    async with running(config) as bookie:
        await bookie.delete_ledger(2)
        await bookie.delete_ledger(3)


async def check_whole(bookie: Bookie) -> None:
    for entry_id in range(LIVES * PER_LIFE):
        assert await bookie.read_entry(1, entry_id) == entry(1, entry_id)
    assert ids_of(await bookie.list_entries(1)) == list(range(LIVES * PER_LIFE))
    for ledger_id in (2, 3):
        with pytest.raises(NoLedgerError):
            await bookie.read_entry(ledger_id, 0)


async def eventually(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not holds():  # noqa: ASYNC110 - nothing tells
            await asyncio.sleep(0.01)


def test_what_is_dead_goes_and_what_lives_stays(tmp_path: Path) -> None:
    async def scenario() -> None:
        await fill(idle(tmp_path))
        config = quick(tmp_path)
        before, size = logs(config), log_bytes(config)
        assert len(before) == LIVES
        async with running(config) as bookie:
            await eventually(lambda: not set(logs(config)) & set(before))
            await check_whole(bookie)
        assert log_bytes(config) < size * 0.45
        async with running(config) as bookie:
            await check_whole(bookie)

    asyncio.run(scenario())


def test_what_was_copied_is_durable_before_the_log_says_that_it_is_whole(tmp_path: Path) -> None:
    """A footer over records that a loss of power took would be damage, and stay."""

    async def scenario() -> None:
        await fill(idle(tmp_path))
        config, disk = quick(tmp_path), WatchedDisk()
        before = logs(config)
        async with running(config, disk) as bookie:
            await eventually(lambda: not set(logs(config)) & set(before))
            await check_whole(bookie)
        for log_id in logs(config):
            name = log_path(config.ledger_directories[0], log_id).name
            done = [operation for operation, each in disk.events if each == name]
            assert done[-3:] == ["sync", "write", "sync"]  # the footer

    asyncio.run(scenario())


def test_logs_that_are_live_enough_are_left_alone(tmp_path: Path) -> None:
    async def scenario() -> None:
        await fill(idle(tmp_path))
        config = quick(tmp_path, percent=30)
        before = logs(config)
        async with running(config) as bookie:
            await asyncio.sleep(0.3)
            await check_whole(bookie)
        assert set(before) <= set(logs(config))

    asyncio.run(scenario())


def test_readers_writers_and_deletions_go_on_meanwhile(tmp_path: Path) -> None:
    async def scenario() -> None:
        await fill(idle(tmp_path))
        config = quick(tmp_path)
        before = logs(config)
        async with running(replace(config, compaction_bytes_per_s=100_000)) as bookie:
            following = 0
            while set(logs(config)) & set(before):
                assert await bookie.read_entry(1, following % 100) == entry(1, following % 100)
                await add(bookie, 4, [following])
                again = entry(1, 5, lac=4)
                await add(bookie, 1, [5], flags=RECOVERY, entries=[again])
                following += 1
            await check_whole(bookie)
            await bookie.delete_ledger(1)
        async with running(config) as bookie:
            with pytest.raises(NoLedgerError):
                await bookie.read_entry(1, 0)
            assert ids_of(await bookie.list_entries(4)) == list(range(following))

    asyncio.run(scenario())


class Snapshots:
    """Copies everything before each change of an entry log or of the index: what a kill there
    would leave."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.armed = False
        self.taken: list[tuple[str, Path]] = []
        self._lock = threading.Lock()

    def take(self, what: str) -> None:
        if not self.armed:
            return
        with self._lock:
            target = self.root.parent / f"{self.root.name}-{len(self.taken)}"
            copy_at_rest(self.root, target)  # journal and index have threads of their own
            self.taken.append((what, target))


class SnapshotDisk(WatchedDisk):
    def __init__(self, snapshots: Snapshots) -> None:
        super().__init__()
        self._snapshots = snapshots
        self.fail = self._before

    def _before(self, operation: str, name: str) -> None:
        if name.endswith(".log"):
            self._snapshots.take(f"{operation} {name}")

    def open(self, path: Path, *, create: bool = False) -> DiskFile:
        if create:
            self._before("create", path.name)
        return super().open(path, create=create)

    def remove(self, path: Path) -> None:
        self._before("remove", path.name)
        super().remove(path)
        self._before("removed", path.name)


def snapshot_index(snapshots: Snapshots) -> Callable[[Path], LocationIndex]:
    class SnapshotIndex(LocationIndex):
        def put_locations(self, rows: list[tuple[int, int, int, int]]) -> None:  # type: ignore[override]
            snapshots.take("put")
            half = len(rows) // 2
            super().put_locations(rows[:half])
            snapshots.take("half put")
            super().put_locations(rows[half:])
            snapshots.take("put done")

        def sync(self) -> None:
            snapshots.take("index sync")
            super().sync()

    return SnapshotIndex


def test_a_kill_between_any_two_steps_loses_nothing_and_is_repaired(tmp_path: Path) -> None:
    root = tmp_path / "bookie"

    async def compact(snapshots: Snapshots) -> None:
        config = quick(root, flush_interval_ms=60_000)
        before = logs(config)
        disk = SnapshotDisk(snapshots)
        bookie = Bookie(config, Metrics(), disk, snapshot_index(snapshots))
        snapshots.armed = True
        await bookie.start()
        await eventually(lambda: not set(logs(config)) & set(before))
        snapshots.armed = False
        await bookie.close()

    async def check(what: str, copy: Path) -> None:
        config = quick(copy)
        async with running(idle(copy)) as bookie:  # nothing but what the crash left
            await check_whole(bookie)
        before = log_bytes(config)
        async with running(config) as bookie:
            try:
                await eventually(lambda: log_bytes(config) < 20_000)
            except TimeoutError:
                pytest.fail(f"killed before {what}: {before} bytes, {log_bytes(config)} at last")
            await check_whole(bookie)

    async def scenario() -> None:
        await fill(idle(root))
        assert log_bytes(quick(root)) > 30_000  # of which a third is live
        snapshots = Snapshots(root)
        await compact(snapshots)
        steps = [what.split()[0] for what, _ in snapshots.taken]
        assert {"create", "write", "sync", "put", "half", "index", "remove"} <= set(steps)
        for what, copy in snapshots.taken:
            await check(what, copy)

    asyncio.run(scenario())


class UnmovedIndex(LocationIndex):
    """Compaction cannot point it to a new log, ``fails`` times."""

    fails = 1 << 30
    refused = 0

    def put_locations(self, rows: Sequence[tuple[int, int, int, int]]) -> None:
        if self.refused < self.fails:
            self.refused += 1
            raise BookieIOError("the index takes nothing")
        super().put_locations(rows)


class UnreadDisk(RealDisk):
    """The records, or the footer, of the log ``bad`` cannot be read."""

    bad = ""
    part = "records"
    refused = 0

    def open(self, path: Path, *, create: bool = False) -> DiskFile:
        file = super().open(path, create=create)
        return UnreadFile(file, self) if path.suffix == ".log" else file


class UnreadFile:
    def __init__(self, file: DiskFile, disk: UnreadDisk) -> None:
        self._file, self._disk = file, disk
        self.path = file.path

    def __getattr__(self, name: str) -> object:
        return getattr(self._file, name)

    def pread(self, byte_count: int, offset: int) -> bytes:
        part = "records" if offset == HEADER_BYTES else "footer"
        if self.path.name == self._disk.bad and offset and part == self._disk.part:
            self._disk.refused += 1
            raise OSError(errno.EIO, "Input/output error", str(self.path))
        return self._file.pread(byte_count, offset)


async def whole_and_not_moved_to(root: Path) -> int:
    """A compacted log beside its sources, to which the index points still; its id."""
    await fill(idle(root))
    before = logs(idle(root))
    bookie = Bookie(quick(root), Metrics(), open_index=UnmovedIndex)
    await bookie.start()
    index = bookie._storages[0].location_index
    assert isinstance(index, UnmovedIndex)
    await eventually(lambda: index.refused > 0)
    await bookie.close()
    assert len(set(logs(idle(root))) - set(before)) == 1
    return max(logs(idle(root)))


@pytest.mark.parametrize("part", ["records", "footer"])
def test_a_compaction_that_was_cut_short_and_cannot_be_read_now_is_taken_up_later(
    tmp_path: Path, part: str
) -> None:
    async def scenario() -> None:
        compacted = await whole_and_not_moved_to(tmp_path)
        point_to(idle(tmp_path), compacted, 0)
        config, disk = quick(tmp_path), UnreadDisk()
        disk.bad, disk.part = log_path(tmp_path, compacted).name, part
        async with running(config, disk) as bookie:
            await eventually(lambda: disk.refused > 0)
            await asyncio.sleep(0.1)
            if part == "footer":
                await check_whole(bookie)
            assert {*logs(config)} >= {compacted, compacted - 1, compacted - 2}
            disk.bad = ""
            await eventually(lambda: logs(config) == [compacted])
            await check_whole(bookie)

    asyncio.run(scenario())


def point_to(config: BookieConfig, log_id: int, entry_id: int) -> None:
    """The index has this entry of ledger 1 in the log."""
    directory = config.ledger_directories[0]
    file = RealDisk().open(log_path(directory, log_id))
    walk = RecordWalk(file, log_id, RealDisk().size(file.path))
    (offset,) = (one.offset for one in walk if (one.ledger_id, one.entry_id) == (1, entry_id))
    file.close()
    index = LocationIndex(directory / "index")
    index.put_locations([(1, entry_id, log_id, offset)])
    index.close()


def test_a_compacted_log_without_footer_to_which_the_index_points_is_kept(tmp_path: Path) -> None:
    """It must not be so; but whatever has happened, what is named is not removed."""

    async def scenario() -> None:
        compacted = await whole_and_not_moved_to(tmp_path)
        config = quick(tmp_path)
        point_to(config, compacted, 5)
        path, before = log_path(config.ledger_directories[0], compacted), logs(config)
        path.write_bytes(path.read_bytes()[:-20])
        with capture_logs() as told:
            async with running(config) as bookie:
                await eventually(lambda: any("no whole footer" in one["event"] for one in told))
                await asyncio.sleep(0.2)
                assert logs(config) == before
                await check_whole(bookie)

    asyncio.run(scenario())


def test_a_compaction_that_failed_at_the_index_is_finished_and_not_begun_anew(
    tmp_path: Path,
) -> None:
    """What it had copied would lie there until a restart."""

    class Index(UnmovedIndex):
        fails = 3

    async def scenario() -> None:
        await fill(idle(tmp_path))
        config = quick(tmp_path)
        before = logs(config)
        bookie = Bookie(config, Metrics(), open_index=Index)
        await bookie.start()
        await eventually(lambda: not set(logs(config)) & set(before))
        assert logs(config) == [max(before) + 1]
        await eventually(lambda: not bookie._storages[0].reclaimer.unfinished)
        await check_whole(bookie)
        await bookie.close()

    asyncio.run(scenario())


def test_a_compacted_log_with_damage_in_it_is_kept_and_so_is_what_it_replaces(
    tmp_path: Path,
) -> None:
    async def scenario() -> None:
        compacted = await whole_and_not_moved_to(tmp_path)
        config = quick(tmp_path)
        before = logs(config)
        flip_bit(log_path(config.ledger_directories[0], compacted), HEADER_BYTES + 60)
        with capture_logs() as told:
            async with running(config) as bookie:
                await eventually(lambda: any("not compacted" in one["event"] for one in told))
                await asyncio.sleep(0.2)
                assert logs(config) == before
                await check_whole(bookie)
        assert len([one for one in told if "not compacted" in one["event"]]) == 1

    asyncio.run(scenario())


def test_logs_of_which_the_index_names_nothing_go_behind_its_sync(tmp_path: Path) -> None:
    """What it names no more may be back after a loss of power, if a flush has only just taken it
    out."""

    async def scenario() -> None:
        async with running(idle(tmp_path)) as bookie:
            await add(bookie, 1, range(10))
            await add(bookie, 2, range(40))
        async with running(idle(tmp_path)) as bookie:
            await add(bookie, 1, range(10))  # again: the first log has nothing of use any more
            await bookie.delete_ledger(2)
        config, disk = quick(tmp_path, flush_interval_ms=60_000), WatchedDisk()
        first = log_path(config.ledger_directories[0], logs(config)[0])

        class NotedIndex(LocationIndex):
            def sync(self) -> None:
                super().sync()
                disk.events.append(("synced", "index"))

        class RemovingDisk(WatchedDisk):
            def remove(self, path: Path) -> None:
                disk.events.append(("remove", path.name))
                super().remove(path)

        bookie = Bookie(config, Metrics(), RemovingDisk(), open_index=NotedIndex)
        await bookie.start()
        await eventually(lambda: not first.exists())
        before = disk.events[: disk.events.index(("remove", first.name))]
        await bookie.close()
        assert ("synced", "index") in before

    asyncio.run(scenario())


def test_more_entries_than_a_batch_has_are_copied_and_moved(tmp_path: Path) -> None:
    """Of one piece that is read: what is left out would go with the sources."""
    count = 3 * BATCH_MAX + 7

    async def scenario() -> None:
        async with running(idle(tmp_path)) as bookie:
            await add(bookie, 1, range(count), entries=[entry(1, i, size=8) for i in range(count)])
            await add(bookie, 2, range(2 * count))
        assert count * len(entry(1, 0, size=8)) < WALK_BYTES
        async with running(idle(tmp_path)) as bookie:
            await bookie.delete_ledger(2)
        config = quick(tmp_path)
        before = logs(config)
        async with running(config) as bookie:
            await eventually(lambda: not set(logs(config)) & set(before))
            assert ids_of(await bookie.list_entries(1)) == list(range(count))
        async with running(config) as bookie:
            for first in range(0, count, 100):
                found = await bookie.read_batch(1, first, 100, 1 << 20)
                assert found == [entry(1, first + i, size=8) for i in range(len(found))]
                assert len(found) == min(100, count - first)

    asyncio.run(scenario())


def test_of_two_copies_in_a_log_the_newer_one_is_kept(tmp_path: Path) -> None:
    async def scenario() -> None:
        newer = entry(1, 5, lac=0)
        async with running(idle(tmp_path)) as bookie:
            await add(bookie, 1, range(10))
            await add(bookie, 2, range(60))
            await bookie._flusher.flush_all()
            await add(bookie, 1, [5], flags=RECOVERY, entries=[newer])
        async with running(idle(tmp_path)) as bookie:
            await bookie.delete_ledger(2)
        config = quick(tmp_path)
        (before,) = logs(config)
        async with running(config) as bookie:
            await eventually(lambda: before not in logs(config))
            assert await bookie.read_entry(1, 5) == newer
            assert log_bytes(config) < HEADER_BYTES + 11 * (8 + len(newer)), "one copy of each"
        async with running(config) as bookie:
            whole = [newer if i == 5 else entry(1, i) for i in range(10)]
            assert await bookie.read_batch(1, 0, 5, 1 << 20) == whole[:5]
            for entry_id in range(10):
                assert await bookie.read_entry(1, entry_id) == whole[entry_id]

    asyncio.run(scenario())


def test_a_log_with_damage_in_it_is_kept_as_it_is(tmp_path: Path) -> None:
    async def scenario() -> None:
        await fill(idle(tmp_path))
        config = quick(tmp_path)
        damaged, *sound = logs(config)
        flip_bit(log_path(config.ledger_directories[0], damaged), 64 + 60)  # in entry 1:0
        async with running(config) as bookie:
            await eventually(lambda: not set(logs(config)) & set(sound))
            assert damaged in logs(config)
            with pytest.raises(BookieIOError, match="damaged"):
                await bookie.read_entry(1, 0)
            for entry_id in range(1, LIVES * PER_LIFE):
                assert await bookie.read_entry(1, entry_id) == entry(1, entry_id)

    asyncio.run(scenario())


@pytest.mark.parametrize("operation", ["write", "sync"])
def test_an_error_on_the_way_leaves_everything_and_the_next_try_does_it(
    tmp_path: Path, operation: str
) -> None:
    async def scenario() -> None:
        await fill(idle(tmp_path))
        config = quick(tmp_path)
        before = logs(config)
        disk = WatchedDisk()
        failures = 0

        def fail(done: str, name: str) -> None:
            nonlocal failures
            if done == operation and name.endswith(".log"):
                failures += 1
                if failures <= 3:
                    raise OSError(28, "No space left on device")

        disk.fail = fail
        async with running(config, disk) as bookie:
            await eventually(lambda: failures > 0)
            await check_whole(bookie)
            await eventually(lambda: not set(logs(config)) & set(before))
            await check_whole(bookie)
        assert failures > 3
        assert log_bytes(config) < 30_000

    asyncio.run(scenario())


class StuckFile:
    """Takes a log's header and nothing behind it, while its disk is stuck."""

    def __init__(self, file: DiskFile, disk: StuckDisk) -> None:
        self._file = file
        self._disk = disk
        self.path = file.path
        self.pread, self.write_through = file.pread, file.write_through
        self.datasync, self.punch, self.close = file.datasync, file.punch, file.close

    def pwritev(self, parts: Sequence[Buffer], offset: int) -> None:
        if self._disk.stuck and offset:
            raise OSError(errno.EIO, "Input/output error", str(self.path))
        self._file.pwritev(parts, offset)


class StuckDisk(RealDisk):
    """Entry logs take no entries and cannot be removed while it is ``stuck``."""

    stuck = True
    refused = 0

    def open(self, path: Path, *, create: bool = False) -> DiskFile:
        file = super().open(path, create=create)
        return StuckFile(file, self) if path.suffix == ".log" else file

    def remove(self, path: Path) -> None:
        if self.stuck and path.suffix == ".log":
            self.refused += 1
            raise OSError(errno.EIO, "Input/output error", str(path))
        super().remove(path)


def test_a_log_begun_in_vain_goes_when_the_disk_lets_it(tmp_path: Path) -> None:
    """Neither its copying nor its removal worked; it is not left until a restart."""

    async def scenario() -> None:
        await fill(idle(tmp_path))
        disk, before = StuckDisk(), logs(idle(tmp_path))
        async with running(quick(tmp_path), disk) as bookie:
            await eventually(lambda: disk.refused > 1)
            begun = set(logs(quick(tmp_path))) - set(before)
            assert begun
            disk.stuck = False
            await eventually(lambda: not set(logs(quick(tmp_path))) & {*begun, *before})
            await check_whole(bookie)

    asyncio.run(scenario())


def test_a_small_log_that_is_all_alive_is_left_alone(tmp_path: Path) -> None:
    """Its header is a good part of it, and of any log that would replace it."""

    async def scenario() -> None:
        async with running(idle(tmp_path)) as bookie:
            await add(bookie, 1, [0])
        config = quick(tmp_path, percent=100)
        before = logs(config)
        async with running(config) as bookie:
            await asyncio.sleep(0.2)
            assert logs(config) == before
            assert await bookie.read_entry(1, 0) == entry(1, 0)

    asyncio.run(scenario())


def test_a_compacted_log_is_given_back_while_no_add_comes(tmp_path: Path) -> None:
    """Its id is behind that of the log that flushes write to, which does not change: a bookie that
    is read-only since its disk is full must get its space back all the same."""

    async def scenario() -> None:
        await fill(idle(tmp_path))
        config = quick(tmp_path, compaction_minor_interval_ms=300)
        before = logs(config)
        async with running(config) as bookie:
            await add(bookie, 4, [0])
            await eventually(lambda: len(logs(config)) > len(before))
            written = max(logs(config))
            await eventually(lambda: not set(logs(config)) & set(before))
            assert max(logs(config)) > written
            await bookie.delete_ledger(1)
            await eventually(lambda: logs(config) == [written])
            assert await bookie.read_entry(4, 0) == entry(4, 0)

    asyncio.run(scenario())


def test_what_compaction_reads_and_writes_leaves_the_page_cache(tmp_path: Path) -> None:
    class ForgettingDisk(RealDisk):
        dropped: dict[str, int] = {}  # noqa: RUF012 - of this test

        def drop_cached(self, path: Path, start: int, end: int) -> None:
            super().drop_cached(path, start, end)
            self.dropped[path.name] = self.dropped.get(path.name, 0) + end - start

    async def scenario() -> None:
        await fill(idle(tmp_path))
        config = quick(tmp_path, entry_log_cached_bytes_max=1 << 30)
        before = {log_path(tmp_path, log_id).name for log_id in logs(config)}
        disk = ForgettingDisk()
        async with running(config, disk) as bookie:
            await eventually(
                lambda: not before & {log_path(tmp_path, i).name for i in logs(config)}
            )
            await check_whole(bookie)
            bytes_of_1 = LIVES * PER_LIFE * len(entry(1, 10))
            assert sum(disk.dropped.get(name, 0) for name in before) > 2 * bytes_of_1
            assert sum(disk.dropped[name] for name in disk.dropped.keys() - before) > bytes_of_1

    asyncio.run(scenario())


class PausingDisk(RealDisk):
    """Compaction waits for ``go`` before it opens the log ``held``, and says so in ``opened``."""

    def __init__(self) -> None:
        self.held = ""
        self.opened, self.go = threading.Event(), threading.Event()

    def open(self, path: Path, *, create: bool = False) -> DiskFile:
        if path.name == self.held and threading.current_thread().name.startswith("compact"):
            self.opened.set()
            assert self.go.wait(20)
        return super().open(path, create=create)


def test_a_source_whose_last_ledger_is_deleted_meanwhile_does_not_end_the_compaction(
    tmp_path: Path,
) -> None:
    """Copying takes its time. The log is removed at once, and there is nothing to copy from it."""

    async def scenario() -> None:
        await fill(idle(tmp_path))
        async with running(idle(tmp_path)) as bookie:  # a log with a little of ledger 5 in it
            await add(bookie, 5, [0])
            await add(bookie, 6, range(40))
        async with running(idle(tmp_path)) as bookie:
            await bookie.delete_ledger(6)
        config, disk = quick(tmp_path), PausingDisk()
        before = logs(config)
        disk.held = log_path(tmp_path, before[-1]).name
        with capture_logs() as told:
            async with running(config, disk) as bookie:
                await eventually(disk.opened.is_set)
                await bookie.delete_ledger(5)
                await eventually(lambda: before[-1] not in logs(config))
                disk.go.set()
                await eventually(lambda: not set(logs(config)) & set(before))
                await check_whole(bookie)
        assert [one for one in told if one["log_level"] == "error"] == []

    asyncio.run(scenario())


def test_a_compacted_log_is_one_log_whatever_the_size_that_was_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A log ends before its offsets do. What went to a second one would be lost with the sources,
    to which the index goes on pointing."""

    async def scenario() -> None:
        await fill(idle(tmp_path))
        config = quick(tmp_path, entry_log_bytes_max=1 << 40)
        before = logs(config)
        monkeypatch.setattr(entry_log, "OFFSET_MAX", (1 << 29) + log_bytes(config) // 6)
        async with running(config) as bookie:
            await eventually(lambda: not set(logs(config)) & set(before))
            await check_whole(bookie)

    asyncio.run(scenario())


def test_a_log_that_a_flush_will_name_again_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A flush whose mark could not be stored is repeated from behind its entries: it points the
    index to where it wrote them. A compaction in between would have removed the log."""
    monkeypatch.setattr(flusher, "RETRY_S", 1.0)

    async def scenario() -> None:
        config, disk = quick(tmp_path, flush_interval_ms=60_000), WatchedDisk()
        refused: list[str] = []

        def no_mark(operation: str, name: str) -> None:
            if operation == "write" and name == "lastmark.new":
                refused.append(name)
                raise OSError(errno.EIO, "Input/output error")

        async with running(config, disk) as bookie:
            await add(bookie, 1, range(10))
            await add(bookie, 2, range(100))
            bookie._flusher.want()
            await eventually(lambda: not bookie.info().write_cache_bytes)
            before = logs(config)
            disk.fail = no_mark
            await add(bookie, 1, range(10, 20))
            await bookie.delete_ledger(2)
            bookie._flusher.want()
            await eventually(lambda: bool(refused))  # compaction has until the next try to take it
            disk.fail = lambda operation, name: None
            await eventually(lambda: not bookie.info().write_cache_bytes)
            await eventually(lambda: not set(logs(config)) & set(before))
            for i in reversed(range(20)):  # read alone, not ahead
                assert await bookie.read_entry(1, i) == entry(1, i)
        async with running(config) as bookie:
            for i in reversed(range(20)):  # read alone, not ahead
                assert await bookie.read_entry(1, i) == entry(1, i)

    asyncio.run(scenario())
