"""Opening a partition's directory: what a crash has left is found, cut where it is torn, and told.

Owns the way from files to a ``LocalLog``. Blocking: a job of the partition's lane.

Rules:

* Below the recovery point everything was synced before the point was written: there only the
  indexes are looked at. From the segment that holds it on every batch is read and checked (all of
  the directory, without a recovery point), unless the directory was closed in order.
* The log ends at the first batch of its last segment that is not whole, or whose offsets do not
  follow: what is behind it cannot be told from what never was acknowledged, and goes. Each cut says
  which file, at which byte and offset, how many bytes, and why.
* A batch below the recovery point, or in a segment that has another behind it, that is not whole is
  damage and not a crash: it is never cut here; whoever reads it is told so. (It was acknowledged;
  another replica has it. A segment is synced before the next one is begun.)
* So is a log that ends before its recovery point, begins behind its start or has lost a segment
  between others: it is not opened, for what is missing would be denied, and its offsets be given
  again. Nothing is changed in its files (``LogDamagedError``).
* Leader epochs of the file are taken as far as the log reaches; those of the batches that were read
  are added. Producers come from the latest snapshot and what follows it.
* What compaction or deletion had begun is finished or undone (``.deleted``, ``.cleaned``,
  ``.swap``), as Kafka does.

Why: docs/adr/0192-a-log-that-lacks-what-it-held-is-not-opened.md.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from magnetar.env.files.disk import Disk
from magnetar.log.partition.batch_header import (
    HEADER_BYTES,
    whole_batches,
)
from magnetar.log.partition.checkpoint_files import (
    LEADER_EPOCHS,
    LOG_STARTS,
    RECOVERY_POINTS,
    decode_epochs,
    read_file,
)
from magnetar.log.partition.index_files import Doubt
from magnetar.log.partition.leader_epochs import NO_EPOCH, LeaderEpochs
from magnetar.log.partition.limits import PartitionPolicy, SegmentLimits
from magnetar.log.partition.local_log import LocalLog
from magnetar.log.partition.segment import (
    CLEANED,
    INDEX,
    LOG,
    SCAN_BYTES,
    SNAPSHOT,
    STARTS,
    SWAP,
    TIME_INDEX,
    TRANSACTIONS,
    Segment,
    file_name,
    open_segment,
)
from magnetar.model.errors import CorruptBatchError, LogDamagedError, MetadataFormatError

DELETED: Final = ".deleted"
_DIGITS: Final = 20


@dataclass(frozen=True, slots=True)
class CutOff:
    """Bytes that are no part of the log: ``byte_count`` of ``file`` from ``position`` on. The log
    ends, or goes on, at ``offset``."""

    file: str
    position: int
    offset: int
    byte_count: int
    why: str

    def __str__(self) -> str:
        return (
            f"{self.file}: {self.byte_count} bytes from byte {self.position} on (offset "
            f"{self.offset}) are cut: {self.why}"
        )


@dataclass(slots=True)
class Recovered:
    """What opening a directory has found. ``rebuilt``: files whose indexes were made again."""

    cuts: list[CutOff] = field(default_factory=list)
    rebuilt: list[str] = field(default_factory=list)
    segments_read: int = 0
    last_epoch: int = NO_EPOCH
    """Of the batch that was read last. (The epochs' file may be ahead of the batches.)"""


def open_log(
    disk: Disk,
    folder: Path,
    policy: PartitionPolicy,
    *,
    now_ms: int,
    recovery_point: int = 0,
    log_start: int = 0,
    clean: bool = False,
    complete: bool = False,
) -> tuple[LocalLog, Recovered]:
    """The log in ``folder``, made if it is not there. ``clean``: it was closed in order.
    ``complete``: no crash has taken of it what it counted as stored. Raises ``OSError``,
    ``CorruptBatchError``, ``LogDamagedError``."""
    disk.make_dir(folder)
    found = Recovered()
    _finish_swaps(disk, folder)
    starts = _segment_starts(disk.list(folder))
    _check_starts(disk.list(folder), folder, starts, log_start)
    if clean and complete and starts and starts[0] > log_start:
        raise LogDamagedError(
            f"{folder} begins with {file_name(starts[0], LOG)}, and {LOG_STARTS} says that its log "
            f"begins at {log_start}: restore the files before it from a copy, or write "
            f"{starts[0]} there to go on without their records"
        )
    epochs, known = _epochs(disk, folder)
    segments: list[Segment] = []
    through = None if clean else recovery_point
    try:
        _open_segments(segments, disk, folder, starts, through, policy, epochs, known, found)
        _check_end(segments, folder, recovery_point)  # before anything is cut
        _check_start(segments, folder, log_start if complete else 0)
    except LogDamagedError:
        for segment in segments:
            segment.close()
        raise
    _remove_stray_indexes(disk, folder, starts)
    if found.cuts:
        segments[-1].file.truncate(segments[-1].byte_count)
        segments[-1].sync()
    if segments and segments[-1].next_offset < log_start:
        for segment in reversed(segments):
            segment.close()
        _drop(disk, folder, [each.base_offset for each in segments], log_start, found)
        segments = []
    if not segments:
        if epochs.starts and not found.cuts:  # batches were here: others may have them
            why = "it names epochs, and there is no segment"
            found.cuts.append(CutOff(LEADER_EPOCHS, 0, log_start, 0, why))
        segments = [Segment.create(disk, folder, log_start, policy.segments)]
    end = segments[-1].next_offset
    epochs.truncate(end)
    start = max(log_start, segments[0].base_offset)
    epochs.trim(start)
    source = LocalLog(
        disk,
        folder,
        policy,
        segments,
        epochs,
        log_start=start,
        created_ms=now_ms,
    )
    source.load_producers()
    source.sync()  # what is read from here on is what a loss of power leaves
    return source, found


def _open_segments(
    segments: list[Segment],
    disk: Disk,
    folder: Path,
    starts: list[int],
    through: int | None,
    policy: PartitionPolicy,
    epochs: LeaderEpochs,
    epochs_known: bool,
    found: Recovered,
) -> None:
    """Those that begin at ``starts`` are put into ``segments``, the last one as far as it is whole.
    ``through``: the offset from which on every batch is read; None: none."""
    for place, base in enumerate(starts):
        following = starts[place + 1] if place + 1 < len(starts) else None
        if through is None or (following is not None and following <= through):
            segment = _open_sealed(disk, folder, base, following, policy, found)
            segments.append(segment)
            if not epochs_known:
                for _, header in segment.headers():
                    epochs.assign(header.leader_epoch, header.base_offset)
            continue
        before = found.last_epoch, epochs.starts
        segment, cut = _read_through(disk, folder, base, policy, epochs, found)
        if following is not None and (cut is not None or segment.next_offset < following):
            # It was synced before the next one was begun: no crash has done that, and what is
            # behind it was acknowledged.
            segment.close()
            found.last_epoch = before[0]  # no checksum is over it: it may be what is damaged
            epochs.truncate(0)
            for each in before[1]:
                epochs.assign(*each)
            segments.append(_open_sealed(disk, folder, base, following, policy, found))
            continue
        segments.append(segment)
        if cut is not None:
            found.cuts.append(cut)
        else:
            segment.sync()


def _open_sealed(
    disk: Disk,
    folder: Path,
    base: int,
    following: int | None,
    policy: PartitionPolicy,
    found: Recovered,
) -> Segment:
    """A segment that was synced, by its indexes. Raises ``LogDamagedError``."""
    segment, doubt = open_segment(disk, folder, base, policy.segments)
    try:
        _check_sealed(segment, folder, following, doubt)
    except LogDamagedError:
        segment.close()
        raise
    if doubt is not None:
        found.rebuilt.append(f"{file_name(base, LOG)}: {doubt.why}")
    return segment


def _epochs(disk: Disk, folder: Path) -> tuple[LeaderEpochs, bool]:
    """(those of the file, whether there is one that can be read); else the batches say the same."""
    path = folder / LEADER_EPOCHS
    with suppress(MetadataFormatError):
        return LeaderEpochs(decode_epochs(read_file(disk, path) or b"", path)), True
    return LeaderEpochs(), False


def _segment_starts(names: Iterable[str]) -> list[int]:
    return sorted(
        int(name.removesuffix(LOG))
        for name in names
        if name.endswith(LOG) and len(name) == _DIGITS + len(LOG)
    )


def _stray_indexes(names: Iterable[str], starts: list[int]) -> list[int]:
    """Those without a ``.log``."""
    indexes = (name.removesuffix(INDEX) for name in names if name.endswith(INDEX))
    return sorted({int(each) for each in indexes if len(each) == _DIGITS} - set(starts))


def _remove_stray_indexes(disk: Disk, folder: Path, starts: list[int]) -> None:
    """Behind the end: the log is about to grow past them. Raises ``OSError``."""
    for base in _stray_indexes(disk.list(folder), starts):
        disk.remove(folder / file_name(base, INDEX))
        disk.sync_dir(folder)


def _check_starts(names: Iterable[str], folder: Path, starts: list[int], log_start: int) -> None:
    """No index is without its ``.log`` while the log has later ones, and did not begin behind it:
    what deletes a segment takes the ``.log`` last. Raises ``LogDamagedError``."""
    for base in _stray_indexes(names, starts):
        following = next((each for each in starts if each > base), None)
        if following is not None and following > log_start:
            raise LogDamagedError(
                f"{folder / file_name(base, LOG)} is gone, and the log goes on behind it: restore "
                f"it from a copy, or remove {file_name(base, INDEX)} to go on without its records"
            )


def _check_sealed(
    segment: Segment, folder: Path, following: int | None, doubt: Doubt | None
) -> None:
    """Its index was written when all of it was synced. Raises ``LogDamagedError``."""
    name = file_name(segment.base_offset, LOG)
    if following is None or segment.next_offset >= following:
        return
    if doubt is not None and doubt.beyond:
        raise LogDamagedError(
            f"{folder / name} ends at offset {segment.next_offset}, and its index: "
            f"{doubt.why} bytes. It was cut. Restore it from a copy, or remove "
            f"{file_name(segment.base_offset, INDEX)} to go on without the records that it lacks"
        )


def _check_end(segments: list[Segment], folder: Path, recovery_point: int) -> None:
    """Up to the recovery point all was on the disk. Raises ``LogDamagedError``."""
    end = segments[-1].next_offset if segments else 0
    if end < recovery_point:
        last = file_name(segments[-1].base_offset, LOG) if segments else f"a file {LOG}"
        raise LogDamagedError(
            f"{folder} ends at offset {end}, in {last}, and held all up to {recovery_point} "
            f"({RECOVERY_POINTS}): a file was damaged, cut or removed. Restore it from a copy; or, "
            f"to go on without the records from {end} on, stop the broker and write {end} there"
        )


def _check_start(segments: list[Segment], folder: Path, log_start: int) -> None:
    """Where nothing can be missing a log begins within itself. Raises ``LogDamagedError``."""
    if segments and segments[-1].next_offset < log_start:
        raise LogDamagedError(
            f"{folder} ends at offset {segments[-1].next_offset}, and {LOG_STARTS} says that its "
            f"log begins at {log_start}: write the offset at which it begins there "
            f"({segments[0].base_offset}, if no records were deleted), or restore the files"
        )


def _read_through(
    disk: Disk,
    folder: Path,
    base: int,
    policy: PartitionPolicy,
    epochs: LeaderEpochs,
    found: Recovered,
) -> tuple[Segment, CutOff | None]:
    """Every batch is checked; the segment as far as it is whole, and what of its file is not."""
    path = folder / file_name(base, LOG)
    segment = Segment(disk, folder, base, disk.open(path), policy.segments)
    size = disk.size(path)
    found.segments_read += 1
    why = ""
    while segment.byte_count < size and not why:
        why = _read_chunk(segment, size, epochs, found)
    if not why:
        return segment, None
    cut = size - segment.byte_count
    return segment, CutOff(path.name, segment.byte_count, segment.next_offset, cut, why)


def _read_chunk(segment: Segment, size: int, epochs: LeaderEpochs, found: Recovered) -> str:
    """The next batches of the file become ``segment``'s; why they end there, or nothing."""
    left = size - segment.byte_count
    data = segment.file.pread(min(SCAN_BYTES, left), segment.byte_count)
    needed = _first_bytes(data)
    if len(data) < needed <= left:
        data = segment.file.pread(needed, segment.byte_count)
    taken = 0
    try:
        for at, header in whole_batches(data, checked=True):
            if header.base_offset < segment.next_offset or header.leader_epoch < found.last_epoch:
                return (
                    f"offset {header.base_offset} of epoch {header.leader_epoch} comes where "
                    f"{segment.next_offset} of {found.last_epoch} or later belongs"
                )
            segment.taken(header)
            epochs.assign(header.leader_epoch, header.base_offset)
            found.last_epoch = header.leader_epoch
            taken = at + header.byte_count
    except CorruptBatchError as error:
        if taken == 0 or len(data) == left:
            return str(error)
    return ""


def _first_bytes(data: bytes) -> int:
    """How long the first batch of ``data`` says that it is."""
    if len(data) < HEADER_BYTES:
        return 0
    with suppress(CorruptBatchError):
        for _, header in whole_batches(data, checked=False):
            return header.byte_count
    return max(0, int.from_bytes(data[8:12], "big", signed=True) + 12)


def _drop(disk: Disk, folder: Path, starts: Iterable[int], offset: int, found: Recovered) -> None:
    """Segments behind the end of the log, the last one first."""
    names = disk.list(folder)
    for base in sorted(starts, reverse=True):
        path = folder / file_name(base, LOG)
        why = f"the log ends before it, at offset {offset}"
        found.cuts.append(CutOff(path.name, 0, offset, disk.size(path), why))
        for ending in (INDEX, TIME_INDEX, STARTS, TRANSACTIONS, SNAPSHOT, LOG):
            if file_name(base, ending) in names:
                disk.remove(folder / file_name(base, ending))
    disk.sync_dir(folder)


def _finish_swaps(disk: Disk, folder: Path) -> None:
    """Files in the middle of being replaced or deleted, as a crash leaves them."""
    names = disk.list(folder)
    cleaned = [_offset_of(name) for name in names if name.endswith(CLEANED)]
    for name in names:
        half_split = name.endswith(SWAP) and cleaned and _offset_of(name) >= min(cleaned)
        if name.endswith((DELETED, CLEANED, ".tmp")) or half_split:
            disk.remove(folder / name)
    swaps = [name for name in disk.list(folder) if name.endswith(SWAP)]
    logs = [name for name in swaps if name.endswith(LOG + SWAP)]
    for name in logs:
        _replace_covered(disk, folder, name)
    if logs:
        disk.sync_dir(folder)  # what they replace must not be back beside them
    for name in swaps:
        disk.rename(folder / name, folder / name.removesuffix(SWAP))
    if swaps or names != disk.list(folder):
        disk.sync_dir(folder)


def _replace_covered(disk: Disk, folder: Path, name: str) -> None:
    """Segments whose batches the swapped in one has go, and what is beside the one of its name."""
    first = _offset_of(name)
    file = disk.open(folder / name)
    try:
        # As large as a segment: only the heads are read.
        segment = Segment(disk, folder, first, file, SegmentLimits())
        segment.rebuild(disk.size(folder / name))
    finally:
        file.close()
    end = max(segment.next_offset, first + 1)
    for other in disk.list(folder):
        whole_name = other[:_DIGITS].isdigit() and not other.endswith((SWAP, SNAPSHOT))
        if whole_name and first <= _offset_of(other) < end:
            disk.remove(folder / other)


def _offset_of(name: str) -> int:
    return int(name[:_DIGITS])
