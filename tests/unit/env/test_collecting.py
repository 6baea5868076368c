"""When all of memory is looked at for garbage."""

from __future__ import annotations

from magnetar.env.collecting import (
    BLOCKS_LEAST,
    BYTES_LEAST,
    QUIET,
    THRESHOLDS,
    YOUNG_INTERVAL_IDLE_S,
    YOUNG_INTERVAL_S,
    Memory,
    OldGarbage,
    young_interval_s,
)

MB = 1 << 20
START = Memory(500_000, 100 * MB)


def grown(blocks: int = 0, resident_bytes: int = 0, start: Memory = START) -> Memory:
    return Memory(start.blocks + blocks, start.resident_bytes + resident_bytes)


def test_only_the_youngest_are_looked_at_by_count() -> None:
    youngest, *older = THRESHOLDS
    assert 700 < youngest <= 50_000
    assert all(each > 10**8 for each in older)


def test_a_busy_loop_looks_at_the_youngest_often() -> None:
    assert young_interval_s(QUIET) == young_interval_s(0.0) == YOUNG_INTERVAL_IDLE_S
    assert young_interval_s(2 * QUIET) == young_interval_s(1.0) == YOUNG_INTERVAL_S
    assert YOUNG_INTERVAL_S < YOUNG_INTERVAL_IDLE_S


def test_nothing_is_looked_for_while_memory_does_not_grow() -> None:
    rules = OldGarbage(START)
    for _ in range(3):
        assert not rules.wanted(START, 0.0)
        assert not rules.wanted(grown(BLOCKS_LEAST - 1, BYTES_LEAST - 1), 0.0)


def test_an_idle_loop_looks_when_there_may_be_much() -> None:
    assert OldGarbage(START).wanted(grown(BLOCKS_LEAST), 0.0)
    assert OldGarbage(START).wanted(grown(0, BYTES_LEAST), QUIET)


def test_the_busier_the_loop_the_more_there_must_be() -> None:
    rules = OldGarbage(START)
    assert not rules.wanted(grown(BLOCKS_LEAST), 0.3)
    assert rules.wanted(grown(BLOCKS_LEAST * 5 // 4), 0.3)
    assert not rules.wanted(grown(BLOCKS_LEAST * 5 // 4), 0.6)
    assert not rules.wanted(grown(BLOCKS_LEAST * 7 // 4), 1.0)


def test_garbage_is_bounded_however_busy_the_loop_is() -> None:
    assert OldGarbage(START).wanted(grown(2 * BLOCKS_LEAST), 1.0)
    assert OldGarbage(START).wanted(grown(0, 2 * BYTES_LEAST), 7.0)


def test_it_counts_from_what_the_last_look_left() -> None:
    rules = OldGarbage(START)
    left = grown(BLOCKS_LEAST // 2)
    rules.looked(left)
    assert not rules.wanted(grown(BLOCKS_LEAST), 0.0)
    assert rules.wanted(grown(BLOCKS_LEAST, start=left), 0.0)


def test_of_much_that_was_left_a_share_is_let_grow() -> None:
    rules = OldGarbage(START)
    left = Memory(10 * BLOCKS_LEAST, 10 * BYTES_LEAST)
    rules.looked(left)
    assert not rules.wanted(grown(4 * BLOCKS_LEAST, 4 * BYTES_LEAST, left), 0.0)
    assert rules.wanted(grown(5 * BLOCKS_LEAST, 0, left), 0.0)


def test_what_was_given_back_counts_when_it_comes_again() -> None:
    """Topics went, garbage came in their place."""
    rules = OldGarbage(START)
    left = grown(2 * BLOCKS_LEAST)
    rules.looked(left)
    assert not rules.wanted(START, 0.0)
    assert rules.wanted(left, 0.0)


def test_where_resident_memory_is_not_known_objects_count() -> None:
    rules = OldGarbage(Memory(0, 0))
    assert not rules.wanted(Memory(BLOCKS_LEAST - 1, 0), 0.0)
    assert rules.wanted(Memory(BLOCKS_LEAST, 0), 0.0)
