"""One timer for all open logs of a store: each is asked now and then to keep its house.

Rule: a turn of the loop, which others need too, has a bounded number of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from itertools import islice
from typing import Final, Generic, Protocol, TypeVar

HOUSEKEEPING_S: Final = 10.0


class Housed(Protocol):
    """A log as its housekeeping sees it."""

    @property
    def closed(self) -> bool: ...

    def tick(self) -> None:
        """Do what its age and policy ask for; raises nothing."""
        ...


L = TypeVar("L", bound=Housed)


class Housekeeping(Generic[L]):
    """Of ``logs``, by name, which belong to the store; those that are closed are taken out."""

    def __init__(self, logs: dict[str, L], ticks_per_turn: int) -> None:
        self._logs = logs
        self._ticks_per_turn = ticks_per_turn
        self._timer: asyncio.TimerHandle | None = None
        self._ended = False

    def begin(self) -> None:
        """There is a log, perhaps the first. Idempotent."""
        if self._timer is None and self._logs and not self._ended:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(HOUSEKEEPING_S, self._tick)

    def end(self) -> None:
        """No log is asked from now on. Idempotent."""
        self._ended = True
        if self._timer is not None:
            self._timer.cancel()

    def _tick(self) -> None:
        self._timer = None
        for name in [name for name, each in self._logs.items() if each.closed]:
            del self._logs[name]
        self._tick_some(iter(list(self._logs.values())))

    def _tick_some(self, logs: Iterator[L]) -> None:
        some = list(islice(logs, self._ticks_per_turn))
        for each in some:
            each.tick()
        if some and not self._ended:
            self._timer = asyncio.get_running_loop().call_later(0, self._tick_some, logs)
        else:
            self._timer = None
            self.begin()
