"""Waiting for one of several things to happen, or for a time, without losing one in between."""

from __future__ import annotations

import asyncio


class Wake:
    """Set by many, waited for by one. What was set before a wait ends it at once."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def set(self) -> None:
        self._event.set()

    async def wait(self, at_most_s: float) -> None:
        """Until it is set, or so long."""
        try:
            async with asyncio.timeout(at_most_s):  # wait_for may lose a cancellation
                await self._event.wait()
        except TimeoutError:
            pass
        self._event.clear()
