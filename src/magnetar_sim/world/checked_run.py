"""What every run does with what it finds: a defect ends it, and so does standing still."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from magnetar_sim.world.loop import SimLoop
from magnetar_sim.world.scheduler import SimulationError
from magnetar_sim.world.trace import Trace


class CheckedRun:
    """Base of the runs."""

    def __init__(self, loop: SimLoop, trace: Trace) -> None:
        self.loop = loop
        self.trace = trace
        self._bug: str | None = None

    def note_bug(self, what: str) -> None:
        """Something is wrong whatever else comes; the first is told."""
        self._bug = self._bug or what

    def check(self) -> None:
        """Raises ``SimulationError`` for what was found until now."""
        if self._bug is not None:
            raise SimulationError(self._bug)
        self.loop.check_spawned()

    @asynccontextmanager
    async def progress(
        self, bound_s: float, unfinished: Callable[[], str | None] | None = None
    ) -> AsyncIterator[None]:
        """What is done within must end in ``bound_s`` after healing; else the run fails, and tells
        what is ``unfinished``."""
        try:
            async with asyncio.timeout(bound_s):
                yield
        except TimeoutError:
            what = f": {unfinished()}" if unfinished is not None else ""
            raise SimulationError(f"no progress within {bound_s:.0f} s of healing{what}") from None
