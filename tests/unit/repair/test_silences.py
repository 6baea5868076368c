"""Who counts as silent."""

from __future__ import annotations

from magnetar.model.ids import BookieId
from magnetar.repair.silences import ASK_AGAIN_S, ASKED_LEAST, Inquiry, Silences

A, B, C, D = (BookieId(name) for name in "abcd")
HELD, COPIES = Inquiry.HELD, Inquiry.COPIES


def silences(delay_s: float = 10.0, requests_max: int = 100) -> Silences:
    found = Silences(delay_s, requests_max)
    found.look([A, B, C, D])
    return found


def test_a_bookie_is_silent_when_it_has_not_answered_for_the_delay() -> None:
    told = silences()
    for now_s in (0.0, 1.0, 5.0, 9.9):
        told.unanswered(A, 7, HELD, now_s)
    assert not told.is_silent(A, 7), "not yet, and time alone is no proof"
    told.unanswered(A, 8, HELD, 10.0)
    assert told.silent == [A]
    assert told.is_silent(A, 7)
    assert told.is_silent(A, 99), "of ledgers that it was not asked about, too"
    told.answered(A, 8, HELD)
    assert told.silent == []
    assert not told.is_silent(A, 99)


def test_two_requests_that_fail_are_chance() -> None:
    told = silences()
    for now_s in (0.0, 60.0, 120.0)[: ASKED_LEAST - 1]:
        told.unanswered(A, 7, HELD, now_s)
    assert not told.is_silent(A, 7)


def test_a_disk_that_hangs_is_of_some_ledgers() -> None:
    told = silences()
    for now_s in range(12):
        told.unanswered(A, 7, HELD, float(now_s))
        told.answered(A, 8, HELD)
        told.unanswered(A, 9, COPIES, float(now_s))
        told.answered(A, 9, HELD)  # that it says what it holds does not make it take copies
    assert [told.is_silent(A, ledger_id) for ledger_id in (7, 8, 9)] == [True, False, True]
    assert told.silent == []
    told.answered(A, 9, COPIES)
    assert not told.is_silent(A, 9)


def test_who_hears_from_few_is_cut_off_itself() -> None:
    told = silences()
    for now_s in range(12):
        told.unanswered(A, 7, HELD, float(now_s))
        told.unanswered(B, 7, HELD, float(now_s))
    assert told.silent == []
    assert not told.is_silent(A, 7)
    assert not told.rests(A, 12.0)
    told.answered(B, 7, HELD)
    assert told.silent == [A]


def test_who_is_not_registered_any_more_begins_anew() -> None:
    told = silences()
    for now_s in range(12):
        told.unanswered(A, 7, HELD, float(now_s))
        told.unanswered(A, 8, COPIES, float(now_s))
    told.look([B, C, D])
    told.look([A, B, C, D])
    assert told.silent == []
    assert not told.is_silent(A, 8)


def test_one_that_is_silent_is_asked_now_and_then() -> None:
    told = silences()
    for now_s in range(11):
        assert not told.rests(A, float(now_s))
        told.unanswered(A, 7, HELD, float(now_s))
    assert told.rests(A, 10.0 + ASK_AGAIN_S - 0.1)
    assert not told.rests(A, 10.0 + ASK_AGAIN_S)


def test_without_a_delay_nobody_is_silent() -> None:
    told = silences(delay_s=0.0)
    for now_s in range(1000):
        told.unanswered(A, 7, HELD, float(now_s))
    assert not told.is_silent(A, 7)
    assert not told.rests(A, 1000.0)


def test_requests_are_bounded() -> None:
    told = silences(requests_max=3)
    for now_s in range(12):
        for ledger_id in range(3):
            told.unanswered(A, ledger_id, HELD, float(now_s))
    told.answered(A, 99, HELD)
    assert told.is_silent(A, 0)
    told.unanswered(A, 50, COPIES, 12.0)
    assert [told.is_silent(A, ledger_id) for ledger_id in range(3)] == [False, True, True]
