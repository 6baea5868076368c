"""Rates over a window, and the size of a backlog."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from magnetar.log.seam import LedgerStats, LogStats
from magnetar.model.ids import Position
from magnetar.topics.quotas import backlog_bytes
from magnetar.topics.rates import SAMPLE_INTERVAL_S, Rate
from tests.unit.protocols.pulsar.harness import World, run


def test_rates_are_of_the_last_samples_and_fall_to_zero() -> None:
    async def scenario(world: World) -> None:
        rates, peer = world.broker.rates, world.peer()
        await peer.produce()
        await peer.subscribe()
        topic = world.topic()
        await asyncio.sleep(0.5)
        assert rates.of(topic) == Rate(0, 0, 0, 0)
        for second in range(60):
            peer.publish(20, first=second * 20)
            await asyncio.sleep(1)
        assert 19 < rates.of(topic).messages < 21
        (producer,) = topic.producers.values()
        assert 19 < rates.of(producer).messages < 21
        assert rates.of(topic).byte_count > rates.of(topic).messages
        subscription = topic.subscriptions["s"]
        assert rates.of(subscription).messages == 0
        peer.flow(100)
        await peer.heard()
        (consumer,) = subscription.consumers
        assert rates.of(consumer).messages == rates.of(subscription).messages > 0
        await asyncio.sleep(2 * SAMPLE_INTERVAL_S + 1)
        assert rates.of(topic) == rates.of(subscription) == Rate(0, 0, 0, 0)

    run(scenario)


def test_topics_that_nobody_uses_are_not_kept() -> None:
    async def scenario(world: World) -> None:
        await world.peer().produce()
        await asyncio.sleep(SAMPLE_INTERVAL_S + 1)
        assert world.topic() not in world.broker.rates._newer.counts

    run(scenario)


def test_a_backlog_is_what_lies_after_the_last_acknowledged_entry() -> None:
    def backlog(ledgers: Sequence[LedgerStats], after: Position) -> int:
        stored = LogStats("t", 15, 1500, tuple(ledgers), after, {})
        return backlog_bytes(stored, after, 9)

    told = ((3, 10, 1000, "closed"), (4, 5, 500, "closed"), (7, 0, 0, "open"))
    ledgers = [LedgerStats(*each) for each in told]
    assert backlog(ledgers, Position(3, -1)) == 1500
    assert backlog(ledgers, Position(3, 4)) == 1000
    assert backlog(ledgers, Position(4, 4)) == 0
    assert backlog(ledgers, Position(4, 3)) == 100
    assert backlog(ledgers, Position(2, 9)) == 1500
    assert backlog((), Position(-1, -1)) == 0
    gaps = LogStats("t", 15, 1500, (), Position(0, 90), {}, on_ledgers=False)
    assert backlog_bytes(gaps, Position(0, 70), 3) == 300
    assert backlog_bytes(gaps, Position(0, 90), 0) == 0
