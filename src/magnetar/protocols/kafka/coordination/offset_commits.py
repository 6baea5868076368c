"""Offsets that clients commit, for themselves or in a transaction: gathered as changes of a
coordinator's log, and answered partition by partition. One that does not exist is refused: a name
that was mistyped would be kept beside the right one, and nobody would notice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from magnetar.protocols.kafka.coordination.coordinator_state import Change
from magnetar.protocols.kafka.coordination.group_offsets import Committed, OffsetKey, PendingKey
from magnetar.protocols.kafka.services import KafkaServices
from magnetar.wire.kafka.errors import ErrorCode
from magnetar.wire.kafka.offset_messages import CommitTopic
from magnetar.wire.kafka.topic_shapes import PartitionResult, TopicResults
from magnetar.wire.kafka.transaction_messages import TxnOffsetTopic

METADATA_CHARS_MAX: Final = 4096


class GatheredOffsets(NamedTuple):
    answers: list[TopicResults]
    """Those that cannot be kept have their error; the others wait for that of the change."""
    changes: list[Change]
    waiting: list[PartitionResult]
    """Of ``answers``: one per change."""

    def answered(self, error: ErrorCode) -> list[TopicResults]:
        """What became of the change is said of each partition that is in it."""
        for where in self.waiting:
            where.error_code = error
        return self.answers


async def gathered(
    services: KafkaServices,
    topics: Sequence[CommitTopic] | Sequence[TxnOffsetTopic],
    key_of: Callable[[str, int], OffsetKey | PendingKey],
) -> GatheredOffsets:
    """``key_of`` names the place of a topic's partition in the log."""
    now_ms = services.now_ms()
    found = GatheredOffsets([], [], [])
    for topic in topics:
        said = TopicResults(topic.name)
        found.answers.append(said)
        for part in topic.partitions:
            where = PartitionResult(part.index)
            said.partitions.append(where)
            if len(part.metadata or "") > METADATA_CHARS_MAX:
                where.error_code = ErrorCode.OFFSET_METADATA_TOO_LARGE
                continue
            if not await services.has(topic.name, part.index):
                where.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                continue
            found.waiting.append(where)
            kept = Committed(part.offset, part.leader_epoch, part.metadata or "", now_ms)
            key = key_of(topic.name, part.index)
            found.changes.append((key, kept))  # type: ignore[arg-type]  # either kind is a change
    return found
