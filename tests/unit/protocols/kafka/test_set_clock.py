"""Somebody sets the broker's clock, a day forward or back: whoever is there stays, whoever is gone
is out in time. What is waited by is a clock that nobody sets; what is stored has dates."""

from __future__ import annotations

import asyncio

import pytest

from magnetar.protocols.kafka.coordination.coordinator import Coordinator
from magnetar.protocols.kafka.coordination.transaction import marked
from magnetar.protocols.kafka.coordination.transaction_states import TransactionEvent
from magnetar.wire.kafka.apis import ApiKey
from magnetar.wire.kafka.errors import ErrorCode
from magnetar.wire.kafka.transaction_messages import (
    AddOffsetsToTxnRequest,
    TxnOffsetCommitRequest,
    TxnOffsetPartition,
    TxnOffsetTopic,
)
from tests.unit.protocols.kafka.harness import KafkaWorld, run
from tests.unit.protocols.kafka.test_consumer_group_requests import begun as with_wide_topic
from tests.unit.protocols.kafka.test_consumer_group_requests import member
from tests.unit.protocols.kafka.test_group_requests import (
    beats,
    committed,
    joined,
    left,
    offset_of,
    synced,
)
from tests.unit.protocols.kafka.test_session import T
from tests.unit.protocols.kafka.test_share_requests import earliest, produced
from tests.unit.protocols.kafka.test_share_requests import joined as sharing
from tests.unit.protocols.kafka.test_transaction_requests import NAME, G, until
from tests.unit.protocols.kafka.test_transaction_requests import begun as transactional

DAY_S = 86_400.0
BOTH_WAYS = pytest.mark.parametrize("ahead_s", [DAY_S, -DAY_S])


@BOTH_WAYS
def test_members_of_a_classic_group_stay_and_the_dead_go(ahead_s: float) -> None:
    async def scenario(world: KafkaWorld) -> None:
        one, two = world.peer(), world.peer()
        dead = await joined(one)
        await synced(one, dead, {})
        world.ahead_s = ahead_s
        await asyncio.sleep(5)
        assert await beats(one, dead) is ErrorCode.NONE, "it is no five seconds since it was heard"
        world.ahead_s = 0.0
        await asyncio.sleep(5)
        assert await beats(one, dead) is ErrorCode.NONE
        world.ahead_s = ahead_s
        async with asyncio.timeout(20):  # its session, and the wait for who does not come
            alone = await joined(two)
        assert [each.member_id for each in alone.members] == [alone.member_id]
        assert await beats(one, dead) is ErrorCode.UNKNOWN_MEMBER_ID

    run(scenario)


@BOTH_WAYS
def test_who_commits_in_transactions_is_a_member_for_as_long_as_ever(ahead_s: float) -> None:
    """What it commits counts as its heartbeat, which went by the clock that is set: a day ahead,
    one that was gone had its partitions all day; a day back, one that was there lost them."""

    async def scenario(world: KafkaWorld) -> None:
        producer, one = await transactional(world), world.peer()
        join = await joined(one)
        await synced(one, join, {join.member_id: b"all"})
        asked = AddOffsetsToTxnRequest(NAME, *producer.own, G)
        assert (await producer.peer.ask(ApiKey.ADD_OFFSETS_TO_TXN, asked)).error_code == 0
        await asyncio.sleep(5)
        world.ahead_s = ahead_s
        topic = TxnOffsetTopic(T, [TxnOffsetPartition(0, 5)])
        sent = TxnOffsetCommitRequest(
            NAME, G, *producer.own, join.generation, join.member_id, topics=[topic]
        )
        found = await producer.peer.ask(ApiKey.TXN_OFFSET_COMMIT, sent)
        assert found.topics[0].partitions[0].error_code == 0
        await asyncio.sleep(8)
        assert await beats(one, join) is ErrorCode.NONE, "it is no eight seconds"
        found = await producer.peer.ask(ApiKey.TXN_OFFSET_COMMIT, sent)
        assert found.topics[0].partitions[0].error_code == 0
        await asyncio.sleep(15)
        assert await beats(one, join) is ErrorCode.UNKNOWN_MEMBER_ID, "its session is over"

    run(scenario)


@BOTH_WAYS
def test_members_of_a_consumer_group_stay_and_the_dead_go(ahead_s: float) -> None:
    async def scenario(world: KafkaWorld) -> None:
        await with_wide_topic(world)
        one = await member(world, "one")
        world.ahead_s = ahead_s
        await asyncio.sleep(30)
        assert (await one.beat()).error_code == ErrorCode.NONE
        two = await member(world, "two")
        for _ in range(12):
            await asyncio.sleep(5)  # meanwhile the first is silent for a minute
            await two.beat()
        assert len(two.partitions) == 4
        assert (await one.beat()).error_code == ErrorCode.UNKNOWN_MEMBER_ID

    run(scenario)


