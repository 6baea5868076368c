"""Where the copies of a ledger's entries are, and what would be left of them without some bookies.

Decides only; ``explaining`` asks the bookies. The rules:

* An entry's copies are those at the bookies of its write set. A copy anywhere else counts for
  nothing: no reader and no repair looks there.
* A bookie that answers holds what it lists. Of one that is silent nothing is known: a copy that is
  named for it is neither counted nor counted as gone, and an entry that has no other is unreadable,
  not lost.
* Without some bookies, their copies are gone for ever. An entry is *lost* when no copy is left and
  nobody is silent who may hold one.
* A *section* is a range of entries in which each bookie holds all or nothing of what is for it, so
  that write sets alone decide within it: there are as many write sets as slots, and each entry that
  has the same id modulo that number has the same fate. Hence the arithmetic is exact, and takes
  time for sections and not for entries.
* Of a ledger that is not closed, the entries past the last confirmed one may or may not have been
  acknowledged. Whether it can be closed, and where it would end then, follows from the rules of
  recovery itself (``ledger.recovering.recovery_plan``): those who are left answer, all others fail.

Why: docs/adr/0100-explained-by-sections.md.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import pairwise
from typing import NamedTuple

from magnetar.ledger.recovering.recovery_plan import (
    VOTE_RULES,
    Decision,
    LacCoverage,
    Tally,
    negatives_needed,
)
from magnetar.model.ids import NO_ENTRY, BookieId, EntryId
from magnetar.model.ledger import Fragment, LedgerMetadata
from magnetar.repair.copies import Part, own_runs, without
from magnetar.wire.bookie.availability import Group, held_runs


class CopyState(Enum):
    """What is known of one bookie's copies of what is for it."""

    HELD = "held"
    MISSING = "missing"
    UNKNOWN = "unknown"


class EntryFate(Enum):
    """Of an entry, from good to bad."""

    WHOLE = "whole"
    FEWER = "fewer"
    BELOW_ACK_QUORUM = "below-ack-quorum"
    UNREADABLE = "unreadable"
    LOST = "lost"


@dataclass(frozen=True, slots=True)
class CopyLayout:
    """What is known of a ledger's copies. ``held``: what each bookie lists; who is not in it is
    silent. ``confirmed``: of a ledger that is not closed, the last add confirmed that each bookie
    of the last fragment told."""

    metadata: LedgerMetadata
    held: Mapping[BookieId, Sequence[Group]]
    confirmed: Mapping[BookieId, EntryId] = field(default_factory=dict)

    @property
    def last_confirmed(self) -> EntryId:
        """Every entry up to this one was acknowledged."""
        if self.metadata.closed:
            return self.metadata.last_entry_id
        before = self.metadata.fragments[-1].first_entry_id - 1
        return max([before, *self.confirmed.values()])

    @property
    def last_entry(self) -> EntryId:
        """The last that a bookie of the last fragment holds, or that is known to be confirmed.
        Others may hold entries past their fragment: those were never acknowledged by them."""
        if self.metadata.closed:
            return self.metadata.last_entry_id
        listed = (self.held.get(bookie, ()) for bookie in self.metadata.fragments[-1].bookies)
        ends = [group.last_start + group.size - 1 for groups in listed for group in groups]
        return max([self.last_confirmed, *ends])


class Section(NamedTuple):
    """``copies``: by slot of the fragment. ``confirmed``: the entries were acknowledged for
    sure."""

    fragment: Fragment
    entry_ids: range
    confirmed: bool
    copies: tuple[CopyState, ...]


class Stretch(NamedTuple):
    """Entries with one fate; ``entry_ids`` may have a step. ``copies`` are left for sure,
    ``perhaps`` are at bookies that are silent."""

    entry_ids: range
    confirmed: bool
    copies: int
    perhaps: int
    fate: EntryFate


class Closing(NamedTuple):
    """Where recovery would end the ledger: at an entry from ``least`` to ``most``. They differ
    where an entry was never acknowledged and too few hold it: whether it is kept depends on who
    answers first. ``why``: of a ledger that could not be closed, or not for sure."""

    possible: bool
    least: EntryId = NO_ENTRY
    most: EntryId = NO_ENTRY
    why: str = ""


