"""Reads from entry logs: what one read brings, what is kept of it, and what is not."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from magnetar.bookie.bookie import HIGH_PRIORITY, STORED, Bookie
from magnetar.bookie.ledgers.reads import PIECE_BYTES
from magnetar.bookie.storage import read_pace
from magnetar.env.files.disk import DiskFile, RealDisk
from magnetar.model.errors import BookieIOError, NoEntryError
from tests.unit.bookie.storage_kit import add, entry, running, settings

RECOVERY = 1


class CountingFile:
    """Counts what is read of the entry logs."""

    def __init__(self, file: DiskFile, disk: CountingDisk) -> None:
        self._file, self._disk = file, disk

    def __getattr__(self, name: str) -> object:
        return getattr(self._file, name)

    def pread(self, byte_count: int, offset: int) -> bytes:
        self._disk.read_bytes.append(byte_count)
        return self._file.pread(byte_count, offset)


class CountingDisk(RealDisk):
    def __init__(self) -> None:
        self.read_bytes: list[int] = []

    def open(self, path: Path, *, create: bool = False) -> DiskFile:
        file = super().open(path, create=create)
        if path.suffix != ".log":
            return file
        return CountingFile(file, self)  # type: ignore[return-value]


async def flushed(bookie: Bookie, ledger_id: int, count: int, size: int) -> list[bytes]:
    entries = [entry(ledger_id, i, size=size) for i in range(count)]
    await add(bookie, ledger_id, range(count), entries=entries)
    await bookie._flusher.flush_all()
    return entries


def test_a_batch_read_reads_what_it_gives(tmp_path: Path) -> None:
    async def scenario() -> None:
        disk = CountingDisk()
        async with running(settings(tmp_path, read_cache_bytes=0), disk) as bookie:
            entries = await flushed(bookie, 1, 1000, 1000)
            record_bytes = 8 + len(entries[0])
            assert await bookie.read_batch(1, 0, 10, 1 << 20) == entries[:10]
            await asyncio.sleep(2 * read_pace.ADDING_S)  # else reads go in pieces
            disk.read_bytes.clear()
            assert await bookie.read_batch(1, 10, 300, 1 << 20) == entries[10:310]
            assert await bookie.read_batch(1, 700, 900, 50 * len(entries[0])) == entries[700:750]
            assert sum(disk.read_bytes) <= 350 * record_bytes
            assert len(disk.read_bytes) <= 3

    asyncio.run(scenario())


def test_while_entries_are_added_reads_go_in_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(read_pace, "ADDING_S", 60.0)  # however long the pieces take

    async def scenario() -> None:
        disk = CountingDisk()
        async with running(settings(tmp_path, read_cache_bytes=0), disk) as bookie:
            entries = await flushed(bookie, 1, 300, 1000)
            disk.read_bytes.clear()
            assert await bookie.read_batch(1, 0, 300, 1 << 20) == entries
            assert max(disk.read_bytes) <= PIECE_BYTES + 1000
            assert len(disk.read_bytes) >= 300_000 // PIECE_BYTES

    asyncio.run(scenario())


def test_reads_of_high_priority_do_not_yield_to_adds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(read_pace, "ADDING_S", 600.0)
    monkeypatch.setattr(read_pace, "REST_S_MAX", 600.0)
    monkeypatch.setattr(read_pace, "REST_SHARE", 1e9)

    async def scenario() -> None:
        disk = CountingDisk()
        async with running(settings(tmp_path, read_cache_bytes=0), disk) as bookie:
            entries = await flushed(bookie, 1, 300, 1000)
            for first in (0, 10, 20):  # so it is known to go forward
                found = await bookie.read_batch(1, first, 10, 1 << 20, HIGH_PRIORITY)
                assert found == entries[first : first + 10]
            disk.read_bytes.clear()
            assert await bookie.read_batch(1, 30, 200, 1 << 20, HIGH_PRIORITY) == entries[30:230]
            assert len(disk.read_bytes) == 1
            assert await bookie.read_entry(1, 230, HIGH_PRIORITY) == entries[230]

    asyncio.run(scenario())


def test_who_asks_what_is_stored_is_not_told_what_was_read_before(tmp_path: Path) -> None:
    """Verifying took entries for sound that the bookie could not read from its disk any more."""

    async def scenario() -> None:
        disk = CountingDisk()
        async with running(settings(tmp_path), disk) as bookie:
            entries = await flushed(bookie, 1, 20, 100)
            assert await bookie.read_batch(1, 0, 20, 1 << 20) == entries
            disk.read_bytes.clear()
            assert await bookie.read_batch(1, 0, 20, 1 << 20) == entries
            assert not disk.read_bytes, "from the read cache"
            assert await bookie.read_batch(1, 0, 20, 1 << 20, STORED) == entries
            assert sum(disk.read_bytes) >= 20 * len(entries[0])
            damage(tmp_path, entries[7])
            assert await bookie.read_batch(1, 0, 20, 1 << 20) == entries
            found = await bookie.read_batch(1, 0, 20, 1 << 20, STORED)
            assert found == entries[:7]
            with pytest.raises(BookieIOError):
                await bookie.read_batch(1, 7, 1, 1 << 20, STORED)
            fresh = [entry(1, i, size=100) for i in range(20, 25)]
            await add(bookie, 1, range(20, 25), entries=fresh)  # in the journal alone
            assert await bookie.read_batch(1, 20, 5, 1 << 20, STORED) == fresh

    asyncio.run(scenario())


def damage(folder: Path, stored: bytes) -> None:
    """One byte of that entry, in whichever log it lies."""
    for path in folder.rglob("*.log"):
        at = path.read_bytes().find(stored)
        if at >= 0:
            with path.open("r+b") as file:
                file.seek(at + len(stored) - 1)
                file.write(bytes([stored[-1] ^ 1]))
            return
    raise AssertionError("it is in no entry log")


def test_readers_one_after_the_other_share_what_was_read(tmp_path: Path) -> None:
    async def scenario() -> None:
        disk = CountingDisk()
        async with running(settings(tmp_path), disk) as bookie:
            entries = await flushed(bookie, 1, 300, 1000)
            for _ in range(2):
                assert await bookie.read_batch(1, 0, 300, 1 << 20) == entries
            for entry_id in (0, 150, 299):
                assert bookie.read_cached(1, entry_id) == entries[entry_id]
            assert sum(disk.read_bytes) <= 300 * 1100 + 64

    asyncio.run(scenario())


def test_what_was_read_before_an_entry_was_added_again_is_not_kept(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(settings(tmp_path)) as bookie:
            old = await flushed(bookie, 1, 20, 100)
            newer = [entry(1, i, lac=0, size=100) for i in range(20)]
            reading = asyncio.ensure_future(bookie.read_batch(1, 0, 20, 1 << 20))
            await asyncio.sleep(0)  # the read is under way
            await add(bookie, 1, [7], flags=RECOVERY, entries=[newer[7]])
            await reading
            assert await bookie.read_batch(1, 0, 20, 1 << 20) == [*old[:7], newer[7], *old[8:]]
            await add(
                bookie, 1, [9], flags=RECOVERY, entries=[newer[9]]
            )  # what was kept has it as it was
            await bookie._flusher.flush_all()
            assert await bookie.read_entry(1, 7) == newer[7]
            assert await bookie.read_entry(1, 9) == newer[9]

    asyncio.run(scenario())


def test_a_read_that_lasts_longer_than_a_flush_does_not_bring_the_older_entry_back(
    tmp_path: Path,
) -> None:
    """By its end the write cache does not know the newer one any more."""

    async def scenario() -> None:
        async with running(settings(tmp_path)) as bookie:
            await flushed(bookie, 1, 20, 100)
            newer = entry(1, 7, lac=0, size=100)
            storage = bookie._storages[0]
            read, held = storage.read, asyncio.get_running_loop().create_future()
            found = await read(1, 0, 20, 1 << 20)
            storage.read = lambda *arguments: held  # type: ignore[method-assign]
            reading = asyncio.ensure_future(bookie.read_batch(1, 0, 20, 1 << 20))
            await asyncio.sleep(0)
            storage.read = read  # type: ignore[method-assign]
            await add(bookie, 1, [7], flags=RECOVERY, entries=[newer])
            await bookie._flusher.flush_all()
            held.set_result(found)
            await reading
            assert await bookie.read_entry(1, 7) == newer

    asyncio.run(scenario())


def test_of_entries_in_any_order_those_that_were_read_are_read_anew(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(settings(tmp_path)) as bookie:
            old = await flushed(bookie, 1, 20, 100)
            assert await bookie.read_entry(1, 7) == old[7]
            newer = [entry(1, i, lac=0, size=100) for i in (25, 7)]
            await add(bookie, 1, [25, 7], flags=RECOVERY, entries=newer)
            await bookie._flusher.flush_all()
            assert await bookie.read_entry(1, 7) == newer[1]
            last = entry(1, 25, lac=0, size=90)
            assert await bookie.read_entry(1, 25) == newer[0]
            await add(bookie, 1, [25], flags=RECOVERY, entries=[last])
            await bookie._flusher.flush_all()
            assert await bookie.read_entry(1, 25) == last

    asyncio.run(scenario())


def test_a_read_from_before_a_newer_entry_was_flushed_keeps_only_what_comes_before_it(
    tmp_path: Path,
) -> None:
    async def scenario() -> None:
        async with running(settings(tmp_path)) as bookie:
            old = await flushed(bookie, 1, 20, 100)
            newer = entry(1, 7, lac=0, size=100)
            await add(bookie, 1, [7], flags=RECOVERY, entries=[newer])
            assert await bookie.read_entry(1, 5) == old[5]  # reads the old entry 7 ahead
            await bookie._flusher.flush_all()
            assert await bookie.read_entry(1, 7) == newer

    asyncio.run(scenario())


@pytest.mark.parametrize("lives", [1, 2])
def test_what_lies_behind_an_entry_in_its_log_is_not_given_for_what_was_added_again(
    tmp_path: Path, lives: int
) -> None:
    """The older copy lies there still, and the index names the newer one, in the same log or in
    another."""

    async def scenario() -> None:
        config = settings(tmp_path)
        newer = entry(1, 7, lac=0, size=100)
        async with running(config) as bookie:
            old = await flushed(bookie, 1, 20, 100)
            if lives == 1:
                await add(bookie, 1, [7], flags=RECOVERY, entries=[newer])
        if lives == 2:
            async with running(config) as bookie:
                await add(bookie, 1, [7], flags=RECOVERY, entries=[newer])
        whole = [*old[:7], newer, *old[8:]]
        async with running(config) as bookie:
            assert await bookie.read_entry(1, 5) == old[5]  # and what follows, ahead
            assert await bookie.read_entry(1, 7) == newer
        async with running(config) as bookie:
            assert await bookie.read_batch(1, 0, 20, 1 << 20) == whole

    asyncio.run(scenario())


def test_what_lies_behind_an_entry_is_read_with_it_whichever_flush_wrote_it(
    tmp_path: Path,
) -> None:
    """One behind the other in the log, and a row of the index each."""

    async def scenario() -> None:
        config, disk = settings(tmp_path), CountingDisk()
        async with running(config) as bookie:
            for first in range(0, 40, 2):
                await add(bookie, 1, [first, first + 1])
                await bookie._flusher.flush_all()
        async with running(config, disk) as bookie:
            whole = [entry(1, i) for i in range(40)]
            assert await bookie.read_batch(1, 0, 40, 1 << 20) == whole
            assert len(disk.read_bytes) == 1

    asyncio.run(scenario())


def test_a_reader_that_meets_a_read_just_ended_with_nothing_reads_once_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The read is listed as under way until the loop's next turn, and it has nothing."""

    async def scenario() -> None:
        async with running(settings(tmp_path)) as bookie:
            await flushed(bookie, 1, 3, 100)
            await add(bookie, 1, [9])
            reads: list[asyncio.Future[list[bytes]]] = []

            def read(*_: object) -> asyncio.Future[list[bytes]]:
                reads.append(asyncio.get_running_loop().create_future())
                return reads[-1]

            monkeypatch.setattr(bookie._table.storage_of(1), "read", read)
            first = asyncio.ensure_future(bookie.read_entry(1, 5))
            await asyncio.sleep(0)
            second = asyncio.ensure_future(bookie.read_entry(1, 5))  # begins before ``first`` ends
            reads[0].set_result([])
            await asyncio.sleep(0.01)
            assert len(reads) == 2
            reads[1].set_result([entry(1, 5)])
            assert await second == entry(1, 5)
            with pytest.raises(NoEntryError):
                await first

    asyncio.run(scenario())


