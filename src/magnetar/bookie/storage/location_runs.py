"""Rows of the location index: where a run of a ledger's entries lies in an entry log.

Pure. A *run* is entries of one ledger with consecutive ids whose records lie in one entry log, as
a flush writes them. It is one row, named by its last entry (``docs/formats/index.md``)::

    key    ledger id 8 | id of the last entry 8
    value  entry log id 4 | offset of each record 4, in the order of ids

A run of one entry is what each entry had before there were runs, so older rows are rows.

Invariants:

* Rows of a ledger do not overlap, so the row of an entry is the first one that is named by it or a
  later one: a search for a key, forward, which RocksDB does best. (Rows that may overlap would be
  written without a look, but then a search would not know how far to go.)
* What is put last counts: whoever puts a run takes what it covers out of the rows that are there
  (``replacing``), in the same batch. What is left of a row keeps its places.

Why: docs/adr/0181-locations-by-runs.md.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Final, NamedTuple

RUN_ENTRIES_MAX: Final = 512
"""A value has at most 2 KiB, which is what a lookup reads for one place."""

_WORD_BYTES: Final = 4
_word: Final = struct.Struct(">I").unpack_from


class LocationRun(NamedTuple):
    """A row: ``last`` is the id of its last entry."""

    ledger_id: int
    last: int
    value: bytes

    @property
    def entry_count(self) -> int:
        return len(self.value) // _WORD_BYTES - 1

    @property
    def first(self) -> int:
        return self.last - len(self.value) // _WORD_BYTES + 2

    @property
    def log_id(self) -> int:
        return int(_word(self.value)[0])

    def place(self, entry_id: int) -> tuple[int, int] | None:
        """(entry log id, offset) of an entry; None: it is not of the run."""
        at = len(self.value) - (self.last - entry_id + 1) * _WORD_BYTES
        if not _WORD_BYTES <= at < len(self.value):
            return None
        return _word(self.value)[0], _word(self.value, at)[0]

    def part(self, first: int, last: int) -> LocationRun:
        """Its entries ``first`` to ``last``, both of them of the run."""
        assert self.first <= first <= last <= self.last
        start = (first - self.first + 1) * _WORD_BYTES
        stop = (last - self.first + 2) * _WORD_BYTES
        return LocationRun(self.ledger_id, last, self.value[:_WORD_BYTES] + self.value[start:stop])


@lru_cache(RUN_ENTRIES_MAX)
def _value_of(count: int) -> struct.Struct:
    return struct.Struct(f">{count + 1}I")


def run_of(ledger_id: int, last: int, log_id: int, offsets: Sequence[int]) -> LocationRun:
    """The run whose records are at ``offsets``; its last entry is ``last``."""
    count = len(offsets)
    assert 0 < count <= RUN_ENTRIES_MAX
    return LocationRun(ledger_id, last, _value_of(count).pack(log_id, *offsets))


def runs_of(
    ledger_id: int, entry_ids: Sequence[int], log_id: int, offsets: Sequence[int]
) -> list[LocationRun]:
    """Entries of one ledger, ascending, as runs: a gap between ids begins another."""
    count = len(entry_ids)
    if entry_ids[-1] - entry_ids[0] == count - 1 and count <= RUN_ENTRIES_MAX:
        return [run_of(ledger_id, entry_ids[-1], log_id, offsets)]
    found = []
    start = 0
    for stop in range(1, count + 1):
        ends = stop == count or entry_ids[stop] != entry_ids[stop - 1] + 1
        if ends or stop - start == RUN_ENTRIES_MAX:
            found.append(run_of(ledger_id, entry_ids[stop - 1], log_id, offsets[start:stop]))
            start = stop
    return found


def gathered(rows: Iterable[tuple[int, int, int, int]]) -> list[LocationRun]:
    """Rows of (ledger id, entry id, entry log id, offset) in any order, as runs, ascending; of two
    rows of one entry the later one counts."""
    places = {(ledger_id, entry_id): place for ledger_id, entry_id, *place in rows}
    found: list[LocationRun] = []
    at: tuple[int, int, int] | None = None  # where the run under way goes on
    entry_ids: list[int] = []
    offsets: list[int] = []
    for (ledger_id, entry_id), (log_id, offset) in sorted(places.items()):
        if at != (ledger_id, entry_id, log_id):
            if at is not None:
                found += runs_of(at[0], entry_ids, at[2], offsets)
            entry_ids, offsets = [], []
        entry_ids.append(entry_id)
        offsets.append(offset)
        at = ledger_id, entry_id + 1, log_id
    if at is not None:
        found += runs_of(at[0], entry_ids, at[2], offsets)
    return found


def replacing(rows: Iterable[LocationRun], run: LocationRun) -> list[LocationRun]:
    """What is left of ``rows``, which ``run`` overlaps, once it is put: at most two."""
    left = []
    for row in rows:
        if row.first < run.first:
            left.append(row.part(row.first, run.first - 1))
        if row.last > run.last:
            left.append(row.part(run.last + 1, row.last))
    return left


def batches(
    runs: Sequence[LocationRun], count_max: int, entries_max: int
) -> Iterator[Sequence[LocationRun]]:
    """One behind the other, in pieces of so many runs and, together, so many entries at most."""
    start = entries = 0
    for stop, run in enumerate(runs):
        count = run.entry_count
        if stop - start == count_max or (entries and entries + count > entries_max):
            yield runs[start:stop]
            start, entries = stop, 0
        entries += count
    if start < len(runs):
        yield runs[start:]


class NearbyPlaces:
    """Places of entries that are asked for in the order in which they lie: the row of one is
    mostly that of the next. They are as they were when the row was looked up."""

    def __init__(self, find: Callable[[int, int], LocationRun | None]) -> None:
        """``find(ledger id, entry id)``: the row that has it."""
        self._find = find
        self._run = LocationRun(-1, -1, b"")

    def location(self, ledger_id: int, entry_id: int) -> tuple[int, int] | None:
        """(entry log id, offset); None: the index has no such entry."""
        run = self._run
        if run.ledger_id != ledger_id or not run.first <= entry_id <= run.last:
            found = self._find(ledger_id, entry_id)
            if found is None:
                return None
            run = self._run = found
        return run.place(entry_id)
