"""What is left for the end of a turn of the event loop, for many owners with one wake-up."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable


class TurnEnd:
    """Calls functions once this turn of the loop is over, in the order they came.

    One handle of the loop for all: with a thousand ledgers that are written to in turn, a handle
    for each costs half a microsecond per entry.
    """

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        self._waiting: deque[Callable[[], None]] = deque()

    def call(self, function: Callable[[], None]) -> None:
        if not self._waiting:
            asyncio.get_running_loop().call_soon(self._run)
        self._waiting.append(function)

    def _run(self) -> None:
        waiting, self._waiting = self._waiting, deque()
        try:
            while waiting:
                waiting.popleft()()
        finally:
            for function in waiting:  # one of them has failed: the others are called all the same
                self.call(function)
