"""Tail cache and read-ahead against what was put in."""

from __future__ import annotations

from unittest.mock import patch

from hypothesis import given, settings
from hypothesis import strategies as st

from magnetar.log.managed import tail_cache
from magnetar.log.managed.read_ahead import ReadAheadCache, Window
from magnetar.log.managed.tail_cache import (
    COMPACT_AT,
    ENTRY_OVERHEAD_BYTES,
    SHARED_ENTRIES,
    TailCache,
)
from magnetar.model.entry import Entry


def data(ledger: int, entry: int) -> bytes:
    return b"%d:%d" % (ledger, entry)


steps = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(0, 1), st.integers(1, 5)),
        st.tuples(st.just("roll"), st.integers(0, 1), st.just(0)),
        st.tuples(st.just("gap"), st.integers(0, 1), st.just(0)),
        st.tuples(st.just("clear"), st.integers(0, 1), st.just(0)),
    ),
    max_size=60,
)


@settings(max_examples=200, deadline=None)
@given(steps, st.integers(100, 2000))
def test_the_tail_gives_back_what_came_last_within_the_budget(
    ops: list[tuple[str, int, int]], bytes_max: int
) -> None:
    cache = TailCache(bytes_max)
    tails = [cache.tail(), cache.tail()]
    ledgers = [1, 2]
    ends = [0, 0]
    for what, which, count in ops:
        if what == "add":
            ids = range(ends[which], ends[which] + count)
            entries = [data(ledgers[which], i) for i in ids]
            size = sum(map(len, entries))
            tails[which].add(ledgers[which], ends[which], entries, size, 1)
            ends[which] += count
        elif what == "roll":
            ledgers[which] += 2
            ends[which] = 0
        elif what == "gap":
            ends[which] += 3
        else:
            tails[which].clear()
        assert cache.held_bytes <= bytes_max
        for i, tail in enumerate(tails):
            for first in range(ends[i]):
                found = tail.read(ledgers[i], first, ends[i] - 1, 3, 1 << 20)
                for n, entry in enumerate(found or []):
                    assert (entry.ledger_id, entry.entry_id) == (ledgers[i], first + n)
                    assert entry.data == data(ledgers[i], first + n)
                    assert entry.payload_offset == 1


def test_what_was_added_last_is_there_and_bounds_hold() -> None:
    cache = TailCache(1 << 20)
    tail = cache.tail()
    tail.add(7, 0, [b"x" * 10] * 5, 50, 0)
    assert cache.held_bytes == 50 + 5 * ENTRY_OVERHEAD_BYTES
    assert len(tail.read(7, 0, 4, 100, 1000) or []) == 5
    assert len(tail.read(7, 1, 2, 100, 1000) or []) == 2, "never past the last confirmed"
    assert len(tail.read(7, 0, 4, 3, 1000) or []) == 3
    assert len(tail.read(7, 0, 4, 100, 25) or []) == 2
    assert len(tail.read(7, 0, 4, 100, 1) or []) == 1, "at least one"
    assert tail.read(7, 5, 9, 1, 1) is None
    assert tail.read(8, 0, 0, 1, 1) is None
    tail.clear()
    assert cache.held_bytes == 0
    assert tail.read(7, 0, 4, 1, 1) is None


def test_a_long_tail_is_compacted_and_stays_right() -> None:
    cache = TailCache(100 * (ENTRY_OVERHEAD_BYTES + 8))
    tail = cache.tail()
    total = 5 * COMPACT_AT
    for first in range(0, total, 4):
        entries = [b"%08d" % i for i in range(first, first + 4)]
        tail.add(1, first, entries, 32, 0)
        found = tail.read(1, first - 50, first + 3, 200, 1 << 20) if first > 50 else None
        if found is not None:
            assert [int(e.data) for e in found] == list(range(first - 50, first + 4))
    assert tail.read(1, total - 101, total - 1, 1, 1) is None
    assert tail.read(1, total - 100, total - 1, 1, 1) is not None
    (run,) = tail._runs
    assert len(run.entries) < 3 * COMPACT_AT


def test_closed_logs_leave_nothing_behind() -> None:
    cache = TailCache(1 << 20)
    old = cache.tail()
    old.add(1, 0, [b"x" * 100], 100, 0)
    for ledger in range(2, 5000):
        tail = cache.tail()
        tail.add(ledger, 0, [b"y" * 10] * 2, 20, 0)
        tail.clear()
    assert cache.held_bytes == 100 + ENTRY_OVERHEAD_BYTES
    assert len(cache._batches) < 3000
    assert len(old.read(1, 0, 0, 1, 1) or []) == 1
    old.add(1, 1, [b"z" * (1 << 20)], 1 << 20, 0)
    assert cache.held_bytes == 0, "larger than the whole budget"
    assert not cache._batches


