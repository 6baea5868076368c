"""Faults of a run that are drawn before it: which kinds it favours, when each comes, how long it
lasts."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from magnetar_sim.world.loop import SimLoop, call_from_outside
from magnetar_sim.world.trace import Trace


class PlannedFaults:
    """Of one run. Every fault ends by itself or when the run heals."""

    def __init__(
        self, loop: SimLoop, trace: Trace, rng: random.Random, lasts_s: Sequence[float]
    ) -> None:
        self.over = False
        self._random = rng
        self._loop = loop
        self._trace = trace
        self._lasts_s = lasts_s

    def _plan(
        self, kinds: Sequence[Callable[[], None]], count: int, begin_s: float, end_s: float
    ) -> None:
        """``count`` of a few kinds; a kind that is named more often comes more often."""
        rng = self._random
        favourites = rng.sample(kinds, rng.choice((2, 4, len(kinds))))
        for _ in range(count):
            self._at(rng.uniform(begin_s, end_s), rng.choice(favourites))

    def _at(self, when_s: float, act: Callable[[], None]) -> None:
        call_from_outside(self._loop, when_s, act, lambda: self.over)

    def _after(self, act: Callable[[], None]) -> float:
        """``act``, by which a fault ends, comes after a while; returns how long that is."""
        lasts_s = self._random.choice(self._lasts_s) * self._random.uniform(0.5, 1.5)
        self._at(self._loop.time() + lasts_s, act)
        return lasts_s

    def _note(self, what: str) -> None:
        self._trace.note("fault", what)
