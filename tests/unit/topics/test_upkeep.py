"""Policies in force in open topics, and what expires."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from magnetar.cluster.policies.policies import (
    DelayedDeliveryPolicy,
    PersistencePolicy,
    Policies,
    RetentionPolicy,
)
from magnetar.cluster.topic_name import parse_topic
from magnetar.log.policy import LogPolicy, Retention, RollRule
from magnetar.model.errors import MetadataError
from magnetar.model.ids import EARLIEST
from magnetar.model.ledger import Quorums
from magnetar.topics.consuming.subscription import Subscription
from magnetar.topics.dispatch.delayed import DelayPolicy
from magnetar.topics.opening import open_durable
from magnetar.topics.policy import TopicPolicy, topic_policy
from magnetar.wire.pulsar.pulsar_pb2 import CommandSubscribe
from tests.doubles.memory_log import MemoryLog
from tests.unit.protocols.pulsar.harness import TOPIC, World, run

ROLL = RollRule(1, 2, 3)
CONFIGURED = TopicPolicy(LogPolicy(ROLL, Retention(5, 6)), DelayPolicy(True, 10), 7, 8)
DEFAULT = "public/default"
NAME = parse_topic(TOPIC)
NOW_MS = 10**12
"""The world's."""


def test_what_is_not_said_is_as_configured() -> None:
    assert topic_policy(CONFIGURED, Policies()) == CONFIGURED


def test_what_is_said_holds_in_the_units_of_logs() -> None:
    said = Policies(
        RetentionPolicy(2, -1),
        3,
        PersistencePolicy(Quorums(3, 2, 2)),
        0,
        DelayedDeliveryPolicy(False, 20, 30),
    )
    assert topic_policy(CONFIGURED, said) == TopicPolicy(
        LogPolicy(ROLL, Retention(120_000, -1), Quorums(3, 2, 2)), DelayPolicy(False, 20, 30), 3000
    )
    size = topic_policy(CONFIGURED, Policies(retention=RetentionPolicy(-1, 4)))
    assert size.log.retention == Retention(-1, 4 << 20)


async def settled(_world: World) -> None:
    for _ in range(20):
        await asyncio.sleep(0)


def test_a_change_is_in_force_in_open_topics_and_in_those_opened_later() -> None:
    async def scenario(world: World) -> None:
        peer = world.peer()
        await peer.produce()
        policies = world.broker.control.policies
        await policies.set_namespace(DEFAULT, "retention", RetentionPolicy(0, 0))
        await settled(world)
        policy = world.log().policy
        assert policy is not None
        assert policy.retention == Retention(0, 0)
        await peer.produce("persistent://public/default/later", producer_id=2)
        later = world.log("persistent://public/default/later").policy
        assert later is not None
        assert later.retention == Retention(0, 0)
        await policies.set_topic(world.topic().name, "retention", RetentionPolicy(1, -1))
        await settled(world)
        assert world.topic().log.policy.retention == Retention(60_000, -1)  # type: ignore[attr-defined]
        assert world.topic().policy.log.retention == Retention(60_000, -1)

    run(scenario)


def test_a_change_while_a_topic_is_opened_is_not_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(world: World) -> None:
        policies = world.broker.control.policies
        await policies.effective(NAME)
        opening, go = asyncio.Event(), asyncio.Event()
        original = world.store.open

        async def slow(name: str, policy: LogPolicy | None = None, **more: Any) -> Any:
            opening.set()
            await go.wait()
            return await original(name, policy, **more)

        monkeypatch.setattr(world.store, "open", slow)
        loading = asyncio.create_task(world.services.topics.get(NAME, create=True))
        await opening.wait()
        await policies.set_namespace(DEFAULT, "message_ttl_s", 9)
        await settled(world)
        go.set()
        topic = await loading
        await settled(world)
        assert topic.policy.message_ttl_ms == 9000

    run(scenario)


def test_policies_that_are_not_known_now_are_asked_for_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("magnetar.topics.upkeep.RETRY_S", 0.01)

    async def scenario(world: World) -> None:
        await world.peer().produce()
        policies = world.broker.control.policies
        original, asked = policies.effective, []

        async def failing(name: Any) -> Policies:
            asked.append(name)
            if len(asked) == 1:
                raise MetadataError("away")
            return await original(name)

        monkeypatch.setattr(policies, "effective", failing)
        await policies.set_namespace(DEFAULT, "message_ttl_s", 9)
        async with asyncio.timeout(10):
            while world.topic().policy.message_ttl_ms != 9000:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert len(asked) >= 2

    run(scenario)


