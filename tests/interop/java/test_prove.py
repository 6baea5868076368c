"""One scenario of ``make prove PEERS=1`` with Pulsar's own cluster. All of them: that."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from bench.peers.prove import found_peer
from magnetar.proving.pages import markdown
from magnetar.proving.running import run
from magnetar.proving.scenarios import BY_NAME

pytestmark = [pytest.mark.peer, pytest.mark.zookeeper, pytest.mark.timeout(1800)]


def test_pulsar_loses_what_a_ledger_loses(tmp_path_factory: pytest.TempPathFactory) -> None:
    for tool in ("java", "mvn"):
        if shutil.which(tool) is None:
            pytest.skip(f"{tool} is not installed")
    kept = os.environ.get("MAGNETAR_PEER_DIR")
    peer = found_peer("pulsar", Path(kept) if kept else tmp_path_factory.mktemp("peer"))
    scenario = BY_NAME["leader-dies"]
    lanes = tuple(each for each in scenario.lanes if each.name.startswith("ledger"))
    found = run([replace(scenario, lanes=lanes)], 1, print, [peer])
    assert found.as_expected, markdown(found)
    counted = {
        (each.spec.side, each.spec.acks): (each.observed.acknowledged, each.observed.lost)
        for each in found.scenarios[0].lanes
    }
    assert counted == {
        (side, acks): (300, 0) for side in ("ledger", "Pulsar 4.0") for acks in (1, -1)
    }