@BOTH_WAYS
def test_what_a_member_of_a_share_group_has_is_its_own_for_as_long_as_ever(ahead_s: float) -> None:
    async def scenario(world: KafkaWorld) -> None:
        await earliest(world)
        one, two = await sharing(world, "a"), await sharing(world, "b")
        await produced(world, 2)
        assert await one.acquired() == [(0, 1, 1)]
        world.ahead_s = ahead_s
        await asyncio.sleep(20)
        assert await two.acquired(wait_ms_max=0) == [], "the lock lasts 30 s"
        await asyncio.sleep(11)
        assert await two.acquired() == [(0, 1, 2)]
        assert (await one.beat()).error_code == ErrorCode.NONE, "the session lasts 45 s"
        await asyncio.sleep(60)
        assert (await one.beat()).error_code == ErrorCode.UNKNOWN_MEMBER_ID

    run(scenario)


@BOTH_WAYS
def test_transactions_are_open_for_as_long_as_their_producer_asked_for(ahead_s: float) -> None:
    async def scenario(world: KafkaWorld) -> None:
        producer = await transactional(world, timeout_ms=60_000)
        await producer.open_with(1)
        await asyncio.sleep(5)
        world.ahead_s = ahead_s
        await asyncio.sleep(40)
        assert await producer.produce(2) is ErrorCode.NONE
        assert await producer.end(True) is ErrorCode.NONE
        await producer.open_with(3)
        world.ahead_s = 0.0
        end = world.log().positions.end_offset
        await until(lambda: world.log().positions.end_offset == end + 1)
        assert await producer.end(True) is ErrorCode.PRODUCER_FENCED

    run(scenario)


@BOTH_WAYS
def test_a_transaction_that_was_just_begun_is_not_open_for_a_day(ahead_s: float) -> None:
    async def scenario(world: KafkaWorld) -> None:
        producer = await transactional(world, timeout_ms=60_000)
        assert await producer.add() is ErrorCode.NONE
        world.ahead_s = ahead_s
        await asyncio.sleep(40)
        assert await producer.produce(1) is ErrorCode.NONE
        assert await producer.end(True) is ErrorCode.NONE

    run(scenario)


def test_one_that_ends_as_it_is_late_is_let_be() -> None:
    async def scenario(world: KafkaWorld) -> None:
        producer = await transactional(world, timeout_ms=60_000)
        assert await producer.add() is ErrorCode.NONE
        transactions = world.server.transactions
        shard = await transactions.coordinator.shard(NAME)
        await asyncio.sleep(59.5)
        async with transactions._locks.held(NAME):
            await asyncio.sleep(2)  # the look waits
            ended = marked(
                shard.log.state.transactions[NAME].moved(TransactionEvent.COMMITTED, 1), 1
            )
            await transactions._keep(shard, NAME, ended)
        await asyncio.sleep(5)
        record = await transactions.find(NAME)
        assert record == ended
        assert await producer.add() is ErrorCode.NONE
        await asyncio.sleep(65)
        assert await producer.end(True) is ErrorCode.PRODUCER_FENCED, "others are looked at still"

    run(scenario)


@BOTH_WAYS
def test_transactional_ids_are_known_as_long_as_is_said(ahead_s: float) -> None:
    """By a clock that was set ahead by more all producers were forgotten that had no transaction
    open just then; set back, nobody was."""

    async def scenario(world: KafkaWorld) -> None:
        producer = await transactional(world)
        await producer.transaction(True, 1)
        world.ahead_s = ahead_s
        await asyncio.sleep(3_000)
        producer.peer = world.peer()  # the connection was idle for too long
        await producer.transaction(True, 2)
        await asyncio.sleep(3_000)
        assert await world.server.transactions.find(NAME) is not None
        await asyncio.sleep(1_000)
        assert await world.server.transactions.find(NAME) is None

    run(scenario, transactional_ids_retention_ms=3_600_000)


def test_offsets_of_a_group_without_members_are_kept_as_long_as_is_said() -> None:
    """By a clock that was set ahead by more they had expired, of all such groups at once."""

    async def scenario(world: KafkaWorld) -> None:
        peer = world.peer()
        join = await joined(peer)
        await synced(peer, join, {})
        assert await committed(peer, 5, join) is ErrorCode.NONE
        await left(peer, join)
        world.ahead_s = DAY_S
        await asyncio.sleep(3_000)
        assert (await offset_of(world.peer()))[0] == 5
        await asyncio.sleep(1_000)
        assert (await offset_of(world.peer()))[0] == -1

    run(scenario, offsets_retention_ms=3_600_000)


@BOTH_WAYS
def test_when_a_group_became_empty_is_stored_as_a_date(ahead_s: float) -> None:
    async def scenario(world: KafkaWorld) -> None:
        peer = world.peer()
        world.ahead_s = ahead_s
        join = await joined(peer)
        await synced(peer, join, {})
        await left(peer, join)
        coordinator: Coordinator = world.server.coordinator
        shard = await coordinator.shard("group")
        await until(lambda: not shard.log.state.classics["group"].members)
        stored_ms = shard.log.state.classics["group"].empty_since_ms
        assert abs(stored_ms - world.services.now_ms()) < 10_000
        await asyncio.sleep(100)
        await world.broker.topics.unload(shard.log.topic.name)
        again = (await coordinator.shard("group")).groups["group"]
        silent_ms = world.services.steady_ms() - again.empty_since_ms
        assert 100_000 <= silent_ms < 120_000

    run(scenario)
