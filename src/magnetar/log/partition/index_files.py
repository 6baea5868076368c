"""The two sparse indexes of a segment: offset -> byte, and time -> offset.

Owns the bytes of ``.index`` and ``.timeindex``. Pure: the segment reads and writes the files.

Rules:

* An entry is added when more than ``index_interval_bytes`` were appended since the last one, so
  that a look-up is a binary search and a scan of about that much.
* An index is a hint that can be made again from its ``.log``; whoever finds one that cannot be true
  (``suspicious``) does so.
* Entries grow strictly in both of their parts.

Layout, big-endian: ``.index`` has 8 bytes an entry, the last offset of a batch (less the segment's
base offset) and the byte at which that batch begins; ``.timeindex`` has 12, the greatest time up to
there, and the last offset (relative) of the batch that has it. Source: Kafka's ``OffsetIndex`` and
``TimeIndex``.
"""

from __future__ import annotations

import struct
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from operator import itemgetter
from typing import Final, NamedTuple

_OFFSET_ENTRY: Final = struct.Struct(">ii")
_TIME_ENTRY: Final = struct.Struct(">qi")
RELATIVE_MAX: Final = (1 << 31) - 1
"""Offsets of a segment lie within this of its base offset; its bytes too."""


class Doubt(NamedTuple):
    """Why an index is not believed, in words. ``beyond``: it points past the end of its ``.log``,
    which has been longer then."""

    why: str
    beyond: bool = False


class OffsetIndex:
    """Where batches begin. ``data`` is the file."""

    def __init__(self, base_offset: int, data: bytes = b"") -> None:
        self._base = base_offset
        self._entries, self._torn = _read(_OFFSET_ENTRY, data)

    @property
    def data(self) -> bytes:
        return b"".join(_OFFSET_ENTRY.pack(*entry) for entry in self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def append(self, last_offset: int, position: int) -> None:
        self._entries.append((last_offset - self._base, position))

    def position_before(self, offset: int) -> int:
        """A byte at which a batch begins that is not after ``offset``; the greatest known."""
        at = bisect_right(self._entries, (offset - self._base, RELATIVE_MAX)) - 1
        return self._entries[at][1] if at >= 0 else 0

    def byte_before(self, position: int) -> int:
        """A byte at which a batch begins that is not after ``position``; the greatest known."""
        at = bisect_right(self._entries, position, key=itemgetter(1)) - 1
        return self._entries[at][1] if at >= 0 else 0

    def truncate(self, offset: int) -> None:
        """Entries of ``offset`` and after it go."""
        del self._entries[bisect_left(self._entries, (offset - self._base, -1)) :]

    def suspicious(self, log_bytes: int) -> Doubt | None:
        """Why this cannot be the index of a ``.log`` of that size."""
        wrong = _wrong(self._entries, self._torn)
        if wrong is None and self._entries and self._entries[-1][1] >= log_bytes:
            return Doubt(f"it points at byte {self._entries[-1][1]} of {log_bytes}", beyond=True)
        return wrong


class TimeIndex:
    """The greatest time so far, and whose it is. ``data`` is the file."""

    def __init__(self, base_offset: int, data: bytes = b"") -> None:
        self._base = base_offset
        self._entries, self._torn = _read(_TIME_ENTRY, data)

    @property
    def data(self) -> bytes:
        return b"".join(_TIME_ENTRY.pack(*entry) for entry in self._entries)

    @property
    def last(self) -> tuple[int, int]:
        """(time, offset) of the last entry; (-1, base offset) without one."""
        if not self._entries:
            return -1, self._base
        time_ms, relative = self._entries[-1]
        return time_ms, self._base + relative

    def __len__(self) -> int:
        return len(self._entries)

    def append(self, time_ms: int, offset: int) -> None:
        """Nothing if ``time_ms`` is not later than the last entry's."""
        last_ms, last_offset = self.last
        if time_ms > last_ms and (offset > last_offset or not self._entries):
            self._entries.append((time_ms, offset - self._base))

    def offset_before(self, time_ms: int) -> int:
        """All up to there, exclusive, is older than ``time_ms``."""
        at = bisect_left(self._entries, (time_ms, -1)) - 1
        return self._base + (self._entries[at][1] + 1 if at >= 0 else 0)

    def truncate(self, offset: int) -> None:
        while self._entries and self._entries[-1][1] >= offset - self._base:
            self._entries.pop()

    def suspicious(self) -> Doubt | None:
        return _wrong(self._entries, self._torn)


def _read(entry: struct.Struct, data: bytes) -> tuple[list[tuple[int, int]], bool]:
    """The entries of a file, and whether it ends within one."""
    whole = len(data) - len(data) % entry.size
    return list(entry.iter_unpack(data[:whole])), whole != len(data)


def _wrong(entries: Sequence[tuple[int, int]], torn: bool) -> Doubt | None:
    """Why these cannot be the entries of an index."""
    if torn:
        return Doubt("its size is no multiple of an entry's")
    before = (-1, -1)
    for entry in entries:
        if entry[0] <= before[0] or entry[1] <= before[1]:
            return Doubt(f"entry {entry} comes after {before}")
        before = entry
    return None
