"""Places of a disk that cannot be read any more: what lies there is named, all else is served,
moved and given back as ever, over restarts."""

from __future__ import annotations

import asyncio
import errno
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from magnetar.bookie.bookie import Bookie
from magnetar.bookie.storage.entry_log_format import HEADER_BYTES, log_path
from magnetar.config import BookieConfig
from magnetar.env.files.disk import DiskFile, RealDisk
from magnetar.metrics import Metrics
from magnetar.model.errors import BookieIOError, UnknownLedgerStateError
from tests.unit.bookie.storage_kit import add, crashed, entry, journal_files, running, settings
from tests.unit.bookie.test_compaction import (
    LIVES,
    PER_LIFE,
    check_whole,
    eventually,
    fill,
    idle,
    logs,
    quick,
)
from tests.unit.bookie.test_log_counts import cut_off, unsettle


class BadFile:
    """A file some bytes of which cannot be read; all else is as it was. ``bad``: which, by now."""

    def __init__(self, file: DiskFile, bad: Callable[[], tuple[int, int]]) -> None:
        self._file = file
        self._bad = bad
        self.path = file.path
        self.pwritev, self.write_through = file.pwritev, file.write_through
        self.datasync, self.punch, self.close = file.datasync, file.punch, file.close

    def pread(self, byte_count: int, offset: int) -> bytes:
        start, end = self._bad()
        if offset < end and offset + byte_count > start:
            raise OSError(errno.EIO, "Input/output error", str(self.path))
        return self._file.pread(byte_count, offset)


class BadDisk(RealDisk):
    """``bad``: file -> [start, end) that cannot be read, while it stands there; ``met``: how often
    that was tried."""

    def __init__(self) -> None:
        self.bad: dict[Path, tuple[int, int]] = {}
        self.met: Counter[Path] = Counter()

    def open(self, path: Path, *, create: bool = False) -> DiskFile:
        file = super().open(path, create=create)
        return BadFile(file, lambda: self._bad(path)) if path in self.bad else file

    def _bad(self, path: Path) -> tuple[int, int]:
        self.met[path] += 1
        return self.bad.get(path, (0, 0))


def path_of(config: BookieConfig, log_id: int) -> Path:
    return log_path(config.ledger_directories[0], log_id)


@pytest.mark.parametrize("part", ["header", "footer"])
def test_a_bookie_starts_with_a_log_whose_header_or_footer_cannot_be_read(
    tmp_path: Path, part: str
) -> None:
    async def scenario() -> None:
        config = idle(tmp_path)
        await fill(config)
        disk = BadDisk()
        path = path_of(config, logs(config)[1])
        size = path.stat().st_size
        disk.bad[path] = (0, HEADER_BYTES) if part == "header" else (size - 16, size)
        async with running(config, disk) as bookie:
            await check_whole(bookie)

    asyncio.run(scenario())


def test_a_log_that_cannot_be_read_through_does_not_keep_the_others_from_compaction(
    tmp_path: Path,
) -> None:
    async def scenario() -> None:
        await fill(idle(tmp_path))
        config, disk = quick(tmp_path), BadDisk()
        bad, *sound = logs(config)
        disk.bad[path_of(config, bad)] = (HEADER_BYTES + 60, HEADER_BYTES + 61)  # in entry 1:0
        async with running(config, disk) as bookie:
            await eventually(lambda: not set(logs(config)) & set(sound))
            assert bad in logs(config)
            with pytest.raises(BookieIOError, match="cannot be read"):
                await bookie.read_entry(1, 0)
            for entry_id in range(1, LIVES * PER_LIFE):
                assert await bookie.read_entry(1, entry_id) == entry(1, entry_id)

    asyncio.run(scenario())


def test_a_log_without_footer_that_cannot_be_read_through_is_kept_while_it_is_of_use(
    tmp_path: Path,
) -> None:
    async def scenario() -> None:
        await fill(idle(tmp_path))
        config, disk = quick(tmp_path), BadDisk()
        bad, *sound = logs(config)
        disk.bad[cut_off(config, bad, b"")] = (HEADER_BYTES + 60, HEADER_BYTES + 61)
        async with running(config, disk) as bookie:
            await eventually(lambda: not set(logs(config)) & set(sound))
            assert bad in logs(config)
            for entry_id in range(1, LIVES * PER_LIFE):
                assert await bookie.read_entry(1, entry_id) == entry(1, entry_id)
            await bookie.delete_ledger(1)
            await eventually(lambda: bad not in logs(config))

    asyncio.run(scenario())


