"""Topics through Kafka's admin requests: create, delete, more partitions.

What can be said of a topic when it is made is what can be said later (``topic_settings``), and, of
logs on partitions, ``min.insync.replicas``, ``unclean.leader.election.enable`` and
``magnetar.engine``: what keeps it, ``ledger`` or ``partition`` (``engine_choice``: where it is not
said). On ledgers the number of copies is their own (``ledger.write_quorum``): a replication factor
is taken and has no effect, since clients must send one.
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final

from magnetar.cluster.policies.policies import ReplicationPolicy
from magnetar.cluster.policies.topic_policies import PolicyChanges
from magnetar.cluster.topic_name import DEFAULT_NAMESPACE, PARTITIONS_MAX, TopicName
from magnetar.model.errors import (
    DamagedTopicError,
    InvalidPolicyError,
    MagnetarError,
    NotAllowedError,
    ReplicationFactorError,
    ServiceNotReadyError,
    TopicNotFoundError,
    UnknownTopicIdError,
)
from magnetar.protocols.kafka.handlers.configs import (
    FROM_TOPIC,
    checked_changes,
    configs_of_topic,
    policy_changes,
)
from magnetar.protocols.kafka.handlers.engine_choice import (
    AS_CONFIGURED,
    EngineChoice,
    choose,
    copies_of,
    replicas_of,
    tell,
)
from magnetar.protocols.kafka.lines import PeerLine
from magnetar.protocols.kafka.names import check_new, topic_of
from magnetar.protocols.kafka.peers import told_one
from magnetar.protocols.kafka.services import NO_NODE, KafkaServices, ReplicatedPartitions
from magnetar.protocols.kafka.session import KafkaSession
from magnetar.protocols.kafka.topic_settings import CLEANUP, ENGINE, MIN_IN_SYNC, UNCLEAN
from magnetar.topics.partitioned_deletion import delete_partitioned
from magnetar.wire.kafka.admin_messages import (
    CreatedConfig,
    CreatedTopic,
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeletedTopic,
    DeleteTopic,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    GrownTopic,
    GrowTopic,
    NewTopic,
    PartitionsAssignment,
    ReplicaAssignment,
)
from magnetar.wire.kafka.apis import ApiKey, RequestHead
from magnetar.wire.kafka.errors import ErrorCode, error_code
from magnetar.wire.kafka.schema import NO_UUID

EXISTS: Final = "it exists already"
TWICE: Final = "the topic is there twice in one request"
PLACED: Final = "owners of partitions are chosen by the cluster; give a number only"
NOT_NUMBERED: Final = "partitions are not numbered from 0 on without gaps"
BOTH: Final = "a topic is deleted by its name or by its id: give one of the two"
NEITHER: Final = "a topic is deleted by its name or by its id: give one of them"
BY_NAMES: Final = 5
"""The last version of DeleteTopics that has names alone."""
BY_IDS: Final = 6
"""The first that has ids."""


# -- create -----------------------------------------------------------------------------------


async def create_topics(
    session: KafkaSession, head: RequestHead, request: CreateTopicsRequest
) -> CreateTopicsResponse:
    answer, turns = CreateTopicsResponse(), session.turns()
    # Clients take an answer with one topic twice for a broken one: each has one answer.
    times = Counter(topic.name for topic in request.topics)
    for topic in {topic.name: topic for topic in request.topics}.values():
        await turns.next()
        said = CreatedTopic(topic.name)
        answer.topics.append(said)
        try:
            if times[topic.name] > 1:
                said.error_code = ErrorCode.INVALID_REQUEST
                said.error_message = TWICE
                continue
            await _create_one(session.services, topic, request.validate_only, said)
        except MagnetarError as error:
            said.error_code, said.error_message = error_code(error), str(error)
    return answer


async def _create_one(
    services: KafkaServices, new: NewTopic, validate_only: bool, said: CreatedTopic
) -> None:
    topic = check_new(new.name)
    # One at a time: of many who make it here at once one does all the work.
    async with services.topics_made.held(topic):
        # Before all else, as in Kafka: who wants the topic to be there asks for it again and again,
        # also when what was asked for is not possible any more (a broker is away).
        if await services.count_of(topic) or await services.topics.exists(topic):
            said.error_code, said.error_message = ErrorCode.TOPIC_ALREADY_EXISTS, EXISTS
            return
        await _create(services, topic, new, validate_only, said)


async def _create(
    services: KafkaServices,
    topic: TopicName,
    new: NewTopic,
    validate_only: bool,
    said: CreatedTopic,
) -> None:
    count, factor = new.partitions, new.replication_factor
    if new.assignments:
        if count != -1 or factor != -1:
            said.error_code = ErrorCode.INVALID_REQUEST
            said.error_message = "brokers of partitions and numbers of them: give one of the two"
            return
        placed = sorted(new.assignments, key=lambda each: each.partition)
        numbered = all(each.partition == index for index, each in enumerate(placed))
        if not numbered or not await _no_choice(services, placed):
            said.error_code = ErrorCode.INVALID_REPLICA_ASSIGNMENT
            said.error_message = PLACED if numbered else NOT_NUMBERED
            return
        count, factor = len(placed), 1
    elif count == -1:
        count = max(1, (await services.topics.policies.creation(topic)).partitions)
    if not 1 <= count <= PARTITIONS_MAX:  # before anything of it is stored
        said.error_code, said.error_message = ErrorCode.INVALID_PARTITIONS, _not_possible(count)
        return
    if factor < 1 and factor != -1:
        raise ReplicationFactorError(f"{factor} replicas; at least 1 is possible, or -1: as usual")
    await services.topics.check_place(topic, count)
    configs = {config.name: config.value for config in new.configs}
    choice = await choose(services, topic, configs.pop(ENGINE, None), configs.get(CLEANUP))
    replication = await _replication(services, factor, configs, choice)
    changes = checked_changes(services, configs, choice.on_ledgers)
    if not validate_only:
        wanted = policy_changes(changes)
        if choice.is_stored:  # before there is a log: what it is made on counts for good
            wanted["engine"] = lambda _: choice.engine.value
        if replication is not None:
            wanted["partition_replication"] = lambda _: replication
        if not await _is_made(services, topic, count, wanted):  # by another broker
            said.error_code, said.error_message = ErrorCode.TOPIC_ALREADY_EXISTS, EXISTS
            return
    factor = replicas_of(services.defaults, choice, replication)
    said.partitions, said.replication_factor = count, factor
    if validate_only:
        said.configs = [
            CreatedConfig(ENGINE, choice.engine.value, read_only=True, source=FROM_TOPIC)
        ]
        return
    if choice.for_compaction:
        tell(services.defaults, topic, choice, factor)
    said.configs = await _configs(services, topic)
    said.topic_id = await services.topic_ids.of(topic)


async def _is_made(
    services: KafkaServices, topic: TopicName, count: int, wanted: PolicyChanges
) -> bool:
    """With its settings, or not at all: who asks again after a failure would hear that it exists,
    and have a topic without them; and of two who make it at two brokers one would leave its own to
    the other's topic. False: it is there."""
    policies, partitioned = services.control.policies, services.control.partitioned
    if not wanted:
        return await partitioned.create(topic, count)
    return await partitioned.create(topic, count, partial(policies.make_with, topic, wanted))


