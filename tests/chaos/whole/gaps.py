"""How long topics were without an acknowledgement, by the kind of fault. Pure.

A gap is the time between two acknowledgements of one topic that came one after the other. A fault
is charged with the longest gap, of all topics, that began while it was in force (or right before:
the last acknowledgement was). Where faults overlap a gap is charged to each of them, so these are
upper bounds for what a fault does alone.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from tests.chaos.whole.history import SENT, Record

BEFORE_S: Final = 0.3


class InForce(NamedTuple):
    """A fault as it was: its name, from when until when, on the machine's monotonic clock."""

    name: str
    target: str
    begun_s: float
    over_s: float


class Gaps(NamedTuple):
    """Of one kind of fault."""

    count: int
    median_s: float
    worst_s: float


def acknowledgement_times(records: Iterable[Record]) -> dict[str, list[float]]:
    """Topic, or partition of one -> when each of its acknowledgements came."""
    times: dict[str, list[float]] = {}
    for time_s, what, *values in records:
        if what == SENT:
            topic, _producer, _number, message_id = values
            times.setdefault(f"{topic} {_partition(message_id)}", []).append(time_s)
    return times


def _partition(message_id: str) -> str:
    """Of ``(ledger, entry, partition, place in the batch)``."""
    return message_id.split(",")[2].strip()


def longest_gap_s(times: Sequence[float], begun_s: float, over_s: float) -> float:
    """Of the gaps of one topic that began in that time."""
    first = bisect_left(times, begun_s - BEFORE_S)
    last = min(bisect_right(times, over_s), len(times) - 1)
    return max((times[i + 1] - times[i] for i in range(first, last)), default=0.0)


def by_kind(faults: Sequence[InForce], times: Mapping[str, Sequence[float]]) -> dict[str, Gaps]:
    """Name of a kind of fault -> what it cost."""
    found: dict[str, list[float]] = {}
    for fault in faults:
        worst = max(
            (longest_gap_s(each, fault.begun_s, fault.over_s) for each in times.values()),
            default=0.0,
        )
        found.setdefault(fault.name, []).append(worst)
    return {
        name: Gaps(len(each), sorted(each)[len(each) // 2], max(each))
        for name, each in sorted(found.items())
    }
