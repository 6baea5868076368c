"""Who is asked first, and how long before another is asked."""

from __future__ import annotations

from magnetar.ledger.reading.hedging import HedgeBound
from magnetar.ledger.reading.read_order import DEMOTED_S, DEMOTED_S_MAX, ReadOrder
from magnetar.model.ids import BookieId

A, B, C = (BookieId(name) for name in "abc")


def test_a_failed_bookie_goes_last_and_comes_back() -> None:
    order = ReadOrder()
    assert order.order([A, B, C], 0.0) == [A, B, C]
    order.failed(A, 0.0)
    assert order.order([A, B, C], 0.5 * DEMOTED_S) == [B, C, A]
    assert order.order([A, B, C], DEMOTED_S) == [A, B, C]
    order.failed(A, DEMOTED_S)  # again: twice as long
    assert order.order([A, B, C], 2.9 * DEMOTED_S) == [B, C, A]
    assert order.order([A, B, C], 3 * DEMOTED_S) == [A, B, C]


def test_those_of_the_own_zone_come_first() -> None:
    order = ReadOrder(is_near=lambda bookie_id: bookie_id in (B, C))
    assert order.order([A, B, C], 0.0) == [B, C, A]
    assert order.order([C, A, B], 0.0) == [C, B, A], "among equals as it was"
    order.failed(B, 0.0)
    assert order.order([A, B, C], 0.5 * DEMOTED_S) == [C, A, B]
    order.failed(C, 0.0)
    assert order.order([A, B, C], 0.5 * DEMOTED_S) == [A, B, C], "one that answers is better"


def test_several_failures_at_once_count_once_and_an_answer_clears_them() -> None:
    order = ReadOrder()
    for _ in range(10):
        order.failed(B, 0.0)
    assert order.demoted(B, 0.99 * DEMOTED_S)
    assert not order.demoted(B, DEMOTED_S)
    order.failed(B, 10.0)
    order.answered(B)
    assert not order.demoted(B, 10.0)


def test_demotion_is_bounded() -> None:
    order, now_s = ReadOrder(), 0.0
    for _ in range(20):
        order.failed(C, now_s)
        assert not order.demoted(C, now_s + DEMOTED_S_MAX)
        now_s += DEMOTED_S_MAX


def test_of_the_demoted_the_one_that_returns_first_is_asked_first() -> None:
    order = ReadOrder()
    order.failed(A, 0.5)
    order.failed(B, 0.0)
    assert order.order([A, B, C], 0.9) == [C, B, A]


def test_the_bound_follows_what_was_seen() -> None:
    bound = HedgeBound(0.005, 0.5)
    assert bound.bound_s == 0.5
    for _ in range(64):
        bound.answered(0.010)
    assert bound.bound_s == 0.020
    for _ in range(64):
        bound.answered(0.0001)
    assert bound.bound_s == 0.005
    for _ in range(64):
        bound.answered(3.0)
    assert bound.bound_s == 0.5


def test_one_slow_answer_in_many_does_not_move_the_bound() -> None:
    bound = HedgeBound(0.001, 1.0)
    for i in range(64):
        bound.answered(0.9 if i == 30 else 0.01)
    assert bound.bound_s == 0.02
