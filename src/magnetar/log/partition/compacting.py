"""Compacting a partition's log: its sealed segments are read, and replaced by what ``compaction``
keeps.

Owns one pass over a log: what it has found, and the file that it writes. Blocking.

Rules:

* Only segments that are sealed, committed and before every open transaction are compacted: what
  comes later may still be cut, or aborted.
* A pass reads and writes beside the log, by files of its own, in steps of about ``STEP_BYTES``: it
  may run on any thread while the log is appended to and read. Only ``begin`` and ``put`` are jobs
  of the log's lane.
* ``put`` takes nothing for granted: segments that were cut, let go or closed meanwhile are not
  replaced, and the pass is over. What was cut may be as long again: cuts are counted.
* What a pass has written and nobody has put goes with it: a file ``.cleaned`` that stays would be
  taken for half of another swap.
* Segments are replaced from the front on. So when a pass ends half way, what aborted transactions
  and tombstones have taken with them was before that.
* All that is new is looked through before anything is replaced.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, NamedTuple

from pyroaring import BitMap

from magnetar.env.files.disk import DiskFile
from magnetar.log.partition.batch_header import (
    HEADER_BYTES,
    BatchHead,
    Buffer,
    implausible,
    read_header,
)
from magnetar.log.partition.compaction import (
    AbortedBatches,
    Cleaning,
    Dirt,
    KeyOffsets,
    SegmentFacts,
    checked,
    grouped,
    judge_dirt,
    sealed_for_age,
)
from magnetar.log.partition.limits import Kept
from magnetar.log.partition.local_log import LocalLog
from magnetar.log.partition.segment import CLEANED, LOG, Segment
from magnetar.model.errors import CorruptBatchError

STEP_BYTES: Final = 256 << 10
READ_BYTES: Final = 1 << 20
KEY_BYTES_MAX: Final = 64 << 20
OFFSET_ENTRY_BYTES: Final = 8


class Replacement(NamedTuple):
    """Segments that follow one another, and what is to take their place. ``starts``: the offsets of
    its batches, less its first segment's."""

    old: Sequence[Segment]
    sizes: Sequence[int]
    new: Segment
    starts: BitMap
    end_offset: int

    @property
    def freed_bytes(self) -> int:
        return sum(self.sizes) - self.new.byte_count


@dataclass(slots=True)
class CompactionResult:
    """What a pass has done so far."""

    freed_bytes: int = 0
    read_bytes: int = 0
    keys: int = 0
    finished: bool = False


class LogCompactor:
    """Of one log, while it is open. ``key_bytes_max``: memory for the keys of a pass."""

    def __init__(self, source: LocalLog, key_bytes_max: int = KEY_BYTES_MAX) -> None:
        self._log = source
        self._key_bytes_max = key_bytes_max
        self._cuts = source.cuts

    # -- on the log's lane --------------------------------------------------------------------

    def look(self, kept: Kept, *, committed_end: int, now_ms: int) -> Dirt:
        """How dirty the log is. Its active segment is sealed if what it has is too old not to be
        compacted. Raises ``OSError``."""
        source, active = self._log, self._log.segments[-1]
        self._cuts = source.cuts  # others may come first: a pass is over what was looked at
        # What was cut by an election that loses records is not what was compacted.
        source.compacted_end = min(source.compacted_end, max(committed_end, source.log_start))
        if sealed_for_age(active.first_time_ms, active.byte_count, kept, now_ms):
            source.roll(source.log_end, now_ms)
        first_open = source.producers.first_open()
        stable = committed_end if first_open is None else min(committed_end, first_open)
        done = source.compacted_end
        facts = self._facts()
        return judge_dirt(facts, kept, done_end=done, stable_end=stable, now_ms=now_ms)

    def _facts(self) -> list[SegmentFacts]:
        """A segment ends where the next one begins, whatever was taken from its end."""
        segments = self._log.segments
        return [
            SegmentFacts(
                segment.base_offset,
                following.base_offset,
                segment.byte_count,
                segment.first_time_ms,
                segment.greatest[0],
                len(segment.index) * OFFSET_ENTRY_BYTES,
            )
            for segment, following in pairwise(segments)
        ]

    def begin(self, kept: Kept, end_offset: int, now_ms: int) -> CompactionPass:
        """Over what is before ``end_offset``, as ``look`` has said."""
        return CompactionPass(
            self._log, self._facts(), kept, end_offset, now_ms, self._key_bytes_max, self._cuts
        )

    # -- all at once --------------------------------------------------------------------------

    def dirty_ratio(self, committed_end: int) -> float:
        """Of the bytes that can be compacted, those that were not yet."""
        return self.look(Kept(), committed_end=committed_end, now_ms=0).ratio

    def compact(self, kept: Kept, *, committed_end: int, now_ms: int) -> int:
        """One pass on this thread; how many bytes went. Raises as ``CompactionPass.steps`` and
        ``put``."""
        found = self.look(kept, committed_end=committed_end, now_ms=now_ms)
        compaction = self.begin(kept, found.end_offset, now_ms)
        for ready in compaction.steps():
            if ready is not None:
                compaction.put(ready)
        compaction.end()
        return compaction.result.freed_bytes


