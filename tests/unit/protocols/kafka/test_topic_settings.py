"""Configurations of topics: what is taken counts, what cannot count is refused, and why."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import pytest

from magnetar.cluster.namespaces import Namespaces
from magnetar.cluster.partitioned_topics import PartitionedTopics
from magnetar.cluster.policies.policies import COMPRESSION_TYPES, KafkaPolicy, Policies
from magnetar.cluster.policies.topic_policies import TopicPolicies
from magnetar.cluster.topic_name import PARTITIONS_MAX, parse_topic
from magnetar.env.files.disk import DiskSpace
from magnetar.log.policy import PieceRule
from magnetar.model.errors import InvalidPolicyError, MetadataUnavailableError
from magnetar.protocols.kafka.handlers.configs import policy_changes
from magnetar.protocols.kafka.handlers.recompression import CODECS
from magnetar.protocols.kafka.services import KeptReplica
from magnetar.protocols.kafka.topic_settings import (
    APPEND,
    DELETE,
    FIXED,
    SET,
    SETTABLE,
    SUBTRACT,
    WHY_NOT,
    changes_of,
)
from magnetar.wire.kafka.admin_messages import (
    AlterConfigsRequest,
    AlterResource,
    ChangeResource,
    ConfigChange,
    CreatePartitionsRequest,
    CreateTopicsRequest,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    GrowTopic,
    IncrementalAlterConfigsRequest,
    NewTopic,
    ReplicaAssignment,
    TopicConfig,
)
from magnetar.wire.kafka.apis import ApiKey
from magnetar.wire.kafka.batches import check_produced
from magnetar.wire.kafka.cluster_messages import MetadataRequest, MetadataTopic
from magnetar.wire.kafka.compression import Codec
from magnetar.wire.kafka.errors import ErrorCode
from magnetar.wire.kafka.produce_messages import ProducePartition, ProduceRequest, ProduceTopic
from magnetar.wire.kafka.records import read_batch
from tests.unit.protocols.kafka.harness import KafkaPeer, KafkaWorld, batch, rebuilt, run

MOST = 5 << 20


async def described(peer: KafkaPeer, topic: str = "t") -> dict[str, Any]:
    asked = DescribeConfigsRequest([DescribeConfigsResource(2, topic, None)])
    (said,) = (await peer.ask(ApiKey.DESCRIBE_CONFIGS, asked)).results
    assert said.error_code == 0
    return {each.name: each for each in said.configs}


async def changed(peer: KafkaPeer, *changes: ConfigChange) -> Any:
    asked = IncrementalAlterConfigsRequest([ChangeResource(2, "t", list(changes))])
    (said,) = (await peer.ask(ApiKey.INCREMENTAL_ALTER_CONFIGS, asked)).responses
    return said


def values(found: Mapping[str, Any]) -> dict[str, str]:
    """What the topic says itself."""
    return {name: each.value for name, each in found.items() if each.source == 1}


def test_what_is_named_is_known() -> None:
    assert tuple(CODECS) == COMPRESSION_TYPES
    assert not set(SETTABLE) & (set(FIXED) | set(WHY_NOT))


@pytest.mark.parametrize("name", sorted({*FIXED, *WHY_NOT, "x.y"}))
def test_nothing_is_taken_that_has_no_effect(name: str) -> None:
    with pytest.raises(InvalidPolicyError, match=f"{name} cannot be set here"):
        changes_of({name: "77"}, MOST)
    if name in FIXED:
        assert changes_of({name: FIXED[name]}, MOST) == {}, "it is so"
        assert changes_of({name: None}, MOST) == {}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("compression.type", "brotli"),
        ("compression.type", ""),
        ("max.message.bytes", "0"),
        ("max.message.bytes", str(MOST + 1)),
        ("max.message.bytes", "much"),
        ("retention.ms", "-2"),
        ("segment.bytes", str((1 << 20) - 1)),
        ("segment.bytes", str(1 << 31)),
        ("segment.ms", "0"),
    ],
)
def test_values_that_cannot_be_kept_are_refused(name: str, value: str) -> None:
    with pytest.raises(InvalidPolicyError, match=name):
        changes_of({name: value}, MOST)


def test_clients_from_before_kafka_1_1_are_told_which_values_are_defaults() -> None:
    """By Java's of then: it asks with version 0 alone."""

    async def scenario(world: KafkaWorld) -> None:
        peer = world.peer()
        assert (await changed(peer, ConfigChange("retention.ms", SET, "60000"))).error_code == 0
        asked = DescribeConfigsRequest([DescribeConfigsResource(2, "t", None)])
        (said,) = (await peer.ask(ApiKey.DESCRIBE_CONFIGS, asked, version=0)).results
        found = {each.name: each for each in said.configs}
        retention, kept = found["retention.ms"], found["compression.type"]
        assert (retention.value, retention.is_default) == ("60000", False)
        assert (kept.value, kept.is_default) == ("producer", True)

    run(scenario)


