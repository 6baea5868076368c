"""One replica's log of one partition, on its disk: segments, leader epochs, producers.

Owns a partition's directory while it is open. Blocking, and not to be used by two threads: all
calls come from one lane. It knows nothing of other replicas; who leads, and how far the log is
committed, is told to it.

Invariants:

* ``first_base`` <= ``log_start``: a log may begin in the middle of a batch, which is read whole
  (docs/adr/0138-records-are-deleted-at-offsets.md).
* ``log_start`` <= ``synced_end`` <= ``log_end``. Offsets below ``synced_end`` survive a loss of
  power.
* Segments follow one another without an overlap; only the last one is written. A segment is sealed
  (synced, its indexes written, the producers' snapshot beside it) before the next is begun, so that
  a crash can only have hurt what is after ``synced_end``, and of segments only the last.
* A batch is checked once, here, before it is written, and is written as it came but for its first
  16 bytes.
* Leader epochs in memory are those of the batches; the file is written when they change, and is
  made again from the batches when it is missing.

Why: docs/adr/0109-partitions-in-kafkas-files.md. Formats: docs/formats/partition.md.
"""

from __future__ import annotations

import errno
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from magnetar.env.files.disk import Disk
from magnetar.log.partition.batch_header import (
    HEADER_BYTES,
    STAMP_BYTES,
    BatchHead,
    Buffer,
    implausible,
    read_header,
    renumbered,
    stamp,
    whole_batches,
)
from magnetar.log.partition.checkpoint_files import (
    ABORTED_SUMS,
    LEADER_EPOCHS,
    decode_sums,
    encode_epochs,
    encode_sums,
    exists,
    read_file,
    replace_file,
)
from magnetar.log.partition.earlier_batches import recall_batches
from magnetar.log.partition.leader_epochs import LeaderEpochs
from magnetar.log.partition.limits import Kept, PartitionPolicy, SegmentLimits, SyncPolicy
from magnetar.log.partition.markers import read_marker
from magnetar.log.partition.producer_states import (
    AbortedTransaction,
    ProducerStates,
    decode_aborted,
    decode_snapshot,
    encode_aborted,
    encode_snapshot,
)
from magnetar.log.partition.retention import SegmentAge, deletable, outlived
from magnetar.log.partition.segment import (
    CLEANED,
    LOG,
    SNAPSHOT,
    SWAP,
    TRANSACTIONS,
    FileRange,
    Segment,
    Stored,
    file_name,
)
from magnetar.model.errors import (
    CorruptBatchError,
    MessageTooLargeError,
    MetadataFormatError,
    OffsetOutOfRangeError,
)
from magnetar.wire.checksum import crc32c
from magnetar.wire.kafka.batches import NO_PRODUCER

SILENCE_LOOKS: Final = 24
"""In the time for which a producer is kept."""
SEGMENTS_MANY: Final = 1000
"""A log that has so many is cut as configured, whatever its topic says."""


class Appended(NamedTuple):
    """Offsets of what was appended; ``last_offset`` is inclusive. ``repeated``: it was there
    already, of that greatest time, and nothing was written."""

    first_offset: int
    last_offset: int
    repeated: bool = False
    time_ms: int = -1


