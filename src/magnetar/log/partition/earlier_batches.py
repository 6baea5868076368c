"""The batches before a snapshot of producers, from the log's end.

A snapshot knows each producer's last batch. A client that had more of them under way when its
leader ended sends all of them again, oldest first: one that is not known for a repeat is refused as
out of order, although it is stored. So the heads of the last batches are read when a log is opened:
few first, more while a producer that is among them may have more. Bounded in bytes and heads, since
every partition with idempotent producers is opened so; a producer that has been silent for longer
than that has nothing under way.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from magnetar.log.partition.batch_header import BatchHead
from magnetar.log.partition.producer_states import ProducerStates
from magnetar.log.partition.segment import Segment
from magnetar.model.errors import CorruptBatchError

LOOKS: Final = (64 << 10, 512 << 10, 4 << 20)
"""Bytes of the log whose heads are read, one look after the other."""
HEADS_MANY: Final = 2000
"""A look that found so many is the last one."""


def recall_batches(producers: ProducerStates, segments: Sequence[Segment]) -> None:
    """``producers`` is as a snapshot says, of the log of ``segments``."""
    if not any(state.batches for state in producers.producers.values()):
        return
    try:
        for byte_count in LOOKS:
            heads, whole = heads_before(segments, producers.end_offset, byte_count)
            if producers.recall(heads) or whole or len(heads) >= HEADS_MANY:
                return
    except (CorruptBatchError, OSError):
        return  # the log serves all the same, and whoever reads what is damaged is told so


def heads_before(
    segments: Sequence[Segment], offset: int, byte_count: int
) -> tuple[list[BatchHead], bool]:
    """Of about the last ``byte_count`` bytes before the batch of ``offset``, in order; and whether
    these are all that there are. Raises as ``Segment.headers``."""
    runs: list[list[BatchHead]] = []
    left = byte_count
    for segment in reversed(segments):
        if segment.base_offset >= offset:
            continue
        if left <= 0:
            return _joined(runs), False
        place = segment.place_of(offset) if offset < segment.next_offset else None
        end = segment.byte_count if place is None else place[0]
        start = segment.index.byte_before(max(0, end - left))
        runs.append([head for at, head in segment.headers(start) if at < end])
        left -= end - start
        if start > 0:
            return _joined(runs), False
    return _joined(runs), True


def _joined(runs: Sequence[list[BatchHead]]) -> list[BatchHead]:
    return [head for run in reversed(runs) for head in run]
