"""Which brokers get replicas: spread over brokers and zones, as far as there are any."""

from __future__ import annotations

from collections import Counter

import pytest

from magnetar.log.partition.replication.assignment import assign, beside, zones_in_turn
from magnetar.model.errors import ReplicationFactorError


def test_leaders_and_followers_are_spread_evenly() -> None:
    assigned = assign(dict.fromkeys(range(1, 6), ""), 20, 3)
    assert all(len(set(replicas)) == 3 for replicas in assigned)
    assert set(Counter(replicas[0] for replicas in assigned).values()) == {4}
    assert set(Counter(each for replicas in assigned for each in replicas).values()) == {12}
    seconds = Counter(replicas[1] for replicas in assigned if replicas[0] == 1)
    assert len(seconds) == 4, "the load of a broker that dies goes to all others"


def test_replicas_are_in_as_many_zones_as_there_are() -> None:
    zones = {1: "a", 2: "a", 3: "b", 4: "b", 5: "c", 6: "c"}
    assert zones_in_turn(zones) == [1, 3, 5, 2, 4, 6]
    first = assign(zones, 1, 3)[0]
    assert {zones[broker] for broker in first} == {"a", "b", "c"}


def test_one_broker_has_the_only_replica() -> None:
    assert assign({7: ""}, 2, 1) == [(7,), (7,)]


@pytest.mark.parametrize("factor", [0, 3])
def test_there_are_no_more_replicas_than_brokers(factor: int) -> None:
    with pytest.raises(ReplicationFactorError, match="2 brokers"):
        assign({1: "", 2: ""}, 1, factor)


def test_who_is_away_has_a_replica_where_too_few_live() -> None:
    """A partition that is first used while a broker is down could not be made, though its topic
    was; producers were told INVALID_REPLICATION_FACTOR, which they do not try again."""
    zones = {1: "a", 2: "b"}
    assert beside(1, zones, [2, 9], 2, 0) == (1, 2), "whoever lives comes first"
    assert beside(1, zones, [9], 3, 0) == (1, 2, 9)
    assert {beside(1, zones, [8, 9], 3, turn)[2] for turn in (0, 1)} == {8, 9}
    with pytest.raises(ReplicationFactorError, match=r"2 brokers are there .* 1 are away"):
        beside(1, zones, [9], 4, 0)
    assert beside(1, {}, [], 1, 0) == (1,), "it is not known to itself yet"


def test_followers_are_of_other_zones_and_take_turns() -> None:
    zones = {1: "a", 2: "a", 3: "b", 4: "c"}
    assert {beside(1, zones, [], 2, turn)[1] for turn in range(3)} == {3, 4}
    assert set(beside(1, zones, [], 3, 1)) == {1, 3, 4}
