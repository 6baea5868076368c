"""``log.seam.WritableLog``."""

from __future__ import annotations

import asyncio

import pytest

from magnetar.log.seam import Content, WritableLog
from magnetar.model.errors import LogClosedError
from tests.unit.log.contract.engines import (
    Engine,
    append,
    each_engine,
    fill,
    read_all,
    with_log,
)
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


@each_engine
@pytest.mark.parametrize("time_ms", [2**63 - 1, 2**63, 2**64 - 1])
def test_a_time_that_no_clock_has_is_stored_with_what_follows(engine: Engine, time_ms: int) -> None:
    """A producer of Pulsar's may say any number of 64 bits."""

    async def scenario(source: WritableLog) -> None:
        await append(source, [b"0", b"1"], Content([1, 1], [time_ms, 5]))
        await append(source, [b"2"], Content([1], [6]))
        assert await read_all(source) == [b"0", b"1", b"2"]

    with_log(engine, scenario)
