"""Decides how much of what peers do not read is kept for them, over all connections together.

Owns the account of one budget: which connections are slow (have more unsent bytes than their high
mark), and what each had when it became so; it gets nothing more until it has caught up, so that
is its most. What is left of the budget says what the others may still be given, always a
part of it: the more is held for slow readers, the sooner the next is one, and no reader can take
what all the others would need.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final, Generic, TypeVar

H = TypeVar("H", bound=Hashable)

TURN_BYTES_MAX: Final = 4 << 20
TURN_SHARE: Final = 16
HIGH_BYTES_MAX: Final = 1 << 20
HIGH_BYTES_MIN: Final = 16 << 10
HIGH_SHARE: Final = 64


class SendBudget(Generic[H]):
    """``bytes_max``: of all connections together, besides one batch of entries and
    ``HIGH_BYTES_MIN`` each."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.held_bytes = 0
        self._slow: dict[H, int] = {}

    @property
    def slow(self) -> int:
        """How many are slow."""
        return len(self._slow)

    @property
    def left_bytes(self) -> int:
        return max(0, self.bytes_max - self.held_bytes)

    @property
    def turn_bytes(self) -> int:
        """Unsent bytes after which a connection is given no more in this turn of the loop."""
        return min(TURN_BYTES_MAX, self.left_bytes // TURN_SHARE)

    @property
    def high_bytes(self) -> int:
        """Unsent bytes that make a connection slow."""
        return max(HIGH_BYTES_MIN, min(HIGH_BYTES_MAX, self.left_bytes // HIGH_SHARE))

    def fell_behind(self, connection: H, unsent_bytes: int) -> None:
        """It is slow, with so much unsent."""
        self.caught_up(connection)
        self._slow[connection] = unsent_bytes
        self.held_bytes += unsent_bytes

    def caught_up(self, connection: H) -> None:
        """It has read what waited for it, or is gone. Idempotent."""
        self.held_bytes -= self._slow.pop(connection, 0)
