"""The trace that ``shim.c`` writes: what a process did to the files below a directory, in order."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from enum import IntEnum
from pathlib import Path
from typing import NamedTuple

_HEAD = struct.Struct("<IIQqqIIII")
_MAGIC = 0x504F5752
DURABLE = 1


class ChangeKind(IntEnum):
    OPENED = 1
    CREATED = 2
    WRITTEN = 3
    SYNC_BEGUN = 4
    SYNCED = 5
    TRUNCATED = 6
    RENAMED = 7
    REMOVED = 8
    MADE = 9
    PUNCHED = 10
    ALLOCATED = 11
    UNKNOWN = 12
    LINKED = 13
    MAPPED = 14


class FileChange(NamedTuple):
    """``first`` and ``second``: offset and length, a new size, or a sync's number; ``flags``:
    ``DURABLE`` of a write, the mode of an allocation."""

    kind: ChangeKind
    inode: int
    first: int
    second: int
    flags: int
    path: str
    other: str
    data: bytes


def read_trace(path: Path) -> Iterator[FileChange]:
    """Every whole record; the last may have been cut short by the kill."""
    data = path.read_bytes()
    at = 0
    while at + _HEAD.size <= len(data):
        magic, kind, inode, first, second, flags, *sizes = _HEAD.unpack_from(data, at)
        assert magic == _MAGIC, f"{path} is no trace at {at}"
        if at + _HEAD.size + sum(sizes) > len(data):
            return
        at += _HEAD.size
        parts: list[bytes] = []
        for size in sizes:
            parts.append(data[at : at + size])
            at += size
        written = parts[2]
        name, other = parts[0].decode(), parts[1].decode()
        yield FileChange(ChangeKind(kind), inode, first, second, flags, name, other, written)
