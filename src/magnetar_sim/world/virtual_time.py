"""An asyncio loop whose clock jumps to the next timer instead of waiting for it.

Whole roles run on it unmodified, at the speed of their computing: a ten-second deadline costs
nothing. There is no real I/O, so whatever is not ready now waits for a timer; with neither, the
run hangs for good and the loop says so.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import TypeVar

from magnetar_sim.world.scheduler import SimulationError

T = TypeVar("T")


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """``time()`` is virtual, in seconds from 0."""

    def __init__(self) -> None:
        super().__init__()
        self._now_s = 0.0

    def time(self) -> float:
        return self._now_s

    def _run_once(self) -> None:
        # asyncio's own step, with the clock moved to the first timer that still counts.
        ready: object = self._ready  # type: ignore[attr-defined]
        if not ready:
            timers = [timer.when() for timer in self._scheduled if not timer.cancelled()]  # type: ignore[attr-defined]
            if not timers:
                raise SimulationError("everything waits and nothing will ever happen")
            self._now_s = max(self._now_s, min(timers))
        super()._run_once()  # type: ignore[misc]


def run_virtual(main: Coroutine[object, object, T]) -> T:
    """``asyncio.run`` on virtual time."""
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(main)