class CompactionPass:
    """Made by ``LogCompactor.begin``."""

    def __init__(
        self,
        source: LocalLog,
        facts: Sequence[SegmentFacts],
        kept: Kept,
        end_offset: int,
        now_ms: int,
        key_bytes_max: int,
        cuts: int,
    ) -> None:
        self.result = CompactionResult()
        self._log = source
        self._done_end = source.compacted_end
        self._now_ms = now_ms
        self._kept = kept
        self._facts = [each for each in facts if each.next_offset <= end_offset]
        self._segments = {each.base_offset: each for each in source.segments}
        self._keys = KeyOffsets(key_bytes_max)
        self._keys.end_offset = self._done_end
        self._aborted = AbortedBatches(source.aborted)
        self._producers = dict(source.producers.producers)
        self._limits = source.limits
        self._cuts = cuts
        self._put: Segment | None = None
        self._replaced: set[int] = set()

    # -- beside the log -----------------------------------------------------------------------

    def steps(self) -> Generator[Replacement | None, None, None]:
        """Each step reads or writes some; a ``Replacement`` is to be ``put`` before the next one.
        Raises ``CorruptBatchError``, ``ProtocolError``, ``ConfigError`` (a batch cannot be taken
        apart), ``OSError``: what was put stays, and nothing else was changed."""
        yield from self._look()
        facts = [each for each in self._facts if each.base_offset < self._keys.end_offset]
        if not facts:
            return
        limits = self._limits
        groups = grouped(facts, limits.segment_bytes_max, limits.index_bytes_max)
        ends = {group[-1].next_offset for group in groups if len(group) > 1}
        cleaning = Cleaning(
            self._keys,
            self._aborted,
            self._producers,
            frozenset({*ends, facts[-1].next_offset}),
            self._now_ms,
            self._kept.tombstones_kept_ms,
            self._log.folder.name,
        )
        for group in groups:
            yield from self._clean(group, cleaning)

    def _look(self) -> Iterator[None]:
        for fact in self._facts:
            if fact.next_offset <= self._done_end:
                continue
            for batch in self._batches(fact):
                if batch is None:
                    yield None
                    continue
                header = read_header(batch)
                if header.next_offset <= self._done_end:
                    continue
                if not self._keys.takes(header):
                    return
                checked(batch, header, self._log.folder.name)
                self._keys.look(batch, header, not self._aborted.has(header))
                self.result.keys = len(self._keys)
            self._keys.end_offset = fact.next_offset

    def _clean(
        self, group: Sequence[SegmentFacts], cleaning: Cleaning
    ) -> Iterator[Replacement | None]:
        source, first = self._log, self._segments[group[0].base_offset]
        path = first.path(LOG + CLEANED)
        file = source.disk.open(path, create=True)
        new = Segment(source.disk, source.folder, first.base_offset, file, self._limits)
        try:
            file.truncate(0)  # of a pass that ended in the middle
            writer = _Writer(new, file)
            changed = len(group) > 1
            for fact in group:
                for batch in self._batches(fact):
                    if batch is None:
                        yield None
                        continue
                    left = cleaning.left(batch)
                    changed = changed or left is not batch
                    if left is not None:
                        writer.add(left)
            if changed:
                writer.flush()
                file.datasync()
                old = [self._segments[each.base_offset] for each in group]
                sizes = [each.byte_count for each in group]
                yield Replacement(old, sizes, new, writer.starts, group[-1].next_offset)
        finally:
            if self._put is not new:  # also one that was ready, and that nobody has put
                file.close()
                with suppress(FileNotFoundError):  # its log is gone
                    source.disk.remove(path)

    def _batches(self, fact: SegmentFacts) -> Iterator[Buffer | None]:
        """Whole batches of a segment, as it was when the pass began; None: that was a step."""
        path = self._segments[fact.base_offset].path(LOG)
        file = self._log.disk.open(path)
        try:
            chunk, start, at, spent = memoryview(b""), 0, 0, 0
            while at < fact.byte_count:
                chunk, start = _filled(file, chunk, start, at, HEADER_BYTES, fact.byte_count)
                header = _head_at(chunk, at - start, path.name, at)
                size = header.byte_count
                chunk, start = _filled(file, chunk, start, at, size, fact.byte_count)
                if at - start + size > len(chunk):
                    raise CorruptBatchError(f"{path.name}: the batch at byte {at} is cut")
                yield chunk[at - start : at - start + size]
                at, spent = at + size, spent + size
                if spent >= STEP_BYTES:
                    self.result.read_bytes += spent
                    spent = 0
                    yield None
            self.result.read_bytes += spent
        finally:
            file.close()

    # -- on the log's lane --------------------------------------------------------------------

    def put(self, ready: Replacement) -> bool:
        """The replacement takes its place; False: the log is another one by now, and the pass is
        over (its file goes when ``steps`` ends). Raises ``OSError``: the replica must end."""
        segments, old = self._log.segments, ready.old
        there = [each for each in segments[:-1] if each in old]
        if self._was_cut or there != [*old] or [each.byte_count for each in old] != [*ready.sizes]:
            return False
        self._put = ready.new
        self._log.swap_in(old, ready.new)
        self._replaced.update(each.base_offset for each in old)
        self.result.freed_bytes += ready.freed_bytes
        return True

    @property
    def _was_cut(self) -> bool:
        """What is there now may be of another leader, as long as what was."""
        return self._log.cuts != self._cuts

    def overtaken(self) -> bool:
        """Whether what it reads was cut or let go meanwhile."""
        segments = self._log.segments
        return self._was_cut or not all(
            self._segments[each.base_offset] in segments
            for each in self._facts
            if each.base_offset not in self._replaced
        )

    def end(self) -> None:
        """All was put: what was looked through is compacted."""
        if self._was_cut:
            return
        self._log.compacted_end = max(self._log.compacted_end, self._keys.end_offset)
        self.result.finished = True


