"""Connections, consumers and readers that end are gone at once: what is left in cycles only the
garbage collector finds, which looks at what is old when much of it has gathered."""

from __future__ import annotations

import pytest

from magnetar.wire.pulsar.pulsar_pb2 import BaseCommand, CommandSubscribe
from tests.doubles.garbage import in_cycles, ours
from tests.unit.protocols.pulsar.harness import EXCLUSIVE, FAILOVER, SHARED, Peer, World, run

KINDS = [EXCLUSIVE, SHARED, FAILOVER, CommandSubscribe.Key_Shared]


async def publishing(world: World) -> Peer:
    """A client that has published what others read."""
    peer = world.peer()
    await peer.produce()
    peer.publish(3)
    await peer.heard()
    return peer


def test_a_connection() -> None:
    async def scenario(world: World) -> None:
        async def use() -> None:
            (await publishing(world)).lose()

        await use()
        with in_cycles() as left:
            await use()
        assert ours(left) == []

    run(scenario)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("closes", [True, False], ids=["closed", "lost"])
def test_a_consumer(kind: int, closes: bool) -> None:
    async def scenario(world: World) -> None:
        producer = await publishing(world)

        async def use() -> None:
            peer = world.peer()
            await peer.subscribe(kind=kind)
            peer.flow(2)
            await peer.heard()
            if closes:
                command = BaseCommand(type=BaseCommand.CLOSE_CONSUMER)
                command.close_consumer.consumer_id = 1
                command.close_consumer.request_id = 5
                assert (await peer.ask(command)).type == BaseCommand.SUCCESS
            peer.lose()

        await use()
        with in_cycles() as left:
            await use()
            await use()
            await producer.heard()
        assert ours(left) == []

    run(scenario)


@pytest.mark.parametrize("kind", KINDS)
def test_a_subscription_that_is_deleted(kind: int) -> None:
    async def scenario(world: World) -> None:
        producer = await publishing(world)

        async def use(name: str) -> None:
            peer = world.peer()
            await peer.subscribe(name, kind)
            peer.flow(2)
            await peer.heard()
            command = BaseCommand(type=BaseCommand.UNSUBSCRIBE)
            command.unsubscribe.consumer_id = 1
            command.unsubscribe.request_id = 5
            assert (await peer.ask(command)).type == BaseCommand.SUCCESS
            peer.lose()

        await use("first")
        with in_cycles() as left:
            await use("s")
            await producer.heard()
        assert set(ours(left)) <= {"Binding", "Position"}, "what the double of a cursor leaves"

    run(scenario)


def test_a_reader() -> None:
    async def scenario(world: World) -> None:
        producer = await publishing(world)

        async def use() -> None:
            peer = world.peer()
            await peer.subscribe("r", EXCLUSIVE, durable=False)
            peer.flow(2)
            await peer.heard()
            peer.lose()

        await use()
        with in_cycles() as left:
            await use()
            await producer.heard()
        assert ours(left) == []

    run(scenario)
