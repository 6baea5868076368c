"""How a broker ends that is no member of its cluster any more."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import Any, cast

from magnetar.app.ending import end_within
from magnetar.app.fate import Fate
from magnetar.app.serving import LOGS_END_S, LOST_END_S
from magnetar.env.metadata import SessionState
from magnetar.model.errors import MetadataUnavailableError, SessionExpiredError
from magnetar_sim.world.virtual_time import run_virtual
from tests.unit.protocols.pulsar.harness import World

assert LOST_END_S < LOGS_END_S


class SilentReplication:
    """Whoever hands over asks the metadata store, which does not answer."""

    @property
    def node(self) -> SilentReplication:
        return self

    async def leave(self) -> None:
        await asyncio.Event().wait()

    def close(self) -> None:
        """Nothing to end."""


def test_a_broker_whose_session_is_over_hands_nothing_over() -> None:
    """It asked the store first, which mostly is away then, for 15 s."""

    async def main() -> None:
        world = await World(shares=True).start()
        told: list[str] = []
        await world.broker.join("http://me:1", "", 1000, told.append)
        peer, loop = world.peer(), asyncio.get_running_loop()
        world.broker.replication = cast(Any, SilentReplication())
        world.metadata.end_session(SessionState.EXPIRED)
        await asyncio.sleep(3)
        assert told
        assert peer.session.closed, "its clients do not wait for the rest of its end"
        began_s = loop.time()
        await asyncio.wait_for(world.broker.leave(), 60)
        assert loop.time() == began_s
        await world.broker.close()

    run_virtual(main())


def test_what_a_broker_does_ends_also_when_its_end_is_given_up() -> None:
    """A replica learnt of another leader when the logs were closed already, which looked like a
    defect."""

    async def main() -> None:
        world = await World(shares=True).start()
        ended: list[str] = []

        async def watches() -> None:
            try:
                await asyncio.Event().wait()
            finally:
                ended.append("watches")

        async def hangs() -> None:
            await asyncio.Event().wait()

        world.broker._scope.spawn(watches(), "watches")
        close, world.broker.topics.close = world.broker.topics.close, hangs  # type: ignore[method-assign]
        async with AsyncExitStack() as stack:
            end_within(stack, LOST_END_S, "broker", world.broker.close)
        await asyncio.sleep(0)
        assert ended == ["watches"]
        world.broker.topics.close = close  # type: ignore[method-assign]
        await world.broker.close()

    run_virtual(main())


def test_a_part_is_given_up_after_the_time_that_is_right_then() -> None:
    async def main() -> None:
        loop, fate = asyncio.get_running_loop(), Fate(asyncio.Event())
        for error, bound_s in ((None, 10.0), (SessionExpiredError("over"), 2.0)):
            began_s = loop.time()
            async with AsyncExitStack() as stack:
                bound = lambda: 2.0 if fate.membership_lost else 10.0  # noqa: E731
                end_within(stack, bound, "sleeper", lambda: asyncio.sleep(60))
                if error is not None:
                    fate.fail(error)
            assert loop.time() - began_s == bound_s
        other = Fate(asyncio.Event())
        other.fail(MetadataUnavailableError("away"))
        assert not other.membership_lost

    run_virtual(main())
