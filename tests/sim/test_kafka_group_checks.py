"""What is held against groups whose coordinator assigns, and against share groups, is told when it
is broken, and only then."""

from __future__ import annotations

from magnetar_sim.kafka.held_places import HeldPlaces
from magnetar_sim.kafka.share_history import ShareHistory

SESSION_MS, REBALANCE_MS = 2000, 1000
HERE, THERE = ("k1", 9092), ("k2", 9092)
P, Q = ("t", 0), ("t", 1)
BOTH = frozenset({P, Q})
NOTHING = frozenset[tuple[str, int]]()


class Group:
    """Of members ``a`` and ``b``; ``heard`` at the time at which was asked."""

    def __init__(self) -> None:
        self.broken: list[str] = []
        self.held = HeldPlaces("g", SESSION_MS, self.broken.append)

    def heard(
        self,
        member: str,
        at_s: float,
        owned: frozenset[tuple[str, int]],
        assigned: frozenset[tuple[str, int]],
        coordinator: tuple[str, int] = HERE,
    ) -> None:
        self.held.heard(member, REBALANCE_MS, at_s, at_s, owned, assigned, coordinator)


def test_a_partition_that_another_holds_is_not_given() -> None:
    group = Group()
    group.heard("a", 0.0, NOTHING, BOTH)
    group.heard("b", 0.5, NOTHING, frozenset({Q}))
    assert group.broken == [f"g: {Q} is given to b, and a holds it"]


def test_it_is_once_it_was_given_up() -> None:
    group = Group()
    group.heard("a", 0.0, NOTHING, BOTH)
    group.held.says("a", frozenset({P}))
    group.heard("b", 0.5, NOTHING, frozenset({Q}))
    group.held.gone("a")
    group.heard("b", 0.6, frozenset({Q}), BOTH)
    assert group.broken == []


def test_it_is_of_a_member_that_may_be_out() -> None:
    group = Group()
    group.heard("a", 0.0, NOTHING, BOTH)
    group.heard("b", 1.1, NOTHING, frozenset({Q}))
    assert group.broken == []


def test_it_is_of_one_that_does_not_give_up_in_time() -> None:
    group = Group()
    group.heard("a", 0.0, NOTHING, BOTH)
    group.heard("a", 0.5, BOTH, frozenset({P}))
    group.heard("a", 1.4, BOTH, frozenset({P}))
    group.heard("b", 1.5, NOTHING, frozenset({Q}))
    assert group.broken == []


def test_what_two_coordinators_say_is_not_compared() -> None:
    """One of them has been replaced, and does not know it yet."""
    group = Group()
    group.heard("a", 0.0, NOTHING, BOTH)
    group.heard("b", 0.5, NOTHING, BOTH, THERE)
    assert group.broken == []


def test_who_was_heard_in_time_is_not_put_out() -> None:
    group = Group()
    group.heard("a", 0.0, NOTHING, BOTH)
    group.held.put_out("a", 1.5, HERE)
    group.heard("a", 2.0, NOTHING, BOTH)
    group.held.put_out("a", 2.5, HERE)
    assert group.broken == ["g: a is put out, and was heard of in time"]


def test_who_never_began_with_a_partition_may_be_put_out_for_it() -> None:
    group = Group()
    group.heard("a", 0.0, NOTHING, frozenset({P}))
    group.held.says("a", frozenset({P}))
    group.heard("a", 0.1, frozenset({P}), BOTH)  # it has not begun with Q,
    group.heard("a", 0.2, frozenset({P}), frozenset({P}))  # which another has by now
    group.heard("a", 1.1, frozenset({P}), frozenset({P}))
    group.held.put_out("a", 1.3, HERE)
    assert group.broken == []


# -- share groups ---------------------------------------------------------------------------------


def shared(broken: list[str], deliveries_max: int = 3) -> ShareHistory:
    return ShareHistory("s", True, deliveries_max, broken.append, lambda _: None)


def test_what_is_settled_is_not_given_again() -> None:
    broken: list[str] = []
    share = shared(broken)
    share.deliver((P, 7), 1, asked_s=0.0, by="a")
    share.settle((P, 7), "a", now_s=1.0)
    share.deliver((P, 7), 1, asked_s=0.5, by="b")  # had asked before
    assert broken == []
    share.deliver((P, 7), 2, asked_s=1.5, by="b")
    assert broken == [f"s: {(P, 7)} is given to b, and a has settled it"]


def test_a_record_is_settled_once() -> None:
    broken: list[str] = []
    share = shared(broken)
    share.settle((P, 7), "a", 1.0)
    share.settle((P, 7), "b", 2.0)
    assert broken == [f"s: {(P, 7)} is settled by b, and was by a"]


def test_deliveries_are_bounded() -> None:
    broken: list[str] = []
    shared(broken).deliver((P, 7), 4, 0.0, "a")
    assert broken == [f"s: {(P, 7)} is given to a for the 4th time, and 3 are allowed"]


def test_what_is_said_and_not_answered_may_count() -> None:
    share = shared([])
    assert share.undone(P, [7, 8]) == 7
    share.say((P, 7))
    share.settle((P, 8), "a", 1.0)
    assert share.undone(P, [7, 8]) is None
    share.refused((P, 7))
    assert share.undone(P, [7, 8]) == 7
