"""Which brokers get replicas: spread over brokers and zones, as far as there are any."""

from __future__ import annotations

from collections import Counter

import pytest

from magnetar.log.partition.replication.assignment import assign, zones_in_turn
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
