"""Topics through Kafka's admin requests: create, delete, more partitions, configuration.

What Kafka's names of settings mean here:

==================  ===========================================================================
``retention.ms``    the topic's retention by time, in whole minutes (rounded up); -1: no limit
``retention.bytes`` the topic's retention by size, in whole MiB (rounded up); -1: no limit
``min.insync.replicas`` when a topic is made: of logs on partitions
``magnetar.engine`` when a topic is made: what keeps it, ``ledger`` or ``partition``; not Kafka's
==================  ===========================================================================

Others are described, where clients ask for them, as what holds here, and cannot be changed:
``INVALID_CONFIG`` says so. The number of replicas is the ledgers' own (``ledger.write_quorum``): a
replication factor is taken and has no effect, since clients must send one.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final

from magnetar.cluster.policies.policies import (
    MEGABYTES_MAX,
    ReplicationPolicy,
    RetentionPolicy,
    decode_engine,
)
from magnetar.cluster.policies.policy_values import NUMBER_MAX
from magnetar.cluster.topic_name import DEFAULT_NAMESPACE, TopicName
from magnetar.log.policy import Engine
from magnetar.model.errors import (
    InvalidPolicyError,
    MagnetarError,
    NotAllowedError,
    ReplicationFactorError,
    ServiceNotReadyError,
    TopicNotFoundError,
)
from magnetar.protocols.kafka.names import check_new, topic_of
from magnetar.protocols.kafka.services import NO_NODE, KafkaServices
from magnetar.protocols.kafka.session import KafkaSession
from magnetar.wire.kafka.admin_messages import (
    AlterConfigsRequest,
    AlterConfigsResponse,
    AlteredResource,
    CreatedTopic,
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeletedTopic,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
    DescribedConfig,
    DescribedResource,
    GrownTopic,
    GrowTopic,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
    NewTopic,
    PartitionsAssignment,
    ReplicaAssignment,
)
from magnetar.wire.kafka.apis import ApiKey, RequestHead
from magnetar.wire.kafka.errors import ErrorCode, error_code
from magnetar.wire.kafka.schema import NO_UUID

TOPIC: Final = 2
BROKER: Final = 4
SET, DELETE = 0, 1
MINUTE_MS: Final = 60_000
MEGABYTE: Final = 1 << 20
RETENTION_MS: Final = "retention.ms"
RETENTION_BYTES: Final = "retention.bytes"
NUMBER: Final = re.compile(r"-?[0-9]{1,19}")
LIMIT_MAX: Final = 2**63 - 1
"""Kafka's numbers have 64 bits."""
TWICE: Final = "the topic is there twice in one request"
PLACED: Final = "owners of partitions are chosen by the cluster; give a number only"
NOT_NUMBERED: Final = "partitions are not numbered from 0 on without gaps"
MIN_IN_SYNC: Final = "min.insync.replicas"
UNCLEAN: Final = "unclean.leader.election.enable"
ENGINE: Final = "magnetar.engine"
BY_NAMES: Final = 5
"""The last version of DeleteTopics that has names alone."""
FROM_TOPIC: Final = 1
FROM_BROKER: Final = 4
FROM_DEFAULT: Final = 5
BOOLEAN, STRING, INT, LONG, LIST = 1, 2, 3, 5, 7
FIXED: Final[Mapping[str, str]] = MappingProxyType(
    {
        "cleanup.policy": "delete",
        "compression.type": "producer",
        "message.timestamp.type": "CreateTime",
        "min.insync.replicas": "1",
        "unclean.leader.election.enable": "false",
    }
)

KINDS: Final[Mapping[str, int]] = MappingProxyType(
    {
        "cleanup.policy": LIST,
        "min.insync.replicas": INT,
        "unclean.leader.election.enable": BOOLEAN,
    }
)


# -- create -----------------------------------------------------------------------------------


