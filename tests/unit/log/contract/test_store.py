"""``log.seam.LogStore``."""

from __future__ import annotations

import asyncio

import pytest

from magnetar.env.tasks import TaskScope
from magnetar.log.seam import WatchedNames
from magnetar.model.errors import LogClosedError, LogError, NoSuchLogError
from magnetar.model.ids import EARLIEST
from tests.doubles.memory_log import MemoryLog
from tests.unit.log.contract.engines import (
    MANY,
    Engine,
    each_engine,
    each_followed_engine,
    fill,
    read_all,
    run_with,
    seen,
)
from tests.unit.log.doubles import NAME


@each_engine
def test_a_log_opened_again_holds_what_was_confirmed_and_stored(engine: Engine) -> None:
    async def scenario() -> None:
        log = await engine.stores().open(NAME)
        held = await fill(log, 8)
        cursor = await log.cursors.open("c", EARLIEST)
        cursor.acknowledge_cumulative(held[5])
        await cursor.wait_stored()
        await log.close()

        store = engine.stores()
        assert await store.exists(NAME)
        log = await store.open(NAME)
        assert await read_all(log) == [b"%d" % i for i in range(8)]
        assert log.cursors.durable()["c"].mark_delete == held[5]
        (further,) = await fill(log, 1)
        assert further > held[-1]
        await log.close()
        await store.delete(NAME)

    run_with(engine, scenario)


@each_engine
def test_the_epoch_of_the_last_opening_is_known_while_nobody_has_the_log(engine: Engine) -> None:
    async def scenario() -> None:
        with pytest.raises(NoSuchLogError):
            await engine.stores().stored(NAME)
        for _ in range(2):
            store = engine.stores()
            log = await store.open(NAME)
            told = log.epoch if engine.followed else -1  # replicas know that of partitions
            assert (await store.stored(NAME)).last_epoch == told
            await log.close()
            assert (await engine.stores().stored(NAME)).last_epoch == told
        await store.delete(NAME)
        with pytest.raises(NoSuchLogError):
            await store.stored(NAME)

    run_with(engine, scenario)


@each_engine
def test_logs_are_listed_by_prefix_and_gone_once_deleted(engine: Engine) -> None:
    async def scenario() -> None:
        store = engine.stores()
        names = ["a/b/persistent/one", "a/b/persistent/two", "a/c/persistent/one"]
        for name in names:
            log = await store.open(name)
            await fill(log, 1)
            await log.close()
        assert await store.names("a/b/persistent/") == names[:2]
        assert await store.names("a") == names
        await store.delete(names[0])
        assert not await store.exists(names[0])
        assert await store.names("a") == names[1:]
        await store.delete(names[0])  # it is gone, and that is what was wanted
        log = await store.open(names[0])
        assert await read_all(log) == []
        await store.close()

    run_with(engine, scenario)


@each_engine
def test_a_log_whose_close_is_given_up_leaves_no_task(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They would run on over bookies and disks that are closed next."""

    async def scenario() -> None:
        log = await engine.stores().open(NAME)
        scope = getattr(log, "_scope", None) or getattr(log, "scope", None)
        if not isinstance(scope, TaskScope):
            assert isinstance(log, MemoryLog)  # which has no tasks
            return
        task = scope.spawn(asyncio.sleep(1e6), "read-ahead")
        closing = asyncio.Event()

        async def never() -> None:
            closing.set()
            await asyncio.sleep(1e6)

        with monkeypatch.context() as patched:
            patched.setattr(log, "_finish", never)
            given_up = asyncio.create_task(log.close())
            await closing.wait()
            given_up.cancel()
            await asyncio.wait([given_up, task])
        assert given_up.cancelled()
        assert task.cancelled()
        assert scope.closed
        assert log.lost is not None, "an append that comes back begins nothing"

    run_with(engine, scenario)


@each_engine
def test_whoever_watches_names_hears_of_logs_that_others_make_and_delete(engine: Engine) -> None:
    async def scenario() -> None:
        store, other = engine.stores(), engine.stores()
        assert isinstance(store, WatchedNames)
        changed = asyncio.Event()
        end = store.watch_names("a/watched/persistent", changed.set)
        for name in ("a/watched/persistent/one", "a/watched/persistent/two"):
            log = await other.open(name)
            await asyncio.wait_for(changed.wait(), 10)
            await log.close()
            assert name in await store.names("a/watched/persistent")
            changed.clear()
        await other.delete("a/watched/persistent/one")
        await asyncio.wait_for(changed.wait(), 10)
        assert await store.names("a/watched/persistent") == ["a/watched/persistent/two"]
        end()
        await asyncio.sleep(0.01)
        changed.clear()
        await other.delete("a/watched/persistent/two")
        await asyncio.sleep(0.01)
        assert not changed.is_set()

    run_with(engine, scenario)


@each_followed_engine
def test_a_follower_goes_on_through_owners_until_the_log_is_deleted(engine: Engine) -> None:
    async def scenario() -> None:
        following, owner = engine.stores(), engine.stores()
        with pytest.raises(NoSuchLogError):
            await following.follow(NAME)
        assert not await following.exists(NAME), "following makes nothing"
        log = await owner.open(NAME)
        await fill(log, 3)
        source = await following.follow(NAME)
        with pytest.raises(LogError):
            await following.follow(NAME)
        await log.close()
        owner = engine.stores()
        log = await owner.open(NAME)
        await seen(source, (await fill(log, 4))[-1])
        assert len(await read_all(source)) == 7
        assert source.positions.entries_between(EARLIEST, source.positions.readable) == 7
        await log.close()

        told = asyncio.Event()
        source.watch_readable(told.set)
        await owner.delete(NAME)
        async with asyncio.timeout(20):
            await told.wait()
        assert source.read_cached(EARLIEST, 1, MANY) is None
        with pytest.raises(NoSuchLogError):
            await source.read(EARLIEST, 1, MANY)
        await source.close()
        await source.close()

    run_with(engine, scenario)


@each_followed_engine
def test_a_follower_that_was_closed_reads_no_more_and_can_be_had_again(engine: Engine) -> None:
    async def scenario() -> None:
        following, owner = engine.stores(), engine.stores()
        log = await owner.open(NAME)
        held = await fill(log, 3)
        source = await following.follow(NAME)
        await source.close()
        with pytest.raises(LogClosedError):
            await source.read(EARLIEST, 1, MANY)
        again = await following.follow(NAME)
        await source.close()
        with pytest.raises(LogError):
            await following.follow(NAME)
        await seen(again, held[-1])
        await fill(log, 1)  # the owner noticed nothing
        await again.close()
        await log.close()
        await owner.delete(NAME)

    run_with(engine, scenario)
