"""Placement: which bookies a ledger's ensemble is made of, and who replaces a failed one.

Decides only: what is available, what is excluded and why, what is known of the bookies, and
randomness come from the caller.

Rules: an ensemble names a bookie once; an excluded bookie is never chosen; among the rest the
choice is random, weighted by free space if asked for, so that the ledgers of many writers spread
evenly. Copies are spread over as many racks or zones as can be (``spread``); with
``enforced`` fewer than ``domains_least`` is refused. Too few bookies is a
``NotEnoughBookiesError`` that names each one and why it was passed over. Why so:
docs/adr/0048-placement.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from magnetar.ledger.placing.spread import arrange, spread_of
from magnetar.model.errors import NoSpaceError, NotEnoughBookiesError
from magnetar.model.ids import BookieId
from magnetar.model.ledger import Fragment

NOWHERE = "(not known)"
"""The domain of bookies whose rack or zone nobody has told."""


class RandomSource(Protocol):
    """The part of ``random.Random`` that placement needs."""

    def shuffle(self, x: list[BookieId], /) -> None: ...

    def random(self) -> float: ...


class BookieTraits(NamedTuple):
    """What is known of a bookie; ``free_bytes`` None if it did not tell."""

    rack: str = ""
    zone: str = ""
    free_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Placement:
    """The rules of one choice, and what they are applied to.

    ``domain``: "rack", "zone" or "" (not spread). ``domains_least``: domains of a write set,
    at most Qw count. ``weighted``: by free space. ``free_bytes_least``: with less a bookie is
    passed over.
    """

    domain: str = ""
    domains_least: int = 2
    enforced: bool = False
    weighted: bool = False
    free_bytes_least: int = 0
    traits: Mapping[BookieId, BookieTraits] = field(default_factory=dict)

    def domain_of(self, bookie: BookieId) -> str:
        traits = self.traits.get(bookie, BookieTraits())
        if self.domain == "zone":
            return traits.zone or NOWHERE
        if not traits.rack:
            return NOWHERE
        return f"{traits.zone}/{traits.rack}" if traits.zone else traits.rack

    def domains(self, bookies: Iterable[BookieId]) -> dict[BookieId, str]:
        return {bookie: self.domain_of(bookie) for bookie in bookies}

    def unfit(self, bookies: Iterable[BookieId]) -> dict[BookieId, str]:
        """Who must not be chosen for what it is, and why."""
        found = {}
        for bookie in bookies:
            free = self.traits.get(bookie, BookieTraits()).free_bytes
            if free is not None and free < self.free_bytes_least:
                found[bookie] = (
                    f"{free} bytes free, fewer than placement_free_bytes_least "
                    f"({self.free_bytes_least})"
                )
        return found

    def needed(self, write_quorum: int) -> int:
        """Domains that a write set must have; 1 stands for "no rule"."""
        if not self.domain or not self.enforced:
            return 1
        return min(self.domains_least, write_quorum)

    def shuffled(self, bookies: Iterable[BookieId], random: RandomSource) -> list[BookieId]:
        """In random order; those with more free space tend to come first if ``weighted``."""
        order = list(bookies)
        if not self.weighted:
            random.shuffle(order)
            return order
        weights = self._weights(order)
        # Efraimidis and Spirakis, 2006: sorting by u ** (1 / weight) samples by weight.
        keys = {bookie: random.random() ** (1 / weights[bookie]) for bookie in order}
        return sorted(order, key=lambda bookie: -keys[bookie])

    def _weights(self, bookies: Sequence[BookieId]) -> dict[BookieId, float]:
        """Free space, relative to the largest; unknown counts as the mean."""
        free = {b: self.traits.get(b, BookieTraits()).free_bytes for b in bookies}
        known = [value for value in free.values() if value is not None]
        largest = max([*known, 1])
        mean = sum(known) / len(known) if known else largest
        return {
            bookie: max((mean if value is None else value) / largest, 1e-3)
            for bookie, value in free.items()
        }


ANYWHERE = Placement()


def choose_ensemble(
    available: Sequence[BookieId],
    size: int,
    excluded: Mapping[BookieId, str],
    random: RandomSource,
    placement: Placement = ANYWHERE,
    write_quorum: int = 1,
) -> tuple[BookieId, ...]:
    """``size`` different bookies out of ``available``, by slot.

    ``excluded`` maps bookies that must not be chosen to the reason, in words.
    Raises ``NotEnoughBookiesError``.
    """
    passed_over = {**placement.unfit(available), **excluded}
    candidates = [bookie for bookie in available if bookie not in passed_over]
    if len(candidates) < size:
        raise NotEnoughBookiesError(
            f"an ensemble needs {size} bookies and {len(candidates)} can be used"
            f"{_listing(candidates, passed_over)}; start more bookies or lower the ensemble size"
        )
    order = placement.shuffled(candidates, random)
    if not placement.domain:
        return tuple(order[:size])
    domains = placement.domains(order)
    ensemble = arrange(order, domains, size, write_quorum)
    spread = spread_of([domains[bookie] for bookie in ensemble], write_quorum)
    if spread < placement.needed(write_quorum):
        raise _too_narrow(size, write_quorum, placement, candidates, passed_over)
    return ensemble


def check_space(available: Sequence[BookieId], size: int, full: Mapping[BookieId, str]) -> None:
    """Raises ``NoSpaceError`` if fewer than ``size`` bookies are ``available``, and there would be
    enough without those in ``full`` (with the reason, in words) lacking space."""
    if len(available) < size <= len(available) + len(full):
        listed = "; ".join(f"{bookie}: {reason}" for bookie, reason in sorted(full.items()))
        raise NoSpaceError(
            f"a ledger needs {size} bookies and {len(available)} take entries, for want of space "
            f"({listed})"
        )


def _too_narrow(
    size: int,
    write_quorum: int,
    placement: Placement,
    candidates: Sequence[BookieId],
    passed_over: Mapping[BookieId, str],
) -> NotEnoughBookiesError:
    by_domain: dict[str, list[BookieId]] = {}
    for bookie in candidates:
        by_domain.setdefault(placement.domain_of(bookie), []).append(bookie)
    words = [f"{domain}: {', '.join(by_domain[domain])}" for domain in sorted(by_domain)]
    words += [f"{bookie}: {reason}" for bookie, reason in sorted(passed_over.items())]
    return NotEnoughBookiesError(
        f"no ensemble of {size} has {placement.needed(write_quorum)} {placement.domain}s in every "
        f"write set of {write_quorum} ({'; '.join(words)}); start bookies in other "
        f"{placement.domain}s, tell where they are, or turn placement_enforced off"
    )


def choose_replacements(
    ensemble: Sequence[BookieId],
    slots: Iterable[int],
    available: Sequence[BookieId],
    excluded: Mapping[BookieId, str],
    random: RandomSource,
    placement: Placement = ANYWHERE,
    write_quorum: int = 1,
) -> dict[int, BookieId]:
    """A new bookie for each of ``slots`` as far as there are any: slot -> bookie, perhaps fewer
    than asked for, perhaps none. Members of ``ensemble`` are never chosen again."""
    unfit = placement.unfit(available)
    candidates = placement.shuffled(
        (b for b in available if b not in excluded and b not in unfit and b not in ensemble),
        random,
    )
    if not placement.domain:
        return dict(zip(slots, candidates, strict=False))
    domains = [placement.domain_of(bookie) for bookie in ensemble]
    found: dict[int, BookieId] = {}
    for slot in slots:
        best, spread = _best_for(slot, domains, candidates, placement, write_quorum)
        if best is None or spread < placement.needed(write_quorum):
            continue
        found[slot] = best
        domains[slot] = placement.domain_of(best)
        candidates.remove(best)
    return found


def _best_for(
    slot: int,
    domains: Sequence[str],
    candidates: Sequence[BookieId],
    placement: Placement,
    write_quorum: int,
) -> tuple[BookieId | None, int]:
    """The candidate that gives the slot's write sets the widest spread, the first of equals."""
    best: BookieId | None = None
    best_sum, best_spread = -1, 0
    size = len(domains)
    for bookie in candidates:
        tried = [*domains[:slot], placement.domain_of(bookie), *domains[slot + 1 :]]
        sets = [
            len({tried[(slot - back + i) % size] for i in range(write_quorum)})
            for back in range(write_quorum)
        ]
        if (min(sets), sum(sets)) > (best_spread, best_sum):
            best, best_spread, best_sum = bookie, min(sets), sum(sets)
    return best, best_spread


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
        f"can take its place{_listing(usable, passed_over, 'no other')}; bring it back or start "
        "another"
    )


def _reason(bookie: BookieId, excluded: Mapping[BookieId, str]) -> str:
    return excluded.get(bookie, "no answer")


def _listing(
    usable: Sequence[BookieId], excluded: Mapping[BookieId, str], nobody: str = "none"
) -> str:
    words = [f"{bookie}: usable" for bookie in usable]
    words += [f"{bookie}: {reason}" for bookie, reason in sorted(excluded.items())]
    return f" ({'; '.join(words)})" if words else f" ({nobody} is registered)"


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
