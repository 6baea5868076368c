"""Partitions' states in the metadata store: compare-and-set, whoever else changes them."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from magnetar.env.metadata import Versioned
from magnetar.log.partition.replication.election import LiveBroker, with_isr
from magnetar.log.partition.replication.partition_state import (
    Member,
    PartitionState,
    encode_state,
)
from magnetar.log.partition.replication.state_store import (
    IDS,
    ROOT,
    StateStore,
    VersionedState,
    state_path,
)
from magnetar.model.errors import BadVersionError, NodeExistsError, NoNodeError
from tests.doubles.memory_metadata import MemoryMetadata
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


def test_what_was_read_of_an_earlier_making_fits_no_later_one() -> None:
    async def scenario() -> None:
        world = World()
        one, two = (StateStore(Process(world).metadata) for _ in range(2))
        await one.create(TOPIC, 0, replace(NEW, topic_id="first"))
        led = await one.elect(TOPIC, 0, lambda: LIVE)
        await two.delete(TOPIC, 0)
        await two.create(TOPIC, 0, replace(NEW, topic_id="second"))
        again = await two.elect(TOPIC, 0, lambda: LIVE)
        assert again.version == led.version, "by its version alone it would fit"
        with pytest.raises(NoNodeError, match="is deleted"):
            await one.replace(TOPIC, 0, led, with_isr(led.state, MEMBERS[:2]))
        assert await one.read(TOPIC, 0) == again
        await two.replace(TOPIC, 0, again, with_isr(again.state, MEMBERS[:2]))

    asyncio.run(scenario())


def test_a_deletion_that_ended_half_way_leaves_an_empty_node() -> None:
    async def scenario() -> None:
        metadata = Process(World()).metadata
        states = StateStore(metadata)
        made = await states.create(TOPIC, 0, replace(NEW, topic_id="first"))
        with pytest.raises(NodeExistsError):
            await states.create(TOPIC, 0, replace(NEW, topic_id="too late"))
        assert await metadata.children(IDS) == ["first"]
        changed = await states.replace(TOPIC, 0, made, with_isr(made.state, MEMBERS[:2]))
        await metadata.delete(state_path(TOPIC, 0), changed.version)
        await states.delete(TOPIC, 0)
        assert await states.partitions() == []
        await states.create(TOPIC, 0, replace(NEW, topic_id="second"))
        assert await metadata.children(IDS) == ["first", "second"]
        await states.delete(TOPIC, 0)
        assert await metadata.children(IDS) == ["first"]
        assert await metadata.children(ROOT) == [], "no node for each name that there ever was"
        await asyncio.gather(*(states.create(TOPIC, each, NEW) for each in range(2)))
        await states.delete(TOPIC, 0)
        assert await states.partitions() == [(TOPIC, 1)]

    asyncio.run(scenario())


def test_a_state_from_before_ids_had_nodes_is_changed_as_it_was() -> None:
    async def scenario() -> None:
        metadata = Process(World()).metadata
        states = StateStore(metadata)
        old = replace(NEW, topic_id="old")
        await metadata.create(
            state_path(TOPIC, 0), encode_state(old).replace(b',"guarded":false', b"")
        )
        led = await states.elect(TOPIC, 0, lambda: LIVE)
        assert (led.state.leader, led.state.guarded) == (1, False)
        await states.delete(TOPIC, 0)
        assert await states.partitions() == []

    asyncio.run(scenario())


def test_what_was_written_and_not_answered_is_found_at_a_server_that_lags() -> None:
    """A leader whose proposal was in doubt read the state of before it, and might have taken it
    back, while whoever was to join was in sync by the state that is stored."""

    class LaggingStore(MemoryMetadata):
        behind: Versioned | None = None

        async def get(self, path: str) -> Versioned:
            found = await super().get(path)
            there = self.behind is not None and path == state_path("orders", 0)
            return self.behind if there and self.behind is not None else found

        async def sync(self) -> None:
            self.behind = None

    async def main() -> None:
        metadata = LaggingStore()
        store = StateStore(metadata)
        before = await store.create("orders", 0, PartitionState((1, 2), 1, (Member(1, 11),)))
        metadata.behind = metadata.nodes[state_path("orders", 0)]
        grown = replace(before.state, isr=(Member(1, 11), Member(2, 12)))
        stored = await store.replace("orders", 0, before, grown)
        assert (await store.read("orders", 0)).state == before.state
        assert await store.read_newest("orders", 0) == stored

    asyncio.run(main())
