"""Timers of many owners, roughly: those that are due about the same time share one of the loop.

With ten thousand writers of which each waits for something, a timer of the loop for each costs
several microseconds per message: made, sifted through a large heap, mostly found to be needless.

Rules:

* What is called comes up to ``step_s`` before its time, and no later than a timer of the loop.
* Nothing is cancelled one by one: who is called looks whether there is still something to do.
* A turn of the loop, which others need too, calls ``CALLS_PER_TURN`` at most of a step.

Why: docs/adr/0185-writers-share-timers.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

CALLS_PER_TURN: Final = 200


class TimerWheel:
    """Use on one event loop only."""

    __slots__ = ("_steps", "_timers", "step_s")

    def __init__(self, step_s: float) -> None:
        self.step_s = step_s
        self._steps: dict[int, list[Callable[[], None]]] = {}
        self._timers: dict[int, asyncio.Handle] = {}

    def call_later(self, delay_s: float, function: Callable[[], None]) -> None:
        """Call ``function`` in ``delay_s``, or up to a step earlier, but not in this turn. Who
        finds that it is too early asks again for more than a step, or is called in each turn."""
        loop = asyncio.get_running_loop()
        number = int((loop.time() + delay_s) / self.step_s)
        waiting = self._steps.get(number)
        if waiting is not None:
            waiting.append(function)
            return
        self._steps[number] = [function]
        self._timers[number] = loop.call_at(number * self.step_s, self._due, number)

    def _due(self, number: int) -> None:
        waiting = self._steps.pop(number)
        del self._timers[number]
        self._call(number, waiting)

    def _call(self, number: int, waiting: list[Callable[[], None]]) -> None:
        loop = asyncio.get_running_loop()
        now, later = waiting[:CALLS_PER_TURN], waiting[CALLS_PER_TURN:]
        if later:
            self._steps[number] = later
            self._timers[number] = loop.call_soon(self._due, number)
        for function in now:
            try:
                function()
            except Exception as error:  # noqa: BLE001 - one owner's own; the others are called
                message = f"{function!r}, called by a timer, raised"
                loop.call_exception_handler({"message": message, "exception": error})

    def close(self) -> None:
        """Call nobody any more. Idempotent."""
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        self._steps.clear()
