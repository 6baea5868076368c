"""Limited rates, as Kafka's clients hear of them."""

from __future__ import annotations

import asyncio

import pytest

from magnetar.cluster.policies.rate_values import DispatchRate, PublishRate
from magnetar.cluster.topic_name import parse_topic
from magnetar.wire.kafka.apis import ApiKey
from magnetar.wire.kafka.fetch_messages import FetchResponse
from magnetar.wire.kafka.produce_messages import ProduceResponse
from tests.unit.protocols.kafka.harness import KafkaPeer, KafkaWorld, batch, run
from tests.unit.protocols.kafka.test_session import (
    T,
    fetching,
    outcome,
    produced,
    producing,
    values,
)
from tests.unit.protocols.kafka.test_share_requests import earliest, joined


async def say(world: KafkaWorld, field: str, value: object) -> None:
    name = parse_topic(f"{T}-partition-0")
    await world.services.control.policies.set_topic(name, field, value)
    for _ in range(20):
        await asyncio.sleep(0)


async def sent(peer: KafkaPeer, records: bytes) -> ProduceResponse:
    answer = await peer.ask(ApiKey.PRODUCE, producing(records))
    assert isinstance(answer, ProduceResponse)
    assert outcome(answer).error_code == 0
    return answer


async def asked(peer: KafkaPeer, offset: int) -> FetchResponse:
    answer = await peer.ask(ApiKey.FETCH, fetching(offset, wait_ms=100))
    assert isinstance(answer, FetchResponse)
    return answer


def test_a_producer_is_told_how_long_to_wait_and_is_not_read_meanwhile() -> None:
    async def scenario(world: KafkaWorld) -> None:
        peer = world.peer()
        await produced(peer, batch(1))
        await say(world, "publish_rate", PublishRate(10))
        assert (await sent(peer, batch(5))).throttle_time_ms == 0
        assert peer.transport.reading
        told = await sent(peer, batch(25))
        assert told.throttle_time_ms == pytest.approx(2100, abs=2), "20 too many, and one more"
        assert not peer.transport.reading
        await asyncio.sleep(2.05)
        assert not peer.transport.reading
        await asyncio.sleep(0.1)
        assert peer.transport.reading
        assert (await sent(peer, batch(1))).throttle_time_ms in range(1, 101)
        await say(world, "publish_rate", None)
        await asyncio.sleep(1)
        assert (await sent(peer, batch(500))).throttle_time_ms == 0

    run(scenario)


def test_producers_that_do_not_wait_for_answers_are_held_back() -> None:
    async def scenario(world: KafkaWorld) -> None:
        peer = world.peer()
        await produced(peer, batch(1))
        await say(world, "publish_rate", PublishRate(10))
        request = producing(batch(5))
        request.acks = 0
        frames = [peer.frame(ApiKey.PRODUCE, request) for _ in range(8)]
        peer.feed(b"".join(frames))
        await asyncio.sleep(0.01)
        assert len(world.stored()) == 1 + 2, "the second one has used it up"
        await asyncio.sleep(5)
        assert len(world.stored()) == 1 + 8

    run(scenario)


def test_a_fetch_gets_what_may_pass_and_else_how_long_to_wait() -> None:
    async def scenario(world: KafkaWorld) -> None:
        peer = world.peer()
        for number in range(3):
            await produced(peer, batch(20, 20 * number))
        await say(world, "dispatch_rate", DispatchRate(10))
        first = await asked(peer, 0)
        found = first.topics[0].partitions[0]
        assert values(found) == [b"%d" % n for n in range(60)]
        assert first.throttle_time_ms == 0
        second = await asked(peer, 20)
        assert second.topics[0].partitions[0].records in (None, [], b"", memoryview(b""))
        assert second.throttle_time_ms == pytest.approx(5100, abs=2)
        assert not peer.transport.reading
        await asyncio.sleep(5.2)
        assert peer.transport.reading
        third = await asked(peer, 20)
        assert values(third.topics[0].partitions[0])[0] == b"20"

    run(scenario)


def test_a_fetch_of_nothing_new_waits_as_ever() -> None:
    async def scenario(world: KafkaWorld) -> None:
        peer = world.peer()
        await produced(peer, batch(1))
        await say(world, "dispatch_rate", DispatchRate(1))
        await asked(peer, 0)
        told = await asked(peer, 1)
        assert told.throttle_time_ms == 0

    run(scenario)


def test_a_fetch_reads_no_more_entries_than_may_pass() -> None:
    async def scenario(world: KafkaWorld) -> None:
        peer = world.peer()
        for number in range(30):
            await produced(peer, batch(1, number))
        await say(world, "dispatch_rate", DispatchRate(10))
        found: list[bytes | None] = []
        waited_ms = 0
        while len(found) < 30:
            answer = await asked(peer, len(found))
            part = answer.topics[0].partitions[0]
            if part.records:
                found += values(part)
            waited_ms += answer.throttle_time_ms
            await asyncio.sleep(answer.throttle_time_ms / 1000 + 0.001)
        assert found == [b"%d" % n for n in range(30)]
        assert 1800 <= waited_ms <= 2100, "a burst of a second's, and the rest in two"

    run(scenario)


def test_a_share_group_gets_what_may_pass_and_waits_for_the_rest() -> None:
    async def scenario(world: KafkaWorld) -> None:
        peer = world.peer()
        for number in range(8):
            await produced(peer, batch(5, 5 * number))
        await say(world, "dispatch_rate", DispatchRate(10))
        await earliest(world)
        a, b = await joined(world, "a"), await joined(world, "b")
        loop = asyncio.get_running_loop()
        begun_s = loop.time()
        assert await a.acquired() == [(0, 9, 1)]
        assert await b.acquired(wait_ms_max=50) == [], "none of it may pass"
        assert loop.time() - begun_s < 0.2
        found: list[int] = []
        while len(found) < 30:
            for first, last, _ in await b.acquired(wait_ms_max=5000):
                found += range(first, last + 1)
            assert len(found) <= 10 * (loop.time() - begun_s) + 5, "and one batch"
        assert found == list(range(10, 40))
        assert loop.time() - begun_s == pytest.approx(2.6, abs=0.2)
        await say(world, "dispatch_rate", None)

    run(scenario)
