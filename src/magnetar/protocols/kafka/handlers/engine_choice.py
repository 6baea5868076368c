"""What a topic is kept by that is made by Kafka's protocol, and how many copies it has where the
client does not say.

What is said holds: by the request, by the topic's policies, by its namespace's. Else a topic whose
``cleanup.policy`` has ``compact`` is made on partitions, which alone are compacted in place, where
the cluster's brokers keep partitions; all others as ``broker.engine`` says. Where something is in
force that partitions do not serve, neither is made (``topics.engine_rules``).

Who says neither engine nor number of replicas gets no fewer copies than on ledgers, as far as there
are brokers: as many replicas as ledgers have copies, and as many in sync as copies are awaited.

Why: docs/adr/0190-compacted-topics-are-made-on-partitions.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

import structlog

from magnetar.cluster.policies.policies import ReplicationPolicy, decode_engine
from magnetar.cluster.topic_name import TopicName
from magnetar.log.policy import Engine, LogPolicy
from magnetar.model.errors import InvalidPolicyError
from magnetar.protocols.kafka.services import CopyDefaults, KafkaServices
from magnetar.protocols.kafka.topic_settings import compacts
from magnetar.topics.engine_rules import EngineRules

log = structlog.get_logger(__name__)

NOT_KEPT: Final = (
    "magnetar.engine = partition, and not every broker keeps partitions: set partition.directory "
    "on all of them, or leave the engine out"
)


@dataclass(frozen=True, slots=True)
class EngineChoice:
    """``engine``: of the topic. ``is_stored``: it goes into the topic's policies.
    ``for_compaction``: nobody said it. ``policy``: what holds for the log otherwise."""

    engine: Engine
    is_stored: bool
    for_compaction: bool
    policy: LogPolicy

    @property
    def on_ledgers(self) -> bool:
        return self.engine is Engine.LEDGER


class Copies(NamedTuple):
    """0: as brokers are configured."""

    replicas: int
    in_sync_least: int


AS_CONFIGURED: Final = Copies(0, 0)


async def choose(
    services: KafkaServices, topic: TopicName, said: str | None, cleanup: str | None
) -> EngineChoice:
    """``said``, ``cleanup``: by the request. Raises ``InvalidPolicyError``, ``MetadataError``."""
    choice = await _choice(services, topic, said, cleanup)
    if choice.is_stored and not choice.on_ledgers:
        if not choice.for_compaction and not await _keep_partitions(services):
            raise InvalidPolicyError(NOT_KEPT)
        await EngineRules(services.control, services.topics).check_topic(
            topic, "engine", choice.engine.value
        )
    return choice


async def _choice(
    services: KafkaServices, topic: TopicName, said: str | None, cleanup: str | None
) -> EngineChoice:
    policy = (await services.topics.policies.of(topic)).log
    if said is not None:
        return EngineChoice(Engine(decode_engine(said)), True, False, policy)
    if policy.engine is Engine.LEDGER and compacts(cleanup) and await _is_open(services, topic):
        return EngineChoice(Engine.PARTITION, True, True, policy)
    return EngineChoice(policy.engine, False, False, policy)


async def _is_open(services: KafkaServices, topic: TopicName) -> bool:
    """Whether no policy says ``ledger``, and whoever owns the topic's partitions can keep them."""
    if (await services.control.policies.effective(topic)).engine is not None:
        return False
    return await _keep_partitions(services)


async def _keep_partitions(services: KafkaServices) -> bool:
    """Whether every broker that may own a topic has a place for partitions."""
    if services.directory is None:
        return False
    if services.replicated is None:
        return True  # no other broker owns anything
    reports = (await services.control.bundles.reports()).values()
    owners = [each for each in reports if not each.read_only]
    return all(each.node_id >= 0 for each in owners)


def copies_of(defaults: CopyDefaults, choice: EngineChoice, brokers: int) -> Copies:
    """Of a topic whose request says no replication factor, with so many brokers."""
    wanted = choice.policy.quorums or defaults.quorums
    configured = choice.policy.replication_factor or defaults.replication_factor
    if not choice.for_compaction or configured >= wanted.write_quorum:
        return AS_CONFIGURED
    replicas = max(1, min(wanted.write_quorum, brokers))
    return Copies(replicas, min(wanted.ack_quorum, replicas))


def replicas_of(
    defaults: CopyDefaults, choice: EngineChoice, said: ReplicationPolicy | None
) -> int:
    """That a partition of the topic gets; of ledgers 1, whose copies are no replicas of brokers."""
    if choice.on_ledgers:
        return 1
    configured = choice.policy.replication_factor or defaults.replication_factor
    return configured if said is None else said.replication_factor or configured


def tell(defaults: CopyDefaults, topic: TopicName, choice: EngineChoice, replicas: int) -> None:
    """What was chosen, in the broker's log."""
    wanted = choice.policy.quorums or defaults.quorums
    said = log.warning if replicas < wanted.ack_quorum else log.info
    said(
        "a topic is made on partitions, since it is to be compacted, and no engine was said",
        topic=str(topic),
        replicas=replicas,
        copies_on_ledgers=wanted.write_quorum,
    )
