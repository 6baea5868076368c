"""Confirmed entries that bookies are missing: merged, copied in any order, bounded."""

from __future__ import annotations

import random
from itertools import pairwise

from magnetar.ledger.mending.missing_entries import RANGES_MAX, MissingEntries
from magnetar.model.ids import BookieId

A, B = BookieId("a"), BookieId("b")


def test_owed_and_settled() -> None:
    missing = MissingEntries()
    assert not missing
    missing.add(A, 1, range(10, 20))
    missing.add(A, 1, range(20, 30))
    missing.add(A, 1, range(5, 12))
    missing.add(B, 2, range(3))
    missing.add(B, 3, range(7, 7))
    assert missing.bookies() == [A, B]
    assert missing.ledgers(B) == [2]
    assert missing.ranges(A, 1) == [range(5, 30)]
    missing.copied(A, 1, range(10, 12))
    assert missing.ranges(A, 1) == [range(5, 10), range(12, 30)]
    missing.copied(A, 1, range(40))
    assert missing.bookies() == [B]
    missing.forget(2)
    assert not missing


def test_random_histories_never_forget_a_debt() -> None:
    for seed in range(300):
        rng = random.Random(seed)
        missing, model = MissingEntries(), set[int]()
        for _ in range(rng.randint(1, 80)):
            first = rng.randint(0, 400)
            ids = range(first, first + rng.randint(1, 9))
            if rng.random() < 0.7:
                missing.add(A, 1, ids)
                model |= set(ids)
            else:
                missing.copied(A, 1, ids)
                model -= set(ids)
            ranges = missing.ranges(A, 1)
            assert model <= {i for part in ranges for i in part}
            assert all(x.stop < y.start for x, y in pairwise(ranges))
            assert len(ranges) <= RANGES_MAX


def test_too_many_ledgers_drop_the_oldest_and_say_so() -> None:
    missing = MissingEntries(ledgers_max=3)
    for ledger_id in range(5):
        missing.add(A, ledger_id, range(1))
    assert missing.ledgers(A) == [2, 3, 4]
    assert missing.dropped == 2
