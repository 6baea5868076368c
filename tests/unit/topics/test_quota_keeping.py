"""Backlog quotas are kept: producers are refused and let in again, or subscriptions go on."""

from __future__ import annotations

import asyncio

import pytest

from magnetar.cluster.policies.backlog_quotas import (
    UNLIMITED,
    BacklogQuota,
    BacklogQuotas,
    QuotaAction,
)
from magnetar.cluster.topic_name import parse_topic
from magnetar.metrics import Metrics
from magnetar.model.errors import EntryDamagedError
from magnetar.model.ids import EARLIEST, Position
from magnetar.topics.consuming.subscription import Subscription
from magnetar.topics.opening import open_durable
from magnetar.topics.topic import Topic
from magnetar.wire.pulsar.codes import ServerError
from magnetar.wire.pulsar.pulsar_pb2 import BaseCommand
from tests.unit.protocols.pulsar.harness import SHARED, TOPIC, Peer, World, run
from tests.unit.topics.test_upkeep import aged

HOLD, EXCEPTION, EVICTION = QuotaAction
DEFAULT = "public/default"
CODES = {
    HOLD: ServerError.PRODUCER_BLOCKED_QUOTA_EXCEEDED_ERROR,
    EXCEPTION: ServerError.PRODUCER_BLOCKED_QUOTA_EXCEEDED_EXCEPTION,
}
NOW_MS = 10**12
"""The world's."""


async def limit(
    world: World, limit_bytes: int = -1, limit_s: int = -1, action: QuotaAction = HOLD
) -> None:
    quotas = BacklogQuotas(BacklogQuota(limit_bytes, -1, action), BacklogQuota(-1, limit_s, action))
    await world.broker.control.policies.set_namespace(DEFAULT, "backlog_quotas", quotas)
    for _ in range(20):
        await asyncio.sleep(0)


async def filled(world: World, count: int = 10, first: int = 0) -> tuple[Peer, Subscription]:
    """A producer that has published so many, and a subscription that has acknowledged none."""
    peer = world.peer()
    await peer.produce(name="p")
    behind = await open_durable(world.topic(), "s", EARLIEST, {})
    peer.publish(count, first)
    await peer.heard()
    return peer, behind


def stored_bytes(world: World) -> int:
    return world.log().stats().stored_bytes


@pytest.mark.parametrize("action", [HOLD, EXCEPTION])
@pytest.mark.parametrize("by", ["bytes", "age"])
def test_producers_are_sent_away_refused_and_let_in_again(action: QuotaAction, by: str) -> None:
    async def scenario(world: World) -> None:
        peer, behind = await filled(world)
        if by == "bytes":
            await limit(world, stored_bytes(world), action=action)
        else:  # the messages say that they are of 1970
            await limit(world, limit_s=60, action=action)
        assert await peer.kinds() == [], "nothing is done before it is looked for"
        await world.broker.quotas.look()
        assert await peer.kinds() == ["CLOSE_PRODUCER"]
        for _ in range(2):
            told = await peer.produce(name="p", epoch=1)
            assert (told.type, told.error.error) == (BaseCommand.ERROR, CODES[action])
            assert "subscription s is " in told.error.message
        assert world.broker.quotas.topics_over == 1
        behind.cursor.acknowledge_cumulative(world.log().positions.readable)
        assert (await peer.produce(name="p", epoch=2)).type == BaseCommand.PRODUCER_SUCCESS
        assert world.broker.quotas.topics_over == 0
        await world.broker.quotas.look()
        assert await peer.heard() == []

    run(scenario)


def test_who_comes_to_a_topic_that_is_past_it_is_refused_before_the_look() -> None:
    async def scenario(world: World) -> None:
        peer, _ = await filled(world)
        await limit(world, stored_bytes(world))
        told = await world.peer().produce(initial_subscription_name="new")
        assert told.error.error == CODES[HOLD]
        assert list(world.topic().subscriptions) == ["s"], "nothing is made for it"
        assert await peer.kinds() == []
        await world.broker.quotas.look()
        assert await peer.kinds() == ["CLOSE_PRODUCER"]

    run(scenario)