def test_a_read_ends_before_what_a_flush_under_way_has_newer(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(settings(tmp_path)) as bookie:
            old = await flushed(bookie, 1, 20, 100)
            newer, go_on = entry(1, 7, lac=0, size=100), threading.Event()
            await add(bookie, 1, [7], flags=RECOVERY, entries=[newer])
            bookie._storages[0].flush_lane.submit(lambda: go_on.wait(60) and None)
            flushing = asyncio.create_task(bookie._flusher.flush_all())
            await asyncio.sleep(0.01)
            whole = [*old[:7], newer, *old[8:]]
            assert await bookie.read_batch(1, 0, 20, 1 << 20) == whole
            assert await bookie.read_entry(1, 5) == old[5]  # and what follows, ahead
            go_on.set()
            await flushing
            assert await bookie.read_entry(1, 7) == newer

    asyncio.run(scenario())


def test_a_length_that_is_damaged_is_not_read(tmp_path: Path) -> None:
    async def scenario() -> None:
        disk = CountingDisk()
        async with running(settings(tmp_path)) as bookie:
            entries = await flushed(bookie, 1, 3, 100)
        (path,) = tmp_path.rglob("00000001.log")  # noqa: ASYNC240
        at = path.read_bytes().find(entries[1]) - 8
        with path.open("r+b") as file:
            file.seek(at)
            file.write(b"\xff\xff\xff\xf0")
        async with running(settings(tmp_path), disk) as bookie:
            with pytest.raises(BookieIOError, match="damaged"):
                await bookie.read_entry(1, 1)
            assert await bookie.read_entry(1, 0) == entries[0]
            assert max(disk.read_bytes) < 1 << 20

    asyncio.run(scenario())


def test_a_batch_takes_what_is_in_memory_piece_by_piece(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(settings(tmp_path)) as bookie:
            await add(bookie, 1, range(2500))
            whole = await bookie.read_batch(1, 0, 1 << 30, 1 << 30)
            assert whole == [entry(1, i) for i in range(2500)]
            some = await bookie.read_batch(1, 100, 1 << 30, 1500 * len(entry(1, 1000)))
            assert some == whole[100 : 100 + len(some)]
            assert 1500 <= len(some) <= 1600

    asyncio.run(scenario())


def test_a_read_that_a_close_overtakes_is_told_so(tmp_path: Path) -> None:
    async def scenario() -> None:
        config = settings(tmp_path)
        async with running(config) as bookie:
            for start in range(0, 200, 20):
                ids = range(start, start + 20)
                await add(bookie, 1, ids, entries=[entry(1, i, size=20_000) for i in ids])
        async with running(config) as bookie:
            reads = [
                asyncio.ensure_future(bookie.read_batch(1, first, 200, 5 << 20))
                for first in range(0, 160, 2)
            ]
            await asyncio.sleep(0)
            await bookie.close()
            with pytest.raises(BookieIOError, match="closed"):
                await bookie.ledgers()
            for told in await asyncio.gather(*reads, return_exceptions=True):
                assert isinstance(told, Sequence | BookieIOError)

    asyncio.run(scenario())
