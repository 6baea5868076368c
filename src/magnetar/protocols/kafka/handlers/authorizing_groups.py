"""Requests about groups, their offsets, and transactions, held against what their client may do.

As ``authorizing``, which says how. A group, or a transactional id, belongs to the namespace that
its name says (``names.namespace_of``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from magnetar.cluster.security.permissions import Action
from magnetar.protocols.kafka.handlers.authorizing import (
    NO_CLUSTER,
    NO_GROUP,
    NO_TOPIC,
    WHY_TOPIC,
    Rule,
    apart,
    by_topic,
    sorted_out,
    tells_hidden,
)
from magnetar.protocols.kafka.handlers.groups import GROUP, TRANSACTION
from magnetar.protocols.kafka.session import Handler, KafkaSession
from magnetar.wire.kafka.apis import RequestHead
from magnetar.wire.kafka.cluster_messages import (
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    FoundCoordinator,
)
from magnetar.wire.kafka.consumer_group_messages import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    DescribedConsumerGroup,
)
from magnetar.wire.kafka.errors import ErrorCode
from magnetar.wire.kafka.group_messages import (
    DeletedGroup,
    DeleteGroupsRequest,
    DescribedGroup,
    DescribeGroupsRequest,
    HeartbeatResponse,
    JoinGroupResponse,
    LeaveGroupResponse,
    ListGroupsRequest,
    SyncGroupResponse,
)
from magnetar.wire.kafka.offset_messages import (
    FoundOffset,
    FoundOffsetsGroup,
    FoundOffsetsTopic,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
)
from magnetar.wire.kafka.produce_messages import InitProducerIdRequest, InitProducerIdResponse
from magnetar.wire.kafka.topic_shapes import PartitionResult, TopicPartitions, TopicResults
from magnetar.wire.kafka.transaction_messages import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    DescribedTransaction,
    DescribeTransactionsRequest,
    EndTxnRequest,
    EndTxnResponse,
    ListTransactionsRequest,
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
    WrittenMarker,
)

NO_TRANSACTION: Final = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED


def by_group(refused: Callable[[], Any]) -> Rule:
    """Of a request with one ``group_id``; ``refused`` makes the answer to one that is not the
    client's."""

    async def rule(session: KafkaSession, head: RequestHead, request: Any, handler: Handler) -> Any:
        if await session.grants.group(request.group_id):
            return await handler(session, head, request)
        return refused()

    return rule


join: Final = by_group(lambda: JoinGroupResponse(error_code=NO_GROUP))
sync: Final = by_group(lambda: SyncGroupResponse(error_code=NO_GROUP))
heartbeat: Final = by_group(lambda: HeartbeatResponse(error_code=NO_GROUP))
leave: Final = by_group(lambda: LeaveGroupResponse(error_code=NO_GROUP))


async def consumer_heartbeat(
    session: KafkaSession,
    head: RequestHead,
    request: ConsumerGroupHeartbeatRequest,
    handler: Handler,
) -> Any:
    """What a regular expression stands for is held against it where it is looked up."""
    if not await session.grants.group(request.group_id):
        return ConsumerGroupHeartbeatResponse(error_code=NO_GROUP)
    for name in request.names or ():
        if not await session.grants.topic(Action.CONSUME, name):
            return ConsumerGroupHeartbeatResponse(error_code=NO_TOPIC, error_message=WHY_TOPIC)
    return await handler(session, head, request)


async def find_coordinator(
    session: KafkaSession, head: RequestHead, request: FindCoordinatorRequest, handler: Handler
) -> Any:
    kind = request.key_type
    if kind not in (GROUP, TRANSACTION):
        return await handler(session, head, request)  # which refuses it
    error = NO_GROUP if kind == GROUP else NO_TRANSACTION
    granted = session.grants.group if kind == GROUP else session.grants.transactional_id
    if head.version < 4:
        if await granted(request.key):
            return await handler(session, head, request)
        return FindCoordinatorResponse(error_code=error)
    request.keys, refused = await apart(request.keys, granted)
    answer = await handler(session, head, request)
    answer.coordinators += [FoundCoordinator(key, error_code=error) for key in refused]
    return answer


