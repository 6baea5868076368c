"""A ledger's entries at the bookies, and those passed over of which no sound copy is left.

For jobs that read closed ledgers whole. An entry is lost when all bookies that are to have it say
that they do not, or not sound: it is read again after a moment, at those who hold it by then, and
then passed over. As long as one of them does not answer it may come back, and the read fails.
Ledgers that are deleted meanwhile are no loss of this kind: ``again`` raises for them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple, TypeAlias

from magnetar.model.entry import Entry
from magnetar.model.errors import EntryDamagedError, NoEntryError

LOST_AGAIN_S: Final = 1.0

ReadEntries: TypeAlias = Callable[[int, int], Iterator[Entry]]
"""Those of a ledger from the first up to, not including, the second."""


class LostEntries(NamedTuple):
    """Neighbours. ``why``: of the first of them."""

    ledger_id: int
    first: int
    last: int
    why: str


class PassingLedger:
    """One ledger. ``lost`` is filled as it is read, and has nothing else."""

    def __init__(
        self,
        ledger_id: int,
        read: ReadEntries,
        again: Callable[[], ReadEntries],
        lost: list[LostEntries] | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """``again``: asks where the ledger lies by now; raises ``MagnetarError`` if it was
        deleted."""
        self.lost: list[LostEntries] = [] if lost is None else lost
        self._ledger_id = ledger_id
        self._read = read
        self._again = again
        self._sleep = sleep

    def entries(self, first: int, stop: int) -> Iterator[Entry]:
        """Raises ``LedgerError``."""
        failed = -1
        while first < stop:
            try:
                for entry in self._read(first, stop):
                    yield entry
                    first = entry.entry_id + 1
                return
            except (EntryDamagedError, NoEntryError) as error:
                behind_a_lost_one = bool(self.lost) and self.lost[-1].last == first - 1
                if failed != first and not behind_a_lost_one:
                    failed = first
                    self._sleep(LOST_AGAIN_S)
                    self._read = self._again()
                    continue
                self._pass_over(first, str(error))
                first += 1

    def _pass_over(self, entry_id: int, why: str) -> None:
        last = self.lost[-1] if self.lost else None
        if last is not None and last.last == entry_id - 1:
            self.lost[-1] = last._replace(last=entry_id)
        else:
            self.lost.append(LostEntries(self._ledger_id, entry_id, entry_id, why))
