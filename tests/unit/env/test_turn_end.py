from __future__ import annotations

import asyncio
from collections.abc import Callable

from magnetar.env.network.turn_end import TurnEnd


def test_functions_are_called_in_order_after_the_turn() -> None:
    async def run() -> None:
        turn, told = TurnEnd(), list[str]()
        turn.call(lambda: told.append("one"))
        turn.call(lambda: told.append("two"))
        assert told == []
        await asyncio.sleep(0)
        assert told == ["one", "two"]
        await asyncio.sleep(0)
        assert told == ["one", "two"]

    asyncio.run(run())


def test_a_function_may_ask_for_the_next_turn() -> None:
    async def run() -> None:
        turn, told = TurnEnd(), list[str]()

        def first() -> None:
            told.append("first")
            turn.call(lambda: told.append("next"))

        turn.call(first)
        await asyncio.sleep(0)
        assert told == ["first"]
        await asyncio.sleep(0)
        assert told == ["first", "next"]

    asyncio.run(run())


def test_a_failing_function_takes_no_other_with_it() -> None:
    async def run() -> None:
        turn, told, failures = TurnEnd(), list[str](), list[object]()
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: failures.append(context["exception"]))

        def named(name: str) -> Callable[[], None]:
            return lambda: told.append(name)

        def fails() -> None:
            raise ValueError("broken")

        for function in (named("one"), fails, named("two"), fails, named("three")):
            turn.call(function)
        for _ in range(4):
            await asyncio.sleep(0)
        assert told == ["one", "two", "three"]
        assert [type(failure) for failure in failures] == [ValueError, ValueError]

    asyncio.run(run())
