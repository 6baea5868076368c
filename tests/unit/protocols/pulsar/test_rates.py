"""Limited rates, from the client's side of sessions, to the message on virtual time."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from magnetar.cluster.policies.rate_values import (
    DispatchRate,
    PublishRate,
    SubscribeRate,
    SubscriptionRates,
)
from magnetar.cluster.topic_name import parse_topic
from magnetar.wire.pulsar.codes import ServerError
from magnetar.wire.pulsar.commands import PONG_FRAME
from magnetar.wire.pulsar.pulsar_pb2 import BaseCommand, MessageMetadata
from tests.interop.pulsar.wire import checked, message, send_frame
from tests.unit.protocols.pulsar.harness import (
    EXCLUSIVE,
    FAILOVER,
    SHARED,
    TOPIC,
    Peer,
    World,
    batch,
    run,
)

KEY_SHARED = 3
OTHER = "persistent://public/default/other"
TEN: dict[str, Any] = {"topic_publish_messages_per_s_max": 10}
GIVES_TEN: dict[str, Any] = {"topic_dispatch_messages_per_s_max": 10}
EACH_TEN: dict[str, Any] = {"subscription_dispatch_messages_per_s_max": 10}


def stored(world: World, topic: str = TOPIC) -> int:
    return len(world.log(topic)._entries)


async def say(world: World, field: str, value: object) -> None:
    """Of the topic, from now on."""
    await world.services.control.policies.set_topic(parse_topic(TOPIC), field, value)
    for _ in range(20):
        await asyncio.sleep(0)


def receipts(commands: list[BaseCommand]) -> list[int]:
    return [c.send_receipt.sequence_id for c in commands if c.type == BaseCommand.SEND_RECEIPT]


# -- publishing ----------------------------------------------------------------------------------


def test_what_is_published_above_the_rate_waits() -> None:
    async def scenario(world: World) -> None:
        peer = world.peer()
        await peer.produce()
        peer.publish(35)
        assert receipts(await peer.heard()) == list(range(10)), "those are told of meanwhile"
        assert not peer.transport.reading
        throttle = world.topic().publish_throttle
        assert throttle is not None
        assert throttle.held == 1
        await asyncio.sleep(0.02)
        found = []
        for _ in range(6):
            await asyncio.sleep(0.5)
            found.append(stored(world))
        assert found == [15, 20, 25, 30, 35, 35]
        assert receipts(await peer.heard()) == list(range(10, 35))
        assert peer.transport.reading

    run(scenario, ledger_entries=1000, **TEN)


def test_a_rate_in_bytes() -> None:
    async def scenario(world: World) -> None:
        peer = world.peer()
        await peer.produce()
        payload = message(bytes(1000))
        peer.feed(b"".join(send_frame(1, n, payload) for n in range(30)))
        size = len(payload)
        for _ in range(10):
            await asyncio.sleep(0.25)
            now = stored(world)
            assert (now - 1) * size <= 5000 * (1 + asyncio.get_running_loop().time())
        await asyncio.sleep(4)
        assert stored(world) == 30

    run(scenario, ledger_entries=1000, topic_publish_bytes_per_s_max=5000)


def test_a_batch_counts_its_messages_and_is_not_cut() -> None:
    async def scenario(world: World) -> None:
        peer = world.peer()
        await peer.produce()
        peer.feed(b"".join(send_frame(1, n, batch(25, n)) for n in range(3)))
        found = []
        for _ in range(6):
            await asyncio.sleep(0.75)
            found.append(stored(world))
        # 25 of 10: 15 are paid for in 1.5 s, and one message more must be there.
        assert found == [1, 1, 2, 2, 2, 3]

    run(scenario, **TEN)


def test_what_is_not_taken_of_a_producer_that_is_sent_away_is_no_debt() -> None:
    async def scenario(world: World) -> None:
        peer, other = world.peer(), world.peer()
        await peer.produce()
        await other.produce(name="other")
        peer.publish(500)
        assert len(receipts(await peer.heard())) == 10
        topic = world.topic()
        topic.stop_sends()  # as for a backlog quota: nothing more is taken
        await asyncio.sleep(1.05)
        topic.disconnect_producers()
        await asyncio.sleep(1)
        assert stored(world) == 10
        await other.produce(name="other", epoch=1)
        other.publish(5)
        assert len(receipts(await other.heard())) == 5

    run(scenario, ledger_entries=1000, **TEN)


def test_others_on_the_connection_wait_and_on_others_do_not() -> None:
    async def scenario(world: World) -> None:
        peer, free = world.peer(), world.peer()
        await peer.produce()
        await say(world, "publish_rate", PublishRate(10))
        await peer.produce(producer_id=2, topic=OTHER)
        await free.produce(topic=OTHER, name="free")
        sends = [(1, n) for n in range(15)] + [(2, n) for n in range(5)]
        peer.feed(b"".join(send_frame(each, n, message(b"x", n)) for each, n in sends))
        free.publish(7)
        await peer.heard()
        assert (stored(world), stored(world, OTHER)) == (10, 7)
        await asyncio.sleep(0.55)
        assert (stored(world), stored(world, OTHER)) == (15, 12)

    run(scenario, ledger_entries=1000)


def test_connections_have_turns() -> None:
    async def scenario(world: World) -> None:
        peers = [world.peer() for _ in range(4)]
        for number, peer in enumerate(peers):
            await peer.produce(name=f"p{number}")
        for peer in peers:
            peer.publish(30)
        await asyncio.sleep(4.05)
        told = [len(receipts(await peer.heard())) for peer in peers]
        assert sum(told) == 50
        assert told[0] >= 10, "what could pass at once was its"
        assert max(told[1:]) - min(told[1:]) <= 1
        assert min(told) >= 10

    run(scenario, ledger_entries=1000, **TEN)


def test_a_rate_is_set_and_removed_while_producers_are_connected() -> None:
    async def scenario(world: World) -> None:
        peer = world.peer()
        await peer.produce()
        peer.publish(100)
        await peer.heard()
        assert stored(world) == 100
        await say(world, "publish_rate", PublishRate(10))
        peer.publish(100, first=100)
        await asyncio.sleep(1.05)
        assert stored(world) == 120
        await say(world, "publish_rate", PublishRate(-1, -1))
        await peer.heard()
        assert stored(world) == 200
        assert peer.transport.reading

    run(scenario, ledger_entries=1000)


def test_who_goes_while_held_back_is_forgotten() -> None:
    async def scenario(world: World) -> None:
        peer, other = world.peer(), world.peer()
        await peer.produce(name="a")
        await other.produce(name="b")
        peer.publish(50)
        other.publish(5)
        await peer.heard()
        peer.lose()
        await asyncio.sleep(0.55)
        assert stored(world) == 15
        assert receipts(await other.heard()) == [0, 1, 2, 3, 4]
        await asyncio.sleep(5)
        assert stored(world) == 15

    run(scenario, ledger_entries=1000, **TEN)


def test_a_client_that_is_held_back_for_long_hears_something() -> None:
    async def scenario(world: World) -> None:
        peer = world.peer()
        await peer.produce()
        peer.feed(send_frame(1, 0, batch(1000)) + send_frame(1, 1, message(b"x", 1)))
        await peer.heard()
        found = 0
        for _ in range(98):
            await asyncio.sleep(1)
            peer.session._flush()
            found += bytes(peer.transport.data).count(PONG_FRAME)
            peer.transport.data.clear()
        assert found == 9
        assert stored(world) == 1
        await asyncio.sleep(2)
        assert stored(world) == 2

    run(scenario, **TEN)


def test_sends_of_an_unusual_shape_wait_too() -> None:
    async def scenario(world: World) -> None:
        peer = world.peer()
        await peer.produce()
        meta = MessageMetadata(producer_name="w", sequence_id=1, publish_time=1)
        meta.deliver_at_time = 5
        meta.properties.add(key="k", value="v")
        head = meta.SerializeToString()
        payload = checked(len(head).to_bytes(4, "big") + head + b"x")
        peer.feed(b"".join(send_frame(1, n, payload) for n in range(15)))
        await peer.heard()
        assert stored(world) == 10
        await asyncio.sleep(0.55)
        assert stored(world) == 15

    run(scenario, **TEN)


def test_what_is_refused_passes_no_throttle() -> None:
    async def scenario(world: World) -> None:
        peer = world.peer()
        await peer.produce()
        bad = message(b"bad", flip=True)
        peer.feed(b"".join(send_frame(1, n, bad) for n in range(20)))
        peer.publish(10, first=20)
        kinds = await peer.kinds()
        assert kinds.count("SEND_ERROR") == 20
        assert stored(world) == 10

    run(scenario, **TEN)


def test_a_topic_that_closes_keeps_nobody() -> None:
    async def scenario(world: World) -> None:
        peer = world.peer()
        await peer.produce()
        peer.publish(50)
        await peer.heard()
        await world.services.topics.unload(parse_topic(TOPIC))
        kinds = await peer.kinds()
        assert "CLOSE_PRODUCER" in kinds
        assert peer.transport.reading

    run(scenario, **TEN)


def test_deduplicated_producers_are_held_back() -> None:
    async def scenario(world: World) -> None:
        peer = world.peer()
        await peer.produce(name="a")
        peer.publish(15)
        await peer.heard()
        assert stored(world) == 10
        await asyncio.sleep(0.55)
        assert receipts(await peer.heard()) == list(range(10, 15))

    run(scenario, deduplication=True, **TEN)


# -- dispatch ------------------------------------------------------------------------------------


async def filled(world: World, count: int) -> Peer:
    peer = world.peer()
    await peer.produce()
    peer.publish(count)
    await peer.heard()
    return peer


@pytest.mark.parametrize("kind", [EXCLUSIVE, SHARED, FAILOVER, KEY_SHARED])
@pytest.mark.parametrize("setting", [GIVES_TEN, EACH_TEN])
def test_what_is_dispatched_above_the_rate_waits(kind: int, setting: dict[str, Any]) -> None:
    async def scenario(world: World) -> None:
        await filled(world, 30)
        peer = world.peer()
        await peer.subscribe(kind=kind)
        peer.flow(1000)
        assert await peer.entries() == list(range(10))
        await asyncio.sleep(1.05)
        assert await peer.entries() == list(range(10, 20))
        await asyncio.sleep(5)
        assert await peer.entries() == list(range(20, 30))

    run(scenario, ledger_entries=1000, **setting)


@pytest.mark.parametrize("kind", [EXCLUSIVE, SHARED, KEY_SHARED])
def test_new_messages_wait_too(kind: int) -> None:
    async def scenario(world: World) -> None:
        peer = world.peer()
        await peer.subscribe(kind=kind)
        peer.flow(1000)
        sender = await filled(world, 5)
        sender.publish(10, first=5)
        assert await peer.entries() == list(range(10))
        await asyncio.sleep(0.55)
        assert await peer.entries() == list(range(10, 15))

    run(scenario, ledger_entries=1000, **GIVES_TEN)


def test_subscriptions_have_turns_at_what_their_topic_gives() -> None:
    async def scenario(world: World) -> None:
        await filled(world, 100)
        peers = [world.peer() for _ in range(4)]
        for number, peer in enumerate(peers):
            await peer.subscribe(name=f"s{number}", kind=(SHARED, EXCLUSIVE)[number % 2])
        for peer in peers:
            peer.flow(1000)
        await asyncio.sleep(6.05)
        got = [await peer.entries() for peer in peers]
        assert sum(map(len, got)) == 70
        assert all(each == list(range(len(each))) for each in got)
        assert sorted(map(len, got)) == [15, 15, 15, 25], "one had what could pass at once"

    run(scenario, ledger_entries=1000, **GIVES_TEN)


def test_each_subscription_has_a_rate_of_its_own() -> None:
    async def scenario(world: World) -> None:
        await filled(world, 30)
        peers = [world.peer() for _ in range(3)]
        for number, peer in enumerate(peers):
            await peer.subscribe(name=f"s{number}")
            peer.flow(1000)
        for peer in peers:
            assert await peer.entries() == list(range(10))
        await asyncio.sleep(0.55)
        for peer in peers:
            assert await peer.entries() == list(range(10, 15))

    run(scenario, ledger_entries=1000, **EACH_TEN)


@pytest.mark.parametrize("kind", [EXCLUSIVE, SHARED, KEY_SHARED])
def test_batches_that_are_dispatched_count_their_messages(kind: int) -> None:
    async def scenario(world: World) -> None:
        sender = await filled(world, 0)
        sender.feed(b"".join(send_frame(1, n, batch(4, n)) for n in range(10)))
        await sender.heard()
        peer = world.peer()
        await peer.subscribe(kind=kind)
        peer.flow(1000)
        assert await peer.entries() == [0, 1, 2], "8, and one more that is not cut"
        await asyncio.sleep(0.35)
        assert await peer.entries() == [3], "what was too much is paid for"
        await asyncio.sleep(30)
        assert await peer.entries() == list(range(4, 10))

    run(scenario, ledger_entries=1000, **GIVES_TEN)


def test_bytes_that_are_dispatched() -> None:
    async def scenario(world: World) -> None:
        sender = await filled(world, 0)
        payload = message(bytes(1000))
        sender.feed(b"".join(send_frame(1, n, payload) for n in range(20)))
        await sender.heard()
        peer = world.peer()
        await peer.subscribe(kind=EXCLUSIVE)
        peer.flow(1000)
        got = await peer.entries()
        assert len(got) == 5
        await asyncio.sleep(2.0)
        got += await peer.entries()
        assert 13 <= len(got) <= 15
        await asyncio.sleep(4.0)
        assert got + await peer.entries() == list(range(20))

    run(scenario, ledger_entries=1000, topic_dispatch_bytes_per_s_max=5000)


def test_a_consumer_that_leaves_while_it_waits_leaves_all_to_the_next() -> None:
    async def scenario(world: World) -> None:
        await filled(world, 20)
        first, second = world.peer(), world.peer()
        await first.subscribe()
        first.flow(1000)
        assert await first.entries() == list(range(10))
        first.lose()
        await second.subscribe()
        second.flow(1000)
        await asyncio.sleep(1.05)
        assert await second.entries() == list(range(10))
        await asyncio.sleep(1.0)
        assert await second.entries() == list(range(10, 20))

    run(scenario, ledger_entries=1000, **GIVES_TEN)


def test_what_is_sent_again_counts_again() -> None:
    async def scenario(world: World) -> None:
        await filled(world, 15)
        peer = world.peer()
        await peer.subscribe()
        peer.flow(1000)
        assert await peer.entries() == list(range(10))
        peer.redeliver(*range(10))
        assert await peer.entries() == []
        await asyncio.sleep(1.05)
        assert await peer.entries() == list(range(10))
        await asyncio.sleep(0.5)
        assert await peer.entries() == list(range(10, 15))

    run(scenario, ledger_entries=1000, **GIVES_TEN)


def test_delayed_messages_are_not_early_for_a_rate() -> None:
    """What waits for the rate has not been looked at for its time."""

    async def scenario(world: World) -> None:
        sender = world.peer()
        await sender.produce()
        frames = []
        for number in range(30):
            meta = MessageMetadata(producer_name="w", sequence_id=number, publish_time=1)
            if number % 2:
                meta.deliver_at_time = int(world.now_s * 1000) + 60_000
            head = meta.SerializeToString()
            frames.append(
                send_frame(1, number, checked(len(head).to_bytes(4, "big") + head + b"x"))
            )
        sender.feed(b"".join(frames))
        await sender.heard()
        peer = world.peer()
        await peer.subscribe(kind=SHARED)
        peer.flow(1000)
        got = await peer.entries()
        await asyncio.sleep(10)
        got += await peer.entries()
        assert got == list(range(0, 30, 2))
        world.now_s += 61
        await asyncio.sleep(61)
        got += await peer.entries()
        assert sorted(got) == list(range(30))

    run(scenario, ledger_entries=1000, **GIVES_TEN)


def test_a_rate_of_dispatch_is_set_and_removed() -> None:
    async def scenario(world: World) -> None:
        await filled(world, 300)
        peer = world.peer()
        await peer.subscribe()
        peer.flow(50)
        assert await peer.entries() == list(range(50))
        await say(world, "dispatch_rate", DispatchRate(10))
        await say(world, "subscription_dispatch_rate", DispatchRate(20, period_s=1))
        peer.flow(1000)
        assert await peer.entries() == list(range(50, 60))
        await say(world, "dispatch_rate", DispatchRate(-1))
        got = await peer.entries()
        assert got[:10] == list(range(60, 70))
        await asyncio.sleep(1.05)
        got += await peer.entries()
        assert 85 <= 60 + len(got) <= 95
        await say(world, "subscription_dispatch_rate", DispatchRate())
        got += await peer.entries()
        assert got == list(range(60, 300))

    run(scenario, ledger_entries=1000)


def test_a_subscription_has_a_rate_of_its_own() -> None:
    """One that is connected, and one that comes; the others have what is said of each."""

    async def scenario(world: World) -> None:
        await filled(world, 300)
        peers = {name: world.peer() for name in ("slow", "free", "later")}
        for name in ("slow", "free"):
            await peers[name].subscribe(name)
        named = SubscriptionRates(
            (("free", DispatchRate()), ("later", DispatchRate(5)), ("slow", DispatchRate(10)))
        )
        await say(world, "subscription_dispatch_rate", DispatchRate(20))
        await say(world, "subscription_rates", named)
        await peers["later"].subscribe("later")
        for peer in peers.values():
            peer.flow(1000)
        got = {name: len(await peer.entries()) for name, peer in peers.items()}
        assert got == {"slow": 10, "free": 300, "later": 5}
        await asyncio.sleep(1.02)
        assert len(await peers["slow"].entries()) == 10
        assert len(await peers["later"].entries()) == 5
        await say(world, "subscription_rates", None)
        assert len(await peers["slow"].entries()) == 20, "as each"
        await say(world, "subscription_dispatch_rate", None)
        assert len(await peers["slow"].entries()) == 260

    run(scenario, ledger_entries=1000)


def test_a_relative_rate_is_no_lag() -> None:
    async def scenario(world: World) -> None:
        sender = await filled(world, 100)
        await say(world, "dispatch_rate", DispatchRate(10, relative=True))
        peer = world.peer()
        await peer.subscribe()
        peer.flow(100_000)
        got = await peer.entries()
        assert len(got) == 10
        for number in range(200):
            await asyncio.sleep(0.1)
            sender.publish(5, first=100 + 5 * number)  # 50 a second
            got += await peer.entries()
        assert got == list(range(1100))

    run(scenario, ledger_entries=100_000)


# -- subscribing ---------------------------------------------------------------------------------


def test_a_consumer_that_comes_too_often_is_refused() -> None:
    async def scenario(world: World) -> None:
        peer = world.peer()
        await peer.produce()
        await say(world, "subscribe_rate", SubscribeRate(2, 10))

        async def subscribe(consumer_id: int = 1) -> BaseCommand:
            answer = await peer.subscribe(consumer_id=consumer_id, consumer_name="c")
            close = BaseCommand(type=BaseCommand.CLOSE_CONSUMER)
            close.close_consumer.consumer_id = consumer_id
            close.close_consumer.request_id = 7
            await peer.ask(close)
            return answer

        for _ in range(2):
            assert (await subscribe()).type == BaseCommand.SUCCESS
        refused = await subscribe()
        assert refused.error.error == ServerError.NOT_ALLOWED
        assert "2 times in 10 s" in refused.error.message
        assert (await subscribe(2)).type == BaseCommand.SUCCESS, "it is another one"
        await asyncio.sleep(5.1)
        assert (await subscribe()).type == BaseCommand.SUCCESS
        assert (await subscribe()).type == BaseCommand.ERROR
        await say(world, "subscribe_rate", SubscribeRate())
        assert (await subscribe()).type == BaseCommand.SUCCESS

    run(scenario)
