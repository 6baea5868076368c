"""Decides how often failed adds are told in the log: not for each ledger and try (with a thousand
ledgers that is a thousand lines a second while a bookie is away), but for each bookie of a client.

    a failure                                         told
    the first, or after ``CALM_S`` without any        at once: the bookie begins to be away
    else, ``NOTE_S`` or more after the last note      with what came since, and how long it is away
    else                                              not; counted for the next note

Decides only; the time comes with each call (seconds on one monotonic clock). Bounded by the
client's bookies and, until the next note, its ledgers.
"""

from __future__ import annotations

from typing import NamedTuple

from magnetar.model.ids import BookieId

NOTE_S = 10.0
CALM_S = 30.0


class FailureNote(NamedTuple):
    """Of one bookie. ``ledgers``: that met failures since the last note; ``failures``: how many;
    ``away_s``: since the first one."""

    ledgers: int
    failures: int
    away_s: float


class _Away:
    __slots__ = ("failures", "last_s", "ledgers", "noted_s", "since_s")

    def __init__(self, now_s: float) -> None:
        self.since_s = self.last_s = now_s
        self.noted_s = now_s - NOTE_S
        self.ledgers: set[int] = set()
        self.failures = 0


class FailureNotes:
    """Shared by all ledgers of a client."""

    def __init__(self) -> None:
        self._away: dict[BookieId, _Away] = {}

    def failed(self, bookie_id: BookieId, ledger_id: int, now_s: float) -> FailureNote | None:
        """An add of ``ledger_id`` failed; what is to be told, if anything."""
        away = self._away.get(bookie_id)
        if away is None or now_s - away.last_s >= CALM_S:
            self._forget(now_s)
            away = self._away[bookie_id] = _Away(now_s)
        away.last_s = now_s
        away.ledgers.add(ledger_id)
        away.failures += 1
        if now_s - away.noted_s < NOTE_S:
            return None
        note = FailureNote(len(away.ledgers), away.failures, now_s - away.since_s)
        away.noted_s, away.failures = now_s, 0
        away.ledgers.clear()
        return note

    def _forget(self, now_s: float) -> None:
        """Bookies that have been calm: an ensemble's bookies change for ever."""
        for bookie_id in [b for b, away in self._away.items() if now_s - away.last_s >= CALM_S]:
            del self._away[bookie_id]
