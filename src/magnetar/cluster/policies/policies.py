"""What may be said of how topics are kept and served, at a namespace or at one topic. Pure.

Each field is said or not; a topic's word counts before its namespace's, field by field
(``policy_values.Layered``), and what nobody says is as the broker and its ledgers are configured.
The names are Pulsar's where Pulsar has them, in the namespace's node and in a topic's:

| field | value |
|---|---|
| ``retention_policies`` | ``{"retentionTimeInMinutes", "retentionSizeInMB"}`` |
| ``message_ttl_in_seconds`` | a number; 0: messages do not expire |
| ``persistence`` | ``{"bookkeeperEnsemble", "bookkeeperWriteQuorum", "bookkeeperAckQuorum"}`` |
| ``subscription_expiration_time_minutes`` | a number; 0: subscriptions do not expire |
| ``compaction_threshold`` | bytes; 0: a topic is compacted when somebody asks for it |
| ``delayed_delivery_policies`` | ``{"active", "tickTime", "maxDeliveryDelayInMillis"}`` |
| ``read_only_brokers`` | ``{"rules"}``, ours: ``read_rules`` |
| ``engine`` | ours: ``ledger`` or ``partition``, what keeps logs that are made |
| ``partition_replication`` | ours: ``{"replicationFactor", "minInSyncReplicas"}``, of partitions |
| ``kafka`` | ours: what Kafka's admins say (``KafkaPolicy``): ``{"compressionType", ...}`` |
| ``autoTopicCreationOverride`` | ``TopicCreationPolicy``: ``{"allowAutoTopicCreation", ...}`` |
| ``autoSubscriptionCreationOverride`` | ``{"allowAutoSubscriptionCreation"}`` |
| ``deduplicationEnabled`` | true: what a producer sends again is not stored again |
| ``backlog_quota_map`` | ``BacklogQuotas``: ``{"destination_storage", "message_age"}`` |
| ``schema_compatibility_strategy`` | the name of a ``SchemaStrategy``; ``UNDEFINED``: not said |
| ``schema_validation_enforced`` | true: a producer without a schema is refused where there is one |
| ``publishMaxMessageRate`` | ``PublishRate``: ``{"publishThrottlingRateInMsg", ...}`` |
| ``topicDispatchRate``, ``subscriptionDispatchRate`` | ``DispatchRate`` |
| ``clusterSubscribeRate`` | ``SubscribeRate`` |
| ``subscriptionPolicies`` | ``SubscriptionRates``, of single ones: ``{name: {"dispatchRate"}}`` |
| ``max_producers_per_topic``, ``max_consumers_per_topic``, ``max_consumers_per_subscription``, \
``max_subscriptions_per_topic``, ``max_unacked_messages_per_consumer``, \
``max_unacked_messages_per_subscription``, ``max_topics_per_namespace``, ``maxMessageSize`` \
| a number; 0: no limit |
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from magnetar.cluster.policies.backlog_quotas import BacklogQuotas
from magnetar.cluster.policies.policy_values import (
    NUMBER_MAX,
    Layered,
    as_flag,
    as_limit,
    as_number,
    as_object,
    no_more,
)
from magnetar.cluster.policies.rate_values import (
    DispatchRate,
    PublishRate,
    SubscribeRate,
    SubscriptionRates,
)
from magnetar.cluster.policies.read_rules import ReadRules
from magnetar.cluster.topic_name import PARTITIONS_MAX
from magnetar.model.errors import InvalidPolicyError
from magnetar.model.ledger import Quorums
from magnetar.model.schema import SchemaStrategy

MEGABYTES_MAX: Final = 2**43
"""2**63 bytes."""


@dataclass(frozen=True, slots=True)
class RetentionPolicy:
    """Of what every subscription has acknowledged; -1 sets no limit, 0 (both) keeps nothing."""

    minutes: int
    megabytes: int

    @classmethod
    def decode(cls, value: object) -> RetentionPolicy:
        said = as_object("retention", value)
        made = cls(
            as_number("retentionTimeInMinutes", said.pop("retentionTimeInMinutes", None), -1),
            as_number("retentionSizeInMB", said.pop("retentionSizeInMB", None), -1, MEGABYTES_MAX),
        )
        no_more("retention", said)
        if (made.minutes == 0) != (made.megabytes == 0):
            raise InvalidPolicyError(
                "retention: one limit is 0 and the other is not; to keep nothing, both are 0, and "
                "-1 sets no limit"
            )
        return made

    def encode(self) -> dict[str, object]:
        return {"retentionTimeInMinutes": self.minutes, "retentionSizeInMB": self.megabytes}


@dataclass(frozen=True, slots=True)
class PersistencePolicy:
    """How many bookies a ledger has, and an entry. ``mark_delete_rate`` is kept for those who ask,
    and has no effect: acknowledgements are stored within ``ledger.cursor_flush_interval_ms``."""

    quorums: Quorums
    mark_delete_rate: float = 0.0

    @classmethod
    def decode(cls, value: object) -> PersistencePolicy:
        said = as_object("persistence", value)
        names = ("bookkeeperEnsemble", "bookkeeperWriteQuorum", "bookkeeperAckQuorum")
        ensemble, write, ack = (as_number(name, said.pop(name, None), 1, 100) for name in names)
        if not ensemble >= write >= ack:
            raise InvalidPolicyError(
                f"persistence: an ensemble of {ensemble}, {write} copies and {ack} of them awaited "
                "cannot be used; accepted: bookkeeperEnsemble >= bookkeeperWriteQuorum >= "
                "bookkeeperAckQuorum"
            )
        rate = said.pop("managedLedgerMaxMarkDeleteRate", None) or 0.0
        number = isinstance(rate, (int, float)) and not isinstance(rate, bool)
        if not number or not -1 <= rate <= NUMBER_MAX:
            raise InvalidPolicyError(
                f"managedLedgerMaxMarkDeleteRate: {str(rate)[:80]!r} cannot be used; accepted: a "
                f"number from -1 to {NUMBER_MAX}"
            )
        storage = said.pop("managedLedgerStorageClassName", None)
        if storage not in (None, "bookkeeper"):
            raise InvalidPolicyError(f"managedLedgerStorageClassName: {storage!r} is not there")
        no_more("persistence", said)
        return cls(Quorums(ensemble, write, ack), float(rate))

    def encode(self) -> dict[str, object]:
        return {
            "bookkeeperEnsemble": self.quorums.ensemble_size,
            "bookkeeperWriteQuorum": self.quorums.write_quorum,
            "bookkeeperAckQuorum": self.quorums.ack_quorum,
            "managedLedgerMaxMarkDeleteRate": self.mark_delete_rate,
        }


GO_DELAY_MAX: Final = "maxDelayInMillis"
"""As Go's admin client calls ``maxDeliveryDelayInMillis``, when it says it."""


