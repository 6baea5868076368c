"""What the tasks of a read do: a plan is ranges, a range is cut into splits. Pure.

Words:

* A *range* (``PlannedRange``) is what a read, or one micro-batch, takes of one topic partition.
* A *split* is a piece of one range: one task's work. ``by`` says how it is read, and is a small
  picklable value of a type of its own (``ByBroker`` here; one per way of reading).
* ``losses.LedgerFacts`` is what is known of a ledger of a partition's log when a plan is made;
  the broker tells it (``log_watch.LogWatch.ask``, ``LogQuestion.ledgers``).

Contract:

1. ``start`` and ``end`` are places (``places.py``): from ``start`` up to, not including, ``end``.
2. The splits of a range lie side by side: the first begins where the range does, each begins where
   the one before it ends, the last ends where the range does, and none is empty. So every message
   of the range is in exactly one split, wherever the cuts are (``check_cover``). A cut is made
   between entries, never inside a batch.
3. Splits are a function of the range, of facts that never change (closed ledgers; of the open one
   only that it reaches to ``end`` at least) and of options. A micro-batch that runs again may be
   cut elsewhere, as ledgers have been closed or deleted since; by 2 its rows are the same.
4. Planning opens no ledger and no connection per ledger: facts of a whole log come in one answer.
5. A task holds its split against the log before it waits for an entry of it, and what is missing in
   between, as ``losses.py`` says; a loss goes to the ``LossReports`` that it is given, which raises
   or lets the task go on without. A task never ends before its split's end without a report.

To add a way to read: a type for ``by``, a ``Splitter`` that makes such splits (those ranges that it
cannot read it hands to ``whole``), and a line in ``split_readers.SPLIT_READERS``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Protocol

from magnetar.pipeline.losses import UNKNOWN_MS
from magnetar.pipeline.places import NO_OFFSETS, Place


@dataclass(frozen=True)
class PlannedRange:
    """Messages of one topic partition: from ``start`` up to, not including, ``end``; of the log
    that was made at ``created_ms`` (``UNKNOWN_MS``: whichever is there). ``start_offset`` is the
    number of the message at ``start``, ``end_offset`` of that at ``end`` (``NO_OFFSETS``: not
    known): between them lie as many messages, compacted ones included."""

    topic: str
    start: Place
    end: Place
    created_ms: int = UNKNOWN_MS
    start_offset: int = NO_OFFSETS
    end_offset: int = NO_OFFSETS

    @property
    def empty(self) -> bool:
        """Whether no message lies in it: also if it goes from a ledger's end to the next one."""
        counted = NO_OFFSETS not in (self.start_offset, self.end_offset)
        return self.start >= self.end or (counted and self.start_offset == self.end_offset)

    def piece(self, start: Place, end: Place) -> PlannedRange:
        """What of it lies between two places within it. Only its own ends keep their numbers."""
        return replace(
            self,
            start=start,
            end=end,
            start_offset=self.start_offset if start == self.start else NO_OFFSETS,
            end_offset=self.end_offset if end == self.end else NO_OFFSETS,
        )


@dataclass(frozen=True)
class ByBroker:
    """Through the partition's broker, whoever serves it when the task runs."""


BY_BROKER = ByBroker()


@dataclass(frozen=True)
class Split:
    """One task's work: a piece of a range, and how it is read."""

    part: PlannedRange
    by: object = BY_BROKER


class Splitter(Protocol):
    """Cuts ranges, as contract 2 to 4 say. Made with what it needs to know."""

    def split(self, part: PlannedRange) -> Sequence[Split]: ...


class WholeRanges:
    """A split per range, read through the broker."""

    def split(self, part: PlannedRange) -> Sequence[Split]:
        return whole(part)


def whole(part: PlannedRange) -> list[Split]:
    """The range as one split, through the broker; none if it is empty."""
    return [] if part.empty else [Split(part)]


def check_cover(part: PlannedRange, splits: Sequence[Split]) -> None:
    """Assert contract 2: a splitter that leaves something out would lose it silently."""
    pieces = [split.part for split in splits]
    if part.empty:
        assert not pieces, f"{part} is empty and has splits: {pieces}"
        return
    assert pieces, f"{part} has no split"
    assert pieces[0].start == part.start, f"{part} begins before {pieces[0]}"
    assert pieces[-1].end == part.end, f"{part} ends after {pieces[-1]}"
    for before, after in pairwise(pieces):
        assert before.end == after.start, f"{after} does not begin where {before} ends"
    for piece in pieces:
        assert not piece.empty, f"a split is empty: {piece}"
        assert (piece.topic, piece.created_ms) == (part.topic, part.created_ms), piece
