"""One segment of a partition: a run of batches in a ``.log``, and its two indexes.

Owns those three files while they are open. Blocking: runs on the lane of its partition's log.

Invariants:

* ``byte_count`` bytes of the ``.log`` are whole batches, in the order of their offsets, the first
  not before ``base_offset``; ``next_offset`` follows the last.
* What is in the indexes is true of them. The index files are written when the segment is sealed or
  closed: until then it is recovered after a crash anyway, and they are made again from the
  ``.log``.
* Appending writes behind ``byte_count`` and only then moves it. What a failed write left there is
  cut at once: a sync that failed leaves bytes that can be read and are not on the disk, and no
  later sync puts them there, so that whoever opened the log again would take them for stored.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from magnetar.env.files.disk import Disk, DiskFile
from magnetar.log.partition.batch_header import (
    HEADER_BYTES,
    BatchHead,
    Buffer,
    implausible,
    read_header,
)
from magnetar.log.partition.checkpoint_files import exists, read_file, replace_file
from magnetar.log.partition.index_files import RELATIVE_MAX, Doubt, OffsetIndex, TimeIndex
from magnetar.log.partition.limits import SegmentLimits
from magnetar.model.errors import CorruptBatchError

LOG, INDEX, TIME_INDEX = ".log", ".index", ".timeindex"
TRANSACTIONS, SNAPSHOT = ".txnindex", ".snapshot"
CLEANED, SWAP = ".cleaned", ".swap"
"""What is to take a segment's place: while it is written, and when it is whole."""
STARTS = ".batches"
"""Where the segment's batches begin (``batch_places``): ours; Kafka passes over it."""
SCAN_BYTES: Final = 64 << 10


def file_name(offset: int, ending: str) -> str:
    """20 digits, so that names sort as offsets do."""
    return f"{offset:020d}{ending}"


class FileRange(NamedTuple):
    """Bytes of a ``.log`` that are whole batches from the one that holds an offset on, but for the
    last, which ``byte_count`` may cut."""

    segment: Segment
    position: int
    byte_count: int

    def read(self) -> bytes:
        return self.segment.file.pread(self.byte_count, self.position)


class Stored(NamedTuple):
    """A batch on its way into a segment: its bytes, in parts that are not joined, and its head."""

    header: BatchHead
    parts: Sequence[Buffer]


