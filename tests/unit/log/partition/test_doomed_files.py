"""Doomed partitions of one process: a lost state, another store, a new topic of the name."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, MutableMapping, Sequence
from typing import Any

import pytest
from structlog.testing import capture_logs

from magnetar.log.partition.checkpoint_files import Partition
from magnetar.log.partition.doom import Doom
from magnetar.log.partition.hosting import PartitionHost
from magnetar.log.partition.replication.state_store import (
    DELETED,
    StateStore,
    id_path,
    state_path,
)
from magnetar.log.partition.serving.partition_names import partition_of
from magnetar.log.seam import LogStore
from magnetar.model.errors import LogError
from tests.unit.log.doubles import Process
from tests.unit.log.partition.serving.test_partition_log import NAME, Setting, fill, read_all

PARTITION = partition_of(NAME)
STATE = state_path(*PARTITION)
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


async def lose_state(setting: Setting, nodes: Sequence[str] = (STATE,)) -> None:
    """Nobody has deleted the topic."""
    metadata = Process(setting.world).metadata
    for node in nodes:
        await metadata.delete(node)
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
        metadata = Process(setting.world).metadata
        before = (await metadata.get(STATE)).value
        await lose_state(setting)
        with pytest.raises(LogError, match="has no state in the metadata store any more"):
            await setting.store().open(NAME)
        assert files(setting)
        await metadata.create(STATE, before)
        source = await setting.store().open(NAME)
        assert len(await read_all(source)) == 5
        assert len(host_of(setting).doomed) == 0
        await source.close()

    setting.run(scenario)


def test_a_state_that_is_gone_and_was_not_deleted_is_missed() -> None:
    """Somebody has deleted it by hand, say: the node of its id is there, and does not say that the
    topic was deleted."""
    setting = Setting()

    async def scenario() -> None:
        await filled(setting.store(), 5)
        states = StateStore(Process(setting.world).metadata)
        topic_id = (await states.read(*PARTITION)).state.topic_id
        with capture_logs() as told:
            await lose_state(setting)
            await until(lambda: bool(_warned(told)), "it is told")
            await asyncio.sleep(1.0)  # several looks, and the grace is over
        assert files(setting)
        (warned,) = _warned(told)
        assert f"delete {id_path(topic_id)}" in warned["why"]
        await Process(setting.world).metadata.delete(id_path(topic_id))
        await until(lambda: not files(setting), "as whoever deletes that node says")

    setting.run(scenario)


def _warned(told: Sequence[MutableMapping[str, Any]]) -> list[MutableMapping[str, Any]]:
    return [each for each in told if each["log_level"] == "warning"]


def test_nobody_is_told_to_restore_what_was_deleted() -> None:
    setting = Setting()
    setting.parts.grace_ms = 400

    async def scenario() -> None:
        store = setting.store()
        await filled(store, 5)
        with capture_logs() as told:
            await store.delete(NAME)
            await until(lambda: not files(setting), "they go")
        assert not _warned(told)
        assert [each for each in told if "topic was deleted" in each["event"]]

    setting.run(scenario)


@pytest.mark.parametrize("step", [0, 1])
def test_a_deletion_that_ended_half_way_is_one(step: int) -> None:
    """Behind its first step it has been noted, and the state is there; behind the second the state
    is gone."""
    setting = Setting()

    async def scenario() -> None:
        await filled(setting.store(), 5)
        metadata = Process(setting.world).metadata
        topic_id = (await StateStore(metadata).read(*PARTITION)).state.topic_id
        await metadata.put(id_path(topic_id), DELETED, -1)
        if step == 0:
            source = await setting.store().open(NAME)
            assert len(await read_all(source)) == 5, "it is not deleted yet"
            await source.close()
        await lose_state(setting)
        await until(lambda: not files(setting), "they go")

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


def test_a_state_that_is_back_before_its_files_go_has_them() -> None:
    """What was found out before the files are kept from openings is asked for once more."""
    setting = Setting()
    setting.parts.grace_ms = LONG_MS

    async def scenario() -> None:
        await filled(setting.store(), 5)
        metadata, host = Process(setting.world).metadata, host_of(setting)
        before = (await metadata.get(STATE)).value
        await setting.store().delete(NAME)
        doomed, found = host.doomed, list[Doom]()
        judged = doomed._judged

        async def noted(partition: Partition) -> Doom:
            verdict = await judged(partition)
            found.append(verdict)
            return verdict

        doomed._judged = noted  # type: ignore[method-assign]
        doomed._grace_ms = 0
        async with host._opening:
            looking = asyncio.create_task(doomed._look(PARTITION))
            await until(lambda: Doom.REMOVE in found, "nothing is known against it")
            await metadata.create(STATE, before)
        await looking
        assert found[-1] is Doom.CLAIMED
        assert files(setting)

    setting.run(scenario)
