"""Requests about share groups, held against what their client may do.

As ``authorizing``, which says how. What a session fetches was named by earlier requests: each
partition is held against the client's permissions where it is read, and where something of it is
acknowledged (``share_fetch``).
"""

from __future__ import annotations

from typing import Any

from magnetar.cluster.security.permissions import Action
from magnetar.protocols.kafka.handlers.authorizing import (
    NO_CLUSTER,
    NO_GROUP,
    NO_TOPIC,
    WHY_GROUP,
    WHY_TOPIC,
    apart,
    sorted_out,
    tells_hidden,
)
from magnetar.protocols.kafka.session import Handler, KafkaSession
from magnetar.wire.kafka.apis import RequestHead
from magnetar.wire.kafka.share_fetch_messages import (
    ShareAcknowledgeRequest,
    ShareAcknowledgeResponse,
    ShareFetchRequest,
    ShareFetchResponse,
)
from magnetar.wire.kafka.share_group_messages import (
    AlteredShareStart,
    AlteredShareTopic,
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsResponse,
    DeletedShareTopic,
    DeleteShareGroupOffsetsRequest,
    DeleteShareGroupOffsetsResponse,
    DescribedShareGroup,
    DescribeShareGroupOffsetsRequest,
    ShareGroupDescribeRequest,
    ShareGroupHeartbeatRequest,
    ShareGroupHeartbeatResponse,
    ShareStart,
    ShareStartGroup,
    ShareStartTopic,
)
from magnetar.wire.kafka.share_state_messages import (
    FoundState,
    FoundStateTopic,
    ReadShareGroupStateRequest,
    ReadShareGroupStateResponse,
    WriteShareGroupStateRequest,
    WriteShareGroupStateResponse,
    WrittenState,
    WrittenStateTopic,
)


async def heartbeat(
    session: KafkaSession, head: RequestHead, request: ShareGroupHeartbeatRequest, handler: Handler
) -> Any:
    if not await session.grants.group(request.group_id):
        return ShareGroupHeartbeatResponse(error_code=NO_GROUP, error_message=WHY_GROUP)
    for name in request.names or ():
        if not await session.grants.topic(Action.CONSUME, name):
            return ShareGroupHeartbeatResponse(error_code=NO_TOPIC, error_message=WHY_TOPIC)
    return await handler(session, head, request)


async def fetch(
    session: KafkaSession, head: RequestHead, request: ShareFetchRequest, handler: Handler
) -> Any:
    if await session.grants.group(request.group_id or ""):
        return await handler(session, head, request)
    return ShareFetchResponse(error_code=NO_GROUP, error_message=WHY_GROUP)


async def acknowledge(
    session: KafkaSession, head: RequestHead, request: ShareAcknowledgeRequest, handler: Handler
) -> Any:
    if await session.grants.group(request.group_id or ""):
        return await handler(session, head, request)
    return ShareAcknowledgeResponse(error_code=NO_GROUP, error_message=WHY_GROUP)


# -- what admins ask ------------------------------------------------------------------------------


async def describe(
    session: KafkaSession, head: RequestHead, request: ShareGroupDescribeRequest, handler: Handler
) -> Any:
    request.groups, refused = await apart(request.groups, session.grants.group)
    answer = await handler(session, head, request)
    for number, group in enumerate(answer.groups):
        if await tells_hidden(session, group.members):
            answer.groups[number] = DescribedShareGroup(NO_TOPIC, WHY_TOPIC, group.group_id)
    answer.groups += [DescribedShareGroup(NO_GROUP, WHY_GROUP, each) for each in refused]
    return answer


async def describe_starts(
    session: KafkaSession,
    head: RequestHead,
    request: DescribeShareGroupOffsetsRequest,
    handler: Handler,
) -> Any:
    request.groups, others = await apart(
        request.groups, lambda each: session.grants.group(each.group_id)
    )
    refused: dict[str, list[ShareStartTopic]] = {}
    for asked in request.groups:
        if asked.topics is not None:
            asked.topics, no_topics = await sorted_out(session, Action.CONSUME, asked.topics)
            refused[asked.group_id] = [
                ShareStartTopic(
                    topic.name,
                    partitions=[
                        ShareStart(index, error_code=NO_TOPIC, error_message=WHY_TOPIC)
                        for index in topic.partitions
                    ],
                )
                for topic in no_topics
            ]
    answer = await handler(session, head, request)
    for said in answer.groups:
        said.topics, _ = await sorted_out(session, Action.CONSUME, said.topics)
        said.topics += refused.get(said.group_id, [])
    answer.groups += [
        ShareStartGroup(each.group_id, error_code=NO_GROUP, error_message=WHY_GROUP)
        for each in others
    ]
    return answer


async def alter_starts(
    session: KafkaSession,
    head: RequestHead,
    request: AlterShareGroupOffsetsRequest,
    handler: Handler,
) -> Any:
    if not await session.grants.group(request.group_id):
        return AlterShareGroupOffsetsResponse(error_code=NO_GROUP, error_message=WHY_GROUP)
    request.topics, refused = await sorted_out(session, Action.CONSUME, request.topics)
    answer = await handler(session, head, request)
    answer.topics += [
        AlteredShareTopic(
            topic.name,
            partitions=[
                AlteredShareStart(part.index, NO_TOPIC, WHY_TOPIC) for part in topic.partitions
            ],
        )
        for topic in refused
    ]
    return answer


async def delete_starts(
    session: KafkaSession,
    head: RequestHead,
    request: DeleteShareGroupOffsetsRequest,
    handler: Handler,
) -> Any:
    if not await session.grants.group(request.group_id):
        return DeleteShareGroupOffsetsResponse(error_code=NO_GROUP, error_message=WHY_GROUP)
    request.topics, refused = await sorted_out(session, Action.CONSUME, request.topics)
    answer = await handler(session, head, request)
    answer.topics += [
        DeletedShareTopic(topic.name, error_code=NO_TOPIC, error_message=WHY_TOPIC)
        for topic in refused
    ]
    return answer


# -- leaders of partitions: other brokers ---------------------------------------------------------


async def read_state(
    session: KafkaSession, head: RequestHead, request: ReadShareGroupStateRequest, handler: Handler
) -> Any:
    if session.grants.cluster:
        return await handler(session, head, request)
    return ReadShareGroupStateResponse(
        [
            FoundStateTopic(
                topic.topic_id, [FoundState(part.index, NO_CLUSTER) for part in topic.partitions]
            )
            for topic in request.topics
        ]
    )


async def write_state(
    session: KafkaSession, head: RequestHead, request: WriteShareGroupStateRequest, handler: Handler
) -> Any:
    if session.grants.cluster:
        return await handler(session, head, request)
    return WriteShareGroupStateResponse(
        [
            WrittenStateTopic(
                topic.topic_id, [WrittenState(part.index, NO_CLUSTER) for part in topic.partitions]
            )
            for topic in request.topics
        ]
    )
