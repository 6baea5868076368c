"""Decides when entry logs are compacted, and which.

    pass       when                               logs taken
    minor      every ``minor_s``                  live share under ``minor_share``
    major      every ``major_s``                  live share under ``major_share``
    pressing   the disk is nearly full: at once,  live share under ``PRESSING_SHARE``
               and again every ``PRESSING_S``

A log without live bytes is dead: it is removed, not compacted. The logs that give most for what
they cost (the lowest live share) come first, in groups that make one new log each: small enough
for the room that there is, and for one log. So on a disk that is nearly full what fits is done
first, and what it frees makes room for the rest. Where nothing fits, logs give back in place
(``holes.py``), the one with most dead bytes first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from magnetar.bookie.storage.log_usage import LogUse

PRESSING_SHARE = 0.9
PRESSING_S = 10.0


class Compaction(NamedTuple):
    """``sources``: the logs to replace by one; ``live_bytes``: of all of them."""

    sources: tuple[int, ...]
    live_bytes: int


def dead(uses: Sequence[LogUse]) -> list[int]:
    """The logs that hold nothing of use."""
    return [use.log_id for use in uses if use.live_bytes == 0]


def plan(
    uses: Sequence[LogUse], share: float, room_bytes: int, log_bytes_max: int, sources_max: int
) -> Compaction | None:
    """The next group to compact: logs with a live share under ``share``; None: nothing to do, or
    no room for it."""
    worst = sorted(
        (use for use in uses if 0 < use.live_bytes < share * use.byte_count),
        key=lambda use: (use.live_bytes / use.byte_count, use.log_id),
    )
    limit = min(room_bytes, log_bytes_max)
    taken: list[int] = []
    size = 0
    for use in worst:
        if size + use.live_bytes <= limit and len(taken) < sources_max:
            taken.append(use.log_id)
            size += use.live_bytes
    return Compaction(tuple(sorted(taken)), size) if taken else None


def wasteful(uses: Sequence[LogUse], share: float, done: Mapping[int, int]) -> LogUse | None:
    """The log that gives most when it gives back in place what is dead in it: of those with a live
    share under ``share``, without those that have done so and have the same live bytes still
    (``done``: log id -> live bytes)."""
    left = (
        use
        for use in uses
        if 0 < use.live_bytes < share * use.byte_count and done.get(use.log_id) != use.live_bytes
    )
    return max(left, key=lambda use: use.byte_count - use.live_bytes, default=None)


class Schedule:
    """When the next pass is due. Times are seconds of one clock that never goes back."""

    def __init__(
        self,
        minor_share: float,
        minor_s: float,
        major_share: float,
        major_s: float,
        now_s: float,
    ) -> None:
        self._minor_share, self._minor_s = minor_share, minor_s
        self._major_share, self._major_s = major_share, major_s
        self._minor_at_s = now_s + minor_s
        self._major_at_s = now_s + major_s
        self._pressing_at_s = now_s

    def due(self, now_s: float, pressing: bool) -> float | None:
        """The live share under which logs are to be compacted now; None: it is not time."""
        if pressing and now_s >= self._pressing_at_s:
            self._pressing_at_s = now_s + PRESSING_S
            return PRESSING_SHARE
        if now_s >= self._major_at_s:
            self._major_at_s = now_s + self._major_s
            self._minor_at_s = now_s + self._minor_s
            return self._major_share
        if now_s >= self._minor_at_s:
            self._minor_at_s = now_s + self._minor_s
            return self._minor_share
        return None
