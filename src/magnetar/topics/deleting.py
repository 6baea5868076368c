"""Deleting the first records of a topic: for all readers, and all subscriptions.

What a subscription has not acknowledged of them is gone for it, as when messages expire; one whose
backlog is cut is told of in the log. Why: docs/adr/0159-deleted-records-on-ledgers.md.
"""

from __future__ import annotations

from typing import Final

import structlog

from magnetar.model.errors import OffsetOutOfRangeError
from magnetar.topics.topic import Topic

log = structlog.get_logger(__name__)

EVERYTHING: Final = -1


async def delete_records(topic: Topic, offset: int) -> int:
    """The topic begins with the message of that offset (-1: with the next one that comes), or where
    it begins already; the first offset that is left. Raises as ``log.seam.LogFront``."""
    with topic.held():
        before = {each: each.cursor.backlog_entries() for each in topic.subscriptions.values()}
        if topic.deduplication.left:  # of a former owner perhaps, and no producer has come yet
            async with topic.lock:
                await topic.settle_deduplication()
        if topic.deduplication.on:
            offset = await _store_marks(topic, offset)
        left = await topic.log.front.delete_before(offset)
        for each in list(topic.subscriptions.values()):
            each.begin_later()
            cut = before.get(each, 0) - each.cursor.backlog_entries()
            if each.durable and cut > 0:
                log.info(
                    "records deleted that were not acknowledged",
                    topic=str(topic.name),
                    subscription=each.name,
                    entries=cut,
                )
    return left


async def _store_marks(topic: Topic, offset: int) -> int:
    """What deduplication knows of all before ``offset`` is durable: it could not be read from what
    is deleted. Returns up to where that is so: what comes while it is stored stays."""
    end = topic.log.positions.end_offset
    if offset > end:
        raise OffsetOutOfRangeError(
            f"topic {topic.name}: records can be deleted up to {end}, not {offset}"
        )
    await topic.deduplication.store()
    return end if offset == EVERYTHING else offset
