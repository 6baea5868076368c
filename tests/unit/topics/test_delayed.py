"""The index of delayed entries: what it gives out, when, and in which order."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from magnetar.model.entry import Description, Entry
from magnetar.topics.dispatch import delayed
from magnetar.topics.dispatch.delayed import FOR_EVER_MS, DelayedEntries


def hold(
    index: DelayedEntries, times: Sequence[int], now_ms: int, first: int = 0, ledger: int = 1
) -> list[int]:
    """Entries from ``first`` on, due at those times; gives those that are not kept."""
    entries = [Entry(ledger, first + n, b"", 0) for n in range(len(times))]
    due, descriptions = index.hold(entries, [Description(1, None, t) for t in times], now_ms)
    assert len(due) == len(descriptions)
    return [entry.entry_id for entry in due]


def test_what_is_due_passes_and_the_rest_is_kept() -> None:
    index = DelayedEntries(100, tick_ms=10)
    assert hold(index, [0, 50, 51, 49], now_ms=50) == [0, 1, 3]
    assert len(index) == 1
    assert index.next_due_ms() == 51


def test_never_early_and_found_within_a_tick() -> None:
    index = DelayedEntries(100, tick_ms=10)
    hold(index, [101, 109, 110, 111], now_ms=50)
    assert index.look_at_ms(50) == 110
    assert index.take_due(100, 9) == []
    assert index.take_due(109, 9) == [(1, 0), (1, 1)]
    assert index.look_at_ms(109) == 110
    assert index.take_due(110, 9) == [(1, 2)]
    assert index.look_at_ms(110) == 120


def test_what_is_due_already_needs_no_look() -> None:
    index = DelayedEntries(100, tick_ms=10)
    hold(index, [60, 60, 90], now_ms=50)
    assert index.take_due(60, 1) == [(1, 0)]
    assert index.is_due(60)
    assert index.look_at_ms(60) is None
    assert index.take_due(60, 9) == [(1, 1)]
    assert not index.is_due(60)
    assert index.look_at_ms(60) == 90


def test_a_clock_that_was_ahead_leaves_nothing_early_when_it_is_set_back() -> None:
    index = DelayedEntries(100, tick_ms=10)
    hold(index, [60, 9000], now_ms=50)
    assert index.take_due(8000, 9) == [(1, 0)]
    assert hold(index, [70], now_ms=40, first=2) == []
    assert not index.is_due(69)
    assert index.look_at_ms(40) == 70
    assert index.take_due(70, 9) == [(1, 2)]


def test_it_is_full_at_its_bound_and_empty_when_cleared() -> None:
    index = DelayedEntries(3, tick_ms=10)
    hold(index, [60, 61], now_ms=0)
    assert not index.full
    hold(index, [60, 61], now_ms=0, first=2)
    assert index.full
    index.clear()
    assert (len(index), index.full, index.next_due_ms(), index.size_bytes) == (0, False, None, 0)
    assert index.take_any(9) == []


def test_everything_goes_when_nothing_is_delayed_any_more() -> None:
    index = DelayedEntries(100, tick_ms=10)
    hold(index, [FOR_EVER_MS, 80], now_ms=0)
    assert index.take_any(1) == [(1, 1)]
    assert index.take_any(9) == [(1, 0)]
    assert hold(index, [90], now_ms=0) == [], "the clock is where it was"


STEP = st.one_of(
    st.lists(st.integers(0, 60), min_size=1, max_size=12),
    st.tuples(st.integers(0, 20), st.integers(0, 9)),
)


@pytest.fixture
def small_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delayed, "RUN_ENTRIES", 4)
    monkeypatch.setattr(delayed, "RUNS_MAX", 5)
    monkeypatch.setattr(delayed, "MERGED_RUNS", 3)


@settings(deadline=None, max_examples=200)
@given(st.lists(STEP, max_size=60))
def test_as_a_sorted_list_would_do(steps: list[list[int] | tuple[int, int]]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(delayed, "RUN_ENTRIES", 4)
        patch.setattr(delayed, "RUNS_MAX", 5)
        patch.setattr(delayed, "MERGED_RUNS", 3)
        index, model = DelayedEntries(1000, 7), list[tuple[int, int, int]]()
        now_ms = count = 0
        for step in steps:
            if isinstance(step, list):
                hold(index, [now_ms + delay for delay in step], now_ms, count)
                kept = [(now_ms + d, 1, count + n) for n, d in enumerate(step) if d > 0]
                model = sorted(model + kept)
                count += len(step)
            else:
                now_ms += step[0]
                due = [item for item in model if item[0] <= now_ms][: step[1]]
                assert index.take_due(now_ms, step[1]) == [item[1:] for item in due]
                model = model[len(due) :]
            assert len(index) == len(model)
            assert index.next_due_ms() == (model[0][0] if model else None)
            assert len(index._runs) <= 6
        assert index.take_any(10_000) == [item[1:] for item in model]
        assert not index._runs
        assert not index._heads


def test_a_long_delay_among_many_short_ones_costs_a_few_runs(small_runs: None) -> None:
    index = DelayedEntries(10_000, tick_ms=1)
    for n in range(2000):
        hold(index, [n + 5, n + 6, n + 7, 10**9 + n], now_ms=n, first=4 * n)
        index.take_due(n, 100)
    assert len(index._runs) <= 6
    assert sum(len(run) for run in index._runs.values()) + len(index._new) == len(index)
    late = index.take_due(10**10, 10_000)
    assert [key[1] for key in late[-2000:]] == [4 * n + 3 for n in range(2000)]


def test_a_million_take_24_bytes_each() -> None:
    index = DelayedEntries(2_000_000, tick_ms=1000)
    chance = random.Random(1)
    step = 10_000
    for first in range(0, 200_000, step):
        hold(index, [chance.randrange(1, 10**10) for _ in range(step)], 0, first)
    stored = sum(
        numbers.buffer_info()[1] * numbers.itemsize
        for run in index._runs.values()
        for numbers in (run.times, run.ledgers, run.entries)
    )
    assert stored <= 24 * len(index)
    assert index.size_bytes == pytest.approx(stored, rel=0.05)
    before = 0
    for _ in range(20):
        taken = index.take_due(before + 10**9, 1000)
        assert len(taken) == 1000
        before = index.next_due_ms() or 0
