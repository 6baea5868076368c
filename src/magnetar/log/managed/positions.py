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
        "_search",
        "next_position",
    )

    def __init__(self, chain: Chain, search: HeaderSearch) -> None:
        self._chain = chain
        self._search = search
        self.next_position = chain.next_position  # bound here: dispatch asks for each entry

    @property
    def first(self) -> Position:
        return self._chain.first

    @property
    def readable(self) -> Position:
        return self._chain.confirmed

    held = readable

    @property
    def end_offset(self) -> int:
        return self._chain.end_offset

    def previous_position(self, position: Position) -> Position:
        return self._chain.previous_position(position)

    def entries_between(self, after: Position, last: Position) -> int:
        return self._chain.entries_between(after, last)

    def messages_between(self, after: Position, last: Position) -> int:
        return self._chain.messages_between(after, last)

    async def offset_of(self, position: Position) -> int:
        return await self._search.offset_of(position)

    async def position_of(self, offset: int) -> Position:
        return await self._search.position_of(offset)
