"""Files that are replaced, or written to in vain: what is under their names, at every moment."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from pathlib import Path

import pytest

from magnetar.env.files.disk import Buffer, DiskFile, RealDisk
from magnetar.log.partition.checkpoint_files import replace_file
from magnetar.log.partition.group_append import append_group
from magnetar.log.partition.local_log import Appended
from magnetar.model.errors import NoSpaceError
from tests.unit.log.partition.kit import NOW_MS, batch, filled, offsets, opened


class NotedFile:
    def __init__(self, file: DiskFile, disk: NotedDisk) -> None:
        self._file, self._disk = file, disk

    def __getattr__(self, name: str) -> object:
        return getattr(self._file, name)

    def pwritev(self, parts: Sequence[Buffer], offset: int) -> None:
        self._disk.events.append("write")
        self._file.pwritev(parts, offset)
        if self._disk.full:  # it had room for all of this, and not for its blocks
            raise OSError(errno.ENOSPC, "No space left on device")

    def write_through(self, parts: Sequence[Buffer], offset: int) -> None:
        self.pwritev(parts, offset)
        self.datasync()

    def datasync(self) -> None:
        self._disk.events.append("sync")
        self._file.datasync()


class NotedDisk(RealDisk):
    """``full``: whatever is written is told to have had no room, though it is there."""

    def __init__(self) -> None:
        super().__init__()
        self.events: list[str] = []
        self.full = False

    def open(self, path: Path, *, create: bool = False) -> DiskFile:
        return NotedFile(super().open(path, create=create), self)  # type: ignore[return-value]

    def rename(self, old: Path, new: Path) -> None:
        self.events.append("rename")
        super().rename(old, new)

    def sync_dir(self, path: Path) -> None:
        self.events.append("sync names")
        super().sync_dir(path)


@pytest.mark.parametrize("left", [False, True])
def test_a_file_is_whole_on_the_disk_before_it_has_its_name(tmp_path: Path, left: bool) -> None:
    disk, path = NotedDisk(), tmp_path / "offsets"
    path.write_bytes(b"old and longer")
    if left:  # by an attempt that failed
        (tmp_path / "offsets.tmp").write_bytes(b"of another attempt, and much longer")
    replace_file(disk, path, b"new")
    assert path.read_bytes() == b"new"
    assert disk.events == ["write", "sync", "rename", "sync names"]


def test_what_was_refused_for_want_of_room_is_not_found_after_a_crash(tmp_path: Path) -> None:
    """Its producer sends it again: it would be there twice."""
    disk = NotedDisk()
    log, _ = opened(tmp_path / "t-0", disk=disk)
    filled(log, 3)
    before = offsets(log)
    disk.full = True
    result = append_group(log, [bytearray(batch([b"refused"]))], 0, NOW_MS)
    assert [type(each) for each in result.outcomes] == [NoSpaceError]
    disk.full = False
    log.abandon()
    found, _ = opened(tmp_path / "t-0")
    assert offsets(found) == before
    again = append_group(found, [bytearray(batch([b"again"]))], 1, NOW_MS)
    assert [type(each) for each in again.outcomes] == [Appended]
