"""Names of files after a power cut, on a file system that keeps them with the file's first sync."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from magnetar.proving.power_cut.disk import ModelDisk
from magnetar.proving.power_cut.trace import ChangeKind, FileChange

NUMBERS = {"journal": 10, "first": 11, "second": 12, "third": 13}


def change(kind: ChangeKind, path: Path, first: int = 0, data: bytes = b"") -> FileChange:
    return FileChange(kind, NUMBERS[path.name], first, 0, 0, str(path), "", data)


def synced(path: Path) -> list[FileChange]:
    return [change(ChangeKind.SYNC_BEGUN, path, 1), change(ChangeKind.SYNCED, path, 1)]


@pytest.mark.parametrize(
    ("synced_names", "left"),
    [(False, []), (True, ["journal", "journal/first", "journal/second"])],
)
def test_a_sync_keeps_the_name_and_those_before_it(
    tmp_path: Path, synced_names: bool, left: list[str]
) -> None:
    root = tmp_path / "root"
    root.mkdir()
    disk = ModelDisk(root, synced_names=synced_names)
    folder = root / "journal"
    first, second, third = (folder / name for name in ("first", "second", "third"))
    disk.feed(
        [
            change(ChangeKind.MADE, folder),
            change(ChangeKind.CREATED, first),
            change(ChangeKind.WRITTEN, first, data=b"lost"),
            change(ChangeKind.CREATED, second),
            change(ChangeKind.WRITTEN, second, data=b"kept"),
            *synced(second),
            change(ChangeKind.CREATED, third),
        ]
    )
    after = tmp_path / "after"
    disk.write(after, random.Random(1), 0.0)
    assert sorted(str(each.relative_to(after)) for each in after.rglob("*")) == left
    if synced_names:
        assert (after / "journal" / "first").read_bytes() == b""
        assert (after / "journal" / "second").read_bytes() == b"kept"
