"""Compaction over REST: of a partitioned topic it is about every partition."""

from __future__ import annotations

import pytest

from magnetar.cluster.topic_name import TopicName, parse_topic
from magnetar.model.errors import LogClosedError
from magnetar.topics.compacting import CompactionOutcome, CompactionStatus
from magnetar.topics.topic import Topic
from tests.unit.admin.test_api import Platform, serve

T = "/admin/v2/persistent/public/default/t"
NAME = "persistent://public/default/t"


def begun(p: Platform) -> list[bool]:
    found = p.world.broker.compactions._outcomes
    return [f"{NAME}-partition-{number}" in found for number in range(3)]


def test_one_that_is_under_way_keeps_no_other_partition() -> None:
    """Those after it were not begun, and nothing said so."""

    async def scenario(p: Platform) -> None:
        assert await p.status("PUT", f"{T}/partitions", json=3) == 204
        first = str(parse_topic(f"{NAME}-partition-0"))
        running = CompactionOutcome(CompactionStatus.RUNNING)
        p.world.broker.compactions._outcomes[first] = running
        status, reason = await p.reason("PUT", f"{T}/compaction")
        assert status == 409
        assert "2 of the 3 partitions" in reason
        assert f"{first} is being compacted already" in reason
        assert begun(p) == [True, True, True]

    serve(scenario)


def test_one_that_cannot_be_opened_keeps_no_other_partition(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario(p: Platform) -> None:
        assert await p.status("PUT", f"{T}/partitions", json=3) == 204
        get = p.world.broker.topics.get

        async def failing(name: TopicName, create: bool = True) -> Topic:
            if name.partition == 1:
                raise LogClosedError(f"{name} cannot be opened")
            return await get(name, create)

        monkeypatch.setattr(p.world.broker.topics, "get", failing)
        status, reason = await p.reason("PUT", f"{T}/compaction")
        assert (status, "2 of the 3 partitions" in reason) == (503, True)
        assert begun(p) == [True, False, True]

    serve(scenario)
