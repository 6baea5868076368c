"""Who takes the place of bookies in a fragment, and what the ledger's metadata is then.

Decides only. Rules:

* Another bookie is one that takes new entries, is in the fragment in no slot, is not to be emptied,
  and has not refused copies of the ledger lately; among those the placement chooses (racks, zones,
  free space: ``ledger.placing``).
* A fragment changes as a whole or not at all, and only from what it was when its copies were made:
  whoever has changed it meanwhile may have put others in, of whom nothing was asked.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from magnetar.ledger.placing.placement import Placement, RandomSource, choose_replacements
from magnetar.model.ids import BookieId
from magnetar.model.ledger import Fragment, LedgerMetadata
from magnetar.repair.copies import REPLACED, Need


def choose(
    fragment: Fragment,
    needs: Iterable[Need],
    available: Sequence[BookieId],
    excluded: Mapping[BookieId, str],
    random: RandomSource,
    placement: Placement,
    write_quorum: int,
) -> dict[int, BookieId]:
    """A bookie for each slot that is to be replaced, as far as there are any. ``excluded``: who
    must not be chosen, and why."""
    slots = [need.slot for need in needs if need.cause in REPLACED]
    return choose_replacements(
        fragment.bookies, slots, available, excluded, random, placement, write_quorum
    )


def replaced(
    metadata: LedgerMetadata, before: Fragment, bookies: Mapping[int, BookieId]
) -> LedgerMetadata | None:
    """``metadata`` with ``bookies`` in slots of the fragment that was ``before``; None: it is not
    what it was."""
    if before not in metadata.fragments:
        return None
    names = tuple(bookies.get(slot, name) for slot, name in enumerate(before.bookies))
    assert len(set(names)) == len(names), f"ledger {metadata.ledger_id}: {names} is no ensemble"
    after = Fragment(before.first_entry_id, names)
    fragments = tuple(after if one == before else one for one in metadata.fragments)
    return replace(metadata, fragments=fragments)