def test_it_is_looked_for_by_itself() -> None:
    async def scenario(world: World) -> None:
        peer, _ = await filled(world)
        await limit(world, stored_bytes(world))
        await asyncio.sleep(4.9)
        assert await peer.kinds() == []
        await asyncio.sleep(0.2)
        assert await peer.kinds() == ["CLOSE_PRODUCER"]

    run(scenario, backlog_quota_check_interval_ms=5000)


def test_sends_under_way_have_their_receipts_first() -> None:
    """What a producer fails then was not stored."""

    async def scenario(world: World) -> None:
        peer, _ = await filled(world)
        await limit(world, stored_bytes(world), action=EXCEPTION)
        log = world.log()
        log.held = True
        peer.publish(2, first=10)
        looking = asyncio.create_task(world.broker.quotas.look())
        assert await peer.heard() == []
        peer.publish(1, first=12)  # not taken any more
        log.held = False
        log.release()
        await looking
        assert await peer.kinds() == ["SEND_RECEIPT", "SEND_RECEIPT", "CLOSE_PRODUCER"]
        assert log.positions.end_offset == 12

    run(scenario)


def test_a_log_that_stands_still_is_not_waited_for() -> None:
    async def scenario(world: World) -> None:
        peer, _ = await filled(world)
        await limit(world, stored_bytes(world), action=EXCEPTION)
        world.log().held = True
        peer.publish(1, first=10)
        await world.broker.quotas.look()
        assert await peer.kinds() == ["CLOSE_PRODUCER"]
        world.log().held = False
        world.log().release()

    run(scenario)


def test_those_that_wait_for_the_topic_are_refused() -> None:
    async def scenario(world: World) -> None:
        first, second = world.peer(), world.peer()
        await first.produce(producer_access_mode=1)
        await second.produce(producer_access_mode=2)
        await open_durable(world.topic(), "s", EARLIEST, {})
        first.publish(3)
        await limit(world, 1)
        await world.broker.quotas.look()
        (told,) = [each for each in await second.heard() if each.type == BaseCommand.ERROR]
        assert told.error.error == CODES[HOLD]
        assert world.topic().waiting == []
        assert not world.topic().producers

    run(scenario)


def test_readers_hold_nothing_back_and_nobody_does_without_subscriptions() -> None:
    async def scenario(world: World) -> None:
        peer = world.peer()
        await peer.produce()
        peer.publish(5)
        await peer.subscribe("reader", kind=0, consumer_id=3, durable=False)
        await limit(world, 1, 1)
        await world.broker.quotas.look()
        assert "CLOSE_PRODUCER" not in await peer.kinds()

    run(scenario)


def test_a_limit_that_goes_lets_everybody_in() -> None:
    async def scenario(world: World) -> None:
        peer, _ = await filled(world)
        await limit(world, 1)
        await world.broker.quotas.look()
        assert world.topic().over_quota is not None
        await world.broker.control.policies.set_namespace(DEFAULT, "backlog_quotas", None)
        for _ in range(20):
            await asyncio.sleep(0)
        assert world.topic().over_quota is None, "at once, for Kafka's producers too"
        assert (await peer.produce(name="p", epoch=1)).type == BaseCommand.PRODUCER_SUCCESS

    run(scenario)


def test_as_brokers_are_configured_where_nobody_says() -> None:
    async def scenario(world: World) -> None:
        peer, _ = await filled(world)
        await world.broker.quotas.look()
        assert await peer.kinds() == ["CLOSE_PRODUCER"]
        assert (await peer.produce(name="p", epoch=1)).error.error == CODES[EXCEPTION]
        topic = world.topic().name
        own = BacklogQuotas(storage=UNLIMITED)
        await world.broker.control.policies.set_topic(topic, "backlog_quotas", own)
        for _ in range(20):
            await asyncio.sleep(0)
        assert (await peer.produce(name="p", epoch=2)).type == BaseCommand.PRODUCER_SUCCESS

    run(scenario, backlog_quota_bytes=100, backlog_quota_policy="producer_exception")


# -- eviction -------------------------------------------------------------------------------------


