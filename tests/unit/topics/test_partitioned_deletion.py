"""Partitioned topics are deleted while clients go on."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from magnetar.cluster.partitioned_topics import PartitionedTopics
from magnetar.cluster.topic_name import TopicName, parse_topic
from magnetar.env.metadata import Versioned
from magnetar.model.errors import (
    LedgerRecoveryError,
    MetadataUnavailableError,
    NotAllowedError,
    TopicNotFoundError,
)
from magnetar.wire.kafka.admin_messages import (
    CreateTopicsRequest,
    DeletedTopic,
    DeleteTopic,
    DeleteTopicsRequest,
    NewTopic,
    TopicConfig,
)
from magnetar.wire.kafka.apis import ApiKey
from magnetar.wire.kafka.cluster_messages import MetadataRequest
from magnetar.wire.kafka.errors import ErrorCode
from tests.doubles.memory_metadata import MemoryMetadata
from tests.unit.protocols.kafka.harness import KafkaPeer, KafkaWorld, batch, run
from tests.unit.protocols.kafka.test_session import fetching, outcome, producing
from tests.unit.protocols.pulsar.harness import World
from tests.unit.protocols.pulsar.harness import run as run_pulsar

NODE = "/admin/partitioned-topics/public/default/persistent/u"


async def made(peer: KafkaPeer) -> None:
    """A topic of three partitions, each with a record."""
    await peer.ask(ApiKey.CREATE_TOPICS, CreateTopicsRequest([NewTopic("u", partitions=3)]))
    for index in range(3):
        request = producing(batch(1), topic="u", index=index)
        assert not outcome(await peer.ask(ApiKey.PRODUCE, request)).error_code


async def deleted(peer: KafkaPeer) -> DeletedTopic:
    request = DeleteTopicsRequest([DeleteTopic("u")])
    (found,) = (await peer.ask(ApiKey.DELETE_TOPICS, request)).topics
    assert isinstance(found, DeletedTopic)
    return found


@pytest.mark.parametrize("key", [ApiKey.PRODUCE, ApiKey.FETCH])
def test_clients_that_go_on_make_nothing_that_the_next_topic_would_have(key: ApiKey) -> None:
    """A partition was made again by whoever used it, and outlived its topic."""

    async def scenario(world: KafkaWorld) -> None:
        peer, other = world.peer(), world.peer()
        await made(peer)
        errors, over = set[int](), asyncio.Event()

        async def go_on() -> None:
            while not over.is_set():
                request = fetching(0)
                request.topics[0].name = "u"
                if key == ApiKey.PRODUCE:
                    request = producing(batch(1, 77), topic="u")
                answer = await other.ask(key, request)
                errors.add(answer.topics[0].partitions[0].error_code)

        going_on = asyncio.ensure_future(go_on())
        for _ in range(20):
            await asyncio.sleep(0)
        assert not (await deleted(peer)).error_code
        over.set()
        await going_on
        assert errors == {
            ErrorCode.NONE,  # before its turn
            ErrorCode.NOT_LEADER_OR_FOLLOWER,  # while it is deleted
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        }
        listed = await peer.ask(ApiKey.METADATA, MetadataRequest(topics=None))
        assert [each.name for each in listed.topics] == ["t"]
        await peer.ask(ApiKey.CREATE_TOPICS, CreateTopicsRequest([NewTopic("u", partitions=3)]))
        assert (await world.services.partition("u", 0)).positions.end_offset == 0

    run(scenario)


def test_one_that_failed_half_way_makes_nothing_and_is_asked_for_again() -> None:
    async def scenario(world: KafkaWorld) -> None:
        peer, delete, calls = world.peer(), world.store.delete, list[str]()
        await made(peer)

        async def half(name: str) -> None:
            calls.append(name)
            if len(calls) == 2:
                raise MetadataUnavailableError("no answer")
            await delete(name)

        world.store.delete = half  # type: ignore[method-assign]
        assert (await deleted(peer)).error_code == ErrorCode.LEADER_NOT_AVAILABLE
        grown = world.services.control.partitioned.grow(parse_topic("u"), 4)
        with pytest.raises(TopicNotFoundError, match="is being deleted"):
            await grown
        with pytest.raises(TopicNotFoundError, match="is being deleted"):
            await world.broker.topics.create(parse_topic("u-partition-0"))
        request = producing(batch(1), topic="u")
        answer = outcome(await peer.ask(ApiKey.PRODUCE, request))
        assert answer.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        there = producing(batch(1), topic="u", index=2)
        assert not outcome(await peer.ask(ApiKey.PRODUCE, there)).error_code
        assert not (await deleted(peer)).error_code
        assert list(world.store.logs) == []
        assert (await deleted(peer)).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    run(scenario)


def test_what_keeps_one_partition_keeps_none_of_the_others() -> None:
    """The first that failed ended it: those behind it stayed, with all that they held."""

    async def scenario(world: KafkaWorld) -> None:
        peer, delete, keeps = world.peer(), world.store.delete, ["u-partition-0"]
        await made(peer)

        async def kept(name: str) -> None:
            if any(name.endswith(each) for each in keeps):
                raise LedgerRecoveryError(f"{name}: too few bookies answer")
            await delete(name)

        world.store.delete = kept  # type: ignore[method-assign]
        said = await deleted(peer)
        assert said.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER  # it is asked for again
        assert "2 of the 3 partitions" in str(said.error_message)
        assert "not so u-partition-0: " in str(said.error_message)
        assert "too few bookies answer" in str(said.error_message)
        assert [each[-1] for each in world.store.logs] == ["0"]
        assert (await world.services.control.partitioned.topic(parse_topic("u"))).goes
        keeps.clear()
        assert not (await deleted(peer)).error_code
        assert list(world.store.logs) == []
        assert (await deleted(peer)).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    run(scenario)


def test_one_whose_node_cannot_be_read_is_deleted_by_what_was_used() -> None:
    async def scenario(world: KafkaWorld) -> None:
        peer = world.peer()
        await made(peer)
        metadata = world.services.control.partitioned._metadata
        assert isinstance(metadata, MemoryMetadata)
        metadata.nodes[NODE] = Versioned(b"not json", 7)
        metadata.tell(NODE)
        assert not (await deleted(peer)).error_code
        assert NODE not in metadata.nodes
        assert list(world.store.logs) == []

    run(scenario)


def test_what_was_made_under_the_name_meanwhile_stays() -> None:
    async def scenario(world: KafkaWorld) -> None:
        partitioned = world.services.control.partitioned
        name = parse_topic("u")
        await partitioned.create(name, 2)
        first = await partitioned.begin_deletion(name)
        assert first == await partitioned.begin_deletion(name), "another asks for the same"
        await partitioned.end_deletion(name, first[1])
        await partitioned.create(name, 5)
        with pytest.raises(NotAllowedError, match="delete it again"):
            await partitioned.end_deletion(name, first[1])
        assert await partitioned.partitions(name) == 5
        assert not (await partitioned.topic(name)).goes

    run(scenario)


async def made_with(peer: KafkaPeer, minutes: int) -> None:
    kept = TopicConfig("retention.ms", str(minutes * 60_000))
    request = CreateTopicsRequest([NewTopic("u", partitions=2, configs=[kept])])
    (said,) = (await peer.ask(ApiKey.CREATE_TOPICS, request)).topics
    assert not said.error_code


@pytest.mark.parametrize("held_at", range(4))
def test_the_slower_of_two_deletions_leaves_the_next_topic_what_it_has(held_at: int) -> None:
    """It took the new topic's settings, and deleted its partitions: two clients, or one that did
    not hear in time and asked again, and a third that makes the topic anew."""

    async def scenario(world: KafkaWorld) -> None:
        peer, control, name = world.peer(), world.services.control, parse_topic("u")
        await made_with(peer, 7)
        check, checks = control.partitioned.check_deletion, 0
        held, go_on = asyncio.Event(), asyncio.Event()

        async def slow(of: TopicName, version: int) -> None:
            nonlocal checks
            checks += 1
            if checks == held_at + 1:
                if held_at == 3:  # the last of them: it has looked, and is about to write
                    await check(of, version)
                held.set()
                await go_on.wait()
                if held_at == 3:
                    return
            await check(of, version)

        control.partitioned.check_deletion = slow  # type: ignore[method-assign]
        slower = asyncio.ensure_future(deleted(world.peer()))
        await held.wait()
        assert not (await deleted(peer)).error_code
        await made_with(peer, 9)
        await control.partitioned.grow(name, 3)  # the node has the version of before
        for index in range(3):
            request = producing(batch(2), topic="u", index=index)
            assert not outcome(await peer.ask(ApiKey.PRODUCE, request)).error_code
        go_on.set()
        assert (await slower).error_code
        found = (await control.policies.of_topic(name)).retention
        assert found is not None
        assert found.minutes == 9
        assert (await control.partitioned.topic(name))[::2] == (3, False)
        for index in range(3):
            assert (await world.services.partition("u", index)).positions.end_offset == 2

    run(scenario)


@pytest.mark.parametrize("turns", range(0, 60, 3))
def test_the_slower_of_two_deletions_ends_well(turns: int) -> None:
    """It was told to look the leader up again: a partition was being deleted by the other."""

    async def scenario(world: KafkaWorld) -> None:
        peer, control, delete = world.peer(), world.services.control, world.store.delete
        await made_with(peer, 7)

        async def slow(name: str) -> None:
            await asyncio.sleep(0.1)
            await delete(name)

        world.store.delete = slow  # type: ignore[method-assign]
        first = asyncio.ensure_future(deleted(peer))
        for _ in range(turns):
            await asyncio.sleep(0)
        second = await deleted(world.peer())
        assert not (await first).error_code
        assert second.error_code in (ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        assert (await control.policies.of_topic(parse_topic("u"))).retention is None
        assert not await control.partitioned.partitions(parse_topic("u"))

    run(scenario)


def test_a_deletion_waits_for_another_that_fails_and_deletes_what_is_left() -> None:
    async def scenario(world: KafkaWorld) -> None:
        peer, delete, calls = world.peer(), world.store.delete, 0
        await world.broker.topics.create(parse_topic("u"))

        async def slow(name: str) -> None:
            nonlocal calls
            calls += 1
            await asyncio.sleep(0.1)
            if calls == 1:
                raise LedgerRecoveryError(f"{name}: too few bookies answer")
            await delete(name)

        world.store.delete = slow  # type: ignore[method-assign]
        found = await asyncio.gather(*(deleted(each) for each in (peer, world.peer())))
        assert [each.error_code for each in found] == [ErrorCode.KAFKA_STORAGE_ERROR, 0]
        assert (calls, list(world.store.logs)) == (2, [])

    run(scenario)


def test_a_refusal_takes_back_what_was_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody comes after it was looked whether anybody is connected."""

    async def scenario(world: World) -> None:
        admin, peer, name = world.admin, world.peer(), parse_topic("u")
        await admin.create_partitioned("u", 2)
        begin = PartitionedTopics.begin_deletion
        await peer.produce(topic="u-partition-0")
        peer.lose()

        async def slow(self: PartitionedTopics, of: TopicName, *more: Any) -> Any:
            found = await begin(self, of, *more)
            await world.peer().produce(topic="u-partition-0")
            return found

        monkeypatch.setattr(PartitionedTopics, "begin_deletion", slow)
        with pytest.raises(NotAllowedError, match="1 producers"):
            await admin.delete_partitioned("u")
        partitioned = world.services.control.partitioned
        assert not (await partitioned.topic(name)).goes
        await world.peer().produce(topic="u-partition-1")
        await admin.delete_partitioned("u", force=True)
        assert await partitioned.partitions(name) == 0

    run_pulsar(scenario)
