"""The files of one journal directory: names, preparing, recycling.

Names: ``<id>.journal`` (16 hex digits) for a file that is, was or is about to be written, and
``<id>.spare`` for a spent one kept for reuse. An id is never given twice, not even to a file that
was prepared and never begun: its blocks may hold records sealed under that id.

A prepared file is pre-zeroed (or recycled) to its full size, so that a commit overwrites blocks
that exist: no allocation and no metadata write in ``fdatasync``.
"""

from __future__ import annotations

import errno
import time
from collections import deque
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from magnetar.bookie.directory_names import CURRENT, VERSION
from magnetar.env.files.disk import PAGE_BYTES, Disk, DiskFile

JOURNAL_SUFFIX = ".journal"
SPARE_SUFFIX = ".spare"
_SUFFIXES = (JOURNAL_SUFFIX, SPARE_SUFFIX)
ZERO_BYTES = 1 << 20
ZERO_PAUSE_S = 0.002
"""Between chunks while zeroing, so that commits of the live file get the device too."""
BAD_PAGES_MAX = 64
"""With more than these unreadable, or a quarter of what is there, the device is to be looked at
and not read around: it may be none of the bytes' fault."""
READ_TRIES = 3
READ_AGAIN_S = 0.5
"""Pages that cannot be read are looked at again, so often and so much later: what is given up here
puts the bookie into limbo for good, and a fault of a cable or a controller passes."""
BAD_PAGES_FEW = 3
"""So many are few in any file: else one page of a small file would keep its bookie from ever
starting."""


class JournalFile(NamedTuple):
    """An open journal file; ``prepared``: its blocks exist already."""

    file_id: int
    file: DiskFile
    prepared: bool


