"""Partitions as admins ask for them."""

from __future__ import annotations

from magnetar.cluster.topic_name import parse_topic
from magnetar.protocols.kafka.topic_settings import ENGINE
from magnetar.wire.kafka.admin_messages import (
    AlterConfigsRequest,
    AlterResource,
    CreatePartitionsRequest,
    CreateTopicsRequest,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    GrowTopic,
    NewTopic,
    PartitionsAssignment,
    ReplicaAssignment,
    TopicConfig,
)
from magnetar.wire.kafka.apis import ApiKey
from magnetar.wire.kafka.errors import ErrorCode
from magnetar.wire.kafka.partition_messages import (
    DescribeCursor,
    DescribeTopicName,
    DescribeTopicPartitionsRequest,
    ElectLeadersRequest,
    ListPartitionReassignmentsRequest,
    PartitionsOfTopic,
)
from tests.unit.protocols.kafka.harness import KafkaWorld, KeptPartitions, run


def test_partitions_are_described_page_by_page() -> None:
    async def scenario(world: KafkaWorld) -> None:
        await world.services.control.partitioned.create(parse_topic("many"), 5)
        peer = world.peer()
        names = [DescribeTopicName(name) for name in ("t", "none", "many")]
        found: list[tuple[str | None, int]] = []
        errors = {}
        cursor: DescribeCursor | None = None
        pages = 0
        while pages == 0 or cursor is not None:
            pages += 1
            asked = DescribeTopicPartitionsRequest(names, 2, cursor)
            answer = await peer.ask(ApiKey.DESCRIBE_TOPIC_PARTITIONS, asked)
            assert sum(len(topic.partitions) for topic in answer.topics) <= 2
            for topic in answer.topics:
                errors[topic.name] = topic.error_code
                found += [(topic.name, part.index) for part in topic.partitions]
                assert all(part.leader_id == 0 for part in topic.partitions)
            cursor = answer.cursor
        assert pages == 3
        assert found == [*(("many", index) for index in range(5)), ("t", 0)]
        unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert errors == {"many": 0, "none": unknown, "t": 0}

    run(scenario)


def test_all_topics_are_described_page_by_page_where_none_is_named() -> None:
    async def scenario(world: KafkaWorld) -> None:
        peer = world.peer()
        for name in ("many", "u"):
            await world.services.control.partitioned.create(parse_topic(name), 3)
        found: list[tuple[str | None, list[int]]] = []
        cursor: DescribeCursor | None = None
        while not found or cursor is not None:
            asked = DescribeTopicPartitionsRequest([], 2, cursor)
            answer = await peer.ask(ApiKey.DESCRIBE_TOPIC_PARTITIONS, asked)
            found += [
                (each.name, [part.index for part in each.partitions]) for each in answer.topics
            ]
            cursor = answer.cursor
        assert found == [("many", [0, 1]), ("many", [2]), ("t", [0]), ("u", [0, 1]), ("u", [2])]
        odd = DescribeTopicPartitionsRequest([], 9, DescribeCursor("t", -5))
        answer = await peer.ask(ApiKey.DESCRIBE_TOPIC_PARTITIONS, odd)
        assert [len(each.partitions) for each in answer.topics] == [1, 3]

    run(scenario)


def test_no_election_is_needed_and_nothing_moves() -> None:
    async def scenario(world: KafkaWorld) -> None:
        peer = world.peer()
        wanted = [PartitionsOfTopic("t", [0, 1]), PartitionsOfTopic("none", [0])]
        topics = (await peer.ask(ApiKey.ELECT_LEADERS, ElectLeadersRequest(0, wanted))).topics
        assert [part.error_code for topic in topics for part in topic.partitions] == [
            ErrorCode.ELECTION_NOT_NEEDED,
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ]
        listed = await peer.ask(
            ApiKey.LIST_PARTITION_REASSIGNMENTS, ListPartitionReassignmentsRequest(topics=None)
        )
        assert (listed.error_code, listed.topics) == (0, [])

    run(scenario)


