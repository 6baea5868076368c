"""What a job that compacts a topic asks of its owner, and tells it (``LogQuestion.compaction``).

The fields: docs/formats/pulsar-protocol.md.
"""

from __future__ import annotations

from magnetar.log.seam import CompactedElsewhere, CompactedStats
from magnetar.model.errors import NotAllowedError
from magnetar.model.ids import Position
from magnetar.topics.subscribable import SubscribableTopic
from magnetar.topics.topic import Topic
from magnetar.wire.pulsar.pulsar_pb2 import CompactedLedger, LogExtent, LogQuestion


async def note_compaction(
    extent: LogExtent, topic: SubscribableTopic, question: LogQuestion
) -> CompactedStats | None:
    """Do what is asked, and say what compaction has left by then. Raises as
    ``log.seam.KeyCompaction`` does, and ``NotAllowedError`` where another broker owns the log."""
    if not question.HasField("compaction"):
        return None
    if not isinstance(topic, Topic):
        raise NotAllowedError(f"topic {topic.name} is compacted at its owner: look it up")
    asked, compaction = question.compaction, topic.log.compaction
    if asked.give_up:
        compaction.give_up(asked.holder)
    if asked.begin:
        extent.compacting_ledger_id = await compaction.begin_elsewhere(asked.holder)
    if asked.HasField("take"):
        base = _stats(asked.base) if asked.HasField("base") else None
        await compaction.take(asked.holder, base, _found(asked.take))
    stats = compaction.stats
    if stats is not None:
        told = extent.compacted
        told.ledger_id, told.entries, told.stored_bytes = (
            stats.ledger_id,
            stats.entries,
            stats.stored_bytes,
        )
        told.horizon_ledger_id, told.horizon_entry_id = stats.horizon
    return stats


def _horizon(told: CompactedLedger) -> Position:
    return Position(told.horizon_ledger_id, told.horizon_entry_id)


def _stats(told: CompactedLedger) -> CompactedStats:
    return CompactedStats(told.ledger_id, _horizon(told), told.entries, told.stored_bytes, 0)


def _found(told: CompactedLedger) -> CompactedElsewhere:
    last = Position(-1, -1)
    if told.HasField("last_ledger_id"):
        last = Position(told.last_ledger_id, told.last_entry_id)
    return CompactedElsewhere(told.ledger_id, _horizon(told), told.entries, last)
