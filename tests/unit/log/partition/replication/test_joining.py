"""A broker's replicas, and what is stored of them: with a leader here, and a follower that asks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from magnetar.env.metadata_stores.sqlite_metadata import SqliteMetadataStore
from magnetar.env.tasks import TaskScope, fails
from magnetar.log.partition.hosting import LAG_MS_MAX, steady_ms
from magnetar.log.partition.leader_epochs import LeaderEpochs
from magnetar.log.partition.replication.brokers import PeerBroker
from magnetar.log.partition.replication.controller import Controller
from magnetar.log.partition.replication.election import LiveBroker
from magnetar.log.partition.replication.fetcher import FetchLimits, Line
from magnetar.log.partition.replication.leader import FetchRequest, PartitionLeader
from magnetar.log.partition.replication.partition_state import (
    Member,
    PartitionState,
    encode_state,
)
from magnetar.log.partition.replication.replicas import Replicas
from magnetar.log.partition.replication.state_image import StateImage
from magnetar.log.partition.replication.state_store import state_path
from magnetar.model.errors import LeaderUnreachableError
from magnetar.wire.kafka.fetch_messages import ClientFetchRequest, FetchPartition, FetchTopic
from tests.unit.log.partition.world import PartitionWorld

OTHER = Member(99, 990)
PARTITION = ("t", 0)


class _Registered:
    """``PeerBrokers``, as it is told."""

    def __init__(self) -> None:
        self.known: dict[int, PeerBroker] = {}

    def begin(self, member: Member, start: int) -> None:
        live = LiveBroker(start, member.lineage)
        self.known[member.broker] = PeerBroker(live, "here", 9092)

    async def look(self) -> Mapping[int, PeerBroker]:
        return self.known

    def watch(self, changed: Callable[[], None]) -> Callable[[], None]:
        return lambda: None


async def _unreachable(_leader: int) -> Line:
    raise LeaderUnreachableError("nobody is asked")


async def _fetch(replicas: Replicas) -> None:
    """As the other broker does, at the log's end."""
    asked = FetchPartition(
        0, current_leader_epoch=1, fetch_offset=0, last_fetched_epoch=-1, partition_bytes_max=1
    )
    request = ClientFetchRequest(
        replica_id=OTHER.broker,
        replica_lineage=OTHER.lineage,
        wait_ms_max=0,
        bytes_min=1,
        bytes_max=1,
        topics=[FetchTopic("t", partitions=[asked])],
    )
    await replicas.fetches.serve(request)
    while replicas._kept[PARTITION].proposing:  # noqa: ASYNC110 - a task stores what follows
        await asyncio.sleep(0.001)


def test_who_is_not_registered_does_not_join_by_a_fetch_that_was_held_back(tmp_path: Path) -> None:
    """A broker was killed while the leader held its fetch back. The controller took it out of the
    in-sync set, the fetch had it join, and so on until the fetch's time was over."""

    async def main() -> None:
        world = PartitionWorld()
        async with asyncio.timeout(60), world.running():
            host = world.host
            assert host is not None
            metadata = await SqliteMetadataStore.open(tmp_path / "metadata")
            image, brokers = StateImage(metadata), _Registered()
            brokers.begin(host.me, host.start)
            me = host.me.broker
            state = PartitionState((me, OTHER.broker), 1, (host.me,), (), me, host.start, 1)
            stored = await image.store.create(*PARTITION, state)
            scope = TaskScope("replicas", fails(lambda _task, error: world.defects.append(error)))
            replicas = Replicas(host, image, brokers, _unreachable, scope, FetchLimits())
            replicas.begin()
            image.stored(PARTITION, stored)
            while (led := replicas.find(PARTITION)) is None or led.leader_epoch is None:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
            assert led.machine.leader is not None
            await _fetch(replicas)
            assert await image.store.read(*PARTITION) == stored, "nothing is asked of the store"
            assert led.machine.leader.pending is None, "and nobody waits for it"
            brokers.begin(Member(OTHER.broker, 991), 1)
            await _fetch(replicas)
            assert await image.store.read(*PARTITION) == stored, "nor is it who it was"
            brokers.begin(OTHER, 1)
            await _fetch(replicas)
            assert await image.store.read(*PARTITION) == stored, "not before the next look"
            led.machine.leader.tick(0)
            await _fetch(replicas)
            assert (await image.store.read(*PARTITION)).state.isr == (host.me, OTHER)
            replicas.close()
            await scope.close()
            image.close()
            await metadata.close()

    asyncio.run(main())


def test_a_state_that_cannot_be_read_keeps_no_other_from_its_leader(tmp_path: Path) -> None:
    """It was readable once, so that it is known which leader has gone."""

    async def main() -> None:
        metadata = await SqliteMetadataStore.open(tmp_path / "metadata")
        image, brokers = StateImage(metadata), _Registered()
        brokers.begin(OTHER, 1)
        controller = Controller(metadata, image, brokers, "me", lambda: 0.0)
        for number in range(3):
            gone = PartitionState((5, OTHER.broker), 1, (Member(5, 50), OTHER), (), 5, 1, 1)
            image.stored(("t", number), await image.store.create("t", number, gone))
        await metadata.put(state_path("t", 1), b'{"version": 99}', -1)
        await controller._look()
        leaders = [image.states["t", number].state.leader for number in range(3)]
        assert leaders == [OTHER.broker, 5, OTHER.broker]
        controller.close()
        image.close()
        await metadata.close()

    asyncio.run(main())


