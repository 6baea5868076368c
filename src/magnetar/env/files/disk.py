"""The disk seam: files, directories and the threads that block on them.

Owns every blocking disk call that the storage server makes. A simulator implements ``Disk``,
``DiskFile`` and ``Lane`` and so replaces the disk and the threads together.

Rules:

* A ``DiskFile`` method either does all of what it was asked or raises ``OSError``; short writes
  and ``IOV_MAX`` are dealt with here.
* Jobs of one lane run one after the other, in the order they were given. Lanes run beside each
  other.
* A file's bytes are durable after ``datasync``; its *name* is durable after ``sync_dir`` of its
  directory.
"""

from __future__ import annotations

import asyncio
import ctypes
import errno
import os
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from typing import NamedTuple, ParamSpec, Protocol, TypeAlias, TypeVar

import structlog

log = structlog.get_logger(__name__)

Buffer: TypeAlias = bytes | bytearray | memoryview
P = ParamSpec("P")
T = TypeVar("T")

IOV_MAX = 1024
"""Most buffers of one ``pwritev`` (Linux)."""

PAGE_BYTES = 4096
BLOCK_BYTES = 4096
"""What file systems give out and take back, mostly."""
SECTOR_BYTES = 512
"""What a device writes whole or not at all."""
CANNOT_PUNCH = frozenset((errno.EOPNOTSUPP, errno.ENOSYS))
_KEEP_SIZE, _PUNCH_HOLE = 1, 2  # of fallocate(2), Linux
NO_DESCRIPTOR = frozenset((errno.EMFILE, errno.ENFILE))
DESCRIPTOR_WAIT_S = 5.0
DESCRIPTOR_LOOK_S = 0.25
FLAG_UNKNOWN = frozenset((errno.EOPNOTSUPP, errno.ENOSYS))


class DiskFile(Protocol):
    """An open file. ``path`` is the name that it was opened under."""

    path: Path

    def pwritev(self, parts: Sequence[Buffer], offset: int) -> None:
        """Write ``parts`` one after the other from ``offset`` bytes on; grows the file."""
        ...

    def write_through(self, parts: Sequence[Buffer], offset: int) -> None:
        """As ``pwritev``; returns when these bytes are on the device (and with them what is
        needed to find them), as after ``datasync``, and fails as that does."""
        ...

    def pread(self, byte_count: int, offset: int) -> bytes:
        """Up to ``byte_count`` bytes from ``offset``; fewer only at the end of the file."""
        ...

    def datasync(self) -> None:
        """Return when everything written is on the device. After an ``OSError`` nothing may be
        assumed of what was written, not even if a second call succeeds."""
        ...

    def punch(self, byte_count: int, offset: int) -> None:
        """Give ``byte_count`` bytes from ``offset`` on back to the file system: they read as zeros,
        and the file keeps its length. Whole blocks come back, best in multiples of
        ``BLOCK_BYTES``. Durable, and room for others, after ``datasync``; before that a loss of
        power may leave any of them as they were. Raises ``OSError``; one in ``CANNOT_PUNCH``: not
        on this file system."""
        ...

    def truncate(self, byte_count: int) -> None:
        """The file has that many bytes from now on: what is behind them is gone, what is missing is
        zeros. Durable after ``datasync``; before that a loss of power may leave it as it was."""
        ...

    def close(self) -> None: ...


class DiskSpace(NamedTuple):
    total_bytes: int
    free_bytes: int


class Lane(Protocol):
    """A serial thread that runs blocking jobs for one owner."""

    def submit(self, job: Callable[[], None]) -> None:
        """Run ``job`` after all jobs given before. A job that raises is logged; jobs that can
        fail tell their owner themselves."""
        ...

    def run(self, job: Callable[[], T]) -> asyncio.Future[T]:
        """As ``submit``, with the job's result. Call on the loop."""
        ...

    def post(self, callback: Callable[P, None], *args: P.args, **kwargs: P.kwargs) -> None:
        """From a job: call ``callback`` on the owner's loop, soon."""
        ...

    async def close(self) -> None:
        """Run what was given, then end the thread. Idempotent."""
        ...


