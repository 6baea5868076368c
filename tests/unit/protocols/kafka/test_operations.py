"""What a client may do, as admins ask for it."""

from __future__ import annotations

from pathlib import Path

from magnetar.wire.kafka.apis import ApiKey
from magnetar.wire.kafka.cluster_messages import (
    NOT_SAID,
    DescribeClusterRequest,
    MetadataRequest,
    MetadataTopic,
)
from magnetar.wire.kafka.consumer_group_messages import ConsumerGroupDescribeRequest
from magnetar.wire.kafka.errors import ErrorCode
from magnetar.wire.kafka.group_messages import DescribeGroupsRequest
from magnetar.wire.kafka.partition_messages import (
    DescribeTopicName,
    DescribeTopicPartitionsRequest,
)
from tests.unit.protocols.kafka.harness import KafkaPeer, KafkaWorld, run
from tests.unit.protocols.kafka.secured import ROOT, SecuredWorld, run_secured

# By Kafka's numbers of operations: READ 3, WRITE 4, CREATE 5, DELETE 6, ALTER 7, DESCRIBE 8,
# CLUSTER_ACTION 9, DESCRIBE_CONFIGS 10, ALTER_CONFIGS 11, IDEMPOTENT_WRITE 12.
ALL_OF_TOPIC = {3, 4, 5, 6, 7, 8, 10, 11}
ALL_OF_CLUSTER = {5, 7, 8, 9, 10, 11, 12}
ALL_OF_GROUP = {3, 6, 8, 10, 11}
LAST_WITH_CLUSTER = 10
"""The version of Metadata."""


def operations(number: int) -> set[int]:
    return {bit for bit in range(32) if number >> bit & 1}


async def of_topic(peer: KafkaPeer, name: str = "t") -> set[int]:
    asked = MetadataRequest([MetadataTopic(name=name)], include_topic_operations=True)
    (topic,) = (await peer.ask(ApiKey.METADATA, asked)).topics
    assert topic.error_code == 0
    paged = DescribeTopicPartitionsRequest([DescribeTopicName(name)], 10)
    (described,) = (await peer.ask(ApiKey.DESCRIBE_TOPIC_PARTITIONS, paged)).topics
    assert described.operations == topic.operations
    return operations(topic.operations)


async def of_cluster(peer: KafkaPeer) -> set[int]:
    answer = await peer.ask(ApiKey.DESCRIBE_CLUSTER, DescribeClusterRequest(True))
    asked = MetadataRequest([], include_cluster_operations=True)
    older = await peer.ask(ApiKey.METADATA, asked, LAST_WITH_CLUSTER)
    assert older.cluster_operations == answer.operations
    return operations(answer.operations)


def test_where_nobody_is_asked_everything_may_be_done() -> None:
    async def scenario(world: KafkaWorld) -> None:
        peer = world.peer()
        assert await of_topic(peer) == ALL_OF_TOPIC
        assert await of_cluster(peer) == ALL_OF_CLUSTER
        asked = DescribeGroupsRequest(["g"], True)
        (group,) = (await peer.ask(ApiKey.DESCRIBE_GROUPS, asked)).groups
        assert operations(group.operations) == ALL_OF_GROUP

    run(scenario)


def test_who_does_not_ask_is_not_told() -> None:
    async def scenario(world: KafkaWorld) -> None:
        peer = world.peer()
        every = await peer.ask(ApiKey.METADATA, MetadataRequest(None), LAST_WITH_CLUSTER)
        assert every.cluster_operations == NOT_SAID
        assert [topic.operations for topic in every.topics] == [NOT_SAID]
        cluster = await peer.ask(ApiKey.DESCRIBE_CLUSTER, DescribeClusterRequest())
        assert cluster.operations == NOT_SAID
        (group,) = (await peer.ask(ApiKey.DESCRIBE_GROUPS, DescribeGroupsRequest(["g"]))).groups
        assert group.operations == NOT_SAID
        asked = ConsumerGroupDescribeRequest(["g"], True)
        (missing,) = (await peer.ask(ApiKey.CONSUMER_GROUP_DESCRIBE, asked)).groups
        assert missing.operations == NOT_SAID, "there is no such group"
        named = [MetadataTopic(name="none")]
        unknown = MetadataRequest(named, False, include_topic_operations=True)
        (topic,) = (await peer.ask(ApiKey.METADATA, unknown)).topics
        assert topic.operations == NOT_SAID

    run(scenario)


def test_a_role_is_told_what_it_may_do(tmp_path: Path) -> None:
    async def scenario(world: SecuredWorld) -> None:
        carol = await world.known("carol")
        await world.grant("carol", "consume")
        assert await of_topic(carol) == {3, 8, 10}
        assert await of_cluster(carol) == {8, 12}
        dora = await world.known("dora")
        await world.grant("dora", "produce")
        assert await of_topic(dora) == {4, 8, 10}
        asked = DescribeGroupsRequest(["g"], True)
        (group,) = (await dora.ask(ApiKey.DESCRIBE_GROUPS, asked)).groups
        refused = ErrorCode.GROUP_AUTHORIZATION_FAILED
        assert (group.error_code, group.operations) == (refused, NOT_SAID)
        root = await world.known(ROOT)
        assert await of_topic(root) == ALL_OF_TOPIC
        assert await of_cluster(root) == ALL_OF_CLUSTER
        (group,) = (await root.ask(ApiKey.DESCRIBE_GROUPS, asked)).groups
        assert operations(group.operations) == ALL_OF_GROUP

    run_secured(tmp_path, scenario)