def test_who_ends_hands_over_all_that_can_be_read(tmp_path: Path) -> None:
    async def main() -> None:
        world = PartitionWorld()
        async with asyncio.timeout(60), world.running():
            host = world.host
            assert host is not None
            metadata = await SqliteMetadataStore.open(tmp_path / "metadata")
            image, brokers = StateImage(metadata), _Registered()
            brokers.begin(host.me, host.start)
            brokers.begin(OTHER, 1)
            me = host.me.broker
            scope = TaskScope("replicas", fails(lambda _task, error: world.defects.append(error)))
            replicas = Replicas(host, image, brokers, _unreachable, scope, FetchLimits())
            replicas.begin()
            for number in range(2):
                both = (me, OTHER.broker), 1, (host.me, OTHER)
                state = PartitionState(*both, (), me, host.start, 1)
                image.stored(("t", number), await image.store.create("t", number, state))
            while len(replicas.led()) < 2:  # noqa: ASYNC110 - each is opened by a task
                await asyncio.sleep(0.001)
            await metadata.put(state_path("t", 0), b"from another release", -1)
            await replicas.hand_over()
            assert (await image.store.read("t", 1)).state.leader == OTHER.broker
            replicas.close()
            await scope.close()
            image.close()
            await metadata.close()

    asyncio.run(main())


def test_who_never_asks_a_new_leader_leaves_when_its_time_is_over(tmp_path: Path) -> None:
    """That time began with a date, and was looked at by a clock that begins with the machine: who
    was in sync when a leader was elected stayed so, however silent, and nothing was committed until
    its session ended."""

    async def main() -> None:
        world = PartitionWorld()
        async with asyncio.timeout(60), world.running():
            host = world.host
            assert host is not None
            metadata = await SqliteMetadataStore.open(tmp_path / "metadata")
            image, brokers = StateImage(metadata), _Registered()
            brokers.begin(host.me, host.start)
            brokers.begin(OTHER, 1)
            me = host.me.broker
            both = (host.me, OTHER)
            state = PartitionState((me, OTHER.broker), 1, both, (), me, host.start, 1)
            stored = await image.store.create(*PARTITION, state)
            scope = TaskScope("replicas", fails(lambda _task, error: world.defects.append(error)))
            replicas = Replicas(host, image, brokers, _unreachable, scope, FetchLimits())
            replicas.begin()
            image.stored(PARTITION, stored)
            while not replicas.led():  # noqa: ASYNC110 - it is opened by a task
                await asyncio.sleep(0.001)
            leader = replicas._kept[PARTITION].hosted.machine.leader  # type: ignore[union-attr]
            assert leader is not None
            leader.appended(1)
            leader.tick(steady_ms() + LAG_MS_MAX // 2)
            assert leader.pending is None
            leader.tick(steady_ms() + LAG_MS_MAX + 1)
            assert leader.pending == (host.me,)
            replicas.close()
            await scope.close()
            image.close()
            await metadata.close()

    asyncio.run(main())


def test_a_change_in_doubt_whose_state_cannot_be_read_stays_in_doubt(tmp_path: Path) -> None:
    async def main() -> None:
        world = PartitionWorld()
        async with asyncio.timeout(60), world.running():
            host = world.host
            assert host is not None
            metadata = await SqliteMetadataStore.open(tmp_path / "metadata")
            image, brokers = StateImage(metadata), _Registered()
            brokers.begin(host.me, host.start)
            brokers.begin(OTHER, 1)
            me = host.me.broker
            state = PartitionState((me, OTHER.broker), 1, (host.me,), (), me, host.start, 1)
            stored = await image.store.create(*PARTITION, state)
            scope = TaskScope("replicas", fails(lambda _task, error: world.defects.append(error)))
            replicas = Replicas(host, image, brokers, _unreachable, scope, FetchLimits())
            replicas.begin()
            image.stored(PARTITION, stored)
            while not replicas.led():  # noqa: ASYNC110 - it is opened by a task
                await asyncio.sleep(0.001)
            leader = replicas._kept[PARTITION].hosted.machine.leader  # type: ignore[union-attr]
            assert leader is not None
            path = state_path(*PARTITION)
            await metadata.put(path, b"from another release", -1)
            fetching = asyncio.ensure_future(_fetch(replicas))
            await asyncio.sleep(0.3)
            assert not fetching.done(), "both sets count until it is known which is stored"
            assert leader.pending is not None
            await metadata.put(path, encode_state(state), -1)
            await fetching
            while leader.pending is not None:  # noqa: ASYNC110 - it is learnt by a task
                await asyncio.sleep(0.001)
            replicas.close()
            await scope.close()
            image.close()
            await metadata.close()

    asyncio.run(main())


def test_who_joins_without_all_that_there_is_has_its_time_to_come_to_the_end() -> None:
    """With too few in sync what was appended is not committed, and a follower joins by what is.
    Appends go on then, faster than it fetches: it does not leave at the next look at the clock."""
    me, slow, now_ms, lag_ms = Member(1, 1), Member(2, 2), 1_000_000, 30_000
    alone = PartitionState((1, 2, 3), 2, leader=1, leader_epoch=1, isr=(me,))
    leader = PartitionLeader(
        me, alone, LeaderEpochs(),
        log_start=0, log_end=60, stored_end=60, high_watermark=60, now_ms=0, lag_ms_max=lag_ms,
    )  # fmt: skip
    leader.appended(100)  # with one that has left since
    leader.fetched(FetchRequest(slow, 1, 60, 1), now_ms)
    assert leader.pending == (me, slow)
    leader.learnt(replace(alone, isr=(me, slow)))
    leader.check_append()
    for second in range(1, 31):
        leader.appended(100 + 10 * second)
        leader.fetched(FetchRequest(slow, 1, 60 + second, 1), now_ms + 1000 * second)
        leader.tick(now_ms + 1000 * second)
        assert leader.pending is None, f"after {second} s"
    leader.tick(now_ms + lag_ms + 1)
    assert leader.pending == (me,), "it never came to the end"
