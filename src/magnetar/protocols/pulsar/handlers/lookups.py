"""LOOKUP, PARTITIONED_METADATA, GET_TOPICS_OF_NAMESPACE."""

from __future__ import annotations

from magnetar.cluster.topic_name import parse_namespace, parse_topic
from magnetar.protocols.pulsar.lookup import find_partitions, find_service_url
from magnetar.protocols.pulsar.session import Session
from magnetar.wire.pulsar.pulsar_pb2 import (
    BaseCommand,
    CommandGetTopicsOfNamespace,
    CommandLookupTopicResponse,
    CommandPartitionedTopicMetadataResponse,
)


async def lookup(session: Session, command: BaseCommand) -> None:
    request = command.lookupTopic
    url = await find_service_url(
        session.services, parse_topic(request.topic), request.advertised_listener_name
    )
    answer = BaseCommand(type=BaseCommand.LOOKUP_RESPONSE)
    reply = answer.lookupTopicResponse
    reply.request_id = request.request_id
    reply.response = CommandLookupTopicResponse.Connect
    reply.brokerServiceUrl = url
    reply.authoritative = True
    session.send_command(answer)


async def partitioned_metadata(session: Session, command: BaseCommand) -> None:
    request = command.partitionMetadata
    count = await find_partitions(
        session.services, parse_topic(request.topic), request.metadata_auto_creation_enabled
    )
    answer = BaseCommand(type=BaseCommand.PARTITIONED_METADATA_RESPONSE)
    reply = answer.partitionMetadataResponse
    reply.request_id = request.request_id
    reply.response = CommandPartitionedTopicMetadataResponse.Success
    reply.partitions = count
    session.send_command(answer)


async def topics_of_namespace(session: Session, command: BaseCommand) -> None:
    """All topics; clients filter by their pattern themselves (``filtered`` stays false)."""
    request = command.getTopicsOfNamespace
    services = session.services
    namespace = parse_namespace(request.namespace)
    await services.namespaces.check_namespace(namespace)
    answer = BaseCommand(type=BaseCommand.GET_TOPICS_OF_NAMESPACE_RESPONSE)
    reply = answer.getTopicsOfNamespaceResponse
    reply.request_id = request.request_id
    if request.mode != CommandGetTopicsOfNamespace.NON_PERSISTENT:
        reply.topics.extend(str(name) for name in await services.topics.names(namespace))
    session.send_command(answer)
