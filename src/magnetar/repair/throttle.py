"""How fast copies are made: so many bytes a second, of one process.

Decides only; the time comes with each call (seconds on one clock that never goes back). What was
not used of ``BURST_S`` may be made up for, so that a pause for other reasons costs nothing.
"""

from __future__ import annotations

BURST_S = 0.5


class Throttle:
    """``bytes_per_s`` 0: no bound."""

    def __init__(self, bytes_per_s: int) -> None:
        self._bytes_per_s = bytes_per_s
        self._paid_until_s = float("-inf")

    def take(self, byte_count: int, now_s: float) -> float:
        """So many bytes are copied now; returns the seconds to wait before the next."""
        if not self._bytes_per_s:
            return 0.0
        begin_s = max(self._paid_until_s, now_s - BURST_S)
        self._paid_until_s = begin_s + byte_count / self._bytes_per_s
        return max(0.0, self._paid_until_s - now_s)
