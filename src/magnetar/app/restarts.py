"""When a child process that has ended is started again. Pure.

At once if it ran for a while: it met something rare, a kill above all, and its topics wait. One
that ends soon after its start has a reason that is probably still there: each time it waits longer.
"""

from __future__ import annotations

from typing import Final

STEADY_S: Final = 10.0
"""Of who ran so long no earlier end counts."""
FIRST_S: Final = 0.2
LONGEST_S: Final = 15.0


class Restarts:
    """Of one child."""

    def __init__(self) -> None:
        self._soon = 0
        """Ends in a row, each soon after the start."""

    def pause_s(self, lived_s: float) -> float:
        """It has ended, after that time: how long to wait before it is started again."""
        if lived_s >= STEADY_S:
            self._soon = 0
            return 0.0
        pause_s = min(FIRST_S * 2.0**self._soon, LONGEST_S)
        self._soon += 1
        return pause_s
