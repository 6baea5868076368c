"""ElectLeaders: partitions are led by their preferred replicas again at once, or, if nobody is left
who has all that was committed, by a replica that lives.

Owns what each partition is answered. On ledgers there is nothing to elect: whoever owns the topic
leads it.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from typing import Final

from magnetar.cluster.topic_name import DEFAULT_NAMESPACE, TopicName
from magnetar.model.errors import MagnetarError
from magnetar.protocols.kafka.names import kafka_name
from magnetar.protocols.kafka.services import KafkaServices, KnownReplicas
from magnetar.protocols.kafka.session import KafkaSession
from magnetar.wire.kafka.apis import RequestHead
from magnetar.wire.kafka.errors import ErrorCode, error_code
from magnetar.wire.kafka.partition_messages import (
    ElectedPartition,
    ElectedTopic,
    ElectLeadersRequest,
    ElectLeadersResponse,
)

PREFERRED, UNCLEAN = 0, 1
NOBODY: Final = -1
ELECTIONS_AT_ONCE: Final = 64


async def elect_leaders(
    session: KafkaSession, head: RequestHead, request: ElectLeadersRequest
) -> ElectLeadersResponse:
    if request.kind not in (PREFERRED, UNCLEAN):
        return ElectLeadersResponse(error_code=ErrorCode.INVALID_REQUEST)
    services, unclean = session.services, request.kind == UNCLEAN
    if request.topics is None:
        asked = await _all_partitions(services)
    else:
        asked = [(topic.name, each) for topic in request.topics for each in topic.partitions]
    turns = session.turns()
    said: defaultdict[str, list[ElectedPartition]] = defaultdict(list)
    for start in range(0, len(asked), ELECTIONS_AT_ONCE):
        some = asked[start : start + ELECTIONS_AT_ONCE]
        await turns.next(len(some))
        found = await asyncio.gather(*(_elect(services, *each, unclean) for each in some))
        for (name, _), each in zip(some, found, strict=True):
            # As Kafka has it: of all partitions those are told that have another leader, or none.
            if request.topics is not None or each.error_code != ErrorCode.ELECTION_NOT_NEEDED:
                said[name].append(each)
    return ElectLeadersResponse(topics=[ElectedTopic(*each) for each in said.items()])


async def _all_partitions(services: KafkaServices) -> list[tuple[str, int]]:
    """Of the default namespace, as Metadata lists it. Raises ``MetadataError``."""
    if services.replicated is None:
        return []
    found = []
    for topic in await services.topics.names(DEFAULT_NAMESPACE):
        if services.replicated.replicas_of(topic) is not None:
            found.append((kafka_name(topic), max(0, topic.partition)))
    return found


async def _elect(services: KafkaServices, name: str, index: int, unclean: bool) -> ElectedPartition:
    said = ElectedPartition(index, ErrorCode.ELECTION_NOT_NEEDED)
    try:
        if not await services.has(name, index):
            said.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            said.error_message = f"there is no partition {index} of topic {name}"
            return said
        topic = await services.name_of(name, index)
        before = _replicas(services, topic)
        if before is not None and _is_due(before, unclean):
            assert services.replicated is not None, "it has replicas"
            after = await services.replicated.elect(topic, unclean)
            said.error_code, said.error_message = _outcome(after, unclean)
    except MagnetarError as error:
        said.error_code, said.error_message = error_code(error), str(error)
    return said


def _replicas(services: KafkaServices, topic: TopicName) -> KnownReplicas | None:
    return None if services.replicated is None else services.replicated.replicas_of(topic)


def _is_due(found: KnownReplicas, unclean: bool) -> bool:
    return found.leader == NOBODY if unclean else found.leader != found.replicas[0]


def _outcome(after: KnownReplicas | None, unclean: bool) -> tuple[ErrorCode, str | None]:
    if after is None:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "it was deleted"
    if not _is_due(after, unclean):
        return ErrorCode.NONE, None
    if unclean:
        return ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE, f"none of {list(after.replicas)} lives"
    first = after.replicas[0]
    return (
        ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
        f"broker {first} is not there, is not in sync ({list(after.in_sync)} are), or drains",
    )
