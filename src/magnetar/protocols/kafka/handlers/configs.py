"""Configurations of topics, groups and brokers: described, and changed as far as they can be
(``topic_settings``, ``group_configs``).

Of a broker everything is described, and nothing changed: its settings are those of its start.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Final

from magnetar.cluster.policies.policies import (
    MEGABYTES_MAX,
    KafkaPolicy,
    Policies,
    ReplicationPolicy,
    RetentionPolicy,
)
from magnetar.cluster.policies.policy_values import NUMBER_MAX
from magnetar.cluster.topic_name import TopicName
from magnetar.env.network.listening import host_port
from magnetar.log.policy import Engine, LogPolicy, PieceRule
from magnetar.model.errors import (
    ConfigError,
    InvalidPolicyError,
    MagnetarError,
    NotAllowedError,
    TopicNotFoundError,
)
from magnetar.protocols.kafka.group_settings import NAMES as GROUP_NAMES
from magnetar.protocols.kafka.handlers.cluster import all_names
from magnetar.protocols.kafka.handlers.each_once import resources_once
from magnetar.protocols.kafka.handlers.group_configs import GROUP, alter_group, describe_group
from magnetar.protocols.kafka.handlers.recompression import CODECS
from magnetar.protocols.kafka.names import topic_of
from magnetar.protocols.kafka.services import KafkaServices
from magnetar.protocols.kafka.session import KafkaSession
from magnetar.protocols.kafka.topic_settings import (
    AFTER_MS,
    APPEND_TIME,
    AS_PRODUCED,
    BATCH_BYTES,
    BEFORE_MS,
    CLEANUP,
    COMPRESSION,
    CREATE_TIME,
    DELETE,
    DIRTY_RATIO,
    ENGINE,
    FIXED,
    INT,
    KINDS,
    LAG_MS,
    LAG_MS_MAX,
    LIMIT_MAX,
    LONG,
    MIN_IN_SYNC,
    RETENTION_BYTES,
    RETENTION_MS,
    SEGMENT_BYTES,
    SEGMENT_MS,
    SET,
    SETTABLE,
    STRING,
    TIMESTAMPS,
    TOMBSTONES_MS,
    UNCLEAN,
    TopicChanges,
    changes_of,
    check_compacting,
    check_lags,
    listed,
)
from magnetar.wire.kafka.admin_messages import (
    AlterConfigsRequest,
    AlterConfigsResponse,
    AlteredResource,
    AlterResource,
    ChangeResource,
    ConfigChange,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
    DescribedConfig,
    DescribedResource,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
    ListedResource,
)
from magnetar.wire.kafka.apis import RequestHead
from magnetar.wire.kafka.compression import compress
from magnetar.wire.kafka.errors import ErrorCode, error_code

TOPIC: Final = 2
BROKER: Final = 4
MINUTE_MS: Final = 60_000
MEGABYTE: Final = 1 << 20
FROM_TOPIC: Final = 1
FROM_BROKER: Final = 4
FROM_DEFAULT: Final = 5
KINDS_WITHOUT: Final[Mapping[int, str]] = MappingProxyType(
    {8: "loggers of brokers", 16: "metrics of clients (which are not asked for any)"}
)
KINDS_LISTED: Final = frozenset((TOPIC, BROKER, GROUP, *KINDS_WITHOUT))
NOT_SAID: Final = KafkaPolicy()
FIELDS: Final[Mapping[str, str]] = MappingProxyType(
    {
        COMPRESSION: "compression",
        BATCH_BYTES: "batch_bytes_max",
        SEGMENT_BYTES: "segment_bytes",
        SEGMENT_MS: "segment_ms",
        TIMESTAMPS: "append_time",
        BEFORE_MS: "before_ms_max",
        AFTER_MS: "after_ms_max",
        CLEANUP: "cleanup",
        TOMBSTONES_MS: "tombstones_ms",
        DIRTY_RATIO: "dirty_ratio",
        LAG_MS: "lag_ms",
        LAG_MS_MAX: "lag_ms_max",
    }
)
"""Settings that are fields of ``KafkaPolicy``, and which."""


# -- what holds -----------------------------------------------------------------------------------


async def describe_configs(
    session: KafkaSession, head: RequestHead, request: DescribeConfigsRequest
) -> DescribeConfigsResponse:
    answer, turns = DescribeConfigsResponse(), session.turns()
    for resource in resources_once(request.resources):
        await turns.next()
        said = DescribedResource(kind=resource.kind, name=resource.name)
        answer.results.append(said)
        try:
            found = await _described(session.services, resource)
            keys = frozenset(resource.keys or ())
            said.configs = [each for each in found if not keys or each.name in keys]
            for each in said.configs:  # all that version 0 tells of the source
                each.is_default = each.source == FROM_DEFAULT
        except MagnetarError as error:
            said.error_code, said.error_message = error_code(error), str(error)
    return answer


async def list_resources(
    session: KafkaSession, head: RequestHead, request: ListConfigResourcesRequest
) -> ListConfigResourcesResponse:
    """What DescribeConfigs can be asked for: groups with settings of their own, and all topics and
    brokers."""
    services, answer = session.services, ListConfigResourcesResponse()
    if head.version == 0:  # asks for metrics of clients alone, of which there are none
        return answer
    if not KINDS_LISTED.issuperset(request.kinds):
        return ListConfigResourcesResponse(error_code=ErrorCode.UNSUPPORTED_VERSION)
    kinds = frozenset(request.kinds) or KINDS_LISTED
    found: list[tuple[int, Iterable[str]]] = []
    try:
        if TOPIC in kinds:
            found.append((TOPIC, await all_names(services)))
        if BROKER in kinds:
            nodes = {
                services.node.node_id,
                *(each.node_id for each in (await services.nodes()).values()),
            }
            found.append((BROKER, map(str, sorted(nodes))))
        if GROUP in kinds:
            found.append((GROUP, await services.control.groups.groups()))
    except MagnetarError as error:
        return ListConfigResourcesResponse(error_code=error_code(error))
    answer.resources = [ListedResource(name, kind) for kind, names in found for name in names]
    return answer


async def _described(
    services: KafkaServices, resource: DescribeConfigsResource
) -> list[DescribedConfig]:
    if resource.kind == BROKER:
        return _of_broker(services, resource)
    if resource.kind == GROUP:
        return await describe_group(services, resource.name)
    return await configs_of_topic(services, await _existing(services, resource.kind, resource.name))


async def configs_of_topic(services: KafkaServices, topic: TopicName) -> list[DescribedConfig]:
    """Raises ``TopicNotFoundError``, ``MetadataError``."""
    said = await services.control.policies.of_topic(topic)
    log = (await services.topics.policies.of(topic)).log
    found = [_config(name, value, kept) for name, value, kept in _limits(said, log)]
    found += [_config(name, value, kept) for name, value, kept in _settable(services, said)]
    found += [_config(name, value, kept) for name, value, kept in _pieces(services, log)]
    found += [_config(name, value, kept) for name, value, kept in _compacting(said, log)]
    fixed = {**FIXED, **_replicated(said.partition_replication), ENGINE: log.engine.value}
    found += [_config(name, value, False, read_only=True) for name, value in fixed.items()]
    return found


def _config(name: str, value: str, is_said: bool, *, read_only: bool = False) -> DescribedConfig:
    source = FROM_TOPIC if is_said else FROM_DEFAULT
    kind = KINDS.get(name, STRING)
    return DescribedConfig(name, value, read_only=read_only, source=source, config_type=kind)


def _limits(said: Policies, log: LogPolicy) -> Iterable[tuple[str, str, bool]]:
    """``(name, value, whether the topic says it)``. One limit beside none is the one that was
    said; without either it was said that there is no limit."""
    own, holds = said.retention, log.retention
    no_limit = own is not None and own.minutes == own.megabytes == -1
    for name, kept, is_said in (
        (RETENTION_MS, holds.kept_ms, own is not None and own.minutes != -1),
        (RETENTION_BYTES, holds.kept_bytes, own is not None and own.megabytes != -1),
    ):
        yield name, str(kept), is_said or no_limit


def _settable(services: KafkaServices, said: Policies) -> Iterable[tuple[str, str, bool]]:
    """As ``_limits``."""
    kafka = said.kafka or NOT_SAID
    most = kafka.batch_bytes_max or services.broker.message_bytes_max
    yield COMPRESSION, kafka.compression or AS_PRODUCED, bool(kafka.compression)
    yield BATCH_BYTES, str(most), bool(kafka.batch_bytes_max)
    yield TIMESTAMPS, APPEND_TIME if kafka.append_time else CREATE_TIME, kafka.append_time
    for name, bound in ((BEFORE_MS, kafka.before_ms_max), (AFTER_MS, kafka.after_ms_max)):
        yield name, str(LIMIT_MAX if bound < 0 else bound), bound >= 0


def _replicated(said: ReplicationPolicy | None) -> dict[str, str]:
    """What a topic's own settings of replicas are, where it has any."""
    if said is None:
        return {}
    found = {UNCLEAN: "true" if said.unclean else "false"}
    return found | ({MIN_IN_SYNC: str(said.min_in_sync)} if said.min_in_sync else {})


