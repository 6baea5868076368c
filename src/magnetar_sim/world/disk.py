"""A simulated disk in memory: what was synced survives, what was not may not.

Rules:

* A machine's disk is one device, unless directories are mounted on others: operations of all lanes
  on a device follow one another, each at a virtual time of its own. A job of a lane computes at
  once, but what it did to the disk counts from the times of its operations: a crash in the middle
  of a job leaves its first half.
* Bytes are durable when a ``datasync`` of their file was through before the crash; a name
  (created, renamed, removed) when a ``sync_dir`` of its directory was.
* A killed process loses nothing that was written. A power cut keeps of the unsynced writes any
  subset, in sectors of 512 bytes (torn, and out of order), and of the unsynced names any prefix.
* A hole that is punched is a write of zeros that gives whole blocks back; a block that a power cut
  leaves otherwise is there again.
* Faults: full (``ENOSPC``), broken (``EIO``; after a failed sync the unsynced bytes are doomed:
  a later sync does not make them durable), slow, wiped, rotten (a byte differs), sectors that
  cannot be read until they are written again, single files that take no writes. One device may
  suffer them and the others not.
* Threads that stall: with ``stall_chance`` a reading lane's job has asked the index when it was
  handed over, and opens the file only now, as much as ``STALL_S`` later: what it knows may have
  become wrong meanwhile. A lookup of a ledger comes as much later.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NoReturn, ParamSpec, TypeVar

import structlog

from magnetar.env.files.disk import (
    BLOCK_BYTES,
    PAGE_BYTES,
    SECTOR_BYTES,
    Buffer,
    DiskFile,
    DiskSpace,
    Lane,
)
from magnetar.model.errors import BookieIOError
from magnetar_sim.world.devices import Device
from magnetar_sim.world.index import IndexData, SimIndex
from magnetar_sim.world.inodes import Directory, Inode, Write
from magnetar_sim.world.loop import SimLoop

log = structlog.get_logger(__name__)

P = ParamSpec("P")
T = TypeVar("T")

CAPACITY_BYTES = 1 << 30
LATEST_BYTES = 600
WRITE_S = (0.000_01, 0.000_1)
SYNC_S = (0.000_2, 0.002)
START_S = 0.000_1
STALL_S = (0.005, 0.03, 0.3)

_ENOSPC, _EIO = 28, 5


class SimFile:
    """``env.files.disk.DiskFile``."""

    __slots__ = ("_device", "_disk", "_inode", "path")

    def __init__(self, disk: SimDisk, path: Path, inode: Inode) -> None:
        self._disk = disk
        self._device = disk.device(path)
        self._inode = inode
        self.path = path

    def pwritev(self, parts: Sequence[Buffer], offset: int) -> None:
        self._write(parts, offset)

    def write_through(self, parts: Sequence[Buffer], offset: int) -> None:
        try:
            write = self._write(parts, offset)
            self._disk.check_syncable(self.path)
        except OSError:
            self._inode.doom()
            raise
        self._inode.settle(self._disk.loop.time())
        write.through_s = self._disk.spend(SYNC_S, self._device)

    def _write(self, parts: Sequence[Buffer], offset: int) -> Write:
        disk, inode, device = self._disk, self._inode, self._device
        data = b"".join(parts)
        growth = max(0, offset + len(data) - len(inode.data))
        touched = inode.blocks(offset, len(data)) if inode.holes else range(0)
        filled = [block for block in touched if block in inode.holes]
        disk.check_writable(self.path)
        if growth + BLOCK_BYTES * len(filled) > disk.free_bytes_of(device):
            assert not filled, "nobody writes into what was given back"
            inode.write(disk.spend(WRITE_S, device), offset, data[: max(0, len(data) - growth)])
            disk.hinder(device)
            raise OSError(_ENOSPC, "No space left on device", str(self.path))
        disk.used_bytes += growth + BLOCK_BYTES * len(filled)
        return inode.write(disk.spend(WRITE_S, device), offset, data)

    def pread(self, byte_count: int, offset: int) -> bytes:
        self._disk.spend(WRITE_S, self._device)
        self._disk.check_readable(self.path)
        if self._inode.bad_sectors:
            self._check_sectors(byte_count, offset)
        return bytes(self._inode.data[offset : offset + byte_count])

    def _check_sectors(self, byte_count: int, offset: int) -> None:
        """The kernel reads whole pages."""
        start = offset - offset % PAGE_BYTES
        end = -(-min(offset + byte_count, len(self._inode.data)) // PAGE_BYTES) * PAGE_BYTES
        if not self._inode.readable(start, end - start):
            self._disk.met_bad_sector()
            self._disk.hinder(self._device)
            raise OSError(_EIO, "Input/output error", str(self.path))

    def datasync(self) -> None:
        disk, inode = self._disk, self._inode
        try:
            disk.check_writable(self.path)
            disk.check_syncable(self.path)
        except OSError:
            inode.doom()
            raise
        inode.settle(disk.loop.time())
        inode.sync(disk.spend(SYNC_S, self._device))

    def punch(self, byte_count: int, offset: int) -> None:
        disk, inode = self._disk, self._inode
        disk.check_writable(self.path)
        before = inode.stored_bytes
        inode.punch(disk.spend(WRITE_S, self._device), offset, byte_count)
        disk.used_bytes -= before - inode.stored_bytes

    def truncate(self, byte_count: int) -> None:
        disk, inode = self._disk, self._inode
        disk.check_writable(self.path)
        before = inode.stored_bytes
        inode.truncate(disk.spend(WRITE_S, self._device), byte_count)
        disk.used_bytes -= before - inode.stored_bytes

    def close(self) -> None:
        """Nothing is lost by it, and nothing made durable."""


class SimDisk:
    """``env.files.disk.Disk`` of one machine; outlives its processes."""

    def __init__(self, loop: SimLoop, rng: random.Random) -> None:
        self.loop: asyncio.AbstractEventLoop = loop
        self.random = rng
        self.slowness = 1.0
        self.fails_writes = False
        self.fails_syncs = False
        """Writes are taken, and can be read; what is to be synced is not on the platter."""
        self.fails_reads = False
        self.failed_reads = 0
        self.failed_read_at_s = -math.inf
        self.unwritable: dict[str, None] = {}
        """Names of files whose place on the disk takes no writes, while all others do."""
        self.capacity_bytes = CAPACITY_BYTES
        self.used_bytes = 0
        self.indexes: dict[Path, IndexData] = {}
        self.stall_chance = 0.0
        self.asked_s: float | None = None
        """When the job that runs has looked into the index; None: it looks now."""
        self.changed: Callable[[str, Path], None] = lambda what, path: None
        """Called when a file is made, removed or renamed, or an index points elsewhere: "create",
        "remove", "rename", "move"."""
        self.met_bad_sector: Callable[[], None] = lambda: None
        """Called when a read fails for a sector that cannot be read."""
        self.found_ledger: Callable[[], None] = lambda: None
        """Called when an index is asked for a ledger, and has it."""
        self.open_indexes: dict[Path, None] = {}
        """By the process that runs; one that crashes leaves none open."""
        self.devices = [Device(None)]
        """Those of single directories first, then the one of all else."""
        self._directories: dict[Path, Directory] = {}
        self._in_job = False
        self._job_s = 0.0
        """When the operations of the job that runs are through; 0: it has had none."""

    # -- time and faults ----------------------------------------------------------------------

    def mount(self, roots: Sequence[Path]) -> None:
        """Have each of these directories on a device of its own."""
        self.devices = [*map(Device, roots), self.devices[-1]]

    def device(self, path: Path) -> Device:
        return next(device for device in self.devices if device.holds(path))

    def wait_for_all(self) -> None:
        """What the next operation destroys may be needed no more by what was asked of another
        device, and that is not through: memory knows of it at once (a job computes at once)."""
        if len(self.devices) > 1:
            latest_s = max(device.busy_until_s for device in self.devices)
            hindered_s = max(device.hindered_s for device in self.devices)
            for device in self.devices:
                device.busy_until_s, device.hindered_s = latest_s, hindered_s

    def spend(self, bounds_s: tuple[float, float], device: Device) -> float:
        """One operation's time passes; returns when it is through."""
        low, high = bounds_s
        slowness = max(self.slowness, device.slowness)
        cost_s = (low + (high - low) * self.random.random()) * slowness
        end_s = max(device.busy_until_s, self._job_s, self.loop.time()) + cost_s
        device.busy_until_s = end_s
        if self._in_job:
            self._job_s = end_s
        if slowness > 1:
            device.hindered_s = end_s
        return end_s

    def run_job(self, job: Callable[[], None]) -> float | None:
        """Have a lane's job do its operations now; when they are through, None if it has none."""
        self._in_job, self._job_s = True, 0.0
        try:
            job()
        finally:
            through_s, self._in_job, self._job_s = self._job_s, False, 0.0
        return through_s or None

    @property
    def cursor_s(self) -> float:
        """When all that the job that runs has asked so far is through."""
        through_s = self._job_s or min(device.busy_until_s for device in self.devices)
        return max(through_s, self.loop.time())

    def hinder(self, device: Device) -> None:
        device.hindered_s = max(device.hindered_s, self.cursor_s)

    @property
    def free_bytes(self) -> int:
        return max(0, self.capacity_bytes - self.used_bytes)

    def free_bytes_of(self, device: Device) -> int:
        if device.capacity_bytes is None:
            return self.free_bytes
        return max(0, min(self.free_bytes, device.capacity_bytes - self.used_bytes_of(device)))

    def used_bytes_of(self, device: Device) -> int:
        return sum(
            inode.stored_bytes
            for path, directory in self._directories.items()
            if self.device(path) is device
            for inode in directory.names.values()
        )

    def check_writable(self, path: Path) -> None:
        device = self.device(path)
        if self.fails_writes or device.fails_writes or path.name in self.unwritable:
            self._fail(path, device)

    def check_syncable(self, path: Path) -> None:
        if self.fails_syncs:
            self._fail(path, self.device(path))

    def check_readable(self, path: Path) -> None:
        device = self.device(path)
        if self.fails_reads or device.fails_reads:
            self.failed_reads += 1
            self.failed_read_at_s = self.loop.time()
            self._fail(path, device)

    def _fail(self, path: Path, device: Device) -> NoReturn:
        self.hinder(device)
        raise OSError(_EIO, "Input/output error", str(path))

    def read_index(self, path: Path) -> float:
        return self.spend(WRITE_S, self.device(path))

    def sync_index(self, path: Path) -> float:
        return self.spend(SYNC_S, self.device(path))

    # -- Disk ---------------------------------------------------------------------------------

    def open(self, path: Path, *, create: bool = False) -> DiskFile:
        directory = self._directory(path.parent)
        inode = directory.names.get(path.name)
        if inode is None:
            if not create:
                raise FileNotFoundError(2, "No such file or directory", str(path))
            self.check_writable(path)
            inode = Inode()
            directory.change(self.spend(WRITE_S, self.device(path)), None, path.name, inode)
            self.changed("create", path)
        return SimFile(self, path, inode)

    def make_dir(self, path: Path) -> None:
        while path not in self._directories and path.parent != path:
            self._directories[path] = Directory()
            path = path.parent

    def list(self, path: Path) -> list[str]:
        names = set(self._directory(path).names)
        names.update(
            each.name for each in (*self._directories, *self.indexes) if each.parent == path
        )
        return sorted(names)

    def rename(self, old: Path, new: Path) -> None:
        self.check_writable(old)
        directory = self._directory(old.parent)
        assert old.parent == new.parent, "renames stay in a directory here"
        if old.name not in directory.names:
            raise FileNotFoundError(2, "No such file or directory", str(old))
        inode = directory.names[old.name]
        self._release(directory.names.get(new.name))
        self.wait_for_all()
        directory.change(self.spend(WRITE_S, self.device(new)), old.name, new.name, inode)
        self.changed("rename", new)

    def remove(self, path: Path) -> None:
        self.check_writable(path)
        if path in self._directories:
            assert not self.list(path), f"{path} is not empty"
            del self._directories[path]
            return
        directory = self._directory(path.parent)
        if path.name not in directory.names:
            raise FileNotFoundError(2, "No such file or directory", str(path))
        inode = directory.names[path.name]
        self._release(inode)
        self.wait_for_all()
        directory.change(self.spend(WRITE_S, self.device(path)), path.name, None, inode)
        self.changed("remove", path)

    def _release(self, inode: Inode | None) -> None:
        if inode is not None:
            self.used_bytes -= inode.stored_bytes

    def sync_dir(self, path: Path) -> None:
        self.check_writable(path)
        directory = self._directory(path)
        directory.settle(self.loop.time())
        directory.syncs.append((self.spend(SYNC_S, self.device(path)), len(directory.pending)))

    def drop_cached(self, path: Path, start: int, end: int) -> None:
        """Advice; nothing follows from it."""

    def size(self, path: Path) -> int:
        inode = self._directory(path.parent).names.get(path.name)
        if inode is None:
            raise FileNotFoundError(2, "No such file or directory", str(path))
        return len(inode.data)

    def content(self, path: Path) -> bytes | None:
        """All of a file as its readers see it, at no cost; None: there is none."""
        directory = self._directories.get(path.parent)
        inode = directory.names.get(path.name) if directory is not None else None
        return None if inode is None else bytes(inode.data)

    def space(self, path: Path) -> DiskSpace:
        device = self.device(path)
        return DiskSpace(device.capacity_bytes or self.capacity_bytes, self.free_bytes_of(device))

    def lane(self, name: str) -> Lane:
        return SimLane(self, name.startswith(("read-", "lookup-")))

    def open_index(self, path: Path) -> SimIndex:
        """The location index in the directory ``path``. Raises ``BookieIOError`` if it is open."""
        if path in self.open_indexes:
            raise BookieIOError(f"location index {path}: lock hold by current process")
        self.open_indexes[path] = None
        return SimIndex(self, path, self.indexes.setdefault(path, IndexData()))

    def _directory(self, path: Path) -> Directory:
        try:
            return self._directories[path]
        except KeyError:
            raise FileNotFoundError(2, "No such file or directory", str(path)) from None

    # -- crashes and losses -------------------------------------------------------------------

    def crash(self, power: bool) -> None:
        """The machine's process ends now; with ``power``, so does the page cache."""
        now_s, rng = self.loop.time(), self.random
        self.open_indexes.clear()
        for device in self.devices:
            device.busy_until_s = now_s
        keep_writes = self._torn if power else _keep_write
        seen: dict[int, None] = {}
        for directory in self._directories.values():
            for inode in [*directory.names.values(), *directory.durable.values()]:
                if id(inode) not in seen:
                    seen[id(inode)] = None
                    inode.crash(now_s, keep_writes)
            directory.crash(now_s, (lambda n: rng.randint(0, n)) if power else _keep_names)
        for index in self.indexes.values():
            index.crash(now_s, (lambda n: rng.randint(0, n)) if power else _keep_names)
        if power:
            self._settle_all()
        self.used_bytes = sum(inode.stored_bytes for inode in self._inodes())

    def _torn(self, write: Write) -> Sequence[Write]:
        """What a power cut leaves of an unsynced write."""
        choice = self.random.random()
        if choice < 0.4:
            return []
        if choice < 0.7 or write.ends:
            return [write]
        pieces, position, end = [], write.offset, write.offset + len(write.data)
        while position < end:
            stop = min(end, (position // SECTOR_BYTES + 1) * SECTOR_BYTES)
            if self.random.random() < 0.5:
                data = write.data[position - write.offset : stop - write.offset]
                pieces.append(Write(write.at_s, position, data))
            position = stop
        return pieces

    def _settle_all(self) -> None:
        """After a power cut, what is there is what is on the platter."""
        for directory in self._directories.values():
            directory.durable = dict(directory.names)
            directory.pending.clear()
        for inode in self._inodes():
            inode.durable = bytearray(inode.data)
            inode.pending.clear()
        for index in self.indexes.values():
            index.settle_all()

    def _inodes(self) -> Iterator[Inode]:
        for each in self._directories.values():
            yield from each.names.values()

    def wipe(self, root: Path) -> None:
        """Everything below ``root`` is gone. While no process uses the disk."""
        for kept in (self._directories, self.indexes):
            for path in [path for path in kept if path.is_relative_to(root)]:
                del kept[path]
        self._directories.setdefault(root, Directory())
        self.used_bytes = sum(inode.stored_bytes for inode in self._inodes())

    def spoil(self, root: Path) -> str:
        """Some sectors of a journal or an entry log below ``root`` cannot be read until they are
        written again: at its beginning, its end or anywhere, in one page of several. Says where;
        empty: there is no such file."""
        files = [
            (path / name, inode)
            for path, directory in self._directories.items()
            if path.is_relative_to(root)
            for name, inode in directory.names.items()
            if len(inode.data) > PAGE_BYTES and (name.endswith(".log") or _written(name, inode))
        ]
        if not files:
            return ""
        path, inode = self.random.choice(files)
        size = _written(path.name, inode) or len(inode.data)
        last = (size - 1) // SECTOR_BYTES
        first = self.random.choice((0, last, self.random.randint(0, last)))
        page_end = (first * SECTOR_BYTES // PAGE_BYTES + 1) * PAGE_BYTES // SECTOR_BYTES
        for sector in range(first, min(first + self.random.choice((1, 3)), last + 1, page_end)):
            inode.bad_sectors[sector] = None
        return f"{path} from {first * SECTOR_BYTES} on"

    def unreadable(self, path: Path, offset: int, byte_count: int) -> bool:
        """Whether a read of these bytes fails for a sector."""
        inode = self._directory(path.parent).names[path.name]
        start = offset - offset % PAGE_BYTES
        end = -(-(offset + byte_count) // PAGE_BYTES) * PAGE_BYTES
        return not inode.readable(start, end - start)

    def rot(self, root: Path, latest: bool = False) -> str:
        """One byte of one file below ``root`` changes; says where, empty if there is no file.
        ``latest``: one of the last that were written to a journal."""
        files = [
            (path / name, inode)
            for path, directory in self._directories.items()
            if path.is_relative_to(root)
            for name, inode in directory.names.items()
            if inode.data and (not latest or _written(name, inode) > SECTOR_BYTES)
        ]
        if not files:
            return ""
        path, inode = self.random.choice(files)
        low, high = 0, len(inode.data)
        if latest:
            path, inode = max(files, key=lambda file: (file[0].parent == path.parent, file[0]))
            high = _written(path.name, inode)
            low = max(SECTOR_BYTES, high - LATEST_BYTES)
        offsets = [self.random.randrange(low, high) for _ in range(10)]
        offset = next((at for at in offsets if inode.data[at]), offsets[0])
        inode.data[offset] ^= 1 << self.random.randrange(8)
        inode.durable = bytearray(inode.data)
        inode.pending.clear()
        return f"{path} at {offset}"


def _written(name: str, inode: Inode) -> int:
    """How far a journal file has been written, if it is one."""
    return len(inode.data.rstrip(b"\0")) if name.endswith(".journal") else 0


def _keep_write(write: Write) -> list[Write]:
    return [write]


def _keep_names(count: int) -> int:
    return count


class SimLane:
    """A ``Lane``: jobs run one after the other, each for the time of its operations."""

    def __init__(self, disk: SimDisk, reads: bool = False) -> None:
        self._disk = disk
        self._loop = disk.loop
        self._reads = reads
        self._jobs: list[tuple[float | None, Callable[[], None]]] = []
        self._busy = False
        self._in_job = False
        self._last_post_s = 0.0
        self._closed = False

    def submit(self, job: Callable[[], None]) -> None:
        assert not self._closed, "the lane is closed"
        random, delay_s, asked_s = self._disk.random.random, 0.0, None
        if self._reads and self._disk.stall_chance and random() < self._disk.stall_chance:
            delay_s, asked_s = self._disk.random.choice(STALL_S) * random(), self._loop.time()
        self._jobs.append((asked_s, job))
        if not self._busy:
            self._busy = True
            self._loop.call_later(delay_s + START_S * (0.5 + random()), self._work)

    def _work(self) -> None:
        if not self._jobs:
            self._busy = False
            return
        self._disk.asked_s, job = self._jobs.pop(0)
        self._in_job, through_s = True, None
        try:
            through_s = self._disk.run_job(job)
        except Exception as error:  # as in the real lane
            log.error("job failed", error=repr(error), exc_info=error)
        finally:
            self._in_job = False
            self._disk.asked_s = None
            when_s = max(through_s or 0.0, self._last_post_s, self._loop.time())
            self._loop.call_at(when_s, self._work)

    def run(self, job: Callable[[], T]) -> asyncio.Future[T]:
        future: asyncio.Future[T] = self._loop.create_future()

        def work() -> None:
            try:
                result = job()
            except Exception as error:  # noqa: BLE001 - handed to the caller, whatever it is
                self.post(_fail, future, error)
            else:
                self.post(_succeed, future, result)

        self.submit(work)
        return future

    def post(self, callback: Callable[P, None], *args: P.args, **kwargs: P.kwargs) -> None:
        when_s = self._disk.cursor_s if self._in_job else self._loop.time()
        self._last_post_s = when_s = max(when_s, self._last_post_s)
        self._loop.call_at(when_s, lambda: callback(*args, **kwargs))

    async def close(self) -> None:
        if self._closed:
            return
        last = self.run(lambda: None)
        self._closed = True
        await asyncio.shield(last)


def _succeed(future: asyncio.Future[T], result: T) -> None:
    if not future.done():
        future.set_result(result)


def _fail(future: asyncio.Future[T], error: Exception) -> None:
    if not future.done():
        future.set_exception(error)