def _not_possible(count: int) -> str:
    return f"{count} partitions; between 1 and {PARTITIONS_MAX} are possible"


async def _configs(services: KafkaServices, topic: TopicName) -> list[CreatedConfig]:
    """What holds for it now, as DescribeConfigs says it."""
    found = await configs_of_topic(services, topic)
    return [CreatedConfig(each.name, each.value, each.read_only, each.source) for each in found]


async def _no_choice(
    services: KafkaServices, placed: Sequence[ReplicaAssignment | PartitionsAssignment]
) -> bool:
    """Whether partitions are to be where the cluster puts them in any case: on the only broker that
    there is. Raises ``MetadataError``."""
    nodes = {node.node_id for node in (await services.nodes()).values()} | {services.node.node_id}
    return len(nodes) == 1 and all(each.brokers == [*nodes] for each in placed)


async def _replication(
    services: KafkaServices, factor: int, configs: dict[str, str | None], choice: EngineChoice
) -> ReplicationPolicy | None:
    """What is said of replicas, taken out of ``configs``. It counts for partitions; ledgers have
    their own. Raises ``ReplicationFactorError``, ``InvalidPolicyError``, ``MetadataError``."""
    if services.replicated is None or choice.on_ledgers:
        if factor > 1 and not choice.on_ledgers:
            raise ReplicationFactorError(
                f"{factor} replicas are asked for, and this broker replicates with no others"
            )
        # What is said of the in-sync set is checked with the other settings: it is not dropped.
        return None
    least, unclean = configs.pop(MIN_IN_SYNC, None), configs.pop(UNCLEAN, None)
    brokers = await services.replicated.brokers()
    copies = AS_CONFIGURED if factor > 0 else copies_of(services.defaults, choice, brokers)
    if factor < 1 and least is None and unclean is None and copies is AS_CONFIGURED:
        return None
    if unclean not in (None, "true", "false"):
        raise InvalidPolicyError(f"{UNCLEAN} = {unclean!r}: true or false is expected")
    if least is not None and not (least.isascii() and least.isdigit() and int(least)):
        raise InvalidPolicyError(f"{MIN_IN_SYNC} = {least!r}: a whole number from 1 on is expected")
    in_sync = copies.in_sync_least if least is None else int(least)
    if factor > brokers:
        await _check_away(services.replicated, factor, brokers, in_sync)
    said = {
        "replicationFactor": max(copies.replicas, factor),
        "minInSyncReplicas": in_sync,
        "uncleanLeaderElection": unclean == "true",
    }
    return ReplicationPolicy.decode(said)


