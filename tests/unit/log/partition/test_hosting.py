"""One replica of a process: what waits for what."""

from __future__ import annotations

import asyncio
import threading

from magnetar.log.partition.checkpoint_files import LEADER_EPOCHS, decode_epochs
from magnetar.log.partition.group_append import Outcome
from magnetar.log.partition.hosting import PartitionHost
from magnetar.log.partition.leader_epochs import EpochStart
from magnetar.log.partition.local_log import Appended
from magnetar.log.partition.log_directory import CLEAN_END
from magnetar.log.partition.replication.partition_state import Member, PartitionState
from magnetar.log.partition.replication.state_store import VersionedState
from magnetar.model.errors import LogFencedError
from tests.unit.log.partition.kit import batch, filled
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


def led(host: PartitionHost, epoch: int) -> VersionedState:
    me = host.me
    return VersionedState(
        PartitionState((me.broker,), 1, (me,), (), me.broker, host.start, epoch), epoch
    )


def followed(host: PartitionHost, epoch: int) -> VersionedState:
    me, other = host.me, Member(99, 990)
    replicas = other.broker, me.broker
    return VersionedState(PartitionState(replicas, 1, (other, me), (), 99, 1, epoch), epoch)


def test_what_was_asked_of_an_earlier_epoch_is_not_appended() -> None:
    async def run() -> None:
        world = PartitionWorld()
        async with world.running():
            assert world.host is not None
            replica = await world.host.replica(("t", 0))
            await replica.learnt(led(world.host, 1))
            await replica.learnt(led(world.host, 2))
            outcomes: list[Outcome] = []
            replica.append([bytearray(batch([b"one"]))], 1, outcomes.extend)
            replica.append([bytearray(batch([b"two"]))], 2, outcomes.extend)
            await replica.settle()
            assert [type(each) for each in outcomes] == [LogFencedError, Appended]
            assert replica.source.log_end == 1

    asyncio.run(run())


def test_what_a_former_leader_has_sent_is_not_stored_by_who_leads_now() -> None:
    async def run() -> None:
        world = PartitionWorld()
        async with world.running():
            assert world.host is not None
            replica = await world.host.replica(("t", 0))
            await replica.learnt(followed(world.host, 1))
            follower = replica.machine.follower
            assert follower is not None
            await replica.learnt(led(world.host, 2))
            done: list[str] = []
            await replica.follow(follower, lambda: done.append("job"), lambda: done.append("done"))
            assert done == []

    asyncio.run(run())


def test_the_file_of_epochs_is_as_the_part_has_them() -> None:
    """An epoch that was led without a batch must not be found by a start that comes later."""

    async def run() -> None:
        world = PartitionWorld()
        async with world.running():
            assert world.host is not None
            replica = await world.host.replica(("t", 0))
            path = replica.source.folder / LEADER_EPOCHS
            await replica.learnt(led(world.host, 1))
            assert decode_epochs(path.read_bytes(), path) == [EpochStart(1, 0)]
            await replica.learnt(followed(world.host, 2))
            assert decode_epochs(path.read_bytes(), path) == []

    asyncio.run(run())


def test_nothing_is_known_to_be_committed_without_a_high_watermark() -> None:
    async def run() -> None:
        world = PartitionWorld()
        async with world.running(closing=False):
            assert world.host is not None
            filled((await world.host.replica(("t", 0))).source, 5)
        async with world.running():
            replica = await world.host.replica(("t", 0))
            assert replica.source.log_end > 0
            assert replica.high_watermark == 0

    asyncio.run(run())


def test_a_directory_with_a_log_that_failed_is_not_closed_in_order() -> None:
    """Whoever opens it next has to look for what is torn."""

    async def run() -> None:
        world = PartitionWorld()
        async with world.running():
            assert world.host is not None
            replica = await world.host.replica(("t", 0))
            filled(replica.source, 5)
            replica.fail(OSError("its disk fails"))
        assert not (world.path / CLEAN_END).exists()

    asyncio.run(run())
