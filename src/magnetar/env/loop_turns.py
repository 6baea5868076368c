"""Requests about very many things: others have their turns on the loop while one is answered.

What is known already is answered without a wait: a request of thirty megabytes names a million
partitions, of which each costs some 40 us, and all other clients would stand still meanwhile. So
whoever answers such a request stops after some things (``LoopTurns``) and waits in a line that is
one for all clients (``LoopLine``): in each turn of the loop one of them goes on. Did each wait for
itself, 150 clients that ask at once would do their part in every turn.

There it is also seen whether anybody still waits for the answer. What has been begun of a thing is
finished first.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

from magnetar.model.errors import ClientGoneError

THINGS_PER_TURN: Final = 100
"""Of the loop: some 4 ms."""
THINGS_AT_ONCE: Final = 10
"""Those that a request begins with: usual ones have no more, and need not wait in line; of clients
that all ask in the same moment each does so much at once."""


class Asker(Protocol):
    """Who has asked."""

    def is_gone(self) -> bool:
        """It does not wait for the answer any more."""
        ...


class LoopLine:
    """What waits for a turn of the loop: one goes on in each, in the order in which they came."""

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        self._waiting: deque[Callable[[], None]] = deque()

    def call(self, function: Callable[[], None]) -> None:
        """In a turn that comes, not in this one."""
        if not self._waiting:
            asyncio.get_running_loop().call_soon(self._next)
        self._waiting.append(function)

    async def wait(self) -> None:
        turn = asyncio.get_running_loop().create_future()
        self.call(lambda: None if turn.done() else turn.set_result(None))  # it was cancelled
        await turn

    def _next(self) -> None:
        function = self._waiting.popleft()
        if self._waiting:
            asyncio.get_running_loop().call_soon(self._next)
        function()


class LoopTurns:
    """Of one request. ``client`` None: the answer is not for one alone. ``at_once``: the
    things that it begins with."""

    __slots__ = ("_client", "_count", "_left", "_line")

    def __init__(self, line: LoopLine, client: Asker | None, at_once: int = THINGS_AT_ONCE) -> None:
        self._line = line
        self._client = client
        self._left = at_once
        self._count = 0

    async def next(self, things: int = 1) -> None:
        """Before each thing, or after so many. Raises ``ClientGoneError``."""
        self._count += things
        self._left -= things
        if self._left > 0:
            return
        await self._line.wait()
        self._left = THINGS_PER_TURN
        if self._client is not None and self._client.is_gone():
            raise ClientGoneError(
                f"the client has gone; of what it asked for {self._count} were looked at"
            )
