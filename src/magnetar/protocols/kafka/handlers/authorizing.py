"""Requests about topics, held against what their client may do, before their handlers see them.

A rule takes what is not permitted out of the request, has the handler answer the rest, and adds
the refusals to its answer: handlers know nothing of permissions, and no request without a rule is
answered at all (``handlers.table``). Rules stand before a handler only where clients must show who
they are.

What cannot be known now (``MetadataError``) ends the connection, as with every request that cannot
be answered: nothing is granted on a guess.

Why: docs/adr/0158-kafkas-requests-are-authorized-in-one-place.md.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final, TypeAlias, TypeVar

from magnetar.cluster.security.permissions import Action
from magnetar.model.errors import UnknownTopicIdError
from magnetar.protocols.kafka.handlers.admin import name_asked, names_by_id, refused_topics
from magnetar.protocols.kafka.handlers.cluster import all_names, name_topics, not_known
from magnetar.protocols.kafka.handlers.configs import BROKER, TOPIC
from magnetar.protocols.kafka.handlers.fetch import IDS_SINCE, name_fetched
from magnetar.protocols.kafka.handlers.group_configs import GROUP
from magnetar.protocols.kafka.handlers.partition_admin import (
    PARTITIONS_MAX,
    from_cursor,
)
from magnetar.protocols.kafka.session import Handler, KafkaSession
from magnetar.wire.kafka.admin_messages import (
    AlterConfigsRequest,
    AlteredResource,
    CreatedTopic,
    DeletedTopic,
    DeleteTopic,
    DeleteTopicsRequest,
    DescribeConfigsRequest,
    DescribedResource,
    GrownTopic,
    IncrementalAlterConfigsRequest,
    ListConfigResourcesRequest,
)
from magnetar.wire.kafka.apis import RequestHead
from magnetar.wire.kafka.cluster_messages import MetadataRequest, TopicMetadata
from magnetar.wire.kafka.errors import ErrorCode
from magnetar.wire.kafka.fetch_messages import (
    ClientFetchRequest,
    EpochEndPartition,
    EpochEndTopic,
    FetchedPartition,
    FetchedTopic,
    FetchResponse,
    FetchTopic,
    ListedPartition,
    ListedTopic,
)
from magnetar.wire.kafka.partition_messages import (
    DescribedTopic,
    DescribeTopicName,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
)
from magnetar.wire.kafka.produce_messages import (
    ProducedPartition,
    ProducedTopic,
    ProduceRequest,
    ProduceResponse,
)
from magnetar.wire.kafka.producer_messages import ProducersOfPartition, ProducersOfTopic
from magnetar.wire.kafka.record_messages import BegunPartition, BegunTopic
from magnetar.wire.kafka.schema import NO_UUID

P = TypeVar("P")
Rule: TypeAlias = Callable[[KafkaSession, RequestHead, Any, Handler], Awaitable[Any]]

NO_TOPIC: Final = ErrorCode.TOPIC_AUTHORIZATION_FAILED
NO_GROUP: Final = ErrorCode.GROUP_AUTHORIZATION_FAILED
NO_CLUSTER: Final = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
WHY_TOPIC: Final = "the role may not do this with the topic"
WHY_GROUP: Final = "the role may not consume in the group's namespace"
WHY_CLUSTER: Final = "this is for super-users (security.super_users)"


async def anybody(session: KafkaSession, head: RequestHead, request: Any, handler: Handler) -> Any:
    """Of requests that concern nothing of anybody's."""
    return await handler(session, head, request)


async def apart(
    parts: Iterable[P], allowed: Callable[[P], Awaitable[bool]]
) -> tuple[list[P], list[P]]:
    """Parts of a request, in order: those that are granted, and those that are not."""
    granted: list[P] = []
    refused: list[P] = []
    for each in parts:
        (granted if await allowed(each) else refused).append(each)
    return granted, refused


async def sorted_out(
    session: KafkaSession, action: Action, topics: Iterable[Any]
) -> tuple[list[Any], list[Any]]:
    """As ``apart``, of parts that have the ``name`` of a topic."""
    return await apart(topics, lambda each: session.grants.topic(action, each.name))


async def tells_hidden(session: KafkaSession, members: Iterable[Any]) -> bool:
    """Whether what is said of a group's members has a topic that the client may not consume: such a
    group is not described. That is also a topic that a member only asks for: it may not be there,
    or have fewer partitions than there are members."""
    named: dict[str, None] = {}
    for member in members:
        named.update(dict.fromkeys(member.names))
        for part in (member.assignment, getattr(member, "target", member.assignment)):
            named.update((topic.name, None) for topic in part.topics)
    for name in named:
        if not await session.grants.topic(Action.CONSUME, name):
            return True
    return False


