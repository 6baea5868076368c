"""Disks that are full, or fail: what is refused, what is served, and how the bookie comes back."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from magnetar.bookie.bookie import FENCE, RECOVERY, Bookie
from magnetar.bookie.ledgers import flusher
from magnetar.bookie.space.reserve import Reserve
from magnetar.env.files.disk import Buffer, DiskFile, DiskSpace, RealDisk
from magnetar.model.errors import (
    BookieIOError,
    FencedError,
    MagnetarError,
    NoLedgerError,
    ReadOnlyBookieError,
)
from tests.unit.bookie.storage_kit import (
    KEY,
    WatchedDisk,
    WatchedFile,
    add,
    crashed,
    entry,
    running,
    settings,
)

BIG = 50_000


def no_space() -> OSError:
    return OSError(errno.ENOSPC, "No space left on device")


async def eventually(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not holds():  # noqa: ASYNC110 - nothing tells
            await asyncio.sleep(0.01)


async def add_again_until_refused(
    bookie: Bookie, ledger_id: int, ids: list[int], flags: int
) -> None:
    """The bookie looks at its disks now and then."""
    async with asyncio.timeout(60):
        while True:
            await add(bookie, ledger_id, ids, flags=flags)
            await asyncio.sleep(0.01)


class Disk(WatchedDisk):
    """``free_bytes`` is what it says; ``full`` names (by suffix) what it has no room for."""

    def __init__(self) -> None:
        super().__init__()
        self.free_bytes = 1 << 40
        self.full: tuple[str, ...] = ()
        self.broken: tuple[str, ...] = ()
        self.unreadable: tuple[int, int] | None = None
        self.fail = self._fail

    def _fail(self, operation: str, name: str) -> None:
        if self.full and name.endswith(self.full):
            raise no_space()
        if self.broken and name.endswith(self.broken):
            raise OSError(errno.EIO, "Input/output error")

    def space(self, path: Path) -> DiskSpace:
        return DiskSpace(1 << 40, self.free_bytes)

    def open(self, path: Path, *, create: bool = False) -> DiskFile:
        if create and not path.exists():
            self._fail("create", path.name)
        return BadSectors(super().open(path, create=create), self)


class BadSectors(WatchedFile):
    """Reading a byte of ``Disk.unreadable`` [start, end) of an entry log fails."""

    def __init__(self, file: DiskFile, disk: Disk) -> None:
        super().__init__(file, disk)
        self._faults = disk

    def pread(self, byte_count: int, offset: int) -> bytes:
        bad = self._faults.unreadable
        hit = bad is not None and offset < bad[1] and offset + byte_count > bad[0]
        if hit and self.path.suffix == ".log":
            raise OSError(errno.EIO, "Input/output error")
        return super().pread(byte_count, offset)


# -- the journal's disk ---------------------------------------------------------------------------


async def add_until_refused(bookie: Bookie, ledger_id: int, first: int, size: int = BIG) -> int:
    """Returns the first id that was refused, which must be for want of space."""
    for entry_id in range(first, first + 10_000):
        try:
            data = [entry(ledger_id, entry_id, size=size)]
            await add(bookie, ledger_id, [entry_id], entries=data)
        except ReadOnlyBookieError:
            return entry_id
    raise AssertionError("the disk was never full")


def test_a_full_journal_refuses_entries_and_takes_them_again_by_itself(tmp_path: Path) -> None:
    async def scenario() -> None:
        config = settings(tmp_path, write_cache_bytes=64 << 20)
        disk = Disk()
        async with running(config, disk) as bookie:
            told: list[bool] = []
            bookie.read_only_changed = told.append
            disk.full = (".journal",)
            disk.free_bytes = 0
            await eventually(lambda: bookie.read_only)
            disk.free_bytes = 1 << 40  # the bookie thinks that there is room, and there is none
            await eventually(lambda: not bookie.read_only)
            refused = await add_until_refused(bookie, 1, 0)
            assert refused == 0
            assert told[:3] == [True, False, True]  # by now it may have looked again
            disk.full = ()
            await eventually(lambda: not bookie.read_only)
            await add(bookie, 1, range(20))
            assert told == [True, False, True, False]
            remains = crashed(config, tmp_path)
        async with running(remains) as bookie:
            assert bookie.report is not None
            assert bookie.report.damages == ()
            for entry_id in range(20):
                assert await bookie.read_entry(1, entry_id) == entry(1, entry_id)

    asyncio.run(scenario())


@pytest.mark.parametrize("partial", [False, True])
def test_what_was_acknowledged_around_a_full_disk_survives_a_crash(
    tmp_path: Path, partial: bool
) -> None:
    """Commits that were refused lie torn in the journal, some rolled away from, and are no damage;
    the ledger's key and a fence of that time are there."""

    async def scenario() -> None:
        config = settings(tmp_path, write_cache_bytes=256 << 20, journal_recycled_files_max=0)
        disk = TearingDisk() if partial else Disk()
        acknowledged: list[tuple[int, int]] = []
        async with running(config, disk) as bookie:
            for ledger_id in range(1, 9):
                refused = 30
                for entry_id in range(30):
                    disk.full = (".journal",) if entry_id % 7 == ledger_id % 7 else ()
                    data = [entry(ledger_id, entry_id, size=BIG)]
                    try:
                        await add(bookie, ledger_id, [entry_id], entries=data)
                        acknowledged.append((ledger_id, entry_id))
                    except ReadOnlyBookieError:
                        refused -= 1
                        disk.full = ()
                        await eventually(lambda: not bookie.read_only)
                assert refused < 30
                await bookie.read_entry(ledger_id, 0, FENCE, KEY)
            remains = crashed(config, tmp_path)
        async with running(remains) as bookie:
            assert bookie.report is not None
            assert bookie.report.damages == ()
            for ledger_id, entry_id in acknowledged:
                found = await bookie.read_entry(ledger_id, entry_id)
                assert found == entry(ledger_id, entry_id, size=BIG)
            for ledger_id in range(1, 9):
                with pytest.raises(FencedError):
                    await add(bookie, ledger_id, [40])
                with pytest.raises(MagnetarError, match="master key"):
                    await add(bookie, ledger_id, [40], key=b"x" * 20, flags=RECOVERY)

    asyncio.run(scenario())


