"""``minPartitions``: ranges cut so that there are about so many tasks. Pure.

Each range gets a share by its messages (one piece at least), and is cut between entries into pieces
of about equally many entries, by what is known of its ledgers. A range is never cut into more
pieces than it has entries, so there may be fewer tasks than asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Final

from magnetar.pipeline.losses import LedgerFacts
from magnetar.pipeline.places import NO_OFFSETS, Place
from magnetar.pipeline.planning.plans import entries_between
from magnetar.pipeline.planning.splits import PlannedRange, Split

PIECES_MAX: Final = 10_000
"""Of a range: more tasks than that are of no use to anybody."""

LedgersBetween = Callable[[str, Place, Place], Sequence[LedgerFacts]]


class EvenSplits:
    """A ``Splitter``. ``ledgers``: those of a partition between two places."""

    def __init__(
        self, parts: Sequence[PlannedRange], pieces_min: int, ledgers: LedgersBetween
    ) -> None:
        self._ledgers = ledgers
        self._pieces = _shares_of(parts, pieces_min)

    def split(self, part: PlannedRange) -> Sequence[Split]:
        pieces = self._pieces.get(part.topic, 1)
        if pieces < 2:
            return [Split(part)]
        cuts = _cuts(self._ledgers(part.topic, part.start, part.end), part, pieces)
        return [Split(piece) for piece in _cut(part, cuts)]


def _shares_of(parts: Sequence[PlannedRange], pieces_min: int) -> dict[str, int]:
    """How many pieces each range is cut into."""
    sizes = {part.topic: _messages(part) for part in parts}
    total = sum(sizes.values())
    if len(parts) >= pieces_min or not total:
        return {}
    return {topic: max(1, -(-pieces_min * size // total)) for topic, size in sizes.items()}


def _messages(part: PlannedRange) -> int:
    if NO_OFFSETS in (part.start_offset, part.end_offset):
        return 1
    return part.end_offset - part.start_offset


def _cuts(ledgers: Sequence[LedgerFacts], part: PlannedRange, pieces: int) -> list[Place]:
    """Places strictly inside of the range, after equally many entries each."""
    spans = [(facts.ledger_id, *entries_between(facts, part.start, part.end)) for facts in ledgers]
    total = sum(stop - first for _, first, stop in spans)
    pieces = min(pieces, total, PIECES_MAX)
    targets = [total * number // pieces for number in range(1, pieces)]
    cuts: list[Place] = []
    before = 0
    for ledger_id, first, stop in spans:
        inside = [target for target in targets if before < target <= before + stop - first]
        cuts += [Place(ledger_id, first + target - before, 0) for target in inside]
        before += stop - first
    return [cut for cut in dict.fromkeys(cuts) if part.start < cut < part.end]


def _cut(part: PlannedRange, cuts: Sequence[Place]) -> list[PlannedRange]:
    """The pieces between the cuts, which lie inside. What is not at a cut keeps its number."""
    return [part.piece(start, end) for start, end in pairwise([part.start, *cuts, part.end])]
