"""Locks by key."""

from __future__ import annotations

import asyncio

from magnetar.env.keyed_locks import KeyedLocks


def test_keys_are_independent_and_each_is_in_order() -> None:
    async def scenario() -> None:
        locks: KeyedLocks[str] = KeyedLocks()
        order: list[str] = []
        gate = asyncio.Event()

        async def hold(key: str, who: str, waits: bool = False) -> None:
            async with locks.held(key):
                order.append(who)
                if waits:
                    await gate.wait()
                order.append(f"{who} leaves")

        tasks = [asyncio.ensure_future(hold("a", "one", waits=True))]
        tasks += [asyncio.ensure_future(hold("a", who)) for who in ("two", "three")]
        tasks.append(asyncio.ensure_future(hold("b", "other")))
        await asyncio.sleep(0.01)
        assert order == ["one", "other", "other leaves"]
        assert len(locks) == 1
        tasks[1].cancel()
        gate.set()
        await asyncio.wait(tasks)
        assert order[3:] == ["one leaves", "three", "three leaves"], "the second gave up"
        assert len(locks) == 0, "nothing is left of them"

    asyncio.run(scenario())
