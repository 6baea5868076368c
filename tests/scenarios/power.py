"""A machine whose power goes: what was not synced may be there, half there, or not at all.

``PowerDisk`` is the disk seam over real files, without real syncs. It remembers what to take back:

* each 512-byte sector written since the file's last ``datasync`` (and not written
  through): the old bytes may come back;
* a file's growth since then: the length may come back;
* each create, rename and removal since the directory's last ``sync_dir``: a random number of the
  latest are undone, in reverse order.

``cut`` takes the power away: writes and syncs fail from then on, so nothing is acknowledged any
more. ``lose``, once all is closed, takes back what a seeded coin says.

The location index does its own input and output; ``PoweredIndex`` falls back to its last sync.
"""

from __future__ import annotations

import random
import shutil
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import count
from pathlib import Path

from rocksdict import Checkpoint

from magnetar.bookie.storage.location_index import LocationIndex
from magnetar.env.files.disk import Buffer, DiskFile, RealDisk
from magnetar.model.errors import BookieIOError

SECTOR_BYTES = 512
HIDDEN = "undo"
"""Directory beside the machine's own for what was removed and may come back."""


class Unsynced:
    """What one file may fall back to."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.synced_size = size
        self.sectors: dict[int, bytes] = {}


class PowerFile:
    """A file of a ``PowerDisk``."""

    def __init__(self, file: DiskFile, disk: PowerDisk, unsynced: Unsynced) -> None:
        self.path = file.path
        self._file = file
        self._disk = disk
        self._unsynced = unsynced

    def pwritev(self, parts: Sequence[Buffer], offset: int) -> None:
        with self._disk.powered():
            self._write(parts, offset)

    def write_through(self, parts: Sequence[Buffer], offset: int) -> None:
        """One that comes as the power goes is under way: it may be torn."""
        with self._disk.lock:
            sectors = self._write(parts, offset)
            with self._disk.powered():
                for sector in sectors:
                    self._unsynced.sectors.pop(sector, None)
                self._unsynced.synced_size = self._unsynced.size

    def truncate(self, byte_count: int) -> None:
        raise AssertionError("what these scenarios run cuts no file")

    def punch(self, byte_count: int, offset: int) -> None:
        with self._disk.powered():
            self._remember(offset, offset + byte_count)
            self._file.punch(byte_count, offset)

    def _write(self, parts: Sequence[Buffer], offset: int) -> range:
        """Returns the sectors that were touched."""
        end = offset + sum(map(len, parts))
        touched = self._remember(offset, end)
        self._file.pwritev(parts, offset)
        self._unsynced.size = max(self._unsynced.size, end)
        return touched

    def _remember(self, offset: int, end: int) -> range:
        """What the sectors held that are about to be touched; returns them."""
        touched = range(offset // SECTOR_BYTES, -(-end // SECTOR_BYTES))
        old_bytes = self._unsynced.sectors
        for sector in touched:
            if sector not in old_bytes:
                old = self._file.pread(SECTOR_BYTES, sector * SECTOR_BYTES)
                old_bytes[sector] = old.ljust(SECTOR_BYTES, b"\0")
        return touched

    def pread(self, byte_count: int, offset: int) -> bytes:
        return self._file.pread(byte_count, offset)

    def datasync(self) -> None:
        with self._disk.powered():
            self._unsynced.sectors.clear()
            self._unsynced.synced_size = self._unsynced.size

    def close(self) -> None:
        self._file.close()


class PowerDisk(RealDisk):
    """The disk of one machine, all of it below ``root``."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self.lock = threading.RLock()
        self._has_power = True
        self._files: dict[int, tuple[Path, Unsynced]] = {}  # inode -> how it was opened
        self._undo: dict[Path, list[Callable[[], None]]] = {}  # directory -> what undoes it
        self._numbers = count()
        shutil.rmtree(root / HIDDEN, ignore_errors=True)  # of an earlier life
        (root / HIDDEN).mkdir(parents=True)

    @contextmanager
    def powered(self) -> Iterator[None]:
        """Inside, the power stays. Raises ``OSError`` when it is gone."""
        with self.lock:
            if not self._has_power:
                raise OSError("the power is gone")
            yield

    def cut(self) -> None:
        with self.lock:
            self._has_power = False

    def open(self, path: Path, *, create: bool = False) -> DiskFile:
        with self.powered() if create else self.lock:
            new = not path.exists()
            file = super().open(path, create=create)
            inode = path.stat().st_ino
            if new:
                self._note(path.parent, partial(path.unlink, missing_ok=True))
                self._files[inode] = (path, Unsynced(0))
            elif inode not in self._files:
                self._files[inode] = (path, Unsynced(path.stat().st_size))
            return PowerFile(file, self, self._files[inode][1])

    def rename(self, old: Path, new: Path) -> None:
        with self.powered():
            kept = self._keep(new) if new.exists() else None
            super().rename(old, new)
            self._note(new.parent, partial(_rename_back, old, new, kept))

    def remove(self, path: Path) -> None:
        with self.powered():
            kept = self._keep(path)
            super().remove(path)
            self._note(path.parent, partial(_put_back, kept, path))

    def sync_dir(self, path: Path) -> None:
        with self.powered():
            self._undo.pop(path, None)

    def _keep(self, path: Path) -> Path:
        kept = self._root / HIDDEN / str(next(self._numbers))
        kept.hardlink_to(path)
        return kept

    def _note(self, directory: Path, undo: Callable[[], None]) -> None:
        self._undo.setdefault(directory, []).append(undo)

    def lose(self, rng: random.Random, survival: float) -> None:
        """Take back what did not survive, each piece with the probability ``survival``. All files
        are closed."""
        assert not self._has_power
        for directory in sorted(self._undo):
            undoes = self._undo[directory]
            kept = sum(rng.random() < survival for _ in undoes)
            for undo in reversed(undoes[kept:]):
                undo()
        paths = {path.stat().st_ino: path for path in self._root.rglob("*") if path.is_file()}
        for inode, (_, unsynced) in sorted(self._files.items()):
            if inode in paths:
                _fall_back(paths[inode], unsynced, survival, rng)


