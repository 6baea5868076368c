"""ACKs of one whole entry each, which most are, collected by consumer.

``speedups.read_acks`` reads them. Whatever has another shape is left to ``hot.decode_ack``, which
gives the same values for every frame that is read here.
"""

from __future__ import annotations

from magnetar.model.ids import Position
from magnetar.speedups import read_acks


class PlainAcks:
    """See the module's text. One per connection."""

    __slots__ = ("collected",)

    def __init__(self) -> None:
        self.collected: dict[int, list[Position]] = {}
        """Since the last ``taken``, by consumer id; an attribute, as every chunk asks for it."""

    def take(self, view: memoryview, start: int, end: int) -> bool:
        """Collect the ACK frame ``view[start:end]``, which its size stands before; False if it has
        another shape."""
        return self.take_run(view, start - 4, end) == end

    def take_run(self, view: memoryview, start: int, end: int) -> int:
        """Collect the ACKs at the front of ``view[start:end]``; returns where they end."""
        groups, stop = read_acks(view, start, end, Position)
        for consumer_id, positions in groups:
            taken = self.collected.get(consumer_id)
            if taken is None:
                self.collected[consumer_id] = positions
            else:
                taken += positions
        return stop

    def taken(self) -> dict[int, list[Position]]:
        """What was collected since the last call, by consumer id, in order."""
        found, self.collected = self.collected, {}
        return found
