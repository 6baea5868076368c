"""When a server that is asked is taken for silent."""

from __future__ import annotations

from magnetar.env.network.silence import GRACE_S, Silence

BOUND_S = 6.0


def test_a_question_without_an_answer_for_the_bound_is_silence() -> None:
    silence = Silence(BOUND_S)
    assert silence.asked(100.0) == BOUND_S
    assert silence.asked(105.0) is None, "it is arranged"
    assert silence.look(106.0) == (True, BOUND_S)
    silence.heard(107.0)
    assert silence.look(112.0) == (False, 1.0), "the other one is open"
    assert silence.look(113.0) == (True, BOUND_S)


def test_each_answer_counts_whatever_is_asked_meanwhile() -> None:
    silence = Silence(BOUND_S)
    silence.asked(0.0)
    for now_s in (2.0, 4.0, 5.5):
        silence.asked(now_s)
        silence.heard(now_s)
    assert silence.look(6.0) == (False, 5.5)
    assert silence.look(11.5) == (True, BOUND_S)


def test_without_an_open_question_time_does_not_count() -> None:
    silence = Silence(BOUND_S)
    silence.asked(0.0)
    silence.heard(0.1)
    assert silence.look(6.0) == (False, None)
    assert silence.asked(1000.0) == BOUND_S
    assert silence.look(1006.0) == (True, BOUND_S)
    silence.heard(1007.0)
    silence.asked(1011.0)
    assert silence.look(1012.0) == (False, 5.0), "from the question on"


def test_a_process_that_stood_still_looks_again_before_it_says_so() -> None:
    silence = Silence(BOUND_S)
    silence.asked(0.0)
    assert silence.look(40.0) == (False, GRACE_S)
    assert silence.look(40.0 + GRACE_S) == (True, BOUND_S)