def by_topic(action: Action, refusal: Callable[[Any], Any]) -> Rule:
    """Of a request with ``topics``, answered by ``topics``; ``refusal`` makes the answer's part of
    the request's."""

    async def rule(session: KafkaSession, head: RequestHead, request: Any, handler: Handler) -> Any:
        granted, refused = await sorted_out(session, action, request.topics)
        if not refused:
            return await handler(session, head, request)
        request.topics = granted
        answer = await handler(session, head, request)
        answer.topics += [refusal(each) for each in refused]
        return answer

    return rule


# -- records --------------------------------------------------------------------------------------


async def produce(
    session: KafkaSession, head: RequestHead, request: ProduceRequest, handler: Handler
) -> Any:
    name = request.transactional_id
    error = NO_TOPIC
    granted, refused = await sorted_out(session, Action.PRODUCE, request.topics)
    if name is not None and not await session.grants.transactional_id(name):
        granted, refused = [], request.topics
        error = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    if not refused:
        return await handler(session, head, request)
    request.topics = granted
    answer = await handler(session, head, request)
    if request.acks == 0:  # nobody is told: the connection says it, as of any other error
        session.close()
        return None
    assert isinstance(answer, ProduceResponse)
    for topic in refused:
        parts = [
            ProducedPartition(part.index, error, error_message=WHY_TOPIC)
            for part in topic.partitions
        ]
        answer.topics.append(ProducedTopic(topic.name, parts))
    return answer


async def fetch(
    session: KafkaSession, head: RequestHead, request: ClientFetchRequest, handler: Handler
) -> Any:
    if request.replica_id >= 0:  # of a follower: another broker
        if session.grants.cluster:
            return await handler(session, head, request)
        return FetchResponse(error_code=NO_CLUSTER)
    unknown = await _unknown(session, request) if head.version >= IDS_SINCE else []
    named = [topic for topic in request.topics if topic.name]
    granted, refused = await sorted_out(session, Action.CONSUME, named)
    if not refused:
        return await handler(session, head, request)
    request.topics = granted + unknown
    request.wait_ms_max = 0  # an error does not wait for records
    answer = await handler(session, head, request)
    for topic in refused:
        parts = [
            FetchedPartition(part.partition, NO_TOPIC, -1, aborted=[], records=[])
            for part in topic.partitions
        ]
        answer.topics.append(FetchedTopic(topic.name, topic.topic_id, parts))
    return answer


async def _unknown(session: KafkaSession, request: ClientFetchRequest) -> list[FetchTopic]:
    """Topics that are asked for by an id that nobody has, as the handler answers; others get their
    names. Raises ``MetadataError``."""
    found = []
    for topic in request.topics:
        try:
            topic.name = session.services.topic_ids.told(topic.topic_id) or ""
            await name_fetched(session.services, topic)
        except UnknownTopicIdError:
            found.append(topic)
    return found


def _not_listed(topic: Any) -> ListedTopic:
    return ListedTopic(
        topic.name, [ListedPartition(part.index, NO_TOPIC) for part in topic.partitions]
    )


def _no_epochs(topic: Any) -> EpochEndTopic:
    return EpochEndTopic(
        topic.name, [EpochEndPartition(NO_TOPIC, part.partition) for part in topic.partitions]
    )


def _not_begun(topic: Any) -> BegunTopic:
    parts = [BegunPartition(part.index, error_code=NO_TOPIC) for part in topic.partitions]
    return BegunTopic(topic.name, parts)


def _no_producers(topic: Any) -> ProducersOfTopic:
    parts = [ProducersOfPartition(index, NO_TOPIC, WHY_TOPIC) for index in topic.partitions]
    return ProducersOfTopic(topic.name, parts)


list_offsets: Final = by_topic(Action.CONSUME, _not_listed)
offset_for_leader_epoch: Final = by_topic(Action.CONSUME, _no_epochs)
describe_producers: Final = by_topic(Action.CONSUME, _no_producers)
delete_records: Final = by_topic(Action.ADMIN, _not_begun)


# -- topics ---------------------------------------------------------------------------------------


async def metadata(
    session: KafkaSession, head: RequestHead, request: MetadataRequest, handler: Handler
) -> Any:
    """A list of all topics has those that the client may see; one that it asks for by name, and may
    not see, is refused whether it exists or not."""
    asks_all = request.topics is None or (head.version == 0 and not request.topics)
    if asks_all:
        answer = await handler(session, head, request)
        answer.topics, _ = await sorted_out(session, Action.LOOKUP, answer.topics)
        return answer
    assert request.topics is not None
    by_id = {id(topic) for topic in request.topics if not topic.name}
    await name_topics(session.services, head, request)
    named = [topic for topic in request.topics if topic.name]
    granted, refused = await sorted_out(session, Action.LOOKUP, named)
    request.topics = granted + [topic for topic in request.topics if not topic.name]
    # In version 0 an empty list would mean all of them.
    answer = await handler(session, head._replace(version=max(1, head.version)), request)
    for topic in refused:
        hidden = id(topic) in by_id  # its name is not told either
        answer.topics.append(
            not_known(head, topic) if hidden else TopicMetadata(NO_TOPIC, topic.name)
        )
    return answer