def test_limits_that_are_not_said_are_as_elsewhere() -> None:
    """``retention.bytes=-1`` was shown as the topic's own beside its ``retention.ms``; without it
    again the topic kept everything, whatever its namespace said."""

    async def scenario(world: KafkaWorld) -> None:
        peer = world.peer()
        policies = {"retention_policies": {"retentionTimeInMinutes": 5, "retentionSizeInMB": 7}}
        await world.services.control.namespaces.change_policies("public/default", policies)

        async def limits() -> list[tuple[str | None, bool]]:
            """Of time and of size: the value, and whether it is the topic's own."""
            found = await described(peer)
            pair = found["retention.ms"], found["retention.bytes"]
            return [(each.value, each.source == 1) for each in pair]

        async def says(name: str, operation: int, value: str | None = None) -> None:
            assert (await changed(peer, ConfigChange(name, operation, value))).error_code == 0

        of_namespace = [("300000", False), (str(7 << 20), False)]
        assert await limits() == of_namespace
        await says("retention.ms", DELETE)
        assert await limits() == of_namespace, "nothing was said of it"
        await says("retention.ms", SET, "60000")
        assert await limits() == [("60000", True), ("-1", False)]
        await says("retention.bytes", SET, str(1 << 20))
        assert await limits() == [("60000", True), (str(1 << 20), True)]
        await says("retention.ms", DELETE)
        assert await limits() == [("-1", False), (str(1 << 20), True)]
        await says("retention.bytes", DELETE)
        assert await limits() == of_namespace
        await says("retention.ms", SET, "-1")
        assert await limits() == [("-1", True), ("-1", True)]

    run(scenario)


def test_what_was_never_set_is_deleted_as_nothing() -> None:
    """`kafka-reassign-partitions --verify` and `--cancel` delete throttles that nobody has set, and
    ended with an error."""

    async def scenario(world: KafkaWorld) -> None:
        peer = world.peer()
        throttle = ConfigChange("leader.replication.throttled.replicas", DELETE)
        assert (await changed(peer, throttle)).error_code == 0
        rate = ConfigChange("leader.replication.throttled.rate", DELETE)
        both = [rate, ConfigChange("log.retention.ms", SET, "1")]
        broker = ChangeResource(4, "0", [rate])
        codes = []
        for each in (broker, ChangeResource(4, "0", both)):
            asked = IncrementalAlterConfigsRequest([each])
            (said,) = (await peer.ask(ApiKey.INCREMENTAL_ALTER_CONFIGS, asked)).responses
            codes.append(said.error_code)
        assert codes == [ErrorCode.NONE, ErrorCode.INVALID_CONFIG]

    run(scenario)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        (
            [ConfigChange("cleanup.policy", APPEND, "x"), ConfigChange("cleanup.policy", DELETE)],
            "there twice in one request: cleanup.policy",
        ),
        ([ConfigChange("retention.ms", SET)], "a value is missing: retention.ms"),
        ([ConfigChange("cleanup.policy", APPEND)], "a value is missing: cleanup.policy"),
    ],
)
def test_a_change_that_can_be_meant_in_two_ways_is_refused(
    changes: list[ConfigChange], why: str
) -> None:
    """The last one was taken, and one without a value as if it had been deleted."""

    async def scenario(world: KafkaWorld) -> None:
        said = await changed(world.peer(), *changes)
        assert (said.error_code, said.error_message) == (ErrorCode.INVALID_REQUEST, why)
        assert values(await described(world.peer())) == {}

    run(scenario)


