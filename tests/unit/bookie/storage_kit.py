"""What the storage engine's tests share: entries, settings, adds, a disk that fails on demand."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import struct
import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

from magnetar.bookie.bookie import Bookie
from magnetar.config import BookieConfig, JournalConfig
from magnetar.env.files.disk import Buffer, Disk, DiskFile, RealDisk
from magnetar.metrics import Metrics
from magnetar.model.errors import MagnetarError
from magnetar.wire.bookie.availability import Group, held_runs

KEY = b"k" * 20
OTHER_KEY = b"o" * 20


def entry(ledger_id: int, entry_id: int, lac: int | None = None, size: int = 64) -> bytes:
    """A whole entry whose payload tells ledger and entry."""
    lac = entry_id - 1 if lac is None else lac
    payload = f"{ledger_id}:{entry_id};".encode() * (size // 4 + 1)
    return struct.pack(">qqqq", ledger_id, entry_id, lac, 0) + b"dige" + payload[:size]


def settings(root: Path, journals: int = 1, ledgers: int = 1, **changes: object) -> BookieConfig:
    """A small bookie below ``root``; ``changes`` to BookieConfig, or ``journal_*`` to its
    JournalConfig."""
    journal = JournalConfig(
        directories=tuple(root / f"journal{n}" for n in range(journals)), file_bytes=1 << 20
    )
    own = {name[8:]: value for name, value in changes.items() if name.startswith("journal_")}
    rest = {name: value for name, value in changes.items() if not name.startswith("journal_")}
    config = BookieConfig(
        ledger_directories=tuple(root / f"ledgers{n}" for n in range(ledgers)),
        write_cache_bytes=4 << 20,
        flush_interval_ms=60_000,
        disk_check_interval_ms=20,
        disk_reserve_bytes=0,
        journal=replace(journal, **own),  # type: ignore[arg-type]
    )
    return replace(config, **rest)  # type: ignore[arg-type]


@asynccontextmanager
async def running(config: BookieConfig, disk: Disk | None = None) -> AsyncIterator[Bookie]:
    bookie = Bookie(config, Metrics(), disk)
    await bookie.start()
    try:
        yield bookie
    finally:
        await bookie.close()


async def add(
    bookie: Bookie,
    ledger_id: int,
    entry_ids: Sequence[int],
    key: bytes = KEY,
    flags: int = 0,
    entries: Sequence[bytes] | None = None,
) -> None:
    """Add and wait; raises what ``done`` was told."""
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    left = len(entry_ids)

    def done(error: MagnetarError | None, ids: Sequence[int]) -> None:
        nonlocal left
        left -= len(ids)
        if future.done():
            return
        if error is not None:
            future.set_exception(error)
        elif left == 0:
            future.set_result(None)

    if entries is None:
        entries = [entry(ledger_id, entry_id) for entry_id in entry_ids]
    bookie.add_entries(ledger_id, key, entry_ids, entries, flags, done)
    await asyncio.wait_for(future, 60)


def crashed(config: BookieConfig, root: Path, name: str = "crashed") -> BookieConfig:
    """What the disk holds now, copied, as a kill would leave it: settings to start on it."""
    target = root.parent / f"{root.name}-{name}"
    copy_at_rest(root, target)

    def moved(paths: Iterable[Path]) -> tuple[Path, ...]:
        return tuple(target / path.relative_to(root) for path in paths)

    journal = replace(config.journal, directories=moved(config.journal.directories))
    return replace(config, ledger_directories=moved(config.ledger_directories), journal=journal)


def copy_at_rest(root: Path, target: Path) -> None:
    """Copy a folder as it is at one moment: again while a flush changes it under the copy."""
    for _ in range(100):
        before = _state_of(root)
        with contextlib.suppress(shutil.Error, FileNotFoundError):
            shutil.copytree(root, target)
            if _state_of(root) == before:
                return
        shutil.rmtree(target, ignore_errors=True)
        time.sleep(0.05)
    raise AssertionError(f"{root} does not come to rest")


def _state_of(root: Path) -> list[tuple[str, int, int]]:
    found = []
    for path in sorted(root.rglob("*")):
        with contextlib.suppress(FileNotFoundError):
            status = path.stat()
            found.append((str(path), status.st_size, status.st_mtime_ns))
    return found


def journal_files(config: BookieConfig, journal: int = 0) -> list[Path]:
    """That hold something, oldest first."""
    files = sorted(config.journal.directories[journal].glob("*.journal"))
    return [path for path in files if path.stat().st_size]


def flip_bit(path: Path, offset: int) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ 0x10]))


class WatchedFile:
    """A real file whose writes and syncs are noted and may fail."""

    def __init__(self, file: DiskFile, disk: WatchedDisk) -> None:
        self.path = file.path
        self._file = file
        self._disk = disk

    def pwritev(self, parts: Sequence[Buffer], offset: int) -> None:
        self._disk.note("write", self.path)
        self._file.pwritev(parts, offset)
        self._disk.written_to[self.path.name] = offset + sum(map(len, parts))

    def write_through(self, parts: Sequence[Buffer], offset: int) -> None:
        self.pwritev(parts, offset)
        self.datasync()

    def pread(self, byte_count: int, offset: int) -> bytes:
        return self._file.pread(byte_count, offset)

    def datasync(self) -> None:
        self._disk.note("sync", self.path)
        written_to = self._disk.written_to.get(self.path.name, 0)
        self._file.datasync()
        self._disk.synced_to[self.path.name] = written_to

    def truncate(self, byte_count: int) -> None:
        self._disk.note("truncate", self.path)
        self._file.truncate(byte_count)

    def punch(self, byte_count: int, offset: int) -> None:
        self._disk.note("punch", self.path)
        self._file.punch(byte_count, offset)

    def close(self) -> None:
        self._file.close()


class WatchedDisk(RealDisk):
    """Notes (operation, file name) in ``events``; ``fail`` may raise for one."""

    def __init__(self) -> None:
        self.events: list[tuple[str, str]] = []
        self.written_to: dict[str, int] = {}  # file name -> end of the last write
        self.synced_to: dict[str, int] = {}  # file name -> end of the last write that is durable
        self.fail: Callable[[str, str], None] = lambda operation, name: None

    def note(self, operation: str, path: Path) -> None:
        self.events.append((operation, path.name))
        self.fail(operation, path.name)

    def open(self, path: Path, *, create: bool = False) -> DiskFile:
        return WatchedFile(super().open(path, create=create), self)


def ids_of(groups: Iterable[Group]) -> list[int]:
    """The ids that a list of entries stands for."""
    runs = held_runs(groups, range(1 << 63))
    return [entry_id for run in runs for entry_id in run]
