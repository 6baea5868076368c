"""Debts of confirmed entries: merged, paid in any order, bounded."""

from __future__ import annotations

import random
from itertools import pairwise

from magnetar.ledger.mending.owed import RANGES_MAX, OwedEntries
from magnetar.model.ids import BookieId

A, B = BookieId("a"), BookieId("b")


def test_owed_and_settled() -> None:
    owed = OwedEntries()
    assert not owed
    owed.add(A, 1, range(10, 20))
    owed.add(A, 1, range(20, 30))
    owed.add(A, 1, range(5, 12))
    owed.add(B, 2, range(3))
    owed.add(B, 3, range(7, 7))
    assert owed.bookies() == [A, B]
    assert owed.ledgers(B) == [2]
    assert owed.ranges(A, 1) == [range(5, 30)]
    owed.settled(A, 1, range(10, 12))
    assert owed.ranges(A, 1) == [range(5, 10), range(12, 30)]
    owed.settled(A, 1, range(40))
    assert owed.bookies() == [B]
    owed.forget(2)
    assert not owed


def test_random_histories_never_forget_a_debt() -> None:
    for seed in range(300):
        rng = random.Random(seed)
        owed, model = OwedEntries(), set[int]()
        for _ in range(rng.randint(1, 80)):
            first = rng.randint(0, 400)
            ids = range(first, first + rng.randint(1, 9))
            if rng.random() < 0.7:
                owed.add(A, 1, ids)
                model |= set(ids)
            else:
                owed.settled(A, 1, ids)
                model -= set(ids)
            ranges = owed.ranges(A, 1)
            assert model <= {i for part in ranges for i in part}
            assert all(x.stop < y.start for x, y in pairwise(ranges))
            assert len(ranges) <= RANGES_MAX


def test_too_many_ledgers_drop_the_oldest_and_say_so() -> None:
    owed = OwedEntries(ledgers_max=3)
    for ledger_id in range(5):
        owed.add(A, ledger_id, range(1))
    assert owed.ledgers(A) == [2, 3, 4]
    assert owed.dropped == 2