async def create_topics(
    session: KafkaSession, head: RequestHead, request: CreateTopicsRequest
) -> CreateTopicsResponse:
    answer = CreateTopicsResponse()
    # Clients take an answer with one topic twice for a broken one: each has one answer.
    times = Counter(topic.name for topic in request.topics)
    for topic in {topic.name: topic for topic in request.topics}.values():
        said = CreatedTopic(topic.name)
        answer.topics.append(said)
        try:
            if times[topic.name] > 1:
                said.error_code = ErrorCode.INVALID_REQUEST
                said.error_message = TWICE
                continue
            await _create(session.services, topic, request.validate_only, said)
        except MagnetarError as error:
            said.error_code, said.error_message = error_code(error), str(error)
    return answer


async def _create(
    services: KafkaServices, new: NewTopic, validate_only: bool, said: CreatedTopic
) -> None:
    topic = check_new(new.name)
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
        count = max(1, services.broker.auto_create_partitions)
    if count < 1:
        said.error_code, said.error_message = ErrorCode.INVALID_PARTITIONS, f"{count} partitions"
        return
    configs = {config.name: config.value for config in new.configs}
    engine = configs.pop(ENGINE, None)
    if engine is not None:
        decode_engine(engine)
    on_ledgers = await _on_ledgers(services, topic, engine)
    replication = await _replication(services, factor, configs, on_ledgers)
    changes = _changes(configs)
    existing = await services.count_of(topic) or await services.topics.exists(topic)
    if not existing and not validate_only:
        if engine is not None:  # before there is a log: what it is made on counts for good
            await services.control.policies.set_topic(topic, "engine", engine)
        if replication is not None:
            value = replication.encode()
            await services.control.policies.set_topic(topic, "partition_replication", value)
        existing = not await services.control.partitioned.create(topic, count)
        if not existing and changes:
            await _set_retention(services, topic, changes)
    if existing:
        said.error_code, said.error_message = ErrorCode.TOPIC_ALREADY_EXISTS, "it exists already"
        return
    factor = 1 if replication is None else max(1, replication.replication_factor)
    said.partitions, said.replication_factor, said.configs = count, factor, []
    if not validate_only:
        said.topic_id = await services.topic_ids.of(topic)


async def _no_choice(
    services: KafkaServices, placed: Sequence[ReplicaAssignment | PartitionsAssignment]
) -> bool:
    """Whether partitions are to be where the cluster puts them in any case: on the only broker that
    there is. Raises ``MetadataError``."""
    nodes = {node.node_id for node in (await services.nodes()).values()} | {services.node.node_id}
    return len(nodes) == 1 and all(each.brokers == [*nodes] for each in placed)


async def _on_ledgers(services: KafkaServices, topic: TopicName, engine: str | None) -> bool:
    """Whether a topic that is made now is kept in ledgers. Raises ``MetadataError``."""
    if engine is not None:
        return engine == Engine.LEDGER.value
    return (await services.topics.policies.of(topic)).log.engine is Engine.LEDGER


async def _replication(
    services: KafkaServices, factor: int, configs: dict[str, str | None], on_ledgers: bool
) -> ReplicationPolicy | None:
    """What is said of replicas, taken out of ``configs``. It counts for partitions; ledgers have
    their own. Raises ``ReplicationFactorError``, ``InvalidPolicyError``, ``MetadataError``."""
    if services.replicated is None or on_ledgers:
        # What is said of the in-sync set is checked with the other settings: it is not dropped.
        return None
    least, unclean = configs.pop(MIN_IN_SYNC, None), configs.pop(UNCLEAN, None)
    if factor < 1 and least is None and unclean is None:
        return None
    if unclean not in (None, "true", "false"):
        raise InvalidPolicyError(f"{UNCLEAN} = {unclean!r}: true or false is expected")
    if least is not None and not (least.isascii() and least.isdigit() and int(least)):
        raise InvalidPolicyError(f"{MIN_IN_SYNC} = {least!r}: a whole number from 1 on is expected")
    brokers = await services.replicated.brokers()
    if factor > brokers:
        raise ReplicationFactorError(
            f"{factor} replicas are asked for, and {brokers} brokers are there that can have them"
        )
    said = {
        "replicationFactor": max(0, factor),
        "minInSyncReplicas": 0 if least is None else int(least),
        "uncleanLeaderElection": unclean == "true",
    }
    return ReplicationPolicy.decode(said)


