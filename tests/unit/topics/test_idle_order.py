"""Which unused things go first."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.topics.idle_order import IdleOrder, Look


class Keys:
    """What a look finds; counts the looks."""

    def __init__(self) -> None:
        self.found: dict[str, Look] = {}
        self.looks = 0
        self.order: IdleOrder[str] = IdleOrder(10, self.look)

    def look(self, key: str) -> Look:
        self.looks += 1
        return self.found.get(key, Look.UNUSED)


def test_idle_are_those_unused_for_long_enough_oldest_first() -> None:
    keys = Keys()
    for now_s, key in enumerate("abc"):
        keys.order.touch(key, now_s)
    assert keys.order.due_s() == 10
    assert keys.order.take_idle(9.9, 5, 5) == []
    assert keys.order.take_idle(11, 5, 5) == ["a", "b"]
    assert keys.order.due_s() == 12
    assert keys.order.take_idle(50, 5, 5) == ["c"]
    assert keys.order.due_s() is None


def test_a_use_puts_it_behind_all_others() -> None:
    keys = Keys()
    for key in "ab":
        keys.order.touch(key, 0)
    keys.order.touch("a", 1)
    assert keys.order.take_oldest() == "b"
    assert keys.order.take_oldest() == "a"
    assert keys.order.take_oldest() is None


def test_what_is_in_use_leaves_the_order_until_it_is_let_go() -> None:
    keys = Keys()
    keys.found["a"] = Look.IN_USE
    keys.order.touch("a", 0)
    keys.order.touch("b", 0)
    assert keys.order.take_oldest() == "b"
    assert "a" not in keys.order
    assert keys.order.take_oldest() is None
    del keys.found["a"]
    keys.order.touch("a", 5)
    assert keys.order.take_oldest() == "a"


def test_what_is_needed_still_goes_to_make_place_only() -> None:
    keys = Keys()
    keys.found["a"] = Look.NEEDED
    keys.order.touch("a", 0)
    assert keys.order.take_idle(10, 5, 5) == []
    assert keys.order.due_s() == 20
    assert keys.order.take_oldest() == "a"


def test_what_is_forgotten_is_not_looked_at() -> None:
    keys = Keys()
    keys.order.touch("a", 0)
    keys.order.forget("a")
    assert keys.order.take_oldest() is None
    assert keys.looks == 0


def test_numbers_are_bounded() -> None:
    keys = Keys()
    for number in range(100):
        keys.order.touch(f"t{number}", 0)
    assert keys.order.take_idle(10, 3, 50) == ["t0", "t1", "t2"]
    keys.found = {f"t{number}": Look.IN_USE for number in range(100)}
    keys.looks = 0
    assert keys.order.take_idle(10, 3, 50) == []
    assert keys.looks == 50


def test_time_does_not_go_back() -> None:
    keys = Keys()
    keys.order.touch("a", 5)
    with pytest.raises(AssertionError, match="time went back"):
        keys.order.touch("b", 4)


STEPS = st.lists(
    st.tuples(st.sampled_from(["touch", "use", "place", "sweep"]), st.sampled_from("abcdef")),
    max_size=200,
)


@given(STEPS)
def test_looks_are_no_more_than_touches_and_nothing_unused_is_lost(
    steps: list[tuple[str, str]],
) -> None:
    """``held`` is the model: keys that are there, and whether they are in use."""
    keys, held = Keys(), dict[str, bool]()
    touches = 0
    for now_s, (step, key) in enumerate(steps):
        if step == "touch":
            held[key] = False
            keys.found.pop(key, None)
            keys.order.touch(key, now_s)
            touches += 1
        elif step == "use" and key in held:
            held[key] = True
            keys.found[key] = Look.IN_USE
        elif step == "place":
            gone = keys.order.take_oldest()
            assert (gone is None) == all(held.values())
            if gone is not None:
                assert not held.pop(gone)
        elif step == "sweep":
            for gone in keys.order.take_idle(now_s, 2, 10):
                assert not held.pop(gone)
    assert keys.looks <= touches
    assert {key for key, used in held.items() if not used} <= {k for k in held if k in keys.order}
