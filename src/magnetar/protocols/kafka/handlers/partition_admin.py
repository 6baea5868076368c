"""What admins ask of partitions: who leads them, page by page; where they begin; moves.

Of the latter there are none: an owner is chosen by the cluster, copies are the ledgers', and
replicas of partitions stay with the brokers that were chosen when they were made. So a reassignment
to where a partition is, is done; any other is refused.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Final

from magnetar.model.errors import InvalidTopicNameError, MagnetarError, NotAllowedError
from magnetar.protocols.kafka.coordination.coordinator import NAMESPACE as GROUPS_NAMESPACE
from magnetar.protocols.kafka.handlers.cluster import all_names, described_topic
from magnetar.protocols.kafka.names import topic_of
from magnetar.protocols.kafka.partitions.partition import Partition
from magnetar.protocols.kafka.session import KafkaSession
from magnetar.topics.deleting import delete_records as delete_records_of
from magnetar.wire.kafka.apis import RequestHead
from magnetar.wire.kafka.errors import ErrorCode, error_code
from magnetar.wire.kafka.partition_messages import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    DescribeCursor,
    DescribedPartition,
    DescribedTopic,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    ElectedPartition,
    ElectedTopic,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    ReassignPartition,
)
from magnetar.wire.kafka.record_messages import (
    BegunPartition,
    BegunTopic,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
)

PARTITIONS_MAX: Final = 2_000
"""Of one answer, whatever is asked for."""


async def describe_topic_partitions(
    session: KafkaSession, head: RequestHead, request: DescribeTopicPartitionsRequest
) -> DescribeTopicPartitionsResponse:
    """Topics in the order of their names, from the cursor's on, until the page is full. None that
    is named: all of them."""
    answer, turns = DescribeTopicPartitionsResponse(), session.turns()
    room = max(1, min(request.partitions_max, PARTITIONS_MAX))
    cursor = request.cursor
    named = sorted({topic.name for topic in request.topics}) or await all_names(session.services)
    for name in from_cursor(named, cursor):
        if room == 0:
            answer.cursor = DescribeCursor(name, 0)
            break
        await turns.next()
        found = await described_topic(session, name)
        said = DescribedTopic(
            found.error_code, found.name, found.topic_id, operations=found.operations
        )
        answer.topics.append(said)
        first = max(0, cursor.partition) if cursor is not None and name == cursor.topic else 0
        for part in found.partitions[first : first + room]:
            said.partitions.append(
                DescribedPartition(
                    part.error_code,
                    part.index,
                    part.leader_id,
                    part.leader_epoch,
                    part.replicas,
                    part.in_sync,
                )
            )
        room -= len(said.partitions)
        if first + len(said.partitions) < len(found.partitions):
            answer.cursor = DescribeCursor(name, first + len(said.partitions))
            break
    return answer


def from_cursor(names: Sequence[str], cursor: DescribeCursor | None) -> Sequence[str]:
    """Of sorted names."""
    return names if cursor is None else names[bisect_left(names, cursor.topic) :]


async def delete_records(
    session: KafkaSession, head: RequestHead, request: DeleteRecordsRequest
) -> DeleteRecordsResponse:
    answer, turns = DeleteRecordsResponse(), session.turns()
    for topic in request.topics:
        said = BegunTopic(topic.name)
        answer.topics.append(said)
        for part in topic.partitions:
            await turns.next()
            where = BegunPartition(part.index)
            said.partitions.append(where)
            try:
                _check_deletable(topic.name)
                found = await session.services.partition(topic.name, part.index, session)
                _check_deletes(found)
                where.low_watermark = await delete_records_of(found.topic, part.offset)
            except MagnetarError as error:
                where.error_code = error_code(error)
    return answer


def _check_deletable(name: str) -> None:
    if topic_of(name).namespace == GROUPS_NAMESPACE:
        raise InvalidTopicNameError(f"topic {name} holds what groups have committed: it is kept")


def _check_deletes(partition: Partition) -> None:
    """As Kafka has it: what is only compacted keeps the last record of each key."""
    if partition.log.owns_sequences and not partition.topic.policy.log.cleanup.deletes:
        raise NotAllowedError(
            f"{partition.topic.name} is compacted and not deleted from (cleanup.policy=compact): "
            "set cleanup.policy=compact,delete, or send records without values for the keys"
        )


async def list_reassignments(
    session: KafkaSession, head: RequestHead, request: ListPartitionReassignmentsRequest
) -> ListPartitionReassignmentsResponse:
    return ListPartitionReassignmentsResponse()


async def alter_reassignments(
    session: KafkaSession, head: RequestHead, request: AlterPartitionReassignmentsRequest
) -> AlterPartitionReassignmentsResponse:
    answer, turns = AlterPartitionReassignmentsResponse(), session.turns()
    for topic in request.topics:
        await turns.next()
        said = ElectedTopic(topic.name)
        answer.topics.append(said)
        described = await described_topic(session, topic.name)
        replicas = {part.index: part.replicas for part in described.partitions}
        for part in topic.partitions:
            where = ElectedPartition(part.index)
            said.partitions.append(where)
            if described.error_code:
                where.error_code = described.error_code
            else:
                where.error_code, where.error_message = _reassigned(part, replicas.get(part.index))
    return answer


def _reassigned(
    asked: ReassignPartition, replicas: Sequence[int] | None
) -> tuple[ErrorCode, str | None]:
    """``replicas``: where they are."""
    if replicas is None:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no partition {asked.index}"
    if asked.replicas is None:
        return ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, "no replica is on its way"
    if list(asked.replicas) == list(replicas):
        return ErrorCode.NONE, None
    return (
        ErrorCode.INVALID_REPLICA_ASSIGNMENT,
        f"replicas are not moved: this partition's stay at {list(replicas)}, in that order. (Of a "
        "topic on ledgers that is its owner; the copies are the bookies'.)",
    )
