"""Which ledgers a bookie forgets: those that the metadata store has missed, long enough."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence

import pytest

from magnetar.bookie.space.collector import DELETE_BATCH, Collector
from magnetar.bookie.space.missing_ledgers import MissingLedgers
from magnetar.model.errors import (
    BookieError,
    BookieIOError,
    MagnetarError,
    MetadataError,
    MetadataFormatError,
)


class Holder:
    def __init__(self, *held: int) -> None:
        self.held = list(held)
        self.batches: list[int] = []
        self.damaged: set[int] = set()

    async def ledgers(self, first: int, behind: int) -> list[int]:
        return [each for each in self.held if first <= each < behind]

    async def delete_ledgers(self, ledger_ids: Sequence[int]) -> None:
        self.batches.append(len(ledger_ids))
        if not self.damaged.isdisjoint(ledger_ids):
            raise BookieIOError("what the index has of a ledger is damaged")
        for ledger_id in ledger_ids:
            self.held.remove(ledger_id)


class Range:
    """Ten ids."""

    def __init__(self, store: Store, first: int) -> None:
        self._store = store
        self.first, self.behind = first, first + 10
        self.stamp = store.stamp(first)

    async def ids(self) -> list[int]:
        self._store.asked_for.append(self.first)
        return [each for each in sorted(self._store.living) if self.first <= each < self.behind]


class Store:
    def __init__(self, *living: int, stamps: bool = False) -> None:
        self.living = set(living)
        self.broken_after: int | None = None
        self.error: MagnetarError = MetadataError("out of reach")
        self.asked_for: list[int] = []
        self._stamps = stamps

    def stamp(self, first: int) -> int | None:
        if not self._stamps:
            return None
        return hash(tuple(sorted(self.living & {*range(first, first + 10)})))

    async def list(self) -> AsyncGenerator[Range, None]:
        for count, first in enumerate(range(0, 100, 10)):
            if count == self.broken_after:
                raise self.error
            yield Range(self, first)


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


# -- deciding -------------------------------------------------------------------------------------


def test_one_look_decides_nothing() -> None:
    missing = MissingLedgers(grace_s=0)
    assert missing.look([1, 2, 3], {1, 3}, 0) == []
    assert missing.look([1, 2, 3], {1, 3}, 0) == [2]


def test_a_ledger_is_missing_for_the_time_of_grace() -> None:
    missing = MissingLedgers(grace_s=10)
    assert missing.look([1, 2], {1}, 100) == []
    assert missing.look([1, 2], {1}, 109) == []
    assert missing.look([1, 2, 5], {1}, 110) == [2]
    assert missing.look([1, 5], {1}, 119) == []  # 5 came later
    assert missing.look([1, 5], {1}, 120) == [5]


def test_one_that_comes_back_begins_anew() -> None:
    missing = MissingLedgers(grace_s=10)
    assert missing.look([1], set(), 0) == []
    assert missing.look([1], {1}, 10) == []
    assert missing.look([1], set(), 20) == []
    assert missing.look([1], set(), 30) == [1]


def test_a_deletion_that_is_known_of_does_not_wait_for_the_next_interval(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A look soon, and the one that decides when the time of grace is over."""
    monkeypatch.setattr("magnetar.bookie.space.collector.HURRY_S", 0.01)

    async def scenario() -> None:
        bookie, store = Holder(1, 2), Store(1)
        found = Collector(bookie, store.list, grace_s=0.05)
        task = asyncio.create_task(found.run(interval_s=3600))
        found.hurry()
        async with asyncio.timeout(60):
            while bookie.held != [1]:  # noqa: ASYNC110 - nothing tells
                await asyncio.sleep(0.01)
        task.cancel()

    asyncio.run(scenario())


def test_when_it_looks_again_and_what_waits_for_that_are_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("magnetar.bookie.space.collector.HURRY_S", 0.01)

    async def scenario() -> None:
        bookie, store, clock = Holder(1, 2), Store(1), Clock()
        clock.now_s = 1000.0
        found = Collector(bookie, store.list, grace_s=3600, clock=clock)
        task = asyncio.create_task(found.run(interval_s=7200))
        await asyncio.sleep(0)
        assert (found.next_look_s, found.waiting) == (8200.0, 0)
        found.hurry()
        async with asyncio.timeout(60):
            while not found.waiting:  # noqa: ASYNC110 - nothing tells
                await asyncio.sleep(0.01)
        await asyncio.sleep(0)
        assert (found.next_look_s, found.waiting) == (4600.01, 1), "when the grace is over"
        clock.now_s = 4600.01
        assert await found.sweep() == [2]
        assert found.waiting == 0
        task.cancel()

    asyncio.run(scenario())


# -- doing ----------------------------------------------------------------------------------------


def test_a_ledger_missed_twice_is_forgotten() -> None:
    async def run() -> None:
        holder, store = Holder(1, 2, 3), Store(1, 3)
        collector = Collector(holder, store.list, 0)
        assert await collector.sweep() == []
        assert await collector.sweep() == [2]
        assert holder.held == [1, 3]
        assert await collector.sweep() == []

    asyncio.run(run())


