"""The copy of all partitions' states: kept by watches, told in order, never older than before."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

from magnetar.env.metadata_stores.sqlite_metadata import SqliteMetadataStore
from magnetar.log.partition.checkpoint_files import Partition
from magnetar.log.partition.replication.election import LiveBroker
from magnetar.log.partition.replication.partition_state import Member, PartitionState
from magnetar.log.partition.replication.state_image import StateImage
from magnetar.log.partition.replication.state_store import (
    StateStore,
    VersionedState,
    state_path,
)

MEMBERS = tuple(Member(number, number) for number in (1, 2))
NEW = PartitionState((1, 2), 1, isr=MEMBERS)
LIVE = {number: LiveBroker(1, number) for number in (1, 2)}
Heard = list[tuple[Partition, int | None]]
Story = Callable[[StateStore, StateImage, Heard], Awaitable[None]]


def tell(folder: Path, story: Story) -> None:
    async def scenario() -> None:
        metadata = await SqliteMetadataStore.open(folder / "metadata.db")
        store, image = StateStore(metadata), StateImage(metadata)
        heard: Heard = []

        def told(partition: Partition, state: VersionedState | None) -> None:
            heard.append((partition, None if state is None else state.state.leader_epoch))

        image.watch(told)
        keeping = asyncio.create_task(image.run())
        try:
            async with asyncio.timeout(30):
                await image.whole.wait()
                await story(store, image, heard)
        finally:
            keeping.cancel()
            image.close()
            await metadata.close()

    asyncio.run(scenario())


async def _until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 (no event tells of it)
        await asyncio.sleep(0.005)


def test_what_is_made_changed_and_deleted_is_told(tmp_path: Path) -> None:
    async def story(store: StateStore, image: StateImage, heard: Heard) -> None:
        await store.create("a/b", 0, NEW)
        await store.create("a/b", 1, NEW)
        await _until(lambda: len(image.states) == 2)
        await store.elect("a/b", 1, lambda: LIVE)
        await _until(lambda: image.states["a/b", 1].state.leader == 1)
        assert sorted(image.of_topic("a/b")) == [0, 1]
        await image._metadata.delete(state_path("a/b", 0))
        await _until(lambda: len(image.states) == 1)
        assert heard[-1] == (("a/b", 0), None)
        assert (("a/b", 1), 1) in heard

    tell(tmp_path, story)


def test_brokers_that_have_replicas_are_known_as_states_change(tmp_path: Path) -> None:
    async def story(store: StateStore, image: StateImage, heard: Heard) -> None:
        assert image.assigned() == frozenset()
        image.stored(("t", 0), VersionedState(PartitionState((1, 2), 1, ()), 0))
        image.stored(("u", 0), VersionedState(PartitionState((2, 3), 1, ()), 0))
        assert image.assigned() == image.assigned() == {1, 2, 3}
        image.stored(("t", 0), VersionedState(PartitionState((1, 4), 1, ()), 1))
        assert image.assigned() == {1, 2, 3, 4}
        image.deleted(("u", 0))
        assert image.assigned() == {1, 4}

    tell(tmp_path, story)


def test_what_is_older_than_what_is_known_changes_nothing(tmp_path: Path) -> None:
    async def story(store: StateStore, image: StateImage, heard: Heard) -> None:
        first = await store.create("t", 0, NEW)
        led = await store.elect("t", 0, lambda: LIVE)
        image.stored(("t", 0), led)
        image.stored(("t", 0), first._replace(state=led.state))
        assert image.states["t", 0] == led
        assert heard[-1] == (("t", 0), 1)

    tell(tmp_path, story)


def test_a_topic_that_is_made_again_is_told_as_gone_first(tmp_path: Path) -> None:
    async def story(store: StateStore, image: StateImage, heard: Heard) -> None:
        await store.create("t", 0, NEW)
        led = await store.elect("t", 0, lambda: LIVE)
        image.stored(("t", 0), led)
        heard.clear()
        image.stored(("t", 0), VersionedState(replace(NEW, topic_id="another"), 0))
        assert heard == [(("t", 0), None), (("t", 0), 0)]

    tell(tmp_path, story)


def test_what_this_process_deleted_and_the_store_has_again_is_told_again(tmp_path: Path) -> None:
    """With the very state that was known: the store was restored. Replicas that were closed for
    the deletion are opened by that."""

    async def story(store: StateStore, image: StateImage, heard: Heard) -> None:
        await store.create("t", 0, NEW)
        await _until(lambda: len(image.states) == 1)
        heard.clear()
        image.deleted(("t", 0))
        assert heard == [(("t", 0), None)]
        await _until(lambda: heard[1:] == [(("t", 0), 0)])

    tell(tmp_path, story)
