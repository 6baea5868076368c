"""Bookies that failed lately, with the reason; shared by all ledgers of a client.

Decides only; the time comes with each call (seconds on one monotonic clock). Bounded by the
number of bookies.
"""

from __future__ import annotations

from magnetar.model.ids import BookieId

QUARANTINE_S = 30.0


class Quarantine:
    """Excludes a failed bookie from new ensembles for ``QUARANTINE_S`` seconds."""

    def __init__(self) -> None:
        self._until_s: dict[BookieId, tuple[float, str]] = {}

    def failed(self, bookie_id: BookieId, reason: str, now_s: float) -> None:
        self._until_s.pop(bookie_id, None)
        self._until_s[bookie_id] = (now_s + QUARANTINE_S, reason)

    def reasons(self, now_s: float) -> dict[BookieId, str]:
        """The bookies to avoid at ``now_s`` and why; whose failure is longest ago comes first."""
        over = [bookie for bookie, (until_s, _) in self._until_s.items() if until_s <= now_s]
        for bookie in over:
            del self._until_s[bookie]
        return {bookie: reason for bookie, (_, reason) in self._until_s.items()}
