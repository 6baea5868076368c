"""``log.seam.WritableLog``."""

from __future__ import annotations

import asyncio

from magnetar.log.seam import WritableLog
from magnetar.model.errors import LogClosedError
from tests.unit.log.contract.engines import Engine, each_engine, fill, read_all, with_log
from tests.unit.log.doubles import Outcomes


@each_engine
def test_outcomes_come_in_order_and_never_from_inside(engine: Engine) -> None:
    async def scenario(log: WritableLog) -> None:
        outcomes = Outcomes()
        for label, count in (("a", 1), ("b", 3), ("c", 8), ("d", 1)):
            log.append([b"x"] * count, outcomes.for_append(label))
        assert outcomes.count == 0
        assert log.pending_bytes > 0
        await outcomes.wait(4)
        assert outcomes.order == [("a", 1), ("b", 3), ("c", 8), ("d", 1)], "each once, whole"
        assert outcomes.positions == sorted(set(outcomes.positions))
        assert log.pending_bytes == 0
        assert log.positions.readable == outcomes.positions[-1]

    with_log(engine, scenario)


@each_engine
def test_payloads_are_copied_before_append_returns(engine: Engine) -> None:
    async def scenario(log: WritableLog) -> None:
        outcomes = Outcomes()
        for i in range(7):
            buffer = bytearray(b"%d" % i)
            log.append([memoryview(buffer)], outcomes)
            buffer[:] = b"?"
        await outcomes.wait(7)
        assert await read_all(log) == [b"%d" % i for i in range(7)]

    with_log(engine, scenario)


@each_engine
def test_closing_finishes_what_is_pending_and_refuses_the_rest(engine: Engine) -> None:
    async def scenario(log: WritableLog) -> None:
        await fill(log, 1)
        early, late = Outcomes(), Outcomes()
        log.append([b"early"], early)
        await log.close()
        assert (early.count, early.errors) in ((1, []), (1, early.errors))
        log.append([b"late"], late)
        await late.wait(1)
        assert isinstance(late.errors[0], LogClosedError)
        await asyncio.sleep(0)

    with_log(engine, scenario)
