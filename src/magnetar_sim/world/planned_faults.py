"""Faults of a run that are drawn before it: which kinds it favours, when each comes, how long it
lasts."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from magnetar_sim.world.loop import SimLoop, SimProcess, call_from_outside
from magnetar_sim.world.network import SimNetwork
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

    # -- what several kinds of run have -------------------------------------------------------

    def _pause_process(self, process: SimProcess | None) -> None:
        if process is not None and process.alive:
            process.pause()
            self._note(f"{process.name} is paused for {self._after(process.resume):.1f} s")

    def _block_links(self, network: SimNetwork, links: Sequence[tuple[str, str]]) -> None:
        """From the first of each to the second."""
        for link in links:
            network.block(*link)

        def unblock() -> None:
            for link in links:
                network.unblock(*link)

        told = ", ".join(f"{source} -> {target}" for source, target in links)
        self._note(f"blocked for {self._after(unblock):.1f} s: {told}")

    def _part(self, network: SimNetwork, one: str, other: str, delay_s: float) -> None:
        """What they say to each other takes longer."""

        def set_delay(seconds: float) -> None:
            network.slow(one, other, seconds)
            network.slow(other, one, seconds)

        set_delay(delay_s)
        self._after(lambda: set_delay(0))
        self._note(f"{one} and {other} are up to {delay_s} s apart")

    def _note(self, what: str) -> None:
        self._trace.note("fault", what)