@dataclass(frozen=True, slots=True)
class DelayedDeliveryPolicy:
    """``active``: messages may be for later. ``delay_ms_max``: 0: any delay."""

    active: bool
    tick_ms: int
    delay_ms_max: int = 0

    @classmethod
    def decode(cls, value: object) -> DelayedDeliveryPolicy:
        said = as_object("delayed delivery", value)
        active = said.pop("active", None)
        if not isinstance(active, bool):
            raise InvalidPolicyError(f"active: {active!r} is neither true nor false")
        tick_ms = as_number("tickTime", said.pop("tickTime", None), 1)
        longest = 0
        for name in ("maxDeliveryDelayInMillis", GO_DELAY_MAX):
            longest = as_number(name, said.pop(name, None) or longest, 0, 2**53)
        made = cls(active, tick_ms, longest)
        no_more("delayed delivery", said)
        return made

    def encode(self) -> dict[str, object]:
        return {
            "active": self.active,
            "tickTime": self.tick_ms,
            "maxDeliveryDelayInMillis": self.delay_ms_max,
        }


@dataclass(frozen=True, slots=True)
class ReplicationPolicy:
    """Of logs on partitions, when they are made; 0: as brokers are configured. ``unclean``
    (``uncleanLeaderElection``, if it is on): one without a replica in sync is led by any, and loses
    what that lacks."""

    replication_factor: int
    min_in_sync: int
    unclean: bool = False

    @classmethod
    def decode(cls, value: object) -> ReplicationPolicy:
        said = as_object("replication", value)
        made = cls(
            as_number("replicationFactor", said.pop("replicationFactor", None), 0, 100),
            as_number("minInSyncReplicas", said.pop("minInSyncReplicas", None), 0, 100),
            as_flag("uncleanLeaderElection", said.pop("uncleanLeaderElection", False)),
        )
        no_more("replication", said)
        return made

    def encode(self) -> dict[str, object]:
        return {
            "replicationFactor": self.replication_factor,
            "minInSyncReplicas": self.min_in_sync,
            **({"uncleanLeaderElection": True} if self.unclean else {}),
        }


