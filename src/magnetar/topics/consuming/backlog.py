"""How much of a log a subscription has not acknowledged yet, in entries and in messages.

Entries are counted: the cursor knows them. Messages after the mark-delete position are exact too,
since entries have offsets (``log.seam.Positions``); asking for one may read one entry. Of entries
that were acknowledged out of order nobody keeps how many messages they held, so the mean of those
after the mark-delete position is taken: exact when none was, or when all hold equally many. A batch
of which a part is acknowledged counts whole.

Why a bound on the wait: whoever looks at backlogs does so above all when storage is in trouble.
What cannot be read by then is estimated from what the log keeps in memory.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import NamedTuple

from magnetar.log.seam import Cursor, Positions, ReadableLog
from magnetar.model.errors import MagnetarError

EXACT_WAIT_S = 1.0
"""For all cursors that are asked about together."""


class Backlog(NamedTuple):
    entries: int
    messages: int


async def backlogs(log: ReadableLog, cursors: Sequence[Cursor]) -> list[Backlog]:
    """Those of ``cursors``, which are cursors of ``log``, in their order. Never raises for what
    storage does."""
    found: list[Backlog] = []
    try:
        async with asyncio.timeout(EXACT_WAIT_S):
            for cursor in cursors:
                found.append(await _exact(log.positions, cursor))
    except (MagnetarError, TimeoutError):
        found += [_estimate(log.positions, cursor) for cursor in cursors[len(found) :]]
    return found


async def _exact(positions: Positions, cursor: Cursor) -> Backlog:
    # All at one moment, before the wait: meanwhile the cursor moves, and the log grows.
    first, end = positions.next_position(cursor.mark_delete), positions.end_offset
    after, entries = _entries(positions, cursor)
    if not entries:
        return Backlog(0, 0)
    return Backlog(entries, _share(end - await positions.offset_of(first), entries, after))


def _estimate(positions: Positions, cursor: Cursor) -> Backlog:
    after, entries = _entries(positions, cursor)
    messages = positions.messages_between(cursor.mark_delete, positions.readable)
    return Backlog(entries, _share(messages, entries, after))


def _entries(positions: Positions, cursor: Cursor) -> tuple[int, int]:
    """Entries after the mark-delete position, and those of them that are not acknowledged."""
    after = positions.entries_between(cursor.mark_delete, positions.readable)
    return after, cursor.backlog_entries()


def _share(messages: int, entries: int, of: int) -> int:
    """Of the messages in ``of`` entries, those of ``entries``: one each at least."""
    return max(entries, round(messages * entries / of)) if of else 0
