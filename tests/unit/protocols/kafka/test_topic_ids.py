"""Ids of topics: told in Metadata, and asked for by clients that know nothing else."""

from __future__ import annotations

import json
import uuid

from magnetar.cluster.topic_name import parse_topic
from magnetar.wire.kafka.admin_messages import CreateTopicsRequest, NewTopic
from magnetar.wire.kafka.apis import ApiKey
from magnetar.wire.kafka.cluster_messages import MetadataRequest, MetadataTopic, TopicMetadata
from magnetar.wire.kafka.errors import ErrorCode
from magnetar.wire.kafka.schema import NO_UUID
from tests.unit.protocols.kafka.harness import TOPIC, KafkaPeer, KafkaWorld, run


async def told(peer: KafkaPeer, *topics: MetadataTopic, version: int = 12) -> list[TopicMetadata]:
    request = MetadataRequest(list(topics), allow_auto_topic_creation=False)
    answer = await peer.ask(ApiKey.METADATA, request, version)
    found = answer.topics
    assert isinstance(found, list)
    return found


async def by_name(peer: KafkaPeer, name: str) -> TopicMetadata:
    (found,) = await told(peer, MetadataTopic(name=name))
    return found


async def by_id(peer: KafkaPeer, topic_id: uuid.UUID, version: int = 12) -> TopicMetadata:
    name = None if version >= 12 else ""
    (found,) = await told(peer, MetadataTopic(topic_id, name), version=version)
    return found


def test_a_topic_is_told_with_its_id_and_found_by_it() -> None:
    async def scenario(world: KafkaWorld) -> None:
        peer = world.peer()
        known = await by_name(peer, TOPIC)
        assert known.topic_id != NO_UUID
        assert (await by_id(peer, known.topic_id)).name == TOPIC
        created = await peer.ask(
            ApiKey.CREATE_TOPICS, CreateTopicsRequest([NewTopic("u", partitions=2)])
        )
        assert created.topics[0].topic_id == (await by_name(peer, "u")).topic_id

    run(scenario)


def test_one_that_another_broker_has_told_is_searched_for() -> None:
    async def scenario(world: KafkaWorld) -> None:
        topic = await world.services.control.partitioned.topic(parse_topic(TOPIC))
        assert topic.topic_id is not None
        assert (await by_id(world.peer(), topic.topic_id)).name == TOPIC

    run(scenario)


def test_a_topic_that_is_made_anew_has_another_id() -> None:
    async def scenario(world: KafkaWorld) -> None:
        peer = world.peer()
        partitioned = world.services.control.partitioned
        before = (await by_name(peer, TOPIC)).topic_id
        await partitioned.grow(parse_topic(TOPIC), 3)
        assert (await by_name(peer, TOPIC)).topic_id == before
        await partitioned.delete(parse_topic(TOPIC))
        gone = await by_id(peer, before)
        assert (gone.error_code, gone.name) == (ErrorCode.UNKNOWN_TOPIC_ID, None)
        await partitioned.create(parse_topic(TOPIC), 1)
        assert (await by_name(peer, TOPIC)).topic_id not in (before, NO_UUID)
        assert (await by_id(peer, before)).error_code == ErrorCode.UNKNOWN_TOPIC_ID

    run(scenario)


def test_topics_without_an_id_of_their_own_have_one_of_their_name() -> None:
    async def scenario(world: KafkaWorld) -> None:
        peer = world.peer()
        path = "/admin/partitioned-topics/public/default/persistent/old"
        metadata = world.services.control.partitioned._metadata
        await metadata.create(path, json.dumps({"partitions": 2}).encode())
        await world.broker.topics.create(parse_topic("single"))
        old, single = await by_name(peer, "old"), await by_name(peer, "single")
        assert NO_UUID not in (old.topic_id, single.topic_id)
        assert (await by_id(peer, old.topic_id)).name == "old"
        assert (await by_id(peer, single.topic_id)).name == "single"
        await world.services.control.partitioned.grow(parse_topic("old"), 3)
        assert (await by_name(peer, "old")).topic_id == old.topic_id

    run(scenario)


def test_an_id_in_a_version_without_them_is_an_invalid_request() -> None:
    async def scenario(world: KafkaWorld) -> None:
        found = await by_id(world.peer(), uuid.uuid4(), version=11)
        assert found.error_code != ErrorCode.NONE

    run(scenario)
