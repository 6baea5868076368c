"""Transactions: AddPartitionsToTxn, AddOffsetsToTxn, EndTxn, WriteTxnMarkers, TxnOffsetCommit,
DescribeTransactions, ListTransactions.

Facts of Kafka's own message definitions; the names of fields are ours. See ``schema``.
"""

from __future__ import annotations

from magnetar.wire.kafka.schema import (
    LONGS,
    TEXTS,
    array,
    boolean,
    int16,
    int32,
    int64,
    message,
    text,
)
from magnetar.wire.kafka.topic_shapes import TopicPartitions, TopicResults


@message(flexible=3)
class AddPartitionsToTxnRequest:
    transactional_id: str = text()
    producer_id: int = int64()
    producer_epoch: int = int16()
    topics: list[TopicPartitions] = array(TopicPartitions)


@message(flexible=3)
class AddPartitionsToTxnResponse:
    throttle_time_ms: int = int32()
    topics: list[TopicResults] = array(TopicResults)


@message(flexible=3)
class AddOffsetsToTxnRequest:
    transactional_id: str = text()
    producer_id: int = int64()
    producer_epoch: int = int16()
    group_id: str = text()


@message(flexible=3)
class AddOffsetsToTxnResponse:
    throttle_time_ms: int = int32()
    error_code: int = int16()


@message(flexible=3)
class EndTxnRequest:
    transactional_id: str = text()
    producer_id: int = int64()
    producer_epoch: int = int16()
    commits: bool = boolean()


@message(flexible=3)
class EndTxnResponse:
    throttle_time_ms: int = int32()
    error_code: int = int16()


@message()
class TransactionMarker:
    producer_id: int = int64()
    producer_epoch: int = int16()
    commits: bool = boolean()
    topics: list[TopicPartitions] = array(TopicPartitions)
    coordinator_epoch: int = int32()


@message(flexible=1)
class WriteTxnMarkersRequest:
    markers: list[TransactionMarker] = array(TransactionMarker)


@message()
class WrittenMarker:
    producer_id: int = int64()
    topics: list[TopicResults] = array(TopicResults)


@message(flexible=1)
class WriteTxnMarkersResponse:
    markers: list[WrittenMarker] = array(WrittenMarker)


@message()
class TxnOffsetPartition:
    index: int = int32()
    offset: int = int64()
    leader_epoch: int = int32(-1, since=2)
    metadata: str | None = text("", null=0)


@message()
class TxnOffsetTopic:
    name: str = text()
    partitions: list[TxnOffsetPartition] = array(TxnOffsetPartition)


@message(flexible=3)
class TxnOffsetCommitRequest:
    transactional_id: str = text()
    group_id: str = text()
    producer_id: int = int64()
    producer_epoch: int = int16()
    generation: int = int32(-1, since=3)
    member_id: str = text(since=3)
    instance_id: str | None = text(None, since=3, null=3)
    topics: list[TxnOffsetTopic] = array(TxnOffsetTopic)


@message(flexible=3)
class TxnOffsetCommitResponse:
    throttle_time_ms: int = int32()
    topics: list[TopicResults] = array(TopicResults)


@message(flexible=0)
class DescribeTransactionsRequest:
    transactional_ids: list[str] = array(TEXTS)


@message()
class DescribedTransaction:
    error_code: int = int16()
    transactional_id: str = text()
    state: str = text()
    timeout_ms: int = int32()
    started_ms: int = int64(-1)
    producer_id: int = int64(-1)
    producer_epoch: int = int16(-1)
    topics: list[TopicPartitions] = array(TopicPartitions)


@message(flexible=0)
class DescribeTransactionsResponse:
    throttle_time_ms: int = int32()
    transactions: list[DescribedTransaction] = array(DescribedTransaction)


@message(flexible=0)
class ListTransactionsRequest:
    """``id_pattern``: a regular expression, which whole ids match; None, or empty: any."""

    states: list[str] = array(TEXTS)
    producer_ids: list[int] = array(LONGS)
    duration_ms: int = int64(-1, since=1)
    id_pattern: str | None = text(None, since=2, null=2)


@message()
class ListedTransaction:
    transactional_id: str = text()
    producer_id: int = int64()
    state: str = text()


@message(flexible=0)
class ListTransactionsResponse:
    throttle_time_ms: int = int32()
    error_code: int = int16()
    unknown_states: list[str] = array(TEXTS)
    transactions: list[ListedTransaction] = array(ListedTransaction)