COMPRESSION_TYPES: Final = ("uncompressed", "gzip", "snappy", "lz4", "zstd")
"""How the batches of a topic can be kept, by Kafka's names."""
CLEANUPS: Final = ("delete", "compact")
"""What can become of what is old, by Kafka's names."""


@dataclass(frozen=True, slots=True)
class KafkaPolicy:
    """What Kafka's admins say; empty, and 0: as brokers are configured.

    Of batches that Kafka's producers send: ``compression``: one of ``COMPRESSION_TYPES``, as which
    they are kept; empty: as they come. ``batch_bytes_max``: of one batch as it is kept.
    ``append_time``: its records have the time when it was appended, and else their producer's,
    which may be so far ``before`` and ``after`` that; -1: as far as it likes. Of any log:
    ``segment_bytes``, ``segment_ms``: of the pieces that it is cut into. Of a log on partitions:
    ``cleanup``: ``CLEANUPS`` with commas between, what becomes of what is old; how it is compacted
    (``log.policy.CleanupRule``): -1: as nobody says it."""

    compression: str = ""
    batch_bytes_max: int = 0
    segment_bytes: int = 0
    segment_ms: int = 0
    append_time: bool = False
    before_ms_max: int = -1
    after_ms_max: int = -1
    cleanup: str = ""
    tombstones_ms: int = -1
    dirty_ratio: float = -1.0
    lag_ms: int = -1
    lag_ms_max: int = -1

    @property
    def bounds_times(self) -> bool:
        """Records are to be looked at for their times."""
        return not self.append_time and (self.before_ms_max >= 0 or self.after_ms_max >= 0)

    @classmethod
    def decode(cls, value: object) -> KafkaPolicy:
        said = as_object("kafka", value)
        compression = said.pop("compressionType", None) or ""
        if compression and compression not in COMPRESSION_TYPES:
            raise InvalidPolicyError(
                f"compressionType: {str(compression)[:80]!r} cannot be used; accepted: "
                f"{', '.join(COMPRESSION_TYPES)}"
            )
        most = as_number("maxMessageBytes", said.pop("maxMessageBytes", None) or 0, 0)
        piece = (
            as_number("segmentBytes", said.pop("segmentBytes", None) or 0, 0),
            as_number("segmentMs", said.pop("segmentMs", None) or 0, 0, 2**63 - 1),
        )
        append_time = as_flag("logAppendTime", said.pop("logAppendTime", None) or False)
        before, after = (
            -1 if (bound := said.pop(name, None)) is None else as_number(name, bound, 0, 2**63 - 1)
            for name in ("timestampBeforeMaxMs", "timestampAfterMaxMs")
        )
        cleanup, tombstones, ratio, lag, lag_max = _compacting_said(said)
        no_more("kafka", said)
        return cls(
            compression,
            most,
            *piece,
            append_time=append_time,
            before_ms_max=before,
            after_ms_max=after,
            cleanup=cleanup,
            tombstones_ms=tombstones,
            dirty_ratio=ratio,
            lag_ms=lag,
            lag_ms_max=lag_max,
        )

    def encode(self) -> dict[str, object]:
        return {
            **({"compressionType": self.compression} if self.compression else {}),
            **({"maxMessageBytes": self.batch_bytes_max} if self.batch_bytes_max else {}),
            **({"segmentBytes": self.segment_bytes} if self.segment_bytes else {}),
            **({"segmentMs": self.segment_ms} if self.segment_ms else {}),
            **({"logAppendTime": True} if self.append_time else {}),
            **({"timestampBeforeMaxMs": self.before_ms_max} if self.before_ms_max >= 0 else {}),
            **({"timestampAfterMaxMs": self.after_ms_max} if self.after_ms_max >= 0 else {}),
            **({"cleanupPolicy": self.cleanup} if self.cleanup else {}),
            **({"deleteRetentionMs": self.tombstones_ms} if self.tombstones_ms >= 0 else {}),
            **({"minCleanableDirtyRatio": self.dirty_ratio} if self.dirty_ratio >= 0 else {}),
            **({"minCompactionLagMs": self.lag_ms} if self.lag_ms >= 0 else {}),
            **({"maxCompactionLagMs": self.lag_ms_max} if self.lag_ms_max >= 0 else {}),
        }


