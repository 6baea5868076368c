from __future__ import annotations

import asyncio
from collections import Counter

from magnetar.env.timer_wheel import CALLS_PER_TURN, TimerWheel
from magnetar_sim.world.virtual_time import run_virtual


def test_what_waits_is_called_at_most_a_step_early() -> None:
    async def run() -> None:
        loop, wheel, called = asyncio.get_running_loop(), TimerWheel(0.1), dict[float, float]()
        for delay_s in (0.0, 0.05, 0.95, 1.0, 1.02, 7.5):
            wheel.call_later(delay_s, lambda d=delay_s: called.update({d: loop.time() - began_s}))
        began_s = loop.time()
        assert called == {}, "not in this turn"
        await asyncio.sleep(20)
        assert list(called) == [0.0, 0.05, 0.95, 1.0, 1.02, 7.5]
        assert all(delay_s - 0.1 <= at_s <= delay_s + 1e-6 for delay_s, at_s in called.items())

    run_virtual(run())


def test_a_turn_calls_a_bounded_number_in_order() -> None:
    async def run() -> None:
        loop, wheel = asyncio.get_running_loop(), TimerWheel(1.0)
        count, called, turns = 2 * CALLS_PER_TURN + 1, list[int](), Counter[int]()

        def turn(number: int) -> None:
            turns[number] = len(called)
            if len(called) < count:
                loop.call_soon(turn, number + 1)

        wheel.call_later(5, lambda: turn(0))
        for number in range(count):
            wheel.call_later(5, lambda n=number: called.append(n))
        await asyncio.sleep(10)
        assert called == list(range(count))
        # The next batch waits for its turn before this witness does.
        assert list(turns.values()) == [0, 2 * CALLS_PER_TURN - 1, count]

    run_virtual(run())


def test_one_that_fails_takes_no_other_with_it_and_none_is_called_after_the_end() -> None:
    async def run() -> None:
        loop, wheel, told, failures = (
            asyncio.get_running_loop(), TimerWheel(0.1), list[str](), list[object]()
        )  # fmt: skip
        loop.set_exception_handler(lambda _, context: failures.append(context["exception"]))

        def fails() -> None:
            raise ValueError("broken")

        wheel.call_later(1, fails)
        wheel.call_later(1, lambda: told.append("one"))
        wheel.call_later(2, lambda: told.append("two"))
        await asyncio.sleep(1.5)
        wheel.close()
        await asyncio.sleep(5)
        assert told == ["one"]
        assert [type(failure) for failure in failures] == [ValueError]

    run_virtual(run())