# -- offsets --------------------------------------------------------------------------------------


def _results(topic: Any, error: ErrorCode) -> TopicResults:
    return TopicResults(
        topic.name, [PartitionResult(part.index, error) for part in topic.partitions]
    )


consumed: Final = by_topic(Action.CONSUME, lambda topic: _results(topic, NO_TOPIC))
"""Of the topics of a request about a group's offsets, when the group is the client's."""


async def commit(
    session: KafkaSession, head: RequestHead, request: OffsetCommitRequest, handler: Handler
) -> Any:
    if not await session.grants.group(request.group_id):
        return OffsetCommitResponse(topics=[_results(each, NO_GROUP) for each in request.topics])
    return await consumed(session, head, request, handler)


async def fetch_offsets(
    session: KafkaSession, head: RequestHead, request: OffsetFetchRequest, handler: Handler
) -> Any:
    if head.version >= 8:
        request.groups, others = await apart(
            request.groups, lambda each: session.grants.group(each.group_id)
        )
        refused = {each.group_id: await _refuse_topics(session, each) for each in request.groups}
        answer = await handler(session, head, request)
        for said in answer.groups:
            said.topics = await _seen(session, said.topics)
            said.topics += refused.get(said.group_id, [])
        answer.groups += [FoundOffsetsGroup(each.group_id, error_code=NO_GROUP) for each in others]
        return answer
    if not await session.grants.group(request.group_id):
        topics = [_no_offsets(each, NO_GROUP) for each in request.topics or []]
        return OffsetFetchResponse(topics=topics, error_code=NO_GROUP)
    refused_topics = await _refuse_topics(session, request)
    answer = await handler(session, head, request)
    answer.topics = await _seen(session, answer.topics) + refused_topics
    return answer


async def _refuse_topics(session: KafkaSession, asked: Any) -> list[FoundOffsetsTopic]:
    """Take topics out that are named and may not be consumed."""
    if asked.topics is None:
        return []
    asked.topics, refused = await sorted_out(session, Action.CONSUME, asked.topics)
    return [_no_offsets(each, NO_TOPIC) for each in refused]


async def _seen(session: KafkaSession, topics: list[FoundOffsetsTopic]) -> list[FoundOffsetsTopic]:
    """Of all topics of a group: those that the client may consume."""
    return (await sorted_out(session, Action.CONSUME, topics))[0]


def _no_offsets(topic: Any, error: ErrorCode) -> FoundOffsetsTopic:
    return FoundOffsetsTopic(
        topic.name, [FoundOffset(index, error_code=error) for index in topic.partitions]
    )


async def delete_offsets(
    session: KafkaSession, head: RequestHead, request: OffsetDeleteRequest, handler: Handler
) -> Any:
    if not await session.grants.group(request.group_id):
        return OffsetDeleteResponse(error_code=NO_GROUP)
    return await consumed(session, head, request, handler)


# -- what admins ask ------------------------------------------------------------------------------


async def list_groups(
    session: KafkaSession, head: RequestHead, request: ListGroupsRequest, handler: Handler
) -> Any:
    answer = await handler(session, head, request)
    answer.groups = [each for each in answer.groups if await session.grants.group(each.group_id)]
    return answer


async def describe(
    session: KafkaSession, head: RequestHead, request: DescribeGroupsRequest, handler: Handler
) -> Any:
    request.groups, refused = await apart(request.groups, session.grants.group)
    answer = await handler(session, head, request)
    answer.groups += [DescribedGroup(NO_GROUP, each) for each in refused]
    return answer


async def describe_consumers(
    session: KafkaSession,
    head: RequestHead,
    request: ConsumerGroupDescribeRequest,
    handler: Handler,
) -> Any:
    request.groups, refused = await apart(request.groups, session.grants.group)
    answer = await handler(session, head, request)
    for number, group in enumerate(answer.groups):
        if await tells_hidden(session, group.members):
            answer.groups[number] = DescribedConsumerGroup(NO_TOPIC, WHY_TOPIC, group.group_id)
    answer.groups += [DescribedConsumerGroup(NO_GROUP, None, each) for each in refused]
    return answer


