from __future__ import annotations

import random
from collections.abc import Sequence

from magnetar.ledger.pending_adds import AddBatch, PendingAdds
from magnetar.model.errors import MagnetarError


def ignore(error: MagnetarError | None, entry_ids: Sequence[int]) -> None:
    raise AssertionError("the registry calls nobody")


def batch(ledger_id: int, ids: Sequence[int], deadline_s: float = 10.0) -> AddBatch:
    return AddBatch(ledger_id, ids, ignore, deadline_s)


def test_answers_are_grouped_by_batch_in_their_order() -> None:
    adds = PendingAdds()
    first, second = batch(1, [0, 1, 2]), batch(1, [3, 4])
    adds.add(first)
    adds.add(second)
    assert adds.answered(1, [2, 0, 3, 1]) == [(first, [2, 0]), (second, [3]), (first, [1])]
    assert adds
    assert adds.answered(1, [4]) == [(second, [4])]
    assert not adds


def test_unknown_and_late_answers_are_left_out() -> None:
    adds = PendingAdds()
    first = batch(1, [0])
    adds.add(first)
    assert adds.answered(2, [0]) == []
    assert adds.answered(1, [5]) == []
    assert adds.answered(1, [0]) == [(first, [0])]
    assert adds.answered(1, [0]) == []


def test_a_resend_is_answered_after_the_first_send() -> None:
    adds = PendingAdds()
    first, again, third = batch(1, [0, 1]), batch(1, [1, 2]), batch(1, [1])
    for each in (first, again, third):
        adds.add(each)
    assert adds.answered(1, [1, 1]) == [(first, [1]), (again, [1])]
    assert adds.answered(1, [1, 0, 2]) == [(third, [1]), (first, [0]), (again, [2])]
    assert not adds


def test_what_expires_is_what_is_unanswered() -> None:
    adds = PendingAdds()
    old, young = batch(1, [0, 1], 10.0), batch(1, [1, 2], 20.0)
    adds.add(old)
    adds.add(young)
    adds.answered(1, [0])
    assert adds.expired(9.9) == []
    assert adds.expired(10.0) == [(old, [1])]
    assert adds.answered(1, [1]) == [(young, [1])], "the resend took the place of the expired"
    assert adds.expired(20.0) == [(young, [2])]
    assert not adds


def test_every_id_of_every_batch_comes_back_once() -> None:
    """Random resends, answers, expiries, and a break at the end."""
    for seed in range(300):
        rng = random.Random(seed)
        adds = PendingAdds()
        owed: dict[int, set[int]] = {}
        sent: list[tuple[int, int]] = []
        alive: list[AddBatch] = []

        def account(groups: list[tuple[AddBatch, list[int]]], owed: dict[int, set[int]]) -> None:
            for each, ids in groups:
                assert owed[id(each)] >= set(ids), "an id came twice"
                owed[id(each)] -= set(ids)

        for step in range(60):
            if rng.random() < 0.5:
                ledger = rng.randrange(2)
                start = rng.randrange(10)
                ids = list(range(start, start + rng.randint(1, 5)))
                each = batch(ledger, ids, float(step + 10))
                alive.append(each)
                owed[id(each)] = set(ids)
                sent.extend((ledger, i) for i in ids)
                adds.add(each)
            elif rng.random() < 0.8 and sent:
                ledger, _ = rng.choice(sent)
                ids = [i for at, i in sent if at == ledger]
                account(adds.answered(ledger, rng.sample(ids, rng.randint(1, len(ids)))), owed)
            else:
                account(adds.expired(float(step)), owed)
        account(adds.drain(), owed)
        assert not any(owed.values()), f"seed {seed}: an id never came back"
        assert not adds