async def create_partitions(
    session: KafkaSession, head: RequestHead, request: CreatePartitionsRequest
) -> CreatePartitionsResponse:
    answer = CreatePartitionsResponse()
    times = Counter(topic.name for topic in request.topics)
    for topic in {topic.name: topic for topic in request.topics}.values():
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
    elif asked.assignments and len(asked.assignments) != asked.count - count:
        said.error_code = ErrorCode.INVALID_REPLICA_ASSIGNMENT
        said.error_message = (
            f"{asked.count - count} partitions are new, brokers are given for "
            f"{len(asked.assignments)}"
        )
    elif asked.assignments and not await _no_choice(services, asked.assignments):
        said.error_code = ErrorCode.INVALID_REPLICA_ASSIGNMENT
        said.error_message = PLACED
    elif not validate_only:
        await services.control.partitioned.grow(topic, asked.count)


# -- delete -----------------------------------------------------------------------------------


async def delete_topics(
    session: KafkaSession, head: RequestHead, request: DeleteTopicsRequest
) -> DeleteTopicsResponse:
    answer = DeleteTopicsResponse()
    await name_deleted(session.services, request)
    asked = [(each.name, each.topic_id) for each in request.topics]
    asked += [(name, NO_UUID) for name in request.names]
    for name, topic_id in dict.fromkeys(asked):
        said = DeletedTopic(name, topic_id)
        answer.topics.append(said)
        if name is None:
            said.error_code = ErrorCode.UNKNOWN_TOPIC_ID
            continue
        try:
            await _delete(session.services, topic_of(name))
        except MagnetarError as error:
            said.error_code, said.error_message = error_code(error), str(error)
    return answer


async def name_deleted(services: KafkaServices, request: DeleteTopicsRequest) -> None:
    """Topics that are to be deleted by their ids get their names. Raises ``MetadataError``."""
    by_id = [topic for topic in request.topics if topic.name is None]
    if by_id:
        found = await services.topic_ids.names(topic.topic_id for topic in by_id)
        for topic in by_id:
            topic.name = found.get(topic.topic_id)


async def _delete(services: KafkaServices, topic: TopicName) -> None:
    """Raises ``TopicNotFoundError``, and what a partition's owner refuses with."""
    count = await services.count_of(topic)
    if not count:
        await _delete_one(services, topic)
        return
    for index in range(count):
        try:
            await _delete_one(services, topic.of_partition(index))
        except TopicNotFoundError:
            continue  # never used
    await services.control.schemas.forget_topic(topic)
    await services.control.policies.forget_topic(topic)
    # Last: until then a deletion that fails half way can be asked for again.
    await services.control.partitioned.delete(topic)


async def _delete_one(services: KafkaServices, topic: TopicName) -> None:
    """A topic without partitions, or one partition, which has the name of a topic to its owner."""
    leader = await services.leader_of(topic, await services.nodes())
    if leader == services.node:
        await services.topics.delete(topic, force=True)
        return
    if leader is NO_NODE:
        raise ServiceNotReadyError(f"the owner of {topic} does not speak Kafka's protocol")
    name = topic.local if topic.namespace == DEFAULT_NAMESPACE else str(topic)
    request = DeleteTopicsRequest(names=[name])
    key, version = ApiKey.DELETE_TOPICS, BY_NAMES
    answer = await services.ask(leader, key, version, request)
    error = answer.topics[0].error_code
    if error == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        raise TopicNotFoundError(f"topic {topic} does not exist")
    if error:
        raise ServiceNotReadyError(f"{topic} is not deleted: {answer.topics[0].error_message}")


