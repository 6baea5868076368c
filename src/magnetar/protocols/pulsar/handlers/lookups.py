"""LOOKUP and PARTITIONED_METADATA."""

from __future__ import annotations

from typing import Final

from magnetar.cluster.ownership import At
from magnetar.cluster.topic_name import TopicName, parse_topic
from magnetar.model.errors import NotAllowedError, ServiceNotReadyError
from magnetar.protocols.pulsar.session import Session
from magnetar.wire.pulsar.pulsar_pb2 import (
    BaseCommand,
    CommandLookupTopicResponse,
    CommandPartitionedTopicMetadataResponse,
)

COORDINATORS: Final = TopicName("pulsar", "system", "transaction_coordinator_assign", -1)
"""Clients with transactions first look for the coordinators, as partitions of this topic."""


def _check_no_coordinator(name: TopicName) -> None:
    """Refuse at the first question, in words. Java's client never ends a start whose lookup works
    and whose coordinator then refuses."""
    if name.partitioned == COORDINATORS:
        raise NotAllowedError(
            "transactions are not served here; make the client without (enableTransaction(false))"
        )


async def lookup(session: Session, command: BaseCommand) -> None:
    """Where a topic is served. It need not exist; its namespace must."""
    request, services = command.lookupTopic, session.services
    name, listener = parse_topic(request.topic), request.advertised_listener_name
    _check_no_coordinator(name)
    if listener:
        # Clients tell this case from others, which they retry, by these very words.
        raise ServiceNotReadyError(f"the broker do not have {listener} listener")
    await services.control.namespaces.check(name)
    ownership = services.control.ownership
    owner = await ownership.locate_reachable(name, request.authoritative, session.request_parked)
    answer = BaseCommand(type=BaseCommand.LOOKUP_RESPONSE)
    reply = answer.lookupTopicResponse
    reply.request_id = request.request_id
    # Its owner is to be connected to; who is to become it is asked again, and takes it then.
    candidate = isinstance(owner, At) and owner.candidate
    kinds = CommandLookupTopicResponse
    reply.response = kinds.Redirect if candidate else kinds.Connect
    here = services.service_url
    reply.brokerServiceUrl = owner.service_url if isinstance(owner, At) else here
    tls_url = await services.tls_url(reply.brokerServiceUrl)
    if tls_url:
        reply.brokerServiceUrlTls = tls_url
    reply.authoritative = True
    reply.proxy_through_service_url = False
    session.send_command(answer)


async def partitioned_metadata(session: Session, command: BaseCommand) -> None:
    request = command.partitionMetadata
    name, create = parse_topic(request.topic), request.metadata_auto_creation_enabled
    _check_no_coordinator(name)
    count = await session.services.topics.partitions(name, create)
    answer = BaseCommand(type=BaseCommand.PARTITIONED_METADATA_RESPONSE)
    reply = answer.partitionMetadataResponse
    reply.request_id = request.request_id
    reply.response = CommandPartitionedTopicMetadataResponse.Success
    reply.partitions = count
    session.send_command(answer)
