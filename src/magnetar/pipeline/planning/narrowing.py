"""Ranges without what the conditions of a query rule out: what is not read at all. Pure.

What is known of a ledger (``losses.LedgerFacts``) says between which publish times its messages
lie, and so whether one of them may be looked for; its id and those of its entries may be ruled out
as well. Publish times are the producers', so nothing follows from the order of entries; but the
broker tells the first entry that was published by some time (``since``), and before that none was.

Only what certainly holds no row is left out. Ledgers of which nothing is known are read; so is the
whole range if it is not certain that it is all there, as the task has to report what is not.

Why: docs/adr/0083-filters-are-an-option.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
import pyarrow as pa

from magnetar.pipeline.columns.conditions import Bounds, Conditions, bounds, every, holds, on
from magnetar.pipeline.losses import LedgerFacts, LogExtent
from magnetar.pipeline.places import START, Place
from magnetar.pipeline.planning.splits import PlannedRange
from magnetar.wire.pulsar.broker_metadata import TIME_MS_MAX
from magnetar.wire.pulsar.pulsar_pb2 import LogQuestion

NARROWING: Final = ("ledger_id", "entry_id", "publish_time")

PIECES_MAX: Final = 1000
"""Of a range: each is a task at least."""


def question_of(part: PlannedRange, conditions: Conditions) -> LogQuestion | None:
    """What to ask the broker of the range; None: nothing, as nothing would follow from it."""
    if not on(conditions, NARROWING):
        return None
    question = LogQuestion(
        ledgers=True, first_ledger_id=part.start.ledger_id, last_ledger_id=part.end.ledger_id
    )
    least_us = bounds(conditions, "publish_time").least
    if least_us > 0:
        question.times_ms.append(min(-(-least_us // 1000), TIME_MS_MAX))
    return question


def narrowed(
    part: PlannedRange,
    conditions: Conditions,
    extent: LogExtent,
    ledgers: Sequence[LedgerFacts],
    of_times: Sequence[Place],
) -> list[PlannedRange]:
    """The pieces of the range that may hold rows, in order; by what the broker answers."""
    other = part.created_ms and extent.created_ms and part.created_ms != extent.created_ms
    if not ledgers or other or part.start < extent.kept_from:
        return [part]
    since = of_times[0] if of_times else START
    pieces: list[tuple[Place, Place]] = []
    for first, stop in _windows(part, conditions, ledgers):
        first = max(first, since)
        if first >= stop:
            continue
        if pieces and (pieces[-1][1] == first or len(pieces) == PIECES_MAX):
            pieces[-1] = pieces[-1][0], stop
        else:
            pieces.append((first, stop))
    return [piece for piece in (part.piece(*them) for them in pieces) if not piece.empty]


def _windows(
    part: PlannedRange, conditions: Conditions, ledgers: Sequence[LedgerFacts]
) -> Iterator[tuple[Place, Place]]:
    """From where to where each ledger may hold rows."""
    times = bounds(conditions, "publish_time")
    entries = bounds(conditions, "entry_id")
    first_id, stop_id = max(0, entries.least), entries.greatest + 1
    ids = np.array([facts.ledger_id for facts in ledgers], np.int64)
    of_ids = (holds(each, pa.array(ids)) for each in on(conditions, ("ledger_id",)))
    chosen = every(of_ids, len(ids)).tolist()
    begins = [part.start, *(Place(facts.ledger_id, 0, 0) for facts in ledgers[1:]), part.end]
    for number, facts in enumerate(ledgers):
        first, stop = max(part.start, begins[number]), min(begins[number + 1], part.end)
        past_its_end = facts.closed and first_id >= facts.entries
        if not chosen[number] or past_its_end or not _published_within(facts, times):
            continue
        if first_id > 0:
            first = max(first, Place(facts.ledger_id, first_id, 0))
        if stop_id < facts.entries:
            stop = min(stop, Place(facts.ledger_id, stop_id, 0))
        yield first, stop


def _published_within(facts: LedgerFacts, times: Bounds) -> bool:
    """Whether a message of the ledger may have been published at such a time."""
    if times.least > times.greatest or not facts.greatest_ms:
        return times.least <= times.greatest
    late = facts.greatest_ms >= TIME_MS_MAX  # what is later is kept as this
    greatest_us = Bounds().greatest if late else facts.greatest_ms * 1000
    return times.meets(facts.least_ms * 1000, greatest_us)
