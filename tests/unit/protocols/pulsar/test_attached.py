"""How many producers and consumers clients may have, and how much of what they say is kept."""

from __future__ import annotations

from magnetar.wire.pulsar.codes import ServerError
from magnetar.wire.pulsar.pulsar_pb2 import BaseCommand
from tests.unit.protocols.pulsar.harness import World, run


def refused(answer: BaseCommand, setting: str) -> bool:
    return answer.error.error == ServerError.TOO_MANY_REQUESTS and setting in answer.error.message


def test_a_connection_has_so_many_producers_and_consumers() -> None:
    async def scenario(world: World) -> None:
        peer = world.peer()
        for number in (1, 2):
            await peer.produce(f"t{number}", number)
        await peer.subscribe(consumer_id=1)
        setting = "broker.attached_per_connection_max"
        assert refused(await peer.produce("t3", 3), setting)
        assert refused(await peer.subscribe("s2", consumer_id=2), setting)
        assert [str(each.name) for each in world.services.topics.loaded()].count("t3") == 0
        other = world.peer()
        assert (await other.produce("t3", 3)).type == BaseCommand.PRODUCER_SUCCESS
        close = BaseCommand(type=BaseCommand.CLOSE_CONSUMER)
        close.close_consumer.consumer_id, close.close_consumer.request_id = 1, 5
        await peer.ask(close)
        assert (await peer.subscribe("s2", consumer_id=2)).type == BaseCommand.SUCCESS

    run(scenario, attached_per_connection_max=3)


def test_who_asks_again_for_what_it_has_is_answered() -> None:
    async def scenario(world: World) -> None:
        peer = world.peer()
        await peer.produce()
        await peer.subscribe()
        assert (await peer.produce()).type == BaseCommand.PRODUCER_SUCCESS
        assert (await peer.produce(epoch=1)).type == BaseCommand.PRODUCER_SUCCESS
        assert (await peer.subscribe()).type == BaseCommand.SUCCESS
        assert world.services.attached.count == 2

    run(scenario, attached_per_connection_max=2)


def test_a_broker_has_so_many_over_all_connections() -> None:
    async def scenario(world: World) -> None:
        first, second = world.peer(), world.peer()
        await first.produce("t1")
        await first.subscribe()
        assert refused(await second.produce("t2"), "broker.attached_max")
        first.lose()
        assert world.services.attached.count == 0
        assert (await second.produce("t2")).type == BaseCommand.PRODUCER_SUCCESS

    run(scenario, attached_max=2)


def test_what_clients_say_of_them_is_bounded_over_all() -> None:
    async def scenario(world: World) -> None:
        peer = world.peer()
        for number in range(1, 5):
            command = peer.produce_command(f"t{number}", number)
            command.producer.metadata.add(key="k", value="v" * 500)
            answer = await peer.ask(command)
        assert refused(answer, "broker.attached_bytes_max")
        peer.lose()
        assert world.services.attached.byte_count == 0

    run(scenario, attached_bytes_max=1024)
