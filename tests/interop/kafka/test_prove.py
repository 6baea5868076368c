"""One scenario of ``make prove PEERS=1`` with Kafka's own cluster. All of them: that."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from bench.peers.prove import kafka_peer
from magnetar.proving.pages import markdown
from magnetar.proving.running import run
from magnetar.proving.scenarios import BY_NAME

pytestmark = [pytest.mark.peer, pytest.mark.zookeeper]


def test_kafka_loses_what_a_partition_loses(jars: Path) -> None:
    scenario = BY_NAME["leader-dies"]
    lanes = tuple(each for each in scenario.lanes if each.name.startswith("partition"))
    found = run([replace(scenario, lanes=lanes)], 1, print, [kafka_peer(jars)])
    assert found.as_expected, markdown(found)
    lost = {
        (each.spec.side, each.spec.acks): each.observed.lost for each in found.scenarios[0].lanes
    }
    assert lost == {
        ("partition", 1): 200,
        ("Kafka 4.1", 1): 200,
        ("partition", -1): 0,
        ("Kafka 4.1", -1): 0,
    }