def _pieces(services: KafkaServices, log: LogPolicy) -> Iterable[tuple[str, str, bool]]:
    """As ``_limits``: what a log is cut into, by its engine. Nothing is told of partitions that
    this broker cannot have, where the topic does not say it."""
    configured = PieceRule(log.roll.bytes_max, log.roll.age_ms_max)
    if log.engine is Engine.PARTITION:
        directory = services.directory
        configured = PieceRule() if directory is None else directory.pieces
    for name, said, else_ in (
        (SEGMENT_BYTES, log.pieces.bytes_max, configured.bytes_max),
        (SEGMENT_MS, log.pieces.age_ms_max, configured.age_ms_max),
    ):
        if said or else_:
            yield name, str(said or else_), bool(said)


def _compacting(said: Policies, log: LogPolicy) -> Iterable[tuple[str, str, bool]]:
    """As ``_limits``: of a log on ledgers there is one value."""
    kafka, rule = said.kafka or NOT_SAID, log.cleanup
    if log.engine is Engine.LEDGER:
        yield CLEANUP, "delete", bool(kafka.cleanup)
        return
    words = [
        word for word, is_so in (("delete", rule.deletes), ("compact", rule.compacts)) if is_so
    ]
    yield CLEANUP, kafka.cleanup or ",".join(words), bool(kafka.cleanup)
    yield TOMBSTONES_MS, str(rule.tombstones_kept_ms), kafka.tombstones_ms >= 0
    yield DIRTY_RATIO, str(rule.dirty_ratio_least), kafka.dirty_ratio >= 0
    yield LAG_MS, str(rule.lag_ms), kafka.lag_ms >= 0
    yield LAG_MS_MAX, str(rule.lag_ms_max), kafka.lag_ms_max >= 0


