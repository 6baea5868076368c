"""Where subscriptions are served: the choice, and what is remembered of those who were sent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from magnetar.cluster.brokers.reports import BrokerReport
from magnetar.cluster.policies.read_rules import NO_RULES, Asked, ReadRules
from magnetar.cluster.steering import (
    AVOID_S,
    AVOID_S_MAX,
    KEPT_MAX,
    RETURN_S,
    RETURNS_MAX,
    SENT_S,
    SETTLE_S,
    Move,
    Placing,
    Seeker,
    Sent,
    Sought,
    Steering,
    choose,
)

TOPIC = "persistent://public/default/t"
SOUGHT = Sought(TOPIC, "s")
ASKED = Asked("s", "Shared", {})
ANY = ReadRules.decode({"rules": [{"to": "any"}]})
EU = ReadRules.decode({"rules": [{"to": "zone:eu"}]})


def broker(name: str, zone: str = "", **about: object) -> BrokerReport:
    made = BrokerReport(name, 1, f"pulsar://{name}", f"http://{name}", zone=zone, read_only=True)
    return replace(made, **about)  # type: ignore[arg-type]


def brokers(*reports: BrokerReport) -> Mapping[str, BrokerReport]:
    owner = broker("owner", read_only=False)
    return {each.broker_id: each for each in (owner, *reports)}


R1, R2, R3 = (broker(name) for name in ("r1", "r2", "r3"))


class Owner:
    """Asks in the name of one consumer, which comes back from wherever it is sent."""

    def __init__(self, rules: ReadRules = ANY) -> None:
        self.steering = Steering()
        self.rules = rules
        self.reports = brokers(R1, R2)
        self.now_s = 100.0
        self.sent: Sent | None = None

    def place(self, bound: str | None = None, follows: bool = True) -> Placing:
        seeker = Seeker(SOUGHT, ASKED, follows, self.sent)
        place = self.steering.place(seeker, self.rules, self.reports, bound, self.now_s)
        self.sent = place.sent
        return place

    def sent_to(self, bound: str | None = None) -> str | None:
        place = self.place(bound)
        return None if place.sent is None else place.sent.broker

    def move(self, here: str | None = None) -> Move | None:
        return self.steering.move(SOUGHT, ASKED, self.rules, self.reports, here, self.now_s)


# -- the choice -------------------------------------------------------------------------------


def test_without_a_rule_or_a_broker_the_owner_serves() -> None:
    assert choose(SOUGHT, ASKED, NO_RULES, brokers(R1), None) is None
    assert choose(SOUGHT, ASKED, ANY, brokers(), None) is None
    assert choose(SOUGHT, ASKED, EU, brokers(R1), None) is None
    assert choose(SOUGHT, ASKED, ANY, brokers(replace(R1, draining=True)), None) is None
    assert choose(SOUGHT, ASKED, ANY, brokers(R1), None, ["r1"]) is None


def test_what_is_bound_stays_while_it_may() -> None:
    for bound in ("r1", "r2", "r3"):
        assert choose(SOUGHT, ASKED, ANY, brokers(R1, R2, R3), bound) == bound
    assert choose(SOUGHT, ASKED, ANY, brokers(R2), "r1") == "r2"
    eu = broker("e", "eu")
    assert choose(SOUGHT, ASKED, EU, brokers(R1, eu), "r1") == "e"
    assert choose(SOUGHT, ASKED, ANY, brokers(replace(R1, draining=True), R2), "r1") == "r2"


names = st.lists(st.text(min_size=1, max_size=8), min_size=1, max_size=6, unique=True)


@given(names, st.text(max_size=8), st.data())
def test_a_broker_that_goes_takes_along_only_its_own(
    ids: list[str], subscription: str, data: st.DataObject
) -> None:
    reports = {each: broker(each) for each in ids}
    sought = Sought(TOPIC, subscription)
    chosen = choose(sought, ASKED, ANY, reports, None)
    assert chosen in ids
    gone = data.draw(st.sampled_from(ids))
    rest = {each: report for each, report in reports.items() if each != gone}
    after = choose(sought, ASKED, ANY, rest, None)
    assert after == chosen if gone != chosen else after in {*rest, None}


def test_subscriptions_are_spread() -> None:
    reports = brokers(R1, R2, R3)
    found = [choose(Sought(TOPIC, str(n)), ASKED, ANY, reports, None) for n in range(300)]
    assert all(70 < found.count(each) < 130 for each in ("r1", "r2", "r3"))


def test_a_broker_with_much_more_to_do_gets_none() -> None:
    reports = brokers(replace(R1, topics=500), R2, replace(R3, topics=10))
    found = {choose(Sought(TOPIC, str(n)), ASKED, ANY, reports, None) for n in range(50)}
    assert found == {"r2", "r3"}
    only = brokers(replace(R1, messages_out_per_s=1e6))
    assert choose(SOUGHT, ASKED, ANY, only, None) == "r1"


# -- who comes --------------------------------------------------------------------------------


def test_others_go_where_the_first_went() -> None:
    owner = Owner()
    first = owner.sent_to()
    assert first is not None
    owner.sent = None  # another consumer
    busy = replace(owner.reports[first], topics=10_000)
    owner.reports = brokers(*(busy if r.broker_id == first else r for r in (R1, R2)))
    assert owner.sent_to() == first
    owner.sent, owner.now_s = None, owner.now_s + SENT_S + 1
    assert owner.sent_to() not in (first, None)


def test_who_comes_back_at_once_is_sent_elsewhere_and_then_served_by_the_owner() -> None:
    owner = Owner()
    went = [owner.sent_to() for _ in range(2 * RETURNS_MAX + 1)]
    first, second = went[0], went[RETURNS_MAX]
    assert {first, second} == {"r1", "r2"}
    assert went == [first] * RETURNS_MAX + [second] * RETURNS_MAX + [None]
    assert owner.sent_to() is None
    owner.now_s += AVOID_S + 1
    assert owner.sent_to() is not None


def test_who_was_served_for_a_while_has_not_come_back_at_once() -> None:
    owner = Owner()
    first = owner.sent_to()
    for _ in range(10):
        owner.now_s += RETURN_S + 1
        assert owner.sent_to("r1" if first == "r1" else "r2") == first


def test_a_broker_that_does_not_work_out_is_avoided_longer_each_time() -> None:
    owner = Owner()
    owner.reports = brokers(R1)
    pauses = []
    for _ in range(12):
        while owner.sent_to() is not None:
            pass
        since_s = owner.now_s
        while owner.sent_to() is None:
            owner.now_s += AVOID_S / 2
        pauses.append(owner.now_s - since_s)
    assert pauses[:3] == [AVOID_S, 2 * AVOID_S, 4 * AVOID_S]
    assert max(pauses) <= AVOID_S_MAX + AVOID_S
    owner.sent = None
    assert owner.sent_to("r1") == "r1", "somebody has arrived there"
    owner.now_s += RETURN_S + 1
    while owner.sent_to() is not None:
        pass
    owner.now_s += AVOID_S + 1
    assert owner.sent_to() == "r1"


def test_many_who_come_back_at_once_count_once() -> None:
    steering, reports = Steering(), brokers(R1)
    for _ in range(50):
        seeker = Seeker(SOUGHT, ASKED, True, Sent(SOUGHT, "r1", 100.0, RETURNS_MAX))
        assert steering.place(seeker, ANY, reports, None, 101.0) == Placing(None)
    later_s = 101.0 + AVOID_S
    place = steering.place(Seeker(SOUGHT, ASKED, True), ANY, reports, None, later_s)
    assert place.sent is not None


def test_who_is_not_taken_where_others_are_served_has_to_wait() -> None:
    """A second consumer of an exclusive subscription must not end the first one's."""
    owner = Owner()
    for _ in range(RETURNS_MAX):
        assert owner.sent_to("r1") == "r1"
    for _ in range(3):
        assert owner.place("r1").waits, "not sent to and fro meanwhile"
    owner.now_s += RETURN_S + 1
    assert owner.sent_to("r1") == "r1"
    owner.reports = brokers(R2)  # it is gone, and its binding not yet
    assert owner.place("r1") == Placing(Sent(SOUGHT, "r2", owner.now_s), "r1")