class Disk(Protocol):
    """A file system. Methods raise ``OSError``."""

    def open(self, path: Path, *, create: bool = False) -> DiskFile:
        """Open for reading and writing; with ``create`` the file may be missing."""
        ...

    def make_dir(self, path: Path) -> None:
        """Create a directory and its parents, durably; one that exists is fine."""
        ...

    def list(self, path: Path) -> list[str]:
        """The names in a directory, sorted."""
        ...

    def rename(self, old: Path, new: Path) -> None: ...

    def remove(self, path: Path) -> None:
        """A file, or an empty directory."""
        ...

    def sync_dir(self, path: Path) -> None: ...

    def drop_cached(self, path: Path, start: int, end: int) -> None:
        """Bytes [start, end) of a file need not stay in memory. Advice: what is not durable stays,
        and nothing is raised where it cannot be given (the file is gone, say)."""
        ...

    def size(self, path: Path) -> int:
        """A file's length in bytes."""
        ...

    def space(self, path: Path) -> DiskSpace:
        """Of the file system that holds ``path``."""
        ...

    def lane(self, name: str) -> Lane:
        """A new lane of the running loop; its thread starts with its first job."""
        ...


class RealFile:
    """A file of the operating system."""

    __slots__ = ("_fd", "path")

    def __init__(self, path: Path, fd: int) -> None:
        self.path = path
        self._fd = fd

    def pwritev(self, parts: Sequence[Buffer], offset: int) -> None:
        for start in range(0, len(parts), IOV_MAX):
            group = parts[start : start + IOV_MAX]
            size = sum(map(len, group))
            written = os.pwritev(self._fd, group, offset)
            if written < size:
                self._write_rest(b"".join(group), written, offset)
            offset += size

    def write_through(self, parts: Sequence[Buffer], offset: int) -> None:
        """One system call where one is enough: the thread gives the interpreter away (and waits
        to have it back) once, not twice."""
        if len(parts) <= IOV_MAX and self._written_through(parts, offset):
            return
        self.pwritev(parts, offset)
        self.datasync()

    def _written_through(self, parts: Sequence[Buffer], offset: int) -> bool:
        """False if it has to be done in two steps: after a short write, or where the kernel (an
        emulated one, an old one) does not know the flag."""
        try:
            return os.pwritev(self._fd, parts, offset, os.RWF_DSYNC) == sum(map(len, parts))
        except OSError as error:
            if error.errno not in FLAG_UNKNOWN:
                raise
            return False

    def _write_rest(self, data: bytes, written: int, offset: int) -> None:
        """Go on after a short write (a signal, or a disk about to be full)."""
        view = memoryview(data)
        while written < len(data):
            count = os.pwrite(self._fd, view[written:], offset + written)
            if count == 0:
                raise OSError(f"{self.path}: the device takes no more bytes")
            written += count

    def pread(self, byte_count: int, offset: int) -> bytes:
        data = os.pread(self._fd, byte_count, offset)
        if len(data) == byte_count or not data:
            return data
        parts = [data]
        got = len(data)
        while got < byte_count and (data := os.pread(self._fd, byte_count - got, offset + got)):
            parts.append(data)
            got += len(data)
        return b"".join(parts)

    def datasync(self) -> None:
        os.fdatasync(self._fd)

    def punch(self, byte_count: int, offset: int) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        call = getattr(libc, "fallocate64", None) or getattr(libc, "fallocate", None)
        if call is None:
            raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS), str(self.path))
        start, size = ctypes.c_int64(offset), ctypes.c_int64(byte_count)
        while call(self._fd, _PUNCH_HOLE | _KEEP_SIZE, start, size):
            if (code := ctypes.get_errno()) != errno.EINTR:
                raise OSError(code, os.strerror(code), str(self.path))

    def truncate(self, byte_count: int) -> None:
        os.ftruncate(self._fd, byte_count)

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


