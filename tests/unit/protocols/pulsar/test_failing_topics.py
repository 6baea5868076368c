"""A defect in what a topic does ends that topic: its clients come back to it, others live on."""

from __future__ import annotations

import pytest

from magnetar.model.entry import Entry
from magnetar.wire.pulsar.pulsar_pb2 import BaseCommand
from tests.unit.protocols.pulsar.harness import SHARED, Peer, World, run

OTHER = "persistent://public/default/other"


async def consumer_of(world: World, topic: str, kind: int = 0) -> Peer:
    peer = world.peer()
    await peer.produce(topic)
    answer = await peer.subscribe(topic=topic, kind=kind)
    assert answer.type == BaseCommand.SUCCESS
    peer.flow(100)
    return peer


async def comes_back(peer: Peer, topic: str, kind: int, entries: list[int]) -> None:
    assert (await peer.subscribe(topic=topic, kind=kind)).type == BaseCommand.SUCCESS
    peer.flow(100)
    assert await peer.entries() == entries


@pytest.mark.parametrize("kind", [0, SHARED])
def test_a_defect_in_dispatch_ends_its_topic_and_no_other(kind: int) -> None:
    async def scenario(world: World) -> None:
        broken, well = await consumer_of(world, "t", kind), await consumer_of(world, OTHER, kind)
        topic = world.topic()
        machine = topic.subscriptions["s"].dispatcher.machine

        def place(*_: object) -> None:
            raise KeyError("a defect")

        machine.place = place  # type: ignore[method-assign, assignment]
        for peer in (broken, well):
            peer.publish(3)
        assert [k for k in await broken.kinds() if k.startswith("CLOSE")] == [
            "CLOSE_PRODUCER",
            "CLOSE_CONSUMER",
        ]
        assert await well.entries() == [0, 1, 2]
        assert topic.closed
        await comes_back(broken, "t", kind, [0, 1, 2])
        assert world.topic() is not topic

    run(scenario)


def test_a_defect_in_reading_ends_its_topic_and_its_tasks() -> None:
    async def scenario(world: World) -> None:
        broken = await consumer_of(world, "t")
        topic, log = world.topic(), world.log()
        log.cached = False

        async def read(*_: object) -> list[Entry]:
            raise KeyError("a defect")

        log.read = read  # type: ignore[method-assign]
        broken.publish(2)
        kinds = await broken.kinds()
        assert "CLOSE_CONSUMER" in kinds
        assert topic.closed
        await comes_back(broken, "t", 0, [0, 1])
        assert len(topic._scope) == 0

    run(scenario)
