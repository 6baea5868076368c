"""How long catch-up readers rest."""

from __future__ import annotations

import pytest

from magnetar.bookie.storage.read_pace import (
    ADDING_BYTES,
    ADDING_S,
    LEDGERS_MAX,
    REST_S_MAX,
    REST_SHARE,
    ReadPace,
)

MANY = ADDING_BYTES


def read(pace: ReadPace, ledger_id: int, following: int, seconds: float, now_s: float) -> None:
    pace.begun(ledger_id, following)
    pace.ended(ledger_id, following, now_s - seconds, now_s)


def test_a_reader_rests_after_each_read_while_entries_are_added() -> None:
    pace = ReadPace()
    assert pace.rest_s(1, 0, MANY, 10.0) == 0
    read(pace, 1, 50, 0.004, 10.0)
    assert pace.rest_s(1, 50, 2 * MANY, 10.0) == pytest.approx(0.004 * REST_SHARE)
    assert pace.rest_s(1, 50, 2 * MANY, 10.002) == pytest.approx(0.004 * REST_SHARE - 0.002)
    assert pace.rest_s(1, 50, 2 * MANY, 11.0) == 0
    read(pace, 1, 100, 5.0, 12.0)
    assert pace.rest_s(1, 100, 3 * MANY, 12.0) == pytest.approx(REST_S_MAX)


def test_a_reader_that_asks_for_several_runs_at_once_rests_for_all_of_them() -> None:
    pace = ReadPace()
    for following in (50, 100, 150):
        pace.begun(1, following)
        assert pace.rest_s(1, following, MANY, 10.0) == 0  # none has ended
    pace.ended(1, 50, 10.0, 10.004)
    pace.ended(1, 100, 10.0, 10.008)  # it waited for the first, then worked as long
    pace.ended(1, 130, 10.0, 10.012)  # and this one came less far than it was to
    for following in (50, 100, 130, 150):
        rest_s = pace.rest_s(1, following, 2 * MANY, 10.012)
        assert rest_s == pytest.approx(3 * 0.004 * REST_SHARE - 0.008)
    assert pace.rest_s(1, 60, 3 * MANY, 10.012) == 0


def test_without_adds_it_does_not() -> None:
    pace = ReadPace()
    pace.rest_s(1, 0, MANY, 10.0)
    read(pace, 1, 50, 0.004, 10.0 + 1.5 * ADDING_S)
    assert pace.rest_s(1, 50, MANY, 10.0 + 1.5 * ADDING_S) == 0
    assert pace.rest_s(1, 50, 2 * MANY, 10.0 + 1.5 * ADDING_S) > 0


def test_few_small_entries_are_not_adds_going_on() -> None:
    """A consumer that catches up has what it acknowledged stored every ``ADDING_S``."""
    pace = ReadPace()
    appended_bytes, now_s = 5 * MANY, 10.0
    assert pace.adding(appended_bytes, now_s)  # whatever came before
    for number in range(1, 20):
        appended_bytes, now_s = appended_bytes + MANY // 10, now_s + 1.01 * ADDING_S
        read(pace, 1, 50 * number, 0.004, now_s)
        assert pace.rest_s(1, 50 * number, appended_bytes, now_s) == 0
    assert pace.rest_s(1, 950, appended_bytes + MANY, now_s + 0.001) > 0


def test_other_ledgers_and_jumps_do_not_wait() -> None:
    pace = ReadPace()
    read(pace, 1, 50, 0.004, 10.0)
    assert pace.rest_s(2, 50, MANY, 10.0) == 0
    assert pace.rest_s(1, 70, 2 * MANY, 10.0) == 0
    assert pace.rest_s(1, 50, 3 * MANY, 10.0) > 0


def test_it_remembers_a_bounded_number_of_readers() -> None:
    pace = ReadPace()
    for ledger_id in range(LEDGERS_MAX + 1):
        read(pace, ledger_id, 50, 0.004, 10.0)
    assert pace.rest_s(0, 50, MANY, 10.0) == 0
    assert pace.rest_s(1, 50, 2 * MANY, 10.0) > 0