def test_a_broker_says_what_holds_there_and_of_no_other() -> None:
    async def scenario(world: KafkaWorld) -> None:
        node = world.services.node
        resources = [
            DescribeConfigsResource(4, name, None) for name in (str(node.node_id), "77", "")
        ]
        answer = await world.peer().ask(ApiKey.DESCRIBE_CONFIGS, DescribeConfigsRequest(resources))
        own, other, common = answer.results
        said = {each.name: each.value for each in own.configs}
        assert said["advertised.listeners"] == f"PLAINTEXT://{node.host}:{node.port}"
        lifetime_ms = world.services.config.session_lifetime_ms
        assert said["connections.max.reauth.ms"] == str(lifetime_ms)
        assert all(each.read_only and each.config_type for each in own.configs)
        assert other.error_code == ErrorCode.POLICY_VIOLATION
        assert (common.error_code, common.configs) == (0, [])

    run(scenario)


def test_limits_of_retention_are_what_can_be_kept() -> None:
    """What a topic's policy cannot hold was taken, and nobody could read the policies of any topic
    that shares its node."""

    async def scenario(world: KafkaWorld) -> None:
        peer = world.peer()

        async def altered(value: str) -> int:
            config = TopicConfig("retention.ms", value)
            asked = AlterConfigsRequest([AlterResource(2, "t", [config])])
            (said,) = (await peer.ask(ApiKey.ALTER_CONFIGS, asked)).responses
            return int(said.error_code)

        async def described() -> str | None:
            asked = DescribeConfigsRequest([DescribeConfigsResource(2, "t", ["retention.ms"])])
            (said,) = (await peer.ask(ApiKey.DESCRIBE_CONFIGS, asked)).results
            return said.configs[0].value

        assert await altered("600000") == 0
        for refused in ("-2", "-99", "9" * 23, str(2**63), "1_000", "5 0", " ", "", "x"):
            assert await altered(refused) == ErrorCode.INVALID_CONFIG, refused
            assert await described() == "600000"
        assert await altered(str(2**63 - 1)) == 0
        assert await described() == "-1", "as good as for ever"
        assert await altered("-1") == 0
        new = NewTopic("u", 1, 1, configs=[TopicConfig("retention.bytes", "-7")])
        (said,) = (await peer.ask(ApiKey.CREATE_TOPICS, CreateTopicsRequest([new]))).topics
        assert said.error_code == ErrorCode.INVALID_CONFIG

    run(scenario)


class ThreeBrokers:
    """All that creating a topic asks of those that replicate."""

    async def brokers(self) -> int:
        return 3


def test_an_in_sync_set_that_nobody_can_keep_is_refused() -> None:
    async def created(
        world: KafkaWorld, least: str, name: str = "new", engine: str = "partition"
    ) -> int:
        configs = [TopicConfig("min.insync.replicas", least), TopicConfig(ENGINE, engine)]
        asked = CreateTopicsRequest([NewTopic(name, 1, 1, [], configs)])
        answer = await world.peer().ask(ApiKey.CREATE_TOPICS, asked)
        error: int = answer.topics[0].error_code
        return error

    async def scenario(world: KafkaWorld) -> None:
        world.services.directory = KeptPartitions()  # type: ignore[assignment]
        ledger = "ledger"  # has no such set, whatever brokers keep beside
        for replicated in (None, ThreeBrokers()):
            world.services.replicated = replicated  # type: ignore[assignment]
            refused = await created(world, "2", "no", ledger)
            assert refused == ErrorCode.INVALID_CONFIG
            name = "one" if replicated is None else "two"
            assert await created(world, "1", name, ledger) == ErrorCode.NONE
        for least in ("two", "0", "-1", ""):
            assert await created(world, least) == ErrorCode.INVALID_CONFIG, least
        assert await created(world, "1") == ErrorCode.NONE

    run(scenario)