def test_the_slowest_go_on_and_the_others_stay() -> None:
    async def scenario(world: World) -> None:
        peer, behind = await filled(world, 20, 10)  # all as large
        ahead = await open_durable(world.topic(), "ahead", EARLIEST, {})
        ahead.cursor.acknowledge_cumulative(Position(4, 3))
        reader = await peer.subscribe("reader", kind=0, consumer_id=3, durable=False)
        size = stored_bytes(world)
        await limit(world, size // 2 + 1, action=EVICTION)
        await world.broker.quotas.look()
        assert behind.cursor.backlog_entries() == 9, "nine tenths of ten entries"
        assert ahead.cursor.backlog_entries() == 1
        assert world.topic().subscriptions["reader"].cursor.backlog_entries() == 20
        assert world.broker.quotas.evicted_entries == 11
        assert world.topic().over_quota is None
        peer.publish(1, first=30)
        assert "SEND_RECEIPT" in await peer.kinds(), "producers stay"
        await world.broker.quotas.look()
        assert world.broker.quotas.evicted_entries == 11
        assert reader is not None

    run(scenario)


def test_what_is_evicted_is_out_at_nobody_and_is_not_sent_again() -> None:
    async def scenario(world: World) -> None:
        peer = world.peer()
        await peer.produce()
        await peer.subscribe(kind=SHARED)
        peer.publish(10)
        peer.flow(4)
        await peer.heard()
        shared = world.topic().subscriptions["s"]
        assert shared.consumers[0].seat.unacked == 4
        await limit(world, stored_bytes(world) // 2, action=EVICTION)
        await world.broker.quotas.look()
        assert shared.consumers[0].seat.unacked == 0
        peer.flow(20)
        assert await peer.entries() == [6, 7, 8, 9]

    run(scenario)


def test_what_is_too_old_is_evicted() -> None:
    async def scenario(world: World) -> None:
        _, behind = await filled(world, 10)
        log = world.log()
        ages_s = (99, 99, 70, 58, 55, 53, 50, 1, 1, 1)
        aged(log, *(NOW_MS - 1000 * each for each in ages_s))
        await limit(world, limit_s=60, action=EVICTION)
        assert world.topic().expires_later, "it is not unloaded while nobody uses it"
        await world.broker.quotas.look()
        assert behind.cursor.backlog_entries() == 5, "54 s and younger are left"
        assert world.broker.quotas.evicted_entries == 5
        behind.cursor.acknowledge_cumulative(log.positions.readable)
        await world.broker.quotas.look()
        assert world.broker.quotas.evicted_entries == 5

    run(scenario)


def test_a_quota_of_each_kind() -> None:
    """What is too much goes, and for what is too old producers are refused."""

    async def scenario(world: World) -> None:
        peer, behind = await filled(world)
        quotas = BacklogQuotas(BacklogQuota(1, -1, EVICTION), BacklogQuota(-1, 5, EXCEPTION))
        policies = world.broker.control.policies
        await policies.set_namespace(DEFAULT, "backlog_quotas", quotas)
        for _ in range(20):
            await asyncio.sleep(0)
        assert (await world.peer().produce()).error.error == CODES[EXCEPTION]
        await world.broker.quotas.look()
        assert behind.cursor.backlog_entries() == 0
        assert await peer.kinds() == []
        assert (await world.peer().produce()).type == BaseCommand.PRODUCER_SUCCESS

    run(scenario)


# -- what is said while a topic is looked at -------------------------------------------------------


async def looked_at_slowly(
    world: World, monkeypatch: pytest.MonkeyPatch, action: QuotaAction, reading: str
) -> asyncio.Task[None]:
    """A look at a topic that is past its quota, in the middle of that."""
    await filled(world)
    log, begun = world.log(), asyncio.Event()
    log.cached = False
    read = getattr(log, reading)

    async def slowly(*about: object) -> object:
        begun.set()
        await asyncio.sleep(0.5)
        return await read(*about)

    monkeypatch.setattr(log, reading, slowly)
    await limit(world, limit_s=60, action=action)
    looking = asyncio.create_task(world.broker.quotas.look())
    await begun.wait()
    return looking


def test_a_limit_that_goes_while_it_is_looked_at_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody looks at the topic again: what is noted then, Kafka's producers are told for good."""

    async def scenario(world: World) -> None:
        looking = await looked_at_slowly(world, monkeypatch, HOLD, "read")
        await limit(world)
        await looking
        assert world.topic().over_quota is None
        assert list(world.topic().producers) == ["p"]

    run(scenario)


@pytest.mark.parametrize("reading", ["read", "first_at"])
@pytest.mark.parametrize("next_action", [None, HOLD])
def test_nothing_is_evicted_that_an_operator_keeps_meanwhile(
    monkeypatch: pytest.MonkeyPatch, reading: str, next_action: QuotaAction | None
) -> None:
    async def scenario(world: World) -> None:
        looking = await looked_at_slowly(world, monkeypatch, EVICTION, reading)
        if next_action is None:
            await limit(world)
        else:
            await limit(world, limit_s=60, action=next_action)
        await looking
        assert world.topic().subscriptions["s"].cursor.backlog_entries() == 10
        assert world.broker.quotas.evicted_entries == 0

    run(scenario)


# -- what it costs --------------------------------------------------------------------------------


def test_the_oldest_entry_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(world: World) -> None:
        _, behind = await filled(world)
        log = world.log()
        log.cached = False
        await limit(world, limit_s=2**31 - 1)
        reads = log.reads
        for _ in range(3):
            await world.broker.quotas.look()
        assert log.reads == reads + 1
        behind.cursor.acknowledge_cumulative(Position(1, 0))
        for _ in range(3):
            await world.broker.quotas.look()
        assert log.reads == reads + 2
        behind.cursor.acknowledge_cumulative(log.positions.readable)
        await world.broker.quotas.look()
        assert log.reads == reads + 2

    run(scenario)


def test_nothing_is_asked_of_a_topic_without_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(world: World) -> None:
        await filled(world)
        log = world.log()
        log.cached, reads, asked = False, log.reads, []
        monkeypatch.setattr(log, "stats", lambda: asked.append(1))
        await world.broker.quotas.look()
        assert (log.reads, asked) == (reads, [])

    run(scenario)


def test_an_entry_that_cannot_be_read_has_no_age() -> None:
    async def scenario(world: World) -> None:
        peer, _ = await filled(world)
        log = world.log()
        log.cached = False
        log.damaged[Position(1, 0)] = EntryDamagedError("gone")
        await limit(world, limit_s=60)
        await world.broker.quotas.look()
        assert await peer.kinds() == []
        del log.damaged[Position(1, 0)]
        await world.broker.quotas.look()
        assert await peer.kinds() == ["CLOSE_PRODUCER"]

    run(scenario)


def test_one_look_at_many_topics_leaves_turns_to_others() -> None:
    async def scenario(world: World) -> None:
        topics = world.services.topics
        await limit(world, 1)
        for number in range(300):
            await topics.get(parse_topic(f"t{number}"), create=True)
        turns, looking = 0, asyncio.create_task(world.broker.quotas.look())
        while not looking.done():
            await asyncio.sleep(0)
            turns += 1
        assert turns > 3

    run(scenario)


def test_neither_topics_on_partitions_nor_groups_have_quotas() -> None:
    async def scenario(world: World) -> None:
        peer, _ = await filled(world)
        await limit(world, 1, 1)
        world.log().owns_sequences = True
        await world.broker.quotas.look()
        assert await peer.kinds() == []

    run(scenario)


def test_metrics() -> None:
    async def scenario(world: World) -> None:
        metrics = world.broker._metrics = Metrics()
        await filled(world)
        await limit(world, 1, action=EVICTION)
        await world.broker.quotas.look()
        world.broker._fold_quotas()
        world.broker._fold_quotas()
        value = metrics.registry.get_sample_value
        assert value("magnetar_broker_evicted_entries_total") == 10
        assert value("magnetar_broker_over_quota_topics") == 0
        other = world.peer()
        await other.produce(name="q")
        other.publish(1)
        await other.heard()
        await limit(world, 1)
        await world.broker.quotas.look()
        world.broker._fold_quotas()
        assert value("magnetar_broker_over_quota_topics") == 1

    run(scenario)


def test_an_idle_topic_that_is_looked_at_is_unloaded_all_the_same() -> None:
    async def scenario(world: World) -> None:
        topic: Topic = await world.services.topics.get(parse_topic(TOPIC), create=True)
        await limit(world, 1, 1)
        await open_durable(topic, "s", EARLIEST, {})
        await asyncio.sleep(5)
        assert world.services.topics.find(topic.name) is None

    run(scenario, idle_topic_unload_ms=2000, backlog_quota_check_interval_ms=100)
