"""Doomed partitions of one process: a lost state, another store, a new topic of the name."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from magnetar.log.partition.hosting import PartitionHost
from magnetar.log.partition.replication.state_store import StateStore
from magnetar.log.partition.serving.partition_names import partition_of
from magnetar.log.seam import LogStore
from magnetar.model.errors import LogError
from tests.unit.log.doubles import Process
from tests.unit.log.partition.serving.test_partition_log import NAME, Setting, fill, read_all

PARTITION = partition_of(NAME)
LONG_MS = 3_600_000


def host_of(setting: Setting) -> PartitionHost:
    host = setting.parts.host
    assert host is not None
    return host


def files(setting: Setting) -> bool:
    return (setting.parts.path / f"{PARTITION[0]}-{PARTITION[1]}").exists()


async def until(what: Callable[[], bool], said: str) -> None:
    for _ in range(600):
        if what():
            return
        await asyncio.sleep(0.05)
    raise AssertionError(said)


async def filled(store: LogStore, count: int) -> None:
    source = await store.open(NAME)
    await fill(source, count)
    await source.close()


async def lose_state(setting: Setting) -> None:
    """As whoever empties the metadata store: nobody has deleted the topic."""
    await StateStore(Process(setting.world).metadata).delete(*PARTITION)
    await host_of(setting).doom(PARTITION)


def test_files_of_a_deleted_topic_go_after_a_grace() -> None:
    setting = Setting()
    setting.parts.grace_ms = 400

    async def scenario() -> None:
        store = setting.store()
        await filled(store, 5)
        await store.delete(NAME)
        assert files(setting)
        assert len(host_of(setting).doomed) == 1
        await until(lambda: not files(setting), "they go")
        await until(lambda: len(host_of(setting).doomed) == 0, "it is told")

    setting.run(scenario)


def test_a_lost_state_is_refused_and_has_its_files_when_it_is_back() -> None:
    setting = Setting()
    setting.parts.grace_ms = LONG_MS

    async def scenario() -> None:
        await filled(setting.store(), 5)
        states = StateStore(Process(setting.world).metadata)
        before = (await states.read(*PARTITION)).state
        await lose_state(setting)
        with pytest.raises(LogError, match="has no state in the metadata store any more"):
            await setting.store().open(NAME)
        assert files(setting)
        await states.create(*PARTITION, before)
        source = await setting.store().open(NAME)
        assert len(await read_all(source)) == 5
        assert len(host_of(setting).doomed) == 0
        await source.close()

    setting.run(scenario)


@pytest.mark.parametrize("cluster", ["another", ""])
def test_another_clusters_store_deletes_nothing(cluster: str) -> None:
    setting = Setting()

    async def scenario() -> None:
        await filled(setting.store(), 5)
        setting.parts.witness.cluster = cluster
        await lose_state(setting)
        await asyncio.sleep(1.0)  # several looks
        assert files(setting)
        assert len(host_of(setting).doomed) == 1

    setting.run(scenario)


def test_a_new_topic_of_the_name_has_none_of_the_former_ones_records() -> None:
    setting = Setting()
    setting.parts.grace_ms = LONG_MS

    async def scenario() -> None:
        store = setting.store()
        await filled(store, 5)
        await store.delete(NAME)
        assert files(setting)
        source = await store.open(NAME)
        await fill(source, 2)
        assert len(await read_all(source)) == 2
        await source.close()

    setting.run(scenario)


def test_a_new_topic_does_not_take_the_files_that_another_cluster_may_need() -> None:
    setting = Setting()
    setting.parts.grace_ms = LONG_MS

    async def scenario() -> None:
        store = setting.store()
        await filled(store, 5)
        await store.delete(NAME)
        setting.parts.witness.cluster = "another"
        with pytest.raises(LogError, match="not known that the former one was deleted"):
            await store.open(NAME)
        assert files(setting)

    setting.run(scenario)


def test_after_a_start_the_same_holds() -> None:
    """A topic that was deleted while the broker was away."""
    setting = Setting()

    async def before() -> None:
        await filled(setting.store(), 5)

    async def other() -> None:
        setting.parts.witness.cluster = "another"
        setting.store()
        await StateStore(Process(setting.world).metadata).delete(*PARTITION)
        await until(lambda: len(host_of(setting).doomed) == 1, "it is found")
        await asyncio.sleep(0.6)
        assert files(setting)

    async def same() -> None:
        setting.parts.witness.cluster = "cluster-1"
        setting.store()
        await until(lambda: not files(setting), "they go")

    setting.run(before)
    setting.run(other)
    setting.run(same)
