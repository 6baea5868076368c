"""Topics wait for their turn to be loaded: so many at a time, and groups in turn.

A group is what one client has asked for. So a client that opens ten thousand topics at a time
gets them all, one after the other, and another's single topic waits for one turn and not for ten
thousand.

Invariant: somebody waits only while ``at_once`` are under way.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Hashable
from contextlib import asynccontextmanager


class LoadQueue:
    """See the module's text."""

    def __init__(self, at_once: int) -> None:
        self._free = at_once
        self._waiting: dict[Hashable, deque[asyncio.Future[None]]] = {}

    @asynccontextmanager
    async def turn(self, group: Hashable) -> AsyncIterator[None]:
        """Wait for a turn; it lasts as long as the ``async with``."""
        await self._enter(group)
        try:
            yield
        finally:
            self._leave()

    async def _enter(self, group: Hashable) -> None:
        if self._free:
            self._free -= 1
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(group, deque()).append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():
                self._leave()  # it had its turn already, and does not use it
            raise

    def _leave(self) -> None:
        """A turn is over: the first of the next group has it."""
        while self._waiting:
            group = next(iter(self._waiting))
            queue = self._waiting.pop(group)
            turn = queue.popleft()
            if queue:
                self._waiting[group] = queue  # behind all other groups
            if not turn.done():  # else whoever waited was cancelled
                turn.set_result(None)
                return
        self._free += 1
