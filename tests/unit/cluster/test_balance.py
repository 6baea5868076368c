"""Bundles that have grown are cut, brokers with too much to do give some away, and nothing goes to
and fro."""

from __future__ import annotations

import random
from collections.abc import Mapping

import pytest

from magnetar.cluster.brokers.reports import BrokerReport
from magnetar.cluster.bundles import Bundle, Layout, even_boundaries
from magnetar.cluster.sharing.balance import (
    BUNDLES_OF_A_NAMESPACE_MAX,
    LOOKS,
    REST_LOOKS,
    Balance,
    BundleLimits,
    BundleLoad,
    Cut,
    Give,
)
from magnetar.cluster.sharing.placement import BundlePlacement

NAMESPACE = "public/default"
LIMITS = BundleLimits(100, 1000.0)
QUIET = BundleLoad(1, 0.0)
BUNDLES = Layout(NAMESPACE, even_boundaries(16)).bundles()
FEW = {NAMESPACE: 4}


def report(
    name: str, bundles: int, messages_per_s: float = 0.0, draining: bool = False
) -> BrokerReport:
    return BrokerReport(
        name, 1, "", "", draining=draining, bundles=bundles, messages_in_per_s=messages_per_s
    )


def reports(**loads: int) -> Mapping[str, BrokerReport]:
    return {name: report(name, bundles) for name, bundles in loads.items()}


def looks(balance: Balance, bundles: Mapping[Bundle, BundleLoad], among: Mapping[str, BrokerReport],
          count: int) -> list[object]:  # fmt: skip
    return [balance.look(bundles, among, FEW) for _ in range(count)]


@pytest.mark.parametrize("large", [BundleLoad(101, 0.0), BundleLoad(2, 1001.0)])
def test_what_has_grown_is_cut_when_it_has_stayed_so(large: BundleLoad) -> None:
    balance = Balance("a", LIMITS)
    alone = reports(a=1)
    assert looks(balance, {BUNDLES[0]: large}, alone, LOOKS - 1) == [None] * (LOOKS - 1)
    assert balance.look({BUNDLES[0]: QUIET}, alone, FEW) is None  # it was a burst
    assert looks(balance, {BUNDLES[0]: large}, alone, LOOKS)[-1] == Cut(BUNDLES[0])
    assert balance.look({BUNDLES[0]: large}, alone, FEW) is None  # it is being cut


def test_what_cannot_be_cut_or_need_not_be_stays() -> None:
    balance = Balance("a", LIMITS)
    alone = reports(a=1)
    for kept in (BundleLoad(100, 1000.0), BundleLoad(1, 1e9)):
        assert looks(balance, {BUNDLES[0]: kept}, alone, 3 * LOOKS) == [None] * 3 * LOOKS
    many = {NAMESPACE: BUNDLES_OF_A_NAMESPACE_MAX}
    large = {BUNDLES[0]: BundleLoad(1000, 0.0)}
    assert [balance.look(large, alone, many) for _ in range(3 * LOOKS)] == [None] * 3 * LOOKS


def test_a_broker_with_too_much_to_do_gives_one_away_and_waits_for_what_comes_of_it() -> None:
    balance = Balance("a", LIMITS)
    mine = dict.fromkeys(BUNDLES[:4], QUIET)
    found = looks(balance, mine, reports(a=4, b=0), REST_LOOKS + 1)
    assert found == [None] * REST_LOOKS + [Give(BUNDLES[3])]
    del mine[BUNDLES[3]]
    assert looks(balance, mine, reports(a=3, b=1), LOOKS)[-1] == Give(BUNDLES[2])
    del mine[BUNDLES[2]]
    assert looks(balance, mine, reports(a=2, b=2), 10) == [None] * 10


def test_what_helps_nobody_is_not_done() -> None:
    for among in (reports(a=3, b=2), reports(a=1, b=0), reports(a=5)):
        balance = Balance("a", LIMITS)
        mine = dict.fromkeys(BUNDLES[: among["a"].bundles], QUIET)
        assert looks(balance, mine, among, 20) == [None] * 20


def test_the_busy_one_goes_if_that_helps() -> None:
    balance = Balance("a", LIMITS)
    mine = {
        BUNDLES[0]: BundleLoad(1, 20_000.0),
        BUNDLES[1]: BundleLoad(1, 900.0),
        BUNDLES[2]: QUIET,
    }
    among = {"a": report("a", 3, 20_900.0), "b": report("b", 1)}
    # Then the other had as much as this one has now: another one goes.
    assert looks(balance, mine, among, REST_LOOKS + 1)[-1] == Give(BUNDLES[2])


def test_nothing_is_given_to_one_that_takes_nothing_nor_by_one_that_gives_all() -> None:
    mine = dict.fromkeys(BUNDLES[:4], QUIET)
    for a, b in ((False, True), (True, False)):
        among = {"a": report("a", 4, draining=a), "b": report("b", 0, draining=b)}
        assert looks(Balance("a", LIMITS), mine, among, 20) == [None] * 20


@pytest.mark.parametrize("seed", range(20))
def test_brokers_that_decide_for_themselves_come_to_rest(seed: int) -> None:
    """Each gives by reports that are a look old; whoever is chosen takes what is given."""
    rng = random.Random(seed)
    names = ["a", "b", "c", "d"][: rng.randint(2, 4)]
    loads = {each: BundleLoad(1, rng.choice((0.0, 0.0, 3000.0, 9000.0))) for each in BUNDLES}
    owners = {each: rng.choice(names[: rng.randint(1, len(names))]) for each in BUNDLES}
    balances = {name: Balance(name, BundleLimits(100, 1e9)) for name in names}
    placement = BundlePlacement()

    def reported() -> dict[str, BrokerReport]:
        return {
            name: report(
                name,
                sum(owner == name for owner in owners.values()),
                sum(loads[each].messages_per_s for each in BUNDLES if owners[each] == name),
            )
            for name in names
        }

    moves = []
    seen = reported()
    for turn in range(300):
        now = reported()
        for name in names:
            mine = {each: loads[each] for each in BUNDLES if owners[each] == name}
            decided = balances[name].look(mine, seen, FEW)
            if isinstance(decided, Give):
                chosen = placement.choose(decided.bundle, now)
                assert chosen is not None
                owners[decided.bundle] = chosen
                moves.append(turn)
        seen = now
    assert len(moves) <= 2 * len(BUNDLES)
    assert not [turn for turn in moves if turn > 200], "it comes to rest"