def _of_broker(services: KafkaServices, resource: DescribeConfigsResource) -> list[DescribedConfig]:
    """What holds at this broker; no other says so for it. Raises ``NotAllowedError``."""
    if not resource.name:
        return []  # what is set for all brokers: nothing is
    node = services.node
    if resource.name != str(node.node_id):
        raise NotAllowedError(f"this is broker {node.node_id}; ask broker {resource.name} itself")
    own = {
        "advertised.listeners": (_listeners(services), STRING),
        "connections.max.reauth.ms": (str(services.config.session_lifetime_ms), LONG),
        "message.max.bytes": (str(services.broker.message_bytes_max), INT),
        "transaction.max.timeout.ms": (str(services.config.transaction_timeout_max_ms), INT),
    }
    return [
        DescribedConfig(name, value, read_only=True, source=FROM_BROKER, config_type=kind)
        for name, (value, kind) in own.items()
    ]


def _listeners(services: KafkaServices) -> str:
    """As Kafka names them."""
    sasl = "SASL_" if services.access is not None else ""
    node = services.node
    ports = (f"{sasl}PLAINTEXT", node.port), (f"{sasl}SSL", node.tls_port)
    return ",".join(f"{kind}://{host_port(node.host, port)}" for kind, port in ports if port >= 0)


async def _existing(services: KafkaServices, kind: int, name: str) -> TopicName:
    """Raises ``TopicNotFoundError``, ``InvalidPolicyError``."""
    if kind == BROKER:
        raise InvalidPolicyError("what a broker is configured by is said when it starts")
    if kind != TOPIC:
        what = KINDS_WITHOUT.get(kind, f"resources of kind {kind}")
        raise InvalidPolicyError(f"{what} have no configuration here")
    topic = topic_of(name)
    if not await services.count_of(topic) and not await services.topics.exists(topic):
        raise TopicNotFoundError(f"topic {name} does not exist")
    return topic


