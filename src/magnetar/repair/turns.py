"""When a marked ledger's turn comes again, of one worker.

Decides only; the time comes with each call (seconds on one clock that never goes back).

* A ledger that is still written, and whose last bookies lack one, is given ``grace_s``: its writer
  most often replaces the bookie by itself, with the next entry. If the same bookies stand in its
  last fragment after that it is *due*: it is taken from its writer, who may be dead, and closed. A
  change of them begins the grace anew: somebody lives.
* A ledger that could not be made whole waits: ``BACKOFF_S``, doubling to ``BACKOFF_S_MAX``.

Bounded: past ``LEDGERS_MAX`` the ledger that was heard of longest ago is forgotten, which costs a
try too early, or a grace too long.
"""

from __future__ import annotations

from typing import NamedTuple

from magnetar.model.ledger import Fragment

BACKOFF_S = 1.0
BACKOFF_S_MAX = 60.0
LEDGERS_MAX = 10_000


class _Wait(NamedTuple):
    until_s: float
    backoff_s: float


class Turns:
    """See the module's text."""

    def __init__(self, grace_s: float, ledgers_max: int = LEDGERS_MAX) -> None:
        self._grace_s = grace_s
        self._ledgers_max = ledgers_max
        self._waits: dict[int, _Wait] = {}
        self._open: dict[int, tuple[Fragment, float]] = {}

    def ready(self, ledger_id: int, now_s: float) -> bool:
        """Whether the ledger may be tried."""
        wait = self._waits.get(ledger_id)
        return wait is None or wait.until_s <= now_s

    def next_s(self, now_s: float) -> float | None:
        """When the next turn comes of those that wait; None: nobody waits."""
        waits = (wait.until_s for wait in self._waits.values())
        return min((until_s for until_s in waits if until_s > now_s), default=None)

    def failed(self, ledger_id: int, now_s: float) -> None:
        """It could not be made whole now. A grace that has begun is waited for as it is."""
        before = self._waits.get(ledger_id)
        if before is not None and before.until_s > now_s:
            return
        self._waits.pop(ledger_id, None)
        backoff_s = BACKOFF_S if before is None else min(2 * before.backoff_s, BACKOFF_S_MAX)
        self._waits[ledger_id] = _Wait(now_s + backoff_s, backoff_s)
        _bound(self._waits, self._ledgers_max)

    def over(self, ledger_id: int) -> None:
        """It is whole, or gone."""
        self._waits.pop(ledger_id, None)
        self._open.pop(ledger_id, None)

    def due(self, ledger_id: int, last: Fragment, now_s: float) -> bool:
        """``last``, which is still written, lacks a bookie: is the grace over? If not, the ledger
        waits until it is."""
        known = self._open.get(ledger_id)
        since_s = now_s if known is None or known[0] != last else known[1]
        if known is None or known[0] != last:
            self._open.pop(ledger_id, None)
            self._open[ledger_id] = (last, since_s)
            _bound(self._open, self._ledgers_max)
        if now_s - since_s >= self._grace_s:
            return True
        self._waits[ledger_id] = _Wait(since_s + self._grace_s, BACKOFF_S)
        _bound(self._waits, self._ledgers_max)
        return False


def _bound(known: dict[int, _Wait] | dict[int, tuple[Fragment, float]], count: int) -> None:
    while len(known) > count:
        del known[next(iter(known))]
