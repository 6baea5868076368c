"""Topics and their configuration: create, delete, more partitions, describe, alter.

Facts of Kafka's own message definitions; the names of fields are ours. See ``schema``.
"""

from __future__ import annotations

import uuid

from magnetar.wire.kafka.schema import (
    BYTES,
    INTS,
    TEXTS,
    array,
    boolean,
    int8,
    int16,
    int32,
    message,
    text,
    topic_id,
)


@message()
class ReplicaAssignment:
    partition: int = int32()
    brokers: list[int] = array(INTS)


@message()
class TopicConfig:
    name: str = text()
    value: str | None = text(None, null=0)


@message()
class NewTopic:
    name: str = text()
    partitions: int = int32()
    replication_factor: int = int16(-1)
    assignments: list[ReplicaAssignment] = array(ReplicaAssignment)
    configs: list[TopicConfig] = array(TopicConfig)


@message(flexible=5)
class CreateTopicsRequest:
    topics: list[NewTopic] = array(NewTopic)
    timeout_ms: int = int32()
    validate_only: bool = boolean(since=1)


@message()
class CreatedConfig:
    name: str = text()
    value: str | None = text(None, null=0)
    read_only: bool = boolean()
    source: int = int8(-1)
    is_sensitive: bool = boolean()


@message()
class CreatedTopic:
    name: str = text()
    topic_id: uuid.UUID = topic_id(since=7)
    error_code: int = int16()
    error_message: str | None = text(None, since=1, null=0)
    config_error_code: int = int16(since=5, tag=0)
    partitions: int = int32(-1, since=5)
    replication_factor: int = int16(-1, since=5)
    configs: list[CreatedConfig] | None = array(CreatedConfig, since=5, null=5)


@message(flexible=5)
class CreateTopicsResponse:
    throttle_time_ms: int = int32(since=2)
    topics: list[CreatedTopic] = array(CreatedTopic)


@message()
class DeleteTopic:
    name: str | None = text(None, null=6)
    topic_id: uuid.UUID = topic_id()


@message(flexible=4)
class DeleteTopicsRequest:
    topics: list[DeleteTopic] = array(DeleteTopic, since=6)
    names: list[str] = array(TEXTS, until=5)
    timeout_ms: int = int32()


@message()
class DeletedTopic:
    name: str | None = text("", null=6)
    topic_id: uuid.UUID = topic_id(since=6)
    error_code: int = int16()
    error_message: str | None = text(None, since=5, null=5)


@message(flexible=4)
class DeleteTopicsResponse:
    throttle_time_ms: int = int32(since=1)
    topics: list[DeletedTopic] = array(DeletedTopic)


@message()
class PartitionsAssignment:
    brokers: list[int] = array(INTS)


@message()
class GrowTopic:
    name: str = text()
    count: int = int32()
    assignments: list[PartitionsAssignment] | None = array(PartitionsAssignment, null=0)


@message(flexible=2)
class CreatePartitionsRequest:
    topics: list[GrowTopic] = array(GrowTopic)
    timeout_ms: int = int32()
    validate_only: bool = boolean()


@message()
class GrownTopic:
    name: str = text()
    error_code: int = int16()
    error_message: str | None = text(None, null=0)


@message(flexible=2)
class CreatePartitionsResponse:
    throttle_time_ms: int = int32()
    topics: list[GrownTopic] = array(GrownTopic)


@message()
class DescribeConfigsResource:
    kind: int = int8()
    name: str = text()
    keys: list[str] | None = array(TEXTS, null=0)


@message(flexible=4)
class DescribeConfigsRequest:
    resources: list[DescribeConfigsResource] = array(DescribeConfigsResource)
    include_synonyms: bool = boolean(since=1)
    include_documentation: bool = boolean(since=3)


@message()
class ConfigSynonym:
    name: str = text()
    value: str | None = text(None, null=0)
    source: int = int8()


@message()
class DescribedConfig:
    name: str = text()
    value: str | None = text(None, null=0)
    read_only: bool = boolean()
    is_default: bool = boolean(until=0)
    source: int = int8(-1, since=1)
    is_sensitive: bool = boolean()
    synonyms: list[ConfigSynonym] = array(ConfigSynonym, since=1)
    config_type: int = int8(since=3)
    documentation: str | None = text(None, since=3, null=0)


@message()
class DescribedResource:
    error_code: int = int16()
    error_message: str | None = text(None, null=0)
    kind: int = int8()
    name: str = text()
    configs: list[DescribedConfig] = array(DescribedConfig)


@message(flexible=4)
class DescribeConfigsResponse:
    throttle_time_ms: int = int32()
    results: list[DescribedResource] = array(DescribedResource)


@message()
class AlterResource:
    kind: int = int8()
    name: str = text()
    configs: list[TopicConfig] = array(TopicConfig)


@message(flexible=2)
class AlterConfigsRequest:
    resources: list[AlterResource] = array(AlterResource)
    validate_only: bool = boolean()


@message()
class AlteredResource:
    error_code: int = int16()
    error_message: str | None = text(None, null=0)
    kind: int = int8()
    name: str = text()


@message(flexible=2)
class AlterConfigsResponse:
    throttle_time_ms: int = int32()
    responses: list[AlteredResource] = array(AlteredResource)


@message()
class ConfigChange:
    name: str = text()
    operation: int = int8()
    value: str | None = text(None, null=0)


@message()
class ChangeResource:
    kind: int = int8()
    name: str = text()
    configs: list[ConfigChange] = array(ConfigChange)


@message(flexible=1)
class IncrementalAlterConfigsRequest:
    resources: list[ChangeResource] = array(ChangeResource)
    validate_only: bool = boolean()


@message(flexible=1)
class IncrementalAlterConfigsResponse:
    throttle_time_ms: int = int32()
    responses: list[AlteredResource] = array(AlteredResource)


@message(flexible=0)
class ListConfigResourcesRequest:
    """``kinds``: empty stands for all."""

    kinds: list[int] = array(BYTES, since=1)


@message()
class ListedResource:
    name: str = text()
    kind: int = int8(since=1)


@message(flexible=0)
class ListConfigResourcesResponse:
    throttle_time_ms: int = int32()
    error_code: int = int16()
    resources: list[ListedResource] = array(ListedResource)
