"""How long one server of an ensemble is tried."""

from __future__ import annotations

from magnetar.env.metadata_stores.zookeeper_connecting import Attempts


def test_all_servers_are_tried_in_the_last_third_of_a_session() -> None:
    attempts, spent_s = Attempts(9.0, 3), 0.0
    for _ in range(3):
        spent_s += attempts.bound_s
        attempts.ended(connected=False)
    assert abs(spent_s - 3.0) < 1e-9


def test_slow_servers_are_given_more_time_round_by_round() -> None:
    attempts = Attempts(9.0, 2)
    bounds = []
    for _ in range(10):
        bounds.append(attempts.bound_s)
        attempts.ended(connected=False)
    assert [round(each, 6) for each in bounds] == [1.5, 1.5, 3, 3, 6, 6, 9, 9, 9, 9]
    attempts.ended(connected=True)
    assert round(attempts.bound_s, 6) == 1.5
