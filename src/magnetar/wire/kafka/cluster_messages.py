"""ApiVersions, Metadata, DescribeCluster, FindCoordinator.

Facts of Kafka's own message definitions; the names of fields are ours. See ``schema``.
"""

from __future__ import annotations

import uuid

from magnetar.wire.kafka.schema import (
    INTS,
    TEXTS,
    array,
    boolean,
    int8,
    int16,
    int32,
    int64,
    message,
    text,
    topic_id,
)

NOT_SAID = -(1 << 31)
"""Of authorized operations: nobody has asked."""


@message(flexible=3)
class ApiVersionsRequest:
    client_name: str = text(since=3)
    client_version: str = text(since=3)


@message()
class ApiVersion:
    api_key: int = int16()
    least: int = int16()
    most: int = int16()


@message()
class SupportedFeature:
    name: str = text()
    least: int = int16()
    most: int = int16()


@message()
class FinalizedFeature:
    name: str = text()
    most: int = int16()
    least: int = int16()


@message(flexible=3)
class ApiVersionsResponse:
    error_code: int = int16()
    api_keys: list[ApiVersion] = array(ApiVersion)
    throttle_time_ms: int = int32(since=1)
    supported_features: list[SupportedFeature] = array(SupportedFeature, since=3, tag=0)
    finalized_epoch: int = int64(-1, since=3, tag=1)
    finalized_features: list[FinalizedFeature] = array(FinalizedFeature, since=3, tag=2)
    zk_migration_ready: bool = boolean(since=3, tag=3)


@message()
class MetadataTopic:
    topic_id: uuid.UUID = topic_id(since=10)
    name: str | None = text(null=10)


@message(flexible=9)
class MetadataRequest:
    topics: list[MetadataTopic] | None = array(MetadataTopic, null=1)
    allow_auto_topic_creation: bool = boolean(True, since=4)
    include_cluster_operations: bool = boolean(since=8, until=10)
    include_topic_operations: bool = boolean(since=8)


@message()
class BrokerNode:
    node_id: int = int32()
    host: str = text()
    port: int = int32()
    rack: str | None = text(None, since=1, null=1)


@message()
class PartitionMetadata:
    error_code: int = int16()
    index: int = int32()
    leader_id: int = int32()
    leader_epoch: int = int32(-1, since=7)
    replicas: list[int] = array(INTS)
    in_sync: list[int] = array(INTS)
    offline: list[int] = array(INTS, since=5)


@message()
class TopicMetadata:
    error_code: int = int16()
    name: str | None = text(null=12)
    topic_id: uuid.UUID = topic_id(since=10)
    is_internal: bool = boolean(since=1)
    partitions: list[PartitionMetadata] = array(PartitionMetadata)
    operations: int = int32(NOT_SAID, since=8)


@message(flexible=9)
class MetadataResponse:
    throttle_time_ms: int = int32(since=3)
    brokers: list[BrokerNode] = array(BrokerNode)
    cluster_id: str | None = text(None, since=2, null=2)
    controller_id: int = int32(-1, since=1)
    topics: list[TopicMetadata] = array(TopicMetadata)
    cluster_operations: int = int32(NOT_SAID, since=8, until=10)
    error_code: int = int16(since=13)


@message(flexible=0)
class DescribeClusterRequest:
    include_operations: bool = boolean()
    endpoint_type: int = int8(1, since=1)
    include_fenced: bool = boolean(since=2)


@message()
class DescribedBroker:
    broker_id: int = int32()
    host: str = text()
    port: int = int32()
    rack: str | None = text(None, null=0)
    is_fenced: bool = boolean(since=2)


@message(flexible=0)
class DescribeClusterResponse:
    throttle_time_ms: int = int32()
    error_code: int = int16()
    error_message: str | None = text(None, null=0)
    endpoint_type: int = int8(1, since=1)
    cluster_id: str = text()
    controller_id: int = int32(-1)
    brokers: list[DescribedBroker] = array(DescribedBroker)
    operations: int = int32(NOT_SAID)


@message(flexible=3)
class FindCoordinatorRequest:
    key: str = text(until=3)
    key_type: int = int8(since=1)
    keys: list[str] = array(TEXTS, since=4)


@message()
class FoundCoordinator:
    key: str = text()
    node_id: int = int32(-1)
    host: str = text()
    port: int = int32(-1)
    error_code: int = int16()
    error_message: str | None = text(None, null=0)


@message(flexible=3)
class FindCoordinatorResponse:
    throttle_time_ms: int = int32(since=1)
    error_code: int = int16(until=3)
    error_message: str | None = text(None, since=1, until=3, null=1)
    node_id: int = int32(-1, until=3)
    host: str = text(until=3)
    port: int = int32(-1, until=3)
    coordinators: list[FoundCoordinator] = array(FoundCoordinator, since=4)
