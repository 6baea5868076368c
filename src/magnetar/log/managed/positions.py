"""The order of a managed log's positions: ``log.seam.Positions`` over its chain of ledgers.

Readers see the chain through this, and nothing by which they could change it.
"""

from __future__ import annotations

from magnetar.log.managed.chain import Chain
from magnetar.model.ids import Position


class ChainPositions:
    """Implements ``log.seam.Positions``."""

    __slots__ = ("_chain", "entries_between", "next_position", "previous_position")

    def __init__(self, chain: Chain) -> None:
        self._chain = chain
        self.next_position = chain.next_position
        self.previous_position = chain.previous_position
        self.entries_between = chain.entries_between

    @property
    def first(self) -> Position:
        return self._chain.first

    @property
    def readable(self) -> Position:
        return self._chain.confirmed
