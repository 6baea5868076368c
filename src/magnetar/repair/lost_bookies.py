"""Which bookies are lost: away for the delay, without a break.

Decides only; the time comes with each call (seconds on one clock that never goes back).

    registered            -> not away
    named, not registered -> away since the first look that missed it
    away for ``delay_s``  -> lost

One that comes back in time has never been lost, and nothing is copied for it. Who looks anew (a new
auditor) knows of nobody for how long it has been away, and waits the whole delay: copying begins
somewhat later then, and never too early. It may go by what another has found (a ledger's mark), but
only of bookies that it has never seen itself.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from magnetar.model.ids import BookieId


class AbsentBookies:
    """Bounded by the number of bookies that ledgers name."""

    def __init__(self) -> None:
        self._since_s: dict[BookieId, float] = {}
        self._known: dict[BookieId, None] = {}
        self._seen: dict[BookieId, None] = {}

    def look(self, registered: Collection[BookieId], now_s: float) -> None:
        """These are registered now."""
        self._known.update(dict.fromkeys(sorted(registered)))
        self._seen.update(dict.fromkeys(registered))
        self._since_s = {
            bookie: self._since_s.get(bookie, now_s)
            for bookie in self._known
            if bookie not in registered
        }

    def named(self, bookies: Iterable[BookieId]) -> None:
        """Ledgers name these; counts from the next look on."""
        self._known.update(dict.fromkeys(bookies))

    def forget(self, bookies: Collection[BookieId]) -> None:
        """No ledger names these any more."""
        for bookie in bookies:
            self._known.pop(bookie, None)
            self._since_s.pop(bookie, None)
            self._seen.pop(bookie, None)

    def seen(self, bookie: BookieId) -> bool:
        """Whether a look has found it registered."""
        return bookie in self._seen

    @property
    def away(self) -> dict[BookieId, float]:
        """Who is not registered, and since when."""
        return dict(self._since_s)

    def lost(self, delay_s: float, now_s: float) -> list[BookieId]:
        return [b for b, since_s in self._since_s.items() if now_s - since_s >= delay_s]

    def next_s(self, delay_s: float, now_s: float) -> float | None:
        """When the next one is lost that is not yet; None: nobody is about to be."""
        due = [since_s + delay_s for since_s in self._since_s.values()]
        return min((at for at in due if at > now_s), default=None)
