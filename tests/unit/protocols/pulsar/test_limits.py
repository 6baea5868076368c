"""Limits of policies, as clients are refused by them."""

from __future__ import annotations

import asyncio

import pytest

from magnetar.cluster.topic_name import parse_topic
from magnetar.protocols.pulsar.liveness import CHECK_S
from magnetar.wire.pulsar.codes import ServerError
from magnetar.wire.pulsar.pulsar_pb2 import BaseCommand, MessageMetadata
from tests.interop.pulsar.wire import checked, message, send_frame
from tests.unit.protocols.pulsar.harness import (
    EXCLUSIVE,
    FAILOVER,
    SHARED,
    TOPIC,
    World,
    batch,
    run,
)
from tests.unit.protocols.pulsar.test_rates import KEY_SHARED, say, stored


def refusal(answer: BaseCommand) -> ServerError:
    assert answer.type == BaseCommand.ERROR, answer
    return ServerError(answer.error.error)


def test_producers_of_a_topic() -> None:
    async def scenario(world: World) -> None:
        peers = [world.peer() for _ in range(4)]
        assert (await peers[0].produce(name="a")).type == BaseCommand.PRODUCER_SUCCESS
        await say(world, "max_producers", 2)
        assert (await peers[1].produce(name="b")).type == BaseCommand.PRODUCER_SUCCESS
        answer = await peers[2].produce(name="c")
        assert refusal(answer) is ServerError.PRODUCER_BUSY
        assert "max producers limit" in answer.error.message
        peers[0].lose()
        assert (await peers[2].produce(name="c")).type == BaseCommand.PRODUCER_SUCCESS
        await say(world, "max_producers", 0)
        assert (await peers[3].produce(name="d")).type == BaseCommand.PRODUCER_SUCCESS

    run(scenario)


def test_a_producer_that_comes_back_takes_its_own_place() -> None:
    async def scenario(world: World) -> None:
        old, new = world.peer(), world.peer()
        await old.produce(name="a", user_provided_producer_name=False)
        await say(world, "max_producers", 1)
        answer = await new.produce(name="a", epoch=1, user_provided_producer_name=False)
        assert answer.type == BaseCommand.PRODUCER_SUCCESS

    run(scenario)


@pytest.mark.parametrize("kind", [SHARED, FAILOVER, KEY_SHARED])
def test_consumers_of_a_topic_and_of_a_subscription(kind: int) -> None:
    async def scenario(world: World) -> None:
        peer = world.peer()
        assert (await peer.subscribe("a", kind, 1)).type == BaseCommand.SUCCESS
        await say(world, "max_consumers", 3)
        await say(world, "max_consumers_per_subscription", 2)
        assert (await peer.subscribe("a", kind, 2)).type == BaseCommand.SUCCESS
        assert refusal(await peer.subscribe("a", kind, 3)) is ServerError.CONSUMER_BUSY
        assert (await peer.subscribe("b", kind, 4)).type == BaseCommand.SUCCESS
        answer = await peer.subscribe("b", kind, 5)
        assert refusal(answer) is ServerError.CONSUMER_BUSY
        assert "max consumers limit" in answer.error.message
        await say(world, "max_consumers", None)
        assert (await peer.subscribe("b", kind, 5)).type == BaseCommand.SUCCESS

    run(scenario, consumers_per_topic_max=100)


def test_dead_consumers_are_in_nobodys_way() -> None:
    async def scenario(world: World) -> None:
        dead, peer = world.peer(), world.peer()
        await dead.subscribe("a", SHARED, 1)
        dead.play_dead()
        await say(world, "max_consumers", 1)
        await peer.heard()
        peer.tell(peer.subscribe_command("a", SHARED, 1))
        await asyncio.sleep(CHECK_S + 1)
        assert (await peer.next()).type == BaseCommand.SUCCESS

    run(scenario)


def test_readers_that_are_refused_leave_nothing() -> None:
    """Their subscriptions have no consumers, and nobody would remove them."""

    async def scenario(world: World) -> None:
        peer, late = world.peer(), world.peer()
        await peer.subscribe("s")
        await say(world, "max_consumers", 1)
        for number in range(3):
            answer = await late.subscribe(f"reader{number}", durable=False)
            assert refusal(answer) is ServerError.CONSUMER_BUSY
        assert list(world.topic().subscriptions) == ["s"]
        await say(world, "max_subscriptions", 2)
        await say(world, "max_consumers", None)
        await late.subscribe("reader", durable=False)
        await say(world, "max_consumers_per_subscription", 1)
        answer = await peer.subscribe("reader", kind=SHARED, durable=False, consumer_id=2)
        assert answer.type == BaseCommand.ERROR
        assert list(world.topic().subscriptions) == ["s", "reader"], "that one is in use"

    run(scenario)


@pytest.mark.parametrize("durable", [True, False])
def test_subscriptions_of_a_topic(durable: bool) -> None:
    async def scenario(world: World) -> None:
        peer = world.peer()
        await peer.subscribe("a", consumer_id=1)
        await say(world, "max_subscriptions", 1)
        answer = await peer.subscribe("b", EXCLUSIVE, consumer_id=2, durable=durable)
        assert refusal(answer) is ServerError.NOT_ALLOWED
        assert "1 at most" in answer.error.message
        assert (await peer.subscribe("a", consumer_id=3)).type == BaseCommand.SUCCESS
        await say(world, "max_subscriptions", 2)
        answer = await peer.subscribe("b", EXCLUSIVE, consumer_id=2, durable=durable)
        assert answer.type == BaseCommand.SUCCESS

    run(scenario)


