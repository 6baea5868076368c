"""The set of batches' first offsets, against a plain list."""

from __future__ import annotations

import random
import sys

import pytest
from pyroaring import BitMap

from magnetar.log.partition.serving.batch_places import BatchPlaces, decode_starts, encode_starts
from magnetar.log.partition.serving.positions import OffsetOrder, PartitionPositions
from magnetar.model.errors import MetadataFormatError
from magnetar.model.ids import EARLIEST, LATEST, Position


def filled(rng: random.Random, span: int) -> tuple[BatchPlaces, list[int], int]:
    places, starts, end = BatchPlaces(span=span), [], 0
    for _ in range(60):
        length = rng.choice((1, 1, 1, 2, 5, 30))
        places.add(end, end + length)
        starts.append(end)
        end += length
    if rng.random() < 0.5:  # compaction, then retention
        first, stop = sorted(rng.sample(range(end), 2))
        places.remove(first, stop)
        starts = [each for each in starts if not first <= each < stop]
    if rng.random() < 0.5:
        start = rng.randrange(end)
        places.trim(start)
        starts = [each for each in starts if each >= start]
    places.pack()
    return places, starts, end


@pytest.mark.parametrize("seed", range(40))
def test_as_a_list_has_it(seed: int) -> None:
    rng = random.Random(seed)
    places, starts, end = filled(rng, rng.choice((7, 50, 1 << 31)))
    assert (places.entries, places.end) == (len(starts), end)
    for offset in range(-1, end + 3):
        assert places.following(offset) == min([s for s in starts if s >= offset], default=end)
        assert places.holding(offset) == max([s for s in starts if s <= offset], default=-1)
        assert places.count_before(offset) == sum(s < offset for s in starts)
        assert places.offset(places.position(offset)) == offset


@pytest.mark.parametrize("seed", range(40))
def test_what_is_held_and_not_readable_yet_has_its_places(seed: int) -> None:
    """Acknowledgements, new cursors and readers go by it; reading does not."""
    rng = random.Random(seed)
    span = rng.choice((7, 50, 1 << 31))
    places, starts, end = filled(rng, span)
    more, log_end = [], end
    for _ in range(rng.randrange(1, 20)):
        more.append(log_end)
        log_end += rng.choice((1, 1, 3, 9))
    places.hold(more, log_end)
    positions, order = PartitionPositions(places), OffsetOrder(places)
    whole = starts + more
    while True:
        assert (places.end, places.log_end) == (end, log_end)
        assert positions.held == places.position(whole[-1])
        assert positions.readable == places.position(max(starts, default=places.start - 1))
        for offset in range(places.start, log_end + 3):
            assert places.next_held(offset) == min(
                [s for s in whole if s >= offset], default=log_end
            )
            assert places.last_held(offset) == max([s for s in whole if s <= offset], default=-1)
        assert order.mark_before(LATEST) == places.position(log_end - 1)
        assert order.mark_before(places.position(more[-1])) == places.position(more[-1] - 1)
        assert order.last_at(LATEST) == places.position(log_end - 1)
        if end == log_end:
            break
        place = more.index(end)  # the next one is committed
        end = more[place + 1] if place + 1 < len(more) else log_end
        places.add(more[place], end)
        starts = [*starts, more[place]]


@pytest.mark.parametrize("seed", range(20))
def test_positions_step_over_gaps(seed: int) -> None:
    rng = random.Random(seed)
    places, starts, end = filled(rng, rng.choice((7, 1 << 31)))
    order = PartitionPositions(places)
    held = [places.position(each) for each in starts]
    following = [*held[1:], places.position(end)][: len(held)]
    assert [order.next_position(each) for each in held] == following
    assert [order.previous_position(each) for each in held[1:]] == held[:-1]
    assert order.entries_between(EARLIEST, LATEST) == len(held)
    if held:
        assert (order.first, order.readable) == (held[0], held[-1])


def test_every_offset_is_an_entry_to_acknowledgements() -> None:
    places = BatchPlaces(span=10)
    for start in (0, 7, 8, 14):
        places.add(start, start + (6 if start == 14 else 7 if start == 0 else 1))
    places.end = 20
    order = OffsetOrder(places)
    assert [order.last_entry(ledger) for ledger in (-1, 0, 1, 2)] == [-1, 9, 9, -1]
    assert [order.is_final(ledger) for ledger in (0, 1, 2)] == [True, True, False]
    assert [order.following(ledger) for ledger in (-1, 0, 1, 2)] == [0, 1, 2, None]
    assert order.last_at(LATEST) == Position(1, 9)
    assert order.mark_before(EARLIEST) == Position(0, -1)
    assert order.mark_before(Position(1, 4)) == Position(1, 3)
    assert order.mark_before(LATEST) == Position(1, 9)


def test_bytes_beside_a_segment() -> None:
    starts = BitMap([0, 3, 4, 90])
    data = encode_starts(starts, 700, 91)
    assert decode_starts(data, 700, 91, "x") == starts
    for wrong, told in ((data, (701, 91)), (data[:-1], (700, 91)), (b"", (700, 91))):
        with pytest.raises(MetadataFormatError, match="x"):
            decode_starts(wrong, *told, "x")


def test_whoever_looks_in_beside_a_change_sees_what_is_left_of_it() -> None:
    """Files are read on their lane, while the loop takes out what compaction took: a batch that
    begins where none did at that moment was told as damaged, and one of the sets was gone."""
    places = BatchPlaces(span=100)
    for offset in range(0, 500, 5):
        places.add(offset, offset + 5)
    left = [offset for offset in range(0, 500, 5) if not 100 <= offset < 300 or not offset % 35]
    looks = 0

    def look(*_: object) -> object:
        nonlocal looks
        looks += 1
        sys.settrace(None)
        for offset in [each for each in left if each >= 100]:
            assert places.begins(offset)
            assert places.following(offset) == offset
        sys.settrace(look)
        return look

    former = sys.gettrace()
    try:
        sys.settrace(look)
        places.replace(100, 300, BitMap(each - 100 for each in left if 100 <= each < 300))
        places.trim(100)
    finally:
        sys.settrace(former)
    assert looks > 20
    assert [each for each in range(500) if places.begins(each)] == [e for e in left if e >= 100]