async def delete(
    session: KafkaSession, head: RequestHead, request: DeleteGroupsRequest, handler: Handler
) -> Any:
    request.groups, refused = await apart(request.groups, session.grants.group)
    answer = await handler(session, head, request)
    answer.results += [DeletedGroup(each, NO_GROUP) for each in refused]
    return answer


# -- transactions ---------------------------------------------------------------------------------


def _indexed(topic: TopicPartitions, error: ErrorCode) -> TopicResults:
    return TopicResults(topic.name, [PartitionResult(index, error) for index in topic.partitions])


async def begin(
    session: KafkaSession, head: RequestHead, request: InitProducerIdRequest, handler: Handler
) -> Any:
    """A producer's number for itself is anybody's."""
    name = request.transactional_id
    if name is None or await session.grants.transactional_id(name):
        return await handler(session, head, request)
    return InitProducerIdResponse(error_code=NO_TRANSACTION)


async def add_partitions(
    session: KafkaSession, head: RequestHead, request: AddPartitionsToTxnRequest, handler: Handler
) -> Any:
    """All of them or none, as in Kafka."""
    if not await session.grants.transactional_id(request.transactional_id):
        return AddPartitionsToTxnResponse(
            topics=[_indexed(each, NO_TRANSACTION) for each in request.topics]
        )
    granted, refused = await sorted_out(session, Action.PRODUCE, request.topics)
    if not refused:
        return await handler(session, head, request)
    said = [_indexed(each, NO_TOPIC) for each in refused]
    said += [_indexed(each, ErrorCode.OPERATION_NOT_ATTEMPTED) for each in granted]
    return AddPartitionsToTxnResponse(topics=said)


async def add_offsets(
    session: KafkaSession, head: RequestHead, request: AddOffsetsToTxnRequest, handler: Handler
) -> Any:
    if not await session.grants.transactional_id(request.transactional_id):
        return AddOffsetsToTxnResponse(error_code=NO_TRANSACTION)
    if not await session.grants.group(request.group_id):
        return AddOffsetsToTxnResponse(error_code=NO_GROUP)
    return await handler(session, head, request)


async def end(
    session: KafkaSession, head: RequestHead, request: EndTxnRequest, handler: Handler
) -> Any:
    if await session.grants.transactional_id(request.transactional_id):
        return await handler(session, head, request)
    return EndTxnResponse(error_code=NO_TRANSACTION)


async def commit_offsets(
    session: KafkaSession, head: RequestHead, request: TxnOffsetCommitRequest, handler: Handler
) -> Any:
    error = ErrorCode.NONE
    if not await session.grants.transactional_id(request.transactional_id):
        error = NO_TRANSACTION
    elif not await session.grants.group(request.group_id):
        error = NO_GROUP
    if error:
        return TxnOffsetCommitResponse(topics=[_results(each, error) for each in request.topics])
    return await consumed(session, head, request, handler)


async def write_markers(
    session: KafkaSession, head: RequestHead, request: WriteTxnMarkersRequest, handler: Handler
) -> Any:
    """Coordinators do: other brokers."""
    if session.grants.cluster:
        return await handler(session, head, request)
    answer = WriteTxnMarkersResponse()
    for marker in request.markers:
        topics = [_indexed(each, NO_CLUSTER) for each in marker.topics]
        answer.markers.append(WrittenMarker(marker.producer_id, topics))
    return answer


async def describe_transactions(
    session: KafkaSession, head: RequestHead, request: DescribeTransactionsRequest, handler: Handler
) -> Any:
    request.transactional_ids, refused = await apart(
        request.transactional_ids, session.grants.transactional_id
    )
    answer = await handler(session, head, request)
    for said in answer.transactions:  # of the topics: those that the client may see, as in Kafka
        said.topics, _ = await sorted_out(session, Action.LOOKUP, said.topics)
    answer.transactions += [DescribedTransaction(NO_TRANSACTION, each) for each in refused]
    return answer


async def list_transactions(
    session: KafkaSession, head: RequestHead, request: ListTransactionsRequest, handler: Handler
) -> Any:
    answer = await handler(session, head, request)
    answer.transactions = [
        each
        for each in answer.transactions
        if await session.grants.transactional_id(each.transactional_id)
    ]
    return answer
