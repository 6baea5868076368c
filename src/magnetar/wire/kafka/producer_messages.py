"""Producers that a leader knows: DescribeProducers.

Facts of Kafka's own message definitions; the names of fields are ours. See ``schema``.
"""

from __future__ import annotations

from magnetar.wire.kafka.schema import array, int16, int32, int64, message, text
from magnetar.wire.kafka.topic_shapes import TopicPartitions


@message(flexible=0)
class DescribeProducersRequest:
    topics: list[TopicPartitions] = array(TopicPartitions)


@message()
class DescribedProducer:
    """-1: it has none. ``open_from``: the first offset of its open transaction."""

    producer_id: int = int64()
    producer_epoch: int = int32()
    last_sequence: int = int32(-1)
    last_time_ms: int = int64(-1)
    coordinator_epoch: int = int32()
    open_from: int = int64(-1)


@message()
class ProducersOfPartition:
    index: int = int32()
    error_code: int = int16()
    error_message: str | None = text(None, null=0)
    producers: list[DescribedProducer] = array(DescribedProducer)


@message()
class ProducersOfTopic:
    name: str = text()
    partitions: list[ProducersOfPartition] = array(ProducersOfPartition)


@message(flexible=0)
class DescribeProducersResponse:
    throttle_time_ms: int = int32()
    topics: list[ProducersOfTopic] = array(ProducersOfTopic)
