"""Topics that are terminated: who is told what, and when."""

from __future__ import annotations

import asyncio

import pytest

from magnetar.topics.terminating import terminate
from magnetar.wire.pulsar.codes import ServerError
from magnetar.wire.pulsar.pulsar_pb2 import BaseCommand
from tests.unit.protocols.pulsar.harness import (
    EXCLUSIVE,
    FAILOVER,
    SHARED,
    TOPIC,
    Peer,
    World,
    run,
)
from tests.unit.protocols.pulsar.test_bound_cursors import Two, entries, succeeded, with_two

END = "REACHED_END_OF_TOPIC"


async def ended(peer: Peer, *consumer_ids: int) -> None:
    """That, and nothing else, is told of these consumers."""
    told = await peer.heard()
    assert {each.type for each in told} == {BaseCommand.REACHED_END_OF_TOPIC}
    assert [each.reachedEndOfTopic.consumer_id for each in told] == list(consumer_ids)


async def refused(peer: Peer, **fields: object) -> str:
    answer = await peer.produce(**fields)  # type: ignore[arg-type]
    assert answer.type == BaseCommand.ERROR
    assert answer.error.error == ServerError.TOPIC_TERMINATED
    return answer.error.message


def test_producers_are_sent_away_with_their_receipts_and_refused() -> None:
    async def scenario(world: World) -> None:
        peer, log = world.peer(), world.log
        await peer.produce()
        peer.publish(3)
        await terminate(world.topic())
        assert await peer.kinds() == ["SEND_RECEIPT"] * 3 + ["CLOSE_PRODUCER"]
        peer.publish(1, first=3)  # on its way meanwhile
        assert await peer.heard() == []
        assert log().positions.end_offset == 3
        assert "terminated" in await refused(peer, epoch=1, name="p")
        assert "terminated" in await refused(world.peer(), producer_access_mode=1)

    run(scenario)


def test_those_that_wait_for_the_topic_are_refused() -> None:
    async def scenario(world: World) -> None:
        first, second = world.peer(), world.peer()
        await first.produce(producer_access_mode=1)
        await second.produce(producer_access_mode=2)
        await terminate(world.topic())
        (told,) = [each for each in await second.heard() if each.type == BaseCommand.ERROR]
        assert told.error.error == ServerError.TOPIC_TERMINATED
        assert world.topic().waiting == []

    run(scenario)


def test_nothing_is_made_for_a_producer_that_is_refused() -> None:
    async def scenario(world: World) -> None:
        await world.peer().subscribe()
        await terminate(world.topic())
        await refused(world.peer(), initial_subscription_name="new")
        assert list(world.topic().subscriptions) == ["s"]

    run(scenario)


@pytest.mark.parametrize("kind", [EXCLUSIVE, SHARED, FAILOVER])
def test_consumers_are_told_once_they_have_acknowledged_all(kind: int) -> None:
    async def scenario(world: World) -> None:
        peer = world.peer()
        await peer.produce()
        peer.publish(3)
        await peer.subscribe(kind=kind)  # type: ignore[arg-type]
        peer.flow(10)
        await peer.heard()
        await terminate(world.topic())
        assert await peer.kinds() == ["CLOSE_PRODUCER"]
        peer.acknowledge(0, 1)
        assert await peer.heard() == []
        peer.acknowledge(2)
        await ended(peer, 1)
        peer.acknowledge(2)
        assert await peer.heard() == [], "once"

    run(scenario)


def test_who_has_acknowledged_all_is_told_at_once_and_who_comes_later_too() -> None:
    async def scenario(world: World) -> None:
        peer = world.peer()
        await peer.subscribe()
        await terminate(world.topic())
        await ended(peer, 1)
        await peer.subscribe(consumer_id=2)
        await ended(peer, 2)
        assert (await peer.subscribe("other", EXCLUSIVE, 3)).type == BaseCommand.SUCCESS
        await ended(peer, 3)

    run(scenario)


