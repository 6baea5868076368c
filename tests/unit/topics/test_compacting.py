"""Which topics a broker compacts by itself: those behind whose horizon too much lies."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from magnetar.cluster.topic_name import parse_topic
from magnetar.log.seam import CompactedStats, LedgerStats, LogStats
from magnetar.model.errors import LogError, NotAllowedError
from magnetar.model.ids import EARLIEST, Position
from magnetar.topics import compacting
from magnetar.topics.compacting import CompactionStatus, bytes_after
from tests.unit.protocols.pulsar.harness import TOPIC, World, run

NAME = parse_topic(TOPIC)


def stats_of(*ledgers: tuple[int, int, int]) -> LogStats:
    told = tuple(LedgerStats(*ledger, "closed") for ledger in ledgers)
    return LogStats("log", 0, 0, told, EARLIEST, {})


def test_bytes_that_are_not_compacted_are_those_after_the_horizon() -> None:
    stats = stats_of((1, 10, 1000), (3, 10, 2000), (5, 0, 0))
    assert bytes_after(stats, EARLIEST) == 3000
    assert bytes_after(stats, Position(1, 4)) == 2500
    assert bytes_after(stats, Position(2, 7)) == 2000, "its ledger is trimmed"
    assert bytes_after(stats, Position(3, 9)) == 0
    assert bytes_after(stats, Position(5, -1)) == 0


def test_a_topic_is_compacted_when_enough_has_come(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(world: World) -> None:
        await world.peer().produce()
        topic, compactions = world.topic(), world.broker.compactions
        ran: list[str] = []
        fails = False

        async def compact(source: Any, entry_format: Any) -> None:
            ran.append(source.name)
            if fails:
                raise LogError("no keys here")
            source.compaction.stats = CompactedStats(9, Position(3, 9), 1, 1, 1)

        async def looked(*ledgers: tuple[int, int, int]) -> int:
            end = Position(ledgers[-1][0], ledgers[-1][1] - 1)
            monkeypatch.setattr(topic.log, "stats", lambda: stats_of(*ledgers))
            monkeypatch.setattr(type(topic.log.positions), "readable", end)
            before = len(ran)
            await world.broker.upkeep.look()
            for _ in range(20):
                await asyncio.sleep(0)
            return len(ran) - before

        monkeypatch.setattr(compacting, "compact", compact)
        assert await looked((1, 10, 10**9)) == 0, "nobody has said a threshold"
        await world.broker.control.policies.set_topic(NAME, "compaction_threshold_bytes", 1000)
        assert await looked((1, 10, 999)) == 0
        assert await looked((1, 10, 1000)) == 1
        assert compactions.outcome(topic).status is CompactionStatus.SUCCESS
        assert await looked((1, 10, 1000), (3, 10, 900)) == 0
        assert await looked((3, 10, 900), (5, 10, 1000)) == 1
        topic.log.compaction.stats = None  # type: ignore[misc]
        fails = True
        assert await looked((5, 10, 2000)) == 1
        assert compactions.outcome(topic).status is CompactionStatus.ERROR
        assert await looked((5, 10, 2000)) == 0, "it would fail again"
        assert await looked((5, 10, 2000), (6, 10, 1000)) == 1
        await world.broker.control.policies.set_topic(NAME, "compaction_threshold_bytes", 0)
        assert await looked((7, 10, 10**9)) == 0

    run(scenario)


def test_a_topic_on_a_partition_is_refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(world: World) -> None:
        await world.peer().produce()
        topic, compactions = world.topic(), world.broker.compactions
        stats = replace(stats_of((1, 10, 1000)), on_ledgers=False)
        monkeypatch.setattr(topic.log, "stats", lambda: stats)
        with pytest.raises(NotAllowedError, match="use a topic on ledgers"):
            compactions.begin(topic)
        assert compactions.outcome(topic).status is CompactionStatus.NOT_RUN

    run(scenario)
