"""Leader epochs of logs that are not open here: how often the store is asked for them."""

from __future__ import annotations

import asyncio
import uuid
from typing import Any

import pytest

from magnetar.cluster.topic_name import TopicName, parse_topic
from magnetar.model.errors import MetadataError, NoSuchLogError
from magnetar.protocols.kafka.last_epochs import (
    KEPT_MAX,
    KEPT_S,
    NEVER_OPENED,
    NEVER_OPENED_KEPT_S,
    LastEpochs,
    LeaderOf,
)
from magnetar.wire.kafka.apis import ApiKey
from magnetar.wire.kafka.cluster_messages import MetadataRequest, MetadataTopic
from magnetar_sim.world.virtual_time import run_virtual
from tests.unit.protocols.kafka.harness import KafkaWorld, run

LOG = parse_topic("t-partition-0")
LEADER = LeaderOf(uuid.UUID(int=1), 7)


class Topics:
    """What ``LastEpochs`` knows of ``topics.registry.Topics``."""

    def __init__(self) -> None:
        self.reads = 0
        self.epoch: int | None = 3

    def find(self, log: TopicName) -> None:
        return None

    async def last_epoch(self, log: TopicName) -> int:
        self.reads += 1
        await asyncio.sleep(0.01)
        if self.epoch is None:
            raise NoSuchLogError("there is no such log")
        if self.epoch == -2:
            raise MetadataError("the store does not answer")
        return self.epoch


def made() -> tuple[Topics, LastEpochs]:
    topics = Topics()
    given: Any = topics
    return topics, LastEpochs(given)


def test_all_who_ask_within_some_seconds_cost_one_read() -> None:
    async def scenario() -> None:
        topics, epochs = made()
        assert await asyncio.gather(*(epochs.of(LOG, LEADER) for _ in range(50))) == [3] * 50
        topics.epoch = 4
        assert await epochs.of(LOG, LEADER) == 3
        assert topics.reads == 1
        await asyncio.sleep(KEPT_S)
        assert await epochs.of(LOG, LEADER) == 4
        assert topics.reads == 2

    run_virtual(scenario())


def test_another_leader_or_topic_is_asked_for_at_once() -> None:
    async def scenario() -> None:
        topics, epochs = made()
        assert await epochs.of(LOG, LEADER) == 3
        topics.epoch = 4
        assert await epochs.of(LOG, LEADER._replace(node_id=8)) == 4
        topics.epoch = 1
        assert await epochs.of(LOG, LeaderOf(uuid.UUID(int=2), 8)) == 1

    run_virtual(scenario())


def test_what_was_never_opened_is_soon_asked_for_again() -> None:
    async def scenario() -> None:
        topics, epochs = made()
        topics.epoch = None
        assert [await epochs.of(LOG, LEADER) for _ in range(3)] == [NEVER_OPENED] * 3
        assert topics.reads == 1
        topics.epoch = 1
        await asyncio.sleep(NEVER_OPENED_KEPT_S)
        assert await epochs.of(LOG, LEADER) == 1

    run_virtual(scenario())


def test_a_store_that_does_not_answer_is_asked_again() -> None:
    async def scenario() -> None:
        topics, epochs = made()
        topics.epoch = -2
        for _ in range(2):
            with pytest.raises(MetadataError):
                await epochs.of(LOG, LEADER)
        topics.epoch = 2
        assert await epochs.of(LOG, LEADER) == 2

    run_virtual(scenario())


def test_what_is_kept_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("magnetar.protocols.kafka.last_epochs.KEPT_MAX", 10)

    async def scenario() -> None:
        _, epochs = made()
        for number in range(25):
            assert await epochs.of(parse_topic(f"t-partition-{number}"), LEADER) == 3
        assert len(epochs._kept) <= 10

    assert KEPT_MAX > 10
    run_virtual(scenario())


def test_metadata_of_many_partitions_reads_each_log_once() -> None:
    """Each Metadata read all of them: 0.35 s of a topic of 1000 partitions on ZooKeeper."""

    async def scenario(world: KafkaWorld) -> None:
        await world.services.control.partitioned.create(parse_topic("many"), 100)
        reads = 0
        stored = world.store.stored

        async def counted(name: str) -> Any:
            nonlocal reads
            reads += 1
            return await stored(name)

        world.store.stored = counted  # type: ignore[method-assign]
        asked = MetadataRequest([MetadataTopic(name="many")])
        for _ in range(5):
            answer = await world.peer().ask(ApiKey.METADATA, asked)
            assert len(answer.topics[0].partitions) == 100
        assert reads == 100

    run(scenario)
