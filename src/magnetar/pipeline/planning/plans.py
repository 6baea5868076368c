"""From points to points: where a read goes on, how far it goes, what it takes of which partition.

Pure: the planner asks brokers, and this decides. All of it depends on the points and on what was
asked of the logs only.

How a micro-batch is limited: the messages that it may take are shared evenly among the partitions
that have some; what one leaves goes to the others (``shares``). A limit in bytes is shared in the
same way and turned into a place by the mean size of a ledger's entries (``place_after_bytes``), so
it is met about, and at least one entry is taken.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from magnetar.pipeline.losses import UNKNOWN_MS, LedgerFacts, LogExtent, Loss, loss_at
from magnetar.pipeline.places import LEDGER_IDS, NO_OFFSETS, START, Offset, Place, Point, id_offset

Extents = Mapping[str, LogExtent]
Points = dict[str, Point]


def begin_of(extent: LogExtent) -> Point:
    """Before everything that the log still has."""
    return Point(extent.kept_from, extent.first_offset)


def end_of(extent: LogExtent) -> Point:
    return Point(extent.end, extent.end_offset)


def kept_offset(extent: LogExtent) -> int:
    """Before the messages from that number on nothing was deleted: where compaction took the first
    of them, the log's first message has a greater one."""
    return id_offset(extent.kept_from) if extent.by_offset else extent.first_offset


def misnumbered(point: Point, extent: LogExtent) -> bool:
    """Whether its number, of a checkpoint of an earlier release, is that of a message before its
    place: one that compaction took."""
    return extent.by_offset and NO_OFFSETS < point.offset < id_offset(point.place)


def created_of(extents: Extents) -> dict[str, int]:
    return {name: extent.created_ms for name, extent in extents.items()}


@dataclass(frozen=True)
class Resumed:
    """Where a stream goes on in each partition that is there, and what it has lost."""

    starts: Points
    losses: Sequence[Loss]


def resume(offset: Offset, extents: Extents) -> Resumed:
    """A stream goes on after ``offset``, as its partitions are now:

    * one that was added since begins at its start: nothing of it has been read, so what was deleted
      of it is lost as well;
    * one that is gone is a loss, and so is what was deleted, or is of another log (``loss_at``).
    """
    losses = []
    for name in sorted(offset.points):
        if name not in extents:
            what = "the partition is not there any more, or its topic not read any more"
            losses.append(Loss(name, what, 0, START))
    starts = {}
    for name, extent in extents.items():
        point = offset.points.get(name)
        created_ms = offset.created_ms.get(name, UNKNOWN_MS)
        if point is None:
            numbered = extent.first_offset != NO_OFFSETS
            point, created_ms = Point(START, 0 if numbered else NO_OFFSETS), extent.created_ms
        starts[name], loss = held(name, point, created_ms, extent)
        losses += [] if loss is None else [loss]
    return Resumed(starts, losses)


def held(name: str, point: Point, created_ms: int, extent: LogExtent) -> tuple[Point, Loss | None]:
    """The point if the log still holds all after it; else the next one, and the loss."""
    loss = loss_at(name, point.place, created_ms, extent, point.offset)
    return (point, None) if loss is None else (begin_of(extent), loss)


def lost_after(offset: Offset, losses: Sequence[Loss]) -> dict[str, int]:
    """What a stream has lost in all, with these losses."""
    lost = dict(offset.lost)
    for loss in losses:
        lost[loss.topic] = lost.get(loss.topic, 0) + max(loss.messages, loss.entries, 1)
    return lost


def lost_between(first: Offset, last: Offset) -> list[Loss]:
    """What was gone before the micro-batch from ``first`` to ``last`` was planned, out of what both
    have lost in all: the same however often it is asked."""
    before = {} if first.initial else first.lost
    found = []
    for name in sorted(last.lost):
        count = last.lost[name] - before.get(name, 0)
        if count > 0:
            what = (
                f"{count} messages, or entries where messages could not be counted, were gone "
                "before they were read"
            )
            place = first.points[name].place if name in first.points else START
            found.append(Loss(name, what, 0, START, count, place))
    return found


def backlogs(starts: Mapping[str, Point], ends: Mapping[str, Point]) -> dict[str, int] | None:
    """How many messages lie between the two in each partition; None if a broker does not number
    them."""
    if any(NO_OFFSETS in (starts[name].offset, ends[name].offset) for name in starts):
        return None
    return {name: max(0, ends[name].offset - starts[name].offset) for name in starts}


def shares(wanted: Mapping[str, int], budget: int) -> dict[str, int]:
    """At most ``budget`` in all, evenly; what one does not want goes to the others."""
    given = dict.fromkeys(wanted, 0)
    hungry = sorted((name for name in wanted if wanted[name] > 0), key=lambda name: wanted[name])
    hungry = hungry[max(0, len(hungry) - budget) :]  # too little for all: for those with the most
    for rank, name in enumerate(hungry):
        given[name] = min(wanted[name], budget // (len(hungry) - rank))
        budget -= given[name]
    return given


# -- bytes ----------------------------------------------------------------------------------------


def entries_between(facts: LedgerFacts, start: Place, end: Place) -> tuple[int, int]:
    """The ids of the ledger's entries that are in between: from the first to, not including, the
    second. An entry that ``end`` cuts counts whole."""
    first_id = max(0, start.entry_id) if facts.ledger_id == start.ledger_id else 0
    if facts.ledger_id < start.ledger_id or facts.ledger_id > end.ledger_id:
        return 0, 0
    stop_id = facts.entries
    if facts.ledger_id == end.ledger_id:
        stop_id = min(stop_id, end.entry_id + (end.batch_index > 0))
    return first_id, max(first_id, stop_id)


def by_offsets(ledgers: Sequence[LedgerFacts], extent: LogExtent) -> tuple[LedgerFacts, ...]:
    """The ledgers of a log whose ids are offsets, as if each id were an entry: what is cut and
    measured by ids is then. Where a batch is cut it belongs to what lies before."""
    found = []
    for facts in ledgers:
        stop_id = extent.end.entry_id if facts.ledger_id == extent.end.ledger_id else LEDGER_IDS
        kept = extent.kept_from.entry_id if facts.ledger_id == extent.kept_from.ledger_id else 0
        ids = max(1, stop_id - max(0, kept))
        stored_bytes = facts.stored_bytes * stop_id // ids  # as if none were deleted
        found.append(facts._replace(entries=stop_id, stored_bytes=stored_bytes))
    return tuple(found)


def bytes_between(ledgers: Sequence[LedgerFacts], start: Place, end: Place) -> int:
    """About how many bytes are stored between two places."""
    total = 0
    for facts in ledgers:
        first_id, stop_id = entries_between(facts, start, end)
        if stop_id > first_id:
            total += (stop_id - first_id) * facts.stored_bytes // facts.entries
    return total


def place_after_bytes(
    ledgers: Sequence[LedgerFacts], start: Place, end: Place, byte_count: int
) -> Place:
    """The place after about so many bytes from ``start`` on, between entries and not past ``end``;
    after one entry at least."""
    left = byte_count
    for facts in ledgers:
        first_id, stop_id = entries_between(facts, start, end)
        if stop_id == first_id:
            continue
        mean = max(1, facts.stored_bytes // facts.entries)
        taken = max(left // mean, 1 if left == byte_count else 0)
        if taken < stop_id - first_id:
            return min(end, Place(facts.ledger_id, first_id + taken, 0))
        left -= (stop_id - first_id) * mean
        if left < mean:
            return min(end, Place(facts.ledger_id, stop_id, 0))
    return end
