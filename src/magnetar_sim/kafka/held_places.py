"""Who holds what in a group whose coordinator assigns (KIP-848), as its members know it.

1. What a member holds is given to nobody else, until it has said that it gave that up, has left, or
   may have been put out.
2. No member is put out that was heard of in time.

A member may be put out when it was silent for the session's time-out, or has not said within the
rebalance time-out that it gave up what it was told to. (A client that was told of a partition, and
otherwise before it has begun with it, has nothing to give up, and says nothing.) Both run at the
coordinator, from no earlier than when the last request left that was answered. A coordinator that
another has replaced may still answer what changes nothing, so members are held against each other
only if the same broker answered both.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from magnetar_sim.kafka.kafka_client import Address, Place

SLACK_S: Final = 0.02
"""Brokers count in whole milliseconds."""


@dataclass(slots=True)
class Holder:
    """``places``: what it has, or was told of, since it said last what it has; ``has_said``: that
    is on its way. ``safe_until_s``: it is not put out before; ``told_s``: when it asked, and was
    told to give up something of its places."""

    places: frozenset[Place] = frozenset()
    has_said: bool = False
    safe_until_s: float = 0.0
    told_s: float | None = None
    coordinator: Address | None = None


class HeldPlaces:
    """Of one group. ``broken`` is told what must not be."""

    def __init__(self, name: str, session_ms: int, broken: Callable[[str], None]) -> None:
        self.name = name
        self._session_s = session_ms / 1000
        self._broken = broken
        self._holders: dict[str, Holder] = {}

    def _holder(self, member: str) -> Holder:
        return self._holders.setdefault(member, Holder())

    def says(self, member: str, places: frozenset[Place]) -> None:
        """It is about to say that it has these, and no others."""
        holder = self._holder(member)
        holder.places, holder.has_said = places, True

    def heard(
        self,
        member: str,
        rebalance_ms: int,
        asked_s: float,
        now_s: float,
        owned: frozenset[Place],
        assigned: frozenset[Place],
        coordinator: Address | None,
    ) -> None:
        """It is told what is assigned to it, and has what it owns until it says otherwise."""
        holder = self._holder(member)
        rebalance_s = rebalance_ms / 1000
        if holder.has_said:
            holder.places, holder.has_said = owned, False
        if not holder.places - assigned:
            holder.told_s = None
        elif holder.told_s is None:
            holder.told_s = asked_s
        safe_s = asked_s + min(self._session_s, rebalance_s)
        if holder.told_s is not None:
            safe_s = min(safe_s, holder.told_s + rebalance_s)
        holder.safe_until_s, holder.coordinator = safe_s - SLACK_S, coordinator
        for place in sorted(assigned - holder.places):
            self._check(member, holder, place, now_s)
        holder.places |= owned | assigned

    def _check(self, member: str, holder: Holder, place: Place, now_s: float) -> None:
        if now_s >= holder.safe_until_s:
            return  # it may be out by now, and others may have had the partition since
        for name, other in self._holders.items():
            if (
                name != member
                and place in other.places
                and now_s < other.safe_until_s
                and other.coordinator == holder.coordinator
            ):
                self._broken(f"{self.name}: {place} is given to {member}, and {name} holds it")

    def put_out(self, member: str, now_s: float, coordinator: Address | None) -> None:
        """It is told that it is no member, and all of its requests before were answered."""
        holder = self._holder(member)
        if now_s < holder.safe_until_s and holder.coordinator == coordinator:
            self._broken(f"{self.name}: {member} is put out, and was heard of in time")

    def gone(self, member: str) -> None:
        """It leaves, or has given up everything."""
        self._holders.pop(member, None)