def test_the_key_of_a_ledger_whose_first_entry_was_refused_is_kept(tmp_path: Path) -> None:
    async def scenario() -> None:
        disk = Disk()
        config = settings(tmp_path)
        async with running(config, disk) as bookie:
            await add(bookie, 1, [0])
            disk.full = (".journal",)
            with pytest.raises(ReadOnlyBookieError):
                await add(bookie, 2, [0])
            disk.full = ()
            await eventually(lambda: not bookie.read_only)
            await add(bookie, 2, [0])
            remains = crashed(config, tmp_path)
        async with running(remains) as bookie:
            assert await bookie.read_entry(2, 0) == entry(2, 0)
            with pytest.raises(MagnetarError, match="master key"):
                await add(bookie, 2, [1], key=b"x" * 20)

    asyncio.run(scenario())


def test_a_ledger_that_came_back_while_the_journal_was_full_is_there_after_a_crash(
    tmp_path: Path,
) -> None:
    """Nobody waits for the record that brings it back, and a replay passes over entries of a ledger
    that was deleted: without the record those that were acknowledged later were lost."""

    async def scenario() -> None:
        disk, config = Disk(), settings(tmp_path)
        async with running(config, disk) as bookie:
            await add(bookie, 1, range(3))
            await bookie.delete_ledger(1)
            await bookie._flusher.flush_all()
            bookie._flusher.want = lambda: None  # type: ignore[method-assign]
            disk.full = (".journal",)
            with pytest.raises(ReadOnlyBookieError):
                await add(bookie, 1, [1], flags=RECOVERY)
            disk.full = ()
            await eventually(lambda: not bookie.read_only)
            await add(bookie, 1, [1], flags=RECOVERY)
            remains = crashed(config, tmp_path)
        async with running(remains) as bookie:
            assert await bookie.read_entry(1, 1) == entry(1, 1)
            with pytest.raises(FencedError):
                await add(bookie, 1, [2])

    asyncio.run(scenario())