def _open(path: Path, flags: int) -> int:
    """As ``os.open``. No free descriptor is nothing that a disk does: another part of the process
    has taken too many for a moment (connections that are being refused, say), so that waiting is
    right, and failing a journal or a directory would be wrong."""
    for _ in range(round(DESCRIPTOR_WAIT_S / DESCRIPTOR_LOOK_S)):
        try:
            return os.open(path, flags, 0o644)
        except OSError as error:
            if error.errno not in NO_DESCRIPTOR:
                raise
            log.warning("no free file descriptor; waiting for one", path=str(path))
        time.sleep(DESCRIPTOR_LOOK_S)
    return os.open(path, flags, 0o644)


class RealDisk:
    """The operating system's files, and real threads."""

    def open(self, path: Path, *, create: bool = False) -> DiskFile:
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0)
        return RealFile(path, _open(path, flags))

    def make_dir(self, path: Path) -> None:
        if path.is_dir():
            return
        if path.parent != path:
            self.make_dir(path.parent)
        path.mkdir(exist_ok=True)
        self.sync_dir(path.parent)

    def list(self, path: Path) -> list[str]:
        return sorted(os.listdir(path))

    def rename(self, old: Path, new: Path) -> None:
        old.rename(new)

    def remove(self, path: Path) -> None:
        try:
            path.unlink()
        except IsADirectoryError:
            path.rmdir()

    def sync_dir(self, path: Path) -> None:
        fd = _open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def drop_cached(self, path: Path, start: int, end: int) -> None:
        with suppress(OSError):
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)  # advice is worth no wait for one
            start -= start % PAGE_BYTES  # the kernel drops whole pages only
            try:
                os.posix_fadvise(fd, start, end - start, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(fd)

    def size(self, path: Path) -> int:
        return path.stat().st_size

    def space(self, path: Path) -> DiskSpace:
        stat = os.statvfs(path)
        usable = stat.f_blocks - stat.f_bfree + stat.f_bavail  # without what root alone may take
        return DiskSpace(usable * stat.f_frsize, stat.f_bavail * stat.f_frsize)

    def lane(self, name: str) -> Lane:
        return SerialLane(name)


class SerialLane:
    """A daemon thread and its queue. Belongs to the loop it is made on; jobs may come from
    any thread.

    ``post`` is the only way back to the loop: one ``call_soon_threadsafe`` per call.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._jobs: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._loop = asyncio.get_running_loop()
        self._lock = threading.Lock()
        self._closed = False

    def _start(self) -> None:
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._main, name=self.name, daemon=True)
                self._thread.start()

    def submit(self, job: Callable[[], None]) -> None:
        assert not self._closed, f"lane {self.name} is closed"
        if self._thread is None:
            self._start()
        self._jobs.put(job)

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
        if kwargs:
            self._loop.call_soon_threadsafe(lambda: callback(*args, **kwargs))
        else:
            self._loop.call_soon_threadsafe(callback, *args)

    def _main(self) -> None:
        while (job := self._jobs.get()) is not None:
            try:
                job()
            except Exception as error:  # the lane outlives a broken job
                log.error("job failed", lane=self.name, error=repr(error), exc_info=error)
            del job  # what it holds (half of the write cache) is not to wait for the next one

    async def close(self) -> None:
        if self._closed:
            return
        if self._thread is None:
            self._closed = True
            return
        last = self.run(lambda: None)
        self._closed = True
        self._jobs.put(None)
        await asyncio.shield(last)
        self._thread.join()


def _succeed(future: asyncio.Future[T], result: T) -> None:
    if not future.done():
        future.set_result(result)


def _fail(future: asyncio.Future[T], error: Exception) -> None:
    if not future.done():
        future.set_exception(error)
