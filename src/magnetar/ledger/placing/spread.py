"""Spreads the copies of an entry over failure domains (racks or zones). Pure.

The write set of an entry is ``Qw`` slots in a row of the ensemble, which is a ring. An
arrangement is good when every write set lies in many different domains; how many is its
*spread*. A search over domains (not over bookies) finds an arrangement of the best spread there
is, in the order of preference in which the candidates come; it is bounded by ``STEPS_MAX``, past
which the next lower spread is tried.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from magnetar.model.ids import BookieId

STEPS_MAX = 5_000


def spread_of(domains: Sequence[str], write_quorum: int) -> int:
    """The fewest different domains that a write set has; ``domains`` by slot."""
    size = len(domains)
    return min(
        len({domains[(first + i) % size] for i in range(write_quorum)}) for first in range(size)
    )


def arrange(
    candidates: Sequence[BookieId],
    domain_of: Mapping[BookieId, str],
    size: int,
    write_quorum: int,
) -> tuple[BookieId, ...]:
    """``size`` of the ``candidates`` (at least as many; the preferred ones first), by slot, with
    the widest spread."""
    domains = len({domain_of[bookie] for bookie in candidates})
    for wanted in range(min(write_quorum, domains), 1, -1):
        found = _Search(candidates, domain_of, size, write_quorum, wanted).run()
        if found is not None:
            return found
    return tuple(candidates[:size])


class _Search:
    """Depth-first over the slots; a domain is tried once per slot, with its best bookie left."""

    def __init__(
        self,
        candidates: Sequence[BookieId],
        domain_of: Mapping[BookieId, str],
        size: int,
        write_quorum: int,
        wanted: int,
    ) -> None:
        self._left: dict[str, list[BookieId]] = {}
        for bookie in candidates:
            self._left.setdefault(domain_of[bookie], []).append(bookie)
        self._rank = {bookie: rank for rank, bookie in enumerate(candidates)}
        self._size = size
        self._write_quorum = write_quorum
        self._wanted = wanted
        self._chosen: list[str] = []
        self._bookies: list[BookieId] = []
        self._steps = 0

    def run(self) -> tuple[BookieId, ...] | None:
        return tuple(self._bookies) if self._fill() else None

    def _fill(self) -> bool:
        if len(self._chosen) == self._size:
            return True
        for domain in self._domains():
            self._steps += 1
            if self._steps > STEPS_MAX:
                return False
            bookie = self._left[domain].pop(0)
            self._chosen.append(domain)
            self._bookies.append(bookie)
            if self._possible() and self._fill():
                return True
            self._chosen.pop()
            self._bookies.pop()
            self._left[domain].insert(0, bookie)
        return False

    def _domains(self) -> list[str]:
        """Those with bookies left, in the order of their best one."""
        some = [domain for domain, bookies in self._left.items() if bookies]
        return sorted(some, key=lambda domain: self._rank[self._left[domain][0]])

    def _possible(self) -> bool:
        """Whether every write set with the slot filled last can still have enough domains."""
        size, quorum, chosen = self._size, self._write_quorum, self._chosen
        last = len(chosen) - 1
        for first in range(last - quorum + 1, last + 1):
            slots = [(first + i) % size for i in range(quorum)]
            known = {chosen[slot] for slot in slots if slot <= last}
            if len(known) + sum(slot > last for slot in slots) < self._wanted:
                return False
        return True
