"""The newest entries of partitions: one budget, and what leaves it."""

from __future__ import annotations

from magnetar.log.partition.serving.tail import ENTRY_OVERHEAD_BYTES, PartitionTail, TailBudget
from magnetar.model.entry import Entry

MANY = 1 << 20


def add(tail: PartitionTail, offsets: range, size: int = 100) -> None:
    tail.add(list(offsets), [Entry(0, offset, bytes(size), 0) for offset in offsets])


def held(tail: PartitionTail, offset: int, end: int = MANY) -> list[int] | None:
    found = tail.read(offset, end, MANY, MANY)
    return None if found is None else [entry.entry_id for entry in found]


def test_appends_leave_whole_and_in_the_order_in_which_they_came() -> None:
    budget = TailBudget(10 * (100 + ENTRY_OVERHEAD_BYTES))
    one, other = PartitionTail(budget), PartitionTail(budget)
    add(one, range(3))
    add(other, range(4))
    add(one, range(3, 6))
    assert held(one, 0) == [0, 1, 2, 3, 4, 5]
    add(other, range(4, 5))
    assert held(one, 0) is None
    assert held(one, 2) is None
    assert held(one, 3) == [3, 4, 5]
    assert held(other, 0) == [0, 1, 2, 3, 4]
    assert budget.held_bytes == 8 * (100 + ENTRY_OVERHEAD_BYTES)


def test_the_newest_append_is_held_whatever_its_size() -> None:
    tail = PartitionTail(TailBudget(1000))
    add(tail, range(2))
    add(tail, range(2, 50), size=1000)
    assert held(tail, 0) is None
    assert held(tail, 2) == list(range(2, 50))
    assert held(tail, 2, end=4) == [2, 3]


def test_what_was_cleared_is_counted_until_its_turn_comes() -> None:
    budget = TailBudget(6 * (100 + ENTRY_OVERHEAD_BYTES))
    tail = PartitionTail(budget)
    add(tail, range(4))
    tail.clear()
    assert held(tail, 0) is None
    add(tail, range(4, 6))
    assert held(tail, 4) == [4, 5]
    add(tail, range(6, 8))  # those that were cleared go, and nothing of these
    assert held(tail, 4) == [4, 5, 6, 7]
    add(tail, range(8, 11))
    assert held(tail, 4) is None
    assert held(tail, 6) == [6, 7, 8, 9, 10]


def test_many_appends_take_no_room_once_they_have_left() -> None:
    tail = PartitionTail(TailBudget(10 * (100 + ENTRY_OVERHEAD_BYTES)))
    for first in range(0, 6000, 3):
        add(tail, range(first, first + 3))
    assert held(tail, 5991) == list(range(5991, 6000))
    assert len(tail._entries) < 1100