class JournalDirectory:
    """Used by one thread at a time, except ``create_plain``, which touches no shared state."""

    def __init__(
        self,
        disk: Disk,
        path: Path,
        file_bytes: int,
        recycled_files_max: int,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.path = path
        self._disk = disk
        self._file_bytes = file_bytes
        self._recycled_files_max = recycled_files_max
        self._sleep = sleep
        self._spares: list[int] = []

    def scan(self) -> list[int]:
        """Create the directory if it is missing; the ids of its journal files, ascending."""
        self._disk.make_dir(self.path)
        names = self._disk.list(self.path)
        self._spares = _ids(names, SPARE_SUFFIX)
        return _ids(names, JOURNAL_SUFFIX)

    @property
    def highest_spare_id(self) -> int:
        return max(self._spares, default=0)

    @property
    def has_spare(self) -> bool:
        return bool(self._spares)

    def file_path(self, file_id: int) -> Path:
        return self.path / f"{file_id:016x}{JOURNAL_SUFFIX}"

    def size(self, file_id: int) -> int:
        return self._disk.size(self.file_path(file_id))

    def read(self, file_id: int, offset: int) -> tuple[bytes, list[tuple[int, int]]]:
        """The file's bytes from ``offset`` to its end, and the [start, end) of it that the device
        cannot read, which are zeros here. Raises ``OSError`` if it is not a few places only."""
        path = self.file_path(file_id)
        size = max(self._disk.size(path) - offset, 0)
        file = self._disk.open(path)
        try:
            return file.pread(size, offset), []
        except OSError:
            data, bad = _read_around(file, offset, offset + size)
            bad = self._read_again(file, offset, data, bad)
            if sum(last - first for first, last in bad) == size:
                self._require_sound(file, offset)
            return bytes(data), bad
        finally:
            file.close()

    def _require_sound(self, file: DiskFile, end: int) -> None:
        """Nothing from ``end`` on could be read. Raises ``OSError`` if no page before it can be
        either, nor the beginning of any other file of this directory: then it may be the device,
        and not these few pages. (A file of one page, and that lost, must not keep its bookie from
        ever starting.)"""
        places = [(file.path, first) for first in range(0, end, PAGE_BYTES)[:BAD_PAGES_FEW]]
        names = self._disk.list(self.path)
        others = [self.path / name for name in names if name.endswith(_SUFFIXES)]
        places += [(path, 0) for path in others if path != file.path][:BAD_PAGES_FEW]
        places.append((self.path / CURRENT / VERSION, 0))
        if not any(self._reads(path, first) for path, first in places):
            raise OSError(errno.EIO, "Input/output error", str(file.path))

    def _reads(self, path: Path, offset: int) -> bool:
        """Whether the device (and not the kernel's memory) gives the page there."""
        try:
            self._disk.drop_cached(path, offset, offset + PAGE_BYTES)
            file = self._disk.open(path)
            try:
                return bool(file.pread(PAGE_BYTES, offset))
            finally:
                file.close()
        except OSError:
            return False

    def _read_again(
        self, file: DiskFile, base: int, data: bytearray, bad: list[tuple[int, int]]
    ) -> list[tuple[int, int]]:
        """Fill into ``data`` (the file's from ``base`` on) what can be read by now; returns the
        places that still cannot."""
        for _ in range(READ_TRIES - 1):
            if not bad:
                break
            self._sleep(READ_AGAIN_S)
            bad = [place for place in bad if not _read_into(file, base, data, place)]
        return bad

    def read_header(self, file_id: int, byte_count: int) -> bytes:
        """The file's first bytes; none if the device cannot read them."""
        return self.read_part(file_id, 0, byte_count)

    def read_part(self, file_id: int, start: int, end: int) -> bytes:
        """The file's bytes [start, end); none if the device cannot read them."""
        data = bytearray(end - start)
        file = self._disk.open(self.file_path(file_id))
        try:
            if not _read_into(file, start, data, (start, end)):
                bad = self._read_again(file, start, data, [(start, end)])
                return b"" if bad else bytes(data)
            return bytes(data)
        finally:
            file.close()

    def sync(self, file_id: int) -> None:
        """The file's bytes, whoever wrote them, are durable on return."""
        file = self._disk.open(self.file_path(file_id))
        try:
            file.datasync()
        finally:
            file.close()

    def create_plain(self, file_id: int) -> JournalFile:
        """A new file with nothing prepared; its name is durable on return."""
        file = self._disk.open(self.file_path(file_id), create=True)
        self._ready(file, zeroed=False)
        return JournalFile(file_id, file, prepared=False)

    def create_prepared(self, file_id: int) -> JournalFile:
        """A recycled file, or a new one zeroed to its full size. Slow; not on the commit path."""
        path = self.file_path(file_id)
        recycled = bool(self._spares)
        file = self._recycle(path) if recycled else self._disk.open(path, create=True)
        self._ready(file, zeroed=not recycled)
        return JournalFile(file_id, file, prepared=True)

    def _recycle(self, path: Path) -> DiskFile:
        spare = self._spare_path(self._spares[-1])
        self._disk.rename(spare, path)
        try:
            file = self._disk.open(path)
        except OSError:  # no descriptor, say; under its new name nobody would ever take it
            self._disk.rename(path, spare)
            raise
        self._spares.pop()
        return file

    def _ready(self, file: DiskFile, zeroed: bool) -> None:
        """Have a new file's name durable, and its blocks if it is to have any."""
        try:
            if zeroed:
                self._fill_with_zeros(file)
            self._disk.sync_dir(self.path)
        except OSError:  # a full disk gets back what there is of it; the next try makes another
            file.close()
            self._disk.remove(file.path)
            raise

    def _fill_with_zeros(self, file: DiskFile) -> None:
        zeros = bytes(ZERO_BYTES)
        for offset in range(0, self._file_bytes, ZERO_BYTES):
            file.pwritev([zeros[: self._file_bytes - offset]], offset)
            file.datasync()
            self._sleep(ZERO_PAUSE_S)

    def retire(self, file_ids: Sequence[int]) -> None:
        """Keep spent files for reuse, as many as allowed and only whole ones; remove the rest."""
        for file_id in file_ids:
            path = self.file_path(file_id)
            fits = self._disk.size(path) == self._file_bytes
            if fits and len(self._spares) < self._recycled_files_max:
                self._disk.rename(path, self._spare_path(file_id))
                self._spares.append(file_id)
            else:
                self._disk.remove(path)
        if file_ids:
            self._disk.sync_dir(self.path)

    def _spare_path(self, file_id: int) -> Path:
        return self.path / f"{file_id:016x}{SPARE_SUFFIX}"


def _read_into(file: DiskFile, base: int, data: bytearray, place: tuple[int, int]) -> bool:
    """False: it cannot be read. What is behind the file's end is left out of ``data``."""
    first, last = place
    try:
        found = file.pread(last - first, first)
    except OSError:
        return False
    data[first - base : last - base] = found
    return True


def _read_around(file: DiskFile, start: int, end: int) -> tuple[bytearray, list[tuple[int, int]]]:
    """As ``JournalDirectory.read``, page by page where it has to be."""
    data, bad = bytearray(end - start), []
    pages_max = min(BAD_PAGES_MAX, max((end - start) // (4 * PAGE_BYTES), BAD_PAGES_FEW))
    pieces = deque(_pieces(start, end, ZERO_BYTES))
    while pieces:
        first, last = pieces.popleft()
        try:
            data[first - start : last - start] = file.pread(last - first, first)
        except OSError:
            if last - first > PAGE_BYTES:
                pieces.extendleft(reversed(_pieces(first, last, PAGE_BYTES)))
                continue
            bad.append((first, last))
            if len(bad) > pages_max:
                raise
    return data, bad


def _pieces(start: int, end: int, size: int) -> list[tuple[int, int]]:
    """[start, end) cut at multiples of ``size``."""
    cuts = [start, *range(start - start % size + size, end, size), end]
    return list(pairwise(cuts))


def _ids(names: Sequence[str], suffix: str) -> list[int]:
    """Ids out of file names; names that are not ours are left alone."""
    found = []
    for name in names:
        stem = name.removesuffix(suffix)
        if name.endswith(suffix) and len(stem) == 16 and not set(stem) - set("0123456789abcdef"):
            found.append(int(stem, 16))
    return sorted(found)
