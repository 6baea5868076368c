"""What topics are kept by that are made by Kafka's protocol, and how many copies they have."""

from __future__ import annotations

from dataclasses import replace

import pytest

from magnetar.cluster.brokers.reports import BrokerReport
from magnetar.cluster.topic_name import parse_topic
from magnetar.log.policy import Engine, LogPolicy, RollRule
from magnetar.model.ledger import Quorums
from magnetar.protocols.kafka.handlers.engine_choice import EngineChoice, copies_of, replicas_of
from magnetar.protocols.kafka.services import CopyDefaults, KnownReplicas
from magnetar.wire.kafka.admin_messages import (
    CreatedTopic,
    CreateTopicsRequest,
    NewTopic,
    TopicConfig,
)
from magnetar.wire.kafka.apis import ApiKey
from magnetar.wire.kafka.cluster_messages import MetadataRequest, MetadataTopic
from magnetar.wire.kafka.errors import ErrorCode
from tests.unit.protocols.kafka.harness import KafkaPeer, KafkaWorld, KeptPartitions, run

COMPACT = {"cleanup.policy": "compact"}


class Others:
    """Brokers that can have replicas."""

    def __init__(self, count: int, away: int = 0) -> None:
        self.count = count
        self.away = away

    async def brokers(self) -> int:
        return self.count

    async def brokers_away(self) -> int:
        return self.away

    def replicas_of(self, name: object) -> None:
        return None

    async def planned(self, name: object, leader: int, factor: int) -> KnownReplicas:
        replicas = range(leader, leader + factor)
        return KnownReplicas(leader, -1, replicas, replicas[: self.count])


async def made(
    peer: KafkaPeer, name: str, factor: int = -1, *, asks: bool = False, **configs: str
) -> CreatedTopic:
    new = NewTopic(name, 2, factor)
    new.configs += [TopicConfig(each, value) for each, value in configs.items()]
    request = CreateTopicsRequest([new], validate_only=asks)
    (said,) = (await peer.ask(ApiKey.CREATE_TOPICS, request)).topics
    return said  # type: ignore[no-any-return]


def engine_of(said: CreatedTopic) -> str:
    assert said.error_code == ErrorCode.NONE, said.error_message
    return {each.name: each.value or "" for each in said.configs or []}["magnetar.engine"]


def test_what_is_to_be_compacted_is_made_on_partitions() -> None:
    async def scenario(world: KafkaWorld) -> None:
        peer, services = world.peer(), world.services
        services.directory = KeptPartitions()  # type: ignore[assignment]
        for name, configs, engine in (
            ("changelog", COMPACT, "partition"),
            ("windows", {"cleanup.policy": "delete, compact"}, "partition"),
            ("repartition", {"cleanup.policy": "delete"}, "ledger"),
            ("plain", {}, "ledger"),
            ("said", {**COMPACT, "magnetar.engine": "partition"}, "partition"),
        ):
            assert engine_of(await made(peer, name, asks=True, **configs)) == engine
            assert engine_of(await made(peer, name, **configs)) == engine, name
            policy = await services.topics.policies.of(parse_topic(f"{name}-partition-0"))
            assert policy.log.engine.value == engine, "so it is opened"
        again = await made(peer, "plain", **COMPACT)
        assert again.error_code == ErrorCode.TOPIC_ALREADY_EXISTS
        assert (await services.control.policies.of_topic(parse_topic("plain"))).engine is None

    run(scenario)


def test_the_answer_says_what_holds() -> None:
    async def scenario(world: KafkaWorld) -> None:
        world.services.directory = KeptPartitions()  # type: ignore[assignment]
        said = await made(world.peer(), "changelog", **COMPACT, **{"max.message.bytes": "2000"})
        found = {each.name: each for each in said.configs or []}
        assert found["cleanup.policy"].value == "compact"
        assert found["max.message.bytes"].value == "2000"
        assert found["magnetar.engine"].read_only
        assert (said.partitions, said.replication_factor) == (2, 1)

    run(scenario)


def test_what_is_said_of_the_engine_holds() -> None:
    async def scenario(world: KafkaWorld) -> None:
        peer, services = world.peer(), world.services
        refused = await made(peer, "no-directory", **COMPACT)
        assert refused.error_code == ErrorCode.INVALID_CONFIG
        assert "partition.directory" in (refused.error_message or "")
        services.directory = KeptPartitions()  # type: ignore[assignment]
        refused = await made(peer, "by-request", **COMPACT, **{"magnetar.engine": "ledger"})
        assert refused.error_code == ErrorCode.INVALID_CONFIG
        policies = services.control.policies
        await policies.set_namespace("public/default", "engine", "ledger")
        refused = await made(peer, "by-namespace", **COMPACT)
        assert refused.error_code == ErrorCode.INVALID_CONFIG
        await policies.set_namespace("public/default", "engine", "partition")
        assert engine_of(await made(peer, "by-namespace", **COMPACT)) == "partition"

    run(scenario)