def test_runs_of_former_ledgers_do_not_pile_up() -> None:
    cache = TailCache(3000)
    quiet, busy = cache.tail(), cache.tail()
    for ledger in range(1, 200):
        quiet.add(ledger, 0, [b"x" * 10], 10, 0)
        busy.add(1000 + ledger, 0, [b"y" * 1000] * 3, 3000, 0)
    assert len(quiet._runs) <= 2
    assert len(busy._runs) <= 2


def entries_of(ledger: int, first: int, count: int) -> list[Entry]:
    return [Entry(ledger, i, data(ledger, i), 0) for i in range(first, first + count)]


def ids(entries: list[Entry]) -> list[int]:
    return [entry.entry_id for entry in entries]


def test_a_window_slides() -> None:
    window = Window(3, entries_of(3, 10, 10))
    assert ids(window.read(10, 3, 1000)) == [10, 11, 12]
    assert not window.wants_more
    assert ids(window.read(13, 100, 9)) == [13, 14]
    assert window.wants_more
    window.extend(entries_of(3, 20, 5))
    assert (window.first, window.end) == (15, 25)
    assert window.held_bytes == sum(len(data(3, i)) for i in range(15, 25))
    assert ids(window.read(15, 100, 1000)) == list(range(15, 25))
    assert ids(window.read(24, 100, 0)) == [24]


def test_the_windows_used_longest_ago_go_first() -> None:
    windows = [Window(ledger, entries_of(ledger, 0, 10)) for ledger in (1, 2, 3)]
    size = windows[0].held_bytes
    cache = ReadAheadCache(2 * size)
    cache.account(windows[0])
    cache.account(windows[1])
    assert cache.find(1, 5) is windows[0]
    assert cache.find(1, 10) is None
    cache.account(windows[2])
    assert [cache.holds(window) for window in windows] == [True, False, True]
    assert cache.held_bytes == 2 * size
    windows[0].read(0, 9, 1000)
    windows[0].extend(entries_of(1, 10, 1))
    cache.account(windows[0])
    assert cache.held_bytes == size + windows[0].held_bytes
    cache.drop_ledgers([1, 2])
    assert cache.held_bytes == size
    cache.drop(windows[2])
    assert cache.held_bytes == 0


def test_those_who_read_the_newest_entries_share_them() -> None:
    cache = TailCache(1 << 20)
    tail = cache.tail()
    count = 2 * SHARED_ENTRIES
    tail.add(7, 0, [data(7, i) for i in range(count)], 0, 0)
    first = tail.read(7, count - 20, count - 11, 100, 1 << 20) or []
    again = tail.read(7, count - 15, count - 1, 100, 1 << 20) or []
    assert [entry.entry_id for entry in again] == list(range(count - 15, count))
    assert [a is b for a, b in zip(first[5:], again, strict=False)] == [True] * 5
    rest = tail.read(7, count - 10, count - 1, 100, 1 << 20) or []
    assert [a is b for a, b in zip(again[5:], rest, strict=True)] == [True] * 10
    old = tail.read(7, 0, count - 1, count, 1 << 20) or []
    assert [entry.entry_id for entry in old] == list(range(count))
    [run] = tail._runs
    assert len(run.shared) <= SHARED_ENTRIES


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 40), st.integers(1, 30), st.integers(1, 200), st.integers(0, 9)),
        max_size=40,
    ),
    st.integers(1, 12),
)
def test_what_is_shared_is_what_was_added(
    reads: list[tuple[int, int, int, int]], shared_max: int
) -> None:
    with patch.object(tail_cache, "SHARED_ENTRIES", shared_max):
        cache = TailCache(20 * (ENTRY_OVERHEAD_BYTES + 4))
        tail = cache.tail()
        end = 0
        for first, count, bytes_max, added in reads:
            tail.add(7, end, [data(7, end + i) for i in range(added)], 4 * added, 1)
            end += added
            found = tail.read(7, first, end - 1, count, bytes_max)
            if found is None:
                continue
            assert [entry.entry_id for entry in found] == list(range(first, first + len(found)))
            assert all(entry.data == data(7, entry.entry_id) for entry in found)
            sizes = [len(data(7, i)) for i in range(first, min(first + count, end))]
            fitting = [n for n in range(1, len(sizes) + 1) if sum(sizes[:n]) <= bytes_max]
            assert len(found) == max([1, *fitting])
