"""Identifiers of the log: ledgers, bookies and positions.

Entry ids stay plain ``int``: they are computed with all the time, and arithmetic on a ``NewType``
gives an ``int`` back, so a distinct type would be a cast at every line and safety at none.
"""

from __future__ import annotations

from typing import NamedTuple, NewType, TypeAlias

LedgerId = NewType("LedgerId", int)
"""A ledger's 64-bit id, 0 or greater; unique in a metadata store."""

BookieId = NewType("BookieId", str)
"""A bookie's stable name: ``host:port`` unless configured otherwise."""

EntryId: TypeAlias = int
"""An entry's id in its ledger, from 0; -1 stands for "none yet" (an empty ledger's LAC)."""

NO_ENTRY: EntryId = -1


class Position(NamedTuple):
    """A place in a log: an entry of a ledger. Orders as tuples do, because ledger ids of one
    log only grow. ``entry_id`` -1 is the place before a ledger's first entry."""

    ledger_id: int
    entry_id: int

    def __str__(self) -> str:
        return f"{self.ledger_id}:{self.entry_id}"


EARLIEST = Position(-1, -1)
"""Before everything a log holds."""

LATEST = Position(2**63 - 1, 2**63 - 1)
"""After everything a log holds; what it means is decided when it is used."""
