"""Virtual time: actions run one by one, in the order of their time, then of their making.

All randomness of a run comes from the scheduler's seed, so a seed repeats a run exactly.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from typing import TypeAlias

Action: TypeAlias = Callable[[], None]

EVENTS_MAX = 100_000
"""More than any healthy run needs: reaching it means that something goes round in circles."""


class SimulationError(Exception):
    """An invariant does not hold; says which, for which object."""


class Scheduler:
    """The clock, the events to come, the randomness and the trace of one run."""

    def __init__(self, seed: int, tracing: bool = False) -> None:
        self.seed = seed
        self.random = random.Random(seed)
        self.now = 0
        self.tracing = tracing
        self.trace: list[str] = []
        self.events = 0
        self._serial = 0
        self._heap: list[tuple[int, int, Action]] = []

    def at(self, time: int, action: Action) -> None:
        self._serial += 1
        heapq.heappush(self._heap, (time, self._serial, action))

    def after(self, delay: int, action: Action) -> None:
        self.at(self.now + delay, action)

    def chance(self, probability: float) -> bool:
        return self.random.random() < probability

    def note(self, who: str, what: str) -> None:
        """A line of the transcript; callers ask ``tracing`` first where it costs."""
        if self.tracing:
            self.trace.append(f"{self.now:>6}  {who:<12} {what}")

    def run(self) -> None:
        """Run until nothing is left to happen. Raises ``SimulationError`` when it never ends."""
        heap = self._heap
        while heap:
            self.now, _, action = heapq.heappop(heap)
            self.events += 1
            if self.events > EVENTS_MAX:
                raise SimulationError(f"no end after {EVENTS_MAX} events: no progress is made")
            action()
