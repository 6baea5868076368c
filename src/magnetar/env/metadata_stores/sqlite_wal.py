"""Whether SQLite's write-ahead log is whole: SQLite itself takes one that is damaged for shorter,
and goes on without the transactions behind the damage, without a word.

Owns the reading of ``PATH-wal``; nothing is written. Pure but for that.

Rules:

* The log ends for SQLite at the first frame whose salts or checksum do not hold.
* A transaction is written only when the one before is synced (``synchronous=FULL``). So a torn end
  is within one transaction: a frame behind a commit, both of this life of the log and behind its
  end, says that what came before was synced, and is damaged now.
* Frames of earlier lives have other salts, and say nothing.

Why: docs/adr/0193-a-metadata-store-that-went-back-is-refused.md.
Source of the format: https://www.sqlite.org/fileformat2.html#walformat. Big-endian: a head of 32
bytes (magic, version, page size, checkpoint number, two salts, two checksums), and frames: page
number, pages of the database after a commit or 0, two salts, two checksums, the page.
"""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

_HEAD: Final = struct.Struct(">8I")
_FRAME: Final = struct.Struct(">6I")
_LITTLE, _BIG = 0x377F0682, 0x377F0683
_MASK: Final = 0xFFFFFFFF
_CHECKED_HEAD, _CHECKED_FRAME = 24, 8
_PAGE_MIN, _PAGE_MAX = 512, 65536


class _Frame(NamedTuple):
    start: int
    commits: bool
    salts: tuple[int, int]
    sums: tuple[int, int]


def damaged_at(path: Path) -> int | None:
    """The byte of the frame (0: of the head) that is damaged though it was synced; None: the log is
    whole, torn as by a crash, or not there. Raises ``OSError``."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    if len(data) < _HEAD.size:
        return None
    magic, _, page_bytes, _, *salts, first, second = _HEAD.unpack_from(data)
    frames = list(_frames(data, page_bytes))
    known = magic in (_LITTLE, _BIG)
    sums = _summed(data[:_CHECKED_HEAD], (0, 0), big=magic == _BIG)
    if not known or sums != (first, second):
        # Of a head that was torn when the log was begun anew neither salt is an earlier life's.
        life = tuple(salts)
        mine = [each for each in frames if each.salts[0] == life[0] or each.salts[1] == life[1]]
        return 0 if _follows_a_commit(mine) else None
    for at, frame in enumerate(frames):
        end = frame.start + _FRAME.size
        sums = _summed(data[frame.start : frame.start + _CHECKED_FRAME], sums, big=magic == _BIG)
        sums = _summed(data[end : end + page_bytes], sums, big=magic == _BIG)
        if frame.salts != tuple(salts) or frame.sums != sums:
            left = [each for each in frames[at:] if each.salts == tuple(salts)]
            return frame.start if _follows_a_commit(left) else None
    return None


def _frames(data: bytes, page_bytes: int) -> Iterator[_Frame]:
    if not _PAGE_MIN <= page_bytes <= _PAGE_MAX:
        return
    size = _FRAME.size + page_bytes
    for start in range(_HEAD.size, len(data) - size + 1, size):
        _, pages, *salts, first, second = _FRAME.unpack_from(data, start)
        yield _Frame(start, pages > 0, (salts[0], salts[1]), (first, second))


def _follows_a_commit(frames: list[_Frame]) -> bool:
    return any(frame.commits for frame in frames[:-1])


def _summed(data: bytes, sums: tuple[int, int], *, big: bool) -> tuple[int, int]:
    words = array("I", data[: len(data) - len(data) % 8])
    if big != (sys.byteorder == "big"):
        words.byteswap()
    first, second = sums
    for at in range(0, len(words), 2):
        first = (first + words[at] + second) & _MASK
        second = (second + words[at + 1] + first) & _MASK
    return first, second
