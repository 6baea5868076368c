"""Offsets that clients commit, for themselves or in a transaction: gathered as changes of a
coordinator's log, and answered partition by partition. One that does not exist is refused: a name
that was mistyped would be kept beside the right one, and nobody would notice.

With each the id of its topic is kept, and it is told as long as the topic has that id: of one that
was deleted nothing is committed any more, as with Kafka, and of one that was made anew under its
name the offsets are those of other records, some of which would be passed over. Nobody has to
forget anything for that while a topic is deleted, when the coordinator may be away.

Why: docs/adr/0198-offsets-go-with-their-topic.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from magnetar.env.loop_turns import LoopTurns
from magnetar.model.errors import BrokerMetadataError, MagnetarError
from magnetar.protocols.kafka.coordination.coordinator_state import Change
from magnetar.protocols.kafka.coordination.group_offsets import (
    UNKNOWN_ID,
    Committed,
    OffsetKey,
    PendingKey,
)
from magnetar.protocols.kafka.lookups import ANSWER_S, in_time
from magnetar.protocols.kafka.names import topic_of
from magnetar.protocols.kafka.services import KafkaServices
from magnetar.wire.kafka.errors import ErrorCode
from magnetar.wire.kafka.offset_messages import CommitTopic
from magnetar.wire.kafka.topic_shapes import PartitionResult, TopicResults
from magnetar.wire.kafka.transaction_messages import TxnOffsetTopic

METADATA_CHARS_MAX: Final = 4096
LOOKUPS_AT_ONCE: Final = 64
CHANGES_AT_ONCE: Final = 1000
"""To be written as records and stored takes some 8 ms of the loop."""


class GatheredOffsets(NamedTuple):
    answers: list[TopicResults]
    """Those that cannot be kept have their error; the others wait for that of the change."""
    changes: list[Change]
    waiting: list[PartitionResult]
    """Of ``answers``: one per change."""

    def parts(self) -> Iterator[list[Change]]:
        """The changes, to be stored one part after the other; one without any if there are none.
        If one is refused those before it are stored: they were right, and a client that has heard
        of an error does not know what is."""
        for start in range(0, max(1, len(self.changes)), CHANGES_AT_ONCE):
            yield self.changes[start : start + CHANGES_AT_ONCE]

    def answered(self, error: ErrorCode) -> list[TopicResults]:
        """What became of the change is said of each partition that is in it."""
        for where in self.waiting:
            where.error_code = error
        return self.answers


async def gathered(
    services: KafkaServices,
    turns: LoopTurns,
    topics: Sequence[CommitTopic] | Sequence[TxnOffsetTopic],
    key_of: Callable[[str, int], OffsetKey | PendingKey],
) -> GatheredOffsets:
    """``key_of`` names the place of a topic's partition in the log."""
    now_ms, deadline_s = services.now_ms(), asyncio.get_running_loop().time() + ANSWER_S
    found = GatheredOffsets([], [], [])
    for topic in topics:
        said = TopicResults(topic.name)
        found.answers.append(said)
        # Before it is asked for: a topic that is made anew meanwhile has not what is committed.
        topic_id = await _id_of(services, topic.name, deadline_s)
        for part in topic.partitions:
            await turns.next()
            where = PartitionResult(part.index)
            said.partitions.append(where)
            if len(part.metadata or "") > METADATA_CHARS_MAX:
                where.error_code = ErrorCode.OFFSET_METADATA_TOO_LARGE
                continue
            if not await _is_there(services, topic.name, part.index, deadline_s):
                where.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                continue
            found.waiting.append(where)
            kept = Committed(part.offset, part.leader_epoch, part.metadata or "", now_ms, topic_id)
            key = key_of(topic.name, part.index)
            found.changes.append((key, kept))  # type: ignore[arg-type]  # either kind is a change
    return found


async def told(
    services: KafkaServices, known: Mapping[tuple[str, int], Committed], names: Sequence[str]
) -> dict[tuple[str, int], Committed]:
    """What of ``known`` counts, of the topics that have those names now."""
    ids = await _ids_of(services, known, names)
    return {
        place: committed
        for place, committed in known.items()
        if place[0] in ids and committed.is_of(ids[place[0]])
    }


async def _ids_of(
    services: KafkaServices, known: Mapping[tuple[str, int], Committed], names: Sequence[str]
) -> dict[str, str]:
    """Topics of which nothing is known that has an id are not asked for."""
    found, deadline_s = dict.fromkeys(names, UNKNOWN_ID), asyncio.get_running_loop().time()
    deadline_s += ANSWER_S
    asked = {name for (name, _), each in known.items() if each.topic_id and name in found}
    in_order = sorted(asked)
    for start in range(0, len(in_order), LOOKUPS_AT_ONCE):
        some = in_order[start : start + LOOKUPS_AT_ONCE]
        ids = await asyncio.gather(*(_id_of(services, name, deadline_s) for name in some))
        found.update(zip(some, ids, strict=True))
    return found


async def _is_there(services: KafkaServices, name: str, index: int, deadline_s: float) -> bool:
    """As ``KafkaServices.has``."""
    try:
        return await in_time(services.has(name, index), deadline_s)
    except BrokerMetadataError:
        return True


async def _id_of(services: KafkaServices, name: str, deadline_s: float) -> str:
    """Of the topic that has the name now, if there is one; unknown while metadata cannot be read:
    groups go on without it."""
    try:
        return (await in_time(services.topic_ids.of(topic_of(name)), deadline_s)).hex
    except MagnetarError:
        return UNKNOWN_ID