def _compacting_said(said: dict[str, object]) -> tuple[str, int, float, int, int]:
    """The last fields of ``KafkaPolicy``. Raises ``InvalidPolicyError``."""
    cleanup = said.pop("cleanupPolicy", None) or ""
    words = cleanup.split(",") if isinstance(cleanup, str) and cleanup else []
    if (cleanup and not words) or not set(words) <= set(CLEANUPS):
        raise InvalidPolicyError(
            f"cleanupPolicy: {str(cleanup)[:80]!r} cannot be used; accepted: {', '.join(CLEANUPS)}"
        )
    tombstones, lag, lag_max = (
        -1 if (number := said.pop(name, None)) is None else as_number(name, number, 0, 2**63 - 1)
        for name in ("deleteRetentionMs", "minCompactionLagMs", "maxCompactionLagMs")
    )
    ratio = said.pop("minCleanableDirtyRatio", None)
    sound = isinstance(ratio, (int, float)) and not isinstance(ratio, bool) and 0 <= ratio <= 1
    if ratio is not None and not sound:
        raise InvalidPolicyError(
            f"minCleanableDirtyRatio: {str(ratio)[:80]!r} is no number from 0 to 1"
        )
    share = float(ratio) if isinstance(ratio, (int, float)) else -1.0
    return ",".join(words), tombstones, share, lag, lag_max


TOPIC_TYPES: Final = ("partitioned", "non-partitioned")


@dataclass(frozen=True, slots=True)
class TopicCreationPolicy:
    """Whether a namespace's topics are made on their first use, and as what: ``topic_type`` is one
    of ``TOPIC_TYPES``, and ``partitions`` how many the first has. Empty, and 0: not said."""

    allowed: bool
    topic_type: str = ""
    partitions: int = 0

    @classmethod
    def decode(cls, value: object) -> TopicCreationPolicy:
        said = as_object("autoTopicCreation", value)
        allowed = as_flag("allowAutoTopicCreation", said.pop("allowAutoTopicCreation", None))
        kind = said.pop("topicType", None) or ""
        count = as_number(
            "defaultNumPartitions",
            said.pop("defaultNumPartitions", None) or 0,
            0,
            PARTITIONS_MAX,
        )
        no_more("autoTopicCreation", said)
        if kind not in TOPIC_TYPES and (allowed or kind):
            raise InvalidPolicyError(
                f"topicType: {str(kind)[:80]!r} cannot be used; accepted: {', '.join(TOPIC_TYPES)}"
            )
        if allowed and (kind == "partitioned") != (count > 0):
            raise InvalidPolicyError(
                f"defaultNumPartitions: {count or 'none'} cannot be used for a {kind} topic; "
                f"accepted: 1 to {PARTITIONS_MAX} for a partitioned one, and else nothing"
            )
        return cls(allowed, kind, count)

    def encode(self) -> dict[str, object]:
        return {
            "allowAutoTopicCreation": self.allowed,
            **({"topicType": self.topic_type} if self.topic_type else {}),
            **({"defaultNumPartitions": self.partitions} if self.partitions else {}),
        }


