"""Produce and InitProducerId.

Facts of Kafka's own message definitions; the names of fields are ours. See ``schema``.
"""

from __future__ import annotations

from magnetar.wire.kafka.primitives import Records
from magnetar.wire.kafka.schema import (
    array,
    int16,
    int32,
    int64,
    message,
    part,
    records,
    text,
)


@message()
class ProducePartition:
    index: int = int32()
    records: Records = records()


@message()
class ProduceTopic:
    name: str = text()
    partitions: list[ProducePartition] = array(ProducePartition)


@message(flexible=9)
class ProduceRequest:
    transactional_id: str | None = text(None, since=3, null=3)
    acks: int = int16()
    timeout_ms: int = int32()
    topics: list[ProduceTopic] = array(ProduceTopic)


@message()
class BatchError:
    batch_index: int = int32()
    text: str | None = text(None, null=0)


@message()
class CurrentLeader:
    leader_id: int = int32(-1)
    leader_epoch: int = int32(-1)


@message()
class NodeEndpoint:
    node_id: int = int32()
    host: str = text()
    port: int = int32()
    rack: str | None = text(None, null=0)


@message()
class ProducedPartition:
    index: int = int32()
    error_code: int = int16()
    base_offset: int = int64(-1)
    log_append_time_ms: int = int64(-1, since=2)
    log_start_offset: int = int64(-1, since=5)
    record_errors: list[BatchError] = array(BatchError, since=8)
    error_message: str | None = text(None, since=8, null=8)
    current_leader: CurrentLeader | None = part(CurrentLeader, since=10, tag=0)


@message()
class ProducedTopic:
    name: str = text()
    partitions: list[ProducedPartition] = array(ProducedPartition)


@message(flexible=9)
class ProduceResponse:
    topics: list[ProducedTopic] = array(ProducedTopic)
    throttle_time_ms: int = int32(since=1)
    node_endpoints: list[NodeEndpoint] = array(NodeEndpoint, since=10, tag=0)


@message(flexible=2)
class InitProducerIdRequest:
    transactional_id: str | None = text(None, null=0)
    transaction_timeout_ms: int = int32()
    producer_id: int = int64(-1, since=3)
    producer_epoch: int = int16(-1, since=3)


@message(flexible=2)
class InitProducerIdResponse:
    throttle_time_ms: int = int32()
    error_code: int = int16()
    producer_id: int = int64(-1)
    producer_epoch: int = int16(-1)