def test_all_consumers_of_a_failover_subscription_are_told() -> None:
    async def scenario(world: World) -> None:
        peer = world.peer()
        for number in (1, 2):
            await peer.subscribe(kind=FAILOVER, consumer_id=number)
        await peer.heard()
        await terminate(world.topic())
        await ended(peer, 1, 2)

    run(scenario)


def test_readers_are_told_and_again_after_a_seek() -> None:
    async def scenario(world: World) -> None:
        peer = world.peer()
        await peer.produce()
        peer.publish(2)
        await terminate(world.topic())
        for _ in range(2):
            await peer.subscribe(kind=EXCLUSIVE, durable=False)
            peer.flow(10)
            assert await peer.entries() == [0, 1]
            peer.acknowledge(1, cumulative=True)
            await ended(peer, 1)
            seek = BaseCommand(type=BaseCommand.SEEK)
            seek.seek.consumer_id, seek.seek.request_id = 1, 9
            seek.seek.message_publish_time = 0
            peer.tell(seek)
            assert sorted(await peer.kinds()) == ["CLOSE_CONSUMER", "SUCCESS"]

    run(scenario)


def test_what_expires_is_the_end_too() -> None:
    async def scenario(world: World) -> None:
        peer = world.peer()
        await peer.produce()
        peer.publish(2)
        await peer.subscribe()
        await terminate(world.topic())
        await peer.heard()
        subscription = world.topic().subscription("s")
        subscription.pass_over(world.log().positions.readable)
        await ended(peer, 1)

    run(scenario)


@pytest.mark.parametrize("version", ["Pulsar-CPP-v3.7.2", "Pulsar Go v0.19.0"])
def test_clients_that_would_drop_their_connections_are_not_told(version: str) -> None:
    async def scenario(world: World) -> None:
        peer = world.peer(version=version)
        await peer.subscribe()
        await terminate(world.topic())
        assert await peer.heard() == []

    run(scenario)


def test_it_stays_so_when_the_topic_is_loaded_again() -> None:
    async def scenario(world: World) -> None:
        peer = world.peer()
        await peer.subscribe()
        topic = world.topic()
        await terminate(topic)
        await peer.heard()
        await world.services.topics.unload(topic.name)
        await peer.heard()
        await peer.subscribe()
        assert world.topic() is not topic
        await ended(peer, 1)
        await refused(peer)
        await terminate(world.topic())  # again is no error

    run(scenario)


def test_deduplicated_producers_are_refused_and_the_topic_goes_on() -> None:
    async def scenario(world: World) -> None:
        peer, log = world.peer(), world.log
        await peer.produce()
        topic = world.topic()
        log().held = True
        peer.publish(1)
        log().ended.terminated = True
        log().release()
        assert await peer.kinds() == ["CLOSE_PRODUCER"]
        assert (topic.closed, topic.cooling_down) == (False, False)
        await refused(peer)

    run(scenario, deduplication=True)


def test_consumers_of_a_read_only_broker_are_told() -> None:
    async def scenario(two: Two) -> None:
        await two.publish(3)
        peer = two.reading.peer()
        await succeeded(peer, peer.subscribe())
        peer.flow(100)
        assert await entries(peer, 3) == [0, 1, 2]
        await terminate(two.owner.topic())
        await asyncio.sleep(0.05)
        assert await peer.heard() == []
        peer.acknowledge(0, 1, 2)
        await ended(peer, 1)

    with_two(scenario)


def test_a_topic_that_takes_in_rows_is_not_terminated() -> None:
    async def scenario(world: World) -> None:
        peer = world.peer()
        await peer.produce(TOPIC)
        topic = world.topic()
        topic.intake._taking = 1
        with pytest.raises(Exception, match="rows of a query"):
            await terminate(topic)
        topic.intake._taking = 0
        peer.publish(1)
        assert await peer.kinds() == ["SEND_RECEIPT"]

    run(scenario)