# -- configuration ----------------------------------------------------------------------------


def _changes(configs: Mapping[str, str | None]) -> dict[str, int | None]:
    """What is to hold for settings that can be changed. Raises ``InvalidPolicyError``."""
    found: dict[str, int | None] = {}
    for name, value in configs.items():
        if name in FIXED and value in (FIXED[name], None):
            continue
        if name not in (RETENTION_MS, RETENTION_BYTES):
            raise InvalidPolicyError(
                f"{name} cannot be set here; what can be: {RETENTION_MS}, {RETENTION_BYTES}"
            )
        found[name] = None if value is None else _limit(name, value)
    return found


def _limit(name: str, value: str) -> int:
    """Raises ``InvalidPolicyError``."""
    number = int(value) if NUMBER.fullmatch(value) else None
    if number is None or not -1 <= number <= LIMIT_MAX:
        raise InvalidPolicyError(
            f"{name} = {value[:80]!r}: a whole number from -1 (no limit) to {LIMIT_MAX} is expected"
        )
    return number


async def _set_retention(
    services: KafkaServices, topic: TopicName, changes: Mapping[str, int | None]
) -> None:
    said = await services.control.policies.of_topic(topic)
    now = said.retention or RetentionPolicy(-1, -1)
    minutes, megabytes = now.minutes, now.megabytes
    if RETENTION_MS in changes:
        minutes = _rounded(changes[RETENTION_MS], MINUTE_MS, NUMBER_MAX)
    if RETENTION_BYTES in changes:
        megabytes = _rounded(changes[RETENTION_BYTES], MEGABYTE, MEGABYTES_MAX)
    kept = RetentionPolicy(minutes, megabytes)
    await services.control.policies.set_topic(topic, "retention", kept)