def test_a_resource_is_changed_once_by_a_request() -> None:
    async def scenario(world: KafkaWorld) -> None:
        peer = world.peer()
        set_ = [ConfigChange("retention.ms", SET, "60000")]
        resources = [ChangeResource(2, "t", set_), ChangeResource(2, "t", set_)]
        asked = IncrementalAlterConfigsRequest(resources)
        (said,) = (await peer.ask(ApiKey.INCREMENTAL_ALTER_CONFIGS, asked)).responses
        assert said.error_code == ErrorCode.INVALID_REQUEST
        configs = [TopicConfig("retention.ms", "60000")]
        all_of_it = AlterConfigsRequest(2 * [AlterResource(2, "t", configs)])
        (said,) = (await peer.ask(ApiKey.ALTER_CONFIGS, all_of_it)).responses
        assert said.error_code == ErrorCode.INVALID_REQUEST
        unsaid = AlterConfigsRequest([AlterResource(2, "t", [TopicConfig("retention.ms", None)])])
        (said,) = (await peer.ask(ApiKey.ALTER_CONFIGS, unsaid)).responses
        assert said.error_code == ErrorCode.INVALID_REQUEST
        assert values(await described(peer)) == {}

    run(scenario)


def test_kinds_without_configuration_are_named() -> None:
    async def scenario(world: KafkaWorld) -> None:
        peer = world.peer()
        for kind, what in ((8, "loggers of brokers"), (16, "metrics of clients"), (99, "kind 99")):
            asked = DescribeConfigsRequest([DescribeConfigsResource(kind, "0", None)])
            (said,) = (await peer.ask(ApiKey.DESCRIBE_CONFIGS, asked)).results
            assert said.error_code == ErrorCode.INVALID_CONFIG
            assert what in said.error_message

    run(scenario)


def test_settings_are_set_described_and_deleted() -> None:
    async def scenario(world: KafkaWorld) -> None:
        peer = world.peer()
        before = await described(peer)
        assert values(before) == {}
        assert before["compression.type"].value == "producer"
        assert before["max.message.bytes"].value == str(world.services.broker.message_bytes_max)
        said = await changed(
            peer,
            ConfigChange("compression.type", SET, "gzip"),
            ConfigChange("max.message.bytes", SET, "1000"),
            ConfigChange("retention.ms", SET, "60000"),
        )
        assert (said.error_code, said.error_message) == (0, None)
        set_to = {"compression.type": "gzip", "max.message.bytes": "1000", "retention.ms": "60000"}
        assert values(await described(peer)) == set_to
        policy = await world.services.topics.policies.of(parse_topic("t"))
        assert policy.kafka == KafkaPolicy("gzip", 1000)
        assert (await changed(peer, ConfigChange("compression.type", DELETE))).error_code == 0
        assert (await changed(peer, ConfigChange("max.message.bytes", DELETE))).error_code == 0
        assert "compression.type" not in values(await described(peer))
        # All that is not said is as nobody says it.
        config = TopicConfig("compression.type", "zstd")
        asked = AlterConfigsRequest([AlterResource(2, "t", [config])])
        (altered,) = (await peer.ask(ApiKey.ALTER_CONFIGS, asked)).responses
        assert altered.error_code == 0
        assert values(await described(peer)) == {"compression.type": "zstd"}

    run(scenario)