def test_a_new_ledger_is_not_forgotten_before_its_grace_is_over() -> None:
    async def run() -> None:
        holder, store, clock = Holder(1), Store(), Clock()
        collector = Collector(holder, store.list, 60, clock)
        for clock.now_s in (0, 20, 59.9):
            assert await collector.sweep() == []
        clock.now_s = 60
        assert await collector.sweep() == [1]

    asyncio.run(run())


@pytest.mark.parametrize(
    "error", [MetadataError("out of reach"), MetadataFormatError("LAYOUT cannot be read")]
)
@pytest.mark.parametrize("broken_after", [0, 1, 9])
def test_a_store_that_cannot_be_asked_deletes_nothing_and_starts_the_count_again(
    broken_after: int, error: MagnetarError
) -> None:
    """A layout that could not be read ended the bookie, as every other of the cluster."""

    async def run() -> None:
        holder, store = Holder(1, 2, 3), Store(2, 3)
        store.error = error
        collector = Collector(holder, store.list, 0)
        assert await collector.sweep() == []
        store.broken_after = broken_after
        with pytest.raises(type(error)):
            await collector.sweep()
        async with asyncio.TaskGroup() as group:
            task = group.create_task(collector.run(0.001))
            await asyncio.sleep(0.05)
            assert holder.held == [1, 2, 3]
            task.cancel()
        store.broken_after = None
        assert await collector.sweep() == []
        assert await collector.sweep() == [1]

    asyncio.run(run())


def test_only_where_ledgers_are_held_is_the_store_asked_for_lists() -> None:
    async def run() -> None:
        store = Store(*range(100))
        await Collector(Holder(7, 10, 90), store.list, 0).sweep()
        assert store.asked_for == [0, 10, 90]

    asyncio.run(run())


def test_a_sweep_costs_what_has_changed() -> None:
    """And two ranges more, in turn: so what no stamp tells is found all the same."""

    async def run() -> None:
        holder, store = Holder(*range(100)), Store(*range(100), stamps=True)
        collector = Collector(holder, store.list, 0)
        assert await collector.sweep() == []
        assert store.asked_for == list(range(0, 100, 10))
        for turn in ([0, 10], [20, 30], [40, 50]):
            store.asked_for.clear()
            assert await collector.sweep() == []
            assert store.asked_for == turn
        store.living -= {15, 16}
        store.asked_for.clear()
        assert await collector.sweep() == []
        assert store.asked_for == [10, 60, 70]
        store.asked_for.clear()
        assert await collector.sweep() == [15, 16], "what is missed is looked at until it is gone"
        assert store.asked_for == [10, 80, 90]
        for turn in ([0, 10, 20], [30, 40]):
            store.asked_for.clear()
            assert await collector.sweep() == []
            assert store.asked_for == turn

    asyncio.run(run())


def test_a_ledger_that_came_after_its_metadata_was_deleted_goes_too() -> None:
    async def run() -> None:
        holder, store = Holder(*range(100)), Store(*range(100), stamps=True)
        store.living.remove(55)
        holder.held.remove(55)
        collector = Collector(holder, store.list, 0)
        assert await collector.sweep() == []
        holder.held.append(55)
        gone = [await collector.sweep() for _ in range(6)]
        assert [55] in gone

    asyncio.run(run())


def test_a_sweep_that_failed_leaves_everything_to_be_looked_at_as_before() -> None:
    async def run() -> None:
        holder, store = Holder(*range(100)), Store(*range(100), stamps=True)
        collector = Collector(holder, store.list, 0)
        await collector.sweep()
        store.living.remove(3)
        store.broken_after = 9
        with pytest.raises(MetadataError):
            await collector.sweep()
        store.broken_after = None
        assert await collector.sweep() == []
        assert await collector.sweep() == [3]

    asyncio.run(run())


def test_it_goes_on_by_itself() -> None:
    async def run() -> None:
        holder, store = Holder(1, 2), Store(2)
        task = asyncio.create_task(Collector(holder, store.list, 0).run(0.001))
        async with asyncio.timeout(60):
            while holder.held != [2]:  # noqa: ASYNC110 - nothing tells
                await asyncio.sleep(0.001)
        task.cancel()

    asyncio.run(run())


def test_deletions_come_in_batches() -> None:
    """Each is looked up on the loop, and each batch is a commit of the journal."""

    async def scenario() -> None:
        bookie, store = Holder(*range(100)), Store()
        found = Collector(bookie, store.list, grace_s=0)
        assert await found.sweep() == []
        assert found.waiting == 100
        assert await found.sweep() == [*range(100)]
        assert bookie.batches == [DELETE_BATCH, DELETE_BATCH]
        assert found.waiting == 0

    asyncio.run(scenario())


def test_a_ledger_that_cannot_be_deleted_keeps_no_other() -> None:
    """Nothing behind it was deleted any more: the disk filled."""

    async def scenario() -> None:
        bookie, store = Holder(*range(100)), Store()
        bookie.damaged = {0, 1}
        found = Collector(bookie, store.list, grace_s=0)
        assert await found.sweep() == []
        assert await found.sweep() == [*range(2, 100)]
        assert bookie.held == [0, 1]
        assert found.waiting == 2
        with pytest.raises(BookieError):  # told, at each look
            await found.sweep()
        bookie.damaged.clear()
        assert await found.sweep() == [0, 1]

    asyncio.run(scenario())
