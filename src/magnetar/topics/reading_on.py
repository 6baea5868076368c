"""Reading a log from a place on, all of it up to another one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from magnetar.log.seam import ReadableLog
from magnetar.model.entry import Entry
from magnetar.model.ids import Position


async def entries_until(
    source: ReadableLog, at: Position, end: Position, entries_max: int, bytes_max: int
) -> AsyncIterator[list[Entry]]:
    """Those from ``at`` to ``end``, in pieces of so many at most; everybody else has a turn after
    each. Raises what reading does."""
    while at <= end:
        read = await source.read(at, entries_max, bytes_max)
        entries = [entry for entry in read if entry.position <= end]
        if not entries:
            return
        yield entries
        at = source.positions.next_position(entries[-1].position)
        await asyncio.sleep(0)
