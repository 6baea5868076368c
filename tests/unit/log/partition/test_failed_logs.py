"""A leader whose log fails where syncs are not waited for: its topic does not go on here with what
is left of it, while others have all that is committed."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import pytest

from magnetar.log.partition.checkpoint_files import Partition
from magnetar.log.partition.hosting import PartitionHost
from magnetar.log.partition.leading import PartitionLeading
from magnetar.log.partition.limits import SyncPolicy
from magnetar.log.partition.replication.election import Live, LiveBroker
from magnetar.log.partition.replication.partition_state import Member
from magnetar.log.partition.replication.state_store import StateStore, VersionedState
from magnetar.model.errors import NotLeaderError
from tests.unit.log.doubles import Process, World
from tests.unit.log.partition.world import SMALL, PartitionWorld

OTHER = Member(99, 990)
PARTITION = ("t", 0)


class _TwoBrokers:
    def __init__(self, host: PartitionHost) -> None:
        self._host = host

    async def live(self) -> Live:
        host = self._host
        return {
            host.me.broker: LiveBroker(host.start, host.me.lineage),
            OTHER.broker: LiveBroker(1, OTHER.lineage),
        }

    async def replicas(self, partition: Partition, replication_factor: int) -> Sequence[int]:
        return (self._host.me.broker, OTHER.broker)

    def stored(self, partition: Partition, state: VersionedState) -> None:
        """Nobody else asks."""


@pytest.mark.parametrize("sync", [SyncPolicy.INTERVAL, SyncPolicy.EACH_BATCH])
def test_it_is_led_by_who_has_all(sync: SyncPolicy) -> None:
    async def main() -> None:
        world = PartitionWorld(replace(SMALL, sync=sync))
        async with asyncio.timeout(60), world.running():
            host, states = world.host, StateStore(Process(World()).metadata)
            assert host is not None
            leading = PartitionLeading(host, states)
            leading.company = _TwoBrokers(host)
            hosted = await leading.lead(PARTITION)
            hosted.fail(OSError(5, "I/O error"))
            if sync.durable:  # what it counted is on its disk
                assert (await leading.lead(PARTITION)).leader_epoch is not None
                return
            with pytest.raises(NotLeaderError):
                await leading.lead(PARTITION)
            state = (await states.read(*PARTITION)).state
            assert (state.leader, state.isr, state.elr) == (OTHER.broker, (OTHER,), ())

    asyncio.run(main())


def test_the_only_one_that_has_what_is_committed_goes_on() -> None:
    async def main() -> None:
        world = PartitionWorld(replace(SMALL, sync=SyncPolicy.INTERVAL))
        async with asyncio.timeout(60), world.running():
            host, states = world.host, StateStore(Process(World()).metadata)
            assert host is not None
            leading = PartitionLeading(host, states)
            leading.company = _TwoBrokers(host)
            hosted = await leading.lead(PARTITION)
            alone = (host.me,)
            await states.change(*PARTITION, lambda state: replace(state, isr=alone))
            hosted.fail(OSError(5, "I/O error"))
            again = await leading.lead(PARTITION)
            assert again is not hosted
            assert again.leader_epoch is not None
            assert (await states.read(*PARTITION)).state.isr == (host.me,)

    asyncio.run(main())