def test_unclean_election_is_a_topics_own_setting() -> None:
    async def created(world: KafkaWorld, value: str, name: str) -> int:
        configs = [TopicConfig("unclean.leader.election.enable", value)]
        configs.append(TopicConfig(ENGINE, "ledger" if name == "ledger" else "partition"))
        asked = CreateTopicsRequest([NewTopic(name, 1, 1, [], configs)])
        error: int = (await world.peer().ask(ApiKey.CREATE_TOPICS, asked)).topics[0].error_code
        return error

    async def scenario(world: KafkaWorld) -> None:
        world.services.directory = KeptPartitions()  # type: ignore[assignment]
        assert await created(world, "true", "ledger") == ErrorCode.INVALID_CONFIG
        world.services.replicated = ThreeBrokers()  # type: ignore[assignment]
        assert await created(world, "maybe", "new") == ErrorCode.INVALID_CONFIG
        assert await created(world, "true", "on") == ErrorCode.NONE
        assert await created(world, "false", "off") == ErrorCode.NONE
        for name, value in (("on", "true"), ("off", "false")):
            policy = await world.services.topics.policies.of(parse_topic(name))
            assert policy.log.unclean_election is (value == "true")
            asked = DescribeConfigsRequest([DescribeConfigsResource(2, name, None)])
            (told,) = (await world.peer().ask(ApiKey.DESCRIBE_CONFIGS, asked)).results
            said = {each.name: each.value for each in told.configs}
            assert said["unclean.leader.election.enable"] == value

    run(scenario)


def test_brokers_may_be_given_where_there_is_one() -> None:
    """They were refused always when a topic is made, and passed over when it gets partitions."""

    async def scenario(world: KafkaWorld) -> None:
        peer, own = world.peer(), world.services.node.node_id
        assert own == 0, "alone, as at every start"

        async def created(name: str, *given: tuple[int, list[int]], partitions: int = -1) -> int:
            placed = [ReplicaAssignment(*each) for each in given]
            asked = CreateTopicsRequest([NewTopic(name, partitions, -1, placed)])
            (said,) = (await peer.ask(ApiKey.CREATE_TOPICS, asked)).topics
            return int(said.error_code)

        async def grown(name: str, count: int, *given: list[int]) -> int:
            placed = [PartitionsAssignment(each) for each in given]
            asked = CreatePartitionsRequest([GrowTopic(name, count, placed)])
            (said,) = (await peer.ask(ApiKey.CREATE_PARTITIONS, asked)).topics
            return int(said.error_code)

        refused = ErrorCode.INVALID_REPLICA_ASSIGNMENT
        assert await created("a", (1, [own]), (0, [own])) == 0
        assert await world.services.count_of(parse_topic("a")) == 2
        assert await created("b", (0, [own + 1])) == refused
        assert await created("b", (0, [own, own])) == refused
        assert await created("b", (0, [])) == refused
        assert await created("b", (0, [own]), (2, [own])) == refused
        assert await created("b", (0, [own]), (0, [own])) == refused
        assert await created("b", (0, [own]), partitions=1) == ErrorCode.INVALID_REQUEST
        assert await world.services.count_of(parse_topic("b")) == 0

        assert await grown("a", 4, [own]) == refused
        assert await grown("a", 3, [own + 1]) == refused
        assert await world.services.count_of(parse_topic("a")) == 2
        assert await grown("a", 4, [own], [own]) == 0
        assert await world.services.count_of(parse_topic("a")) == 4

    run(scenario)


def test_a_broker_that_replicates_with_nobody_says_so() -> None:
    """On ledgers copies are the bookies': there a factor says nothing, and clients name one."""

    async def scenario(world: KafkaWorld) -> None:
        world.services.directory = KeptPartitions()  # type: ignore[assignment]
        peer = world.peer()
        for engine, factor, error in (
            ("partition", 3, ErrorCode.INVALID_REPLICATION_FACTOR),
            ("partition", 1, ErrorCode.NONE),
            ("partition", -1, ErrorCode.NONE),
            ("ledger", 3, ErrorCode.NONE),
        ):
            new = NewTopic(f"{factor}-on-{engine}", 1, factor)
            new.configs.append(TopicConfig("magnetar.engine", engine))
            asked = CreateTopicsRequest([new])
            (said,) = (await peer.ask(ApiKey.CREATE_TOPICS, asked)).topics
            assert said.error_code == error, (engine, factor, said.error_message)

    run(scenario)
