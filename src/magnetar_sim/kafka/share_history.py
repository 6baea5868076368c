"""What must hold of a share group (KIP-932). Whatever fails:

1. What a member was told is done with (accepted, or rejected) is delivered to nobody who asked
   after that, and nobody else is told that he has settled it as well.
2. A record is delivered at most as often as the group allows.
3. What is delivered is what the log has (``kafka_history``); to a group that reads what is
   committed, nothing else.

When all faults are over, soon:

4. Every record is done with, where there are enough deliveries for that.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from magnetar_sim.kafka.kafka_client import Place

Record = tuple[Place, int]
"""By its partition and its offset."""


class ShareHistory:
    """Of one group. ``broken`` is told what must not be."""

    def __init__(
        self,
        name: str,
        committed: bool,
        deliveries_max: int,
        broken: Callable[[str], None],
        count: Callable[[str], None],
    ) -> None:
        self.name = name
        self.committed = committed
        self.deliveries_max = deliveries_max
        self.count = count
        self._broken = broken
        self._settled: dict[Record, tuple[str, float]] = {}
        """By whom, and when he was told."""
        self._said: Counter[Record] = Counter()
        """How many have said that it is done with, and have no answer, or never get one."""

    def deliver(self, record: Record, deliveries: int, asked_s: float, by: str) -> None:
        """``asked_s``: when ``by`` has asked for it."""
        self.count("records that share groups were given")
        if deliveries > 1:
            self.count("records that share groups were given again")
        settled = self._settled.get(record)
        if settled is not None and settled[1] <= asked_s:
            self._broken(f"{self.name}: {record} is given to {by}, and {settled[0]} has settled it")
        if not 1 <= deliveries <= self.deliveries_max:
            self._broken(
                f"{self.name}: {record} is given to {by} for the {deliveries}th time, and "
                f"{self.deliveries_max} are allowed"
            )

    def settle(self, record: Record, by: str, now_s: float) -> None:
        """``by`` is told that it is done with."""
        self.count("records that share groups have settled")
        other = self._settled.get(record)
        if other is not None:
            self._broken(f"{self.name}: {record} is settled by {by}, and was by {other[0]}")
        self._settled[record] = by, now_s

    def say(self, record: Record) -> None:
        """Somebody is about to say that it is done with."""
        self._said[record] += 1

    def refused(self, record: Record) -> None:
        """That does not count, he is told."""
        self._said[record] -= 1

    # -- the end ------------------------------------------------------------------------------

    def undone(self, place: Place, records: Sequence[int]) -> int | None:
        """Of the offsets of all records of a partition one that nobody has settled."""
        return next(
            (
                offset
                for offset in records
                if (place, offset) not in self._settled and not self._said[place, offset]
            ),
            None,
        )
