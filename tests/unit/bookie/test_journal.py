"""Group commits: order, rolls, recycling, and that nothing uncertain is acknowledged."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

import pytest

from magnetar.bookie.journal.journal import Journal, Request
from magnetar.bookie.journal.journal_files import JournalDirectory
from magnetar.bookie.journal.journal_format import ENTRY, LEDGER, JournalPosition
from magnetar.bookie.journal.journal_scan import Record
from magnetar.bookie.replay import replay_journal
from magnetar.config import JournalConfig
from magnetar.env.files.disk import Disk, DiskFile
from magnetar.metrics import Metrics
from magnetar.model.errors import BookieIOError, MagnetarError, ReadOnlyBookieError
from tests.unit.bookie.storage_kit import WatchedDisk, WatchedFile

FILE_BYTES = 1 << 20
BEGINNING = JournalPosition(0, 0)


class Harness:
    """A journal in ``path``, and what its requests were told."""

    def __init__(self, path: Path, disk: Disk, **changes: object) -> None:
        self.path = path
        self.disk = disk
        self.config = JournalConfig(directories=(path,), file_bytes=FILE_BYTES, **changes)  # type: ignore[arg-type]
        self.directory = JournalDirectory(disk, path, FILE_BYTES, self.config.recycled_files_max)
        self.journal = Journal(0, self.directory, disk, self.config, Metrics())
        self.acknowledged: list[int] = []
        self.errors: list[MagnetarError] = []

    def open(self, start: JournalPosition = BEGINNING) -> list[bytes]:
        """Replay, then begin a new file; gives the entries that were found."""
        found: list[bytes] = []

        def apply(position: JournalPosition, record: Record) -> None:
            if record.kind == ENTRY:
                found.append(record.payload)

        result = replay_journal(self.directory, start, apply)
        assert result.damages == []
        self.journal.open([*result.spent, *result.files], result.last_id, result.next_id)
        return found

    def append(self, number: int, size: int = 100) -> None:
        payload = number.to_bytes(4, "big") * (size // 4)
        self.journal.append(Request(ENTRY, [payload], len(payload), self._done, [number]))

    def _done(self, error: MagnetarError | None, ids: Sequence[int]) -> None:
        if error is None:
            self.acknowledged.extend(ids)
        else:
            self.errors.append(error)


def numbers(payloads: list[bytes]) -> list[int]:
    return [int.from_bytes(payload[:4], "big") for payload in payloads]


def test_one_sync_for_all_that_waits_and_answers_in_order(tmp_path: Path) -> None:
    async def scenario() -> None:
        disk = WatchedDisk()
        kit = Harness(tmp_path, disk)
        kit.open()
        disk.events.clear()
        for number in range(500):
            kit.append(number)
        await kit.journal.barrier()
        assert kit.acknowledged == list(range(500))
        assert [operation for operation, _ in disk.events] == ["write", "sync"]
        assert kit.journal.pending_bytes == 0
        await kit.journal.close()
        again = Harness(tmp_path, disk)
        assert numbers(again.open()) == list(range(500))
        await again.journal.close()

    asyncio.run(scenario())


def test_a_group_is_bounded_in_bytes(tmp_path: Path) -> None:
    async def scenario() -> None:
        disk = WatchedDisk()
        kit = Harness(tmp_path, disk, group_bytes_max=4096)
        kit.open()
        disk.events.clear()
        for number in range(10):
            kit.append(number, 2000)
        await kit.journal.barrier()
        assert disk.events.count(("sync", disk.events[-1][1])) == 5
        assert kit.acknowledged == list(range(10))
        await kit.journal.close()

    asyncio.run(scenario())


def test_a_batch_that_rolls_the_file_is_not_acknowledged_before_its_own_sync(
    tmp_path: Path,
) -> None:
    """Each answer must find its own commit, in whichever file, durable already."""

    async def scenario() -> None:
        disk = WatchedDisk()
        kit = Harness(tmp_path, disk, group_bytes_max=64 << 10)
        kit.open()
        answered_in: list[str] = []

        def done(error: MagnetarError | None, ids: Sequence[int]) -> None:
            assert error is None
            position = kit.journal.committed
            name = f"{position.file_id:016x}.journal"
            assert disk.synced_to[name] >= position.offset
            answered_in.append(name)

        payload = b"x" * 30_000
        for number in range(120):
            kit.journal.append(Request(ENTRY, [payload], len(payload), done, [number]))
        await kit.journal.barrier()
        assert len(answered_in) == 120
        assert len(set(answered_in)) >= 3  # it did roll
        await kit.journal.close()

    asyncio.run(scenario())


def test_the_roll_of_a_failing_file_acknowledges_nothing_of_it(tmp_path: Path) -> None:
    """The first file's sync fails in the very commit before the roll: neither its records nor
    those of the next file are acknowledged."""

    async def scenario() -> None:
        disk = WatchedDisk()
        kit = Harness(tmp_path, disk, group_bytes_max=4096)
        kit.open()
        kit.append(0)
        await kit.journal.barrier()
        first = kit.journal.committed.file_id

        def fail(operation: str, name: str) -> None:
            if operation == "sync" and name == f"{first:016x}.journal":
                raise OSError(errno.EIO, "device gone")

        disk.fail = fail
        for number in range(1, 800):
            kit.append(number, 4000)
        with pytest.raises(BookieIOError, match="device gone"):
            await kit.journal.barrier()
        assert kit.acknowledged == [0]
        assert len(kit.errors) == 799
        await kit.journal.close()

    asyncio.run(scenario())


@pytest.mark.parametrize("operation", ["write", "sync"])
def test_a_failed_journal_stays_failed(tmp_path: Path, operation: str) -> None:
    async def scenario() -> None:
        disk = WatchedDisk()
        kit = Harness(tmp_path, disk)
        kit.open()
        kit.append(1)
        await kit.journal.barrier()

        def fail(happening: str, name: str) -> None:
            if happening == operation:
                raise OSError(errno.EIO, "bad sector")

        disk.fail = fail
        kit.append(2)
        with pytest.raises(BookieIOError, match="bad sector"):
            await kit.journal.barrier()
        disk.fail = lambda happening, name: None  # the disk works again: no matter
        kit.append(3)
        with pytest.raises(BookieIOError):
            await kit.journal.barrier()
        assert kit.acknowledged == [1]
        assert len(kit.errors) == 2
        await kit.journal.close()

    asyncio.run(scenario())


def test_a_disk_that_fails_while_it_is_full_breaks_the_journal(tmp_path: Path) -> None:
    """The second try, without the entries, fails for another reason: nobody waits for ever."""

    async def scenario() -> None:
        disk = WatchedDisk()
        kit = Harness(tmp_path, disk)
        kit.open()
        faults = [OSError(errno.ENOSPC, "no room"), OSError(errno.EIO, "bad sector")]

        def fail(happening: str, _name: str) -> None:
            if happening == "write" and faults:
                raise faults.pop(0)

        disk.fail = fail
        kit.append(1)
        fence = Request(LEDGER, [b"fence"], 5, kit._done, [2])
        kit.journal.append(fence)
        async with asyncio.timeout(60):
            with pytest.raises(BookieIOError, match="bad sector"):
                await kit.journal.barrier()
        assert kit.journal.broken is not None
        assert kit.acknowledged == []
        assert len(kit.errors) == 2
        await kit.journal.close()

    asyncio.run(scenario())


def test_a_fence_that_found_no_room_is_there_before_the_next_barrier_is_answered(
    tmp_path: Path,
) -> None:
    """Whoever fences again finds the ledger fenced in memory, and asks for a barrier only."""

    async def scenario() -> None:
        disk = WatchedDisk()
        kit = Harness(tmp_path, disk)
        kit.open()

        def no_room(happening: str, _name: str) -> None:
            if happening == "write":
                raise OSError(errno.ENOSPC, "no room")

        disk.fail = no_room
        kit.journal.append(Request(LEDGER, [b"fence"], 5, None, ()))
        kit.append(1)
        with pytest.raises(ReadOnlyBookieError):
            await kit.journal.barrier()
        disk.fail = lambda happening, name: None
        await kit.journal.barrier()
        found: list[tuple[int, bytes]] = []
        replay_journal(
            kit.directory, BEGINNING, lambda _, record: found.append((record.kind, record.payload))
        )
        assert found == [(LEDGER, b"fence")]
        assert kit.journal.pending_bytes == 0
        await kit.journal.close()

    asyncio.run(scenario())


def test_an_answer_that_raises_does_not_keep_the_others_from_theirs(tmp_path: Path) -> None:
    async def scenario() -> None:
        kit = Harness(tmp_path, WatchedDisk())
        kit.open()
        raised: list[object] = []
        asyncio.get_running_loop().set_exception_handler(
            lambda loop, context: raised.append(context["exception"])
        )

        def broken(error: MagnetarError | None, ids: Sequence[int]) -> None:
            raise ZeroDivisionError

        kit.append(1)
        kit.journal.append(Request(ENTRY, [b"x" * 40], 40, broken, [2]))
        kit.append(3)
        kit.append(4)
        await kit.journal.barrier()
        assert kit.acknowledged == [1, 3, 4]
        assert [type(error) for error in raised] == [ZeroDivisionError]
        await kit.journal.close()

    asyncio.run(scenario())


def test_a_barrier_syncs_even_where_sync_is_off(tmp_path: Path) -> None:
    async def scenario() -> None:
        disk = WatchedDisk()
        kit = Harness(tmp_path, disk, sync=False)
        kit.open()
        disk.events.clear()
        await kit.journal.write(ENTRY, b"e" * 40)
        assert [operation for operation, _ in disk.events] == ["write"]
        await kit.journal.barrier()
        assert disk.events[-1][0] == "sync"
        await kit.journal.close()

    asyncio.run(scenario())


def test_a_file_is_synced_before_its_successor_is_begun_even_where_sync_is_off(
    tmp_path: Path,
) -> None:
    """A file that has a successor is whole to its end: a tail that a loss of power took would be
    damage."""

    async def scenario() -> None:
        disk = WatchedDisk()
        kit = Harness(tmp_path, disk, sync=False)
        kit.open()
        kit.journal._preparing = True  # for good: a file's first write is its first commit
        disk.events.clear()
        for number in range(40):
            kit.append(number, 100_000)
            await kit.journal.write(LEDGER, b"a commit")
        written = [name for operation, name in disk.events if operation == "write"]
        files = [*dict.fromkeys(written)]
        assert len(files) >= 3
        for name, following in pairwise(files):
            behind = disk.events[: disk.events.index(("write", following))]
            assert behind[-1] == ("sync", name)
        await kit.journal.close()

    asyncio.run(scenario())


def test_the_first_header_is_durable_before_anything_is_appended(tmp_path: Path) -> None:
    """The next file says that this one comes before it."""

    async def scenario() -> None:
        disk = WatchedDisk()
        kit = Harness(tmp_path, disk)
        kit.open()
        (name,) = {name for operation, name in disk.events if operation == "write"}
        assert disk.events[-2:] == [("write", name), ("sync", name)]
        await kit.journal.close()

    asyncio.run(scenario())


def test_who_was_queued_when_the_journal_broke_is_told(tmp_path: Path) -> None:
    """In the turn of the loop in which it breaks, before they were handed over."""

    async def scenario() -> None:
        disk = WatchedDisk()
        kit = Harness(tmp_path, disk)
        kit.open()

        def fail(operation: str, name: str) -> None:
            if operation == "write":
                raise OSError(errno.EIO, "Input/output error")

        disk.fail = fail
        kit.append(1)
        failed = kit.journal._failed

        def fails(requests: list[Request], error: BookieIOError) -> None:
            kit.append(2)
            failed(requests, error)

        kit.journal._failed = fails  # type: ignore[method-assign]
        async with asyncio.timeout(60):
            while len(kit.errors) < 2:  # noqa: ASYNC110 - nothing tells
                await asyncio.sleep(0.01)
        assert kit.acknowledged == []
        disk.fail = lambda operation, name: None
        await kit.journal.close()

    asyncio.run(scenario())


def test_spent_files_are_recycled_and_their_records_stay_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many lives of the same few files: replay gives exactly what lies behind the mark."""

    async def scenario() -> None:
        disk = WatchedDisk()
        kit = Harness(tmp_path, disk, recycled_files_max=2, group_bytes_max=256 << 10)
        kit.open()
        recycled: list[Path] = []
        rename = disk.rename

        def note(old: Path, new: Path) -> None:
            if old.suffix == ".spare":
                recycled.append(new)
            rename(old, new)

        monkeypatch.setattr(disk, "rename", note)
        mark = kit.journal.committed
        kept_from = 0
        for number in range(3000):
            kit.append(number, 4000)
            if number % 50 == 49:
                await kit.journal.barrier()
            if number % 400 == 399:
                mark, kept_from = kit.journal.committed, number + 1
                kit.journal.trim(mark)
                await asyncio.sleep(0.05)
        await kit.journal.close()
        assert recycled
        names = disk.list(tmp_path)
        assert sum(name.endswith(".spare") for name in names) <= 2
        assert len(names) < 9
        again = Harness(tmp_path, disk)
        assert numbers(again.open(mark)) == list(range(kept_from, 3000))
        await again.journal.close()

    asyncio.run(scenario())