def _rounded(value: int | None, unit: int, most: int) -> int:
    """In units; what is more than ``most`` of them is no limit, as Kafka's largest number is to its
    users."""
    if value is None or value < 0:
        return -1
    units = max(1, -(-value // unit))
    return units if units <= most else -1


async def describe_configs(
    session: KafkaSession, head: RequestHead, request: DescribeConfigsRequest
) -> DescribeConfigsResponse:
    answer = DescribeConfigsResponse()
    for resource in request.resources:
        said = DescribedResource(kind=resource.kind, name=resource.name)
        answer.results.append(said)
        try:
            said.configs = await _described(session.services, resource)
        except MagnetarError as error:
            said.error_code, said.error_message = error_code(error), str(error)
    return answer


async def _described(
    services: KafkaServices, resource: DescribeConfigsResource
) -> list[DescribedConfig]:
    if resource.kind == BROKER:
        return _of_broker(services, resource)
    topic = await _existing(services, resource.kind, resource.name)
    said = await services.control.policies.of_topic(topic)
    retention, replication = said.retention, said.partition_replication
    minutes, megabytes = (-1, -1) if retention is None else (retention.minutes, retention.megabytes)
    own = {
        RETENTION_MS: minutes * MINUTE_MS if minutes >= 0 else -1,
        RETENTION_BYTES: megabytes * MEGABYTE if megabytes >= 0 else -1,
    }
    source = FROM_DEFAULT if retention is None else FROM_TOPIC
    found = [
        DescribedConfig(name, str(value), source=source, config_type=LONG)
        for name, value in own.items()
    ]
    found += [
        DescribedConfig(
            name, value, read_only=True, source=FROM_DEFAULT, config_type=KINDS.get(name, STRING)
        )
        for name, value in {**FIXED, **_replicated(replication)}.items()
    ]
    engine = (await services.topics.policies.of(topic)).log.engine.value
    found.append(DescribedConfig(ENGINE, engine, read_only=True, source=FROM_DEFAULT))
    return [each for each in found if resource.keys is None or each.name in resource.keys]


def _replicated(said: ReplicationPolicy | None) -> dict[str, str]:
    """What a topic's own settings of replicas are, where it has any."""
    if said is None:
        return {}
    found = {UNCLEAN: "true" if said.unclean else "false"}
    return found | ({MIN_IN_SYNC: str(said.min_in_sync)} if said.min_in_sync else {})


def _of_broker(services: KafkaServices, resource: DescribeConfigsResource) -> list[DescribedConfig]:
    """What holds at this broker; no other says so for it. Raises ``NotAllowedError``."""
    if not resource.name:
        return []  # what is set for all brokers: nothing is
    node = services.node
    if resource.name != str(node.node_id):
        raise NotAllowedError(f"this is broker {node.node_id}; ask broker {resource.name} itself")
    own = {
        "advertised.listeners": (_listeners(services), STRING),
        "message.max.bytes": (str(services.broker.message_bytes_max), INT),
        "transaction.max.timeout.ms": (str(services.config.transaction_timeout_max_ms), INT),
    }
    return [
        DescribedConfig(name, value, read_only=True, source=FROM_BROKER, config_type=kind)
        for name, (value, kind) in own.items()
        if resource.keys is None or name in resource.keys
    ]


def _listeners(services: KafkaServices) -> str:
    """As Kafka names them."""
    sasl = "SASL_" if services.access is not None else ""
    node = services.node
    ports = (f"{sasl}PLAINTEXT", node.port), (f"{sasl}SSL", node.tls_port)
    return ",".join(f"{kind}://{node.host}:{port}" for kind, port in ports if port >= 0)


async def _existing(services: KafkaServices, kind: int, name: str) -> TopicName:
    """Raises ``TopicNotFoundError``, ``InvalidPolicyError``."""
    if kind != TOPIC:
        raise InvalidPolicyError(f"resources of kind {kind} have no configuration here")
    topic = topic_of(name)
    if not await services.count_of(topic) and not await services.topics.exists(topic):
        raise TopicNotFoundError(f"topic {name} does not exist")
    return topic


async def alter_configs(
    session: KafkaSession, head: RequestHead, request: AlterConfigsRequest
) -> AlterConfigsResponse:
    """All that can be set is, to what is given or to nothing."""
    answer = AlterConfigsResponse()
    for resource in request.resources:
        wanted: dict[str, str | None] = {RETENTION_MS: None, RETENTION_BYTES: None}
        wanted |= {config.name: config.value for config in resource.configs}
        said = await _altered(
            session.services, resource.kind, resource.name, wanted, request.validate_only
        )
        answer.responses.append(said)
    return answer


async def incremental_alter_configs(
    session: KafkaSession, head: RequestHead, request: IncrementalAlterConfigsRequest
) -> IncrementalAlterConfigsResponse:
    answer = IncrementalAlterConfigsResponse()
    for resource in request.resources:
        wanted: dict[str, str | None] = {}
        bad = [each.name for each in resource.configs if each.operation not in (SET, DELETE)]
        for each in resource.configs:
            wanted[each.name] = each.value if each.operation == SET else None
        if bad:
            why = f"{', '.join(bad)}: no list; it can be set or deleted"
            said = AlteredResource(ErrorCode.INVALID_CONFIG, why, resource.kind, resource.name)
        else:
            said = await _altered(
                session.services, resource.kind, resource.name, wanted, request.validate_only
            )
        answer.responses.append(said)
    return answer


async def _altered(
    services: KafkaServices,
    kind: int,
    name: str,
    wanted: Mapping[str, str | None],
    validate_only: bool,
) -> AlteredResource:
    said = AlteredResource(kind=kind, name=name)
    try:
        topic = await _existing(services, kind, name)
        changes = _changes(wanted)
        if changes and not validate_only:
            await _set_retention(services, topic, changes)
    except MagnetarError as error:
        said.error_code, said.error_message = error_code(error), str(error)
    return said