def _not_described(topic: Any) -> DescribedTopic:
    return DescribedTopic(NO_TOPIC, topic.name)


def _not_created(topic: Any) -> CreatedTopic:
    return CreatedTopic(topic.name, error_code=NO_TOPIC, error_message=WHY_TOPIC)


def _not_grown(topic: Any) -> GrownTopic:
    return GrownTopic(topic.name, NO_TOPIC, WHY_TOPIC)


async def describe_topic_partitions(
    session: KafkaSession,
    head: RequestHead,
    request: DescribeTopicPartitionsRequest,
    handler: Handler,
) -> Any:
    """Of all topics those that the client may see, as far as a page may reach."""
    refused: list[Any] = []
    if request.topics:
        request.topics, refused = await sorted_out(session, Action.LOOKUP, request.topics)
    else:
        for name in from_cursor(await all_names(session.services), request.cursor):
            if len(request.topics) > PARTITIONS_MAX:  # one more tells that there are more
                break
            if await session.grants.topic(Action.LOOKUP, name):
                request.topics.append(DescribeTopicName(name))
    answer = DescribeTopicPartitionsResponse()
    if request.topics:  # none would mean all of them
        answer = await handler(session, head, request)
    answer.topics += [_not_described(each) for each in refused]
    return answer


create_topics: Final = by_topic(Action.ADMIN, _not_created)
create_partitions: Final = by_topic(Action.ADMIN, _not_grown)


async def delete_topics(
    session: KafkaSession, head: RequestHead, request: DeleteTopicsRequest, handler: Handler
) -> Any:
    told = refused_topics(head, request)
    request.names, refused = await apart(
        request.names, lambda name: session.grants.topic(Action.ADMIN, name)
    )
    told += [DeletedTopic(name, NO_UUID, NO_TOPIC, WHY_TOPIC) for name in refused]
    found, granted = await names_by_id(session.services, request), list[DeleteTopic]()
    for topic in request.topics:
        name = name_asked(topic, found)
        if name is None:
            # The handler may find one by now, for which nobody has asked what the client may do.
            told.append(DeletedTopic(None, topic.topic_id, ErrorCode.UNKNOWN_TOPIC_ID))
        elif await session.grants.topic(Action.ADMIN, name):
            granted.append(topic)
        else:  # the name of one that is asked for by its id is not told
            told.append(DeletedTopic(topic.name, topic.topic_id, NO_TOPIC, WHY_TOPIC))
    request.topics = granted
    answer = await handler(session, head, request)
    answer.topics += told
    return answer


# -- configuration --------------------------------------------------------------------------------


async def _config_error(session: KafkaSession, action: Action, resource: Any) -> ErrorCode:
    grants = session.grants
    if resource.kind == TOPIC:
        return ErrorCode.NONE if await grants.topic(action, resource.name) else NO_TOPIC
    if resource.kind == BROKER:
        return ErrorCode.NONE if grants.cluster else NO_CLUSTER
    if resource.kind == GROUP:
        # Who may consume with it may delete it and begin anew, and so may say how it begins.
        return ErrorCode.NONE if await grants.group(resource.name) else NO_GROUP
    return ErrorCode.NONE  # of what has no configuration here, as the handler says


async def _configs(
    session: KafkaSession, action: Action, request: Any
) -> list[tuple[Any, ErrorCode]]:
    """Take the resources out that are refused, and return them with the reasons."""
    errors = [(each, await _config_error(session, action, each)) for each in request.resources]
    request.resources = [each for each, error in errors if not error]
    return [(each, error) for each, error in errors if error]


async def describe_configs(
    session: KafkaSession, head: RequestHead, request: DescribeConfigsRequest, handler: Handler
) -> Any:
    refused = await _configs(session, Action.LOOKUP, request)
    answer = await handler(session, head, request)
    answer.results += [
        DescribedResource(error, _why(error), each.kind, each.name) for each, error in refused
    ]
    return answer


async def alter_configs(
    session: KafkaSession,
    head: RequestHead,
    request: AlterConfigsRequest | IncrementalAlterConfigsRequest,
    handler: Handler,
) -> Any:
    refused = await _configs(session, Action.ADMIN, request)
    answer = await handler(session, head, request)
    answer.responses += [
        AlteredResource(error, _why(error), each.kind, each.name) for each, error in refused
    ]
    return answer


def _why(error: ErrorCode) -> str:
    if error is NO_GROUP:
        return WHY_GROUP
    return WHY_TOPIC if error is NO_TOPIC else WHY_CLUSTER


async def list_resources(
    session: KafkaSession,
    head: RequestHead,
    request: ListConfigResourcesRequest,
    handler: Handler,
) -> Any:
    """Those that the client may have described."""
    answer = await handler(session, head, request)
    errors = [await _config_error(session, Action.LOOKUP, each) for each in answer.resources]
    answer.resources = [
        each for each, error in zip(answer.resources, errors, strict=True) if not error
    ]
    return answer