def test_a_commit_larger_than_a_file_is_taken(tmp_path: Path) -> None:
    async def scenario() -> None:
        kit = Harness(tmp_path, WatchedDisk())
        kit.open()
        for number, size in enumerate((100, 3 << 20, 200)):
            kit.append(number, size)
            await kit.journal.barrier()
        assert kit.acknowledged == [0, 1, 2]
        await kit.journal.close()
        again = Harness(tmp_path, WatchedDisk())
        assert numbers(again.open()) == [0, 1, 2]
        await again.journal.close()

    asyncio.run(scenario())


def test_a_file_grows_while_there_is_no_descriptor_for_the_next(tmp_path: Path) -> None:
    """That the process has too many files open is no fault of the journal's disk."""

    class NoDescriptor(WatchedDisk):
        lacking = False
        tries = 0

        def open(self, path: Path, *, create: bool = False) -> DiskFile:
            if create and self.lacking:
                self.tries += 1
                raise OSError(errno.EMFILE, "Too many open files")
            return super().open(path, create=create)

    async def scenario() -> None:
        disk = NoDescriptor()
        kit = Harness(tmp_path, disk)
        kit.open()
        disk.lacking = True
        for number in range(40):
            kit.append(number, FILE_BYTES // 8)
            await kit.journal.barrier()
        assert kit.journal.broken is None
        assert kit.errors == []
        assert 0 < disk.tries < 20, "each try may wait for a descriptor"
        disk.lacking = False
        for number in range(40, 80):
            kit.append(number, FILE_BYTES // 8)
            await kit.journal.barrier()
        assert kit.journal.committed.file_id > 1
        await kit.journal.close()
        assert kit.acknowledged == [*range(80)]
        again = Harness(tmp_path, WatchedDisk())
        assert numbers(again.open()) == [*range(80)]
        await again.journal.close()

    asyncio.run(scenario())


def test_a_file_that_could_not_be_made_is_not_kept_open(tmp_path: Path) -> None:
    class NoNames(WatchedDisk):
        opened = 0
        full = False

        def open(self, path: Path, *, create: bool = False) -> DiskFile:
            disk, file = self, super().open(path, create=create)
            disk.opened += 1

            class Counted(WatchedFile):
                def close(self) -> None:
                    disk.opened -= 1
                    super().close()

            return Counted(file, disk)

        def sync_dir(self, path: Path) -> None:
            if self.full:
                raise OSError(errno.ENOSPC, "No space left on device")
            super().sync_dir(path)

    async def scenario() -> None:
        disk = NoNames()
        kit = Harness(tmp_path, disk)
        kit.open()
        kit.append(0)
        await kit.journal.barrier()
        disk.full = True
        for _ in range(5):
            kit.append(1, FILE_BYTES)
            with suppress(ReadOnlyBookieError):
                await kit.journal.barrier()
        assert len(kit.errors) == 5
        assert disk.opened == 1
        assert len([name for name in disk.list(tmp_path) if name.endswith(".journal")]) == 1
        disk.full = False
        kit.append(2, FILE_BYTES)
        await kit.journal.barrier()
        assert kit.acknowledged == [0, 2]
        await kit.journal.close()

    asyncio.run(scenario())


def test_a_spare_that_could_not_be_opened_stays_one(tmp_path: Path) -> None:
    class NoDescriptor(WatchedDisk):
        lacking = False

        def open(self, path: Path, *, create: bool = False) -> DiskFile:
            if self.lacking:
                raise OSError(errno.EMFILE, "Too many open files")
            return super().open(path, create=create)

    disk = NoDescriptor()
    directory = JournalDirectory(disk, tmp_path, FILE_BYTES, 1)
    directory.create_prepared(1).file.close()
    directory.retire([1])
    disk.lacking = True
    for file_id in (2, 3):
        with pytest.raises(OSError, match="Too many"):
            directory.create_prepared(file_id)
    disk.lacking = False
    assert directory.has_spare
    assert len(disk.list(tmp_path)) == 1
    directory.create_prepared(4).file.close()
    assert not directory.has_spare
    assert disk.list(tmp_path) == [directory.file_path(4).name]


def test_many_short_lives_without_a_mark_keep_everything(tmp_path: Path) -> None:
    async def scenario() -> None:
        for life in range(5):
            kit = Harness(tmp_path, WatchedDisk())
            assert numbers(kit.open()) == list(range(life))
            kit.append(life)
            await kit.journal.barrier()
            await kit.journal.close()

    asyncio.run(scenario())
