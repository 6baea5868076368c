"""The order of a managed log's positions: ``log.seam.Positions`` over its chain of ledgers.

Readers see the chain through this, and nothing by which they could change it.
"""

from __future__ import annotations

from magnetar.log.managed.chain import Chain
from magnetar.log.managed.header_search import HeaderSearch
from magnetar.model.ids import Position


class ChainPositions:
    """Implements ``log.seam.Positions``."""

    __slots__ = (
        "_chain",
        "entries_between",
        "messages_between",
        "next_position",
        "offset_of",
        "position_of",
        "previous_position",
    )

    def __init__(self, chain: Chain, search: HeaderSearch) -> None:
        self._chain = chain
        self.next_position = chain.next_position
        self.previous_position = chain.previous_position
        self.entries_between = chain.entries_between
        self.messages_between = chain.messages_between
        self.offset_of = search.offset_of
        self.position_of = search.position_of

    @property
    def first(self) -> Position:
        return self._chain.first

    @property
    def readable(self) -> Position:
        return self._chain.confirmed

    @property
    def end_offset(self) -> int:
        return self._chain.end_offset
