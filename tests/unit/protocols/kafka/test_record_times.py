"""Whose clock records have: their producer's, within bounds, or the broker's."""

from __future__ import annotations

import asyncio
from typing import Any

from magnetar.cluster.policies.policies import KafkaPolicy
from magnetar.cluster.topic_name import parse_topic
from magnetar.protocols.kafka.topic_settings import LIMIT_MAX, SET
from magnetar.wire.kafka.admin_messages import ConfigChange
from magnetar.wire.kafka.apis import ApiKey
from magnetar.wire.kafka.batches import APPEND_TIME, appended_at, check_produced
from magnetar.wire.kafka.compression import Codec
from magnetar.wire.kafka.errors import ErrorCode
from magnetar.wire.kafka.fetch_messages import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from magnetar.wire.kafka.produce_messages import (
    ProducedPartition,
    ProducePartition,
    ProduceRequest,
    ProduceTopic,
)
from magnetar.wire.kafka.recompressing import recompressed
from magnetar.wire.kafka.records import KafkaRecord, batch_of, read_batch, timestamp_of
from tests.unit.protocols.kafka.harness import KafkaPeer, KafkaWorld, batch, rebuilt, run
from tests.unit.protocols.kafka.test_topic_settings import changed, described, told, values

TYPE = "message.timestamp.type"


async def sent(peer: KafkaPeer, data: bytes) -> ProducedPartition:
    part = ProducePartition(0, memoryview(data))
    asked = ProduceRequest(None, -1, 60_000, [ProduceTopic("t", [part])])
    found: Any = (await peer.ask(ApiKey.PRODUCE, asked, 9)).topics[0].partitions[0]
    assert isinstance(found, ProducedPartition)
    return found


async def first_at(peer: KafkaPeer, time_ms: int) -> tuple[int, int]:
    part = ListOffsetsPartition(0, timestamp_ms=time_ms)
    asked = ListOffsetsRequest(-1, topics=[ListOffsetsTopic("t", [part])])
    found = (await peer.ask(ApiKey.LIST_OFFSETS, asked, 7)).topics[0].partitions[0]
    return found.offset, found.timestamp_ms


async def says(world: KafkaWorld, peer: KafkaPeer, **wanted: str) -> None:
    """The topic does, and is told of it; it is open then."""
    changes = [ConfigChange(f"message.timestamp.{k}", SET, v) for k, v in wanted.items()]
    assert (await changed(peer, *changes)).error_code == 0
    topic = (await world.services.partition("t", 0)).topic
    policy = (await world.services.topics.policies.of(parse_topic("t"))).kafka
    await told(lambda: topic.policy.kafka == policy)


def test_records_have_the_time_of_their_append() -> None:
    async def scenario(world: KafkaWorld) -> None:
        peer = world.peer()
        assert (await described(peer))[TYPE].value == "CreateTime"
        assert (await sent(peer, batch(2))).log_append_time_ms == -1
        await says(world, peer, type="LogAppendTime")
        assert values(await described(peer)) == {TYPE: "LogAppendTime"}
        known = {"producer_id": 5, "producer_epoch": 0}
        before_ms = world.services.now_ms()
        own = batch(3, 2, **known, base_sequence=0)
        first = await sent(peer, own)
        assert before_ms <= first.log_append_time_ms <= world.services.now_ms()
        await asyncio.sleep(1)
        later = await sent(peer, batch(2, 5, **known, base_sequence=3))
        assert later.log_append_time_ms >= first.log_append_time_ms + 1000
        again = await sent(peer, own)
        assert (again.base_offset, again.log_append_time_ms) == (2, first.log_append_time_ms)
        stored = world.stored()
        assert [check_produced(each).attributes & APPEND_TIME for each in stored] == [0, 8, 8]
        taken = [(header, record) for each in stored for header, record in _records(each)]
        assert [record.value for _, record in taken] == [b"%d" % n for n in (0, 1, *range(2, 7))]
        times = [timestamp_of(header, record) for header, record in taken]
        made = [1000, 1001]
        assert times == [*made, *[first.log_append_time_ms] * 3, *[later.log_append_time_ms] * 2]
        assert await first_at(peer, 2000) == (2, first.log_append_time_ms)
        after_ms = first.log_append_time_ms + 1
        assert await first_at(peer, after_ms) == (5, later.log_append_time_ms)
        # What is known of producers is read from the log again, and times with it.
        await world.broker.topics.unload(parse_topic("t-partition-0"))
        again = await sent(peer, own)
        assert (again.base_offset, again.log_append_time_ms) == (2, first.log_append_time_ms)
        await says(world, peer, type="CreateTime")
        assert (await sent(peer, batch())).log_append_time_ms == -1
        assert values(await described(peer)) == {}

    run(scenario)