def test_a_topic_says_what_its_log_is_cut_into() -> None:
    async def scenario(world: KafkaWorld) -> None:
        peer, name = world.peer(), parse_topic("t")
        configured = world.store.policy.roll
        found = await described(peer)
        assert found["segment.bytes"].value == str(configured.bytes_max)
        assert found["segment.ms"].value == str(configured.age_ms_max)
        said = await changed(
            peer,
            ConfigChange("segment.bytes", SET, "1048576"),
            ConfigChange("segment.ms", SET, str(2**63 - 1)),
            ConfigChange("compression.type", SET, "gzip"),
        )
        assert (said.error_code, said.error_message) == (0, None)
        set_to = {"segment.bytes": "1048576", "segment.ms": str(2**63 - 1)}
        assert values(await described(peer)) == {**set_to, "compression.type": "gzip"}
        policy = (await world.services.topics.policies.of(name)).log
        assert policy.pieces == PieceRule(1 << 20, 2**63 - 1)
        assert policy.roll.bytes_max == configured.bytes_max, "smaller ones are looked at apart"
        assert policy.roll.age_ms_max == 2**63 - 1
        for setting in set_to:
            assert (await changed(peer, ConfigChange(setting, DELETE))).error_code == 0
        assert values(await described(peer)) == {"compression.type": "gzip"}
        assert (await world.services.topics.policies.of(name)).log.pieces == PieceRule()

    run(scenario)


def test_of_partitions_their_own_files_are_described() -> None:
    async def scenario(world: KafkaWorld) -> None:
        peer = world.peer()
        await world.services.control.policies.set_topic(parse_topic("t"), "engine", "partition")
        assert "segment.bytes" not in await described(peer), "it has none, and knows of none"
        world.services.directory = Directory()
        found = await described(peer)
        assert (found["segment.bytes"].value, found["segment.ms"].value) == ("5000", "6000")

    run(scenario)


class Directory:
    path = "/partitions"
    pieces = PieceRule(5000, 6000)

    async def space(self) -> DiskSpace:
        raise OSError("nobody asks")

    def kept(self) -> Sequence[KeptReplica]:
        return ()


def test_lists_are_what_they_would_become() -> None:
    async def scenario(world: KafkaWorld) -> None:
        peer = world.peer()
        for operation, value, error in (
            (APPEND, "delete", ErrorCode.NONE),
            (APPEND, "compact", ErrorCode.INVALID_CONFIG),
            (SUBTRACT, "compact", ErrorCode.NONE),
            (SUBTRACT, "delete", ErrorCode.INVALID_CONFIG),
            (7, "delete", ErrorCode.INVALID_CONFIG),
        ):
            said = await changed(peer, ConfigChange("cleanup.policy", operation, value))
            assert said.error_code == error, (operation, value)
        said = await changed(peer, ConfigChange("compression.type", APPEND, "gzip"))
        assert "no list" in said.error_message

    run(scenario)


def test_a_topic_is_made_with_its_settings_or_not_at_all() -> None:
    async def scenario(world: KafkaWorld) -> None:
        peer = world.peer()

        async def made(name: str, **configs: str) -> int:
            listed = [TopicConfig(each.replace("_", "."), said) for each, said in configs.items()]
            asked = CreateTopicsRequest([NewTopic(name, 1, 1, [], listed)])
            error: int = (await peer.ask(ApiKey.CREATE_TOPICS, asked)).topics[0].error_code
            return error

        assert await made("new", compression_type="lz4") == 0
        assert values(await described(peer, "new")) == {"compression.type": "lz4"}
        assert await made("other", segment_bytes="77") == ErrorCode.INVALID_CONFIG
        assert not await world.services.count_of(parse_topic("other"))

    run(scenario)


def test_a_topic_is_never_there_without_its_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """They were stored after it was made: who asked again after a failure heard that it exists."""

    async def scenario(world: KafkaWorld) -> None:
        peer, policies = world.peer(), world.services.control.policies
        new = NewTopic("made", 1, 1, configs=[TopicConfig("retention.ms", "600000")])
        request = CreateTopicsRequest([new])

        async def away(*_: Any) -> None:
            raise MetadataUnavailableError("no answer")

        with monkeypatch.context() as patched:
            patched.setattr(policies, "make_with", away)
            (failed,) = (await peer.ask(ApiKey.CREATE_TOPICS, request)).topics
        assert failed.error_code == ErrorCode.LEADER_NOT_AVAILABLE
        assert await world.services.count_of(parse_topic("made")) == 0
        (made,) = (await peer.ask(ApiKey.CREATE_TOPICS, request)).topics
        assert not made.error_code
        assert values(await described(peer, "made"))["retention.ms"] == "600000"

    run(scenario)