class Segment:
    """Made by ``create`` or, over existing files, by ``open_segment``."""

    def __init__(
        self, disk: Disk, folder: Path, base_offset: int, file: DiskFile, limits: SegmentLimits
    ) -> None:
        self.base_offset = base_offset
        self.next_offset = base_offset
        self.byte_count = 0
        self.file = file
        self.index = OffsetIndex(base_offset)
        self.times = TimeIndex(base_offset)
        self.first_time_ms = -1
        self.greatest = (-1, base_offset)
        """(time, last offset of the batch that has it)."""
        self._disk = disk
        self._folder = folder
        self._limits = limits
        self._since_entry = 0

    @classmethod
    def create(cls, disk: Disk, folder: Path, base_offset: int, limits: SegmentLimits) -> Segment:
        """An empty one; its name is durable. Raises ``OSError``."""
        path = folder / file_name(base_offset, LOG)
        file = disk.open(path, create=True)
        file.truncate(0)
        disk.sync_dir(folder)
        return cls(disk, folder, base_offset, file, limits)

    def path(self, ending: str) -> Path:
        return self._folder / file_name(self.base_offset, ending)

    # -- appending ----------------------------------------------------------------------------

    def takes(
        self,
        header: BatchHead,
        waiting_bytes: int,
        now_ms: int,
        created_ms: int,
        limits: SegmentLimits,
    ) -> bool:
        """Whether the batch belongs here, behind others that are about to be written, and not into
        the next segment."""
        byte_count = self.byte_count + waiting_bytes
        if byte_count == 0:
            return True
        if byte_count + header.byte_count > min(limits.segment_bytes_max, RELATIVE_MAX):
            return False
        if header.last_offset - self.base_offset > RELATIVE_MAX:
            return False
        if self.byte_count == 0:
            return True  # what it begins with decides on the rest
        began_ms = self.first_time_ms if self.first_time_ms >= 0 else created_ms
        age_ms = (header.max_timestamp_ms if self.first_time_ms >= 0 else now_ms) - began_ms
        return (
            age_ms <= limits.segment_age_ms_max
            and len(self.index) * 8 < limits.index_bytes_max
            and len(self.times) * 12 < limits.index_bytes_max
        )

    def append(self, batches: Sequence[Stored], *, through: bool) -> None:
        """``through``: on the device when this returns. Raises ``OSError``; nothing is appended
        then."""
        parts = [part for batch in batches for part in batch.parts]
        try:
            if through:
                self.file.write_through(parts, self.byte_count)
            else:
                self.file.pwritev(parts, self.byte_count)
        except OSError:
            with suppress(OSError):  # a disk that takes not even that cannot be opened again
                self.file.truncate(self.byte_count)
            raise
        for batch in batches:
            self.taken(batch.header)

    def taken(self, header: BatchHead) -> None:
        """The batch behind ``byte_count`` is one of ours; the indexes learn of it."""
        if self.byte_count == 0:
            self.first_time_ms = header.max_timestamp_ms
        if header.max_timestamp_ms > self.greatest[0]:
            self.greatest = (header.max_timestamp_ms, header.last_offset)
        if self._since_entry > self._limits.index_interval_bytes:
            self.index.append(header.last_offset, self.byte_count)
            self.times.append(*self.greatest)
            self._since_entry = 0
        self._since_entry += header.byte_count
        self.byte_count += header.byte_count
        self.next_offset = header.next_offset

    # -- reading ------------------------------------------------------------------------------

    def headers(self, position: int = 0) -> Iterator[tuple[int, BatchHead]]:
        """(byte, head) of the batches from ``position`` on, where one begins. Raises
        ``CorruptBatchError``, ``OSError``."""
        chunk, start = b"", position
        while position < self.byte_count:
            if position + HEADER_BYTES > start + len(chunk):
                start = position
                chunk = self.file.pread(min(SCAN_BYTES, self.byte_count - start), start)
                if len(chunk) < HEADER_BYTES:
                    raise CorruptBatchError(f"{self.file.path}: no batch head at byte {position}")
            header = read_header(chunk, position - start)
            if why := implausible(header):
                raise CorruptBatchError(f"{self.file.path}: byte {position} has {why}")
            yield position, header
            position += header.byte_count

    def place_of(self, offset: int) -> tuple[int, BatchHead] | None:
        """Where the first batch lies that ends at ``offset`` or later. (No checksum is over
        offsets: the last one before those that begin behind ``offset`` is believed, whatever one
        before it says.) Raises as ``headers``."""
        found: tuple[int, BatchHead] | None = None
        later: tuple[int, BatchHead] | None = None
        try:
            for position, header in self.headers(self.index.position_before(offset)):
                if header.base_offset <= offset:
                    found = (position, header) if header.last_offset >= offset else found
                elif found is not None or later is not None:
                    break
                else:
                    later = position, header
        except CorruptBatchError:
            if found is None:
                raise
        return found or later

    def range_from(self, offset: int, end_offset: int, bytes_max: int) -> FileRange | None:
        """The batches from the one that holds ``offset`` on, up to ``end_offset`` exclusive: about
        ``bytes_max``, but one whole batch at least. None: there is nothing there. Raises as
        ``headers``."""
        if offset >= min(end_offset, self.next_offset):
            return None
        if (found := self.place_of(offset)) is None or found[1].base_offset >= end_offset:
            return None
        position, header = found
        end = self.byte_count
        if end_offset < self.next_offset:
            last = self.place_of(end_offset)
            end = end if last is None else last[0]
        count = min(end - position, max(bytes_max, header.byte_count))
        return FileRange(self, position, count) if count > 0 else None

    def first_at(self, time_ms: int, offset: int) -> BatchHead | None:
        """The first batch with a record of ``time_ms`` or later in it that ends at ``offset`` or
        later. Raises as ``headers``."""
        if self.greatest[0] < time_ms:
            return None
        start = self.index.position_before(max(self.times.offset_before(time_ms), offset))
        for _, header in self.headers(start):
            if header.max_timestamp_ms >= time_ms and header.last_offset >= offset:
                return header
        return None

    # -- files --------------------------------------------------------------------------------

    def truncate(self, offset: int) -> int:
        """Batches that hold ``offset`` or what is after it go; how many bytes. Durable with the
        next sync. Raises as ``headers``."""
        found = self.place_of(offset)
        if found is None:
            return 0
        cut = self.byte_count - found[0]
        self.cut_at(found[0], found[1].base_offset)
        return cut

    def cut_at(self, position: int, offset: int) -> None:
        """The segment ends at byte ``position``, where the batch of ``offset`` begins."""
        if exists(self._disk, self.path(STARTS)):
            # First: as long again, of other batches, the segment would be the one that it is of.
            self._disk.remove(self.path(STARTS))
            self._disk.sync_dir(self._folder)
        self.file.truncate(position)
        self.index.truncate(offset)
        self.times.truncate(offset)
        self.greatest = self.times.last
        self._learn_from(self.index.position_before(offset), position)

    def _learn_from(self, start: int, end: int) -> None:
        """Take the batches of bytes [start, end) anew; ``start`` is where the indexes end."""
        self.next_offset, self.byte_count, self._since_entry = self.base_offset, end, 0
        if start == 0:
            self.first_time_ms = -1
        headers = list(self.headers(start))
        self.byte_count = start
        for _, header in headers:
            self.taken(header)

    def rebuild(self, byte_count: int) -> None:
        """Indexes, times and ends from the batches of the first ``byte_count`` bytes."""
        self.index, self.times = OffsetIndex(self.base_offset), TimeIndex(self.base_offset)
        self.greatest = (-1, self.base_offset)
        self._learn_from(0, byte_count)

    def adopt(self, start: int, byte_count: int) -> None:
        """The indexes count up to ``start``; the batches behind it are learnt."""
        self._learn_from(start, byte_count)
        if start > 0:
            self.byte_count = byte_count
            self.first_time_ms = next(self.headers())[1].max_timestamp_ms

    def sync(self) -> None:
        self.file.datasync()

    def write_indexes(self) -> None:
        """As they are now, durably. Raises ``OSError``."""
        # The greatest time so far has to be found in a sealed segment without a scan.
        if self.greatest[0] > self.times.last[0]:
            self.times.append(*self.greatest)
        replace_file(self._disk, self.path(INDEX), self.index.data)
        replace_file(self._disk, self.path(TIME_INDEX), self.times.data)

    def close(self) -> None:
        self.file.close()

    def delete(self) -> None:
        """All its files. The ``.log`` goes last: without it the others are nobody's."""
        self.close()
        self._remove(INDEX, TIME_INDEX, STARTS, TRANSACTIONS, SNAPSHOT, LOG)

    def delete_beside(self) -> None:
        """What is told of its batches. Raises ``OSError``."""
        self._remove(INDEX, TIME_INDEX, STARTS, TRANSACTIONS)

    def _remove(self, *endings: str) -> None:
        names = self._disk.list(self._folder)
        for ending in endings:
            if self.path(ending).name in names:
                self._disk.remove(self.path(ending))

    def renamed(self) -> None:
        """Its bytes are under its name from now on. Raises ``OSError``."""
        self.file.close()
        self.file = self._disk.open(self.path(LOG))