def test_who_would_not_follow_is_served_by_the_owner() -> None:
    owner = Owner()
    assert owner.place(follows=False) == Placing(None)
    assert owner.place("r1", follows=False) == Placing(None, "r1")


def test_a_binding_that_the_rules_do_not_allow_ends() -> None:
    owner = Owner(EU)
    assert owner.place("r1") == Placing(None, "r1")
    owner.reports = brokers(R1, broker("e", "eu"))
    place = owner.place("r1")
    assert (place.sent is not None and place.sent.broker, place.instead_of) == ("e", "r1")


# -- who is here ------------------------------------------------------------------------------


def test_nobody_is_moved_before_it_has_settled() -> None:
    owner = Owner()
    assert owner.move() is None
    owner.now_s += SETTLE_S / 2
    owner.reports = brokers()
    assert owner.move() is None
    owner.reports = brokers(R1)
    owner.now_s += SETTLE_S
    assert owner.move() is None, "it was gone meanwhile: it counts from now on"
    owner.now_s += SETTLE_S
    assert owner.move() == Move("r1")
    assert owner.move() is None


def test_loads_that_change_do_not_begin_it_anew() -> None:
    owner = Owner()
    assert owner.move() is None
    for topics in (10_000, 0, 10_000):
        owner.reports = brokers(replace(R1, topics=topics), replace(R2, topics=10_000 - topics))
        owner.now_s += SETTLE_S / 2
        move = owner.move()
        if move is not None:
            break
    assert move is not None
    assert move.broker in ("r1", "r2")