def test_a_bookie_whose_journal_is_full_ends_in_order(tmp_path: Path) -> None:
    """What it has taken is flushed, and all is let go of."""

    async def scenario() -> None:
        disk = Disk()
        config = settings(tmp_path)
        async with running(config, disk) as bookie:
            await add(bookie, 1, range(5))
            disk.full = (".journal",)
            with pytest.raises(ReadOnlyBookieError):
                await add(bookie, 2, [0])
        disk.full = ()
        async with running(config) as bookie:
            assert bookie.report is not None
            assert bookie.report.entries == 0
            assert await bookie.read_entry(1, 4) == entry(1, 4)

    asyncio.run(scenario())


def test_space_that_cannot_be_told_is_an_error_of_the_bookie(tmp_path: Path) -> None:
    """And not one that ends the connection of whoever asks."""

    class Gone(RealDisk):
        gone = False

        def space(self, path: Path) -> DiskSpace:
            if self.gone:
                raise OSError(errno.EIO, "Input/output error", str(path))
            return super().space(path)

    async def scenario() -> None:
        disk = Gone()
        async with running(settings(tmp_path), disk) as bookie:
            assert bookie.info().total_bytes > 0
            disk.gone = True
            with pytest.raises(BookieIOError, match="ledgers0"):
                bookie.info()

    asyncio.run(scenario())


class TearingDisk(Disk):
    """Takes the first half of what it has no room for."""

    def open(self, path: Path, *, create: bool = False) -> DiskFile:
        return TearingFile(super().open(path, create=create), self)


