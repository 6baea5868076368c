"""What of a partition's log is not kept any longer: which segments, from the front on.

Pure. The caller deletes (``LocalLog.delete_segments``).

Rules:

* Segments go whole, from the front on, and never the last one. (One of which nothing is to be kept
  is sealed first, so that it can go: ``outlived``.)
* Nothing goes that is not committed: a follower that has less than the leader keeps, and the leader
  itself after an election, must be able to give it.
* By time: when its latest record is older than ``kept_ms``. Without times in it, since it was
  begun.
* By size: while what is left behind it, the active segment included, is still ``kept_bytes`` or
  more.
* What lies wholly before the log's start was deleted by somebody, and goes in any case, also where
  the log is compacted and nothing is deleted by time or size.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from magnetar.log.partition.limits import UNLIMITED, Kept


class SegmentAge(NamedTuple):
    """Of one segment; ``latest_ms``: its latest record's, or when it was begun."""

    end_offset: int
    byte_count: int
    latest_ms: int


def deletable(
    segments: Sequence[SegmentAge],
    active: SegmentAge,
    kept: Kept,
    *,
    log_start: int,
    committed_end: int,
    now_ms: int,
) -> int:
    """How many of ``segments`` (all but the ``active`` one, in order) go now."""
    left = sum(segment.byte_count for segment in segments) + active.byte_count
    count = 0
    for segment in segments:
        left -= segment.byte_count
        if segment.end_offset > committed_end:
            break
        before_start = segment.end_offset <= log_start
        if not before_start and not _outlived(segment, kept, left, now_ms):
            break
        count += 1
    return count


def _outlived(segment: SegmentAge, kept: Kept, left: int, now_ms: int) -> bool:
    if not kept.cleanup.deletes:
        return False
    old = kept.kept_ms != UNLIMITED and now_ms - segment.latest_ms > kept.kept_ms
    return old or (kept.kept_bytes != UNLIMITED and left >= kept.kept_bytes)


def outlived(active: SegmentAge, kept: Kept, *, committed_end: int, now_ms: int) -> bool:
    """Whether the active segment is to be sealed, because nothing of it is to be kept: all in it is
    too old, or no bytes are kept at all."""
    return (
        active.byte_count > 0
        and active.end_offset <= committed_end
        and _outlived(active, kept, 0, now_ms)
    )