def test_every_owner_must_keep_partitions(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(world: KafkaWorld) -> None:
        peer, services = world.peer(), world.services
        services.directory = KeptPartitions()  # type: ignore[assignment]
        services.replicated = Others(2)  # type: ignore[assignment]
        one = BrokerReport("one", 1, "pulsar://one", "http://one", node_id=1)
        reports = {"one": one, "two": replace(one, broker_id="two", node_id=-1)}

        async def known() -> dict[str, BrokerReport]:
            return reports

        monkeypatch.setattr(services.control.bundles, "reports", known)
        refused = await made(peer, "t1", **COMPACT)
        assert refused.error_code == ErrorCode.INVALID_CONFIG
        reports["two"] = replace(reports["two"], read_only=True)
        assert engine_of(await made(peer, "t1", **COMPACT)) == "partition"
        reports["two"] = replace(one, broker_id="two", node_id=2)
        assert engine_of(await made(peer, "t2", **COMPACT)) == "partition"

    run(scenario)


def test_partitions_that_cannot_serve_what_holds_are_not_made() -> None:
    async def scenario(world: KafkaWorld) -> None:
        peer, services = world.peer(), world.services
        said = {"magnetar.engine": "partition"}
        refused = await made(peer, "nowhere", **said)
        assert refused.error_code == ErrorCode.INVALID_CONFIG
        assert "partition.directory" in (refused.error_message or "")
        services.directory = KeptPartitions()  # type: ignore[assignment]
        policies = services.control.policies
        await policies.set_namespace("public/default", "deduplication", True)
        for configs in (said, COMPACT):
            refused = await made(peer, "twice", **configs)
            assert refused.error_code == ErrorCode.INVALID_CONFIG
            assert "deduplication is in force" in (refused.error_message or "")
        assert (await policies.of_topic(parse_topic("twice"))).engine is None
        assert (await made(peer, "twice")).error_code == ErrorCode.NONE

    run(scenario)


def test_copies_are_no_fewer_than_on_ledgers() -> None:
    async def scenario(world: KafkaWorld) -> None:
        peer, services = world.peer(), world.services
        services.directory = KeptPartitions()  # type: ignore[assignment]
        services.replicated = Others(4)  # type: ignore[assignment]
        services.defaults = CopyDefaults(Quorums(4, 3, 2), 1)
        policies = services.control.policies
        for name, factor, configs, has in (
            ("not-said", -1, COMPACT, (3, 2)),
            ("factor", 2, COMPACT, (2, 0)),
            ("in-sync", -1, {**COMPACT, "min.insync.replicas": "1"}, (3, 1)),
            ("engine", -1, {**COMPACT, "magnetar.engine": "partition"}, None),
            ("on-ledgers", 3, {}, None),
        ):
            said = await made(peer, name, factor, **configs)
            assert said.error_code == ErrorCode.NONE, said.error_message
            found = (await policies.of_topic(parse_topic(name))).partition_replication
            assert (found and (found.replication_factor, found.min_in_sync)) == has, name
            assert said.replication_factor == (has[0] if has else 1)
        refused = await made(peer, "five", 5, **COMPACT)
        assert refused.error_code == ErrorCode.INVALID_REPLICATION_FACTOR

    run(scenario)


def test_brokers_that_are_away_count_where_the_others_can_be_written_to() -> None:
    async def scenario(world: KafkaWorld) -> None:
        peer, services = world.peer(), world.services
        services.directory = KeptPartitions()  # type: ignore[assignment]
        said = {"magnetar.engine": "partition", "min.insync.replicas": "2"}
        for there, away, error in (
            (2, 1, ErrorCode.NONE),
            (2, 0, ErrorCode.INVALID_REPLICATION_FACTOR),
            (1, 2, ErrorCode.INVALID_REPLICATION_FACTOR),
        ):
            services.replicated = Others(there, away)  # type: ignore[assignment]
            assert (await made(peer, f"t{there}{away}", 3, **said)).error_code == error
        assert (await made(peer, "not-said", **COMPACT)).replication_factor == 1

    run(scenario)


@pytest.mark.parametrize(
    ("brokers", "configured", "of_policy", "copies"),
    [
        (5, 1, None, (3, 2)),
        (2, 1, None, (2, 2)),
        (1, 1, None, (1, 1)),
        (5, 3, None, (0, 0)),
        (5, 1, Quorums(5, 4, 3), (4, 3)),
    ],
)
def test_as_many_as_there_are_brokers(
    brokers: int, configured: int, of_policy: Quorums | None, copies: tuple[int, int]
) -> None:
    defaults = CopyDefaults(Quorums(3, 3, 2), configured)
    policy = LogPolicy(RollRule(1, 1, 1), quorums=of_policy)
    choice = EngineChoice(Engine.PARTITION, True, True, policy)
    assert copies_of(defaults, choice, brokers) == copies
    assert copies_of(defaults, replace(choice, for_compaction=False), brokers) == (0, 0)
    assert replicas_of(defaults, choice, None) == configured


def test_partitions_that_nobody_has_used_are_shown_with_the_replicas_that_they_get() -> None:
    """A tool that makes topics as they are described would see one replica of three."""

    async def scenario(world: KafkaWorld) -> None:
        peer, services = world.peer(), world.services
        services.directory = KeptPartitions()  # type: ignore[assignment]
        services.replicated = Others(2, away=1)  # type: ignore[assignment]
        services.defaults = CopyDefaults(replication_factor=2)
        await made(peer, "p", 3, **{"magnetar.engine": "partition", "min.insync.replicas": "2"})
        await made(peer, "q", **{"magnetar.engine": "partition"})
        await made(peer, "l", 3, **{"magnetar.engine": "ledger"})
        request = MetadataRequest([MetadataTopic(name=name) for name in ("p", "q", "l")])
        found = (await peer.ask(ApiKey.METADATA, request)).topics
        me = services.node.node_id
        assert [
            (each.replicas, each.in_sync) for topic in found for each in topic.partitions
        ] == 2 * [([me, me + 1, me + 2], [me, me + 1])] + 2 * [([me, me + 1], [me, me + 1])] + 2 * [
            ([me], [me])
        ]

    run(scenario)