class TearingFile(BadSectors):
    def _tear(self, parts: Sequence[Buffer], offset: int) -> None:
        if self._faults.full and self.path.name.endswith(self._faults.full):
            data = b"".join(parts)
            full, self._faults.full = self._faults.full, ()
            self._file.pwritev([data[: len(data) // 2]], offset)
            self._faults.full = full

    def pwritev(self, parts: Sequence[Buffer], offset: int) -> None:
        self._tear(parts, offset)
        super().pwritev(parts, offset)

    def write_through(self, parts: Sequence[Buffer], offset: int) -> None:
        self._tear(parts, offset)
        super().write_through(parts, offset)


def test_fences_and_deletions_find_room_in_a_prepared_file(tmp_path: Path) -> None:
    async def scenario() -> None:
        config = settings(tmp_path, write_cache_bytes=64 << 20, journal_recycled_files_max=0)
        disk = NoNewBlocks()
        async with running(config, disk) as bookie:
            entry_id = 0
            while not disk.prepared:  # the first file grows, and is left for a prepared one
                await add(bookie, 1, [entry_id], entries=[entry(1, entry_id, size=BIG)])
                entry_id += 1
            for _ in range(3):
                await add(bookie, 1, [entry_id], entries=[entry(1, entry_id, size=BIG)])
                entry_id += 1
            disk.no_new = True
            refused = await add_until_refused(bookie, 1, entry_id)
            await eventually(lambda: not bookie.read_only)
            last = await add_until_refused(bookie, 2, 0, size=64)  # to the last block for entries
            await bookie.read_entry(1, 0, FENCE, KEY)
            await bookie.read_entry(2, 0, FENCE, KEY)
            assert await bookie.read_entry(2, last - 1) == entry(2, last - 1)
            await bookie.delete_ledger(77)
            assert await bookie.read_entry(1, refused - 1) == entry(1, refused - 1, size=BIG)
            remains = crashed(config, tmp_path)
        async with running(remains) as bookie:
            assert bookie.report is not None
            assert bookie.report.damages == ()
            with pytest.raises(FencedError):
                await add(bookie, 1, [refused])
            for i in range(refused):
                assert await bookie.read_entry(1, i) == entry(1, i, size=BIG)

    asyncio.run(scenario())


class NoNewBlocks(Disk):
    """With ``no_new`` set nothing grows and no file comes: only blocks that exist are written."""

    no_new = False
    prepared = 0

    def open(self, path: Path, *, create: bool = False) -> DiskFile:
        if create and self.no_new and not path.exists():
            raise no_space()
        return FixedFile(super().open(path, create=create), self)


class FixedFile(BadSectors):
    def pwritev(self, parts: Sequence[Buffer], offset: int) -> None:
        self._check(parts, offset)
        super().pwritev(parts, offset)

    def write_through(self, parts: Sequence[Buffer], offset: int) -> None:
        self._check(parts, offset)
        super().write_through(parts, offset)

    def _check(self, parts: Sequence[Buffer], offset: int) -> None:
        assert isinstance(self._faults, NoNewBlocks)
        size = self.path.stat().st_size if self.path.exists() else 0
        if self.path.suffix == ".journal" and size == 1 << 20 and offset > 0:
            self._faults.prepared += 1
        if self._faults.no_new and offset + sum(map(len, parts)) > size:
            raise no_space()


# -- the ledgers' disk ----------------------------------------------------------------------------


def test_a_full_ledger_disk_loses_nothing_and_deletions_bring_space(tmp_path: Path) -> None:
    async def scenario() -> None:
        config = settings(tmp_path, flush_interval_ms=30)
        async with running(config) as bookie:
            await add(bookie, 2, range(50))
        disk = Disk()
        async with running(config, disk) as bookie:
            disk.full = (".log",)
            await add(bookie, 1, range(50))
            await asyncio.sleep(0.2)
            for i in range(50):
                assert await bookie.read_entry(1, i) == entry(1, i)
                assert await bookie.read_entry(2, i) == entry(2, i)
            old = config.ledger_directories[0] / "00000001.log"
            assert old.exists()
            await bookie.delete_ledger(2)
            await eventually(lambda: not old.exists())  # though no flush has succeeded
            remains = crashed(config, tmp_path)
            disk.full = ()
        for what in (config, remains):
            async with running(what) as bookie:
                for i in range(50):
                    assert await bookie.read_entry(1, i) == entry(1, i)
                with pytest.raises(NoLedgerError):
                    await bookie.read_entry(2, 0)

    asyncio.run(scenario())


def test_deletions_bring_space_after_a_restart_on_a_full_disk(tmp_path: Path) -> None:
    """The journal has them, durably; the flush that would tell the index waits for that space."""

    async def scenario() -> None:
        config = settings(tmp_path, flush_interval_ms=30)
        async with running(config) as bookie:
            await add(bookie, 2, range(50))
            await add(bookie, 3, range(50))
        async with running(replace(config, flush_interval_ms=60_000)) as bookie:
            await add(bookie, 1, range(50))
            await bookie.delete_ledger(2)
            await bookie.delete_ledger(3)
            remains = crashed(config, tmp_path)
        disk = Disk()
        disk.full = (".log",)
        old = remains.ledger_directories[0] / "00000001.log"
        async with running(remains, disk) as bookie:
            await eventually(lambda: not old.exists())  # though no flush has succeeded
            for i in range(50):
                assert await bookie.read_entry(1, i) == entry(1, i)
            disk.full = ()
        async with running(remains) as bookie:
            for i in range(50):
                assert await bookie.read_entry(1, i) == entry(1, i)
            with pytest.raises(NoLedgerError):
                await bookie.read_entry(2, 0)

    asyncio.run(scenario())


def test_recovery_writes_until_the_reserve_is_used_up(tmp_path: Path) -> None:
    async def scenario() -> None:
        config = settings(tmp_path)
        disk = Disk()
        reserve = 2 * config.write_cache_bytes + 2 * config.journal.file_bytes
        async with running(config, disk) as bookie:
            await add(bookie, 1, [0])
            disk.free_bytes = reserve - 1
            await eventually(lambda: bookie.read_only)
            with pytest.raises(ReadOnlyBookieError, match="nearly full"):
                await add(bookie, 1, [1])
            await add(bookie, 1, [1], flags=RECOVERY)
            disk.free_bytes = reserve // 4 - 1
            with pytest.raises(ReadOnlyBookieError, match="is full"):
                await add_again_until_refused(bookie, 1, [2], RECOVERY)
            assert await bookie.read_entry(1, 1, FENCE, KEY) == entry(1, 1)
            disk.free_bytes = 1 << 39
            await eventually(lambda: not bookie.read_only)
            await add(bookie, 2, [0])

    asyncio.run(scenario())


def test_the_reserve_is_kept_given_up_and_kept_again(tmp_path: Path) -> None:
    async def scenario() -> None:
        config = settings(tmp_path, disk_reserve_bytes=3 << 20, flush_interval_ms=30)
        path = config.ledger_directories[0] / "reserve"
        disk = Disk()
        async with running(config, disk) as bookie:
            await eventually(lambda: path.exists() and path.stat().st_size == 3 << 20)
            disk.full = (".log",)
            await add(bookie, 1, [0])
            disk.free_bytes = 0
            await eventually(lambda: not path.exists())
            disk.full, disk.free_bytes = (), 1 << 40
            await eventually(lambda: path.exists() and path.stat().st_size == 3 << 20)

    asyncio.run(scenario())


def test_the_log_that_is_open_gives_its_space_back_as_well(tmp_path: Path) -> None:
    """While the disk is nearly full no add comes that would fill the log and close it."""

    async def scenario() -> None:
        config = settings(tmp_path, flush_interval_ms=20, disk_check_interval_ms=20)
        directory, disk = config.ledger_directories[0], Disk()
        async with running(config, disk) as bookie:
            await add(bookie, 1, range(20))
            await add(bookie, 2, [0])
            await eventually(lambda: any(directory.glob("*.log")))
            (before,) = directory.glob("*.log")
            await bookie.delete_ledger(1)
            await asyncio.sleep(0.2)
            assert before.exists()
            disk.free_bytes = 1 << 20
            await eventually(lambda: not before.exists())
            assert bookie.read_only
            assert await bookie.read_entry(2, 0) == entry(2, 0)

    asyncio.run(scenario())


def test_a_reserve_given_up_while_it_is_filled_is_not_taken_for_full(tmp_path: Path) -> None:
    reserve = Reserve(RealDisk(), tmp_path, 3 << 20)
    for steps_before in (1, 2, 3):
        steps = reserve.fill()
        for _ in range(steps_before):
            next(steps)
        assert reserve.give_up() == steps_before << 20
        while next(steps, "end") is None:
            assert not reserve.full
        assert reserve.full
        assert reserve.held_bytes == 3 << 20
        assert (tmp_path / "reserve").read_bytes() == bytes(3 << 20)
        reserve.give_up()


def test_a_reserve_for_which_there_is_no_room_is_given_back(tmp_path: Path) -> None:
    disk = Disk()
    reserve = Reserve(disk, tmp_path, 3 << 20)
    steps = reserve.fill()
    next(steps)
    disk.full = ("reserve",)
    with pytest.raises(OSError, match="No space"):
        next(steps)
    assert reserve.held_bytes == 0
    assert not (tmp_path / "reserve").exists()
    assert not reserve.full


@pytest.mark.parametrize("what", [".journal", ".new"])
def test_a_start_on_a_full_disk_says_so_and_lets_go_of_everything(
    tmp_path: Path, what: str
) -> None:
    async def scenario() -> None:
        config = settings(tmp_path)
        async with running(config) as bookie:
            await add(bookie, 1, range(5))
        disk = Disk()
        disk.full = (what,)
        with pytest.raises(BookieIOError, match="not full"):
            async with running(config, disk):
                pass
        async with running(config) as bookie:
            assert bookie.report is not None
            assert bookie.report.damages == ()
            for i in range(5):
                assert await bookie.read_entry(1, i) == entry(1, i)

    asyncio.run(scenario())


# -- errors of the device -------------------------------------------------------------------------


def test_an_entry_that_cannot_be_read_is_named_and_the_others_are_served(tmp_path: Path) -> None:
    async def scenario() -> None:
        config = settings(tmp_path)
        async with running(config) as bookie:
            await add(bookie, 1, range(10))
        disk = Disk()
        async with running(config, disk) as bookie:
            record = 8 + len(entry(1, 0))
            disk.unreadable = (64 + 4 * record, 64 + 5 * record)  # entry 4
            with pytest.raises(BookieIOError, match=f"00000001.log at offset {64 + 4 * record}"):
                await bookie.read_entry(1, 4)
            for i in (0, 1, 2, 3, 5, 9):
                assert await bookie.read_entry(1, i) == entry(1, i)
            assert await bookie.read_batch(1, 0, 10, 1 << 20) == [entry(1, i) for i in range(4)]
            await add(bookie, 1, [10])

    asyncio.run(scenario())


def test_a_ledger_directory_that_fails_makes_the_bookie_read_only_until_it_is_sound(
    tmp_path: Path,
) -> None:
    async def scenario() -> None:
        config = settings(tmp_path, ledgers=2, flush_interval_ms=20)
        async with running(config) as bookie:
            await add(bookie, 2, range(5))
            await add(bookie, 3, range(5))
        disk = Disk()
        async with running(config, disk) as bookie:
            told: list[bool] = []
            bookie.read_only_changed = told.append
            disk.broken = (".log",)
            await add(bookie, 2, [5])
            await eventually(lambda: bookie.read_only)
            with pytest.raises(ReadOnlyBookieError, match="has failed") as failed:
                await add(bookie, 3, [5])
            assert "ledgers0" in str(failed.value)
            assert bookie.info().failed_directories == (str(config.ledger_directories[0]),)
            for i in range(6):
                assert await bookie.read_entry(2, i) == entry(2, i)
            assert await bookie.read_entry(3, 4) == entry(3, 4)
            await bookie.read_entry(3, 0, FENCE, KEY)
            disk.broken = ()
            await eventually(lambda: not bookie.read_only)
            await add(bookie, 2, [6])
            assert told == [True, False]
        async with running(config) as bookie:
            for i in range(7):
                assert await bookie.read_entry(2, i) == entry(2, i)

    asyncio.run(scenario())


def test_a_journal_that_fails_makes_the_bookie_read_only(tmp_path: Path) -> None:
    async def scenario() -> None:
        config = settings(tmp_path, flush_interval_ms=20)
        disk = Disk()
        async with running(config, disk) as bookie:
            told: list[bool] = []
            bookie.read_only_changed = told.append
            await add(bookie, 1, range(5))
            disk.broken = (".journal",)
            with pytest.raises(BookieIOError):
                await add(bookie, 1, [5])
            await eventually(lambda: told == [True])
            disk.broken = ()
            await asyncio.sleep(0.1)
            with pytest.raises(ReadOnlyBookieError, match="restarted"):
                await add(bookie, 1, [6])
            assert await bookie.read_entry(1, 4) == entry(1, 4)
        async with running(config) as bookie:
            await add(bookie, 1, [7])
            for i in range(5):
                assert await bookie.read_entry(1, i) == entry(1, i)

    asyncio.run(scenario())


def test_tries_to_flush_to_a_full_disk_do_not_eat_what_room_there_is(tmp_path: Path) -> None:
    """Each finds room for a part, and what it wrote is of no use: the next begins anew."""

    async def scenario() -> None:
        config = settings(tmp_path, flush_interval_ms=20)
        directory = config.ledger_directories[0]
        disk = RoomForSome()
        async with running(config, disk) as bookie:
            data = [entry(1, i, size=BIG) for i in range(30)]
            await add(bookie, 1, range(30), entries=data)
            await eventually(lambda: disk.refused >= 2)
            sizes = [path.stat().st_size for path in directory.glob("*.log")]
            assert sum(sizes) <= disk.room
            for i in range(30):
                assert await bookie.read_entry(1, i) == entry(1, i, size=BIG)
            disk.room = 1 << 30
            await eventually(lambda: disk.flushed)
            remains = crashed(config, tmp_path)
        async with running(remains) as bookie:
            for i in range(30):
                assert await bookie.read_entry(1, i) == entry(1, i, size=BIG)

    asyncio.run(scenario())


class RoomForSome(Disk):
    """Each entry log has room for ``room`` bytes; ``refused`` counts the writes past that."""

    def __init__(self) -> None:
        super().__init__()
        self.room = 500_000
        self.refused = 0
        self.flushed = False

    def open(self, path: Path, *, create: bool = False) -> DiskFile:
        return SomeFile(super().open(path, create=create), self)


class SomeFile(BadSectors):
    def pwritev(self, parts: Sequence[Buffer], offset: int) -> None:
        assert isinstance(self._faults, RoomForSome)
        if self.path.suffix == ".log" and offset + sum(map(len, parts)) > self._faults.room:
            self._faults.refused += 1
            raise no_space()
        super().pwritev(parts, offset)
        if self.path.name.startswith("lastmark"):
            self._faults.flushed = self._faults.room > 1 << 20


def test_a_log_that_cannot_be_removed_does_not_keep_flushes_from_success(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of the flush is durable by then; to repeat it would write the half again and again."""
    monkeypatch.setattr(flusher, "RETRY_S", 0.01)

    class Undeletable(Disk):
        tries = 0

        def remove(self, path: Path) -> None:
            if path.suffix == ".log":
                self.tries += 1
                raise OSError(errno.EIO, "Input/output error")
            super().remove(path)

    async def scenario() -> None:
        config = settings(tmp_path, flush_interval_ms=20)
        async with running(config) as bookie:
            await add(bookie, 2, range(5))
        disk = Undeletable()
        async with running(config, disk) as bookie:
            await bookie.delete_ledger(2)
            await add(bookie, 1, range(50))
            await eventually(lambda: disk.tries > 0)
            await asyncio.sleep(0.3)
            assert bookie.info().failed_directories == ()
            assert not bookie.read_only

    asyncio.run(scenario())
    written = sum(path.stat().st_size for path in tmp_path.glob("ledgers0/*.log"))
    assert written < 3 * 50 * len(entry(1, 0))


def test_what_a_failed_flush_could_not_remove_goes_behind_one_that_works(tmp_path: Path) -> None:
    """It counts as live, so nobody else would remove it."""

    class Holding(RoomForSome):
        holds = True

        def remove(self, path: Path) -> None:
            if self.holds and path.suffix == ".log":
                raise OSError(errno.EIO, "Input/output error")
            super().remove(path)

    async def scenario() -> None:
        config = settings(tmp_path, flush_interval_ms=20)
        directory = config.ledger_directories[0]
        disk = Holding()
        async with running(config, disk) as bookie:
            data = [entry(1, i, size=BIG) for i in range(30)]
            await add(bookie, 1, range(30), entries=data)
            await eventually(lambda: disk.refused >= 2)
            left = {*directory.glob("*.log")}
            assert len(left) >= 2
            disk.room = 1 << 30
            await eventually(lambda: not bookie.info().write_cache_bytes)
            disk.holds = False
            await add(bookie, 1, [30])
            await eventually(lambda: not left & {*directory.glob("*.log")})
            for i in range(30):
                assert await bookie.read_entry(1, i) == entry(1, i, size=BIG)

    asyncio.run(scenario())


def test_a_flush_that_fails_in_its_third_log_leaves_none_of_them(tmp_path: Path) -> None:
    """Nobody counts with a log that is not there, either."""

    async def scenario() -> None:
        config = settings(tmp_path, entry_log_bytes_max=1 << 20, write_cache_bytes=32 << 20)
        directory, disk = config.ledger_directories[0], Disk()
        refused: list[str] = []

        def fail(operation: str, name: str) -> None:
            if operation == "write" and name in disk.written_to and name == "00000004.log":
                refused.append(name)  # its header is there, and nothing else
                raise no_space()

        async with running(config, disk) as bookie:
            storage = bookie._storages[0]
            await add(bookie, 1, [0])
            await bookie._flusher.flush_all()
            disk.fail = fail
            data = [entry(1, i, size=100_000) for i in range(1, 41)]
            await add(bookie, 1, range(1, 41), entries=data)
            with pytest.raises(BookieIOError, match="No space"):
                await storage.flush([journal.committed for journal in bookie._journals])
            assert refused
            assert [path.name for path in directory.glob("*.log")] == ["00000001.log"]
            assert {use.log_id for use in storage.reclaimer.usage.uses(1 << 40)} == {1}
            disk.fail = lambda operation, name: None
            await bookie._flusher.flush_all()
            for i in (1, 20, 40):
                assert await bookie.read_entry(1, i) == data[i - 1]
            assert await bookie.read_entry(1, 0) == entry(1, 0)

    asyncio.run(scenario())


def test_a_deletion_that_the_journal_has_not_brings_no_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a crash the ledger would be there, and its log not."""

    async def fails(*_: object) -> None:
        raise BookieIOError("a journal of tests")

    async def scenario() -> None:
        config = settings(tmp_path)
        async with running(config) as bookie:
            await add(bookie, 2, range(5))
        async with running(config) as bookie:
            storage = bookie._storages[0]
            with monkeypatch.context() as broken:
                broken.setattr(bookie._journals[0], "write", fails)
                with pytest.raises(BookieIOError):
                    await bookie.delete_ledger(2)
            await storage.free_deleted()
            assert (config.ledger_directories[0] / "00000001.log").exists()
            remains = crashed(config, tmp_path)
        async with running(remains) as bookie:
            assert await bookie.read_entry(2, 4) == entry(2, 4)

    asyncio.run(scenario())


def test_a_deletion_that_the_journal_has_while_its_flush_fails_brings_room(tmp_path: Path) -> None:
    """The flush had begun by the time that the journal had it."""

    async def scenario() -> None:
        config = settings(tmp_path)
        async with running(config) as bookie:
            await add(bookie, 2, range(5))
        disk = Disk()
        async with running(config, disk) as bookie:
            storage = bookie._storages[0]
            await add(bookie, 1, range(5))
            assert await bookie._known(2) is not None
            assert bookie._fences.mark_deleted(2) is not None
            disk.full = (".log",)
            with pytest.raises(BookieIOError):
                await storage.flush([journal.committed for journal in bookie._journals])
            await storage.free_deleted()
            old = config.ledger_directories[0] / "00000001.log"
            assert old.exists(), "no journal has the deletion"
            storage.deletion_journaled(2)
            await storage.free_deleted()
            assert not old.exists()
            disk.full = ()

    asyncio.run(scenario())


def test_tries_to_flush_to_a_failing_disk_leave_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What each of them has written counts as live, and would stay as long as its ledgers."""
    monkeypatch.setattr(flusher, "RETRY_S", 0.01)

    async def scenario() -> None:
        config = settings(tmp_path, flush_interval_ms=20)
        directory = config.ledger_directories[0]
        disk, failures = Disk(), list[str]()

        def fail(operation: str, name: str) -> None:
            if operation == "sync" and name.endswith(".log"):
                failures.append(name)
                raise OSError(errno.EIO, "Input/output error")

        async with running(config, disk) as bookie:
            disk.fail = fail
            data = [entry(1, i, size=BIG) for i in range(30)]
            await add(bookie, 1, range(30), entries=data)
            await eventually(lambda: len(failures) >= 10)
            written = sum(path.stat().st_size for path in directory.glob("*.log"))
            assert written < 3 * 30 * BIG
            disk.fail = lambda operation, name: None
            await eventually(lambda: not bookie.read_only)
            remains = crashed(config, tmp_path)
            assert len([*directory.glob("*.log")]) == 1
        for what in (config, remains):
            async with running(what) as bookie:
                for i in range(30):
                    assert await bookie.read_entry(1, i) == entry(1, i, size=BIG)

    asyncio.run(scenario())
