from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence

import pytest

from magnetar.ledger.bookies import AddDone
from magnetar.ledger.connections.pending_adds import Add, Answered, PendingAdds
from magnetar.model.errors import MagnetarError


def never() -> AddDone:
    """Another ``done`` each time."""

    def done(error: MagnetarError | None, entry_ids: Sequence[int]) -> None:
        raise AssertionError("the registry calls nobody")

    return done


def add(ids: Sequence[int], deadline_s: float = 10.0) -> Add:
    return ids, never(), deadline_s


def told(groups: Sequence[Answered], *adds: Add) -> list[tuple[int, int]]:
    """(which of ``adds``, entry id) for each id, in order."""
    which = [each[1] for each in adds]
    return [(which.index(done), entry_id) for done, ids in groups for entry_id in ids]


@pytest.mark.parametrize("ids", [range(3), [0, 2, 4]], ids=["all copies", "striped"])
def test_a_whole_add_is_answered_as_it_was_sent(ids: Sequence[int]) -> None:
    adds = PendingAdds()
    first = add(ids)
    adds.add(1, first)
    assert adds.answered(1, list(ids)) == [(first[1], ids)]
    assert not adds


def test_answers_come_in_other_pieces_than_the_adds() -> None:
    adds = PendingAdds()
    first, second, third = add(range(4)), add(range(4, 6)), add(range(6, 8))
    for each in (first, second, third):
        adds.add(1, each)
    assert adds.answered(1, [0, 1]) == [(first[1], range(2))]
    groups = adds.answered(1, [2, 3, 4, 5, 6])
    assert groups == [(first[1], range(2, 4)), (second[1], range(4, 6)), (third[1], range(6, 7))]
    assert adds.answered(1, [7]) == [(third[1], range(7, 8))]
    assert not adds


def test_answers_out_of_order_find_their_adds() -> None:
    adds = PendingAdds()
    first, second = add([0, 1, 2]), add([3, 4])
    adds.add(1, first)
    adds.add(1, second)
    groups = adds.answered(1, [2, 0, 3, 1])
    assert told(groups, first, second) == [(0, 2), (0, 0), (1, 3), (0, 1)]
    assert adds
    assert told(adds.answered(1, [4]), first, second) == [(1, 4)]
    assert not adds


def test_unknown_and_late_answers_are_left_out() -> None:
    adds = PendingAdds()
    first = add([0])
    adds.add(1, first)
    assert not adds.answered(2, [0])
    assert not adds.answered(1, [5])
    assert told(adds.answered(1, [5, 0, 0]), first) == [(0, 0)]
    assert not adds.answered(1, [0])
    assert not adds


def test_a_resend_is_answered_after_the_first_send() -> None:
    adds = PendingAdds()
    sent = add([0, 1]), add([1, 2]), add([1])
    for each in sent:
        adds.add(1, each)
    assert told(adds.answered(1, [1, 1]), *sent) == [(0, 1), (1, 1)]
    assert told(adds.answered(1, [1, 0, 2]), *sent) == [(2, 1), (0, 0), (1, 2)]
    assert not adds


def test_what_expires_is_what_is_unanswered() -> None:
    adds = PendingAdds()
    old, young = add([0, 1], 10.0), add([1, 2], 20.0)
    adds.add(1, old)
    adds.add(1, young)
    adds.answered(1, [0])
    assert adds.expired(9.9) == []
    assert adds.expired(10.0) == [((old[1], [1]), 10.0)]
    assert told(adds.answered(1, [1]), old, young) == [(1, 1)], "it took the expired one's place"
    assert adds.expired(20.0) == [((young[1], [2]), 20.0)]
    assert not adds


def test_every_id_of_every_add_comes_back_once_and_to_the_oldest() -> None:
    """Random resends, answers in and out of order, expiries, and a break at the end; against a
    list of what was sent."""
    for seed in range(300):
        rng = random.Random(seed)
        adds = PendingAdds()
        awaited: list[tuple[int, int, AddDone]] = []  # ledger, entry id, whose; oldest first
        for step in range(60):
            ledger = rng.randrange(2)
            if rng.random() < 0.5:
                start = rng.randrange(10)
                ids = range(start, start + rng.randint(1, 5))
                each = add(ids if rng.random() < 0.5 else list(ids), float(step + 10))
                awaited += [(ledger, entry_id, each[1]) for entry_id in ids]
                adds.add(ledger, each)
            elif rng.random() < 0.8:
                waiting = [entry_id for of, entry_id, _ in awaited if of == ledger]
                ids_back = waiting[: rng.randint(0, 8)]
                if rng.random() < 0.3:
                    rng.shuffle(ids_back)
                expected = [_take(awaited, ledger, entry_id) for entry_id in ids_back]
                groups = adds.answered(ledger, ids_back)
                found = [(done, entry_id) for done, ids in groups for entry_id in ids]
                assert found == expected, f"seed {seed}"
            else:
                for (done, ids), _ in adds.expired(float(step)):
                    for entry_id in ids:
                        awaited.remove(next(o for o in awaited if o[1:] == (entry_id, done)))
        left = Counter((done, entry_id) for done, ids in adds.drain() for entry_id in ids)
        assert left == Counter((done, entry_id) for _, entry_id, done in awaited), f"seed {seed}"
        assert not adds


def _take(
    awaited: list[tuple[int, int, AddDone]], ledger: int, entry_id: int
) -> tuple[AddDone, int]:
    """The oldest add of the entry is answered."""
    oldest = next(each for each in awaited if each[:2] == (ledger, entry_id))
    awaited.remove(oldest)
    return oldest[2], entry_id
