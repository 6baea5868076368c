"""Waiting for a node: no change is missed, and no wait is longer than it may be."""

from __future__ import annotations

import asyncio

from magnetar.env.node_changes import NodeChanges
from magnetar_sim.world.virtual_time import run_virtual
from tests.doubles.memory_metadata import MemoryMetadata

PATH = "/magnetar/node"


def test_a_change_before_the_wait_ends_it_and_each_wakes_once() -> None:
    async def run() -> None:
        store, now = MemoryMetadata(), asyncio.get_running_loop().time
        await store.create(PATH, b"1")
        with NodeChanges(store, PATH) as changes:
            await store.put(PATH, b"2", 0)
            begun = now()
            await changes.wait(30)
            assert now() == begun
            await changes.wait(30)
            assert now() == begun + 30

    run_virtual(run())


def test_nothing_is_watched_after_its_end() -> None:
    async def run() -> None:
        store, now = MemoryMetadata(), asyncio.get_running_loop().time
        await store.create(PATH, b"1")
        with NodeChanges(store, PATH) as changes:
            pass
        await store.put(PATH, b"2", 0)
        begun = now()
        await changes.wait(5)
        assert now() == begun + 5

    run_virtual(run())