@pytest.mark.parametrize("kind", [SHARED, KEY_SHARED])
def test_messages_out_at_a_consumer(kind: int) -> None:
    async def scenario(world: World) -> None:
        peer = world.peer()
        await peer.produce()
        peer.publish(40)
        await peer.subscribe(kind=kind)
        await say(world, "max_unacked_per_consumer", 5)
        peer.flow(1000)
        assert await peer.entries() == list(range(5))
        peer.acknowledge(0, 1)
        assert await peer.entries() == [5, 6]
        await say(world, "max_unacked_per_consumer", 8)
        assert await peer.entries() == [7, 8, 9]
        await say(world, "max_unacked_per_consumer", 0)
        assert await peer.entries() == list(range(10, 40))

    run(scenario, ledger_entries=1000)


@pytest.mark.parametrize("kind", [SHARED, KEY_SHARED])
def test_messages_out_at_all_consumers(kind: int) -> None:
    async def scenario(world: World) -> None:
        peers = [world.peer() for _ in range(2)]
        await peers[0].produce()
        peers[0].publish(40)
        await peers[0].heard()
        for peer in peers:
            await peer.subscribe(kind=kind)
        await say(world, "max_unacked_per_subscription", 10)
        for peer in peers:
            peer.flow(1000)
        got = [await peer.entries() for peer in peers]
        assert sorted(got[0] + got[1]) == list(range(10))
        holder = 0 if got[0] else 1
        peers[holder].acknowledge(*got[holder][:3])
        more = [await peer.entries() for peer in peers]
        assert sorted(more[0] + more[1]) == [10, 11, 12]
        peers[holder].lose()
        rest = await peers[1 - holder].entries()
        mine = got[1 - holder] + more[1 - holder] + rest
        assert len(set(mine)) == 10, "what was out there goes to the other"
        await say(world, "max_unacked_per_subscription", None)
        mine += await peers[1 - holder].entries()
        assert len(set(mine)) == 37 if not got[1 - holder] else len(set(mine)) >= 30

    run(scenario, ledger_entries=1000)


def test_batches_count_their_messages_at_a_subscription() -> None:
    async def scenario(world: World) -> None:
        peer = world.peer()
        await peer.produce()
        peer.feed(b"".join(send_frame(1, n, batch(4, n)) for n in range(10)))
        await peer.heard()
        await peer.subscribe()
        await say(world, "max_unacked_per_subscription", 10)
        peer.flow(1000)
        assert await peer.entries() == [0, 1, 2], "8, and one more that is not cut"
        peer.acknowledge(0)
        assert await peer.entries() == [3]

    run(scenario, ledger_entries=1000)


def test_the_size_of_messages() -> None:
    async def scenario(world: World) -> None:
        peer = world.peer(version="Pulsar-Java-v4.0.8")
        await peer.produce()
        small, large = message(bytes(100)), message(bytes(2000))
        await say(world, "max_message_bytes", 1000)
        peer.feed(b"".join(send_frame(1, n, each) for n, each in enumerate((small, large, small))))
        heard = await peer.heard()
        kinds = [each.type for each in heard]
        assert kinds[:2] == [BaseCommand.SEND_RECEIPT, BaseCommand.SEND_ERROR]
        assert heard[1].send_error.error == ServerError.NOT_ALLOWED
        assert "maxMessageSize" in heard[1].send_error.message
        assert stored(world) == 2
        await say(world, "max_message_bytes", 0)
        peer.feed(send_frame(1, 3, large))
        await peer.heard()
        assert stored(world) == 3

    run(scenario)


def test_a_message_that_is_larger_may_come_in_chunks() -> None:
    """As Pulsar has it: each chunk is bounded by the broker."""

    async def scenario(world: World) -> None:
        peer = world.peer()
        await peer.produce()
        await say(world, "max_message_bytes", 1000)
        for number in range(2):
            meta = MessageMetadata(producer_name="w", sequence_id=0, publish_time=1)
            meta.uuid, meta.chunk_id, meta.num_chunks_from_msg = "w-0", number, 2
            meta.total_chunk_msg_size = 4000
            head = meta.SerializeToString()
            payload = checked(len(head).to_bytes(4, "big") + head + bytes(2000))
            peer.feed(send_frame(1, 0, payload))
        await peer.heard()
        assert stored(world) == 2

    run(scenario)


def test_a_namespaces_limit_gives_way_to_its_topics() -> None:
    async def scenario(world: World) -> None:
        peer = world.peer()
        await peer.subscribe("a", consumer_id=1)
        name = parse_topic(TOPIC)
        await world.services.control.policies.set_namespace(name.namespace, "max_consumers", 1)
        for _ in range(20):
            await asyncio.sleep(0)
        answer = await peer.subscribe("b", consumer_id=2)
        assert refusal(answer) is ServerError.CONSUMER_BUSY
        await say(world, "max_consumers", 2)
        assert (await peer.subscribe("b", consumer_id=2)).type == BaseCommand.SUCCESS

    run(scenario)