def share(ids: range, slot: int, size: int, write_quorum: int) -> list[range]:
    """Those of ``ids`` (consecutive) that are for ``slot`` of ``size``, as ranges that may have a
    step."""
    if size == write_quorum:
        return [ids] if ids else []
    found = (
        range(ids.start + (slot - back - ids.start) % size, ids.stop, size)
        for back in range(write_quorum)
    )
    return [own for own in found if own]


def sections(layout: CopyLayout) -> list[Section]:
    """All of the ledger's entries, ascending."""
    return [
        section
        for part, confirmed in _parts(layout)
        for section in _sections_of(layout, part, confirmed)
    ]


def _parts(layout: CopyLayout) -> Iterator[tuple[Part, bool]]:
    """The entries of each fragment; what is not confirmed apart."""
    fragments, end = layout.metadata.fragments, layout.last_entry + 1
    starts = [one.first_entry_id for one in fragments]
    ends = [*starts[1:], max(end, starts[-1])]
    for fragment, stop in zip(fragments, ends, strict=True):
        settled = min(stop, max(layout.last_confirmed + 1, fragment.first_entry_id))
        for ids, confirmed in (
            (range(fragment.first_entry_id, settled), True),
            (range(settled, stop), False),
        ):
            if ids:
                yield Part(fragment, ids), confirmed


def _sections_of(layout: CopyLayout, part: Part, confirmed: bool) -> Iterator[Section]:
    quorum = layout.metadata.write_quorum
    missing = [
        _missing(part, slot, quorum, layout.held.get(bookie))
        for slot, bookie in enumerate(part.fragment.bookies)
    ]
    ids = part.entry_ids
    cuts = {ids.start, ids.stop}
    for runs in missing:
        for run in runs or ():
            cuts |= {run.start, run.stop}
    walks = [_Walk(runs) for runs in missing]
    for start, stop in pairwise(sorted(cuts)):
        copies = tuple(walk.at(start) for walk in walks)
        yield Section(part.fragment, range(start, stop), confirmed, copies)


def _missing(
    part: Part, slot: int, write_quorum: int, groups: Sequence[Group] | None
) -> list[range] | None:
    """What a bookie does not list of its share: ranges that ascend, of whose entries it has none
    that is for it. None: it is silent."""
    if groups is None:
        return None
    held = held_runs(groups, part.entry_ids)
    lacking = without(own_runs(part, slot, write_quorum, part.entry_ids), held)
    found: list[range] = []
    for run in lacking:
        # The share of a striped bookie has gaps: only a copy that is there ends a range.
        between = range(found[-1].stop, run.start) if found else range(0)
        if found and next(own_runs(part, slot, write_quorum, between), None) is None:
            found[-1] = range(found[-1].start, run.stop)
        else:
            found.append(run)
    return found


class _Walk:
    """What one bookie has at places that ascend."""

    def __init__(self, missing: Sequence[range] | None) -> None:
        self._missing = missing
        self._at = 0

    def at(self, entry_id: EntryId) -> CopyState:
        missing = self._missing
        if missing is None:
            return CopyState.UNKNOWN
        while self._at < len(missing) and missing[self._at].stop <= entry_id:
            self._at += 1
        inside = self._at < len(missing) and missing[self._at].start <= entry_id
        return CopyState.MISSING if inside else CopyState.HELD


def forecast(
    layout: CopyLayout, found: Iterable[Section], gone: Collection[BookieId] = ()
) -> Iterator[Stretch]:
    """What is left of the entries of ``found`` (``sections``) without the bookies ``gone``."""
    metadata = layout.metadata
    for section in found:
        bookies, ids = section.fragment.bookies, section.entry_ids
        size = len(bookies)
        left = [
            None if bookie in gone else copy
            for bookie, copy in zip(bookies, section.copies, strict=True)
        ]
        counts = [_left(left, residue, metadata.write_quorum) for residue in range(size)]
        if len({*counts}) == 1:
            yield _stretch(metadata, section, ids, *counts[0])
            continue
        for residue, (copies, perhaps) in enumerate(counts):
            first = ids.start + (residue - ids.start) % size
            if first < ids.stop:
                some = range(first, ids.stop, size)
                yield _stretch(metadata, section, some, copies, perhaps)