# -- changes --------------------------------------------------------------------------------------


async def alter_configs(
    session: KafkaSession, head: RequestHead, request: AlterConfigsRequest
) -> AlterConfigsResponse:
    """All that can be set is, to what is given or to nothing."""
    answer, times = AlterConfigsResponse(), _times(request.resources)
    turns = session.turns()
    for resource in {(each.kind, each.name): each for each in request.resources}.values():
        await turns.next()
        said = _malformed(
            resource, times, [each.name for each in resource.configs if each.value is None]
        )
        if said is None:
            names = GROUP_NAMES if resource.kind == GROUP else SETTABLE
            wanted: dict[str, str | None] = dict.fromkeys(names)
            wanted |= {config.name: config.value for config in resource.configs}
            said = await _altered(
                session.services, resource.kind, resource.name, wanted, request.validate_only
            )
        answer.responses.append(said)
    return answer


async def incremental_alter_configs(
    session: KafkaSession, head: RequestHead, request: IncrementalAlterConfigsRequest
) -> IncrementalAlterConfigsResponse:
    answer, times = IncrementalAlterConfigsResponse(), _times(request.resources)
    turns = session.turns()
    for resource in {(each.kind, each.name): each for each in request.resources}.values():
        await turns.next()
        unsaid = [
            each.name
            for each in resource.configs
            if each.value is None and each.operation != DELETE
        ]
        said = _malformed(resource, times, unsaid)
        if said is None:
            said = await _changed(session.services, resource, request.validate_only)
        answer.responses.append(said)
    return answer


def _times(resources: Iterable[AlterResource | ChangeResource]) -> Counter[tuple[int, str]]:
    return Counter((each.kind, each.name) for each in resources)


def _malformed(
    resource: AlterResource | ChangeResource,
    times: Mapping[tuple[int, str], int],
    unsaid: Sequence[str],
) -> AlteredResource | None:
    """What can be meant in more than one way is refused, as by Kafka, and nothing of it is done.
    ``times``: how often a resource is in the request; ``unsaid``: settings without a value."""
    kind, name = resource.kind, resource.name
    names = Counter(each.name for each in resource.configs)
    twice = [each for each, count in names.items() if count > 1]
    if times[kind, name] > 1:
        why = "the resource is there twice in one request"
    elif twice:
        why = f"there twice in one request: {', '.join(twice)}"
    elif unsaid:
        why = f"a value is missing: {', '.join(unsaid)}"
    else:
        return None
    return AlteredResource(ErrorCode.INVALID_REQUEST, why, kind, name)


async def _changed(
    services: KafkaServices, resource: ChangeResource, validate_only: bool
) -> AlteredResource:
    kind, name = resource.kind, resource.name
    resource.configs = [each for each in resource.configs if not _never_set(resource, each)]
    if kind == BROKER and not resource.configs:
        return AlteredResource(kind=kind, name=name)
    try:
        have = await _cleanup_now(services, resource)
        wanted = {each.name: _wanted(each, have) for each in resource.configs}
    except MagnetarError as error:
        return AlteredResource(error_code(error), str(error), kind, name)
    return await _altered(services, kind, name, wanted, validate_only)


def _never_set(resource: ChangeResource, change: ConfigChange) -> bool:
    """What is deleted was never there. So it is after `kafka-reassign-partitions --verify`, which
    deletes the throttles of brokers and topics whether it had set any or not."""
    settable = SETTABLE if resource.kind == TOPIC else ()
    named = resource.kind in (TOPIC, BROKER) and change.name not in settable
    return named and change.operation == DELETE


async def _cleanup_now(services: KafkaServices, resource: ChangeResource) -> str:
    """The one list that there is, if it is to be changed and not set. Raises
    ``TopicNotFoundError``, ``InvalidPolicyError``, ``MetadataError``."""
    if all(each.operation in (SET, DELETE) for each in resource.configs):
        return ""
    topic = await _existing(services, resource.kind, resource.name)
    kafka = (await services.control.policies.of_topic(topic)).kafka or NOT_SAID
    return kafka.cleanup or "delete"


