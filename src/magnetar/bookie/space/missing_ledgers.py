"""Decides which ledgers a bookie may forget: those that the metadata store has missed long enough.

    look:  held, and not living   -> missing since the first look that missed it
           living, or not held    -> not missing any more
    gone:  missed by this look and one before, the first of them at least ``grace_s`` ago

So nothing is decided by one look (a store may answer from a replica that lags), and no ledger is
forgotten that came less than ``grace_s`` ago: it cannot have been missed for longer than it is
here. A look that failed is told by ``start_again``: what was missed before it counts no more.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence


class MissingLedgers:
    """``grace_s``: shortest time between the first look that missed a ledger and its end."""

    def __init__(self, grace_s: float) -> None:
        self._grace_s = grace_s
        self._since_s: dict[int, float] = {}

    @property
    def waiting(self) -> int:
        """How many the last look missed."""
        return len(self._since_s)

    def look(self, held: Sequence[int], living: Collection[int], now_s: float) -> list[int]:
        """The ledgers to forget, in the order of ``held``. ``living`` needs to know those of
        ``held`` only; ``now_s`` never goes back."""
        before = self._since_s
        self._since_s = {
            ledger_id: before.get(ledger_id, now_s) for ledger_id in held if ledger_id not in living
        }
        return [
            ledger_id
            for ledger_id, since_s in self._since_s.items()
            if ledger_id in before and now_s - since_s >= self._grace_s
        ]

    def start_again(self) -> None:
        """The store could not be asked."""
        self._since_s = {}
