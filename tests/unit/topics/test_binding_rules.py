"""Who dispatches a subscription: the owner's rules, row by row and in any order."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.log.seam import Binding
from magnetar.model.errors import ServiceNotReadyError
from magnetar.topics.consuming.binding_rules import (
    give,
    holds,
    is_asked,
    is_registered,
    over,
    patience_s,
    why_over,
)

A = Binding(0, "a", 1, "pulsar://a")
A_AGAIN = A._replace(start=5)
B = Binding(0, "b", 2, "pulsar://b")
BOTH = {"a": 1, "b": 2}


def test_what_is_free_goes_to_who_asks_if_it_is_registered() -> None:
    assert give(Binding(), A, BOTH) == A._replace(epoch=1)
    assert give(Binding(7), B, BOTH) == B._replace(epoch=8)
    for starts in ({}, {"a": 5}):
        with pytest.raises(ServiceNotReadyError, match="a is not registered"):
            give(Binding(), A, starts)


def test_what_is_bound_stays_with_its_broker_as_long_as_that_is_there() -> None:
    bound = give(Binding(), A, BOTH)
    with pytest.raises(ServiceNotReadyError, match="served by pulsar://a"):
        give(bound, B, BOTH)
    assert give(bound, B, {"b": 2}).epoch == 2
    assert give(bound, B, {"a": 5, "b": 2}) == B._replace(epoch=2), "a is another start by now"


def test_who_asks_again_gets_another_epoch() -> None:
    bound = give(Binding(), A, BOTH)
    again = give(bound, A, BOTH)
    assert again.epoch == 2
    assert not holds(again, bound), "the late end of the first must not end the second"
    later = give(again, A_AGAIN, {"a": 5})
    assert (later.epoch, later.start) == (3, 5)


def test_only_the_bound_broker_is_heard() -> None:
    bound = give(Binding(), A, BOTH)
    assert holds(bound, bound)
    assert holds(bound, bound._replace(service_url=""))
    for other in (B._replace(epoch=1), A_AGAIN._replace(epoch=1), A, A._replace(epoch=2)):
        assert not holds(bound, other)
    assert not holds(over(bound), bound)
    assert over(bound).epoch == bound.epoch + 1, "what is said of before counts no more"
    assert not holds(Binding(3), Binding(3)), "nobody is nobody's"


def test_what_ends_by_itself() -> None:
    bound = give(Binding(), A, BOTH)
    assert why_over(bound, BOTH, 0.0, 120.0) is None
    assert why_over(bound, BOTH, 119.0, 120.0) is None
    assert why_over(bound, BOTH, 120.0, 120.0) is not None
    assert why_over(bound, {"b": 2}, 0.0, 120.0) == "its broker is gone"
    assert why_over(bound, {"a": 5}, 0.0, 120.0) == "its broker is gone"
    assert patience_s(120.0) < 120.0, "who is bound gives up before it is given up"
    assert (is_asked(9.9, 120.0), is_asked(10.0, 120.0)) == (False, True)


EVENTS = st.lists(
    st.tuples(st.sampled_from(["ask", "over"]), st.sampled_from([A, A_AGAIN, B])),
    max_size=30,
)


@given(EVENTS, st.sampled_from([BOTH, {"a": 5, "b": 2}, {"a": 1}, {"b": 2}]))
def test_epochs_grow_and_one_at_a_time_is_heard(
    events: list[tuple[str, Binding]], starts: dict[str, int]
) -> None:
    current, given_out = Binding(), [Binding()]
    for what, who in events:
        before = current
        if what == "over":
            current = over(current)
        elif what == "ask":
            try:
                current = give(current, who, starts)
            except ServiceNotReadyError:
                assert not is_registered(who, starts) or before.broker_id not in ("", who.broker_id)
                continue
            given_out.append(current)
        assert current.epoch >= before.epoch
        assert sum(holds(current, each) for each in given_out) <= 1
