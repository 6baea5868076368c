"""A partition that is made: who is in sync of one that nobody has anything of."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from magnetar.log.partition.checkpoint_files import Partition
from magnetar.log.partition.hosting import PartitionHost
from magnetar.log.partition.leading import PartitionLeading
from magnetar.log.partition.replication.election import Live, LiveBroker
from magnetar.log.partition.replication.partition_state import Member
from magnetar.log.partition.replication.state_store import StateStore, VersionedState
from tests.unit.log.doubles import Process, World
from tests.unit.log.partition.world import PartitionWorld

OTHER = Member(99, 990)
GONE = 100
PARTITION = ("t", 0)


class _ThreeBrokers:
    """One of which is not there any more when the partition is made."""

    def __init__(self, host: PartitionHost) -> None:
        self._host = host

    async def live(self) -> Live:
        host = self._host
        return {
            host.me.broker: LiveBroker(host.start, host.me.lineage),
            OTHER.broker: LiveBroker(1, OTHER.lineage),
        }

    async def replicas(self, partition: Partition, replication_factor: int) -> Sequence[int]:
        return (self._host.me.broker, GONE, OTHER.broker)

    def stored(self, partition: Partition, state: VersionedState) -> None:
        """Nobody else asks."""


def test_all_that_live_are_in_sync_of_a_new_partition() -> None:
    """Only its leader was: with ``min_isr`` 2 an idempotent producer's first batches were refused
    until a follower had fetched, and one that was on its way behind them was taken before them."""

    async def main() -> None:
        world = PartitionWorld()
        async with asyncio.timeout(60), world.running():
            host, states = world.host, StateStore(Process(World()).metadata)
            assert host is not None
            leading = PartitionLeading(host, states, replication_factor=3, min_isr=2)
            leading.company = _ThreeBrokers(host)
            hosted = await leading.lead(PARTITION)
            assert (await states.read(*PARTITION)).state.isr == (host.me, OTHER)
            leader = hosted.machine.leader
            assert leader is not None
            leader.check_append()
            leader.appended(1)
            leader.stored(1)
            assert leader.high_watermark == 0, "nothing is committed before the other has it"

    asyncio.run(main())
