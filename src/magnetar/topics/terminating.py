"""Terminating topics: nothing more is published to one, for good; what it holds stays to be read.

Rules:

* Sends under way have their outcomes first, then the log's record says it
  (``log.seam.Termination``); producers are sent away last, so that they are told of what is stored
  before they come back and are refused.
* A topic in which a transaction of Kafka's clients is open is not terminated: its outcome could not
  be written any more, and what it has written would neither be delivered nor left out.
* Nor one into which a query's rows are being taken: the rest of them could not follow.

Why: docs/adr/0221-terminated-topics.md.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from magnetar.model.errors import NotAllowedError, ProtocolError, ServiceNotReadyError
from magnetar.topics.entry_format import describe
from magnetar.topics.reading_on import entries_until
from magnetar.topics.topic import OPEN_TRANSACTIONS, Topic

STEP_ENTRIES: Final = 200
STEP_BYTES: Final = 4 << 20


async def terminate(topic: Topic) -> None:
    """Stored when it returns; again is no error. Raises ``NotAllowedError``,
    ``ServiceNotReadyError``, and as ``log.seam.Termination.terminate``."""
    with topic.held():
        async with topic.lock:  # one at a time, and no producer comes in between
            await topic.log.termination.terminate(partial(_check, topic))
            topic.end_producers()


async def _check(topic: Topic) -> None:
    """Nothing is on its way into the log now, and nothing comes before this has returned."""
    if topic.intake.taking:
        raise ServiceNotReadyError(
            f"rows of a query are being taken into topic {topic.name}; ask again, once the query "
            "has ended"
        )
    producers = await _open_transactions(topic)
    if producers:
        raise NotAllowedError(
            f"topic {topic.name} has {len(producers)} open transactions of Kafka's clients (the "
            f"first is of producer {min(producers)}); ask again when they have ended"
        )


async def _open_transactions(topic: Topic) -> set[int]:
    """The producers of those."""
    cursor = topic.log.cursors.durable().get(OPEN_TRANSACTIONS)
    found: set[int] = set()
    if cursor is None:
        return found
    positions = topic.log.positions
    at = positions.next_position(cursor.mark_delete)
    pieces = entries_until(topic.log, at, positions.readable, STEP_ENTRIES, STEP_BYTES)
    async for entries in pieces:
        for entry in entries:
            try:
                part = describe(entry, topic.format).transaction
            except ProtocolError:
                continue  # of no transaction
            if part is None:
                continue
            if part.commits is None:
                found.add(part.producer_id)
            else:
                found.discard(part.producer_id)
    return found