@pytest.mark.parametrize("validate_only", [False, True])
def test_more_partitions_than_possible_leave_nothing_behind(validate_only: bool) -> None:
    """What was said of the engine was kept, and the next topic of the name had it."""

    async def scenario(world: KafkaWorld) -> None:
        peer, most = world.peer(), PARTITIONS_MAX
        new = NewTopic("large", most + 1, 1, configs=[TopicConfig("magnetar.engine", "ledger")])
        request = CreateTopicsRequest([new], validate_only=validate_only)
        (said,) = (await peer.ask(ApiKey.CREATE_TOPICS, request)).topics
        assert said.error_code == ErrorCode.INVALID_PARTITIONS
        stored = await world.services.control.policies.of_topic(parse_topic("large"))
        assert stored.engine is None
        grown = CreatePartitionsRequest([GrowTopic("t", most + 1)], validate_only=validate_only)
        (answer,) = (await peer.ask(ApiKey.CREATE_PARTITIONS, grown)).topics
        assert answer.error_code == ErrorCode.INVALID_PARTITIONS

    run(scenario)


async def produced(peer: KafkaPeer, *batches: bytes) -> list[tuple[int, str | None]]:
    """The answers, of requests that do not wait for one another."""
    frames = b""
    for each in batches:
        topic = ProduceTopic("t", [ProducePartition(0, memoryview(each))])
        frames += peer.frame(ApiKey.PRODUCE, ProduceRequest(None, -1, 60_000, [topic]), 9)
    # In one piece: nothing else is read from a connection while a request is under way.
    peer.feed(frames)
    found = []
    for _ in batches:
        (topic,) = (await peer.next())[1].topics
        found.append((topic.partitions[0].error_code, topic.partitions[0].error_message))
    return found


async def told(holds: Callable[[], bool]) -> None:
    """An open topic is told of its policy, soon."""
    for _ in range(1000):
        if holds():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it is not told")


def test_batches_are_kept_as_the_topic_says() -> None:
    """On a loop of real time: they are compressed on threads."""

    async def main() -> None:
        world = await KafkaWorld().start()
        peer = world.peer()
        try:
            assert (await produced(peer, batch(3)))[0][0] == 0
            assert (
                await changed(peer, ConfigChange("compression.type", SET, "gzip"))
            ).error_code == 0
            topic = (await world.services.partition("t", 0)).topic
            await told(lambda: bool(topic.policy.kafka.compression))
            known = {"producer_id": 5, "producer_epoch": 0}
            several = [
                batch(2, 3, **known, base_sequence=0),
                batch(2, 5, **known, base_sequence=2),
                batch(2, 5, **known, base_sequence=2),  # sent again
            ]
            assert [code for code, _ in await produced(peer, *several)] == [0, 0, 0]
            stored = world.stored()
            codecs = [check_produced(each).attributes & 7 for each in stored]
            assert codecs == [Codec.NONE, Codec.GZIP, Codec.GZIP], "what came before stays"
            found = [record.value for each in stored for record in read_batch(each)[1]]
            assert found == [b"%d" % number for number in range(7)], "in order, each once"
            ((code, _),) = await produced(peer, rebuilt(batch(), attributes=Codec.SNAPPY))
            assert code == ErrorCode.INVALID_RECORD, "it is no Snappy"
            assert (
                await changed(peer, ConfigChange("max.message.bytes", SET, "70"))
            ).error_code == 0
            await told(lambda: topic.policy.kafka.batch_bytes_max > 0)
            ((code, why),) = await produced(peer, batch(50))
            assert (code, "70" in (why or "")) == (ErrorCode.MESSAGE_TOO_LARGE, True)
            assert len(world.stored()) == len(stored)
        finally:
            await world.broker.close()

    asyncio.run(asyncio.wait_for(main(), 60))


