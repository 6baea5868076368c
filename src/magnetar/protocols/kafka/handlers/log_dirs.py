"""Where this broker's partitions lie: DescribeLogDirs, AlterReplicaLogDirs.

A broker has two places. Its partitions' directory has the replicas on partitions: their sizes and
the file system's. ``ledgers`` stands for the bookies: of each topic on ledgers that this broker
owns it has what one copy takes; whose disks have it, and how full those are, is not this broker's
to know. A partition that was never used is where its first record is to lie, with nothing yet.
What new topics are made in comes first.

Of all topics those of the default namespace are listed, as in Metadata, and of the replicas all;
others by their names. Nothing is opened for it.

No replica goes from one place to the other: engines are chosen for good.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from magnetar.cluster.topic_name import DEFAULT_NAMESPACE, TopicName
from magnetar.log.policy import Engine
from magnetar.model.errors import MagnetarError, TopicNotFoundError
from magnetar.protocols.kafka.names import kafka_name
from magnetar.protocols.kafka.services import KafkaServices, Node, PartitionDirectory
from magnetar.protocols.kafka.session import KafkaSession
from magnetar.wire.kafka.apis import RequestHead
from magnetar.wire.kafka.errors import ErrorCode
from magnetar.wire.kafka.log_dir_messages import (
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    LogDir,
    MovedPartition,
    MovedTopic,
    StoredPartition,
    StoredTopic,
)
from magnetar.wire.kafka.partition_messages import PartitionsOfTopic

LEDGERS: Final = "ledgers"
LOOKUPS_AT_ONCE: Final = 64
Wanted = set[tuple[str, int]]
"""``(Kafka's name, partition)``."""


class Size(NamedTuple):
    engine: Engine
    byte_count: int


Sizes = Mapping[TopicName, Size]
"""Of this broker's topics on ledgers, and of its partitions that were never used, on any engine."""
Stored = dict[str, dict[int, StoredPartition]]
"""Kafka's name -> partition -> what there is of it."""


# -- what is where --------------------------------------------------------------------------------


async def describe_log_dirs(
    session: KafkaSession, head: RequestHead, request: DescribeLogDirsRequest
) -> DescribeLogDirsResponse:
    services = session.services
    wanted = None if request.topics is None else _named(request.topics)
    places = await (_all(services) if wanted is None else _existing(services, wanted))
    sizes = await _sizes(session, places)
    found = [LogDir(path=LEDGERS, topics=_topics(_stored(sizes, Engine.LEDGER)))]
    if services.directory is not None:
        found.append(await _on_partitions(services.directory, wanted, sizes))
    if services.broker.engine == Engine.PARTITION.value:
        found.reverse()
    return DescribeLogDirsResponse(results=found)


def _named(topics: Iterable[PartitionsOfTopic]) -> Wanted:
    return {(topic.name, index) for topic in topics for index in topic.partitions}


async def _on_partitions(
    directory: PartitionDirectory, wanted: Wanted | None, sizes: Sizes
) -> LogDir:
    found = _stored(sizes, Engine.PARTITION)
    for each in directory.kept():
        if wanted is None or (each.topic, each.number) in wanted:
            stored = StoredPartition(each.number, each.byte_count, each.lag)
            found.setdefault(each.topic, {})[each.number] = stored
    said = LogDir(path=directory.path, topics=_topics(found))
    try:
        space = await directory.space()
        said.total_bytes, said.usable_bytes = space.total_bytes, space.free_bytes
    except OSError:
        said.error_code = ErrorCode.KAFKA_STORAGE_ERROR
    return said


def _stored(sizes: Sizes, engine: Engine) -> Stored:
    found: Stored = {}
    for topic, size in sizes.items():
        if size.engine is engine:
            index = max(0, topic.partition)
            stored = StoredPartition(index, size.byte_count)
            found.setdefault(kafka_name(topic), {})[index] = stored
    return found


def _topics(found: Stored) -> list[StoredTopic]:
    return [StoredTopic(name, list(parts.values())) for name, parts in found.items()]


async def _all(services: KafkaServices) -> list[TopicName]:
    return await services.topics.names(DEFAULT_NAMESPACE)


async def _existing(services: KafkaServices, wanted: Wanted) -> list[TopicName]:
    """Those that there are not are left out, as in Kafka."""
    found = []
    for name, index in sorted(wanted):
        try:
            found.append(await services.name_of(name, index))
        except MagnetarError:
            continue
    return found


async def _sizes(session: KafkaSession, places: Sequence[TopicName]) -> Sizes:
    services, turns = session.services, session.turns()
    nodes = await services.nodes()
    found = {}
    for start in range(0, len(places), LOOKUPS_AT_ONCE):
        some = places[start : start + LOOKUPS_AT_ONCE]
        await turns.next(len(some))
        sizes = await asyncio.gather(*(_size(services, nodes, each) for each in some))
        found.update({topic: size for topic, size in zip(some, sizes, strict=True) if size})
    return found


async def _size(
    services: KafkaServices, nodes: Mapping[str, Node], topic: TopicName
) -> Size | None:
    """None: another broker's, or among the replicas of the partitions' directory."""
    try:
        if await services.leader_of(topic, nodes) != services.node:
            return None
        byte_count = await services.topics.ledger_bytes(topic)
        if byte_count is not None:
            return Size(Engine.LEDGER, byte_count)
        if await services.topics.exists(topic) or not await services.count_of(topic.partitioned):
            return None
        return Size((await services.topics.policies.of(topic)).log.engine, 0)
    except MagnetarError:
        return None


# -- moves ----------------------------------------------------------------------------------------


async def alter_replica_log_dirs(
    session: KafkaSession, head: RequestHead, request: AlterReplicaLogDirsRequest
) -> AlterReplicaLogDirsResponse:
    services = session.services
    nodes, directory = await services.nodes(), services.directory
    kept = {(each.topic, each.number) for each in ([] if directory is None else directory.kept())}
    answer, turns = AlterReplicaLogDirsResponse(), session.turns()
    for where in request.dirs:
        for topic in where.topics:
            said = MovedTopic(topic.name)
            answer.results.append(said)
            for index in topic.partitions:
                await turns.next()
                error = await _moved(services, nodes, where.path, (topic.name, index), kept)
                said.partitions.append(MovedPartition(index, error))
    return answer


async def _moved(
    services: KafkaServices,
    nodes: Mapping[str, Node],
    path: str,
    place: tuple[str, int],
    kept: Wanted,
) -> ErrorCode:
    """To where it is: that is done. Elsewhere it cannot go. ``kept``: in the directory."""
    directory = services.directory
    known = [LEDGERS, *([] if directory is None else [directory.path])]
    if path not in known:
        return ErrorCode.LOG_DIR_NOT_FOUND
    if directory is not None and place in kept:
        return ErrorCode.NONE if path == directory.path else ErrorCode.POLICY_VIOLATION
    try:
        topic = await services.name_of(*place)
    except TopicNotFoundError:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    size = await _size(services, nodes, topic)
    if size is None:
        return ErrorCode.REPLICA_NOT_AVAILABLE
    on_ledgers = size.engine is Engine.LEDGER
    return ErrorCode.NONE if on_ledgers == (path == LEDGERS) else ErrorCode.POLICY_VIOLATION
