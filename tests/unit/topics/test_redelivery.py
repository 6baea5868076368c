from __future__ import annotations

from magnetar.topics.dispatch.redelivery import Redelivery, ReplayRun


def test_lowest_first_and_in_runs() -> None:
    waiting = Redelivery()
    waiting.add([(2, 1), (1, 5), (1, 3), (1, 4), (2, 0)], counted=False)
    assert waiting.take(10) == [ReplayRun(1, 3, 3), ReplayRun(2, 0, 2)]
    assert len(waiting) == 0
    assert waiting.take(10) == []


def test_take_is_bounded() -> None:
    waiting = Redelivery()
    waiting.add([(1, n) for n in range(10)], counted=False)
    assert waiting.take(4) == [ReplayRun(1, 0, 4)]
    assert waiting.take(4) == [ReplayRun(1, 4, 4)]
    assert len(waiting) == 2


def test_counts_are_of_refusals_only() -> None:
    waiting = Redelivery()
    waiting.add([(1, 0)], counted=False)
    assert waiting.counts == {}
    waiting.add([(1, 0)], counted=True)
    waiting.add([(1, 0)], counted=True)
    assert waiting.counts == {(1, 0): 2}
    assert waiting.take(5) == [ReplayRun(1, 0, 1)]
    assert waiting.counts == {(1, 0): 2}


def test_what_is_acknowledged_is_forgotten() -> None:
    waiting = Redelivery()
    waiting.add([(1, n) for n in range(4)], counted=True)
    waiting.forget([(1, 1)])
    waiting.forget([(9, 9)])
    assert waiting.take(10) == [ReplayRun(1, 0, 1), ReplayRun(1, 2, 2)]
    assert sorted(waiting.counts) == [(1, 0), (1, 2), (1, 3)]
    waiting.clear()
    assert not waiting.counts


def test_what_is_acknowledged_before_it_is_sent_again_leaves_nothing() -> None:
    waiting = Redelivery()
    for n in range(100):
        waiting.add([(1, n), (2, n)], counted=True)
        waiting.forget([(2, n)])
        waiting.forget([(1, n)])
    assert not waiting._heap


def test_what_was_acknowledged_is_not_below_what_was_read() -> None:
    """Else what lies behind that would be sent before it: of a message in chunks the second part
    before the first."""
    waiting = Redelivery()
    waiting.add([(1, 3), (1, 6)], counted=False)
    waiting.forget([(1, 3)])
    assert not waiting.has_below((1, 5))
    assert waiting.has_below((1, 7))
    assert waiting.take(10) == [ReplayRun(1, 6, 1)]
    assert not waiting.has_below((1, 7))
