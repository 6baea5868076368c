"""The acknowledgement state against a naive model, and its arithmetic."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyroaring import BitMap

from magnetar.log.ack_images import decode_image, encode_image, encode_in_parts
from magnetar.log.acknowledgements import (
    PARTIAL_BYTES_MAX,
    PARTIAL_OVERHEAD_BYTES,
    AckImage,
    AckState,
    ack_set_bits,
    ack_set_words,
    contiguous_end,
)
from magnetar.log.managed.chain import Chain, LedgerInfo
from magnetar.model.entry import Entry
from magnetar.model.errors import NotAllowedError, ProtocolError
from magnetar.model.ids import EARLIEST, Position

SIZES = {3: 4, 5: 1, 9: 6, 12: 3}  # the last is open


def make_chain() -> Chain:
    closed = [LedgerInfo(i, n, n * 10, 1, 2) for i, n in SIZES.items() if i != 12]
    chain = Chain([*closed, LedgerInfo(12, created_ms=1)])
    chain.confirm(SIZES[12] - 1, chain.end_offset + SIZES[12])
    return chain


ALL = [Position(ledger, entry) for ledger, size in SIZES.items() for entry in range(size)]


class Model:
    """Every entry's bits, one by one."""

    def __init__(self) -> None:
        self.acked: set[Position] = set()
        self.sets: dict[Position, set[int]] = {}

    def acknowledge(self, positions: list[Position]) -> None:
        for position in positions:
            if position in ALL:
                self.acked.add(position)
                self.sets.pop(position, None)

    def batch(self, position: Position, size: int, still_open: set[int]) -> None:
        if position not in ALL or position in self.acked:
            return
        left = self.sets.get(position, set(range(size))) & still_open
        if left:
            self.sets[position] = left
        else:
            self.acknowledge([position])

    def cumulative(self, position: Position) -> None:
        self.acknowledge([p for p in ALL if p <= position])

    def reset(self, first: Position) -> None:
        self.acked = {p for p in ALL if p < first}
        self.sets = {}

    def mark_delete(self) -> Position | None:
        mark = None
        for position in ALL:
            if position not in self.acked:
                return mark
            mark = position
        return mark


positions = st.sampled_from([*ALL, Position(12, 3), Position(4, 0), Position(3, 99)])
operations = st.lists(
    st.one_of(
        st.tuples(st.just("ack"), st.lists(positions, min_size=1, max_size=6)),
        st.tuples(st.just("batch"), positions, st.sets(st.integers(0, 4))),
        st.tuples(st.just("cumulative"), positions),
        st.tuples(st.just("reset"), st.sampled_from(ALL)),
        st.tuples(st.just("store")),
    ),
    max_size=25,
)


