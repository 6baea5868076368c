"""ApiVersions, Metadata, DescribeCluster, DescribeClientQuotas: what is served, by whom.

A topic that does not exist is made when it is asked for by name, if the client allows it and
brokers are set to (``broker.auto_create_topics``), or its namespace says so: with one partition, or
as many as that says (``broker.auto_create_partitions``).
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Mapping, Sequence
from typing import Final

from magnetar.cluster.topic_name import DEFAULT_NAMESPACE, TopicName
from magnetar.log.policy import Engine
from magnetar.model.errors import MagnetarError, TopicNotFoundError
from magnetar.protocols.kafka.handlers.operations import on_cluster, on_topic
from magnetar.protocols.kafka.known_places import STORE_AWAY, FoundTopic, Questions
from magnetar.protocols.kafka.last_epochs import NEVER_OPENED, LeaderOf
from magnetar.protocols.kafka.names import check_new, kafka_name, topic_of
from magnetar.protocols.kafka.services import NO_NODE, KafkaServices, KnownReplicas, Node
from magnetar.protocols.kafka.session import KafkaSession
from magnetar.wire.kafka.apis import RequestHead, versions_response
from magnetar.wire.kafka.cluster_messages import (
    ApiVersionsRequest,
    ApiVersionsResponse,
    BrokerNode,
    DescribeClusterRequest,
    DescribeClusterResponse,
    DescribedBroker,
    MetadataRequest,
    MetadataResponse,
    MetadataTopic,
    PartitionMetadata,
    TopicMetadata,
)
from magnetar.wire.kafka.errors import ErrorCode, error_code
from magnetar.wire.kafka.schema import NO_UUID

LOOKUPS_AT_ONCE: Final = 64
IDS_SINCE: Final = 12
"""The version of Metadata from which on topics are asked for by their ids."""


async def api_versions(
    session: KafkaSession, head: RequestHead, request: ApiVersionsRequest
) -> ApiVersionsResponse:
    return versions_response(ErrorCode.NONE)


async def metadata(
    session: KafkaSession, head: RequestHead, request: MetadataRequest
) -> MetadataResponse:
    services, questions = session.services, Questions()
    answer = MetadataResponse(cluster_id=services.control.name)
    nodes = await _nodes(session, questions)
    answer.brokers = [BrokerNode(*node.by(session.tls)) for node in nodes.values()]
    answer.controller_id = services.node.node_id
    if request.include_cluster_operations:
        answer.cluster_operations = on_cluster(session)
    turns = session.turns()
    if request.topics is None or (head.version == 0 and not request.topics):
        for name in await questions.ask(lambda: all_names(services)):
            await turns.next()
            answer.topics.append(await _topic(services, name, False, nodes, questions))
    else:
        await name_topics(services, head, request, questions)
        create = request.allow_auto_topic_creation
        # Each once, as in Kafka: an answer is many times as large as what asks for it.
        for topic in {(each.name, each.topic_id): each for each in request.topics}.values():
            await turns.next()
            if topic.name is None:
                answer.topics.append(not_known(head, topic))
            else:
                said = await _topic(services, topic.name, create, nodes, questions)
                answer.topics.append(said)
    if request.include_topic_operations:
        await _tell_operations(session, answer.topics)
    return answer


async def _tell_operations(session: KafkaSession, topics: Sequence[TopicMetadata]) -> None:
    """Of those that are there. Raises ``MetadataError``."""
    turns = session.turns()
    for topic in topics:
        await turns.next()
        if topic.name is not None and not topic.error_code:
            topic.operations = await on_topic(session, topic.name)


def not_known(head: RequestHead, topic: MetadataTopic) -> TopicMetadata:
    """Of a topic that is asked for by an id that nobody has, or that the client may not see."""
    if head.version < IDS_SINCE:
        return TopicMetadata(ErrorCode.INVALID_REQUEST, "")
    return TopicMetadata(ErrorCode.UNKNOWN_TOPIC_ID, None, topic.topic_id)


async def name_topics(
    services: KafkaServices,
    head: RequestHead,
    request: MetadataRequest,
    questions: Questions | None = None,
) -> None:
    """Topics that are asked for by their ids get their names. Raises ``MetadataError``."""
    questions = questions or Questions()
    # Kafka's client in Java sends an empty name with an id.
    by_id = [topic for topic in request.topics or [] if not topic.name]
    by_id = [topic for topic in by_id if topic.name is None or topic.topic_id != NO_UUID]
    if by_id and head.version >= IDS_SINCE:
        ids = [topic.topic_id for topic in by_id]
        try:
            found = await questions.ask(lambda: services.topic_ids.names(ids))
        except STORE_AWAY:  # as they were told last; without a name clients would drop the topic
            told = {each: services.topic_ids.told(each) for each in ids}
            if None in told.values():
                raise
            found = {each: name for each, name in told.items() if name is not None}
        for topic in by_id:
            topic.name = found.get(topic.topic_id)


async def described_topic(session: KafkaSession, name: str) -> TopicMetadata:
    """As Metadata says it, with what the client may do; the topic is not made."""
    questions = Questions()
    nodes = await _nodes(session, questions)
    found = await _topic(session.services, name, False, nodes, questions)
    await _tell_operations(session, [found])
    return found


async def _nodes(session: KafkaSession, questions: Questions) -> Mapping[str, Node]:
    """Those that the client can reach as it came. This broker is one, also while the others cannot
    be asked for."""
    services = session.services
    found = dict(await services.nodes_soon(questions))
    if services.node not in found.values():
        found[""] = services.node
    return {url: node for url, node in found.items() if node.by(session.tls).port >= 0}


async def all_names(services: KafkaServices) -> list[str]:
    """Of the default namespace, sorted: topics of others are asked for by their names. Raises
    ``MetadataError``."""
    topics = await services.topics.names(DEFAULT_NAMESPACE)
    await services.connections.line.wait()  # others, who asked as well, have it in this turn
    return sorted({kafka_name(topic) for topic in topics})


async def _topic(
    services: KafkaServices,
    name: str,
    create: bool,
    nodes: Mapping[str, Node],
    questions: Questions,
) -> TopicMetadata:
    said = TopicMetadata(name=name)
    try:
        topic = topic_of(name)
        shape = await _shape(services, name, topic, create, questions)
        count, said.topic_id = shape
        partitions = [topic.of_partition(index) for index in range(count)] if count else [topic]
        for start in range(0, len(partitions), LOOKUPS_AT_ONCE):
            some = partitions[start : start + LOOKUPS_AT_ONCE]
            said.partitions += await asyncio.gather(
                *(
                    _partition(services, at, each, said.topic_id, nodes, questions)
                    for at, each in enumerate(some, start)
                )
            )
    except MagnetarError as error:
        said.error_code = error_code(error)
        said.partitions, said.topic_id = [], NO_UUID
    return said


async def _shape(
    services: KafkaServices, name: str, topic: TopicName, create: bool, questions: Questions
) -> FoundTopic:
    """Raises ``TopicNotFoundError``, and what the store is out of reach with, if nothing is known
    of the topic."""
    try:
        count = await _count(services, name, topic, create, questions)
        topic_id = await questions.ask(lambda: services.topic_ids.of(topic))
    except TopicNotFoundError:
        services.known.is_gone(topic)
        raise
    except STORE_AWAY:
        known = services.known.shape(topic)
        if known is None:
            raise
        return known
    found = FoundTopic(count, topic_id)
    services.known.found(topic, found)
    return found


async def _count(
    services: KafkaServices, name: str, topic: TopicName, create: bool, questions: Questions
) -> int:
    """Its partitions; 0: it has none. Raises as ``_shape``."""
    count = await questions.ask(lambda: services.count_of(topic))
    if not count and not await questions.ask(lambda: services.topics.exists(topic)):
        if not create:
            raise TopicNotFoundError(f"topic {name} does not exist")
        creation = await questions.ask(lambda: services.topics.policies.creation(topic))
        if not creation.allowed:
            raise TopicNotFoundError(f"topic {name} does not exist, and is not made by its use")
        check_new(name)
        async with services.topics_made.held(topic):  # not while an admin's gets its settings
            await services.topics.check_place(topic, max(1, creation.partitions))
            await services.control.partitioned.create(topic, max(1, creation.partitions))
        count = await services.count_of(topic)
    return count


async def _leader(
    services: KafkaServices, topic: TopicName, nodes: Mapping[str, Node], questions: Questions
) -> Node:
    try:
        return await services.leader_soon(topic, nodes, questions)
    except MagnetarError:
        return NO_NODE


async def _partition(
    services: KafkaServices,
    index: int,
    topic: TopicName,
    topic_id: uuid.UUID,
    nodes: Mapping[str, Node],
    questions: Questions,
) -> PartitionMetadata:
    leader = await _leader(services, topic, nodes, questions)
    said = PartitionMetadata(index=index, leader_id=leader.node_id)
    replicated = services.replicated
    known = None if replicated is None else replicated.replicas_of(topic)
    if known is not None:
        _tell_replicas(said, known, leader)
        return said
    if leader is NO_NODE:
        said.error_code = ErrorCode.LEADER_NOT_AVAILABLE
        return said
    said.replicas = [leader.node_id]
    said.in_sync = [leader.node_id]
    said.leader_epoch = await _epoch(services, topic, LeaderOf(topic_id, leader.node_id), questions)
    if said.leader_epoch == NEVER_OPENED:
        await _tell_planned(services, topic, leader, said)
    return said


async def _tell_planned(
    services: KafkaServices, topic: TopicName, leader: Node, said: PartitionMetadata
) -> None:
    """Of a partition that nobody has used yet: the replicas that it gets when somebody does. Tools
    that keep topics as they are described would take one for a change of what was asked for."""
    replicated = services.replicated
    if replicated is None:
        return
    try:
        policy = (await services.topics.policies.of(topic)).log
        if policy.engine is not Engine.PARTITION:
            return
        factor = policy.replication_factor or services.defaults.replication_factor
        planned = await replicated.planned(topic, leader.node_id, factor)
    except MagnetarError:  # the store does not answer
        return
    if planned is not None:
        said.replicas, said.in_sync = list(planned.replicas), list(planned.in_sync)


async def _epoch(
    services: KafkaServices, topic: TopicName, leader: LeaderOf, questions: Questions
) -> int:
    """Of a log that has one owner. Where this broker does not have it open, that of its last
    opening, never a later one: clients that have seen an epoch take -1 for a partition without a
    leader, whoever is named as such, and would wait for one until somebody else opened the log."""
    try:
        return await questions.ask(lambda: services.last_epochs.of(topic, leader))
    except MagnetarError:  # the store does not answer
        return services.last_epochs.last(topic, leader)


def _tell_replicas(said: PartitionMetadata, known: KnownReplicas, leader: Node) -> None:
    """Of a log that brokers replicate."""
    said.replicas, said.in_sync = list(known.replicas), list(known.in_sync)
    said.leader_epoch = known.leader_epoch
    if leader is NO_NODE or known.leader == NO_NODE.node_id:
        said.leader_id, said.error_code = NO_NODE.node_id, ErrorCode.LEADER_NOT_AVAILABLE


async def describe_cluster(
    session: KafkaSession, head: RequestHead, request: DescribeClusterRequest
) -> DescribeClusterResponse:
    services = session.services
    nodes = await _nodes(session, Questions())
    answer = DescribeClusterResponse(
        cluster_id=services.control.name,
        controller_id=services.node.node_id,
        brokers=[DescribedBroker(*node.by(session.tls)) for node in nodes.values()],
    )
    if request.include_operations:
        answer.operations = on_cluster(session)
    return answer
