"""In which order replicas are asked: those that failed or were slow lately come last, and those of
the reader's own zone before others.

Decides only; the time comes with each call (seconds on one monotonic clock). Shared by all
readers of a client, so that one reader's bad experience spares the others. Bounded by the number
of bookies.

Rules:

* A bookie that failed, or let a read wait past the hedge bound, is asked after the others for
  ``DEMOTED_S``, doubling with each repetition to ``DEMOTED_S_MAX``.
* When that time is over it takes its old place again: the next read finds out. One sound answer
  clears its record.
* "No such entry" is an answer, not a failure: it says nothing about the bookie's health.
* A near bookie that is demoted comes after a far one that is not: an answer counts more than its
  way.
* Among equals the given order stays (it spreads ledgers over bookies).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from magnetar.ledger.reading.hedging import HedgeBound
from magnetar.model.ids import BookieId

DEMOTED_S = 1.0
DEMOTED_S_MAX = 30.0


IsNear: TypeAlias = Callable[[BookieId], bool]
"""Whether a bookie is known to stand in the reader's zone."""


class _Record:
    __slots__ = ("demoted_s", "until_s")

    def __init__(self) -> None:
        self.demoted_s = 0.0
        self.until_s = 0.0


class ReadOrder:
    """What is known of the bookies' answers to reads, and of where they stand."""

    def __init__(self, is_near: IsNear | None = None) -> None:
        self._records: dict[BookieId, _Record] = {}
        self._is_near = is_near or _nowhere

    def order(self, replicas: Sequence[BookieId], now_s: float) -> list[BookieId]:
        """``replicas``, best first; among the demoted, the one that comes back soonest first."""

        def rank(bookie_id: BookieId) -> tuple[float, bool]:
            return self._demoted_until_s(bookie_id, now_s), not self._is_near(bookie_id)

        return sorted(replicas, key=rank)

    def _demoted_until_s(self, bookie_id: BookieId, now_s: float) -> float:
        record = self._records.get(bookie_id)
        if record is None or record.until_s <= now_s:
            return 0.0
        return record.until_s

    def demoted(self, bookie_id: BookieId, now_s: float) -> bool:
        return self._demoted_until_s(bookie_id, now_s) > 0

    def failed(self, bookie_id: BookieId, now_s: float) -> None:
        """It failed, or was too slow. While it is demoted further failures change nothing:
        several reads may have been under way."""
        record = self._records.setdefault(bookie_id, _Record())
        if record.until_s > now_s:
            return
        record.demoted_s = min(max(DEMOTED_S, 2 * record.demoted_s), DEMOTED_S_MAX)
        record.until_s = now_s + record.demoted_s

    def answered(self, bookie_id: BookieId) -> None:
        """It gave a sound answer in time."""
        self._records.pop(bookie_id, None)


class ReadPolicy:
    """Order and hedge bound of one client's reads."""

    def __init__(
        self, hedge_floor_s: float, hedge_ceiling_s: float, is_near: IsNear | None = None
    ) -> None:
        self.order = ReadOrder(is_near)
        self.hedge = HedgeBound(hedge_floor_s, hedge_ceiling_s)


def _nowhere(_bookie_id: BookieId) -> bool:
    return False
