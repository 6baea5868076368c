"""Which ledgers a bookie forgets: those that the metadata store has missed twice in a row."""

from __future__ import annotations

import asyncio

import pytest

from magnetar.bookie.collector import Collector
from magnetar.model.errors import MetadataError


class Holder:
    def __init__(self, *held: int) -> None:
        self.held = list(held)

    async def ledgers(self) -> list[int]:
        return list(self.held)

    async def delete_ledger(self, ledger_id: int) -> None:
        self.held.remove(ledger_id)


class Store:
    def __init__(self, *living: int) -> None:
        self.living = set(living)
        self.broken = False

    async def list(self) -> set[int]:
        if self.broken:
            raise MetadataError("out of reach")
        return set(self.living)


def test_a_ledger_missed_twice_is_forgotten() -> None:
    async def run() -> None:
        holder, store = Holder(1, 2, 3), Store(1, 3)
        collector = Collector(holder, store.list)
        assert await collector.sweep() == []
        assert await collector.sweep() == [2]
        assert holder.held == [1, 3]
        assert await collector.sweep() == []

    asyncio.run(run())


def test_one_that_comes_back_is_kept() -> None:
    async def run() -> None:
        holder, store = Holder(1), Store()
        collector = Collector(holder, store.list)
        for living in (set[int](), {1}, set[int](), {1}):
            store.living = living
            assert await collector.sweep() == []
        assert holder.held == [1]

    asyncio.run(run())


def test_a_store_that_cannot_be_asked_deletes_nothing_and_starts_the_count_again() -> None:
    async def run() -> None:
        holder, store = Holder(1), Store()
        collector = Collector(holder, store.list)
        assert await collector.sweep() == []
        store.broken = True
        with pytest.raises(MetadataError):
            await collector.sweep()
        async with asyncio.TaskGroup() as group:
            task = group.create_task(collector.run(0.001))
            await asyncio.sleep(0.05)
            assert holder.held == [1]
            task.cancel()
        store.broken = False
        assert await collector.sweep() == []
        assert await collector.sweep() == [1]

    asyncio.run(run())


def test_it_goes_on_by_itself() -> None:
    async def run() -> None:
        holder, store = Holder(1, 2), Store(2)
        task = asyncio.create_task(Collector(holder, store.list).run(0.001))
        async with asyncio.timeout(5):
            while holder.held != [2]:  # noqa: ASYNC110 - nothing tells
                await asyncio.sleep(0.001)
        task.cancel()

    asyncio.run(run())
