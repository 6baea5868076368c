"""``log.seam.Positions``."""

from __future__ import annotations

from magnetar.log.seam import WritableLog
from magnetar.model.ids import EARLIEST, LATEST, Position
from tests.unit.log.contract.engines import Engine, each_engine, fill, with_log


@each_engine
def test_positions_follow_one_another_over_ledgers(engine: Engine) -> None:
    async def scenario(log: WritableLog) -> None:
        held, order = await fill(log, 12), log.positions
        assert (order.first, order.readable) == (held[0], held[-1])
        assert len({position.ledger_id for position in held}) > 1
        assert [order.next_position(position) for position in held[:-1]] == held[1:]
        assert [order.previous_position(position) for position in held[1:]] == held[:-1]
        beyond = order.next_position(order.readable)
        assert beyond > order.readable
        assert order.previous_position(beyond) == order.readable

    with_log(engine, scenario)


@each_engine
def test_positions_that_the_log_does_not_hold_are_stepped_from(engine: Engine) -> None:
    async def scenario(log: WritableLog) -> None:
        held, order = await fill(log, 7), log.positions
        assert order.next_position(EARLIEST) == held[0]
        before = order.previous_position(held[0])
        assert before < held[0]
        assert order.next_position(before) == held[0]
        assert order.previous_position(EARLIEST) <= before
        past_the_ledger = Position(held[0].ledger_id, 1000)
        assert order.next_position(past_the_ledger) == held[5]
        assert order.next_position(LATEST) == order.next_position(order.readable)

    with_log(engine, scenario)


@each_engine
def test_entries_between_counts_what_lies_after_one_up_to_another(engine: Engine) -> None:
    async def scenario(log: WritableLog) -> None:
        held, order = await fill(log, 12), log.positions
        for low in range(12):
            for high in range(12):
                assert order.entries_between(held[low], held[high]) == max(0, high - low)
            assert order.entries_between(EARLIEST, held[low]) == low + 1
            assert order.entries_between(held[low], LATEST) == 11 - low
        assert order.entries_between(order.previous_position(held[0]), held[3]) == 4

    with_log(engine, scenario)


@each_engine
def test_an_empty_log_has_a_first_position_and_nothing_readable(engine: Engine) -> None:
    async def scenario(log: WritableLog) -> None:
        order = log.positions
        assert order.readable < order.next_position(order.readable)
        assert order.entries_between(EARLIEST, LATEST) == 0
        assert log.read_cached(order.first, 10, 1000) == []
        readable = order.readable
        await fill(log, 1)
        assert order.readable > readable

    with_log(engine, scenario)
