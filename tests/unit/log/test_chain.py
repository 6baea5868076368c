"""Chain arithmetic against a list of all positions."""

from __future__ import annotations

from bisect import bisect_right

from hypothesis import given, settings
from hypothesis import strategies as st

from magnetar.log.managed.chain import Chain, Front, LedgerInfo
from magnetar.log.managed.rules import deletable, frees_later
from magnetar.log.policy import Retention, RollRule
from magnetar.model.ids import EARLIEST, LATEST, Position


@st.composite
def chains(draw: st.DrawFn) -> tuple[Chain, list[Position]]:
    ids = sorted(draw(st.sets(st.integers(1, 40), min_size=1, max_size=6)))
    sizes = [draw(st.integers(1, 5)) for _ in ids]
    open_last = draw(st.booleans())
    infos = [LedgerInfo(i, n, n * 10, 1, 2) for i, n in zip(ids, sizes, strict=True)]
    if open_last:
        sizes[-1] = draw(st.integers(0, 3))
        infos[-1] = LedgerInfo(ids[-1], created_ms=1)
    chain = Chain(infos)
    if open_last:
        chain.confirm(sizes[-1] - 1, chain.end_offset + sizes[-1])
    held = [Position(i, e) for i, n in zip(ids, sizes, strict=True) for e in range(n)]
    gone = draw(st.integers(0, len(ids) - open_last))
    chain.trim(gone)
    return chain, [p for p in held if p.ledger_id not in ids[:gone]]


anywhere = st.builds(Position, st.integers(-1, 42), st.integers(-1, 6))


@settings(max_examples=400, deadline=None)
@given(chains(), anywhere, anywhere)
def test_arithmetic_agrees_with_the_list(
    made: tuple[Chain, list[Position]], one: Position, other: Position
) -> None:
    chain, held = made
    assert [chain.at_rank(i + 1) for i in range(len(held))] == held
    assert chain.rank(one) == bisect_right(held, one)
    agrees(chain, held, one, other)


@settings(max_examples=400, deadline=None)
@given(chains(), anywhere, anywhere, st.integers(0, 30), st.integers(0, 6))
def test_arithmetic_without_what_was_deleted_agrees_with_the_list(
    made: tuple[Chain, list[Position]], one: Position, other: Position, gone: int, trims: int
) -> None:
    """Whatever comes later: ledgers that go, another that is opened, the next owner."""
    chain, held = made
    gone = min(gone, len(held))
    place = held[gone] if gone < len(held) else chain.next_position(chain.confirmed)
    offset = chain.first_offset + gone
    chain.begin_at(Front(place, offset, offset))
    chain.begin_at(Front(Position(0, 0), 0, offset - 1))
    assert chain.front.offset == offset or gone == 0, "never back"
    held, end = held[gone:], chain.end_offset
    agrees(chain, held, one, other)
    assert chain.first_message == offset
    assert chain.messages_between(EARLIEST, LATEST) == len(held)
    whole = [info for info in chain.ledgers if info.closed and place > (info.ledger_id, 0)]
    whole = [info for info in whole if place > (info.ledger_id, info.entries - 1)]
    chain.trim(min(trims, len(whole)))
    agrees(chain, held, one, other)
    if chain.open_ledger_id is not None:
        entries = chain.last_entry(chain.open_ledger_id) + 1
        chain.close_last(entries, entries, 5)
    agrees(chain, held, one, other)
    chain = Chain(chain.ledgers, chain.trimmed, chain.first_offset, chain.front)
    chain.end_front()
    chain.open_ledger(LedgerInfo(100, created_ms=1))
    agrees(chain, held, one, other)
    chain.confirm(1, end + 2)
    agrees(chain, [*held, Position(100, 0), Position(100, 1)], one, other)
    assert chain.first_message == offset


def agrees(chain: Chain, held: list[Position], one: Position, other: Position) -> None:
    assert chain.entries == len(held)
    between = sum(1 for p in held if one < p <= other)
    assert chain.entries_between(one, other) == between
    later = [p for p in held if p > one]
    if later:
        assert chain.next_position(one) == later[0]
        assert chain.confirmed == held[-1]
    else:
        assert chain.next_position(one) > chain.confirmed
    earlier = [p for p in held if p < one]
    if earlier:
        assert chain.previous_position(one) == earlier[-1]
    else:
        assert chain.previous_position(one) == chain.before_first()
        assert chain.before_first() < chain.first
    at_or_after = [p for p in held if p >= one]
    if at_or_after:
        assert chain.settle(one) == at_or_after[0]
    else:
        assert chain.settle(one) > chain.confirmed
    if held:
        assert chain.first == held[0]
        assert chain.previous_position(LATEST) == held[-1]


def test_an_empty_chain_has_a_place() -> None:
    chain = Chain()
    assert chain.confirmed == EARLIEST
    assert chain.entries == 0
    assert chain.next_position(EARLIEST) > EARLIEST
    chain.open_ledger(LedgerInfo(7, created_ms=1))
    assert chain.confirmed == (7, -1)
    assert chain.first == (7, 0)
    assert chain.settle(EARLIEST) == (7, 0)
    chain.close_last(0, 0, 5)
    assert chain.ledgers == []
    assert chain.confirmed == (7, -1), "never back"
    assert chain.settle(EARLIEST) > chain.confirmed


def test_confirmed_survives_trimming_everything() -> None:
    chain = Chain([LedgerInfo(4, 3, 30, 1, 2)])
    chain.trim(1)
    assert chain.confirmed == (4, 2)
    assert chain.entries == 0
    again = Chain(chain.ledgers, chain.trimmed)
    assert again.confirmed == (4, 2)
    assert again.first == (4, 3)
    again.open_ledger(LedgerInfo(6, created_ms=1))
    again.confirm(0, again.end_offset + 1)
    assert again.next_position(Position(4, 2)) == (6, 0)


