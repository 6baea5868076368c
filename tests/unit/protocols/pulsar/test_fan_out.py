"""Many subscriptions of one topic: what is done once, and not once for each of them."""

from __future__ import annotations

from collections.abc import Callable

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


def test_a_topic_hears_of_new_entries_while_somebody_may_read_them() -> None:
    async def scenario(world: World) -> None:
        sender = world.peer()
        await sender.produce()
        watches = _watches_of(world)
        assert watches == []
        for name in ("first", "second"):  # the second when the first is gone
            reader = world.peer()
            await reader.subscribe(name=name, earliest=False)
            reader.flow(10)
            await reader.heard()
            sender.publish(3)
            assert len(await reader.entries()) == 3
            assert watches == ["watched"]
            await world.topic().delete_subscription(name, force=True)
            assert watches == []
            sender.publish(2)

    run(scenario)


def _watches_of(world: World) -> list[str]:
    """One item for each watch of the topic's log from now on, until it ends."""
    found: list[str] = []
    log = world.log()
    watch = log.watch_readable

    def counting(grown: Callable[[], None]) -> Callable[[], None]:
        found.append("watched")
        end = watch(grown)

        def ended() -> None:
            found.remove("watched")
            end()

        return ended

    log.watch_readable = counting  # type: ignore[method-assign]
    return found