class LocalLog:
    """Made by ``recovery.open_log``, which also finds out what a crash has left."""

    def __init__(
        self,
        disk: Disk,
        folder: Path,
        policy: PartitionPolicy,
        segments: list[Segment],
        epochs: LeaderEpochs,
        *,
        log_start: int,
        created_ms: int,
    ) -> None:
        assert segments, "a log has a segment to write to"
        self.folder = folder
        self.policy = policy
        self.limits = policy.segments
        """By which the active segment ends, and those behind it."""
        self.segments = segments
        self.epochs = epochs
        self.producers = ProducerStates(log_start)
        self.aborted: list[AbortedTransaction] = []
        self._sums: dict[int, int] = {}
        """Of each segment's list of them: its checksum."""
        self.log_start = log_start
        self.first_base = self._base_at(log_start)
        """Where the first batch that is held begins: before ``log_start``, if records in its middle
        were deleted."""
        self.cuts = 0
        """How often something was taken from its end."""
        self.before_cut: Callable[[int], None] = _nothing
        """Told before the log is cut, at that offset or after it: whoever has stored that all was
        on the disk lowers it. Raises ``OSError``."""
        self.compacted_end = 0
        """Up to here the log was compacted; ``compacting`` does."""
        self.swapped_end = 0
        """Before it segments were replaced since the log was opened: batches that somebody knows of
        may be gone."""
        self._ends: deque[tuple[int, int]] = deque()
        """Where the log ended, and when that was, as far back as producers are kept, and since it
        was opened or cut."""
        self.synced_end = log_start
        self._synced_bytes = segments[-1].byte_count
        """Of the active segment: as many as are on the disk, as far as can be known."""
        self._disk = disk
        self._created_ms = created_ms

    @property
    def log_end(self) -> int:
        """The offset of the next record."""
        return self.segments[-1].next_offset

    @property
    def disk(self) -> Disk:
        return self._disk

    @property
    def byte_count(self) -> int:
        return sum(segment.byte_count for segment in self.segments)

    # -- appending ----------------------------------------------------------------------------

    def append_as_leader(self, data: Buffer, leader_epoch: int, now_ms: int) -> Appended:
        """Batches of a client get the next offsets, in one write. Raises ``CorruptBatchError``,
        ``MessageTooLargeError``, and as ``ProducerStates.check``: nothing is appended then. Raises
        ``OSError``: the disk failed, and this replica must end."""
        view = memoryview(data)
        batches: list[Stored] = []
        first = end = self.log_end
        repeated: Appended | None = None
        for at, header in whole_batches(view, checked=True):
            self.check_size(header.byte_count)
            if (kept := self.producers.check(header)) is not None:
                repeated = Appended(kept.first_offset, kept.last_offset, True, kept.time_ms)
                continue
            if header.record_count != header.last_offset_delta + 1:
                raise CorruptBatchError(
                    f"a batch of {header.record_count} records ends at offset delta "
                    f"{header.last_offset_delta}: producers leave no gaps"
                )
            batches.append(_stamped(view, at, header, end, leader_epoch))
            end += header.record_count
        if repeated is not None:
            if batches:  # a producer sends a batch again alone
                raise CorruptBatchError("a request has batches that are here, and new ones")
            return repeated
        if not batches:
            raise CorruptBatchError("there is no batch in what is to be appended")
        self.write(batches, leader_epoch, now_ms)
        return Appended(first, end - 1)

    def write(self, batches: Sequence[Stored], leader_epoch: int, now_ms: int) -> None:
        """As leader: batches that are checked, and stamped with the offsets that come next. Raises
        ``OSError``: those that are in the log then are before ``log_end``."""
        if self.epochs.assign(leader_epoch, batches[0].header.base_offset):
            self._write_epochs()
        self._write(batches, now_ms)

    def append_as_follower(self, data: Buffer, now_ms: int) -> Appended | None:
        """Batches as their leader has them, offsets and epochs included. A last one that is cut is
        left out: the next fetch has it whole. None: there was no whole one. Raises
        ``CorruptBatchError``: nothing is appended then. Raises ``OSError``."""
        view = _whole_part(memoryview(data))
        batches: list[Stored] = []
        end, epoch = self.log_end, self.epochs.last
        for at, header in whole_batches(view, checked=True):
            if header.base_offset < end or header.leader_epoch < epoch:
                raise CorruptBatchError(
                    f"{self.folder.name}: the leader sent offset {header.base_offset} of epoch "
                    f"{header.leader_epoch} where {end} of {epoch} or later comes next"
                )
            batches.append(Stored(header, (view[at : at + header.byte_count],)))
            end, epoch = header.next_offset, header.leader_epoch
        if not batches:
            return None
        began = [self._began(batch.header) for batch in batches]
        if any(began):
            self._write_epochs()
        self._write(batches, now_ms)
        return Appended(batches[0].header.base_offset, end - 1)

    def _began(self, header: BatchHead) -> bool:
        return self.epochs.assign(header.leader_epoch, header.base_offset)

    def check_size(self, byte_count: int) -> None:
        """Of a batch. Raises ``MessageTooLargeError``."""
        if byte_count > self.policy.batch_bytes_max:
            raise MessageTooLargeError(
                f"a batch of {byte_count} bytes; {self.folder.name} takes up to "
                f"{self.policy.batch_bytes_max}"
            )

    def _write(self, batches: Sequence[Stored], now_ms: int) -> None:
        through = self.policy.sync is SyncPolicy.EACH_BATCH
        bounds = self._bounds
        begun = 0  # of those that wait, which the active segment takes in one write
        waiting_bytes = 0
        for at, (header, _) in enumerate(batches):
            active = self.segments[-1]
            if not active.takes(header, waiting_bytes, now_ms, self._created_ms, bounds):
                self._write_run(batches[begun:at], through)
                self.roll(header.base_offset, now_ms)
                begun, waiting_bytes, bounds = at, 0, self._bounds
            waiting_bytes += header.byte_count
        self._write_run(batches[begun:], through)
        self._forget_silent(now_ms)

    def _forget_silent(self, now_ms: int) -> None:
        """Producers, now and then: a segment may be written for weeks, and each start of a client
        is another one. Those of whom nothing has come since the log ended where it did so long
        ago."""
        kept_ms, ends = self.policy.producers_kept_ms, self._ends
        if ends and now_ms - ends[-1][0] < kept_ms // SILENCE_LOOKS:
            return
        ends.append((now_ms, self.log_end))
        while len(ends) > 1 and ends[1][0] <= now_ms - kept_ms:
            ends.popleft()
        when_ms, end = ends[0]
        if when_ms <= now_ms - kept_ms:
            self.producers.expire(now_ms - kept_ms, end)

    @property
    def _bounds(self) -> SegmentLimits:
        """Each segment has an open file: very many small ones would take those of the others."""
        limits, configured = self.limits, self.policy.segments
        if len(self.segments) < SEGMENTS_MANY:
            return limits
        return configured.with_bounds(
            max(limits.segment_bytes_max, configured.segment_bytes_max),
            max(limits.segment_age_ms_max, configured.segment_age_ms_max),
        )

    def _write_run(self, batches: Sequence[Stored], through: bool) -> None:
        if not batches:
            return
        self.segments[-1].append(batches, through=through)
        for header, parts in batches:
            if header.producer_id != NO_PRODUCER:
                self._learn(header, parts[-1])
        self.producers.end_offset = self.log_end
        if through:
            self._synced()

    def _learn(self, header: BatchHead, rest: Buffer) -> None:
        """A batch is in the log; ``rest`` are its bytes, from the magic on at least. Nothing is
        written: what fails here would leave those behind it unknown."""
        marker = read_marker(header, rest) if header.control else None
        aborted = self.producers.appended(header, marker)
        if aborted is not None:
            # Mostly behind all others; it may be known from the segment's list.
            at = bisect_left(self.aborted, aborted.last_offset, key=_marked_at)
            if self.aborted[at : at + 1] != [aborted]:
                self.aborted.insert(at, aborted)

    def store_epochs(self) -> None:
        """They have changed: this replica leads now, or does not any more. Raises ``OSError``."""
        self._write_epochs()

    # -- segments -----------------------------------------------------------------------------

    def cut_by(self, limits: SegmentLimits) -> None:
        """What comes from now on."""
        self.limits = limits

    def roll(self, base_offset: int, now_ms: int) -> None:
        """The active segment is sealed; the next begins at ``base_offset``. Raises ``OSError``."""
        active = self.segments[-1]
        self.sync()  # before anything says that it is sealed
        active.write_indexes()
        self.producers.expire(now_ms - self.policy.producers_kept_ms, active.base_offset)
        self._write_snapshot(base_offset)
        self._created_ms = now_ms
        self.segments.append(Segment.create(self._disk, self.folder, base_offset, self.limits))
        self._synced()

    def sync(self) -> int:
        """All that is appended is durable; ``synced_end``. Raises ``OSError``: this replica must
        end."""
        active = self.segments[-1]
        try:
            active.sync()
        except OSError as error:
            if self._synced_bytes == active.byte_count:
                raise
            # As after a write that failed: it can be read, and no later sync stores it, so that
            # whoever opened the log again would take it for stored.
            with suppress(OSError):
                active.file.truncate(self._synced_bytes)
            # Never "full": what counted is gone, and it is not enough to try again.
            raise OSError(
                errno.EIO, f"what was not synced is lost: {error}", str(active.file.path)
            ) from error
        self._synced()
        return self.synced_end

    def _synced(self) -> None:
        self.synced_end, self._synced_bytes = self.log_end, self.segments[-1].byte_count

    def _write_epochs(self) -> None:
        replace_file(self._disk, self.folder / LEADER_EPOCHS, encode_epochs(self.epochs.starts))

    def _write_snapshot(self, offset: int) -> None:
        self._write_aborted()  # first: whoever finds the snapshot does not read the markers again
        path = self.folder / file_name(offset, SNAPSHOT)
        replace_file(self._disk, path, encode_snapshot(self.producers.producers))

    def _write_aborted(self) -> None:
        """Those whose markers are in the active segment, durably."""
        active = self.segments[-1]
        found = [each for each in self.aborted if each.last_offset >= active.base_offset]
        if found:
            self._store_aborted(active, found)
            self._store_sums()

    def _store_aborted(self, segment: Segment, found: Iterable[AbortedTransaction]) -> None:
        """They are durable; ``_store_sums`` is to follow: a crash between has the lists made
        again."""
        data = encode_aborted(found)
        replace_file(self._disk, segment.path(TRANSACTIONS), data)
        self._sums.pop(segment.base_offset, None)
        if data:
            self._sums[segment.base_offset] = crc32c(data)

    def _store_sums(self) -> None:
        there = {segment.base_offset for segment in self.segments}
        self._sums = {base: crc for base, crc in self._sums.items() if base in there}
        replace_file(self._disk, self.folder / ABORTED_SUMS, encode_sums(self._sums))

    def close(self) -> None:
        """In order: whoever opens it next has nothing to recover. Raises ``OSError``."""
        self.sync()
        self.segments[-1].write_indexes()
        self._write_snapshot(self.log_end)
        self._write_epochs()
        self.abandon()

    def abandon(self) -> None:
        """Close the files and store nothing more, as after an error of the disk."""
        for segment in self.segments:
            segment.close()

    # -- reading ------------------------------------------------------------------------------

    def range_from(self, offset: int, end_offset: int, bytes_max: int) -> FileRange | None:
        """Where the batches lie from the one that holds ``offset`` on, before ``end_offset``. None
        at the end. Raises ``OffsetOutOfRangeError``, ``CorruptBatchError``, ``OSError``."""
        if not self.first_base <= offset <= self.log_end:
            raise OffsetOutOfRangeError(
                f"{self.folder.name} holds offsets {self.log_start} to {self.log_end - 1}; "
                f"{offset} is none of them"
            )
        at = self._segment_of(offset)
        for segment in self.segments[at:]:  # what is compacted away leaves holes
            found = segment.range_from(offset, end_offset, bytes_max)
            if found is not None:
                return found
        return None

    def _base_at(self, offset: int) -> int:
        """Where the batch that holds ``offset`` begins; ``offset`` itself if none does."""
        try:
            found = self.segments[self._segment_of(offset)].place_of(offset)
        except CorruptBatchError:  # whoever reads it is told so
            return offset
        return offset if found is None else min(offset, found[1].base_offset)

    def _segment_of(self, offset: int) -> int:
        low, high = 0, len(self.segments)
        while high - low > 1:
            middle = (low + high) // 2
            if self.segments[middle].base_offset <= offset:
                low = middle
            else:
                high = middle
        return low

    def first_at(self, time_ms: int) -> BatchHead | None:
        """The first batch with a record of ``time_ms`` or later; None: there is none. The log may
        begin within a segment: what lies before that is not looked at."""
        for segment in self.segments:
            header = segment.first_at(time_ms, self.log_start)
            if header is not None:
                return header
        return None

    # -- cutting ------------------------------------------------------------------------------

    def truncate(self, end_offset: int, now_ms: int) -> int:
        """What is at ``end_offset`` and after it goes; how many bytes. Durable when it returns.
        Raises ``OSError``, ``CorruptBatchError``."""
        if end_offset >= self.log_end:
            return 0
        if end_offset < self.segments[0].base_offset:
            return self.restart_at(end_offset, now_ms)
        self._lower(self.segments[self._segment_of(end_offset)].base_offset)
        self._ends.clear()
        cut = 0
        self.cuts += 1
        # From the end on, so that a crash on the way leaves a log without a hole.
        while len(self.segments) > 1 and self.segments[-1].base_offset >= end_offset:
            last = self.segments.pop()
            cut += last.byte_count
            last.delete()
        if cut:
            # Before the one that stays is cut: a file that is back after a loss of power must not
            # lie behind a hole.
            self._disk.sync_dir(self.folder)
            self._synced_bytes = self.segments[-1].byte_count  # it was sealed
        cut += self.segments[-1].truncate(end_offset)
        self._synced_bytes = min(self._synced_bytes, self.segments[-1].byte_count)
        self.sync()
        self.compacted_end = min(self.compacted_end, self.log_end)
        self.epochs.truncate(self.log_end)
        self._write_epochs()
        self.load_producers()
        if self.log_end < self.log_start:  # all that is left was deleted
            self.restart_at(self.log_end, now_ms)
        return cut

    def restart_at(self, offset: int, now_ms: int) -> int:
        """Nothing of the log is left; it goes on at ``offset``. How many bytes went."""
        self._lower(0)
        self._ends.clear()
        cut = self.byte_count
        self.cuts += 1
        for segment in reversed(self.segments):
            segment.delete()
        self.segments = [Segment.create(self._disk, self.folder, offset, self.limits)]
        self.log_start = self.first_base = offset
        self.compacted_end = min(self.compacted_end, offset)
        self._synced()
        self._created_ms = now_ms
        self.epochs.truncate(0)  # in place: the replica's machine knows them too
        self._write_epochs()
        self.load_producers()
        return cut

    def _lower(self, offset: int) -> None:
        """Before the cut: a crash on the way must not leave a log that ends before what is stored
        of it; and in memory first, as it may be stored at any moment."""
        self.synced_end = min(self.synced_end, offset)
        self.before_cut(offset)

    def load_producers(self) -> None:
        """Producers and aborted transactions as they are at the log's end: from the latest snapshot
        that can be read, the batches that producers may send again, and those after it."""
        self.aborted = []
        lists = [self._aborted_of(segment) for segment in self.segments]
        self._check_aborted(lists)
        self.producers = self._snapshot()
        recall_batches(self.producers, self.segments)
        for segment in self.segments:
            if segment.next_offset > self.producers.end_offset:
                self._replay(segment)

    def _aborted_of(self, segment: Segment) -> bytes:
        return bytes(read_file(self._disk, segment.path(TRANSACTIONS)) or b"")

    def _check_aborted(self, lists: Sequence[bytes]) -> None:
        """``aborted`` becomes what the segments' files say, without markers that were cut: other
        batches will be there. Kafka's format has no checksum, and compaction would take the records
        of an aborted transaction for the last of their keys: so the sums are beside, and what does
        not have its sum is made again from the log. (No sums: an older version's, believed.)"""
        path = self.folder / ABORTED_SUMS
        self._sums = {
            segment.base_offset: crc32c(data)
            for segment, data in zip(self.segments, lists, strict=True)
            if data
        }
        stored = read_file(self._disk, path)
        if stored is not None and self._sums_of(stored, path) != self._sums:
            self._find_aborted()
            return
        for segment, data in zip(self.segments, lists, strict=True):
            found = decode_aborted(data)
            kept = [each for each in found if each.last_offset < self.log_end]
            self.aborted += kept
            if len(kept) < len(found):
                self._store_aborted(segment, kept)
                self._store_sums()

    def _sums_of(self, stored: Buffer, path: Path) -> dict[int, int] | None:
        """Those of segments that are there; None: they cannot be read."""
        bases = {segment.base_offset for segment in self.segments}
        with suppress(MetadataFormatError):
            known = decode_sums(bytes(stored), path)
            return {base: crc for base, crc in known.items() if base in bases}
        return None

    def _find_aborted(self) -> None:
        """From the batches, from the log's first on. Durable when it returns."""
        first = self.segments[0]
        path = first.path(SNAPSHOT)
        self.producers = ProducerStates(first.base_offset)
        with suppress(MetadataFormatError):
            data = read_file(self._disk, path)
            if data is not None:
                known = decode_snapshot(data, path.name)
                self.producers = ProducerStates(first.base_offset, known)
        for segment in self.segments:
            self._replay(segment)
        self._sums = {}
        for segment in self.segments:
            low, high = segment.base_offset, segment.next_offset
            found = [each for each in self.aborted if low <= each.last_offset < high]
            if found or exists(self._disk, segment.path(TRANSACTIONS)):
                self._store_aborted(segment, found)
        self._store_sums()

    def _snapshot(self) -> ProducerStates:
        for offset in reversed(self._keep_snapshots()):
            path = self.folder / file_name(offset, SNAPSHOT)
            try:
                data = read_file(self._disk, path) or b""
                return ProducerStates(offset, decode_snapshot(data, path.name))
            except MetadataFormatError:
                self._disk.remove(path)  # the one before it, and more batches, say the same
        return ProducerStates(self.segments[0].base_offset)

    def _keep_snapshots(self) -> list[int]:
        """Where there is one that counts. What lies behind the log's end goes, wherever a crash has
        left it: other batches will be there. So does what earlier ends in order have left within
        segments: the latest one says more."""
        offsets = sorted(
            int(name.removesuffix(SNAPSHOT))
            for name in self._disk.list(self.folder)
            if name.endswith(SNAPSHOT)
        )
        known = [each for each in offsets if self.segments[0].base_offset <= each <= self.log_end]
        stay = {*known[-1:], *(segment.base_offset for segment in self.segments)}
        for offset in offsets:
            if offset not in known or offset not in stay:
                self._disk.remove(self.folder / file_name(offset, SNAPSHOT))
        return [each for each in known if each in stay]

    def _replay(self, segment: Segment) -> None:
        start = segment.index.position_before(self.producers.end_offset)
        for position, header in segment.headers(start):
            if header.base_offset < self.producers.end_offset:
                continue
            data = segment.file.pread(header.byte_count, position) if header.control else b""
            self._learn(header, data)

    # -- what is not kept ---------------------------------------------------------------------

    def delete_records(self, offset: int) -> None:
        """What is before ``offset`` is gone for readers; its files go when no part of one is left.
        The caller knows that it is committed, and calls ``drop_deleted``. Raises
        ``OffsetOutOfRangeError``."""
        if not self.log_start <= offset <= self.log_end:
            raise OffsetOutOfRangeError(
                f"{self.folder.name}: records can be deleted up to {self.log_end}, not {offset}"
            )
        self.log_start, self.first_base = offset, self._base_at(offset)
        self.epochs.trim(self.first_base)

    def drop_deleted(self) -> None:
        """Segments in which everything was deleted go. Raises ``OSError``."""
        # By where the next one begins: compaction may have taken a segment's last batches.
        gone = sum(each.base_offset <= self.first_base for each in self.segments[1:])
        # Files go before anything is written: a full disk is what records are deleted for.
        if not self.delete_segments(gone):
            self._write_epochs()

    def delete_segments(self, count: int) -> int:
        """The first ``count`` segments go, never the last one; how many bytes. Raises
        ``OSError``."""
        gone, self.segments = self.segments[:count], self.segments[count:]
        assert self.segments, "the active segment stays"
        # Readers first: from here on nobody is sent into a file that is about to go.
        self.log_start = max(self.log_start, self.segments[0].base_offset)
        self.first_base = max(self.first_base, self.segments[0].base_offset)
        self.epochs.trim(self.first_base)
        if gone:  # with the batches before the markers nobody asks for them
            kept = bisect_left(self.aborted, self.segments[0].base_offset, key=_marked_at)
            del self.aborted[:kept]
        freed = 0
        for segment in gone:  # in order, so that a crash leaves a log that begins later
            freed += segment.byte_count
            segment.delete()
        if gone:
            self._write_epochs()
        return freed

    def lets_go(self, kept: Kept, *, committed_end: int, now_ms: int) -> bool:
        """Whether ``let_go`` would delete something."""
        active = self._age(self.segments[-1])
        return self._deletable(kept, committed_end, now_ms) > 0 or outlived(
            active, kept, committed_end=committed_end, now_ms=now_ms
        )

    def let_go(self, kept: Kept, *, committed_end: int, now_ms: int) -> int:
        """What is not kept any longer goes; how many bytes. Raises ``OSError``."""
        # Sealed ones first: on a full disk they make room for what sealing another one writes.
        freed = self._let_sealed_go(kept, committed_end, now_ms)
        active = self._age(self.segments[-1])
        if outlived(active, kept, committed_end=committed_end, now_ms=now_ms):
            self.roll(self.log_end, now_ms)
            freed += self._let_sealed_go(kept, committed_end, now_ms)
        return freed

    def _let_sealed_go(self, kept: Kept, committed_end: int, now_ms: int) -> int:
        return self.delete_segments(self._deletable(kept, committed_end, now_ms))

    def _deletable(self, kept: Kept, committed_end: int, now_ms: int) -> int:
        return deletable(
            [self._age(segment) for segment in self.segments[:-1]],
            self._age(self.segments[-1]),
            kept,
            log_start=self.log_start,
            committed_end=committed_end,
            now_ms=now_ms,
        )

    def swap_in(self, old: Sequence[Segment], new: Segment) -> None:
        """``new``, whose batches are in ``.log.cleaned`` and synced, takes the place of ``old``:
        sealed segments that follow one another, whose name it has. Ranges of before are void.
        Raises ``OSError``: this replica must end; opening it finishes the swap, or undoes it."""
        disk, first, last = self._disk, old[0], old[-1]
        end = self.segments[self.segments.index(last) + 1].base_offset
        # One of a pass that did not end well: beside it a crash would have the new one thrown away.
        for name in disk.list(self.folder):
            if name.endswith(CLEANED) and self.folder / name != first.path(LOG + CLEANED):
                disk.remove(self.folder / name)
        disk.rename(first.path(LOG + CLEANED), first.path(LOG + SWAP))
        # From here on a crash leaves the new one: nothing of the old ones goes before.
        disk.sync_dir(self.folder)
        for segment in old[1:]:
            segment.delete()
        # Indexes would point into the middle of other batches. What was aborted is gone with its
        # records, so that no list of it is needed.
        first.delete_beside()
        disk.sync_dir(self.folder)  # they must not be back beside the new one
        disk.rename(first.path(LOG + SWAP), first.path(LOG))
        disk.sync_dir(self.folder)
        first.close()
        new.renamed()
        at = self.segments.index(first)
        self.segments[at : at + len(old)] = [new]
        self.swapped_end = max(self.swapped_end, end)
        self.aborted = [each for each in self.aborted if each.last_offset >= end]
        known = len(self._sums)
        for each in old:
            self._sums.pop(each.base_offset, None)
        if len(self._sums) < known:
            self._store_sums()
        try:
            new.write_indexes()
        except OSError as error:
            if error.errno != errno.ENOSPC:  # they are made again when the log is opened
                raise

    def _age(self, segment: Segment) -> SegmentAge:
        latest_ms = segment.greatest[0] if segment.greatest[0] >= 0 else self._created_ms
        return SegmentAge(segment.next_offset, segment.byte_count, latest_ms)


def _marked_at(aborted: AbortedTransaction) -> int:
    return aborted.last_offset


def _nothing(offset: int) -> None:
    """Nobody has stored anything of this log."""


def _stamped(view: memoryview, at: int, header: BatchHead, offset: int, epoch: int) -> Stored:
    """The batch as it is stored: 16 bytes of ours, then a view of what the client sent."""
    rest = view[at + STAMP_BYTES : at + header.byte_count]
    return Stored(renumbered(header, offset, epoch), (stamp(header, offset, epoch), rest))


def _whole_part(view: memoryview) -> memoryview:
    """Up to the end of the last whole batch, as the heads say."""
    end = 0
    while len(view) - end >= HEADER_BYTES:
        header = read_header(view, end)
        if implausible(header) or header.byte_count > len(view) - end:
            break
        end += header.byte_count
    if end < len(view) and len(view) - end >= HEADER_BYTES:
        head = read_header(view, end)
        if why := implausible(head):
            raise CorruptBatchError(f"the batch at byte {end} of a fetched answer is none: {why}")
    return view[:end]