@pytest.mark.parametrize("part", ["header", "record", "footer"])
@pytest.mark.parametrize("footer", [True, False])
def test_a_log_that_could_not_be_read_for_a_while_is_compacted_like_any_other(
    tmp_path: Path, part: str, footer: bool
) -> None:
    async def scenario() -> None:
        await fill(idle(tmp_path))
        config, disk = quick(tmp_path), BadDisk()
        bad, *sound = logs(config)
        path = path_of(config, bad) if footer else cut_off(config, bad, b"")
        unsettle(config, bad)
        size = path.stat().st_size
        places = {"header": (0, 64), "record": (124, 125), "footer": (size - 16, size)}
        disk.bad[path] = places[part]
        async with running(config, disk) as bookie:
            await eventually(lambda: not set(logs(config)) & set(sound) and disk.met[path] > 1)
            del disk.bad[path]
            await eventually(lambda: bad not in logs(config))
            await check_whole(bookie)

    asyncio.run(scenario())


def test_a_journal_that_could_not_be_read_for_a_moment_is_read_whole(tmp_path: Path) -> None:
    """Limbo is for good, so one look is not enough for it."""

    async def scenario() -> None:
        config, path = await journaled(settings(tmp_path), tmp_path)
        disk = BadDisk()
        disk.bad[path] = (30_000, 30_001)
        bookie = Bookie(config, Metrics(), disk, sleep=lambda _seconds: disk.bad.clear())
        report = await bookie.start()
        try:
            assert disk.met[path] > 1
            assert not report.damages
            assert not report.limbo
            for i in range(50):
                assert await bookie.read_entry(1, i) == entry(1, i, size=1000)
        finally:
            await bookie.close()

    asyncio.run(scenario())


async def journaled(config: BookieConfig, root: Path) -> tuple[BookieConfig, Path]:
    """As a kill leaves it: 50 entries of ledger 1 in the journal's file, a commit each."""
    async with running(config) as bookie:
        for i in range(50):
            await add(bookie, 1, [i], entries=[entry(1, i, size=1000)])
        remains = crashed(config, root)
    return remains, journal_files(remains)[0]


def test_a_journal_that_cannot_be_read_in_a_place_gives_all_else(tmp_path: Path) -> None:
    """What was there may have been acknowledged: the bookie is in limbo."""

    async def scenario() -> None:
        config, path = await journaled(settings(tmp_path), tmp_path)
        disk = BadDisk()
        disk.bad[path] = (30_000, 30_001)
        async with running(config, disk) as bookie:
            assert bookie.report is not None
            assert bookie.report.limbo
            (bad,) = [one.damage for one in bookie.report.damages if one.damage.start % 4096 == 0]
            assert bad.start <= 30_000 < bad.end == bad.start + 4096
            lost = []
            for i in range(50):
                try:
                    assert await bookie.read_entry(1, i) == entry(1, i, size=1000)
                except UnknownLedgerStateError:
                    lost.append(i)
            assert 1 <= len(lost) <= 4

    asyncio.run(scenario())


@pytest.mark.parametrize("bad", [(600, 601), (5000, 5001)])
def test_a_place_that_cannot_be_read_in_a_small_journal_stops_no_start(
    tmp_path: Path, bad: tuple[int, int]
) -> None:
    """A page is more than a quarter of two."""

    async def scenario() -> None:
        config, path = await journaled(settings(tmp_path), tmp_path)
        disk = BadDisk()
        with path.open("r+b") as file:
            file.truncate(8192)
        disk.bad[path] = bad
        async with running(config, disk) as bookie:
            assert bookie.report is not None
            assert bookie.report.limbo
            assert bookie.report.entries in range(1, 7)

    asyncio.run(scenario())


def test_a_journal_of_one_page_that_cannot_be_read_stops_no_start_of_a_sound_disk(
    tmp_path: Path,
) -> None:
    """Another file of the directory says that it is not the device: the cookie, at least."""

    async def scenario() -> None:
        config, path = await journaled(settings(tmp_path), tmp_path)
        with path.open("r+b") as file:
            file.truncate(4096)
        disk = BadDisk()
        disk.bad[path] = (0, 4096)
        cookie = path.parent / "current" / "VERSION"
        cookie.parent.mkdir()
        cookie.write_bytes(b"5\n")
        for prepared in path.parent.glob("*.journal"):
            disk.bad[prepared] = (0, prepared.stat().st_size)
        disk.bad[cookie] = (0, 2)
        with pytest.raises(BookieIOError, match=path.name):
            async with running(config, disk):
                pass
        del disk.bad[cookie]
        async with running(config, disk) as bookie:
            assert bookie.report is not None
            assert bookie.report.limbo

    asyncio.run(scenario())


def test_a_journal_that_cannot_be_read_at_all_stops_the_start(tmp_path: Path) -> None:
    async def scenario() -> None:
        config, path = await journaled(settings(tmp_path), tmp_path)
        disk = BadDisk()
        with path.open("r+b") as file:
            file.truncate(1 << 20)
        disk.bad[path] = (0, 1 << 20)
        with pytest.raises(BookieIOError, match=path.name):
            async with running(config, disk):
                pass
        async with running(config) as bookie:
            assert await bookie.read_entry(1, 49) == entry(1, 49, size=1000)

    asyncio.run(scenario())
