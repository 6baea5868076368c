"""What compaction leaves of one entry, as both who compact write it: a topic's broker, and the job
``compact``."""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence

from magnetar.log.seam import Buffer, Survivor
from magnetar.log.survivors import ack_words
from magnetar.model.entry import Entry


def survivor(
    entry: Entry,
    payload: Buffer,
    kept: Sequence[int] | None,
    size: int,
    without_others: Callable[[memoryview, Container[int]], bytes],
) -> Survivor:
    """Of an entry of which something stays (``survivors.Survivors.kept``). ``payload``: header and
    all; ``size``: how many messages the entry says it has."""
    place = entry.position
    if kept is None:
        return Survivor(place, payload, entry.kept)
    left = without_others(memoryview(payload), frozenset(kept))
    return Survivor(place, left, ack_words(kept, size))
