"""``log.seam.ReadableLog``."""

from __future__ import annotations

import asyncio

import pytest

from magnetar.log.seam import Content, ReadableLog, WritableLog
from magnetar.model.errors import LogClosedError
from magnetar.model.ids import EARLIEST, Position
from tests.unit.log.contract.engines import (
    MANY,
    Engine,
    Reading,
    append,
    each_engine,
    each_reading,
    fill,
    read_all,
    seen,
    with_log,
    with_pair,
)


@each_reading
def test_what_was_appended_is_read_in_order_from_anywhere(reading: Reading) -> None:
    async def scenario(writer: WritableLog, log: ReadableLog) -> None:
        held = await fill(writer, 17)
        await seen(log, held[-1])
        values = [b"%d" % i for i in range(17)]
        assert await read_all(log) == values
        for index in (1, 4, 5, 9, 16):
            assert await read_all(log, held[index]) == values[index:]
        beyond = log.positions.next_position(log.positions.readable)
        assert await log.read(beyond, 10, MANY) == []
        assert log.read_cached(beyond, 10, MANY) == []

    with_pair(reading, scenario)


@each_engine
def test_a_closed_log_is_none_that_ends(engine: Engine) -> None:
    """Nothing at all was read of one: whoever looked for what is there took it for the end."""

    async def scenario(log: WritableLog) -> None:
        held = await fill(log, 3)
        await log.close()
        assert log.read_cached(held[0], 10, MANY) is None
        with pytest.raises(LogClosedError):
            await log.read(held[0], 10, MANY)

    with_log(engine, scenario)


@each_reading
def test_a_read_is_bounded_and_gives_at_least_one(reading: Reading) -> None:
    async def scenario(writer: WritableLog, log: ReadableLog) -> None:
        await seen(log, (await append(writer, [bytes(100)] * 8))[-1])
        start = log.positions.first
        cached = log.read_cached(start, 2, MANY)
        if log is writer:
            assert cached is not None, "the newest entries of one's own are in memory"
        assert cached is None or 1 <= len(cached) <= 2
        assert 1 <= len(await log.read(start, 2, MANY)) <= 2
        assert len(await log.read(start, 5, 1)) == 1
        assert len(await log.read(start, 5, 250)) == 1
        assert log.read_cached(start, 0, MANY) == []
        (entry,) = await log.read(start, 1, MANY)
        assert Position(entry.ledger_id, entry.entry_id) == start

    with_pair(reading, scenario)


@each_reading
def test_watchers_are_told_once_per_turn_that_the_log_grew(reading: Reading) -> None:
    async def scenario(writer: WritableLog, log: ReadableLog) -> None:
        await seen(log, (await fill(writer, 1))[-1])
        told: list[Position] = []
        end = log.watch_readable(lambda: told.append(log.positions.readable))
        held = await fill(writer, 3)
        await seen(log, held[-1])
        await asyncio.sleep(0.01)
        assert told, "it grew"
        assert told == sorted(set(told)), "a call for each move, and no call without one"
        assert told[-1] == held[-1]
        end()
        await seen(log, (await fill(writer, 1))[-1])
        await asyncio.sleep(0.01)
        assert told[-1] == held[-1]

    with_pair(reading, scenario)


@each_reading
def test_stats_say_what_the_log_holds(reading: Reading) -> None:
    async def scenario(writer: WritableLog, log: ReadableLog) -> None:
        held = await fill(writer, 7)
        await seen(log, held[-1])
        await writer.cursors.open("c", EARLIEST)
        stats = log.stats()
        assert (stats.name, stats.entries, stats.readable) == (log.name, 7, held[-1])
        assert stats.stored_bytes > 0
        assert list(stats.cursors) == (["c"] if log is writer else []), "they are the owner's"

    with_pair(reading, scenario)


@each_reading
def test_the_first_from_a_time_on_whatever_the_clocks_of_producers(reading: Reading) -> None:
    """Two producers in turn, the clock of one is 500 ms behind; a third is far ahead once."""

    async def scenario(writer: WritableLog, log: ReadableLog) -> None:
        times = [1000 + 10 * i - 500 * (i % 2) for i in range(24)]
        times[7] = 1150
        held = await append(writer, [b"x"] * 24, Content([2] * 24, times))
        await seen(log, held[-1])
        beyond = log.positions.next_position(held[-1])
        for wanted in range(400, 1400, 7):
            right = next((p for p, at in zip(held, times, strict=True) if at >= wanted), beyond)
            assert await log.first_at(wanted) == right
        assert await log.first_at(0) == held[0]
        assert await log.first_at(1 << 62) == beyond

    with_pair(reading, scenario)


@each_reading
def test_an_empty_log_has_nothing_from_any_time_on(reading: Reading) -> None:
    async def scenario(writer: WritableLog, log: ReadableLog) -> None:
        order = log.positions
        assert await log.first_at(0) == order.next_position(order.readable)

    with_pair(reading, scenario)
