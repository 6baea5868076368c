"""Compacting a partition's log: its sealed segments are read, and replaced by what ``compaction``
keeps.

Owns how far a log was compacted. Blocking: a job of the partition's lane.

Rules:

* Only segments that are sealed, committed and before every open transaction are compacted: what
  comes later may still be cut, or aborted.
* A segment is replaced as a whole, and its indexes are removed before: a crash leaves the old one
  or the new one, and no index that is not its own.
* Segments stay, each under its own name, also when nothing is left in one; retention lets them go.
* All of it is read before anything is replaced, so that a batch that cannot be taken apart changes
  nothing. The last offsets of all keys are in memory meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain

from magnetar.log.partition.batch_header import BatchHead, Buffer, read_header
from magnetar.log.partition.compaction import cleaned, last_offsets
from magnetar.log.partition.limits import Kept
from magnetar.log.partition.local_log import LocalLog
from magnetar.log.partition.segment import Segment


class LogCompactor:
    """Of one log, while it is open."""

    def __init__(self, source: LocalLog) -> None:
        self._log = source
        self._done_end = 0
        self._changed = False

    def dirty_ratio(self, committed_end: int) -> float:
        """Of the bytes that can be compacted, those that were not yet."""
        segments = self._compactable(committed_end)
        dirty = sum(each.byte_count for each in segments if each.next_offset > self._done_end)
        return dirty / (sum(segment.byte_count for segment in segments) or 1)

    def _compactable(self, committed_end: int) -> list[Segment]:
        first_open = self._log.producers.first_open()
        end = committed_end if first_open is None else min(committed_end, first_open)
        return [segment for segment in self._log.segments[:-1] if segment.next_offset <= end]

    def compact(self, kept: Kept, *, committed_end: int, now_ms: int) -> int:
        """How many bytes went. Ranges of before are void. Raises ``ProtocolError``, ``ConfigError``
        (a batch cannot be taken apart; nothing was changed), ``OSError``."""
        segments = self._compactable(committed_end)
        last = last_offsets(chain.from_iterable(map(_batches, segments)), self._counts)
        freed = 0
        for segment in segments:
            self._changed = False
            left = self._left(segment, last, kept, now_ms)
            freed += self._log.replace_segment(segment, left, lambda: self._changed)
        if segments:
            self._done_end = max(self._done_end, segments[-1].next_offset)
        return freed

    def _left(
        self, segment: Segment, last: Mapping[bytes, int], kept: Kept, now_ms: int
    ) -> Iterator[Buffer]:
        """The batches that stay of a segment, one by one: it may be larger than memory."""
        for batch in _batches(segment):
            header = read_header(batch)
            found = cleaned(
                batch,
                last,
                counts=self._counts(header),
                needed=self._needed(header),
                now_ms=now_ms,
                tombstones_kept_ms=kept.tombstones_kept_ms,
            )
            self._changed = self._changed or found is not batch
            if found is not None:
                yield found

    def _counts(self, header: BatchHead) -> bool:
        """Whether the records of a batch were meant: not those of a transaction that was
        aborted."""
        if header.control or not header.transactional:
            return not header.control
        return not any(
            each.producer_id == header.producer_id
            and each.first_offset <= header.base_offset <= each.last_offset
            for each in self._log.aborted
        )

    def _needed(self, header: BatchHead) -> bool:
        """Whether it is the last batch of its producer."""
        state = self._log.producers.producers.get(header.producer_id)
        return bool(state and state.batches) and (
            state is not None and state.batches[-1].last_offset == header.last_offset
        )


def _batches(segment: Segment) -> Iterator[Buffer]:
    for position, header in segment.headers():
        yield segment.file.pread(header.byte_count, position)