async def _check_away(
    replicated: ReplicatedPartitions, factor: int, brokers: int, in_sync: int
) -> None:
    """Fewer ``brokers`` are there than replicas are asked for: those that are away get the rest, as
    with Kafka, if it can be written to without them. Raises ``ReplicationFactorError``,
    ``MetadataError``."""
    away = await replicated.brokers_away()
    if factor > brokers + away or min(in_sync, factor) > brokers:
        raise ReplicationFactorError(
            f"{factor} replicas are asked for, {in_sync or 1} of them in sync, and {brokers} "
            f"brokers are there that can have them, {away} are away"
        )


async def create_partitions(
    session: KafkaSession, head: RequestHead, request: CreatePartitionsRequest
) -> CreatePartitionsResponse:
    answer, turns = CreatePartitionsResponse(), session.turns()
    times = Counter(topic.name for topic in request.topics)
    for topic in {topic.name: topic for topic in request.topics}.values():
        await turns.next()
        said = GrownTopic(topic.name)
        answer.topics.append(said)
        if times[topic.name] > 1:
            said.error_code, said.error_message = ErrorCode.INVALID_REQUEST, TWICE
            continue
        try:
            await _grow(session.services, topic, request.validate_only, said)
        except NotAllowedError as error:
            said.error_code, said.error_message = ErrorCode.INVALID_PARTITIONS, str(error)
        except MagnetarError as error:
            said.error_code, said.error_message = error_code(error), str(error)
    return answer