def _left(left: Sequence[CopyState | None], residue: int, write_quorum: int) -> tuple[int, int]:
    """Copies of an entry whose id is ``residue`` modulo the slots: there for sure, and perhaps."""
    write_set = [left[(residue + i) % len(left)] for i in range(write_quorum)]
    return write_set.count(CopyState.HELD), write_set.count(CopyState.UNKNOWN)


def _stretch(
    metadata: LedgerMetadata, section: Section, ids: range, copies: int, perhaps: int
) -> Stretch:
    if copies == metadata.write_quorum:
        fate = EntryFate.WHOLE
    elif copies >= metadata.ack_quorum:
        fate = EntryFate.FEWER
    elif copies:
        fate = EntryFate.BELOW_ACK_QUORUM
    else:
        fate = EntryFate.UNREADABLE if perhaps else EntryFate.LOST
    return Stretch(ids, section.confirmed, copies, perhaps, fate)


def closing(
    layout: CopyLayout, found: Iterable[Section], gone: Collection[BookieId] = ()
) -> Closing | None:
    """Where recovery would end the ledger without the bookies ``gone``; None: it is closed."""
    metadata = layout.metadata
    if metadata.closed:
        return None
    last = metadata.fragments[-1]
    coverage = LacCoverage(len(last.bookies), metadata.write_quorum, metadata.ack_quorum)
    silent = []
    for slot, bookie in enumerate(last.bookies):
        if bookie in layout.held and bookie not in gone:
            coverage.answered(slot, layout.confirmed.get(bookie, NO_ENTRY))
        else:
            coverage.unknown(slot)
            silent.append(bookie)
    if not coverage.covered:
        needed = negatives_needed(metadata.write_quorum, metadata.ack_quorum)
        return Closing(
            False,
            why=f"{needed} of every {metadata.write_quorum} bookies of a write set must answer; "
            f"{', '.join(silent)} would not",
        )
    start = coverage.start_after(last.first_entry_id) + 1
    least: EntryId | None = None
    for entry_id, tally in _votes(layout, found, gone, start):
        if least is None and _may_be_absent(tally):
            least = entry_id - 1
        decision = next(rule.decision for rule in VOTE_RULES if rule.holds(tally))
        if decision is Decision.ABSENT:
            assert least is not None
            return Closing(True, least, entry_id - 1)
        if decision is not Decision.FOUND:
            return Closing(
                False,
                why=f"entry {entry_id} is on no bookie that would answer, and too few could deny "
                "that it was ever acknowledged",
            )
    most = max(layout.last_entry, start - 1)
    return Closing(True, most if least is None else least, most)


def _may_be_absent(tally: Tally) -> bool:
    """Whether enough deny the entry for it to be dropped before a copy is found."""
    return tally.negatives >= tally.negatives_needed


def _votes(
    layout: CopyLayout, found: Iterable[Section], gone: Collection[BookieId], start: EntryId
) -> Iterator[tuple[EntryId, Tally]]:
    """Of each entry from ``start`` on that anybody holds: the votes when all have answered that
    will."""
    metadata = layout.metadata
    quorum = metadata.write_quorum
    needed = negatives_needed(quorum, metadata.ack_quorum)
    for section in found:
        bookies = section.fragment.bookies
        for entry_id in range(max(start, section.entry_ids.start), section.entry_ids.stop):
            slots = [(entry_id + i) % len(bookies) for i in range(quorum)]
            told = [section.copies[slot] for slot in slots if bookies[slot] not in gone]
            copies, negatives = told.count(CopyState.HELD), told.count(CopyState.MISSING)
            yield entry_id, Tally(copies, negatives, quorum, needed, quorum)
