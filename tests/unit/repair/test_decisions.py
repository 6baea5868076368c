"""Who is lost, when a ledger's turn comes, who takes a place, how fast."""

from __future__ import annotations

import random
from dataclasses import replace

from magnetar.ledger.placing.placement import ANYWHERE, BookieTraits, Placement
from magnetar.model.ids import BookieId, LedgerId
from magnetar.model.ledger import DigestType, Fragment, LedgerMetadata
from magnetar.repair.copies import Cause, Need
from magnetar.repair.lost_bookies import AbsentBookies
from magnetar.repair.replacing import choose, replaced
from magnetar.repair.throttle import Throttle
from magnetar.repair.turns import BACKOFF_S, BACKOFF_S_MAX, Turns

A, B, C, D, E = (BookieId(name) for name in "abcde")
FRAGMENT = Fragment(0, (A, B, C))


# -- lost bookies -----------------------------------------------------------------------------


def test_a_bookie_is_lost_after_the_delay_and_not_if_it_comes_back() -> None:
    absent = AbsentBookies()
    absent.look([A, B], 0.0)
    absent.look([A], 1.0)
    assert absent.lost(10.0, 10.9) == []
    assert absent.next_s(10.0, 10.9) == 11.0
    absent.look([A, B], 10.9)
    absent.look([A], 20.0)
    assert absent.lost(10.0, 29.9) == []
    assert absent.lost(10.0, 30.0) == [B]
    assert absent.next_s(10.0, 30.0) is None


def test_a_bookie_that_is_only_named_counts_from_the_look_that_missed_it() -> None:
    absent = AbsentBookies()
    absent.named([C])
    absent.look([A], 5.0)
    assert absent.lost(1.0, 5.5) == []
    assert absent.lost(1.0, 6.0) == [C]
    assert not absent.seen(C)
    assert absent.seen(A)
    absent.forget([C])
    assert absent.lost(1.0, 60.0) == []


def test_without_a_delay_a_bookie_is_lost_at_once() -> None:
    absent = AbsentBookies()
    absent.look([A], 0.0)
    absent.look([], 3.0)
    assert absent.lost(0.0, 3.0) == [A]


# -- turns ------------------------------------------------------------------------------------


def test_an_open_ledger_is_due_after_its_grace_unless_its_bookies_change() -> None:
    turns = Turns(grace_s=10.0)
    assert not turns.due(7, FRAGMENT, 0.0)
    assert not turns.ready(7, 9.9)
    turns.failed(7, 0.0)  # what could not be done now does not shorten the grace
    assert turns.next_s(0.0) == 10.0
    other = Fragment(5, (A, B, D))
    assert not turns.due(7, other, 10.0), "its writer lives"
    assert turns.due(7, other, 20.0)
    turns.over(7)
    assert not turns.due(7, other, 21.0)


def test_a_ledger_that_cannot_be_repaired_waits_longer_each_time() -> None:
    turns, now_s, waits = Turns(grace_s=0.0), 0.0, []
    for _ in range(10):
        turns.failed(7, now_s)
        next_s = turns.next_s(now_s)
        assert next_s is not None
        waits.append(next_s - now_s)
        assert not turns.ready(7, next_s - 0.01)
        now_s = next_s
        assert turns.ready(7, now_s)
    assert waits[:3] == [BACKOFF_S, 2 * BACKOFF_S, 4 * BACKOFF_S]
    assert waits[-1] == BACKOFF_S_MAX
    turns.over(7)
    turns.failed(7, now_s)
    assert turns.next_s(now_s) == now_s + BACKOFF_S


def test_turns_are_bounded() -> None:
    turns = Turns(grace_s=1.0, ledgers_max=3)
    for ledger_id in range(10):
        turns.failed(ledger_id, 0.0)
        turns.due(ledger_id, FRAGMENT, 0.0)
    assert [ledger_id for ledger_id in range(10) if not turns.ready(ledger_id, 0.0)] == [7, 8, 9]


# -- replacing --------------------------------------------------------------------------------


def need(slot: int, cause: Cause) -> Need:
    return Need(slot, FRAGMENT.bookies[slot], cause, ())


def chosen(*needs: Need, excluded: dict[BookieId, str] | None = None) -> dict[int, BookieId]:
    available = [A, B, C, D, E]
    return choose(FRAGMENT, needs, available, excluded or {}, random.Random(1), ANYWHERE, 3)


def test_only_those_that_are_gone_or_damaged_are_replaced() -> None:
    assert chosen(need(0, Cause.LACKING)) == {}
    for cause in (Cause.LOST, Cause.LEAVING, Cause.DAMAGED):
        found = chosen(need(1, cause))
        assert found.keys() == {1}
        assert found[1] in (D, E)


def test_an_excluded_bookie_takes_no_place() -> None:
    assert chosen(need(1, Cause.LOST), excluded={D: "leaving"}) == {1: E}
    assert chosen(need(1, Cause.LOST), excluded={D: "leaving", E: "refused"}) == {}
    assert len(chosen(need(0, Cause.LOST), need(1, Cause.LOST), excluded={D: "full"})) == 1


def test_racks_count() -> None:
    traits = {A: "r1", B: "r2", C: "r3", D: "r1", E: "r3"}
    placement = Placement(
        domain="rack", traits={b: BookieTraits(rack) for b, rack in traits.items()}
    )
    for seed in range(10):
        found = choose(
            FRAGMENT, [need(2, Cause.LOST)], [A, B, D, E], {}, random.Random(seed), placement, 3
        )
        assert found == {2: E}


def test_a_fragment_is_changed_from_what_it_was_only() -> None:
    metadata = LedgerMetadata(
        LedgerId(1), 3, 3, 2, DigestType.CRC32C, b"", (FRAGMENT, Fragment(9, (A, B, D)))
    )
    now = replaced(metadata, FRAGMENT, {0: E})
    assert now is not None
    assert now.fragments == (Fragment(0, (E, B, C)), Fragment(9, (A, B, D)))
    assert replaced(now, FRAGMENT, {0: D}) is None
    assert now == replace(metadata, fragments=now.fragments)


# -- throttle ---------------------------------------------------------------------------------


def test_the_throttle_holds_the_pace() -> None:
    throttle, now_s, byte_count = Throttle(1000), 0.0, 0
    while now_s < 20.0:
        now_s += throttle.take(700, now_s)
        byte_count += 700
    assert 0.9 < byte_count / now_s / 1000 < 1.1


def test_a_long_pause_is_not_made_up_for() -> None:
    throttle = Throttle(1000)
    throttle.take(1, 0.0)
    assert throttle.take(1000, 100.0) == 0.5


def test_no_bound() -> None:
    assert Throttle(0).take(1 << 40, 0.0) == 0.0
