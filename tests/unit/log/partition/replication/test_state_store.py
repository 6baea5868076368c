"""Partitions' states in the metadata store: compare-and-set, whoever else changes them."""

from __future__ import annotations

import asyncio

import pytest

from magnetar.log.partition.replication.election import LiveBroker, with_isr
from magnetar.log.partition.replication.partition_state import Member, PartitionState
from magnetar.log.partition.replication.state_store import StateStore, VersionedState
from magnetar.model.errors import BadVersionError, NodeExistsError
from tests.unit.log.doubles import Process, World

MEMBERS = tuple(Member(number, number) for number in (1, 2, 3))
NEW = PartitionState((1, 2, 3), 2, isr=MEMBERS)
LIVE = {number: LiveBroker(1, number) for number in (1, 2, 3)}
TOPIC = "tenant/ns/t"


def test_a_leader_and_controllers_change_one_state() -> None:
    async def scenario() -> None:
        world = World()
        one, two = (StateStore(Process(world).metadata) for _ in range(2))
        assert await one.partitions() == []
        await one.create(TOPIC, 3, NEW)
        with pytest.raises(NodeExistsError):
            await two.create(TOPIC, 3, NEW)
        assert await two.partitions() == [(TOPIC, 3)]
        told: list[VersionedState] = []
        heard = asyncio.Event()
        end = two.watch(TOPIC, 3, heard.set)
        led = await one.elect(TOPIC, 3, lambda: LIVE)
        assert (led.state.leader, led.state.leader_epoch, led.version) == (1, 1, 1)
        assert await two.elect(TOPIC, 3, lambda: LIVE) == led, "nothing is left to do"
        async with asyncio.timeout(30):
            await heard.wait()
        end()
        told.append(await two.read(TOPIC, 3))
        assert told == [led]

        # The leader lets a follower go while a controller elects another leader: one is too late.
        smaller = with_isr(led.state, MEMBERS[:2])
        gone = {number: LIVE[number] for number in (2, 3)}
        following = await two.elect(TOPIC, 3, lambda: gone)
        with pytest.raises(BadVersionError):
            await one.replace(TOPIC, 3, led, smaller)
        assert await one.read(TOPIC, 3) == following
        assert following.state.isr == MEMBERS[1:]

    asyncio.run(scenario())


def test_a_change_is_asked_again_when_somebody_else_was_first() -> None:
    async def scenario() -> None:
        world = World()
        one, two = (StateStore(Process(world).metadata) for _ in range(2))
        await one.create(TOPIC, 0, NEW)
        asked: list[int] = []

        def change(state: PartitionState) -> PartitionState | None:
            asked.append(state.leader_epoch)
            if len(asked) == 1:
                others.append(asyncio.ensure_future(two.elect(TOPIC, 0, lambda: LIVE)))
            return with_isr(state, MEMBERS[:2]) if len(asked) < 9 else None

        others: list[asyncio.Future[VersionedState]] = []
        found = await one.change(TOPIC, 0, change)
        led = await others[0]
        assert {found.state.leader_epoch, led.state.leader_epoch} <= {0, 1}
        stored = await one.read(TOPIC, 0)
        assert (stored.state.leader_epoch, stored.version) == (1, 2)
        assert len(asked) + (led.version == 2) >= 2, "the later of the two has read again"

    asyncio.run(scenario())
