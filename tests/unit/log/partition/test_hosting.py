"""One replica of a process: what waits for what."""

from __future__ import annotations

import asyncio
import threading

from magnetar.log.partition.group_append import Outcome
from magnetar.model.errors import LogFencedError
from tests.unit.log.partition.world import PartitionWorld


def test_who_settles_a_replica_does_not_look_all_the_time() -> None:
    """Appends wait for a change of its part, and that for the disk: the loop has nothing to do."""

    async def run() -> None:
        world = PartitionWorld()
        async with world.running():
            assert world.host is not None
            replica = await world.host.replica(("t", 0))
            disk_works = threading.Event()
            follower = replica.machine.follower
            changing = asyncio.create_task(
                replica.follow(follower, disk_works.wait)  # type: ignore[arg-type]
            )
            await asyncio.sleep(0)
            outcomes: list[Outcome] = []
            replica.append([bytearray()], 0, outcomes.extend)
            looks, look = 0, replica._begin_group

            def counted() -> None:
                nonlocal looks
                looks += 1
                look()

            replica._begin_group = counted  # type: ignore[method-assign]
            settling = asyncio.create_task(replica.settle())
            for _ in range(100):
                await asyncio.sleep(0)
            assert looks <= 2
            assert not settling.done()
            disk_works.set()
            await settling
            await changing
            assert [type(each) for each in outcomes] == [LogFencedError]

    asyncio.run(run())
