"""Policies: what is read out of nodes and bodies, what is refused, whose word counts."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from magnetar.cluster.policies.backlog_quotas import BacklogQuota, BacklogQuotas, QuotaAction
from magnetar.cluster.policies.policies import (
    NAMES,
    DelayedDeliveryPolicy,
    KafkaPolicy,
    PersistencePolicy,
    Policies,
    ReplicationPolicy,
    RetentionPolicy,
    SubscriptionCreationPolicy,
    TopicCreationPolicy,
    decode_policies,
    encode_value,
)
from magnetar.cluster.policies.policy_values import Layered
from magnetar.cluster.policies.rate_values import (
    DispatchRate,
    PublishRate,
    SubscribeRate,
    SubscriptionRates,
)
from magnetar.cluster.policies.read_rules import ReadRule, ReadRules, Target
from magnetar.model.errors import InvalidPolicyError
from magnetar.model.ledger import Quorums
from magnetar.model.schema import SchemaStrategy

SAID = {
    "retention_policies": {"retentionTimeInMinutes": 60, "retentionSizeInMB": -1},
    "message_ttl_in_seconds": 30,
    "persistence": {
        "bookkeeperEnsemble": 3,
        "bookkeeperWriteQuorum": 3,
        "bookkeeperAckQuorum": 2,
        "managedLedgerMaxMarkDeleteRate": 1.5,
    },
    "subscription_expiration_time_minutes": 0,
    "delayed_delivery_policies": {
        "active": False,
        "tickTime": 100,
        "maxDeliveryDelayInMillis": 5000,
    },
    "read_only_brokers": {"rules": [{"subscription": "r-*", "to": "zone:eu"}]},
    "engine": "partition",
    "partition_replication": {
        "replicationFactor": 3,
        "minInSyncReplicas": 2,
        "uncleanLeaderElection": True,
    },
    "schema_compatibility_strategy": "FORWARD",
    "schema_validation_enforced": True,
    "compaction_threshold": 100 << 30,
    "deduplicationEnabled": False,
    "kafka": {
        "compressionType": "zstd",
        "maxMessageBytes": 70_000,
        "segmentBytes": 1 << 20,
        "segmentMs": 60_000,
        "logAppendTime": True,
        "timestampBeforeMaxMs": 0,
        "timestampAfterMaxMs": 5,
        "cleanupPolicy": "compact,delete",
        "deleteRetentionMs": 0,
        "minCleanableDirtyRatio": 0.25,
        "minCompactionLagMs": 7,
        "maxCompactionLagMs": 8,
    },
    "autoTopicCreationOverride": {
        "allowAutoTopicCreation": True,
        "topicType": "partitioned",
        "defaultNumPartitions": 4,
    },
    "autoSubscriptionCreationOverride": {"allowAutoSubscriptionCreation": False},
    "publishMaxMessageRate": {"publishThrottlingRateInMsg": 5, "publishThrottlingRateInByte": -1},
    "topicDispatchRate": {
        "dispatchThrottlingRateInMsg": -1,
        "dispatchThrottlingRateInByte": 1 << 40,
        "ratePeriodInSecond": 1,
        "relativeToPublishRate": False,
    },
    "subscriptionDispatchRate": {
        "dispatchThrottlingRateInMsg": 7,
        "dispatchThrottlingRateInByte": 0,
        "ratePeriodInSecond": 60,
        "relativeToPublishRate": True,
    },
    "clusterSubscribeRate": {"subscribeThrottlingRatePerConsumer": 3, "ratePeriodInSecond": 30},
    "max_producers_per_topic": 1,
    "max_consumers_per_topic": 2,
    "max_consumers_per_subscription": 3,
    "max_subscriptions_per_topic": 4,
    "max_unacked_messages_per_consumer": 5,
    "max_unacked_messages_per_subscription": 6,
    "max_topics_per_namespace": 7,
    "maxMessageSize": 0,
    "backlog_quota_map": {
        "message_age": {
            "limit": -1,
            "limitSize": -1,
            "limitTime": 60,
            "policy": "consumer_backlog_eviction",
        },
    },
    "subscriptionPolicies": {
        "a/b": {
            "dispatchRate": {
                "dispatchThrottlingRateInMsg": 9,
                "dispatchThrottlingRateInByte": -1,
                "ratePeriodInSecond": 1,
                "relativeToPublishRate": False,
            },
        },
    },
}
MEANT = Policies(
    RetentionPolicy(60, -1),
    30,
    PersistencePolicy(Quorums(3, 3, 2), 1.5),
    0,
    DelayedDeliveryPolicy(False, 100, 5000),
    ReadRules((ReadRule(Target(zone="eu"), "r-*"),)),
    "partition",
    ReplicationPolicy(3, 2, True),
    SchemaStrategy.FORWARD,
    True,
    compaction_threshold_bytes=100 << 30,
    deduplication=False,
    kafka=KafkaPolicy("zstd", 70_000, 1 << 20, 60_000, True, 0, 5, "compact,delete", 0, 0.25, 7, 8),
    topic_creation=TopicCreationPolicy(True, "partitioned", 4),
    subscription_creation=SubscriptionCreationPolicy(False),
    publish_rate=PublishRate(5),
    dispatch_rate=DispatchRate(-1, 1 << 40),
    subscription_dispatch_rate=DispatchRate(7, 0, 60, True),
    subscribe_rate=SubscribeRate(3),
    max_producers=1,
    max_consumers=2,
    max_consumers_per_subscription=3,
    max_subscriptions=4,
    max_unacked_per_consumer=5,
    max_unacked_per_subscription=6,
    max_topics=7,
    max_message_bytes=0,
    backlog_quotas=BacklogQuotas(age=BacklogQuota(-1, 60, QuotaAction.EVICTION)),
    subscription_rates=SubscriptionRates((("a/b", DispatchRate(9)),)),
)


def test_a_node_is_read_and_its_values_are_written_as_they_were() -> None:
    assert decode_policies({**SAID, "is_allow_auto_update_schema": True}) == MEANT
    for field, (name, _) in NAMES.items():
        assert encode_value(getattr(MEANT, field)) == SAID[name]


def test_what_is_not_said_is_none() -> None:
    assert decode_policies({}) == decode_policies({"persistence": None}) == Policies()
    assert encode_value(None) is None


def test_a_topics_word_counts_before_its_namespaces() -> None:
    topic = Policies(message_ttl_s=0, retention=RetentionPolicy(0, 0))
    assert topic.over(MEANT) == Policies(
        RetentionPolicy(0, 0),
        0,
        MEANT.persistence,
        MEANT.subscription_expiration_minutes,
        MEANT.delayed_delivery,
        MEANT.read_only_brokers,
        MEANT.engine,
        MEANT.partition_replication,
        MEANT.schema_strategy,
        MEANT.schema_validation_enforced,
        MEANT.compaction_threshold_bytes,
        MEANT.deduplication,
        MEANT.kafka,
        MEANT.topic_creation,
        MEANT.subscription_creation,
        MEANT.publish_rate,
        MEANT.dispatch_rate,
        MEANT.subscription_dispatch_rate,
        MEANT.subscribe_rate,
        MEANT.max_producers,
        MEANT.max_consumers,
        MEANT.max_consumers_per_subscription,
        MEANT.max_subscriptions,
        MEANT.max_unacked_per_consumer,
        MEANT.max_unacked_per_subscription,
        MEANT.max_topics,
        MEANT.max_message_bytes,
        MEANT.backlog_quotas,
        MEANT.subscription_rates,
    )
    assert Policies().over(MEANT) == MEANT


@dataclass(frozen=True, slots=True)
class Inner(Layered):
    one: int | None = None
    two: int | None = None


@dataclass(frozen=True, slots=True)
class Outer(Layered):
    whole: RetentionPolicy | None = None
    parts: Inner | None = None


def test_what_lies_in_layers_counts_part_by_part_and_all_else_as_a_whole() -> None:
    below = Outer(RetentionPolicy(60, -1), Inner(1, 2))
    assert Outer().over(below) == below
    assert below.over(Outer()) == below
    assert Outer(parts=Inner(two=0)).over(below) == Outer(below.whole, Inner(1, 0))
    assert Outer(RetentionPolicy(0, 0)).over(below) == Outer(RetentionPolicy(0, 0), below.parts)


@pytest.mark.parametrize(
    ("field", "body", "words"),
    [
        ("retention", 5, "a JSON object"),
        ("retention", {}, "retentionTimeInMinutes: None"),
        ("retention", {"retentionTimeInMinutes": 1, "retentionSizeInMB": 0}, "both are 0"),
        ("retention", {"retentionTimeInMinutes": 0, "retentionSizeInMB": -1}, "both are 0"),
        ("retention", {"retentionTimeInMinutes": -2, "retentionSizeInMB": 1}, "from -1"),
        ("retention", {"retentionTimeInMinutes": True, "retentionSizeInMB": 1}, "whole number"),
        ("retention", {"retentionTimeInMinutes": 1.5, "retentionSizeInMB": 1}, "whole number"),
        (
            "retention",
            {"retentionTimeInMinutes": 1, "retentionSizeInMB": 1, "more": 2},
            "more not served",
        ),
        ("message_ttl_s", -1, "from 0"),
        ("message_ttl_s", "5", "whole number"),
        ("message_ttl_s", None, "whole number"),
        ("message_ttl_s", 2**31, "to 2147483647"),
        ("subscription_expiration_minutes", -1, "from 0"),
        (
            "persistence",
            {"bookkeeperEnsemble": 2, "bookkeeperWriteQuorum": 3, "bookkeeperAckQuorum": 2},
            "bookkeeperEnsemble >= bookkeeperWriteQuorum",
        ),
        (
            "persistence",
            {"bookkeeperEnsemble": 2, "bookkeeperWriteQuorum": 2, "bookkeeperAckQuorum": 0},
            "from 1",
        ),
        ("delayed_delivery", {"active": 1, "tickTime": 1}, "neither true nor false"),
        ("kafka", {"compressionType": "brotli"}, "accepted: uncompressed, gzip"),
        ("kafka", {"maxMessageBytes": -1}, "from 0"),
        ("kafka", {"segmentBytes": -1}, "from 0"),
        ("kafka", {"timestampBeforeMaxMs": -1}, "from 0"),
        ("kafka", {"logAppendTime": "yes"}, "true and false"),
        ("kafka", {"segmentJitterMs": 1}, "segmentJitterMs not served"),
        ("delayed_delivery", {"active": True, "tickTime": 0}, "from 1"),
        (
            "delayed_delivery",
            {"active": True, "tickTime": 1, "maxDeliveryDelayInMillis": -1},
            "from 0",
        ),
        ("publish_rate", 5, "a JSON object"),
        ("publish_rate", {"publishThrottlingRateInMsg": -2}, "from -1"),
        ("publish_rate", {"publishThrottlingRateInMsg": "1"}, "whole number"),
        ("publish_rate", {"publishThrottlingRateInByte": 2**63}, "from -1"),
        ("publish_rate", {"ratePeriodInSecond": 1}, "ratePeriodInSecond not served"),
        ("dispatch_rate", {"ratePeriodInSecond": 0}, "from 1"),
        ("dispatch_rate", {"relativeToPublishRate": 1}, "true and false"),
        ("subscription_dispatch_rate", {"dispatchThrottlingRateInMsg": 2**31}, "to 2147483647"),
        ("subscribe_rate", {"ratePeriodInSecond": -1}, "from 1"),
        ("max_producers", -1, "^maxProducersPerTopic must be 0 or more$"),
        ("max_topics", -1, "^maxTopicsPerNamespace must be 0 or more$"),
        ("max_topics", "9", "whole number"),
        ("max_message_bytes", None, "whole number"),
    ],
)
def test_what_cannot_be_meant_is_refused(field: str, body: object, words: str) -> None:
    with pytest.raises(InvalidPolicyError, match=words):
        NAMES[field][1](body)


@pytest.mark.parametrize("name", ["maxDeliveryDelayInMillis", "maxDelayInMillis"])
def test_the_longest_delay_has_two_names(name: str) -> None:
    """Go's admin client has one of its own; it could not set a bound."""
    body = {"active": True, "tickTime": 1000, name: 60_000}
    found = DelayedDeliveryPolicy.decode(body)
    assert found == DelayedDeliveryPolicy(True, 1000, 60_000)
    with pytest.raises(InvalidPolicyError, match=f"{name}.*whole number"):
        DelayedDeliveryPolicy.decode({**body, name: "x"})


def test_what_a_body_leaves_out_of_a_rate_sets_no_limit() -> None:
    """As Pulsar's clients have it, which leave out what nobody named."""
    assert PublishRate.decode({}) == PublishRate(-1, -1)
    assert DispatchRate.decode({"dispatchThrottlingRateInMsg": 3}) == DispatchRate(3, -1, 1, False)
    assert SubscribeRate.decode({"subscribeThrottlingRatePerConsumer": 2}) == SubscribeRate(2, 30)