async def _grow(
    services: KafkaServices, asked: GrowTopic, validate_only: bool, said: GrownTopic
) -> None:
    topic = topic_of(asked.name)
    count = await services.count_of(topic)
    if not count:
        if await services.topics.exists(topic):
            raise NotAllowedError(f"{asked.name} has no partitions, and cannot get any")
        raise TopicNotFoundError(f"topic {asked.name} does not exist")
    if asked.count <= count:
        said.error_code = ErrorCode.INVALID_PARTITIONS
        said.error_message = f"{asked.name} has {count} partitions; only more are possible"
    elif asked.count > PARTITIONS_MAX:  # also of what is to be looked at only
        said.error_code = ErrorCode.INVALID_PARTITIONS
        said.error_message = _not_possible(asked.count)
    elif asked.assignments and len(asked.assignments) != asked.count - count:
        said.error_code = ErrorCode.INVALID_REPLICA_ASSIGNMENT
        said.error_message = (
            f"{asked.count - count} partitions are new, brokers are given for "
            f"{len(asked.assignments)}"
        )
    elif asked.assignments and not await _no_choice(services, asked.assignments):
        said.error_code = ErrorCode.INVALID_REPLICA_ASSIGNMENT
        said.error_message = PLACED
    else:
        await services.topics.check_place(topic, asked.count - count)
        if not validate_only:
            await services.control.partitioned.grow(topic, asked.count)


# -- delete -----------------------------------------------------------------------------------


async def delete_topics(
    session: KafkaSession, head: RequestHead, request: DeleteTopicsRequest
) -> DeleteTopicsResponse:
    answer, turns = DeleteTopicsResponse(topics=refused_topics(head, request)), session.turns()
    names = await names_by_id(session.services, request)
    # A broker asks the one that is to own what nobody owns. Would that one choose again, it might
    # choose the first, which would ask it back, for ever.
    chosen = head.client_id == PeerLine.client_id
    asked = [(name_asked(each, names), each.topic_id) for each in request.topics]
    asked += [(name, NO_UUID) for name in request.names]
    meant: dict[TopicName, list[DeletedTopic]] = {}
    for name, topic_id in asked:
        await turns.next()
        said = DeletedTopic(name, topic_id)
        if name is None:
            said.error_code = ErrorCode.UNKNOWN_TOPIC_ID
            answer.topics.append(said)
            continue
        try:
            meant.setdefault(topic_of(name), []).append(said)
        except MagnetarError as error:
            said.error_code, said.error_message = error_code(error), str(error)
            answer.topics.append(said)
    for topic, told in meant.items():
        await turns.next()
        if len(told) > 1:
            answer.topics += _named_twice(told)
            continue
        (said,) = told
        answer.topics.append(said)
        try:
            await _delete(session.services, topic, said.topic_id, chosen)
        except MagnetarError as error:
            said.error_code, said.error_message = error_code(error), str(error)
    return answer


def refused_topics(head: RequestHead, request: DeleteTopicsRequest) -> list[DeletedTopic]:
    """Take out of the request what is refused whatever there is, as Kafka does: what has a name and
    an id, or neither, and what is there twice, which has one answer. A broker says both to the
    owner of a topic."""
    refused, kept = list[DeletedTopic](), list[DeleteTopic]()
    by_broker = head.client_id == PeerLine.client_id
    for topic in request.topics:
        has_name, has_id = topic.name is not None, topic.topic_id != NO_UUID
        if has_name != has_id or (has_name and by_broker):
            kept.append(topic)
            continue
        why = BOTH if has_name else NEITHER
        refused.append(DeletedTopic(topic.name, topic.topic_id, ErrorCode.INVALID_REQUEST, why))
    times = Counter((topic.name, topic.topic_id) for topic in kept)
    times.update((name, NO_UUID) for name in request.names)
    request.topics = [topic for topic in kept if times[topic.name, topic.topic_id] == 1]
    request.names = [name for name in request.names if times[name, NO_UUID] == 1]
    refused += [
        DeletedTopic(name, topic_id, ErrorCode.INVALID_REQUEST, TWICE)
        for (name, topic_id), count in times.items()
        if count > 1
    ]
    return refused


