"""Ending a part within a time: what cannot end cleanly (the metadata store is out of reach, say)
must not keep a process from ending. Nothing is lost by it: every part survives a crash.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack

import structlog

log = structlog.get_logger(__name__)


def end_within(
    stack: AsyncExitStack,
    seconds: float | Callable[[], float],
    what: str,
    close: Callable[[], Awaitable[None]],
) -> None:
    """Call ``close`` when ``stack`` unwinds, and give it up after ``seconds``; a function says how
    many when it comes to that."""

    async def bounded() -> None:
        bound_s = seconds() if callable(seconds) else seconds
        try:
            async with asyncio.timeout(bound_s):
                await close()
        except TimeoutError:
            log.warning("not ended cleanly in time", part=what, seconds=bound_s)

    stack.push_async_callback(bounded)
