"""Which copies of a ledger are missing, by what its bookies say that they hold.

Decides only; ``checking`` asks. The rules, in which every statement of "whole" is grounded:

* An entry's copies are those at the bookies that the metadata names for it (its write set). A copy
  anywhere else counts for nothing.
* A *part* is what of a fragment is final: all of it, but of the last fragment of a ledger that is
  not closed nothing. What is confirmed in the open fragment is its writer's to complete
  (``ledger.mending``), and recovery's after it.
* A bookie says what it holds as a list, which is exact. That it has never heard of the ledger is an
  answer too: it holds nothing. Silence is none, and then nothing is known: the ledger is neither
  declared to lack copies there, nor to be whole.
* Of a bookie that is lost, or that is to be emptied, all copies are missing; so are those of one
  that has been silent for the delay (``silences``): whatever it has does not count.
* The open fragment lacks a copy if a bookie of it is lost, silent or leaving: of what is written
  next there will be one less.
* A ledger is whole when nothing is missing, nothing is unknown, and the open fragment lacks none.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import pairwise
from typing import NamedTuple

from magnetar.model.ids import BookieId, EntryId
from magnetar.model.ledger import Fragment, LedgerMetadata


class Standing(Enum):
    """What is known of a bookie, of which the metadata of ledgers speaks."""

    SERVING = "registered"
    AWAY = "not registered, for less long than the delay"
    LOST = "not registered, for the delay or longer"
    LEAVING = "registered, and to be emptied"
    SILENT = "registered, and without an answer for the delay"


class Cause(Enum):
    """Why a bookie's copies of a part are missing."""

    LOST = "lost"
    LEAVING = "leaving"
    SILENT = "does not answer"
    LACKING = "lacks entries"
    DAMAGED = "gives entries that are damaged, or none"


REPLACED = frozenset((Cause.LOST, Cause.LEAVING, Cause.SILENT, Cause.DAMAGED))
"""Another bookie takes the place; one that only lacks entries is given them."""


class Part(NamedTuple):
    """Entries that never change any more, on the bookies of one fragment; may be none."""

    fragment: Fragment
    entry_ids: range


class Need(NamedTuple):
    """``bookie``, in ``slot`` of a part's fragment, lacks ``missing``, as ascending ranges; entries
    that are not for that slot may be among them (``is_own``)."""

    slot: int
    bookie: BookieId
    cause: Cause
    missing: tuple[range, ...]


@dataclass(frozen=True, slots=True)
class Findings:
    """Of one look at a ledger. ``needs``: by the first entry id of the fragment. ``unknown``: who
    said nothing, and why. ``open_lacks``: bookies of the open fragment that are lost, silent or
    leaving."""

    needs: Mapping[EntryId, Sequence[Need]] = field(default_factory=dict)
    unknown: Mapping[BookieId, str] = field(default_factory=dict)
    open_lacks: Sequence[BookieId] = ()

    @property
    def whole(self) -> bool:
        return not (self.needs or self.unknown or self.open_lacks)

    @property
    def bookies(self) -> tuple[BookieId, ...]:
        """Who lacks copies, each once."""
        found = [need.bookie for needs in self.needs.values() for need in needs]
        return tuple(dict.fromkeys((*found, *self.open_lacks)))


def parts_of(metadata: LedgerMetadata) -> list[Part]:
    """What of the ledger never changes any more."""
    fragments = metadata.fragments
    parts = [
        Part(one, range(one.first_entry_id, following.first_entry_id))
        for one, following in pairwise(fragments)
    ]
    if metadata.closed:
        last = fragments[-1]
        end = max(metadata.last_entry_id + 1, last.first_entry_id)
        parts.append(Part(last, range(last.first_entry_id, end)))
    return parts


def open_lacks(
    metadata: LedgerMetadata, standings: Mapping[BookieId, Standing]
) -> tuple[BookieId, ...]:
    """Bookies of the fragment that is still written, if there is one, that are lost, silent or
    leaving."""
    if metadata.closed:
        return ()
    gone = (Standing.LOST, Standing.SILENT, Standing.LEAVING)
    return tuple(b for b in metadata.fragments[-1].bookies if standings[b] in gone)


def is_superfluous(metadata: LedgerMetadata, bookie: BookieId) -> bool:
    """Whether the bookie's copies of the ledger are nobody's: others took its places while it was
    away. Of a ledger that is not closed that is never certain: it may be chosen again."""
    return metadata.closed and all(bookie not in one.bookies for one in metadata.fragments)


def own_runs(part: Part, slot: int, write_quorum: int, within: range) -> Iterator[range]:
    """The entries of the part that the bookie in ``slot`` is to hold, in runs that ascend, as far
    as they lie ``within``."""
    first = max(part.entry_ids.start, within.start)
    stop = min(part.entry_ids.stop, within.stop)
    size = len(part.fragment.bookies)
    if size == write_quorum:
        if first < stop:
            yield range(first, stop)
        return
    # Entry e goes to the slots e .. e + Qw - 1 (mod E), so slot s holds, of every E ids, the Qw
    # that end at one that is s (mod E).
    end = first + (slot - first) % size
    while end - write_quorum + 1 < stop:
        run = range(max(first, end - write_quorum + 1), min(stop, end + 1))
        if run:
            yield run
        end += size


def without(runs: Iterable[range], held: Iterable[range]) -> list[range]:
    """``runs`` less what is ``held``; both ascend."""
    left: list[range] = []
    holding = iter(held)
    current = next(holding, None)
    for run in runs:
        at = run.start
        while current is not None and current.stop <= at:
            current = next(holding, None)
        while current is not None and current.start < run.stop:
            if current.start > at:
                left.append(range(at, current.start))
            at = max(at, current.stop)
            if current.stop >= run.stop:
                break
            current = next(holding, None)
        if at < run.stop:
            left.append(range(at, run.stop))
    return left


def joined(ranges: Iterable[range], gap: int = 0) -> tuple[range, ...]:
    """Ascending ``ranges``, with those as one that are no more than ``gap`` apart: between the runs
    of a striped bookie lies what is others', and there may be as many runs as entries."""
    found: list[range] = []
    for each in ranges:
        if found and each.start - found[-1].stop <= gap:
            found[-1] = range(found[-1].start, each.stop)
        else:
            found.append(each)
    return tuple(found)


def needs_by_standing(
    part: Part, write_quorum: int, standings: Mapping[BookieId, Standing]
) -> list[Need]:
    """Of bookies whose word does not count: those that are lost, silent or to be emptied."""
    causes = {
        Standing.LOST: Cause.LOST,
        Standing.SILENT: Cause.SILENT,
        Standing.LEAVING: Cause.LEAVING,
    }
    return [
        Need(slot, bookie, causes[standings[bookie]], all_own(part, slot, write_quorum))
        for slot, bookie in enumerate(part.fragment.bookies)
        if standings[bookie] in causes
    ]


def all_own(part: Part, slot: int, write_quorum: int) -> tuple[range, ...]:
    """All that the slot is to hold."""
    gap = len(part.fragment.bookies) - write_quorum
    if gap == 0:
        return (part.entry_ids,) if part.entry_ids else ()
    around_start = range(part.entry_ids.start, part.entry_ids.start + len(part.fragment.bookies))
    some = next(own_runs(part, slot, write_quorum, around_start), None)
    return () if some is None else (range(some.start, part.entry_ids.stop),)


def is_own(part: Part, slot: int, write_quorum: int, entry_id: EntryId) -> bool:
    """Whether the bookie in ``slot`` is to hold the entry."""
    return (slot - entry_id) % len(part.fragment.bookies) < write_quorum
