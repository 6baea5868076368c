"""Fetch, ListOffsets, OffsetForLeaderEpoch.

Facts of Kafka's own message definitions; the names of fields are ours. See ``schema``.
"""

from __future__ import annotations

import uuid
from typing import Final

from magnetar.wire.kafka.primitives import Records
from magnetar.wire.kafka.produce_messages import CurrentLeader, NodeEndpoint
from magnetar.wire.kafka.schema import (
    INTS,
    array,
    int8,
    int16,
    int32,
    int64,
    message,
    part,
    records,
    text,
    topic_id,
)

REPLICA_LINEAGE_TAG: Final = 9000
"""Ours, beside Kafka's tags, and passed over by who does not know it: which log directory a replica
fetches for. Kafka's counterpart is the replica epoch of version 15, which names topics by ids."""
REPLICA_TOPIC_TAG: Final = 9001
"""Ours, too: of which making of its topic a replica's log is, 63 bits of the topic's id; 0:
unknown. Kafka's counterpart are the topic ids of version 13."""


@message()
class FetchPartition:
    partition: int = int32()
    current_leader_epoch: int = int32(-1, since=9)
    fetch_offset: int = int64()
    last_fetched_epoch: int = int32(-1, since=12)
    log_start_offset: int = int64(-1, since=5)
    partition_bytes_max: int = int32()
    replica_topic: int = int64(0, since=12, tag=REPLICA_TOPIC_TAG)


@message()
class FetchTopic:
    name: str = text(until=12)
    topic_id: uuid.UUID = topic_id(since=13)
    partitions: list[FetchPartition] = array(FetchPartition)


@message()
class ForgottenTopic:
    name: str = text(since=7, until=12)
    topic_id: uuid.UUID = topic_id(since=13)
    partitions: list[int] = array(INTS, since=7)


@message()
class ReplicaState:
    replica_id: int = int32(-1)
    replica_epoch: int = int64(-1)


@message(flexible=12)
class ClientFetchRequest:
    cluster_id: str | None = text(None, since=12, null=12, tag=0)
    replica_id: int = int32(-1, until=14)
    replica_state: ReplicaState | None = part(ReplicaState, since=15, tag=1)
    wait_ms_max: int = int32()
    bytes_min: int = int32()
    bytes_max: int = int32(0x7FFFFFFF, since=3)
    isolation_level: int = int8(since=4)
    session_id: int = int32(since=7)
    session_epoch: int = int32(-1, since=7)
    topics: list[FetchTopic] = array(FetchTopic)
    forgotten: list[ForgottenTopic] = array(ForgottenTopic, since=7)
    rack_id: str = text(since=11)
    replica_lineage: int = int64(0, since=12, tag=REPLICA_LINEAGE_TAG)


@message()
class DivergingEpoch:
    epoch: int = int32(-1)
    end_offset: int = int64(-1)


@message()
class SnapshotId:
    end_offset: int = int64(-1)
    epoch: int = int32(-1)


@message()
class AbortedRange:
    producer_id: int = int64()
    first_offset: int = int64()


@message()
class FetchedPartition:
    partition: int = int32()
    error_code: int = int16()
    high_watermark: int = int64(-1)
    last_stable_offset: int = int64(-1, since=4)
    log_start_offset: int = int64(-1, since=5)
    diverging_epoch: DivergingEpoch | None = part(DivergingEpoch, since=12, tag=0)
    current_leader: CurrentLeader | None = part(CurrentLeader, since=12, tag=1)
    snapshot_id: SnapshotId | None = part(SnapshotId, since=12, tag=2)
    aborted: list[AbortedRange] | None = array(AbortedRange, since=4, null=4)
    preferred_read_replica: int = int32(-1, since=11)
    records: Records = records()


@message()
class FetchedTopic:
    name: str = text(until=12)
    topic_id: uuid.UUID = topic_id(since=13)
    partitions: list[FetchedPartition] = array(FetchedPartition)


@message(flexible=12)
class FetchResponse:
    throttle_time_ms: int = int32(since=1)
    error_code: int = int16(since=7)
    session_id: int = int32(since=7)
    topics: list[FetchedTopic] = array(FetchedTopic)
    node_endpoints: list[NodeEndpoint] = array(NodeEndpoint, since=16, tag=0)


@message()
class ListOffsetsPartition:
    index: int = int32()
    current_leader_epoch: int = int32(-1, since=4)
    timestamp_ms: int = int64()


@message()
class ListOffsetsTopic:
    name: str = text()
    partitions: list[ListOffsetsPartition] = array(ListOffsetsPartition)


@message(flexible=6)
class ListOffsetsRequest:
    replica_id: int = int32(-1)
    isolation_level: int = int8(since=2)
    topics: list[ListOffsetsTopic] = array(ListOffsetsTopic)
    timeout_ms: int = int32(since=10)


@message()
class ListedPartition:
    index: int = int32()
    error_code: int = int16()
    timestamp_ms: int = int64(-1)
    offset: int = int64(-1)
    leader_epoch: int = int32(-1, since=4)


@message()
class ListedTopic:
    name: str = text()
    partitions: list[ListedPartition] = array(ListedPartition)


@message(flexible=6)
class ListOffsetsResponse:
    throttle_time_ms: int = int32(since=2)
    topics: list[ListedTopic] = array(ListedTopic)


@message()
class EpochPartition:
    partition: int = int32()
    current_leader_epoch: int = int32(-1, since=2)
    leader_epoch: int = int32()


@message()
class EpochTopic:
    name: str = text()
    partitions: list[EpochPartition] = array(EpochPartition)


@message(flexible=4)
class OffsetForLeaderEpochRequest:
    replica_id: int = int32(-2, since=3)
    topics: list[EpochTopic] = array(EpochTopic)


@message()
class EpochEndPartition:
    error_code: int = int16()
    partition: int = int32()
    leader_epoch: int = int32(-1, since=1)
    end_offset: int = int64(-1)


@message()
class EpochEndTopic:
    name: str = text()
    partitions: list[EpochEndPartition] = array(EpochEndPartition)


@message(flexible=4)
class OffsetForLeaderEpochResponse:
    throttle_time_ms: int = int32(since=2)
    topics: list[EpochEndTopic] = array(EpochEndTopic)
