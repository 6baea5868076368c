"""Gives back in place, in a closed entry log, the blocks of entries of deleted ledgers: what is
left to do on a disk without room for a compacted log (``compactor.py``, ``docs/adr/0015``).

    step                                                    a crash behind it leaves
    1  verify the records; the dead ones between two that   the log as it was
       live, with the holes among them, are a range
    2  write the head of a hole at the range's first        any of the heads: what is behind one
       record, in place; sync                               is skipped, holes or not
    3  punch the range's whole blocks; sync                 the same, more or less of it zeros

Invariants:

* Dead is what belongs to a ledger that was deleted durably, as for the removal of whole logs. No
  reader is let to it any more, whatever the index still says; so the index need not change, and
  needs no room.
* A head takes the place of bytes that are there, within one sector: it needs no room either, and
  is there or not. A record whose first bytes lie in two sectors keeps them; the hole begins at
  the one behind it.
* Blocks are punched only behind a head that is durable: no walk over the log ever meets zeros.
* Every record before a range was whole, so the range ends where it is said to: a length that is
  damaged leads nobody to take living records for dead ones. Nothing is punched behind damage.
* Doing it again changes nothing; a hole is part of the next, larger one.

Blocking.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import NamedTuple

from magnetar.bookie.storage.entry_log_format import (
    HEADER_BYTES,
    HOLE_HEAD_BYTES,
    RECORD_HEADER_BYTES,
    RecordWalk,
    encode_hole,
    record_at,
    seed_of,
)
from magnetar.env.files.disk import BLOCK_BYTES, SECTOR_BYTES, DiskFile

RANGES_MAX = 4096
"""Dealt with at once: what is known of a log's ranges is bounded."""


class ByteRange(NamedTuple):
    """Bytes [start, end) of a log: dead records, and holes."""

    start: int
    end: int

    def blocks(self) -> tuple[int, int]:
        """[start, end) of what can be given back; nothing if they do not ascend."""
        start = self.start + HOLE_HEAD_BYTES
        return -(-start // BLOCK_BYTES) * BLOCK_BYTES, self.end // BLOCK_BYTES * BLOCK_BYTES


class DeadRanges:
    """Finds the ranges of one log, step by step. ``dead``: ledgers that were deleted, durably;
    ``end``: where the log's records end."""

    def __init__(self, file: DiskFile, log_id: int, end: int, dead: Container[int]) -> None:
        self._walk = RecordWalk(file, log_id, end)
        self._seed = seed_of(log_id)
        self._dead = dead
        self._start = HEADER_BYTES
        self._found: list[ByteRange] = []

    @property
    def whole(self) -> bool:
        return self._walk.whole

    @property
    def full(self) -> bool:
        """There are so many ranges that they should be taken."""
        return self.whole or len(self._found) >= RANGES_MAX

    def take(self) -> list[ByteRange]:
        """What has been found since the last time."""
        found, self._found = self._found, []
        return found

    def step(self) -> tuple[int, int | None]:
        """(bytes read, where damage was met: then nothing comes any more). Raises ``OSError``; then
        the same step may be tried again."""
        data, start, places = self._walk.step()
        for ledger_id, _, offset, length in places:
            if record_at(data, offset - start, self._seed) is None:
                return len(data), offset
            behind = offset + RECORD_HEADER_BYTES + length
            if ledger_id not in self._dead:
                self._end(offset)
                self._start = behind
            elif not _in_one_sector(self._start):
                self._start = behind
        if self.whole:
            self._end(self._walk.end)
        elif not places:
            return len(data), self._walk.pos
        return len(data), None

    def _end(self, end: int) -> None:
        found = ByteRange(self._start, end)
        first, last = found.blocks()
        if first < last and _in_one_sector(self._start):
            self._found.append(found)


def _in_one_sector(offset: int) -> bool:
    return offset % SECTOR_BYTES <= SECTOR_BYTES - HOLE_HEAD_BYTES


def can_punch(file: DiskFile, size: int) -> None:
    """Raises ``OSError``, one in ``CANNOT_PUNCH`` if the file system does not know how. Nothing is
    changed: there is nothing behind the end. ``size``: the file's bytes."""
    file.punch(BLOCK_BYTES, -(-size // BLOCK_BYTES) * BLOCK_BYTES)


def punch(file: DiskFile, log_id: int, ranges: Sequence[ByteRange]) -> int:
    """Steps 2 and 3; returns the bytes that are holes now. Raises ``OSError``: then any of the
    ranges may still be as they were."""
    if not ranges:
        return 0
    seed, byte_count = seed_of(log_id), 0
    for each in ranges:
        file.pwritev([encode_hole(each.end - each.start, seed)], each.start)
    file.datasync()
    for each in ranges:
        first, last = each.blocks()
        file.punch(last - first, first)
        byte_count += last - first
    file.datasync()
    return byte_count