def test_the_place_after_confirmed_moves_to_a_new_ledger() -> None:
    chain = Chain([LedgerInfo(4, 3, 30, 1, 2)])
    assert chain.next_position(Position(4, 2)) == (4, 3)
    chain.open_ledger(LedgerInfo(6, created_ms=1))
    assert chain.next_position(Position(4, 2)) == (6, 0)
    assert chain.settle(Position(4, 3)) == (6, 0)


def test_ledgers_roll_by_entries_bytes_and_age_but_not_when_empty() -> None:
    rule = RollRule(entries_max=10, bytes_max=100, age_ms_max=1000)
    assert not rule.full(9, 99)
    assert rule.full(10, 0)
    assert rule.full(1, 100)
    assert rule.old(1, 1000)
    assert not rule.old(1, 999)
    assert not rule.old(0, 5000)


LEDGERS = [
    LedgerInfo(1, 10, 100, 1, closed_ms=1_000),
    LedgerInfo(2, 10, 100, 1, closed_ms=2_000),
    LedgerInfo(3, 10, 100, 1, closed_ms=3_000),
    LedgerInfo(4, created_ms=3_000),
]


def test_retention_decides_what_goes() -> None:
    def count(marks: list[Position], kept_ms: int, kept_bytes: int, now_ms: int = 3_500) -> int:
        return deletable(LEDGERS, marks, Retention(kept_ms, kept_bytes), now_ms)

    end = Position(3, 9)
    assert count([end], -1, -1) == 0
    assert count([], -1, -1) == 0
    assert count([end], 0, 0) == 3
    assert count([], 0, 0) == 3
    assert count([end, Position(2, 9)], 0, 0) == 2
    assert count([end, Position(2, 8)], 0, 0) == 1
    assert count([Position(1, 3), end], 0, 0) == 0
    assert count([end], 1_500, -1) == 2
    assert count([end], -1, 150) == 2
    assert count([end], -1, 300) == 0
    assert count([Position(4, -1)], 0, 0) == 3


def test_ledgers_whose_records_were_deleted_go_whatever_retention_says() -> None:
    def count(mark: Position, front: Position, kept_ms: int = -1) -> int:
        return deletable(LEDGERS, [mark], Retention(kept_ms, -1), 3_500, front)

    end = Position(4, 3)
    assert count(end, Position(3, 0)) == 2
    assert count(end, Position(3, 9)) == 2, "one record is left"
    assert count(end, Position(3, 10)) == 3
    assert count(end, Position(4, 3)) == 3, "never the open one"
    assert count(Position(2, 8), Position(4, 3)) == 1, "a cursor has not stored that it passed it"
    assert count(end, Position(2, 3), kept_ms=1_500) == 2, "and what retention lets go"
    last = Position(4, 2)
    assert frees_later(last, [last], 300, Retention(-1, -1), Position(4, 3)), "when it rolls"
    assert not frees_later(last, [last], 300, Retention(-1, -1), Position(4, 2))


def test_what_unsafe_settings_lost_behind_the_front_comes_anew() -> None:
    """Records up to 10 were deleted, and 4 of them were on a disk when the power went."""
    front = Front(Position(1, 10), 10, 10)
    chain = Chain([LedgerInfo(1, 4, 40, 1, 2)], front=front)
    chain.end_front()
    chain.open_ledger(LedgerInfo(2, created_ms=1))
    chain.confirm(0, 5)
    assert (chain.first, chain.first_message, chain.entries) == ((2, 0), 4, 1)


def test_what_retention_frees_when_time_has_passed() -> None:
    def frees(last: Position, marks: list[Position], kept_ms: int, kept_bytes: int) -> bool:
        return frees_later(last, marks, 300, Retention(kept_ms, kept_bytes))

    last = Position(1, 9)
    assert not frees(last, [last], -1, -1)  # all is kept
    assert frees(last, [last], 1_500, -1)
    assert frees(last, [], 0, -1)
    assert not frees(last, [last, Position(1, 8)], 1_500, 0)  # somebody has to acknowledge first
    assert frees(last, [last], -1, 299)  # once its ledger is closed
    assert not frees(last, [last], -1, 300)
    assert not frees(Position(1, -1), [], 0, 0)  # an empty ledger is left alone


def test_offsets_are_prefix_sums_of_messages_and_stay_when_ledgers_go() -> None:
    infos = [
        LedgerInfo(1, 2, 10, 1, 2, messages=20),
        LedgerInfo(3, 4, 10, 1, 2),  # written before offsets were kept
        LedgerInfo(5, created_ms=1),
    ]
    chain = Chain(infos, first_offset=100)
    assert [info.first_offset for info in chain.ledgers] == [100, 120, 124]
    assert [info.messages for info in chain.ledgers] == [20, 4, 0]
    chain.confirm(1, 131)
    assert chain.end_offset == 131
    assert chain.messages_between(EARLIEST, LATEST) == 31
    assert chain.messages_between(Position(1, 1), Position(3, 3)) == 4
    assert chain.messages_between(Position(1, 0), Position(1, 1)) == 10, "the ledger's mean"
    holders = [chain.holder(offset) for offset in (0, 100, 119, 120, 123, 130)]
    assert [info and info.ledger_id for info in holders] == [1, 1, 1, 3, 3, 5]
    assert chain.holder(131) is None
    chain.trim(2)
    assert (chain.first_offset, chain.end_offset) == (124, 131)
    chain.close_last(2, 10, 2, messages=7)
    chain.trim(1)
    assert (chain.first_offset, chain.end_offset) == (131, 131)