def _records(data: memoryview) -> list[tuple[Any, KafkaRecord]]:
    header, records = read_batch(data)
    return [(header, each) for each in records]


def test_a_producer_does_not_say_that_it_is_the_broker() -> None:
    async def scenario(world: KafkaWorld) -> None:
        peer = world.peer()
        for _ in range(2):  # also when the topic is open
            found = await sent(peer, rebuilt(batch(), attributes=APPEND_TIME))
            assert found.error_code == ErrorCode.INVALID_TIMESTAMP
            assert "message.timestamp.type" in (found.error_message or "")
        assert world.stored() == []

    run(scenario)


def test_a_stamped_batch_is_sound_and_the_one_that_came_is_as_it_was() -> None:
    came = batch(3)
    stamped = appended_at(came, 77)
    assert came == batch(3)
    header, records = read_batch(memoryview(stamped))
    assert check_produced(memoryview(stamped)) == header
    assert {timestamp_of(header, each) for each in records} == {77}
    assert header.append_time_ms == 77
    assert records == read_batch(memoryview(came))[1]


def timed(*times_ms: int) -> bytes:
    records = [KafkaRecord(n, at - times_ms[0], None, b"x") for n, at in enumerate(times_ms)]
    return batch_of(records, times_ms[0])


def test_times_that_are_too_far_are_refused() -> None:
    """On a loop of real time: records are looked at on threads."""

    async def main() -> None:
        world = await KafkaWorld().start()
        peer = world.peer()
        try:
            await says(world, peer, **{"before.max.ms": "60000", "after.max.ms": "3600000"})
            found = values(await described(peer))
            assert found == {
                "message.timestamp.before.max.ms": "60000",
                "message.timestamp.after.max.ms": "3600000",
            }
            hour, now_ms = 3_600_000, world.services.now_ms()
            for data, error, words in (
                (timed(now_ms), 0, ""),
                (timed(now_ms, now_ms - 200_000, now_ms), 32, "before.max.ms"),
                (timed(now_ms, now_ms + 2 * hour), 32, "after.max.ms"),
                (timed(now_ms, now_ms + hour - 1000), 0, ""),
                (timed(-1), 0, ""),
                (bytes(recompressed(Codec.GZIP, memoryview(timed(5)))), 32, "before.max.ms"),
                (rebuilt(timed(now_ms), attributes=Codec.SNAPPY), ErrorCode.INVALID_RECORD, ""),
                (rebuilt(timed(now_ms), attributes=7), ErrorCode.INVALID_RECORD, ""),
            ):
                said = await sent(peer, data)
                assert (said.error_code, words in (said.error_message or "")) == (error, True)
            assert len(world.stored()) == 3
            await says(world, peer, **{"before.max.ms": str(LIMIT_MAX)})
            assert (await sent(peer, timed(5))).error_code == 0
            await says(world, peer, type="LogAppendTime")
            far = await sent(peer, timed(now_ms + 2 * hour))
            assert far.error_code == 0, "nobody will see that time"
        finally:
            await world.broker.close()

    asyncio.run(asyncio.wait_for(main(), 60))


def test_bounds_are_of_producers_times() -> None:
    assert not KafkaPolicy().bounds_times
    assert KafkaPolicy(before_ms_max=0).bounds_times
    assert KafkaPolicy(after_ms_max=0).bounds_times
    assert not KafkaPolicy(append_time=True, after_ms_max=0).bounds_times