def check(state: AckState, model: Model) -> None:
    for position in ALL:
        assert state.is_acknowledged(*position) == (position in model.acked), position
    for ledger, size in SIZES.items():
        for low in range(size + 1):
            for high in range(low, size + 1):
                has_all = all(Position(ledger, each) in model.acked for each in range(low, high))
                assert state.all_acknowledged(ledger, low, high) == has_all, (ledger, low, high)
        words = state.ack_set(position)
        expected = model.sets.get(position)
        assert (words is None) == (expected is None), position
        if words is not None and expected is not None:
            assert ack_set_bits(words) == sum(1 << i for i in expected)
    mark = model.mark_delete()
    assert mark is None or state.mark_delete == mark
    assert mark is not None or state.mark_delete < ALL[0]
    entries = [Entry(p.ledger_id, p.entry_id, b"", 0) for p in ALL]
    left = [Position(e.ledger_id, e.entry_id) for e in state.unacknowledged(entries)]
    assert left == [p for p in ALL if p not in model.acked]
    after = sum(1 for p in model.acked if p > state.mark_delete)
    assert state.hole_entries == after
    kept = [PARTIAL_OVERHEAD_BYTES + (max(left) + 1) // 8 for left in model.sets.values()]
    assert state.partial_bytes == sum(kept)


def apply(state: AckState, model: Model, chain: Chain, operation: tuple[Any, ...]) -> None:
    if operation[0] == "ack":
        state.acknowledge(operation[1])
        model.acknowledge(operation[1])
    elif operation[0] == "batch":
        _, position, still_open = operation
        whole = state.acknowledge_batch(position, 5, [sum(1 << i for i in still_open)])
        model.batch(position, 5, still_open)
        if position in ALL:
            assert whole == (position in model.acked)
    elif operation[0] == "cumulative":
        state.acknowledge_cumulative(operation[1])
        model.cumulative(operation[1])
    else:
        state.reset(chain.previous_position(operation[1]))
        model.reset(operation[1])


@settings(max_examples=300, deadline=None)
@given(operations)
def test_state_and_what_is_stored_of_it_agree_with_the_model(ops: list[tuple[Any, ...]]) -> None:
    chain = make_chain()
    state, model = AckState(chain, EARLIEST), Model()
    stored = AckState(chain, EARLIEST)
    images = [state.snapshot()]
    for operation in [*ops, ("store",)]:
        if operation[0] != "store":
            apply(state, model, chain, operation)
            check(state, model)
            continue
        changes = state.take_changes()
        if changes is None:  # only the whole state says it
            image = decode_image(encode_image(state.snapshot()))
            stored = AckState(chain, image.mark_delete, image.reset_epoch)
            stored.merge(image)
        else:
            image = decode_image(encode_image(changes))
            stored.merge(image)
            stored.merge(image)  # twice does no harm
        images.append(image)
        for each in images:  # nor do late ones, from before a reset too
            stored.merge(each)
        recovered = AckState(chain, EARLIEST)
        for each in reversed(images):
            recovered.merge(each)
        for found in (stored, recovered):
            check(found, model)
            assert found.mark_delete == state.mark_delete


def test_what_was_taken_before_a_reset_is_dropped_after_it() -> None:
    state = AckState(make_chain(), EARLIEST)
    state.acknowledge([Position(3, 0), Position(3, 2)])
    state.acknowledge_batch(Position(3, 1), 4, [0b0110])
    before = state.take_changes()
    assert before is not None
    state.reset(Position(3, -1))
    state.acknowledge([Position(3, 3)])
    after = state.snapshot()
    assert (before.reset_epoch, after.reset_epoch) == (0, 1)
    for order in ((before, after), (after, before), (after, before, after)):
        recovered = AckState(make_chain(), EARLIEST)
        for image in order:
            recovered.merge(image)
        assert recovered.snapshot() == after
        assert recovered.partial_bytes == 0


def test_mark_delete_stays_at_the_end_of_a_ledger_until_the_next_is_acknowledged() -> None:
    state = AckState(make_chain(), EARLIEST)
    state.acknowledge([Position(3, i) for i in range(4)])
    assert state.mark_delete == (3, 3)
    state.acknowledge([Position(9, 0)])
    assert state.mark_delete == (3, 3)
    state.acknowledge([Position(5, 0)])
    assert state.mark_delete == (9, 0)
    assert state.simple


def test_what_ack_sets_take_is_bounded() -> None:
    chain = Chain([LedgerInfo(1, created_ms=1)])
    chain.confirm(9_999, 10_000)
    state = AckState(chain, EARLIEST)
    words = [-1] * 1024
    kept = 0
    while state.partial_bytes + 64 * len(words) // 8 + PARTIAL_OVERHEAD_BYTES <= PARTIAL_BYTES_MAX:
        state.acknowledge_batch(Position(1, kept), 64 * len(words), words)
        kept += 1
    assert kept > 1000
    with pytest.raises(NotAllowedError):
        state.acknowledge_batch(Position(1, kept), 64 * len(words), words)
    assert state.ack_set(Position(1, kept)) is None
    state.acknowledge([Position(1, 0)])
    assert not state.acknowledge_batch(Position(1, kept), 64 * len(words), words)
    state.acknowledge_cumulative(Position(1, 9_999))
    assert state.partial_bytes == 0


def test_future_positions_cannot_be_acknowledged() -> None:
    chain = make_chain()
    state = AckState(chain, EARLIEST)
    assert not state.acknowledge([Position(12, 3), Position(99, 0), Position(12, 2**40)])
    assert not state.acknowledge_batch(Position(12, 3), 4, [0])
    state.acknowledge_cumulative(Position(99, 5))
    assert state.mark_delete == chain.confirmed


def test_the_place_before_a_ledgers_first_entry_is_no_entry() -> None:
    state = AckState(Chain([LedgerInfo(1, 5, 5, 1, 2), LedgerInfo(2, 5, 5, 1, 2)]), Position(1, -1))
    assert not state.acknowledge([Position(2, -1)])
    assert not state.acknowledge([Position(2, -1), Position(2, -2)])
    assert not state.acknowledge_batch(Position(2, -1), 5, [0])
    assert not state.acknowledge_batch(Position(2, -1), 5, [3])
    assert state.simple
    assert state.acknowledge_cumulative(Position(2, -1))
    assert state.mark_delete == Position(1, 4)


def test_trimmed_ledgers_count_as_acknowledged() -> None:
    chain = make_chain()
    state = AckState(chain, Position(3, 1))
    state.acknowledge([Position(9, 0)])
    chain.trim(2)
    state.acknowledge([Position(9, 1)])
    assert state.mark_delete == (9, 1)


def test_ack_set_words_are_those_of_the_wire() -> None:
    assert ack_set_words(ack_set_bits([-1, 5])) == [-1, 5]
    assert ack_set_words(ack_set_bits([2**64 - 1])) == [-1]
    assert ack_set_words(0) == []
    assert ack_set_bits([28]) == 28


def test_batch_acknowledgements_intersect_and_ignore_bits_past_the_batch() -> None:
    state = AckState(make_chain(), EARLIEST)
    assert not state.acknowledge_batch(Position(3, 0), 5, [30])
    assert not state.acknowledge_batch(Position(3, 0), 5, [29])
    assert state.ack_set(Position(3, 0)) == [28]
    assert not state.acknowledge_batch(Position(3, 1), 5, [-1])
    assert state.ack_set(Position(3, 1)) == [31]
    assert state.acknowledge_batch(Position(3, 0), 5, [3])
    assert state.mark_delete == (3, 0)
    assert state.acknowledge_batch(Position(3, 0), 5, [-1])
    # a batch size as large as the wire allows costs nothing
    assert not state.acknowledge_batch(Position(3, 1), 2**31 - 1, [1])


@given(st.sets(st.integers(0, 300)), st.integers(0, 300))
def test_contiguous_end_is_the_end_of_the_run(bits: set[int], first: int) -> None:
    end = first
    while end in bits:
        end += 1
    assert contiguous_end(BitMap(bits), first) == end - 1


def test_half_a_million_holes_are_small_and_exact() -> None:
    entries = 1_000_000
    chain = Chain([LedgerInfo(1, entries, 1, 1, 2)])
    state = AckState(chain, EARLIEST)
    chosen = random.Random(5).sample(range(1, entries), 500_000)
    for start in range(0, len(chosen), 1000):
        state.acknowledge([Position(1, e) for e in chosen[start : start + 1000]])
    assert state.hole_entries == 500_000
    assert state.mark_delete < (1, 0)
    data = encode_image(state.snapshot())
    assert len(data) < 140_000
    recovered = AckState(chain, EARLIEST)
    recovered.merge(decode_image(data))
    assert recovered.snapshot().holes[1] == BitMap(chosen)
    rest = sorted(set(range(entries)) - set(chosen))
    recovered.acknowledge([Position(1, e) for e in rest])
    assert recovered.mark_delete == (1, entries - 1)
    assert recovered.simple


@pytest.mark.parametrize("cut", [0, 10, 20, 27, 40])
def test_broken_images_are_refused(cut: int) -> None:
    state = AckState(make_chain(), EARLIEST)
    state.acknowledge([Position(3, 2), Position(9, 1)])
    state.acknowledge_batch(Position(3, 1), 3, [1])
    data = encode_image(state.snapshot())
    with pytest.raises(ProtocolError):
        decode_image(data[:cut])
    with pytest.raises(ProtocolError):
        decode_image(data + b"\0")


def test_what_was_stored_of_a_ledger_that_is_gone_is_left_out() -> None:
    """A snapshot is read back before the changes after it, on which the ledger was trimmed: it says
    less than the log knows, and the topic opens all the same."""
    stored = AckState(make_chain(), EARLIEST)
    stored.acknowledge([Position(3, 0), Position(3, 2), Position(9, 4)])
    stored.acknowledge_batch(Position(3, 3), 4, [0b0110])
    image = stored.snapshot()
    chain = make_chain()
    chain.trim(1)
    recovered = AckState(chain, EARLIEST)
    recovered.merge(image)
    left = recovered.snapshot()
    assert list(left.holes) == [9]
    assert not left.ack_sets
    recovered.acknowledge([Position(5, 0)])
    assert recovered.mark_delete == Position(5, 0)


def test_what_is_acknowledged_of_a_ledger_that_goes_meanwhile_is_forgotten() -> None:
    """By a process that serves the cursor and does not own the log: it learns late of its end."""
    chain = make_chain()
    state = AckState(chain, Position(3, 0))
    state.acknowledge([Position(3, 2), Position(9, 4)])
    state.acknowledge_batch(Position(3, 3), 4, [0b0110])
    chain.trim(1)
    version = state.version
    state.forget_trimmed()
    assert state.version > version
    assert state.snapshot() == AckImage(Position(3, 0), {9: BitMap([4])})
    assert not state.partial_bytes
    state.forget_trimmed()
    assert state.version == version + 1, "there is nothing more to forget"
    state.acknowledge([Position(5, 0)])
    assert state.mark_delete == Position(5, 0)


@pytest.mark.parametrize("seed", range(40))
def test_what_another_process_acknowledges_is_stored_as_if_it_were_acknowledged_here(
    seed: int,
) -> None:
    rng = random.Random(seed)
    lent, owner, stored = (AckState(make_chain(), EARLIEST) for _ in range(3))
    for _ in range(30):
        what, position = rng.randrange(8), rng.choice(ALL)
        if what == 0:
            lent.reset(lent._chain.last_at(position))
        elif what == 1:
            lent.acknowledge_cumulative(position)
        elif what == 2:
            lent.acknowledge_batch(position, 8, [rng.randrange(256)])
        else:
            lent.acknowledge(rng.sample(ALL, rng.choice((1, 1, 4))))
        if rng.random() < 0.5:
            changes = lent.take_changes()
            owner.take_over(lent.snapshot() if changes is None else changes)
        if rng.random() < 0.5:
            changes = owner.take_changes()
            stored.merge(owner.snapshot() if changes is None else changes)
            assert stored.snapshot() == owner.snapshot()
    assert not owner.take_over(AckImage(ALL[-1], reset_epoch=-1)), "of before a reset"
    owner.take_over(lent.snapshot())
    assert owner.snapshot() == lent.snapshot()
    version = owner.version
    assert owner.take_over(lent.snapshot())
    assert owner.version > version


@pytest.mark.parametrize(
    "image",
    [
        AckImage(Position(12, 3)),
        AckImage(Position(99, 0)),
        AckImage(EARLIEST, {12: BitMap([1, 3])}),
        AckImage(EARLIEST, {3: BitMap([4])}),
        AckImage(EARLIEST, {}, {Position(3, 1): 0}),
        AckImage(EARLIEST, {}, {Position(3, -1): 1}),
        AckImage(EARLIEST, {}, {Position(3, 1): 1 << (9 * PARTIAL_BYTES_MAX)}),
    ],
)
def test_what_cannot_be_acknowledged_of_the_log_is_refused_whole(image: AckImage) -> None:
    state = AckState(make_chain(), EARLIEST)
    before = state.snapshot()
    with pytest.raises(NotAllowedError):
        state.take_over(image)
    assert (state.snapshot(), state.version) == (before, 0)


def test_images_in_parts_are_the_image_in_any_order() -> None:
    state = AckState(make_chain(), EARLIEST)
    state.acknowledge([Position(3, 2), Position(9, 4), Position(12, 1)])
    for entry in (0, 1, 3):
        state.acknowledge_batch(Position(9, entry), 200, [-1, 7, 1, 1])
    whole = state.snapshot()
    assert encode_in_parts(whole, 10_000) == [encode_image(whole)]
    parts = [decode_image(each) for each in encode_in_parts(whole, 60)]
    assert len(parts) == 6
    for seed in range(6):
        random.Random(seed).shuffle(parts)
        merged = AckState(make_chain(), EARLIEST)
        for part in (*parts, parts[0]):
            merged.merge(part)
        assert merged.snapshot() == whole


def test_a_note_goes_with_its_image_and_with_the_first_change_only() -> None:
    state = AckState(make_chain(), EARLIEST)
    state.acknowledge_cumulative(Position(3, 1))
    state.take_note(b"up to one")
    assert not state.simple
    first = state.take_changes()
    state.acknowledge([Position(3, 3)])
    second = state.take_changes()
    assert first is not None
    assert second is not None
    assert (first.note, second.note) == (b"up to one", b"")
    for image in (first, second, state.snapshot()):
        assert decode_image(encode_image(image)) == image
    recovered = AckState(make_chain(), EARLIEST)
    for image in (second, first):
        recovered.merge(image)
    assert recovered.snapshot() == state.snapshot()
    with pytest.raises(ProtocolError):
        decode_image(encode_image(state.snapshot())[:-1])
    state.reset(Position(3, 0))
    assert state.note == b""


def test_an_older_image_with_a_note_leaves_the_later_note() -> None:
    merged = AckState(make_chain(), EARLIEST)
    merged.merge(AckImage(Position(9, 2), note=b"up to two"))
    merged.merge(AckImage(Position(9, 1), note=b"up to one"))
    assert (merged.mark_delete, merged.note) == (Position(9, 2), b"up to two")


def test_a_log_that_ends_earlier_takes_back_what_was_acknowledged_behind_it_and_no_more() -> None:
    state = AckState(make_chain(), EARLIEST)
    state.acknowledge([Position(3, 0), Position(3, 2), Position(9, 1), Position(9, 3)])
    state.acknowledge([Position(12, 1)])
    for entry in (Position(9, 0), Position(9, 2), Position(12, 0)):
        state.acknowledge_batch(entry, 4, [5])
    before = state.snapshot()
    assert not state.cut(Position(12, 2)), "nothing was acknowledged behind it"
    assert state.snapshot() == before
    assert state.cut(Position(9, 2))
    sets = {Position(9, 0): 5, Position(9, 2): 5}
    after = AckImage(Position(3, 0), {3: BitMap([2]), 9: BitMap([1])}, sets, before.reset_epoch + 1)
    assert state.snapshot() == after
    assert state.take_changes() is None, "what is stored of before is not brought back"
    state.merge(before)
    assert state.snapshot() == after
    assert state.cut(Position(3, 1))
    assert state.snapshot() == AckImage(Position(3, 0), reset_epoch=before.reset_epoch + 2)
    assert state.partial_bytes == 0


def test_what_survives_of_trimmed_ledgers_is_not_read_by_an_earlier_acknowledgement() -> None:
    """A cursor of the compacted view reads on where the log has no ledgers any more."""
    chain = make_chain()
    chain.compacted_to = Position(5, 0)
    state = AckState(chain, chain.mark_before(EARLIEST))
    chain.trim(2)
    assert not state.acknowledge_cumulative(Position(3, 1))
    assert state.mark_delete < chain.before_first(), "what lies between may have survived"
    assert state.acknowledge_cumulative(Position(9, 0))
    assert state.mark_delete == Position(9, 0)
