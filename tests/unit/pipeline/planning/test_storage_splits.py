"""Ranges cut by bytes, within ledgers."""

from __future__ import annotations

import pickle
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from magnetar.pipeline.losses import LedgerFacts
from magnetar.pipeline.places import START, Place
from magnetar.pipeline.planning.splits import PlannedRange, check_cover
from magnetar.pipeline.planning.storage_splits import (
    SPLIT_BYTES_MAX,
    SPLIT_BYTES_MIN,
    ByStorage,
    LedgerSpan,
    StoredRange,
    cut,
    split_bytes_for,
    stored_range,
)

TOPIC = "persistent://public/default/t"
SPLIT_BYTES = 48 << 20


def part(start: Place, end: Place) -> PlannedRange:
    return PlannedRange(TOPIC, start, end, 7, 100, 200)


def stored(start: Place, end: Place, *ledgers: LedgerFacts) -> StoredRange:
    found = stored_range(part(start, end), ledgers)
    assert found is not None
    return found


CLOSED = LedgerFacts(3, 10, 1000, True), LedgerFacts(5, 0, 0, True), LedgerFacts(8, 4, 4000, True)
OPEN = LedgerFacts(9, 6, 60, False)


def test_a_range_is_entries_of_ledgers() -> None:
    found = stored(Place(3, 4, 2), Place(9, 5, 1), *CLOSED, OPEN)
    assert [span for span, _ in found.spans] == [
        LedgerSpan(3, 4, 10), LedgerSpan(8, 0, 4), LedgerSpan(9, 0, 6),
    ]  # fmt: skip
    assert found.byte_count == 600 + 4000 + 60
    whole = stored(START, Place(9, 3, 0), *CLOSED, OPEN)
    assert whole.spans[0][0] == LedgerSpan(3, 0, 10)


def test_what_was_published_since_the_facts_is_in_the_range() -> None:
    found = stored(Place(9, 0, 0), Place(9, 20, 0), OPEN)
    assert found.spans == ((LedgerSpan(9, 0, 20), 200),)


@pytest.mark.parametrize(
    "ledgers", [(), (LedgerFacts(3, 0, 0, True),), (LedgerFacts(3, 5, 50, False),)],
    ids=["none", "empty", "older than the range"],
)  # fmt: skip
def test_facts_that_are_not_enough(ledgers: tuple[LedgerFacts, ...]) -> None:
    assert stored_range(part(START, Place(4, 0, 0)), ledgers) is None


def test_each_core_has_a_part_of_the_range() -> None:
    mib = 1 << 20
    assert split_bytes_for(400 * mib, 4) == 100 * mib
    assert split_bytes_for(400 * mib, 1) == SPLIT_BYTES_MAX
    assert split_bytes_for(400 * mib, 64) == SPLIT_BYTES_MIN
    assert split_bytes_for(4 * mib, 0) == SPLIT_BYTES_MIN


def test_one_ledger_is_cut_into_pieces_of_one_size() -> None:
    ledger = LedgerFacts(1, 10_000, 4 * SPLIT_BYTES, True)
    splits = cut(stored(START, Place(1, 10_000, 0), ledger), SPLIT_BYTES, 1, or_broker=False)
    assert [split.part.start for split in splits] == [
        START, Place(1, 2500, 0), Place(1, 5000, 0), Place(1, 7500, 0),
    ]  # fmt: skip
    assert splits[1].by == ByStorage((LedgerSpan(1, 2500, 5000),), or_broker=False)
    assert (splits[0].part.start_offset, splits[0].part.end_offset) == (100, -1)
    assert (splits[3].part.start_offset, splits[3].part.end_offset) == (-1, 200)


def test_small_ledgers_go_together() -> None:
    ledgers = [LedgerFacts(n, 10, SPLIT_BYTES // 10, True) for n in range(100)]
    splits = cut(stored(START, Place(99, 10, 0), *ledgers), SPLIT_BYTES, 1, or_broker=True)
    assert len(splits) == 10
    assert all(len(split.by.spans) in (10, 11) for split in splits)  # type: ignore[attr-defined]
    assert all(split.by.or_broker for split in splits)  # type: ignore[attr-defined]


def test_no_more_splits_than_entries() -> None:
    ledger = LedgerFacts(1, 3, 300 * SPLIT_BYTES, True)
    assert len(cut(stored(START, Place(1, 3, 0), ledger), SPLIT_BYTES, 50, or_broker=False)) == 3


def test_as_many_splits_as_are_asked_for_though_two_entries_have_most_bytes() -> None:
    ledgers = LedgerFacts(1, 8, 80, True), LedgerFacts(2, 2, 6_000_000, False)
    splits = cut(stored(START, Place(2, 2, 0), *ledgers), SPLIT_BYTES, 7, or_broker=False)
    assert [split.part.start for split in splits] == [
        START, Place(1, 4, 0), Place(1, 5, 0), Place(1, 6, 0), Place(1, 7, 0), Place(2, 0, 0),
        Place(2, 1, 0),
    ]  # fmt: skip


def test_ten_thousand_ledgers_are_planned_at_once() -> None:
    ledgers = [LedgerFacts(n, 1000, 1 << 20, True) for n in range(10_000)]
    begun = time.process_time()
    splits = cut(stored(START, Place(9999, 1000, 0), *ledgers), SPLIT_BYTES, 1, or_broker=False)
    check_cover(part(START, Place(9999, 1000, 0)), splits)
    assert len(splits) == -(-10_000 // 48)
    assert time.process_time() - begun < 30  # one look at each ledger, not one for each split
    assert len(pickle.dumps(splits)) < 1 << 20


facts = st.lists(
    st.tuples(st.integers(0, 6), st.integers(0, 3 * SPLIT_BYTES)), min_size=1, max_size=8
).map(lambda sizes: [LedgerFacts(2 * n, *size, True) for n, size in enumerate(sizes)])


@settings(max_examples=300, deadline=None)
@given(facts, st.data(), st.integers(1, 12))
def test_splits_cover_the_range_and_hold_every_entry_once(
    ledgers: list[LedgerFacts], data: st.DataObject, splits_min: int
) -> None:
    last = 2 * len(ledgers) - 2
    place = st.builds(Place, st.integers(0, last + 1), st.integers(0, 7), st.integers(0, 2))
    start, end = sorted((data.draw(place), data.draw(place)))
    found = stored_range(part(start, end), ledgers)
    if start == end or found is None:
        return
    splits = cut(found, SPLIT_BYTES, splits_min, or_broker=False)
    check_cover(found.part, splits)
    assert len(splits) >= min(splits_min, found.entries)
    held = [
        (span.ledger_id, entry_id)
        for split in splits
        for span in split.by.spans  # type: ignore[attr-defined]
        for entry_id in range(span.first_entry_id, span.stop_entry_id)
    ]
    entries = [
        (span.ledger_id, entry_id)
        for span, _ in found.spans
        for entry_id in range(span.first_entry_id, span.stop_entry_id)
    ]
    assert held == entries
    for split in splits:
        for span in split.by.spans:  # type: ignore[attr-defined]
            first, stop = span.first_entry_id, span.stop_entry_id
            assert split.part.start[:2] <= (span.ledger_id, first)
            assert Place(span.ledger_id, stop - 1, 0) < split.part.end
