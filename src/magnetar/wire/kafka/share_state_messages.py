"""ReadShareGroupState and WriteShareGroupState (KIP-932): leaders of partitions ask the broker that
keeps a group what has become of its records, and have it kept.

Facts of Kafka's own message definitions; the names of fields are ours. See ``schema``.
"""

from __future__ import annotations

import uuid

from magnetar.wire.kafka.schema import (
    array,
    int8,
    int16,
    int32,
    int64,
    message,
    text,
    topic_id,
)


@message()
class StateBatch:
    first_offset: int = int64()
    last_offset: int = int64()
    state: int = int8()
    delivery_count: int = int16()


@message()
class AskedState:
    index: int = int32()
    leader_epoch: int = int32()


@message()
class AskedStateTopic:
    topic_id: uuid.UUID = topic_id()
    partitions: list[AskedState] = array(AskedState)


@message(flexible=0)
class ReadShareGroupStateRequest:
    group_id: str = text()
    topics: list[AskedStateTopic] = array(AskedStateTopic)


@message()
class FoundState:
    index: int = int32()
    error_code: int = int16()
    error_message: str | None = text(None, null=0)
    state_epoch: int = int32()
    start_offset: int = int64()
    batches: list[StateBatch] = array(StateBatch)


@message()
class FoundStateTopic:
    topic_id: uuid.UUID = topic_id()
    partitions: list[FoundState] = array(FoundState)


@message(flexible=0)
class ReadShareGroupStateResponse:
    topics: list[FoundStateTopic] = array(FoundStateTopic)


@message()
class NewState:
    index: int = int32()
    state_epoch: int = int32()
    leader_epoch: int = int32()
    start_offset: int = int64()
    batches: list[StateBatch] = array(StateBatch)


@message()
class NewStateTopic:
    topic_id: uuid.UUID = topic_id()
    partitions: list[NewState] = array(NewState)


@message(flexible=0)
class WriteShareGroupStateRequest:
    group_id: str = text()
    topics: list[NewStateTopic] = array(NewStateTopic)


@message()
class WrittenState:
    index: int = int32()
    error_code: int = int16()
    error_message: str | None = text(None, null=0)


@message()
class WrittenStateTopic:
    topic_id: uuid.UUID = topic_id()
    partitions: list[WrittenState] = array(WrittenState)


@message(flexible=0)
class WriteShareGroupStateResponse:
    topics: list[WrittenStateTopic] = array(WrittenStateTopic)
