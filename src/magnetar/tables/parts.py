"""Which parts of a table's files hold a ledger's entries. Pure.

A part is a row group of a file: the least that is read. ``pipeline/tables`` puts one ledger into
each; of files that another engine has rewritten, parts that may hold the ledger are read whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class FilePart(NamedTuple):
    """A row group: whose entries from ``first`` to ``last`` may be those of the ledger."""

    path: str
    group: int
    first: int
    last: int
    rows: int


class IdSpan(NamedTuple):
    """The least and the greatest id of a row group's rows."""

    least: int
    greatest: int


def part_of_ledger(
    path: str,
    group: int,
    rows: int,
    of_ledgers: IdSpan,
    of_entries: IdSpan,
    ledger_id: int,
    entries: int,
) -> FilePart | None:
    """The row group as a part of the ledger, which has that many entries; None if it holds nothing
    of it."""
    if not of_ledgers.least <= ledger_id <= of_ledgers.greatest:
        return None
    alone = of_ledgers.least == of_ledgers.greatest
    first, last = of_entries if alone else (0, entries - 1)
    return FilePart(path, group, first, last, rows)


def window(parts: Sequence[FilePart], first: int, entries: int) -> tuple[list[FilePart], int]:
    """The parts to read for the entry ``first``, and where what they hold whole ends: entries from
    ``first`` up to there are in no other part."""
    ahead = sorted(part for part in parts if part.last >= first)
    if not ahead:
        return [], entries
    stop = min(part.last for part in ahead) + 1
    chosen = [part for part in ahead if part.first < stop]
    later = [part.first for part in ahead if part.first >= stop]
    if all(part.last < stop for part in chosen):  # nothing between here and what comes next
        stop = max(stop, min(later, default=entries))
    return chosen, stop
