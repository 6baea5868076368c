"""Many subscriptions of one topic: what is done once, and not once for each of them."""

from __future__ import annotations

from magnetar.model.entry import Description
from magnetar.protocols.pulsar.entry_format import PulsarEntryFormat
from tests.unit.protocols.pulsar.harness import World, run

SUBSCRIPTIONS = 10
MESSAGES = 25


class CountingFormat(PulsarEntryFormat):
    def __init__(self) -> None:
        self.described = 0

    def describe(self, payload: memoryview) -> Description:
        self.described += 1
        return super().describe(payload)


def test_an_entry_is_looked_into_once_for_all_subscriptions() -> None:
    async def scenario(world: World) -> None:
        counting = CountingFormat()
        world.services.topics._format = counting
        sender = world.peer()
        await sender.produce()
        peers = [world.peer() for _ in range(SUBSCRIPTIONS)]
        for number, peer in enumerate(peers):
            await peer.subscribe(name=f"s{number}")
            peer.flow(2 * MESSAGES)
        sender.publish(MESSAGES)
        for peer in peers:
            assert await peer.entries() == list(range(MESSAGES))
        assert counting.described == MESSAGES

    run(scenario)