def _wanted(change: ConfigChange, have: str) -> str | None:
    """Raises ``InvalidPolicyError``."""
    if change.operation == SET:
        return change.value
    if change.operation == DELETE:
        return None
    return listed(change.name, change.operation, change.value, have)


async def _altered(
    services: KafkaServices,
    kind: int,
    name: str,
    wanted: Mapping[str, str | None],
    validate_only: bool,
) -> AlteredResource:
    said = AlteredResource(kind=kind, name=name)
    try:
        if kind == GROUP:
            await alter_group(services, name, wanted, validate_only=validate_only)
            return said
        topic = await _existing(services, kind, name)
        log = (await services.topics.policies.of(topic)).log
        said_now = (await services.control.policies.of_topic(topic)).kafka or NOT_SAID
        changes = checked_changes(services, wanted, log.engine is Engine.LEDGER, said_now)
        if not validate_only:
            await apply_changes(services, topic, changes)
    except MagnetarError as error:
        said.error_code, said.error_message = error_code(error), str(error)
    return said


def checked_changes(
    services: KafkaServices,
    configs: Mapping[str, str | None],
    on_ledgers: bool,
    said: KafkaPolicy = NOT_SAID,
) -> TopicChanges:
    """``said``: by the topic now. Raises ``InvalidPolicyError``."""
    changes = changes_of(configs, services.broker.message_bytes_max)
    check_compacting(changes, on_ledgers)
    check_lags(changes, said.lag_ms, said.lag_ms_max)
    compression = changes.get(COMPRESSION)
    if isinstance(compression, str):
        try:
            compress(CODECS[compression], b"")
        except ConfigError as error:
            raise InvalidPolicyError(f"{COMPRESSION} = {compression}: {error}") from error
    return changes


async def apply_changes(services: KafkaServices, topic: TopicName, changes: TopicChanges) -> None:
    """Raises ``MetadataError``, ``NotAllowedError``: there is no place for more policies."""
    for field, change in policy_changes(changes).items():
        await services.control.policies.change_topic(topic, field, change)


def policy_changes(changes: TopicChanges) -> dict[str, Callable[[Any], Any]]:
    """What becomes of the topic's policies: of each field what is said next, of what is said."""
    found: dict[str, Callable[[Any], Any]] = {}
    if RETENTION_MS in changes or RETENTION_BYTES in changes:
        found["retention"] = lambda said: _retention(said or RetentionPolicy(-1, -1), changes)
    wanted: dict[str, Any] = {}
    for name in FIELDS.keys() & changes.keys():
        value, field = changes[name], FIELDS[name]
        wanted[field] = getattr(NOT_SAID, field) if value is None else value
    if wanted:
        found["kafka"] = lambda said: _with(said, wanted)
    return found


def _with(said: KafkaPolicy | None, wanted: Mapping[str, Any]) -> KafkaPolicy | None:
    """None: nothing is said any more."""
    found = replace(said or NOT_SAID, **wanted)
    return None if found == NOT_SAID else found


def _retention(now: RetentionPolicy, changes: TopicChanges) -> RetentionPolicy | None:
    """None: it is as the namespace says, or the configuration. One limit that is deleted is none,
    beside the other: both are one policy; without another nothing is said any more."""
    minutes, megabytes = now.minutes, now.megabytes
    if RETENTION_MS in changes:
        minutes = _rounded(changes[RETENTION_MS], MINUTE_MS, NUMBER_MAX)
    if RETENTION_BYTES in changes:
        megabytes = _rounded(changes[RETENTION_BYTES], MEGABYTE, MEGABYTES_MAX)
    of_both = changes.get(RETENTION_MS, 0), changes.get(RETENTION_BYTES, 0)
    if minutes == megabytes == -1 and all(value in (None, 0) for value in of_both):
        return None
    return RetentionPolicy(minutes, megabytes)


def _rounded(value: int | float | str | None, unit: int, most: int) -> int:
    """In units; what is more than ``most`` of them is no limit, as Kafka's largest number is to its
    users."""
    if value is None or int(value) < 0:
        return -1
    units = max(1, -(-int(value) // unit))
    return units if units <= most else -1