def test_of_two_who_make_a_topic_at_once_the_one_that_makes_it_says_its_settings() -> None:
    """The other one is told that it exists, and its settings stood beside, or over, the first's."""

    async def scenario(world: KafkaWorld) -> None:
        def making(**settings: str) -> Any:
            configs = [
                TopicConfig(name.replace("_", "."), value) for name, value in settings.items()
            ]
            return CreateTopicsRequest([NewTopic("new", 1, configs=configs)])

        first, second, third = world.peer(), world.peer(), world.peer()
        answers = await asyncio.gather(
            first.ask(ApiKey.CREATE_TOPICS, making(retention_ms="60000")),
            second.ask(ApiKey.CREATE_TOPICS, making(retention_ms="120000", segment_ms="1000")),
            third.ask(ApiKey.METADATA, MetadataRequest([MetadataTopic(name="new")])),
        )
        assert [each.topics[0].error_code for each in answers] == [
            ErrorCode.NONE,
            ErrorCode.TOPIC_ALREADY_EXISTS,
            ErrorCode.NONE,
        ]
        policies = await world.services.control.policies.of_topic(parse_topic("new"))
        assert policies.retention is not None
        assert (policies.retention.minutes, policies.kafka) == (1, None)

    run(scenario)


def test_of_two_brokers_that_make_a_topic_at_once_one_says_its_settings(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each stored its own first, and the topic had some of both."""

    async def scenario(world: KafkaWorld) -> None:
        control, name = world.services.control, parse_topic("new")
        theirs = TopicPolicies(world.metadata, Namespaces(world.metadata))
        made = control.partitioned.create

        async def after_another(*asked: Any) -> bool:
            wanted = policy_changes({"segment.ms": 60_000})
            makes = partial(theirs.make_with, name, wanted)
            assert await PartitionedTopics(world.metadata).create(name, 3, makes)
            return await made(*asked)

        monkeypatch.setattr(control.partitioned, "create", after_another)
        configs = [
            TopicConfig("retention.ms", "60000"),
            TopicConfig("compression.type", "lz4"),
            TopicConfig("magnetar.engine", "ledger"),
        ]
        request = CreateTopicsRequest([NewTopic("new", 1, configs=configs)])
        (said,) = (await world.peer().ask(ApiKey.CREATE_TOPICS, request)).topics
        assert said.error_code == ErrorCode.TOPIC_ALREADY_EXISTS
        assert await control.partitioned.partitions(name) == 3
        assert await control.policies.of_topic(name) == Policies(
            kafka=KafkaPolicy(segment_ms=60_000)
        )

    run(scenario)


def test_of_a_topic_that_exists_nothing_else_is_told() -> None:
    """Whoever wants it to be there asks again and again, also while a broker is away."""

    async def scenario(world: KafkaWorld) -> None:
        peer = world.peer()
        for new in (
            NewTopic("t", 1, 300),
            NewTopic("t", 0, 1),
            NewTopic("t", configs=[TopicConfig("retention.ms", "never")]),
            NewTopic("t", assignments=[ReplicaAssignment(0, [1, 2, 3])]),
        ):
            for asks in (False, True):
                request = CreateTopicsRequest([new], validate_only=asks)
                (said,) = (await peer.ask(ApiKey.CREATE_TOPICS, request)).topics
                assert said.error_code == ErrorCode.TOPIC_ALREADY_EXISTS

    run(scenario)


@pytest.mark.parametrize("factor", [0, -2])
def test_a_topic_has_a_replica(factor: int) -> None:
    async def scenario(world: KafkaWorld) -> None:
        request = CreateTopicsRequest([NewTopic("new", 1, factor)])
        (said,) = (await world.peer().ask(ApiKey.CREATE_TOPICS, request)).topics
        assert said.error_code == ErrorCode.INVALID_REPLICATION_FACTOR

    run(scenario)