@dataclass(frozen=True, slots=True)
class SubscriptionCreationPolicy:
    """Whether a subscription is made by its first consumer."""

    allowed: bool

    @classmethod
    def decode(cls, value: object) -> SubscriptionCreationPolicy:
        said = as_object("autoSubscriptionCreation", value)
        name = "allowAutoSubscriptionCreation"
        allowed = as_flag(name, said.pop(name, None))
        no_more("autoSubscriptionCreation", said)
        return cls(allowed)

    def encode(self) -> dict[str, object]:
        return {"allowAutoSubscriptionCreation": self.allowed}


@dataclass(frozen=True, slots=True)
class Policies(Layered):
    """What a namespace says, or a topic; None: it is not said here."""

    retention: RetentionPolicy | None = None
    message_ttl_s: int | None = None
    persistence: PersistencePolicy | None = None
    subscription_expiration_minutes: int | None = None
    delayed_delivery: DelayedDeliveryPolicy | None = None
    read_only_brokers: ReadRules | None = None
    engine: str | None = None
    partition_replication: ReplicationPolicy | None = None
    schema_strategy: SchemaStrategy | None = None
    schema_validation_enforced: bool | None = None
    compaction_threshold_bytes: int | None = None
    deduplication: bool | None = None
    kafka: KafkaPolicy | None = None
    topic_creation: TopicCreationPolicy | None = None
    subscription_creation: SubscriptionCreationPolicy | None = None
    publish_rate: PublishRate | None = None
    dispatch_rate: DispatchRate | None = None
    subscription_dispatch_rate: DispatchRate | None = None
    subscribe_rate: SubscribeRate | None = None
    max_producers: int | None = None
    max_consumers: int | None = None
    max_consumers_per_subscription: int | None = None
    max_subscriptions: int | None = None
    max_unacked_per_consumer: int | None = None
    max_unacked_per_subscription: int | None = None
    max_topics: int | None = None
    max_message_bytes: int | None = None
    backlog_quotas: BacklogQuotas | None = None
    subscription_rates: SubscriptionRates | None = None


def decode_ttl(value: object) -> int:
    return as_number("messageTTL", value, 0)


def decode_expiration(value: object) -> int:
    return as_number("subscriptionExpirationTime", value, 0)


def decode_threshold(value: object) -> int:
    return as_number("compactionThreshold", value, 0, 2**63 - 1)


def decode_engine(value: object) -> str:
    if value not in ENGINES:
        raise InvalidPolicyError(
            f"engine: {str(value)[:80]!r} cannot be used; accepted: {', '.join(ENGINES)}"
        )
    return str(value)


def decode_strategy(value: object) -> SchemaStrategy | None:
    if value == UNDEFINED:
        return None
    if isinstance(value, str) and value in SchemaStrategy.__members__:
        return SchemaStrategy(value)
    raise InvalidPolicyError(
        f"schema compatibility strategy: {str(value)[:80]!r} is none of "
        f"{', '.join(SchemaStrategy)} and {UNDEFINED}"
    )


def decode_flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise InvalidPolicyError(f"{str(value)[:80]!r} is neither true nor false")
    return value


