"""What is kept for peers that do not read, over all connections."""

from __future__ import annotations

from magnetar.env.network.send_budget import (
    HIGH_BYTES_MAX,
    HIGH_BYTES_MIN,
    TURN_BYTES_MAX,
    TURN_SHARE,
    SendBudget,
)

MIB = 1 << 20


def test_one_slow_reader_costs_the_others_nothing() -> None:
    budget: SendBudget[str] = SendBudget(256 * MIB)
    budget.fell_behind("a", 5 * MIB)
    assert (budget.turn_bytes, budget.high_bytes) == (TURN_BYTES_MAX, HIGH_BYTES_MAX)
    budget.fell_behind("a", 6 * MIB)
    assert (budget.held_bytes, budget.slow) == (6 * MIB, 1)
    budget.caught_up("a")
    budget.caught_up("a")
    assert (budget.held_bytes, budget.slow) == (0, 0)


def test_each_slow_reader_may_have_less_than_the_one_before() -> None:
    """However many there are: what each takes is a part of what is left."""
    budget: SendBudget[int] = SendBudget(64 * MIB)
    taken = []
    for number in range(1000):
        taken.append(min(budget.turn_bytes, 5 * MIB))
        budget.fell_behind(number, taken[-1])
    assert taken == sorted(taken, reverse=True)
    assert taken[0] == 64 * MIB // TURN_SHARE
    assert budget.held_bytes <= budget.bytes_max
    assert budget.high_bytes == HIGH_BYTES_MIN
    for number in range(1000):
        budget.caught_up(number)
    assert budget.held_bytes == 0
    assert budget.high_bytes == HIGH_BYTES_MAX


def test_no_more_is_left_than_nothing() -> None:
    budget: SendBudget[str] = SendBudget(MIB)
    budget.fell_behind("a", 3 * MIB)
    assert (budget.left_bytes, budget.turn_bytes) == (0, 0)
    assert budget.high_bytes == HIGH_BYTES_MIN, "those who read go on"