def open_segment(
    disk: Disk, folder: Path, base_offset: int, limits: SegmentLimits
) -> tuple[Segment, Doubt | None]:
    """Over existing files that were closed in order, or sealed: its indexes are believed if they
    can be true, else made again; then the second value says why. Raises ``OSError``,
    ``CorruptBatchError``."""
    path = folder / file_name(base_offset, LOG)
    segment = Segment(disk, folder, base_offset, disk.open(path), limits)
    size = disk.size(path)
    why = _adopt_indexes(disk, segment, size)
    if why is not None:
        segment.rebuild(size)
        return segment, why
    start = segment.index.position_before(base_offset + RELATIVE_MAX)
    segment.adopt(start, size)
    if not size and len(segment.times):
        # A short segment's index of offsets is empty: it says nothing of an end that is gone.
        return segment, Doubt(f"that of times has {len(segment.times)} entries, of 0", beyond=True)
    return segment, None


def _adopt_indexes(disk: Disk, segment: Segment, size: int) -> Doubt | None:
    """Why they are not to be believed."""
    for ending in (INDEX, TIME_INDEX):
        if not exists(disk, segment.path(ending)):
            return Doubt(f"there is no {segment.path(ending).name}")
    index = OffsetIndex(segment.base_offset, read_file(disk, segment.path(INDEX)) or b"")
    times = TimeIndex(segment.base_offset, read_file(disk, segment.path(TIME_INDEX)) or b"")
    if why := index.suspicious(size) or times.suspicious():
        return why
    segment.index, segment.times, segment.greatest = index, times, times.last
    return None
