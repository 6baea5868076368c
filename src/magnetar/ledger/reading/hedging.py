"""How long a read waits for one replica before the next is asked as well.

Decides only. The bound follows the latencies that were seen: twice the 95th percentile of the
last ``WINDOW`` answers, between a floor and a ceiling. So about one read in twenty at most is
asked twice while all is well, and a replica that hangs costs a few times the usual latency,
instead of a time-out. Until ``ENOUGH`` answers are in, the ceiling holds.
Why so: docs/adr/0045-hedged-reads.md.
"""

from __future__ import annotations

from collections import deque

WINDOW = 64
ENOUGH = 8
_RECOMPUTE_EVERY = 8


class HedgeBound:
    """The bound of one client's reads; ``floor_s`` and ``ceiling_s`` in seconds."""

    def __init__(self, floor_s: float, ceiling_s: float) -> None:
        assert 0 <= floor_s <= ceiling_s
        self._floor_s = floor_s
        self._ceiling_s = ceiling_s
        self._latencies_s: deque[float] = deque(maxlen=WINDOW)
        self._since = 0
        self.bound_s = ceiling_s
        """Seconds to wait before another replica is asked."""

    def answered(self, latency_s: float) -> None:
        """A replica answered after ``latency_s`` (a replica that was given up: how long it was
        waited for)."""
        self._latencies_s.append(latency_s)
        self._since += 1
        if self._since >= _RECOMPUTE_EVERY and len(self._latencies_s) >= ENOUGH:
            self._since = 0
            ordered = sorted(self._latencies_s)
            usual_s = ordered[len(ordered) * 95 // 100]
            self.bound_s = min(max(2 * usual_s, self._floor_s), self._ceiling_s)
