"""What must hold of Kafka's groups (``kafka_history`` has the rest). Whatever fails:

1. In one generation of a group a partition is handed to one member only, and what a member is
   handed in it is the same whenever it asks. Who takes the place of a static member gets the same;
   nobody is told that it was replaced if nobody else has asked for its place.
2. An offset that a group was told is committed is never lost, and committed offsets do not go back:
   what is fetched is no less than what was acknowledged, or fetched, before that was asked.
3. What is fetched as committed was committed by somebody; what a transaction has committed, only
   once its producer has asked to commit it.

When all faults are over, soon:

4. A group that commits what it has done has done all there is.
5. Who reads, writes and commits offsets in transactions has written everything once: what was
   committed of its input is in its output, in the order of each partition, and nothing twice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from magnetar_sim.kafka.kafka_client import Place
from magnetar_sim.kafka.kafka_history import Transaction, Written


@dataclass(eq=False, slots=True)
class OfferedOffset:
    """A commit that somebody has asked for."""

    offset: int
    transaction: Transaction | None

    @property
    def may_count(self) -> bool:
        transaction = self.transaction
        return transaction is None or (bool(transaction.asked) and transaction.outcome is not False)


@dataclass(slots=True)
class GroupPlace:
    """Of a partition in a group. ``least``: what it has committed for certain."""

    least: int = 0
    offered: list[OfferedOffset] = field(default_factory=list)
    done: set[int] = field(default_factory=set)
    """Offsets of records that a member has done, whether it could commit that or not."""


class GroupHistory:
    """Of one group. ``broken`` is told what must not be."""

    def __init__(
        self, name: str, broken: Callable[[str], None], count: Callable[[str], None]
    ) -> None:
        self.name = name
        self.count = count
        self._broken = broken
        self._handed: dict[int, dict[Place, str]] = {}
        self._had: dict[tuple[int, str], frozenset[Place]] = {}
        self._places: dict[Place, GroupPlace] = {}

    def _place(self, place: Place) -> GroupPlace:
        return self._places.setdefault(place, GroupPlace())

    def hand(self, generation: int, member: str, places: Sequence[Place], by: str) -> None:
        """A member is told what is its own. ``member``: its id, of a static one its name, which
        those who come after it keep; ``by``: who it is."""
        had = self._had.setdefault((generation, member), frozenset(places))
        if had != frozenset(places):
            self._broken(f"{self.name}, generation {generation}: {by} has {places}, and had {had}")
        handed = self._handed.setdefault(generation, {})
        for place in places:
            other = handed.setdefault(place, member)
            if other != member:
                self._broken(
                    f"{self.name}, generation {generation}: {place} is handed to {by}, and to "
                    "another member"
                )
        self.count("assignments of group members")

    def least(self, place: Place) -> int:
        """What must be committed by now."""
        return self._place(place).least

    def offer(self, place: Place, offset: int, transaction: Transaction | None = None) -> None:
        """Somebody asks to commit it."""
        self._place(place).offered.append(OfferedOffset(offset, transaction))

    def commit(self, place: Place, offset: int) -> None:
        """It is acknowledged."""
        found = self._place(place)
        found.least = max(found.least, offset)
        self.count("offsets that were committed")

    def fetch(self, place: Place, offset: int, least: int, by: str) -> int:
        """Somebody was told that it is committed (-1: nothing is), and ``least`` was before it
        asked; returns where to begin."""
        found = self._place(place)
        where = f"{self.name}: {by} is told {offset} of {place}"
        if max(offset, 0) < least:
            self._broken(f"{where}, and {least} was committed")
        if offset >= 0 and not any(
            each.offset == offset and each.may_count for each in found.offered
        ):
            self._broken(f"{where}, which nobody has committed")
        found.least = max(found.least, offset)
        return max(offset, 0)

    def do(self, place: Place, offset: int) -> None:
        self._place(place).done.add(offset)

    # -- the end ------------------------------------------------------------------------------

    def undone(self, place: Place, records: Sequence[int]) -> int | None:
        """Of the offsets of all records that a member is to do: one that nobody has been given."""
        done = self._place(place).done
        return next((offset for offset in records if offset not in done), None)


def check_once(
    name: str,
    inputs: Sequence[Written],
    outputs: Sequence[Written],
    source_of: Callable[[Written], Written | None],
    broken: Callable[[str], None],
) -> None:
    """``inputs``, ``outputs``: what is committed in a partition, in order; every input has one
    output, and they come in their order."""
    sources = [source for source in map(source_of, outputs) if source is not None]
    for one, other in zip(sources, inputs, strict=False):
        if one is not other:
            broken(f"{name}: {one} is written where {other} comes next")
            return
    if len(sources) != len(inputs):
        broken(f"{name}: {len(inputs)} records are read, and {len(sources)} are written")
