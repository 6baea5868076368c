"""Topics and subscriptions that are made by their first use, or are not, as a namespace says."""

from __future__ import annotations

from typing import Any

import pytest

from magnetar.cluster.policies.policies import SubscriptionCreationPolicy, TopicCreationPolicy
from magnetar.cluster.topic_name import parse_topic
from magnetar.model.ids import LATEST
from magnetar.wire.kafka.admin_messages import CreateTopicsRequest, NewTopic
from magnetar.wire.kafka.apis import ApiKey
from magnetar.wire.kafka.cluster_messages import MetadataRequest, MetadataTopic
from magnetar.wire.kafka.errors import ErrorCode
from magnetar.wire.pulsar.codes import ServerError
from magnetar.wire.pulsar.pulsar_pb2 import BaseCommand
from tests.unit.protocols.kafka.harness import KafkaWorld
from tests.unit.protocols.kafka.harness import run as run_kafka
from tests.unit.protocols.pulsar.harness import TOPIC, Peer, World, run
from tests.unit.protocols.pulsar.test_bound_cursors import Two, with_two
from tests.unit.topics.test_topics import partitions_of

NAMESPACE = "public/default"


async def says(world: Any, field: str, value: object) -> None:
    await world.broker.control.policies.set_namespace(NAMESPACE, field, value)


async def partitions(peer: Peer, topic: str) -> tuple[bool, int]:
    answer = (await peer.ask(partitions_of(topic))).partitionMetadataResponse
    return not answer.HasField("error"), answer.partitions


@pytest.mark.parametrize("configured", [True, False])
def test_a_namespace_that_makes_no_topics(configured: bool) -> None:
    async def scenario(world: World) -> None:
        await says(world, "topic_creation", TopicCreationPolicy(False))
        peer = world.peer()
        await peer.heard()
        assert await partitions(peer, "t") == (False, 0)
        assert (await peer.produce()).error.error == ServerError.TOPIC_NOT_FOUND
        assert (await peer.subscribe()).error.error == ServerError.TOPIC_NOT_FOUND
        assert await world.admin.create(TOPIC)
        assert (await peer.produce()).type == BaseCommand.PRODUCER_SUCCESS
        await says(world, "topic_creation", None)
        answer = await peer.produce(topic="other", producer_id=2)
        assert (answer.type == BaseCommand.PRODUCER_SUCCESS) is configured

    run(scenario, auto_create_topics=configured)


@pytest.mark.parametrize("configured", [True, False])
def test_a_namespace_whose_topics_have_partitions(configured: bool) -> None:
    async def scenario(world: World) -> None:
        await says(world, "topic_creation", TopicCreationPolicy(True, "partitioned", 3))
        peer = world.peer()
        await peer.heard()
        assert await partitions(peer, "t") == (True, 3)
        assert await partitions(peer, "t-partition-0") == (True, 0)
        await says(world, "topic_creation", TopicCreationPolicy(True, "non-partitioned"))
        assert await partitions(peer, "t") == (True, 3)
        assert await partitions(peer, "other") == (True, 0)
        answer = await peer.produce(topic="other")
        assert answer.type == BaseCommand.PRODUCER_SUCCESS

    run(scenario, auto_create_topics=configured, auto_create_partitions=2)


def test_a_namespace_that_makes_no_subscriptions() -> None:
    async def scenario(world: World) -> None:
        peer = world.peer()
        assert (await peer.subscribe("before")).type == BaseCommand.SUCCESS
        await says(world, "subscription_creation", SubscriptionCreationPolicy(False))
        await world.services.topics.unload(parse_topic(TOPIC))
        await peer.heard()
        answer = await peer.subscribe("new")
        assert answer.error.error == ServerError.SUBSCRIPTION_NOT_FOUND
        assert (await peer.subscribe("before", consumer_id=2)).type == BaseCommand.SUCCESS
        reader = await peer.subscribe("reader", consumer_id=3, durable=False)
        assert reader.type == BaseCommand.SUCCESS
        answer = await peer.produce(initial_subscription_name="new")
        assert answer.error.error == ServerError.SUBSCRIPTION_NOT_FOUND
        await world.admin.create_subscription(TOPIC, "new", LATEST)
        assert (await peer.subscribe("new", consumer_id=4)).type == BaseCommand.SUCCESS

    run(scenario)


def test_nor_does_a_read_only_broker() -> None:
    async def scenario(two: Two) -> None:
        await two.publish(1)
        await two.owner.peer().subscribe("before")
        topic = two.owner.topic()
        refused = topic.policy._replace(makes_subscriptions=False)
        topic.set_policy(refused)
        peer = two.reading.peer()
        answer = await peer.subscribe("new")
        assert answer.error.error == ServerError.SUBSCRIPTION_NOT_FOUND
        assert "new" not in topic.subscriptions

    with_two(scenario)


def test_kafkas_clients_go_by_it_too() -> None:
    async def scenario(world: KafkaWorld) -> None:
        peer = world.peer()
        asked = MetadataRequest([MetadataTopic(name="new")], True)
        await says(world, "topic_creation", TopicCreationPolicy(False))
        (found,) = (await peer.ask(ApiKey.METADATA, asked)).topics
        assert found.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        await says(world, "topic_creation", TopicCreationPolicy(True, "partitioned", 3))
        (found,) = (await peer.ask(ApiKey.METADATA, asked)).topics
        assert (found.error_code, len(found.partitions)) == (ErrorCode.NONE, 3)
        new = CreateTopicsRequest([NewTopic("made", partitions=-1, replication_factor=-1)])
        (made,) = (await peer.ask(ApiKey.CREATE_TOPICS, new)).topics
        assert (made.error_code, made.partitions) == (ErrorCode.NONE, 3)

    run_kafka(scenario)
