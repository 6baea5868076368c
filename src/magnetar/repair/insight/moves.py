"""What would move if some bookies were emptied, where to, and whether it can be done.

Decides only; ``planning`` asks. The rules:

* A bookie that is emptied serves until its copies are elsewhere and the metadata names the others:
  meanwhile no entry has a copy fewer than before. What lacks copies already is told apart, by who
  is registered now.
* Who takes a place is chosen as a worker does it (``repair.replacing``): outside the ensemble, by
  racks, zones and free space, among those that take new entries and are not to be emptied. The
  choice is random: the plan shows one that may come.
* A bookie takes only what its disks have room for. Space is told for what is stored there now; what
  is written meanwhile by others is not known.
* How large a share is follows from the ledger's length and its share of the entries, as if all
  entries were equal.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import NamedTuple

from magnetar.ledger.placing.placement import Placement, RandomSource, choose_replacements
from magnetar.model.ids import BookieId
from magnetar.model.ledger import Fragment, LedgerMetadata
from magnetar.repair.insight.forecast import share

ENTRY_OVERHEAD_BYTES = 64
"""Of an entry on a bookie's disk beside its payload: headers, and its place in the index."""
STUCK_LISTED_MAX = 100


class BookiesNow(NamedTuple):
    """As it is now. ``writable``: take new entries; ``registered``: serve at all; ``room_bytes``:
    what each may take until it is read-only, as far as it tells."""

    leaving: Collection[BookieId]
    writable: Sequence[BookieId]
    registered: Collection[BookieId]
    room_bytes: Mapping[BookieId, int]
    placement: Placement


class Stuck(NamedTuple):
    """A place that nobody can take."""

    ledger_id: int
    first_entry_id: int
    bookie_id: BookieId
    why: str


@dataclass
class Moved:
    """Of one bookie: what it gives, or gets."""

    fragments: int = 0
    entries: int = 0
    byte_count: int = 0

    def add(self, entries: int, byte_count: int) -> None:
        self.fragments += 1
        self.entries += entries
        self.byte_count += byte_count


@dataclass
class Moves:
    """``add`` ledger by ledger; what is kept does not grow with their number."""

    cluster: BookiesNow
    random: RandomSource
    ledgers: int = 0
    open_ledgers: int = 0
    given: dict[BookieId, Moved] = field(default_factory=dict)
    taken: dict[BookieId, Moved] = field(default_factory=dict)
    stuck: list[Stuck] = field(default_factory=list)
    stuck_count: int = 0
    below_write_quorum: int = 0
    """Ledgers of which a write set lacks a bookie that is registered: not by this."""
    below_ack_quorum: list[int] = field(default_factory=list)
    below_ack_count: int = 0

    @property
    def byte_count(self) -> int:
        return sum(each.byte_count for each in self.given.values())

    def add(self, metadata: LedgerMetadata, entries: int, length: int) -> None:
        """A ledger that may name bookies of ``leaving``. ``entries`` and ``length``: confirmed so
        far, if it is not closed."""
        leaving = self.cluster.leaving
        if not any(bookie in leaving for one in metadata.fragments for bookie in one.bookies):
            return
        self.ledgers += 1
        self.open_ledgers += not metadata.closed
        self._note_lacking(metadata)
        entry_bytes = ENTRY_OVERHEAD_BYTES + (length // entries if entries else 0)
        for fragment, ids in _fragments(metadata, entries):
            slots = [s for s, bookie in enumerate(fragment.bookies) if bookie in leaving]
            if slots:
                self._move(metadata, fragment, ids, slots, entry_bytes)

    def _note_lacking(self, metadata: LedgerMetadata) -> None:
        quorum = metadata.write_quorum
        least = min(
            _registered(fragment, first, quorum, self.cluster.registered)
            for fragment in metadata.fragments
            for first in range(len(fragment.bookies))
        )
        self.below_write_quorum += least < quorum
        if least < metadata.ack_quorum:
            self.below_ack_count += 1
            if len(self.below_ack_quorum) < STUCK_LISTED_MAX:
                self.below_ack_quorum.append(int(metadata.ledger_id))

    def _move(
        self,
        metadata: LedgerMetadata,
        fragment: Fragment,
        ids: range,
        slots: Sequence[int],
        entry_bytes: int,
    ) -> None:
        size, quorum = len(fragment.bookies), metadata.write_quorum
        counts = {slot: sum(map(len, share(ids, slot, size, quorum))) for slot in slots}
        most = max(counts.values()) * entry_bytes
        full = {
            bookie: "its disks have no room for it"
            for bookie in self.cluster.writable
            if self._room(bookie, most) < 0
        }
        excluded = {**dict.fromkeys(self.cluster.leaving, "it is to be emptied"), **full}
        chosen = choose_replacements(
            fragment.bookies,
            slots,
            self.cluster.writable,
            excluded,
            self.random,
            self.cluster.placement,
            quorum,
        )
        for slot in slots:
            count = counts[slot]
            giver = fragment.bookies[slot]
            self.given.setdefault(giver, Moved()).add(count, count * entry_bytes)
            if slot in chosen:
                self.taken.setdefault(chosen[slot], Moved()).add(count, count * entry_bytes)
            else:
                self._note_stuck(metadata, fragment, giver, excluded)

    def _room(self, bookie: BookieId, byte_count: int) -> int:
        """What is left of its room behind that; one that does not tell has enough."""
        taken = self.taken[bookie].byte_count if bookie in self.taken else 0
        return self.cluster.room_bytes.get(bookie, taken + byte_count) - taken - byte_count

    def _note_stuck(
        self,
        metadata: LedgerMetadata,
        fragment: Fragment,
        giver: BookieId,
        excluded: Mapping[BookieId, str],
    ) -> None:
        self.stuck_count += 1
        if len(self.stuck) < STUCK_LISTED_MAX:
            why = self._why_stuck(fragment, excluded)
            ledger_id = int(metadata.ledger_id)
            self.stuck.append(Stuck(ledger_id, fragment.first_entry_id, giver, why))

    def _why_stuck(self, fragment: Fragment, excluded: Mapping[BookieId, str]) -> str:
        others = [b for b in self.cluster.writable if b not in fragment.bookies]
        unfit = {**self.cluster.placement.unfit(others), **excluded}
        usable = [bookie for bookie in others if bookie not in unfit]
        if usable:
            domain = self.cluster.placement.domain
            return f"{', '.join(usable)}: in no {domain} that its write sets need"
        if not others:
            return "no bookie outside its ensemble takes entries"
        return "; ".join(f"{bookie}: {unfit[bookie]}" for bookie in others)


def _registered(
    fragment: Fragment, first: int, write_quorum: int, registered: Collection[BookieId]
) -> int:
    size = len(fragment.bookies)
    return sum(fragment.bookies[(first + i) % size] in registered for i in range(write_quorum))


def _fragments(metadata: LedgerMetadata, entries: int) -> list[tuple[Fragment, range]]:
    # A last fragment that is still empty names bookies all the same, and must name others.
    end = max(entries, metadata.fragments[-1].first_entry_id)
    ends = replace(metadata.fragments[-1], first_entry_id=end)
    return [
        (one, range(one.first_entry_id, following.first_entry_id))
        for one, following in pairwise((*metadata.fragments, ends))
    ]