def _fall_back(path: Path, unsynced: Unsynced, survival: float, rng: random.Random) -> None:
    with path.open("r+b") as file:
        for sector, old in sorted(unsynced.sectors.items()):
            if rng.random() >= survival:
                file.seek(sector * SECTOR_BYTES)
                file.write(old)
        if unsynced.sectors and rng.random() >= survival:
            file.truncate(unsynced.synced_size)


def _rename_back(old: Path, new: Path, kept: Path | None) -> None:
    new.rename(old)
    if kept is not None:
        kept.rename(new)


def _put_back(kept: Path, path: Path) -> None:
    kept.rename(path)


class PoweredIndex(LocationIndex):
    """A location index that loses whatever came after its last ``sync``. The names of the
    checkpoints tell ``lose_index`` what is left."""

    def __init__(self, disk: PowerDisk, path: Path) -> None:
        super().__init__(path)
        self._disk = disk
        self._numbers = count(1 + _latest(path)[0])

    def sync(self) -> None:
        super().sync()
        try:
            with self._disk.powered():
                number = next(self._numbers)
                target = self.path.with_name(f"{self.path.name}-synced-{number}")
                Checkpoint(self._db).create_checkpoint(str(target))
        except OSError as error:
            raise BookieIOError(f"location index {self.path}: {error}") from error
        before = self.path.with_name(f"{self.path.name}-synced-{number - 1}")
        shutil.rmtree(before, ignore_errors=True)


def lose_index(path: Path) -> None:
    """The power is gone: back to the last sync, or to nothing."""
    _, synced = _latest(path)
    shutil.rmtree(path)
    if synced is not None:
        shutil.copytree(synced, path)


def _latest(path: Path) -> tuple[int, Path | None]:
    found = {int(each.name.rpartition("-")[2]): each for each in path.parent.glob("*-synced-*")}
    number = max(found, default=0)
    return number, found.get(number)