def test_a_read_only_broker_sends_away_whom_it_may_not_serve() -> None:
    owner = Owner()
    assert owner.move("r1") is None
    owner.now_s += 100 * SETTLE_S
    assert owner.move("r1") is None, "however much better another is"
    owner.rules = NO_RULES
    assert owner.move("r1") is None
    owner.now_s += SETTLE_S
    assert owner.move("r1") == Move(None)
    owner.rules, owner.reports = ANY, brokers(replace(R1, draining=True), R2)
    assert owner.move("r1") is None
    owner.now_s += SETTLE_S
    assert owner.move("r1") == Move("r2")


def test_what_is_remembered_is_bounded() -> None:
    steering = Steering()
    for number in range(KEPT_MAX + 50):
        sought = Sought(TOPIC, str(number))
        seeker = Seeker(sought, ASKED, True, Sent(sought, "r2", 0.0, RETURNS_MAX))
        steering.place(seeker, ANY, brokers(R1), None, 1.0)
        steering.move(sought, ASKED, ANY, brokers(R1), None, 1.0)
    kept = (steering._sent, steering._avoided, steering._candidates)
    assert [len(each) for each in kept] == [KEPT_MAX] * 3


class Consumers(RuleBasedStateMachine):
    """Consumers of one subscription, brokers that come, go, and serve or refuse them.

    Invariants: a consumer is sent only to a broker that the rules allow and that lives; it is not
    sent for ever between two turns of the clock; all that are placed at one time, and none came
    back, have one place.
    """

    @initialize()
    def begin(self) -> None:
        self.steering = Steering()
        self.now_s = 0.0
        self.rules = ANY
        self.reports = dict(brokers(R1, R2))
        self.bound: str | None = None
        self.sent: dict[int, Sent | None] = {}
        self.trips = 0

    @rule(report=st.sampled_from([R1, R2, R3, broker("e", "eu")]))
    def comes_or_goes(self, report: BrokerReport) -> None:
        if self.reports.pop(report.broker_id, None) is None:
            self.reports[report.broker_id] = report
        self.trips = 0

    @rule(rules=st.sampled_from([ANY, EU, NO_RULES]))
    def says(self, rules: ReadRules) -> None:
        self.rules = rules
        self.trips = 0

    @rule(seconds=st.sampled_from([0.1, RETURN_S + 1, AVOID_S + 1]))
    def waits(self, seconds: float) -> None:
        self.now_s += seconds
        self.trips = 0

    @rule(consumer=st.integers(0, 2), serves=st.booleans(), follows=st.booleans())
    def subscribes(self, consumer: int, serves: bool, follows: bool) -> None:
        seeker = Seeker(SOUGHT, ASKED, follows, self.sent.get(consumer))
        place = self.steering.place(seeker, self.rules, self.reports, self.bound, self.now_s)
        self.sent[consumer] = place.sent
        if place.instead_of is not None:
            assert place.instead_of == self.bound
            self.bound = None
        if place.sent is None or place.waits:
            assert place.sent is seeker.sent or not place.waits
            return
        assert follows
        self.trips += 1
        report = self.reports[place.sent.broker]
        assert report.read_only
        assert not report.draining
        target = self.rules.target(ASKED)
        assert not target.owner
        assert target.takes(report)
        assert self.bound in (None, place.sent.broker)
        if serves:
            self.bound, self.sent[consumer] = place.sent.broker, None
            self.trips = 0

    @invariant()
    def nobody_runs_in_a_circle(self) -> None:
        consumers, brokers_there = 3, 4
        assert getattr(self, "trips", 0) <= consumers * brokers_there * (RETURNS_MAX + 1)


TestConsumers = Consumers.TestCase
TestConsumers.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)


@pytest.mark.parametrize("returns", [0, RETURNS_MAX])
def test_where_another_subscription_of_the_connection_went_is_of_no_account(returns: int) -> None:
    other = Sent(Sought(TOPIC, "other"), "r1", 100.0, returns)
    owner = Owner()
    owner.reports, owner.sent = brokers(R1), other
    assert owner.sent_to() == "r1"
