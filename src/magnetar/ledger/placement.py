"""Placement: which bookies a ledger's ensemble is made of, and who replaces a failed one.

Decides only: what is available, what is excluded and why, and randomness come from the caller.

Rules: an ensemble names a bookie once; an excluded bookie is never chosen; among the rest the
choice is random, so that the ledgers of many writers spread evenly. Too few bookies is a
``NotEnoughBookiesError`` that names each one and why it was passed over.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from magnetar.model.errors import NotEnoughBookiesError
from magnetar.model.ids import BookieId
from magnetar.model.ledger import Fragment


class RandomSource(Protocol):
    """The part of ``random.Random`` that placement needs."""

    def shuffle(self, x: list[BookieId], /) -> None: ...


def choose_ensemble(
    available: Sequence[BookieId],
    size: int,
    excluded: Mapping[BookieId, str],
    random: RandomSource,
) -> tuple[BookieId, ...]:
    """``size`` different bookies out of ``available``.

    ``excluded`` maps bookies that must not be chosen to the reason, in words.
    Raises ``NotEnoughBookiesError``.
    """
    candidates = [bookie for bookie in available if bookie not in excluded]
    if len(candidates) < size:
        raise NotEnoughBookiesError(
            f"an ensemble needs {size} bookies and {len(candidates)} can be used"
            f"{_listing(candidates, excluded)}; start more bookies or lower the ensemble size"
        )
    random.shuffle(candidates)
    return tuple(candidates[:size])


def choose_replacements(
    ensemble: Sequence[BookieId],
    slots: Iterable[int],
    available: Sequence[BookieId],
    excluded: Mapping[BookieId, str],
    random: RandomSource,
) -> dict[int, BookieId]:
    """A new bookie for each of ``slots`` as far as there are any: slot -> bookie, perhaps fewer
    than asked for, perhaps none. Members of ``ensemble`` are never chosen again."""
    candidates = [
        bookie for bookie in available if bookie not in excluded and bookie not in ensemble
    ]
    random.shuffle(candidates)
    return dict(zip(slots, candidates, strict=False))


def no_replacement(
    ledger_id: int,
    ensemble: Sequence[BookieId],
    slots: Iterable[int],
    available: Sequence[BookieId],
    excluded: Mapping[BookieId, str],
) -> NotEnoughBookiesError:
    """The error of a writer that found nobody to replace the bookies in ``slots``."""
    failed = ", ".join(f"{ensemble[slot]} ({_reason(ensemble[slot], excluded)})" for slot in slots)
    others = [bookie for bookie in available if bookie not in ensemble]
    usable = [bookie for bookie in others if bookie not in excluded]
    passed_over = {bookie: excluded[bookie] for bookie in others if bookie in excluded}
    return NotEnoughBookiesError(
        f"ledger {ledger_id}: {failed or 'a bookie'} failed and no bookie outside the ensemble "
        f"can take its place{_listing(usable, passed_over)}; bring it back or start another"
    )


def _reason(bookie: BookieId, excluded: Mapping[BookieId, str]) -> str:
    return excluded.get(bookie, "no answer")


def _listing(usable: Sequence[BookieId], excluded: Mapping[BookieId, str]) -> str:
    words = [f"{bookie}: usable" for bookie in usable]
    words += [f"{bookie}: {reason}" for bookie, reason in sorted(excluded.items())]
    return f" ({'; '.join(words)})" if words else " (none is registered)"


def replaced_fragments(
    fragments: Sequence[Fragment], first_entry_id: int, replacements: Mapping[int, BookieId]
) -> tuple[Fragment, ...]:
    """``fragments`` with other bookies in some slots from ``first_entry_id`` on: a new fragment,
    or the last one in another form if it begins there (it then holds nothing confirmed)."""
    last = fragments[-1]
    assert first_entry_id >= last.first_entry_id
    bookies = tuple(replacements.get(slot, name) for slot, name in enumerate(last.bookies))
    kept = fragments[:-1] if last.first_entry_id == first_entry_id else fragments
    return (*kept, Fragment(first_entry_id, bookies))


def without_empty_tail(fragments: Sequence[Fragment], last_entry_id: int) -> tuple[Fragment, ...]:
    """``fragments`` of a ledger that ends at ``last_entry_id``, without those that begin after
    it (an ensemble change was its last act); the first fragment always stays."""
    return tuple(
        fragment
        for fragment in fragments
        if fragment.first_entry_id <= last_entry_id or fragment.first_entry_id == 0
    )
