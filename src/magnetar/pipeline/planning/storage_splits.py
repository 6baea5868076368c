"""How ranges are cut for reading at the bookies: by bytes, within ledgers. Pure.

A range is the entries of some ledgers; what is known of those (``losses.LedgerFacts``) says how
many bytes they are. They are cut into pieces of about the same size, of ``split_bytes`` at most
(``split_bytes_for``, if nobody says), or more pieces if as many are asked for; so one topic of one
partition uses every core. Cuts lie
between entries, at the place where the mean size of a ledger's entries says that the size is
reached. What was planned of closed ledgers is planned again in the same way, as their sizes never
change.

The contract of splits: ``splits.py``.
Why these sizes: docs/adr/0177-splits-by-the-drivers-cores.md.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from magnetar.pipeline.losses import LedgerFacts
from magnetar.pipeline.places import Place
from magnetar.pipeline.planning.splits import PlannedRange, Split

SPLITS_MAX: Final = 10_000

SPLIT_BYTES_MIN: Final = 48 << 20
"""A task costs, beside what it reads, the CPU time of reading 7 MiB: more tasks than that makes
would be waste, though cores were free."""
SPLIT_BYTES_MAX: Final = 128 << 20
"""Larger ones save nothing that counts, and the last of them is waited for longer. Spark's own, of
files."""


@dataclass(frozen=True)
class LedgerSpan:
    """The entries of a ledger from ``first_entry_id`` up to, not including, ``stop_entry_id``."""

    ledger_id: int
    first_entry_id: int
    stop_entry_id: int


@dataclass(frozen=True)
class ByStorage:
    """At the bookies, which hold these entries; ``or_broker``: through the broker where they are
    out of reach."""

    spans: tuple[LedgerSpan, ...]
    or_broker: bool


@dataclass(frozen=True)
class StoredRange:
    """The entries of a range, with their bytes."""

    part: PlannedRange
    spans: tuple[tuple[LedgerSpan, int], ...]

    @property
    def byte_count(self) -> int:
        return sum(byte_count for _, byte_count in self.spans)

    @property
    def entries(self) -> int:
        return sum(span.stop_entry_id - span.first_entry_id for span, _ in self.spans)


def stored_range(part: PlannedRange, ledgers: Sequence[LedgerFacts]) -> StoredRange | None:
    """The entries of the range, by what is known of its ledgers. None if that is not enough: it is
    older than the range, or there are no entries."""
    spans = []
    for facts in ledgers:
        if not part.start.ledger_id <= facts.ledger_id <= part.end.ledger_id:
            continue
        if facts.ledger_id < part.end.ledger_id and not facts.closed:
            return None
        span = _span(part, facts)
        count = span.stop_entry_id - span.first_entry_id
        if count > 0:
            spans.append((span, facts.stored_bytes * count // max(facts.entries, 1)))
    return StoredRange(part, tuple(spans)) if spans else None


def _span(part: PlannedRange, facts: LedgerFacts) -> LedgerSpan:
    start, end = part.start, part.end
    first = max(0, start.entry_id) if facts.ledger_id == start.ledger_id else 0
    stop = facts.entries
    if facts.ledger_id == end.ledger_id:
        wanted = end.entry_id + (end.batch_index > 0)
        # of the open ledger the range may know more than the facts
        stop = min(stop, wanted) if facts.closed else wanted
    return LedgerSpan(facts.ledger_id, first, stop)


def split_bytes_for(byte_count: int, cores: int) -> int:
    """About how much one task reads of a range, so that each of the cores has a part of it."""
    return min(max(-(-byte_count // max(1, cores)), SPLIT_BYTES_MIN), SPLIT_BYTES_MAX)


def cut(stored: StoredRange, split_bytes: int, splits_min: int, *, or_broker: bool) -> list[Split]:
    """The splits of a range: as many as its bytes need, at least ``splits_min`` if it has as many
    entries."""
    count = max(-(-stored.byte_count // split_bytes), splits_min, 1)
    count = min(count, stored.entries, SPLITS_MAX)
    part = stored.part
    bounds = [part.start, *_cuts(stored, count), part.end]
    pieces = [part.piece(first, last) for first, last in pairwise(bounds)]
    return [Split(piece, ByStorage(tuple(_within(stored, piece)), or_broker)) for piece in pieces]


def _cuts(stored: StoredRange, count: int) -> Iterator[Place]:
    """Where a piece ends and another begins: ``count - 1`` places, each behind the one before."""
    numbers = _strictly_rising(_numbers(stored, count), count, stored.entries)
    number, passed = next(numbers, None), 0
    for span, _ in stored.spans:
        entries = span.stop_entry_id - span.first_entry_id
        while number is not None and number < passed + entries:
            yield Place(span.ledger_id, span.first_entry_id + number - passed, 0)
            number = next(numbers, None)
        passed += entries


def _numbers(stored: StoredRange, count: int) -> Iterator[int]:
    """By bytes, the number within the range of each entry but the first with which a piece
    begins; an entry that is larger than a piece comes more than once."""
    weights = [max(byte_count, 1) for _, byte_count in stored.spans]
    total, before, passed, number = sum(weights), 0, 0, 1
    for (span, _), weight in zip(stored.spans, weights, strict=True):
        entries = span.stop_entry_id - span.first_entry_id
        while number < count and total * number <= (before + weight) * count:
            yield passed + (total * number - before * count) * entries // (weight * count)
            number += 1
        before += weight
        passed += entries


def _strictly_rising(numbers: Iterator[int], count: int, entries: int) -> Iterator[int]:
    """Each at least one more than the one before, and with an entry left for each piece behind
    it: else whoever asks for so many tasks gets fewer where a few entries have most bytes."""
    least = 1
    for pieces_before, number in enumerate(numbers, 1):
        most = entries - (count - pieces_before)
        number = min(max(number, least), most)
        yield number
        least = number + 1


def _ledger_id(span: tuple[LedgerSpan, int]) -> int:
    return span[0].ledger_id


def _within(stored: StoredRange, piece: PlannedRange) -> Iterator[LedgerSpan]:
    """The entries of a piece."""
    begin = bisect_left(stored.spans, piece.start.ledger_id, key=_ledger_id)
    end = bisect_right(stored.spans, piece.end.ledger_id, key=_ledger_id)
    for span, _ in stored.spans[begin:end]:
        first, stop = span.first_entry_id, span.stop_entry_id
        if span.ledger_id == piece.start.ledger_id:
            first = max(first, piece.start.entry_id)
        if span.ledger_id == piece.end.ledger_id:
            stop = min(stop, piece.end.entry_id + (piece.end.batch_index > 0))
        if first < stop:
            yield LedgerSpan(span.ledger_id, first, stop)