ENGINES: Final = ("ledger", "partition")
"""What logs are kept by: ``log.policy.Engine``."""
UNDEFINED: Final = "UNDEFINED"
"""Pulsar's name for a strategy that is not said."""

NAMES: Final[Mapping[str, tuple[str, Callable[[object], Any]]]] = {
    "retention": ("retention_policies", RetentionPolicy.decode),
    "message_ttl_s": ("message_ttl_in_seconds", decode_ttl),
    "persistence": ("persistence", PersistencePolicy.decode),
    "subscription_expiration_minutes": ("subscription_expiration_time_minutes", decode_expiration),
    "delayed_delivery": ("delayed_delivery_policies", DelayedDeliveryPolicy.decode),
    "read_only_brokers": ("read_only_brokers", ReadRules.decode),
    "engine": ("engine", decode_engine),
    "partition_replication": ("partition_replication", ReplicationPolicy.decode),
    "schema_strategy": ("schema_compatibility_strategy", decode_strategy),
    "schema_validation_enforced": ("schema_validation_enforced", decode_flag),
    "compaction_threshold_bytes": ("compaction_threshold", decode_threshold),
    "deduplication": ("deduplicationEnabled", decode_flag),
    "kafka": ("kafka", KafkaPolicy.decode),
    "topic_creation": ("autoTopicCreationOverride", TopicCreationPolicy.decode),
    "subscription_creation": (
        "autoSubscriptionCreationOverride",
        SubscriptionCreationPolicy.decode,
    ),
    "publish_rate": ("publishMaxMessageRate", PublishRate.decode),
    "dispatch_rate": ("topicDispatchRate", DispatchRate.decode),
    "subscription_dispatch_rate": ("subscriptionDispatchRate", DispatchRate.decode),
    "subscribe_rate": ("clusterSubscribeRate", SubscribeRate.decode),
    "max_producers": ("max_producers_per_topic", partial(as_limit, "maxProducersPerTopic")),
    "max_consumers": ("max_consumers_per_topic", partial(as_limit, "maxConsumersPerTopic")),
    "max_consumers_per_subscription": (
        "max_consumers_per_subscription",
        partial(as_limit, "maxConsumersPerSubscription"),
    ),
    "max_subscriptions": (
        "max_subscriptions_per_topic",
        partial(as_limit, "maxSubscriptionsPerTopic"),
    ),
    "max_unacked_per_consumer": (
        "max_unacked_messages_per_consumer",
        partial(as_limit, "maxUnackedMessagesPerConsumer"),
    ),
    "max_unacked_per_subscription": (
        "max_unacked_messages_per_subscription",
        partial(as_limit, "maxUnackedMessagesPerSubscription"),
    ),
    "max_topics": ("max_topics_per_namespace", partial(as_limit, "maxTopicsPerNamespace")),
    "max_message_bytes": ("maxMessageSize", partial(as_limit, "maxMessageSize")),
    "backlog_quotas": ("backlog_quota_map", BacklogQuotas.decode),
    "subscription_rates": ("subscriptionPolicies", SubscriptionRates.decode),
}
"""Field -> its name in a node, and how its value is read. Raises ``InvalidPolicyError``."""


BY_CLUSTER: Final = tuple(
    NAMES[field][0]
    for field in (
        "publish_rate",
        "dispatch_rate",
        "subscription_dispatch_rate",
        "subscribe_rate",
    )
)
"""What Pulsar says of a namespace for each of its clusters."""


def decode_policies(said: Mapping[str, object]) -> Policies:
    """Of a node's object, which may say other things, too. Raises ``InvalidPolicyError``."""
    found = {
        field: decode(said[name])
        for field, (name, decode) in NAMES.items()
        if said.get(name) is not None
    }
    return Policies(**found)


def encode_value(value: Any) -> object:
    """A field's value as it stands in a node, and in bodies."""
    if isinstance(value, str):
        return str(value)
    return value.encode() if hasattr(value, "encode") else value
