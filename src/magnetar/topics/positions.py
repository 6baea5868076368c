"""Where a client wants to read next, as a position of a log. Pure.

A *place* is a position (``EARLIEST`` and ``LATEST`` allowed) or a time. What is computed is always
the *next position to read*.
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

from magnetar.log.seam import Positions
from magnetar.model.ids import EARLIEST, Position


class PublishTime(NamedTuple):
    """The first message that was published at that time or later."""

    time_ms: int
    """Milliseconds since 1970."""


Place: TypeAlias = Position | PublishTime


def seek_target(positions: Positions, position: Position) -> Position:
    """The next position to read after a seek to ``position``, kept inside of the log."""
    if position == EARLIEST or position < positions.first:
        return positions.first
    if position > positions.readable:
        return positions.next_position(positions.readable)
    return Position(position.ledger_id, max(position.entry_id, 0))