def _named_twice(told: Sequence[DeletedTopic]) -> list[DeletedTopic]:
    """Of a topic that is there by its name and by its id, or by two names: it stays. Each name has
    one answer."""
    topic_id = next((each.topic_id for each in told if each.topic_id != NO_UUID), NO_UUID)
    names = dict.fromkeys(each.name for each in told)
    return [DeletedTopic(name, topic_id, ErrorCode.INVALID_REQUEST, TWICE) for name in names]


async def names_by_id(
    services: KafkaServices, request: DeleteTopicsRequest
) -> dict[uuid.UUID, str]:
    """The names of those topics that are to be deleted by their ids and are there. Raises
    ``MetadataError``."""
    return await services.topic_ids.names(
        topic.topic_id for topic in request.topics if topic.name is None
    )


def name_asked(topic: DeleteTopic, names: Mapping[uuid.UUID, str]) -> str | None:
    """``names``: as ``names_by_id`` found them. None: no topic has the id."""
    return names.get(topic.topic_id) if topic.name is None else topic.name


async def _delete(
    services: KafkaServices, topic: TopicName, topic_id: uuid.UUID, chosen: bool
) -> None:
    """``chosen``: by another broker, to own it if nobody does. Raises ``TopicNotFoundError``;
    ``UnknownTopicIdError`` if another has the name than that with the id, where one is given; and
    what a partition's owner refuses with."""
    await services.control.namespaces.check(topic)
    if await _has_partitions(services, topic):

        async def delete(part: TopicName, found_id: uuid.UUID | None) -> None:
            await _delete_one(services, part, found_id or NO_UUID, chosen)

        meant = None if topic_id == NO_UUID else topic_id
        await delete_partitioned(services.control, services.topics, topic, delete, meant)
    else:
        await _delete_one(services, topic, topic_id, chosen)


async def _has_partitions(services: KafkaServices, topic: TopicName) -> bool:
    """True as well if it cannot be read how many: what there is of it can be deleted."""
    try:
        return await services.count_of(topic) > 0
    except DamagedTopicError:
        return True


async def _delete_one(
    services: KafkaServices, topic: TopicName, topic_id: uuid.UUID, chosen: bool
) -> None:
    """A topic without partitions, or one partition, which has the name of a topic to its owner, and
    the id of the topic that it is of. The owner compares that when nothing can be made under the
    name any more: the topic may have been deleted, and made anew, while it was asked."""
    leader = await services.leader_of(topic, await services.nodes(), chosen)
    if leader == services.node:
        confirm = partial(_confirm, services, topic, topic_id) if topic_id != NO_UUID else None
        await services.topics.delete(topic, force=True, confirm=confirm)
        return
    if leader is NO_NODE:
        raise ServiceNotReadyError(f"the owner of {topic} does not speak Kafka's protocol")
    name = topic.local if topic.namespace == DEFAULT_NAMESPACE else str(topic)
    version = BY_NAMES if topic_id == NO_UUID else BY_IDS
    request = DeleteTopicsRequest([DeleteTopic(name, topic_id)], [name])  # what the version has
    answer = await services.ask(leader, ApiKey.DELETE_TOPICS, version, request)
    said = told_one(answer.topics)
    error = said.error_code
    if error == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        raise TopicNotFoundError(f"topic {topic} does not exist")
    if error == ErrorCode.UNKNOWN_TOPIC_ID:
        raise _other_id(topic, topic_id)
    if error:
        raise ServiceNotReadyError(f"{topic} is not deleted: {said.error_message}")


async def _confirm(services: KafkaServices, topic: TopicName, topic_id: uuid.UUID) -> None:
    # What is in memory may be of before a partition was made by an owner that was here until now.
    await services.control.partitioned.sync()
    if await services.topic_ids.of(topic) != topic_id:
        raise _other_id(topic, topic_id)


def _other_id(topic: TopicName, topic_id: uuid.UUID) -> UnknownTopicIdError:
    return UnknownTopicIdError(f"{topic} has another id than {topic_id}")
