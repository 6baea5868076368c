"""Others have their turns while a request is answered that names very many things.

What is known already is answered without a wait: a request of thirty megabytes names a million
partitions, of which each costs some 40 us, and all other clients would stand still meanwhile.
"""

from __future__ import annotations

import asyncio
from typing import Final

THINGS_PER_TURN: Final = 100
"""Of the loop: some 4 ms."""


class LoopTurns:
    """Of one request."""

    __slots__ = ("_count",)

    def __init__(self) -> None:
        self._count = 0

    async def next(self, things: int = 1) -> None:
        """Before each thing, or after so many."""
        before = self._count
        self._count += things
        if self._count // THINGS_PER_TURN > before // THINGS_PER_TURN:
            await asyncio.sleep(0)
