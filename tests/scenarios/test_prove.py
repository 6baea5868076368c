"""One scenario of ``magnetar prove``, with processes, from end to end: ``make scenarios``. All of
them: ``make prove``."""

from __future__ import annotations

import pytest

from magnetar.proving.pages import markdown
from magnetar.proving.running import run
from magnetar.proving.scenarios import BY_NAME
from tests.scenarios.counts import Counts

pytestmark = [pytest.mark.zookeeper, pytest.mark.slow]


def test_the_leader_dies_with_what_no_follower_has(counts: Counts) -> None:
    found = run([BY_NAME["leader-dies"]], 1, print)
    assert found.as_expected, markdown(found)
    lost = {lane.spec.name: lane.observed.lost for lane in found.scenarios[0].lanes}
    assert lost.pop("partition-acks1") == 200
    assert set(lost.values()) == {0}
    counts("200 of 300 lost at acks=1 on a partition, 0 at all, 0 on ledgers")
