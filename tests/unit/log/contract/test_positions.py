"""``log.seam.Positions``."""

from __future__ import annotations

from itertools import accumulate

from magnetar.log.seam import Content, ReadableLog, WritableLog
from magnetar.model.ids import EARLIEST, LATEST, Position
from tests.unit.log.contract.engines import Reading, append, each_reading, fill, seen, with_pair


@each_reading
def test_positions_follow_one_another_over_ledgers(reading: Reading) -> None:
    async def scenario(writer: WritableLog, log: ReadableLog) -> None:
        held = await fill(writer, 12)
        await seen(log, held[-1])
        order = log.positions
        assert (order.first, order.readable) == (held[0], held[-1])
        assert len({position.ledger_id for position in held}) > 1
        assert [order.next_position(position) for position in held[:-1]] == held[1:]
        assert [order.previous_position(position) for position in held[1:]] == held[:-1]
        beyond = order.next_position(order.readable)
        assert beyond > order.readable
        assert order.previous_position(beyond) == order.readable

    with_pair(reading, scenario)


@each_reading
def test_positions_that_the_log_does_not_hold_are_stepped_from(reading: Reading) -> None:
    async def scenario(writer: WritableLog, log: ReadableLog) -> None:
        held = await fill(writer, 7)
        await seen(log, held[-1])
        order = log.positions
        assert order.next_position(EARLIEST) == held[0]
        before = order.previous_position(held[0])
        assert before < held[0]
        assert order.next_position(before) == held[0]
        assert order.previous_position(EARLIEST) <= before
        past_the_ledger = Position(held[0].ledger_id, 1000)
        assert order.next_position(past_the_ledger) == held[5]
        assert order.next_position(LATEST) == order.next_position(order.readable)

    with_pair(reading, scenario)


@each_reading
def test_entries_between_counts_what_lies_after_one_up_to_another(reading: Reading) -> None:
    async def scenario(writer: WritableLog, log: ReadableLog) -> None:
        held = await fill(writer, 12)
        await seen(log, held[-1])
        order = log.positions
        for low in range(12):
            for high in range(12):
                assert order.entries_between(held[low], held[high]) == max(0, high - low)
            assert order.entries_between(EARLIEST, held[low]) == low + 1
            assert order.entries_between(held[low], LATEST) == 11 - low
        assert order.entries_between(order.previous_position(held[0]), held[3]) == 4

    with_pair(reading, scenario)


@each_reading
def test_an_empty_log_has_a_first_position_and_nothing_readable(reading: Reading) -> None:
    async def scenario(writer: WritableLog, log: ReadableLog) -> None:
        order = log.positions
        assert order.readable < order.next_position(order.readable)
        assert order.entries_between(EARLIEST, LATEST) == 0
        assert log.read_cached(order.first, 10, 1000) == []
        readable = order.readable
        await seen(log, (await fill(writer, 1))[-1])
        assert order.readable > readable

    with_pair(reading, scenario)


MESSAGES = [1, 5, 1, 1, 30, 2, 2, 2, 2, 2, 1, 1, 9]  # two ledgers and a half
OFFSETS = [0, *accumulate(MESSAGES)]


@each_reading
def test_messages_are_numbered_from_0_without_a_gap(reading: Reading) -> None:
    async def scenario(writer: WritableLog, log: ReadableLog) -> None:
        order = log.positions
        assert order.end_offset == 0
        assert await order.offset_of(EARLIEST) == 0
        held = await append(writer, [b"x"] * 13, Content(MESSAGES, [1] * 13))
        await seen(log, held[-1])
        assert order.end_offset == OFFSETS[-1]
        for position, offset, following in zip(held, OFFSETS, OFFSETS[1:], strict=False):
            assert await order.offset_of(position) == offset
            assert await order.position_of(offset) == position
            assert await order.position_of(following - 1) == position
        assert await order.offset_of(EARLIEST) == 0
        assert await order.offset_of(LATEST) == OFFSETS[-1]
        assert await order.position_of(OFFSETS[-1]) == order.next_position(order.readable)
        assert await order.position_of(OFFSETS[-1] + 9) == order.next_position(order.readable)

    with_pair(reading, scenario)


@each_reading
def test_messages_between_are_exact_between_the_ends_of_ledgers(reading: Reading) -> None:
    async def scenario(writer: WritableLog, log: ReadableLog) -> None:
        held = await append(writer, [b"x"] * 13, Content(MESSAGES, [1] * 13))
        await seen(log, held[-1])
        order = log.positions
        ends = [-1, 4, 9, 12]
        for low in ends:
            for high in ends:
                after = held[low] if low >= 0 else EARLIEST
                last = held[high] if high >= 0 else EARLIEST
                expected = max(0, OFFSETS[high + 1] - OFFSETS[low + 1])
                assert order.messages_between(after, last) == expected
        assert order.messages_between(EARLIEST, LATEST) == OFFSETS[-1]
        assert order.messages_between(held[5], held[8]) == 6, "alike in all entries of a ledger"
        assert order.messages_between(held[12], held[0]) == 0

    with_pair(reading, scenario)