def aged(log: MemoryLog, *times_ms: int) -> None:
    """Its entries were published at these times."""
    log._order._times_ms[:] = times_ms


async def subscription(world: World, name: str) -> Subscription:
    return await open_durable(world.topic(), name, EARLIEST, {})


def test_old_messages_expire_for_durable_subscriptions_only() -> None:
    async def scenario(world: World) -> None:
        peer = world.peer()
        await peer.produce()
        behind, done = await subscription(world, "behind"), await subscription(world, "done")
        reader = await peer.subscribe("reader", consumer_id=5, durable=False)
        peer.publish(6)
        await peer.heard()
        log = world.log()
        aged(log, NOW_MS - 9000, NOW_MS - 8000, NOW_MS - 7000, NOW_MS, NOW_MS, NOW_MS)
        done.cursor.acknowledge_cumulative(log.positions.readable)
        policies = world.broker.control.policies
        await policies.set_namespace(DEFAULT, "message_ttl_s", 8)
        await world.broker.upkeep.look()
        assert behind.cursor.backlog_entries() == 4
        assert done.cursor.backlog_entries() == 0
        assert world.topic().subscriptions["reader"].cursor.backlog_entries() == 6
        await policies.set_namespace(DEFAULT, "message_ttl_s", 7)
        await world.broker.upkeep.look()
        assert behind.cursor.backlog_entries() == 3
        assert reader is not None

    run(scenario)


def test_what_expires_is_out_at_nobody_and_is_not_sent_again() -> None:
    async def scenario(world: World) -> None:
        peer = world.peer()
        await peer.produce()
        await peer.subscribe("s", kind=CommandSubscribe.Shared)
        peer.publish(8)
        await peer.heard()
        peer.flow(4)
        await peer.heard()
        shared = world.topic().subscriptions["s"]
        seat = shared.consumers[0].seat
        assert seat.unacked == 4
        aged(world.log(), *[NOW_MS - 9000] * 6, NOW_MS, NOW_MS)
        await world.broker.control.policies.set_namespace(DEFAULT, "message_ttl_s", 8)
        await world.broker.upkeep.look()
        assert seat.unacked == 0
        assert shared.cursor.backlog_entries() == 2
        peer.flow(9)
        await peer.heard()
        assert seat.unacked == 2

    run(scenario)


def test_a_subscription_without_consumers_expires() -> None:
    async def scenario(world: World) -> None:
        peer = world.peer()
        await peer.produce()
        await subscription(world, "idle")
        await peer.subscribe("used")
        policies = world.broker.control.policies
        await policies.set_namespace(DEFAULT, "subscription_expiration_minutes", 1)
        await settled(world)
        assert world.topic().expires_later
        # Somebody sets the clock a day ahead: all that nobody used just then were deleted.
        world.broker.upkeep._now_ms = lambda: NOW_MS + 86_400_000
        await world.broker.upkeep.look()
        assert sorted(world.topic().subscriptions) == ["idle", "used"]
        idle = world.topic().subscriptions["idle"]
        idle._idle_since_s -= 59.0
        await world.broker.upkeep.look()
        assert sorted(world.topic().subscriptions) == ["idle", "used"]
        idle._idle_since_s -= 1.0
        await world.broker.upkeep.look()
        assert sorted(world.topic().subscriptions) == ["used"]

    run(scenario)


def test_a_topic_of_which_nothing_expires_may_be_unloaded() -> None:
    async def scenario(world: World) -> None:
        peer = world.peer()
        await peer.produce()
        assert not world.topic().expires_later
        policies = world.broker.control.policies
        await policies.set_namespace(DEFAULT, "message_ttl_s", 8)
        await settled(world)
        behind = await subscription(world, "behind")
        assert not world.topic().expires_later
        peer.publish(1)
        await peer.heard()
        assert world.topic().expires_later
        behind.cursor.acknowledge_cumulative(world.log().positions.readable)
        assert not world.topic().expires_later

    run(scenario)
