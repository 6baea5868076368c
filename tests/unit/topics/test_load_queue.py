"""Loads in turn, by group."""

from __future__ import annotations

import asyncio

from magnetar.topics.load_queue import LoadQueue


class Loads:
    """Loads that end when they are told to; those of one client begin with its name."""

    def __init__(self, at_once: int) -> None:
        self._queue = LoadQueue(at_once)
        self.begun: list[str] = []
        self._ends: dict[str, asyncio.Event] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}

    async def ask(self, *names: str) -> None:
        for name in names:
            self._ends[name] = asyncio.Event()
            self._tasks[name] = asyncio.ensure_future(self._load(name))
        await settled()

    async def _load(self, name: str) -> None:
        async with self._queue.turn(name.split("/")[0]):
            self.begun.append(name)
            await self._ends[name].wait()

    async def end(self, *names: str) -> None:
        for name in names:
            self._ends[name].set()
        await settled()

    async def cancel(self, name: str) -> None:
        self._tasks[name].cancel()
        await settled()


async def settled() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


def test_so_many_at_a_time_and_all_in_the_end() -> None:
    async def scenario() -> None:
        loads = Loads(2)
        await loads.ask("a", "b", "c", "d")
        assert loads.begun == ["a", "b"]
        await loads.end("b")
        assert loads.begun == ["a", "b", "c"]
        await loads.end("a", "c")
        assert loads.begun == ["a", "b", "c", "d"]
        await loads.end("d")
        await loads.ask("e", "f")
        assert loads.begun[-2:] == ["e", "f"]

    asyncio.run(scenario())


def test_who_asks_for_many_does_not_hold_up_others() -> None:
    async def scenario() -> None:
        loads = Loads(1)
        await loads.ask(*(f"many/{n}" for n in range(100)))
        await loads.ask("one", "two")
        await loads.end("many/0", "many/1")
        assert loads.begun == ["many/0", "many/1", "one"]
        await loads.end("one", "two")
        assert loads.begun[-2:] == ["two", "many/2"]

    asyncio.run(scenario())


def test_who_is_cancelled_takes_no_turn() -> None:
    async def scenario() -> None:
        loads = Loads(1)
        await loads.ask("a", "b", "c", "d")
        await loads.cancel("b")
        await loads.end("a")
        assert loads.begun == ["a", "c"]
        loads._ends["c"].set()
        for _ in range(3):  # until c has left and d has its turn, but has not run yet
            await asyncio.sleep(0)
        await loads.cancel("d")
        await loads.ask("e")
        assert loads.begun[-1] == "e", "a turn that was given is not lost"

    asyncio.run(scenario())
