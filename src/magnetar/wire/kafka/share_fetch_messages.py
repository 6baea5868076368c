"""ShareFetch and ShareAcknowledge (KIP-932): records of partitions that members of a group share.

Facts of Kafka's own message definitions; the names of fields are ours. See ``schema``. Version 0
was Kafka 4.0's preview, and is not spoken any more.
"""

from __future__ import annotations

import uuid
from enum import IntEnum
from typing import Final

from magnetar.wire.kafka.primitives import Records
from magnetar.wire.kafka.produce_messages import CurrentLeader, NodeEndpoint
from magnetar.wire.kafka.schema import (
    BYTES,
    INTS,
    array,
    int16,
    int32,
    int64,
    message,
    part,
    records,
    text,
    topic_id,
)

OPEN_EPOCH: Final = 0
"""Of a share session: it begins."""
CLOSE_EPOCH: Final = -1


class AcknowledgeType(IntEnum):
    """What has become of a record. ``GAP``: there is none of that offset."""

    GAP = 0
    ACCEPT = 1
    RELEASE = 2
    REJECT = 3


@message()
class AcknowledgedBatch:
    """``types``: one for all offsets, or one for each."""

    first_offset: int = int64()
    last_offset: int = int64()
    types: list[int] = array(BYTES)


@message()
class SharedPartition:
    index: int = int32()
    acknowledged: list[AcknowledgedBatch] = array(AcknowledgedBatch)


@message()
class SharedTopic:
    topic_id: uuid.UUID = topic_id()
    partitions: list[SharedPartition] = array(SharedPartition)


@message()
class ForgottenSharedTopic:
    topic_id: uuid.UUID = topic_id()
    partitions: list[int] = array(INTS)


@message(flexible=0)
class ShareFetchRequest:
    """``batch_size``: so many records are acquired together, if whole batches allow it."""

    group_id: str | None = text(None, null=0)
    member_id: str | None = text(None, null=0)
    session_epoch: int = int32()
    wait_ms_max: int = int32()
    bytes_min: int = int32()
    bytes_max: int = int32(0x7FFFFFFF)
    records_max: int = int32()
    batch_size: int = int32()
    topics: list[SharedTopic] = array(SharedTopic)
    forgotten: list[ForgottenSharedTopic] = array(ForgottenSharedTopic)


@message()
class AcquiredRecords:
    first_offset: int = int64()
    last_offset: int = int64()
    delivery_count: int = int16()


def no_leader() -> CurrentLeader:
    return CurrentLeader(-1, -1)


@message()
class ShareFetchedPartition:
    index: int = int32()
    error_code: int = int16()
    error_message: str | None = text(None, null=0)
    acknowledge_error_code: int = int16()
    acknowledge_error_message: str | None = text(None, null=0)
    current_leader: CurrentLeader = part(CurrentLeader)
    records: Records = records()
    acquired: list[AcquiredRecords] = array(AcquiredRecords)


@message()
class ShareFetchedTopic:
    topic_id: uuid.UUID = topic_id()
    partitions: list[ShareFetchedPartition] = array(ShareFetchedPartition)


@message(flexible=0)
class ShareFetchResponse:
    throttle_time_ms: int = int32()
    error_code: int = int16()
    error_message: str | None = text(None, null=0)
    lock_timeout_ms: int = int32(since=1)
    topics: list[ShareFetchedTopic] = array(ShareFetchedTopic)
    node_endpoints: list[NodeEndpoint] = array(NodeEndpoint)


@message(flexible=0)
class ShareAcknowledgeRequest:
    group_id: str | None = text(None, null=0)
    member_id: str | None = text(None, null=0)
    session_epoch: int = int32()
    topics: list[SharedTopic] = array(SharedTopic)


@message()
class ShareAcknowledgedPartition:
    index: int = int32()
    error_code: int = int16()
    error_message: str | None = text(None, null=0)
    current_leader: CurrentLeader = part(CurrentLeader)


@message()
class ShareAcknowledgedTopic:
    topic_id: uuid.UUID = topic_id()
    partitions: list[ShareAcknowledgedPartition] = array(ShareAcknowledgedPartition)


@message(flexible=0)
class ShareAcknowledgeResponse:
    throttle_time_ms: int = int32()
    error_code: int = int16()
    error_message: str | None = text(None, null=0)
    topics: list[ShareAcknowledgedTopic] = array(ShareAcknowledgedTopic)
    node_endpoints: list[NodeEndpoint] = array(NodeEndpoint)
