"""What messages of offsets and of transactions have in common: partitions by topic, and an error
code for each.

Facts of Kafka's own message definitions; the names of fields are ours. See ``schema``.
"""

from __future__ import annotations

from magnetar.wire.kafka.schema import INTS, array, int16, int32, message, text


@message()
class TopicPartitions:
    name: str = text()
    partitions: list[int] = array(INTS)


@message()
class PartitionResult:
    index: int = int32()
    error_code: int = int16()


@message()
class TopicResults:
    name: str = text()
    partitions: list[PartitionResult] = array(PartitionResult)
