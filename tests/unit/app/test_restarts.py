"""When a child that has ended is started again."""

from __future__ import annotations

from magnetar.app.restarts import FIRST_S, LONGEST_S, STEADY_S, Restarts


def test_one_that_ran_is_started_at_once() -> None:
    restarts = Restarts()
    assert [restarts.pause_s(STEADY_S) for _ in range(3)] == [0.0, 0.0, 0.0]


def test_one_that_ends_soon_waits_longer_each_time_and_not_for_ever() -> None:
    restarts = Restarts()
    pauses_s = [restarts.pause_s(1.0) for _ in range(20)]
    assert pauses_s[:3] == [FIRST_S, 2 * FIRST_S, 4 * FIRST_S]
    assert pauses_s == sorted(pauses_s)
    assert pauses_s[-1] == LONGEST_S


def test_a_long_life_is_a_new_beginning() -> None:
    restarts = Restarts()
    for _ in range(5):
        restarts.pause_s(1.0)
    assert restarts.pause_s(STEADY_S) == 0.0
    assert restarts.pause_s(1.0) == FIRST_S
