"""The micro-batches of one query, planned one after the other on the driver.

* ``after``: how far the next one goes. Every partition that is there takes part, from where it was
  (``plans.resume``) to its end, within the limits.
* A query that reads what is there and stops goes to the ends of when it began, and leaves out
  partitions that were added since, so that it does stop.
* ``backlog``: what a progress report tells of what is left, out of memory: a report never asks a
  broker, and so cannot end a query.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Mapping

from magnetar.model.errors import TopicNotFoundError
from magnetar.pipeline.losses import UNKNOWN_MS, LogExtent, Loss
from magnetar.pipeline.options.source_options import TriggerLimits
from magnetar.pipeline.places import NO_OFFSETS, START, Offset, Point, from_offset, to_offset
from magnetar.pipeline.planning.planner import Planner
from magnetar.pipeline.planning.plans import Points, backlogs, created_of, end_of, lost_between


class MicroBatches:
    """See the module."""

    def __init__(
        self, planner: Planner, limits: TriggerLimits, clock_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._planner = planner
        self._limits = limits
        self._clock_s = clock_s
        self._target: Mapping[str, LogExtent] | None = None
        self._planned: Offset | None = None  # the last end, and where its ranges begin
        self._starts: Points = {}
        self._latest: Points = {}
        self._last_s = -math.inf  # the first one waits for nothing

    def stop_at_the_present_end(self) -> None:
        """What is added from now on is not for this run of the query."""
        self._target = self._planner.extents((), absent_allowed=True)

    def after(self, offset: Offset, *, everything: bool) -> Offset | None:
        """The end of the next micro-batch; None: it is not time for one. ``everything``: without
        limits."""
        try:
            return self._after(offset, everything=everything)
        except TopicNotFoundError:
            # Deleted between two questions about it: then the first one has to be asked again.
            return self._after(offset, everything=everything)

    def _after(self, offset: Offset, *, everything: bool) -> Offset | None:
        extents = self._planner.extents(list(offset.points), read_from=offset.places)
        if self._target is not None:
            extents = {n: e for n, e in extents.items() if n in self._target or n in offset.points}
        starts, lost = self._planner.resumed(offset, extents)
        ends = {name: self._end(name, starts[name], extents[name]) for name in starts}
        self._latest = {name: end_of(extent) for name, extent in extents.items()}
        if not everything:
            if self._too_few(starts, ends):
                return None
            ends = self._planner.limited(starts, ends, self._limits)
        self._last_s = self._clock_s()
        self._starts = starts
        # As it comes back from the checkpoint, to be recognised.
        self._planned = from_offset(to_offset(Offset(ends, created_of(extents), lost)))
        return self._planned

    def _end(self, name: str, start: Point, extent: LogExtent) -> Point:
        """Where the log ends, or ended when the query began; never before the start. What was made
        since is not for this run."""
        target = extent if self._target is None else self._target.get(name)
        if target is None or target.created_ms != extent.created_ms:
            return start
        end = end_of(target)
        return end if end.place > start.place else start

    def _too_few(self, starts: Points, ends: Points) -> bool:
        """Whether to wait for more. Not for the ends of a query that stops there."""
        least = self._limits.messages_min
        if least is None or self._target is not None:
            return False
        wanted = backlogs(starts, ends)
        waited_ms = (self._clock_s() - self._last_s) * 1000
        return (
            wanted is not None
            and sum(wanted.values()) < least
            and waited_ms < self._limits.delay_ms_max
        )

    def starts_of(self, first: Offset, last: Offset) -> Points:
        """Where the ranges of the micro-batch from ``first`` to ``last`` begin. One that was
        planned before a restart: its tasks find out what has been lost since."""
        if last == self._planned:
            return self._starts
        self._planner.check_topics(last)
        return {name: _start_of(name, first, last) for name in last.points}

    def losses_of(self, first: Offset, last: Offset, read: Collection[str]) -> list[Loss]:
        """What was gone before it was planned, and no task tells of: those of one that was planned
        before a restart ``read`` from ``first`` on, and so find the same once more."""
        found = lost_between(first, last)
        if last == self._planned:
            return found
        return [
            loss for loss in found if loss.topic not in read or _made_anew(loss.topic, first, last)
        ]

    def backlog(self) -> dict[str, object] | None:
        """The ends of the log and how many messages lie between the last micro-batch and them."""
        if self._planned is None:
            return None
        done = {name: point for name, point in self._planned.points.items() if name in self._latest}
        report: dict[str, object] = {
            "places": {name: str(self._latest[name].place) for name in sorted(done)}
        }
        behind = backlogs(done, self._latest)
        if behind is not None:
            report["behind"] = {name: behind[name] for name in sorted(behind)}
            report["messages_behind"] = sum(behind.values())
        return report


def _start_of(name: str, first: Offset, last: Offset) -> Point:
    """Where the range of a partition begins: at ``first``, or at the start of one that was added or
    made anew in between."""
    if name in first.points and not _made_anew(name, first, last):
        return first.points[name]
    return Point(START, NO_OFFSETS if last.points[name].offset == NO_OFFSETS else 0)


def _made_anew(name: str, first: Offset, last: Offset) -> bool:
    """Whether a partition of ``first`` is another log in ``last``: what was not read of the former
    no task of the new one knows of."""
    created_ms = first.created_ms.get(name, UNKNOWN_MS)
    known = name in first.points and created_ms != UNKNOWN_MS
    return known and created_ms != last.created_ms.get(name, created_ms)
