"""Clients look for brokers while the metadata store does not answer."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from magnetar.cluster.topic_name import parse_topic
from magnetar.env.metadata import Versioned
from magnetar.model.errors import MetadataUnavailableError
from magnetar.protocols.kafka.known_places import KEPT_MAX, FoundTopic, KnownPlaces
from magnetar.protocols.kafka.lookups import ANSWER_S
from magnetar.protocols.kafka.services import KafkaServices, Node
from magnetar.protocols.kafka.topic_ids import TopicIds
from magnetar.wire.kafka.apis import ApiKey
from magnetar.wire.kafka.cluster_messages import (
    FindCoordinatorRequest,
    MetadataRequest,
    MetadataTopic,
)
from magnetar.wire.kafka.errors import ErrorCode
from magnetar.wire.kafka.schema import NO_UUID
from tests.doubles.memory_metadata import MemoryMetadata
from tests.unit.protocols.kafka.harness import KafkaWorld, batch, run
from tests.unit.protocols.kafka.test_session import T, outcome, producing

AWAY_S = 15.0


async def away(*_: Any, **__: Any) -> Any:
    """As a read that waits for the store to come back."""
    await asyncio.sleep(AWAY_S)
    raise MetadataUnavailableError("the store did not answer within 15 s")


def take_away(patched: pytest.MonkeyPatch) -> None:
    for name in ("nodes", "count_of", "leader_of"):
        patched.setattr(KafkaServices, name, away)
    patched.setattr(TopicIds, "of", away)


def test_what_is_known_is_told_soon_and_the_rest_is_to_be_asked_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each question waited for the store by itself, and so did all behind it on a connection."""

    async def scenario(world: KafkaWorld) -> None:
        peer, loop = world.peer(), asyncio.get_running_loop()
        assert not outcome(await peer.ask(ApiKey.PRODUCE, producing(batch(1)))).error_code
        asked = MetadataRequest(topics=[MetadataTopic(name=T), MetadataTopic(name="other")])
        asked.allow_auto_topic_creation = False
        finding = FindCoordinatorRequest(keys=["group"])
        before = await peer.ask(ApiKey.METADATA, asked)
        coordinator = await peer.ask(ApiKey.FIND_COORDINATOR, finding)
        assert [each.error_code for each in coordinator.coordinators] == [ErrorCode.NONE]
        with monkeypatch.context() as patched:
            take_away(patched)
            for _ in range(2):
                began_s = loop.time()
                found = await peer.ask(ApiKey.METADATA, asked)
                assert loop.time() - began_s < 2 * ANSWER_S
                known, other = found.topics
                assert known == before.topics[0]
                assert found.brokers == before.brokers
                assert other.error_code == ErrorCode.LEADER_NOT_AVAILABLE
                began_s = loop.time()
                assert await peer.ask(ApiKey.FIND_COORDINATOR, finding) == coordinator
                assert loop.time() - began_s < 2 * ANSWER_S
        assert (await peer.ask(ApiKey.METADATA, asked)).topics == before.topics

    run(scenario)


def test_a_topic_whose_node_cannot_be_read_hides_no_other_of_the_request() -> None:
    """All that stood behind it was told as while the store is away: not at all, or as before."""

    async def scenario(world: KafkaWorld) -> None:
        peer, create = world.peer(), world.services.control.partitioned.create
        for name in ("damaged", "grown"):
            await create(parse_topic(name), 1)
        asked = MetadataRequest(
            topics=[MetadataTopic(name=name) for name in ("damaged", "grown", "new")]
        )
        asked.allow_auto_topic_creation = False
        before = await peer.ask(ApiKey.METADATA, asked)
        assert before.topics[2].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        metadata = world.services.control.partitioned._metadata
        assert isinstance(metadata, MemoryMetadata)
        path = "/admin/partitioned-topics/public/default/persistent/damaged"
        metadata.nodes[path] = Versioned(b"no json", 7)
        metadata.tell(path)
        await world.services.control.partitioned.grow(parse_topic("grown"), 3)
        await create(parse_topic("new"), 2)
        found = await peer.ask(ApiKey.METADATA, asked)
        assert found.topics[0] == before.topics[0], "as it was told last"
        assert [each.error_code for each in found.topics] == [ErrorCode.NONE] * 3
        assert [len(each.partitions) for each in found.topics[1:]] == [3, 2]

    run(scenario)


def test_a_leader_that_nobody_has_told_of_is_not_guessed(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(world: KafkaWorld) -> None:
        peer, services = world.peer(), world.services
        finding = FindCoordinatorRequest(keys=["group"])
        take_away(monkeypatch)

        def not_ours(_: object) -> None:
            raise MetadataUnavailableError("not known to be ours")

        monkeypatch.setattr(services.control.ownership, "check", not_ours)
        (found,) = (await peer.ask(ApiKey.FIND_COORDINATOR, finding)).coordinators
        assert found.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert found.error_message

    run(scenario)


def test_what_is_remembered_is_bounded() -> None:
    known = KnownPlaces[Node]()
    names = [parse_topic(f"t{number}") for number in range(KEPT_MAX + 1)]
    for name in names:
        known.found(name, FoundTopic(1, NO_UUID))
        known.led(name, Node(1, "h", 1))
    assert known.shape(names[0]) is None
    assert known.leader(names[0]) is None
    assert known.shape(names[-1]) == FoundTopic(1, NO_UUID)
    known.is_gone(names[-1])
    assert known.shape(names[-1]) is None