class _Writer:
    """Batches into a new segment's file; they are in its indexes at once."""

    def __init__(self, segment: Segment, file: DiskFile) -> None:
        self.starts = BitMap()
        self._segment = segment
        self._file = file
        self._waiting: list[Buffer] = []
        self._at = segment.byte_count

    def add(self, batch: Buffer) -> None:
        header = read_header(batch)
        self._waiting.append(bytes(batch))  # a part of a piece of the file would keep all of that
        self._segment.taken(header)
        self.starts.add(header.base_offset - self._segment.base_offset)
        if self._segment.byte_count - self._at >= STEP_BYTES:
            self.flush()

    def flush(self) -> None:
        if self._waiting:
            self._file.pwritev(self._waiting, self._at)
            self._at, self._waiting = self._segment.byte_count, []


def _filled(
    file: DiskFile, chunk: memoryview, start: int, at: int, size: int, end: int
) -> tuple[memoryview, int]:
    """A chunk that has the ``size`` bytes at ``at``, as far as there are, and where it begins."""
    if at - start + size <= len(chunk):
        return chunk, start
    return memoryview(file.pread(min(max(READ_BYTES, size), end - at), at)), at


def _head_at(chunk: memoryview, place: int, name: str, at: int) -> BatchHead:
    if len(chunk) - place < HEADER_BYTES:
        raise CorruptBatchError(f"{name}: no batch head at byte {at}")
    header = read_header(chunk, place)
    if why := implausible(header):
        raise CorruptBatchError(f"{name}: byte {at} has {why}")
    return header
