"""What a request names more than once is answered once."""

from __future__ import annotations

from typing import Any

import pytest

from magnetar.wire.kafka.admin_messages import DescribeConfigsRequest, DescribeConfigsResource
from magnetar.wire.kafka.apis import ApiKey
from magnetar.wire.kafka.consumer_group_messages import ConsumerGroupDescribeRequest
from magnetar.wire.kafka.group_messages import DeleteGroupsRequest, DescribeGroupsRequest
from magnetar.wire.kafka.offset_messages import (
    CommitPartition,
    CommitTopic,
    OffsetCommitRequest,
    OffsetFetchRequest,
    OffsetsGroup,
)
from magnetar.wire.kafka.producer_messages import DescribeProducersRequest
from magnetar.wire.kafka.share_group_messages import (
    AskedShareGroup,
    AskedShareTopic,
    DescribeShareGroupOffsetsRequest,
    ShareGroupDescribeRequest,
)
from magnetar.wire.kafka.topic_shapes import TopicPartitions
from magnetar.wire.kafka.transaction_messages import DescribeTransactionsRequest
from tests.unit.protocols.kafka.harness import TOPIC, KafkaPeer, KafkaWorld, run

TWICE = ["g", "h", "g"]


@pytest.mark.parametrize(
    ("key", "request_", "part"),
    [
        (ApiKey.DESCRIBE_GROUPS, DescribeGroupsRequest(TWICE), "groups"),
        (ApiKey.CONSUMER_GROUP_DESCRIBE, ConsumerGroupDescribeRequest(TWICE), "groups"),
        (ApiKey.SHARE_GROUP_DESCRIBE, ShareGroupDescribeRequest(TWICE), "groups"),
        (ApiKey.DELETE_GROUPS, DeleteGroupsRequest(TWICE), "results"),
        (ApiKey.DESCRIBE_TRANSACTIONS, DescribeTransactionsRequest(TWICE), "transactions"),
        (
            ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS,
            DescribeShareGroupOffsetsRequest([AskedShareGroup(each) for each in TWICE]),
            "groups",
        ),
        (
            ApiKey.OFFSET_FETCH,
            OffsetFetchRequest(groups=[OffsetsGroup(each) for each in TWICE]),
            "groups",
        ),
    ],
)
def test_each_name_has_one_answer(key: ApiKey, request_: Any, part: str) -> None:
    async def scenario(world: KafkaWorld) -> None:
        answer = await world.peer().ask(key, request_)
        assert len(getattr(answer, part)) == 2

    run(scenario)


async def committed(peer: KafkaPeer, metadata: str) -> None:
    part = CommitPartition(0, 7, metadata=metadata)
    said = OffsetCommitRequest("g", topics=[CommitTopic(TOPIC, [part])])
    answer = await peer.ask(ApiKey.OFFSET_COMMIT, said)
    assert answer.topics[0].partitions[0].error_code == 0


def test_offsets_are_told_once_however_often_they_are_asked_for() -> None:
    """What somebody has committed with an offset may be a thousand times as large as its number."""

    async def scenario(world: KafkaWorld) -> None:
        peer = world.peer()
        await committed(peer, "m" * 1_000)
        one = TopicPartitions(TOPIC, [0, 0, 1])
        groups = [OffsetsGroup("g", topics=[one, TopicPartitions(TOPIC, [0])])]
        groups += [OffsetsGroup("g", topics=[TopicPartitions("other", [3])])]
        answer = await peer.ask(ApiKey.OFFSET_FETCH, OffsetFetchRequest(groups=groups))
        (group,) = answer.groups
        found = {topic.name: [each.index for each in topic.partitions] for topic in group.topics}
        assert found == {TOPIC: [0, 1], "other": [3]}
        groups += [OffsetsGroup("g", topics=None)]
        (group,) = (await peer.ask(ApiKey.OFFSET_FETCH, OffsetFetchRequest(groups=groups))).groups
        assert [(topic.name, len(topic.partitions)) for topic in group.topics] == [(TOPIC, 1)]
        older = OffsetFetchRequest("g", [one, one])
        (topic,) = (await peer.ask(ApiKey.OFFSET_FETCH, older, version=7)).topics
        assert [each.offset for each in topic.partitions] == [7, -1]

    run(scenario)


def test_settings_that_are_asked_for_in_parts_are_told_together() -> None:
    async def scenario(world: KafkaWorld) -> None:
        async def described(*asked: list[str] | None) -> list[int]:
            resources = [DescribeConfigsResource(2, TOPIC, keys) for keys in asked]
            request = DescribeConfigsRequest(resources)
            answer = await world.peer().ask(ApiKey.DESCRIBE_CONFIGS, request)
            assert not any(each.error_code for each in answer.results)
            return [len(each.configs) for each in answer.results]

        (all_,) = await described(None)
        assert all_ > 10
        assert await described(["retention.ms"], ["segment.ms"], ["retention.ms"]) == [2]
        assert await described(["retention.ms"], None) == [all_]
        assert await described(None, ["retention.ms"]) == [all_]
        assert await described([]) == [all_], "as with Kafka"

    run(scenario)


def test_producers_of_a_partition_are_told_once() -> None:
    async def scenario(world: KafkaWorld) -> None:
        one = TopicPartitions(TOPIC, [0, 0])
        request = DescribeProducersRequest([one, one])
        (topic,) = (await world.peer().ask(ApiKey.DESCRIBE_PRODUCERS, request)).topics
        assert [each.index for each in topic.partitions] == [0]

    run(scenario)


def test_where_a_share_group_starts_is_told_once() -> None:
    async def scenario(world: KafkaWorld) -> None:
        topics = [AskedShareTopic(TOPIC, [0])]
        request = DescribeShareGroupOffsetsRequest(
            [AskedShareGroup("g", list(topics)), AskedShareGroup("g", list(topics))]
        )
        answer = await world.peer().ask(ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS, request)
        assert len(answer.groups) == 1

    run(scenario)
