"""Who follows a log is told how far it may be read: once per burst, and nothing is queued."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

from magnetar.env.tasks import TaskScope, fails
from magnetar.log.seam import ReadableLog
from magnetar.log.watching import ReadableWatch
from magnetar.model.ids import Position
from magnetar.topics.followers import TELL_S, Followers
from magnetar_sim.world.virtual_time import run_virtual


class Log:
    """Its positions are its own."""

    def __init__(self) -> None:
        self.readable = Position(1, -1)
        self.watch = ReadableWatch()
        self.watchers = 0

    @property
    def positions(self) -> Log:
        return self

    def watch_readable(self, grown: Callable[[], None]) -> Callable[[], None]:
        end = self.watch.watch(grown)
        self.watchers += 1

        def ended() -> None:
            self.watchers -= 1
            end()

        return ended

    def grow(self) -> Position:
        self.readable = self.readable._replace(entry_id=self.readable.entry_id + 1)
        self.watch.grew()
        return self.readable


class Told:
    """A follower."""

    def __init__(self) -> None:
        self.connected = self.writable = True
        self.grew: list[Position] = []
        self.closed = 0

    def tell_grew(self, last: Position) -> None:
        self.grew.append(last)

    def tell_closed(self, service_url: str = "") -> None:
        self.closed += 1


def failed(task: str, error: BaseException) -> None:
    raise AssertionError(task) from error


def test_each_is_told_of_a_burst_once() -> None:
    async def scenario() -> None:
        log, scope = Log(), TaskScope("followers", fails(failed))
        followers = Followers(cast(ReadableLog, log), scope)
        await asyncio.sleep(1)
        assert not followers
        assert log.watchers == 0, "nobody follows"
        one, other = Told(), Told()
        assert followers.add("one", one) == Position(1, -1)
        followers.add("other", other)
        assert followers
        assert log.watchers == 1
        first = log.grow()
        await asyncio.sleep(0)
        assert one.grew == other.grew == [first], "the first of a burst at once"
        for _ in range(10):
            last = log.grow()
            await asyncio.sleep(TELL_S / 20)
        assert one.grew == [first]
        await asyncio.sleep(TELL_S)
        assert one.grew == other.grew == [first, last]
        followers.remove("one")
        later = log.grow()
        await asyncio.sleep(1)
        assert one.grew == [first, last]
        assert other.grew[-1] == later
        followers.remove("other")
        followers.remove("other")
        assert not followers
        assert log.watchers == 0
        await scope.close()

    run_virtual(scenario())


def test_one_that_takes_nothing_is_told_nothing() -> None:
    async def scenario() -> None:
        log, scope = Log(), TaskScope("followers", fails(failed))
        followers = Followers(cast(ReadableLog, log), scope)
        full, gone = Told(), Told()
        followers.add("full", full)
        followers.add("gone", gone)
        full.writable, gone.connected = False, False
        for _ in range(3):
            log.grow()
            await asyncio.sleep(1)
        assert (full.grew, gone.grew) == ([], [])
        full.writable = True
        last = log.grow()
        await asyncio.sleep(1)
        assert full.grew == [last]
        gone.connected = True
        for tell in followers.detach():
            tell("")
        assert (full.closed, gone.closed) == (1, 1)
        assert log.watchers == 0
        log.grow()
        await asyncio.sleep(1)
        assert full.grew == [last]
        await scope.close()

    run_virtual(scenario())


def test_of_one_key_the_later_one_counts() -> None:
    async def scenario() -> None:
        log, scope = Log(), TaskScope("followers", fails(failed))
        followers = Followers(cast(ReadableLog, log), scope)
        former, later = Told(), Told()
        followers.add("one", former)
        followers.add("one", later)
        assert log.watchers == 1
        last = log.grow()
        await asyncio.sleep(1)
        assert (former.grew, later.grew) == ([], [last])
        await scope.close()

    run_virtual(scenario())
