"""Requests of one connection: order, repeats, waits, and what is refused."""

from __future__ import annotations

import asyncio
import socket
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from magnetar.app.checks import unread_check
from magnetar.cluster.topic_name import parse_topic
from magnetar.env.loop_turns import THINGS_PER_TURN
from magnetar.log.managed.front import EpochsOfLedgers
from magnetar.log.seam import Content
from magnetar.model.errors import EntryDamagedError, LedgerError, MetadataFormatError
from magnetar.model.ids import Position
from magnetar.protocols.kafka.handlers import fetch
from magnetar.protocols.kafka.handlers.fetch import LOST_WAIT_S
from magnetar.protocols.kafka.partitions import early_batches
from magnetar.protocols.kafka.server import SWEEP_S
from magnetar.protocols.kafka.session import FRAMES_PER_TURN, KafkaSession
from magnetar.protocols.kafka.unread import LISTED_S
from magnetar.wire.kafka.apis import ApiKey
from magnetar.wire.kafka.batches import (
    TIMESTAMP_MAX,
    TRANSACTIONAL,
    build_batch,
    read_batch_header,
    split,
)
from magnetar.wire.kafka.cluster_messages import ApiVersionsRequest, MetadataRequest, MetadataTopic
from magnetar.wire.kafka.errors import ErrorCode
from magnetar.wire.kafka.fetch_messages import (
    ClientFetchRequest,
    EpochPartition,
    EpochTopic,
    FetchedPartition,
    FetchPartition,
    FetchTopic,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
    OffsetForLeaderEpochRequest,
)
from magnetar.wire.kafka.offset_messages import CommitPartition, CommitTopic, OffsetCommitRequest
from magnetar.wire.kafka.produce_messages import (
    InitProducerIdRequest,
    ProducedPartition,
    ProducePartition,
    ProduceRequest,
    ProduceTopic,
)
from magnetar.wire.kafka.records import KafkaRecord, batch_of, read_batch
from magnetar.wire.kafka.topic_shapes import TopicPartitions
from magnetar.wire.kafka.transaction_messages import AddPartitionsToTxnRequest
from magnetar.wire.pulsar.codes import Compression
from magnetar.wire.pulsar.writing import Columns, EntryBuilder, Head
from tests.unit.protocols.kafka.harness import KafkaPeer, KafkaWorld, batch, rebuilt, run

T = "t"


def producing(records: bytes, acks: int = -1, topic: str = T, index: int = 0) -> ProduceRequest:
    partition = ProducePartition(index, records)
    return ProduceRequest(acks=acks, timeout_ms=1_000, topics=[ProduceTopic(topic, [partition])])


def outcome(response: Any) -> ProducedPartition:
    found = response.topics[0].partitions[0]
    assert isinstance(found, ProducedPartition)
    return found


async def produced(peer: KafkaPeer, records: bytes) -> ProducedPartition:
    return outcome(await peer.ask(ApiKey.PRODUCE, producing(records)))


def fetching(offset: int, *, wait_ms: int = 0, least: int = 1, most: int = 1 << 20) -> Any:
    partition = FetchPartition(0, fetch_offset=offset, partition_bytes_max=most)
    topic = FetchTopic(T, partitions=[partition])
    return ClientFetchRequest(
        wait_ms_max=wait_ms, bytes_min=least, bytes_max=most, topics=[topic], session_epoch=-1
    )


async def fetched(peer: KafkaPeer, offset: int, **bounds: int) -> FetchedPartition:
    response = await peer.ask(ApiKey.FETCH, fetching(offset, **bounds))
    found = response.topics[0].partitions[0]
    assert isinstance(found, FetchedPartition)
    return found


def values(found: FetchedPartition) -> list[bytes | None]:
    assert isinstance(found.records, memoryview)
    return [record.value for each in split(found.records) for record in read_batch(each)[1]]


def test_produce_requests_do_not_wait_for_each_other_and_answers_keep_their_order() -> None:
    async def scenario(world: KafkaWorld) -> None:
        peer = world.peer()
        assert (await produced(peer, batch(2))).base_offset == 0
        world.log().held = True
        frames = [peer.frame(ApiKey.PRODUCE, producing(batch(3))) for _ in range(3)]
        frames.append(peer.frame(ApiKey.METADATA, MetadataRequest(topics=[])))
        peer.feed(b"".join(frames))
        assert len(world.log()._pending) == 3, "all are appended at once"
        assert await peer.quiet(), "metadata waits for its turn"
        world.log().held = False
        world.log().release()
        answers = [await peer.next() for _ in range(4)]
        assert [number for number, _ in answers] == [2, 3, 4, 5]
        assert [outcome(answer).base_offset for _, answer in answers[:3]] == [2, 5, 8]

    run(scenario)


def test_a_topic_that_is_not_open_holds_back_what_comes_behind() -> None:
    async def scenario(world: KafkaWorld) -> None:
        peer = world.peer()
        peer.feed(b"".join(peer.frame(ApiKey.PRODUCE, producing(batch(1, n))) for n in range(5)))
        answers = [await peer.next() for _ in range(5)]
        assert [outcome(answer).base_offset for _, answer in answers] == [0, 1, 2, 3, 4]
        assert values(await fetched(peer, 0)) == [b"0", b"1", b"2", b"3", b"4"]

    run(scenario)


@pytest.fixture
def open_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """No batch that left out some is waited for."""
    monkeypatch.setattr(early_batches, "WAIT_S", 0.0)


@pytest.mark.usefixtures("open_for_long")
def test_a_repeat_is_answered_as_the_first_and_stored_once() -> None:
    async def scenario(world: KafkaWorld) -> None:
        peer, other = world.peer(), world.peer()
        given = await peer.ask(ApiKey.INIT_PRODUCER_ID, InitProducerIdRequest(None))
        own = {"producer_id": given.producer_id, "producer_epoch": 0}
        first = batch(2, base_sequence=0, **own)
        assert (await produced(peer, first)).base_offset == 0
        assert (await produced(other, first)).base_offset == 0
        world.log().held = True
        second = batch(2, base_sequence=2, **own)
        peer.tell(ApiKey.PRODUCE, producing(second))
        other.tell(ApiKey.PRODUCE, producing(second))
        assert await peer.quiet()
        assert await other.quiet(), "it is not stored yet"
        world.log().held = False
        world.log().release()
        for each in (peer, other):
            assert outcome((await each.next())[1]).base_offset == 2
        assert len(world.stored()) == 2
        gap = await produced(peer, batch(1, base_sequence=9, **own))
        assert gap.error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        assert "sequence 9" in (gap.error_message or "")

    run(scenario)


@pytest.mark.usefixtures("open_for_long")
def test_what_is_known_of_producers_is_read_from_the_log_again() -> None:
    """Over a reload of the topic, and after an append that failed."""

    async def scenario(world: KafkaWorld) -> None:
        peer = world.peer()
        own = {"producer_id": 7, "producer_epoch": 0}
        batches = [batch(2, base_sequence=2 * n, **own) for n in range(12)]
        for each in batches[:8]:
            assert (await produced(peer, each)).error_code == 0
        await world.broker.topics.unload(parse_topic(f"{T}-partition-0"))
        assert (await produced(peer, batches[7])).base_offset == 14, "a repeat"
        world.log().failing = LedgerError("for a test")
        failed = await produced(peer, batches[8])
        assert failed.error_code == ErrorCode.KAFKA_STORAGE_ERROR
        world.log().failing = None
        await asyncio.sleep(1.0)  # the topic takes nothing for a moment
        early = await produced(world.peer(), batches[9])
        assert early.error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        assert (await produced(peer, batches[8])).base_offset == 16
        assert (await produced(peer, batches[9])).base_offset == 18

    run(scenario)


def test_acks_0_has_no_answer_and_an_error_of_it_closes() -> None:
    async def scenario(world: KafkaWorld) -> None:
        peer = world.peer()
        await produced(peer, batch())
        peer.tell(ApiKey.PRODUCE, producing(batch(1, 1), acks=0))
        assert await peer.quiet()
        assert values(await fetched(peer, 0)) == [b"0", b"1"]
        peer.tell(ApiKey.PRODUCE, producing(b"no batch", acks=0))
        assert await peer.quiet()
        assert peer.session.closed

    run(scenario)


@pytest.mark.parametrize(
    ("records", "error"),
    [
        (b"", ErrorCode.INVALID_RECORD),
        (bytes(100), ErrorCode.INVALID_RECORD),
        (bytes(16) + b"\1" + b"\x10" * 83, ErrorCode.INVALID_RECORD),  # of the format before
        (batch()[:-1] + b"?", ErrorCode.CORRUPT_MESSAGE),
        (batch(attributes=TRANSACTIONAL), ErrorCode.INVALID_RECORD),
        (batch(attributes=5), ErrorCode.INVALID_RECORD),  # compressed by nobody knows what
        (bytes((5 << 20) + 1000), ErrorCode.MESSAGE_TOO_LARGE),
    ],
    ids=lambda each: each.name if isinstance(each, ErrorCode) else "",
)
def test_a_batch_is_refused(records: bytes, error: ErrorCode) -> None:
    async def scenario(world: KafkaWorld) -> None:
        peer = world.peer()
        for _ in range(2):  # also when the topic is open
            found = await produced(peer, records)
            assert found.error_code == error
            assert found.error_message
        assert world.stored() == []

    run(scenario)


def test_a_producer_may_ask_for_known_acknowledgements_only() -> None:
    async def scenario(world: KafkaWorld) -> None:
        asked = producing(batch(), acks=2)
        found = outcome(await world.peer().ask(ApiKey.PRODUCE, asked))
        assert found.error_code == ErrorCode.INVALID_REQUIRED_ACKS

    run(scenario)


def test_a_fetch_gives_whole_batches_from_any_offset_in_them() -> None:
    async def scenario(world: KafkaWorld) -> None:
        peer = world.peer()
        for _ in range(4):
            await produced(peer, batch(3))
        for offset in range(12):
            found = await fetched(peer, offset)
            assert isinstance(found.records, memoryview)
            assert read_batch_header(found.records).base_offset == offset // 3 * 3
            assert len(values(found)) == 12 - offset // 3 * 3
            assert found.high_watermark == found.last_stable_offset == 12
        small = await fetched(peer, 0, most=1)
        assert len(values(small)) == 3, "one batch, whatever the bound"
        assert values(await fetched(peer, 12)) == []
        for offset in (-1, 13):
            assert (await fetched(peer, offset)).error_code == ErrorCode.OFFSET_OUT_OF_RANGE

    run(scenario)


class _HeldMore:
    """A leader that was elected, and does not know yet that the last of its log is committed."""

    end_offset = 5

    async def wait_whole(self) -> None:
        raise NotImplementedError


def test_who_has_read_further_than_a_new_leader_can_show_waits() -> None:
    """Out of range it would begin anew, where its settings say."""

    async def scenario(world: KafkaWorld) -> None:
        peer = world.peer()
        await produced(peer, batch(3))
        world.log().opening = _HeldMore()
        for offset in (3, 4, 5):
            found = await fetched(peer, offset)
            assert (found.error_code, values(found)) == (ErrorCode.NONE, [])
            assert found.high_watermark == 3
        assert (await fetched(peer, 6)).error_code == ErrorCode.OFFSET_OUT_OF_RANGE

    run(scenario)


def test_what_is_fetched_is_what_was_sent_but_for_the_stamp() -> None:
    async def scenario(world: KafkaWorld) -> None:
        peer, sent = world.peer(), batch(3)
        await produced(peer, batch(2))
        await produced(peer, sent)
        found = await fetched(peer, 2)
        assert isinstance(found.records, memoryview)
        assert bytes(found.records[16:]) == sent[16:]
        assert bytes(found.records) == bytes(world.stored()[1])

    run(scenario)


def test_a_fetch_of_a_session_is_sent_back_for_all_of_its_partitions() -> None:
    """It names what has changed since another broker answered at this address: all else would
    never be fetched, and nothing be told until its wait was over."""

    async def scenario(world: KafkaWorld) -> None:
        peer = world.peer()
        asked = fetching(0, wait_ms=30_000)
        asked.session_id, asked.session_epoch, asked.topics = 7, 3, []
        begun_s = asyncio.get_running_loop().time()
        answer = await peer.ask(ApiKey.FETCH, asked)
        assert answer.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
        assert asyncio.get_running_loop().time() - begun_s < 1
        asked.session_epoch = 0
        answer = await peer.ask(ApiKey.FETCH, replace(asked, wait_ms_max=0))
        assert (answer.error_code, answer.session_id) == (0, 0)

    run(scenario)


def test_a_fetch_waits_until_there_is_enough_or_time_is_over() -> None:
    async def scenario(world: KafkaWorld) -> None:
        peer, producer = world.peer(), world.peer()
        await produced(producer, batch())
        peer.tell(ApiKey.FETCH, fetching(1, wait_ms=5_000))
        assert await peer.quiet()
        await produced(producer, batch(1, 1))
        answer = (await peer.next())[1]
        assert values(answer.topics[0].partitions[0]) == [b"1"]
        begun = asyncio.get_running_loop().time()
        assert values(await fetched(peer, 2, wait_ms=700)) == []
        assert asyncio.get_running_loop().time() - begun >= 0.7
        peer.tell(ApiKey.FETCH, fetching(1, wait_ms=5_000, least=200))
        assert await peer.quiet(), "one batch is less than it wants"
        await produced(producer, batch(20))
        answer = (await peer.next())[1]
        assert len(values(answer.topics[0].partitions[0])) == 21

    run(scenario)


def test_what_comes_between_a_look_and_the_watch_is_found(monkeypatch: Any) -> None:
    async def scenario(world: KafkaWorld) -> None:
        peer, producer = world.peer(), world.peer()
        await produced(producer, batch())
        collect = fetch._Collected.collect

        async def and_then(looked: fetch._Collected) -> Any:
            found = await collect(looked)
            monkeypatch.setattr(fetch._Collected, "collect", collect)
            await produced(producer, batch(1, 1))
            return found

        monkeypatch.setattr(fetch._Collected, "collect", and_then)
        begun = asyncio.get_running_loop().time()
        assert values(await fetched(peer, 1, wait_ms=5_000)) == [b"1"]
        assert asyncio.get_running_loop().time() - begun < 5

    run(scenario)


def _of_many(key: ApiKey) -> Any:
    """A request that names a partition a thousand times."""
    count = 1_000
    if key == ApiKey.FETCH:
        request = fetching(0)
        request.topics[0].partitions *= count
        return request
    if key == ApiKey.LIST_OFFSETS:
        parts = [ListOffsetsPartition(0, timestamp_ms=-1) for _ in range(count)]
        return ListOffsetsRequest(topics=[ListOffsetsTopic(T, parts)])
    if key == ApiKey.OFFSET_FOR_LEADER_EPOCH:
        asked = [EpochPartition(0) for _ in range(count)]
        return OffsetForLeaderEpochRequest(topics=[EpochTopic(T, asked)])
    if key == ApiKey.ADD_PARTITIONS_TO_TXN:
        return AddPartitionsToTxnRequest("id", 1, 1, [TopicPartitions(T, [0] * count)])
    commits = [CommitPartition(0, 1) for _ in range(count)]
    return OffsetCommitRequest("group", topics=[CommitTopic(T, commits)])


@pytest.mark.parametrize(
    "key",
    [
        ApiKey.FETCH,
        ApiKey.LIST_OFFSETS,
        ApiKey.OFFSET_FOR_LEADER_EPOCH,
        ApiKey.ADD_PARTITIONS_TO_TXN,
        ApiKey.OFFSET_COMMIT,
    ],
)
def test_while_very_many_things_are_named_others_have_their_turns(
    key: ApiKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A million partitions in one request kept the loop for most of a minute."""

    async def scenario(world: KafkaWorld) -> None:
        peer = world.peer()
        await produced(peer, batch(1))
        of_one, turns, over = list[int](), 0, False
        look, has = fetch._check_epoch, type(world.services).has

        def noted(*said: Any) -> Any:
            of_one.append(turns)
            return look(*said)

        async def asked(*said: Any) -> bool:
            of_one.append(turns)
            return await has(*said)

        async def others() -> None:
            nonlocal turns
            while not over:
                turns += 1
                await asyncio.sleep(0)

        monkeypatch.setattr(fetch, "_check_epoch", noted)
        monkeypatch.setattr(type(world.services), "has", asked)
        ticking = asyncio.ensure_future(others())
        await peer.ask(key, _of_many(key))
        over = True
        await ticking
        assert len(of_one) >= 1_000
        assert max(Counter(of_one).values()) <= THINGS_PER_TURN

    run(scenario)


def test_a_fetch_ends_with_its_connection() -> None:
    """It held its topics, and was told of each append, until its time was over."""

    async def scenario(world: KafkaWorld) -> None:
        peer = world.peer()
        await produced(peer, batch())
        topic = world.services.topics.find(parse_topic("t-partition-0"))
        assert topic is not None
        peer.tell(ApiKey.FETCH, fetching(1, wait_ms=50_000))
        assert await peer.quiet()
        assert topic.in_use
        peer.session.connection_lost(None)
        assert await peer.quiet()
        assert not topic.in_use

    run(scenario)


def test_a_client_that_has_gone_while_its_fetch_waits_is_missed() -> None:
    """The connection is not read meanwhile, and so nobody hears of its end."""

    async def scenario(world: KafkaWorld) -> None:
        peer = world.peer()
        await produced(peer, batch())
        here, there = socket.socketpair()
        info = peer.transport.get_extra_info
        peer.transport.get_extra_info = lambda name, default=None: (  # type: ignore[method-assign]
            here if name == "socket" else info(name, default)
        )
        peer.tell(ApiKey.FETCH, fetching(1, wait_ms=50_000))
        await asyncio.sleep(2 * SWEEP_S)
        assert not peer.session.closed
        there.close()
        await asyncio.sleep(2 * SWEEP_S)
        assert peer.session.closed
        here.close()

    run(scenario)


def test_a_topic_is_in_use_while_it_is_fetched_from() -> None:
    """Where topics were unloaded soon, a fetch of many loaded the first ones again when it had the
    last ones, and so on until its time was over."""

    async def scenario(world: KafkaWorld) -> None:
        peer, producer = world.peer(), world.peer()
        await produced(producer, batch())
        topic = world.services.topics.find(parse_topic("t-partition-0"))
        assert topic is not None
        released: list[bool] = []
        topic._on_released = lambda each: released.append(each.in_use)
        peer.tell(ApiKey.FETCH, fetching(1, wait_ms=5_000))
        assert await peer.quiet()
        assert topic.in_use
        await produced(producer, batch(1, 1))
        assert values((await peer.next())[1].topics[0].partitions[0]) == [b"1"]
        assert not topic.in_use
        assert released[-1] is False, "and is looked at again"

    run(scenario)


@pytest.mark.parametrize("since", [0, 4, 5])
def test_epochs_that_are_not_the_leaders_are_refused(since: int) -> None:
    """But for earlier ones since which nothing is gone."""

    class Epochs(EpochsOfLedgers):
        whole_since = since

    async def scenario(world: KafkaWorld) -> None:
        peer = world.peer()
        await produced(peer, batch())
        world.log().epoch = 5
        world.log().epochs = Epochs(5, lambda: 1)
        for epoch, error in (
            (3, ErrorCode.FENCED_LEADER_EPOCH if since > 3 else ErrorCode.NONE),
            (4, ErrorCode.FENCED_LEADER_EPOCH if since > 4 else ErrorCode.NONE),
            (6, ErrorCode.UNKNOWN_LEADER_EPOCH),
            (5, ErrorCode.NONE),
            (-1, ErrorCode.NONE),
        ):
            asked = fetching(0)
            asked.topics[0].partitions[0].current_leader_epoch = epoch
            answer = await peer.ask(ApiKey.FETCH, asked)
            assert answer.topics[0].partitions[0].error_code == error

    run(scenario)


def test_offsets_are_found_by_time() -> None:
    async def scenario(world: KafkaWorld) -> None:
        peer = world.peer()
        for number in range(4):
            first_ms = 1_000 * (number + 1)
            sent = batch(3, base_timestamp_ms=first_ms, max_timestamp_ms=first_ms + 2)
            await produced(peer, sent)
        for time_ms, offset in ((-2, 0), (-1, 12), (0, 0), (1_001, 1), (2_500, 6), (9_000, -1)):
            part = ListOffsetsPartition(0, timestamp_ms=time_ms)
            asked = ListOffsetsRequest(topics=[ListOffsetsTopic(T, [part])])
            answer = await peer.ask(ApiKey.LIST_OFFSETS, asked)
            found = answer.topics[0].partitions[0]
            assert (found.error_code, found.offset) == (0, offset), time_ms

    run(scenario)


def test_a_time_that_a_batch_has_not_is_looked_for_many_batches_at_a_time() -> None:
    """Compaction may have taken the record that had it: each batch behind it was read alone, and of
    a million of them a client had no answer."""

    async def scenario(world: KafkaWorld) -> None:
        peer = world.peer()
        await produced(peer, batch(1, base_timestamp_ms=1_000, max_timestamp_ms=10_000))
        for _ in range(100):
            await produced(peer, batch(1, base_timestamp_ms=2_000, max_timestamp_ms=2_000))
        await produced(peer, batch(1, base_timestamp_ms=9_000, max_timestamp_ms=9_000))
        log, reads = world.log(), 0
        read_cached = log.read_cached

        def counted(*asked: Any) -> Any:
            nonlocal reads
            reads += 1
            return read_cached(*asked)

        log.read_cached = counted  # type: ignore[method-assign]
        part = ListOffsetsPartition(0, timestamp_ms=8_000)
        asked = ListOffsetsRequest(topics=[ListOffsetsTopic(T, [part])])
        found = (await peer.ask(ApiKey.LIST_OFFSETS, asked)).topics[0].partitions[0]
        assert (found.error_code, found.offset, found.timestamp_ms) == (0, 101, 9_000)
        assert reads < 50

    run(scenario)


def test_a_bad_batch_hides_none_behind_it_from_who_looks_by_time() -> None:
    """A time past 64 bits ended the connection of whoever met it; records that are none were an
    error of the partition."""

    async def scenario(world: KafkaWorld) -> None:
        peer = world.peer()
        late = KafkaRecord(0, 5_000, None, b"late", [])
        far = KafkaRecord(7, 0, None, b"elsewhere", [])
        times = {"base_timestamp_ms": 10, "max_timestamp_ms": 10}
        for sent in (
            build_batch(b"no records", count=1, last_offset_delta=0, **times),
            build_batch(b"no zstd", count=2, last_offset_delta=1, attributes=4, **times),
            rebuilt(batch_of([far], 10), last_offset_delta=0),
            rebuilt(batch_of([late], 10), base_timestamp_ms=TIMESTAMP_MAX),
        ):
            assert not (await produced(peer, sent)).error_code
        await produced(peer, batch(1, base_timestamp_ms=TIMESTAMP_MAX - 1))
        for time_ms, offset, found_ms in ((5, 0, 10), (11, 4, TIMESTAMP_MAX)):
            part = ListOffsetsPartition(0, timestamp_ms=time_ms)
            asked = ListOffsetsRequest(topics=[ListOffsetsTopic(T, [part])])
            found = (await peer.ask(ApiKey.LIST_OFFSETS, asked)).topics[0].partitions[0]
            assert (found.error_code, found.offset, found.timestamp_ms) == (0, offset, found_ms)

    run(scenario)


def test_what_is_not_committed_is_not_found_by_time_of_who_reads_what_is() -> None:
    async def scenario(world: KafkaWorld) -> None:
        peer = world.peer()
        await produced(peer, batch(1, base_timestamp_ms=1_000, max_timestamp_ms=1_000))
        partition = await world.services.partition(T, 0)
        await partition.know_producers()
        await partition.prepare_transactions()
        partition.transactions.writers.allow(1, 0, -1)
        of_one = {"producer_id": 1, "producer_epoch": 0, "base_sequence": 0}
        times = {"base_timestamp_ms": 2_000, "max_timestamp_ms": 2_000}
        part = batch(1, attributes=TRANSACTIONAL, **of_one, **times)
        done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        partition.produce(memoryview(part), done.set_result)
        assert not (await done).error
        for time_ms, isolation, offset in (
            (500, 1, 0),
            (1_500, 1, -1),
            (1_500, 0, 1),
            (-3, 1, -1),
            (-3, 0, 1),
            (-1, 1, 1),
            (-2, 1, 0),
        ):
            asked = ListOffsetsRequest(
                topics=[ListOffsetsTopic(T, [ListOffsetsPartition(0, timestamp_ms=time_ms)])]
            )
            asked.isolation_level = isolation
            answer = await peer.ask(ApiKey.LIST_OFFSETS, asked)
            found = answer.topics[0].partitions[0]
            assert (found.error_code, found.offset) == (0, offset), (time_ms, isolation)

    run(scenario)


def test_a_topic_that_is_named_twice_is_told_once() -> None:
    """A request of a megabyte could ask for more than any memory has."""

    async def scenario(world: KafkaWorld) -> None:
        topics = [MetadataTopic(name=name) for name in (T, "none", T, T, "none")]
        asked = MetadataRequest(topics=topics, allow_auto_topic_creation=False)
        found = await world.peer().ask(ApiKey.METADATA, asked)
        assert [each.name for each in found.topics] == [T, "none"]

    run(scenario)


class _BeginsLater:
    """A front of which the first record was deleted."""

    offset = 1


def test_what_was_deleted_of_a_batch_is_not_found_by_time() -> None:
    """Whoever begins there would be out of range."""

    async def scenario(world: KafkaWorld) -> None:
        peer = world.peer()
        await produced(peer, batch(3, base_timestamp_ms=1_000, max_timestamp_ms=1_002))
        world.log().front = _BeginsLater()  # type: ignore[assignment]
        part = ListOffsetsPartition(0, timestamp_ms=0)
        asked = ListOffsetsRequest(topics=[ListOffsetsTopic(T, [part])])
        found = (await peer.ask(ApiKey.LIST_OFFSETS, asked)).topics[0].partitions[0]
        assert (found.error_code, found.offset) == (0, 1)

    run(scenario)


@pytest.mark.parametrize(
    ("times_ms", "offset"),
    [
        ([9_000, 1_000, 3_000, 2_000], 2),
        ([9_000, 1_000, 2_000, 3_000], 3),
        ([9_000, 3_000, 1_000, 3_000, 2_000], 1),
        ([TIMESTAMP_MAX, 0, 3_000, 0], 2),
        ([9_000, 0], 1),
        ([1_000, 9_000, 2_000], 1),
        ([9_000], -1),
    ],
)
def test_the_greatest_time_is_of_what_remains(times_ms: list[int], offset: int) -> None:
    """Once the record that had it was deleted nothing was found, whatever else there was."""

    async def scenario(world: KafkaWorld) -> None:
        peer = world.peer()
        for each in times_ms:
            await produced(peer, batch(1, base_timestamp_ms=each, max_timestamp_ms=each))
        world.log().front = _BeginsLater()  # type: ignore[assignment]
        part = ListOffsetsPartition(0, timestamp_ms=-3)
        asked = ListOffsetsRequest(topics=[ListOffsetsTopic(T, [part])])
        found = (await peer.ask(ApiKey.LIST_OFFSETS, asked)).topics[0].partitions[0]
        time_ms = times_ms[offset] if offset >= 0 else -1
        assert (found.error_code, found.offset, found.timestamp_ms) == (0, offset, time_ms)

    run(scenario)


def test_a_producer_is_told_where_the_log_begins() -> None:
    """By that it knows later whether what it sent is unknown because it was deleted."""

    async def scenario(world: KafkaWorld) -> None:
        peer = world.peer()
        sent = rebuilt(batch(3), producer_id=7, producer_epoch=0, base_sequence=0)
        assert (await produced(peer, sent)).log_start_offset == 0
        world.log().front = _BeginsLater()  # type: ignore[assignment]
        repeated, more = await produced(peer, sent), await produced(peer, batch(1))
        assert [(each.base_offset, each.log_start_offset) for each in (repeated, more)] == [
            (0, 1),
            (3, 1),
        ]
        bad = await produced(peer, batch(1)[:-1])
        assert (bad.error_code != 0, bad.log_start_offset) == (True, -1)

    run(scenario)


@pytest.mark.parametrize(
    ("version", "refused"),
    [(4, ErrorCode.LEADER_NOT_AVAILABLE), (5, ErrorCode.OFFSET_NOT_AVAILABLE)],
)
def test_a_new_leader_that_cannot_show_its_end_does_not_say_where_it_is(
    version: int, refused: ErrorCode
) -> None:
    """Clients were told of a later one: KIP-207."""

    async def scenario(world: KafkaWorld) -> None:
        peer = world.peer()
        await produced(peer, batch(3, base_timestamp_ms=1_000, max_timestamp_ms=1_002))
        world.log().opening = _HeldMore()
        for time_ms, error, offset in (
            (-2, ErrorCode.NONE, 0),
            (-1, refused, -1),
            (1_001, ErrorCode.NONE, 1),
            (9_000, refused, -1),
        ):
            part = ListOffsetsPartition(0, timestamp_ms=time_ms)
            asked = ListOffsetsRequest(topics=[ListOffsetsTopic(T, [part])])
            answer = await peer.ask(ApiKey.LIST_OFFSETS, asked, version)
            found = answer.topics[0].partitions[0]
            assert (found.error_code, found.offset) == (error, offset), time_ms

    run(scenario)


def test_entries_of_both_protocols_in_one_answer() -> None:
    async def scenario(world: KafkaWorld) -> None:
        peer = world.peer()
        await produced(peer, batch(2))
        entry = EntryBuilder(Compression.NONE, bytes).entry(
            Head("me", 1, 5), Columns([b"from pulsar"])
        )
        world.log().append([entry], lambda error, runs: None, Content([1], [5]))
        await produced(peer, batch(2, 5))
        expected = [b"0", b"1", b"from pulsar", b"5", b"6"]
        assert values(await fetched(peer, 0)) == expected
        assert values(await fetched(peer, 2)) == expected[2:]
        found = await fetched(peer, 2)
        assert isinstance(found.records, memoryview)
        offsets = [read_batch_header(each).base_offset for each in split(found.records)]
        assert offsets == [2, 3]

    run(scenario)


def test_topics_are_made_when_they_are_asked_for() -> None:
    async def scenario(world: KafkaWorld) -> None:
        peer = world.peer()

        async def asked(name: str, create: bool) -> Any:
            request = MetadataRequest([MetadataTopic(name=name)], create)
            return (await peer.ask(ApiKey.METADATA, request)).topics[0]

        assert (await asked("new", False)).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        made = await asked("new", True)
        assert (made.error_code, len(made.partitions)) == (0, 1)
        assert made.partitions[0].leader_id == world.services.node.node_id
        assert (await asked("a b", True)).error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
        assert (await asked("x/y/z", True)).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        everything = await peer.ask(ApiKey.METADATA, MetadataRequest(None))
        assert [topic.name for topic in everything.topics] == ["new", "t"]

    run(scenario)


def test_a_topic_that_is_not_open_has_the_epoch_that_it_had() -> None:
    """Clients that have seen an epoch take -1 for a partition without a leader: franz-go 1.22
    neither produced nor fetched after a restart until somebody else had opened the topic."""

    async def scenario(world: KafkaWorld) -> None:
        peer = world.peer()

        async def epoch(*topics: MetadataTopic) -> int:
            request = MetadataRequest(list(topics) or None)
            found = (await peer.ask(ApiKey.METADATA, request)).topics[0].partitions[0]
            assert (found.error_code, found.leader_id) == (0, world.services.node.node_id)
            assert isinstance(found.leader_epoch, int)
            return found.leader_epoch

        assert await epoch(MetadataTopic(name=T)) == -1, "it was never used"
        await produced(peer, batch(1))
        world.log().epoch = 3
        assert await epoch(MetadataTopic(name=T)) == 3
        assert await world.services.topics.unload(parse_topic("t-partition-0"))
        assert world.services.topics.find(parse_topic("t-partition-0")) is None
        assert await epoch(MetadataTopic(name=T)) == 3
        assert await epoch() == 3, "among all topics"

    run(scenario)


def test_an_unknown_version_of_api_versions_is_told_what_there_is() -> None:
    async def scenario(world: KafkaWorld) -> None:
        peer = world.peer()
        frame = bytearray(peer.frame(ApiKey.API_VERSIONS, ApiVersionsRequest()))
        frame[6:8] = (99).to_bytes(2, "big")
        peer._sent[-1] = (int(ApiKey.API_VERSIONS), 0)
        peer.feed(bytes(frame))
        answer = (await peer.next())[1]
        assert answer.error_code == ErrorCode.UNSUPPORTED_VERSION
        assert len(answer.api_keys) > 20
        assert not peer.session.closed

    run(scenario)


@pytest.mark.parametrize(
    "frame",
    [
        b"\x00\x15\x00\x00\x00\x00\x00\x01\xff\xff",
        b"\x00\x00\x00\x63\x00\x00\x00\x01\xff\xff",
        b"\x00\x03\x00\x01\x00\x00\x00\x01\xff\xff\x7f\xff\xff\xff",
        b"\x00",
        b"",
    ],
    ids=["not served", "unknown version", "a lie", "cut", "empty"],
)
def test_what_cannot_be_answered_ends_its_connection_and_no_other(frame: bytes) -> None:
    async def scenario(world: KafkaWorld) -> None:
        peer, other = world.peer(), world.peer()
        peer.feed(len(frame).to_bytes(4, "big") + frame)
        assert peer.session.closed
        assert (await produced(other, batch())).error_code == 0

    run(scenario)


def test_unconfirmed_bytes_stop_reading() -> None:
    async def scenario(world: KafkaWorld) -> None:
        peer = world.peer()
        await produced(peer, batch())
        peer.session._unconfirmed_bytes_max = 1_000
        world.log().held = True
        frames = [peer.frame(ApiKey.PRODUCE, producing(batch(20))) for _ in range(20)]
        peer.feed(b"".join(frames))
        assert 3 <= len(world.log()._pending) < 10
        assert not peer.transport.reading
        world.log().held = False
        world.log().release()
        answers = [await peer.next() for _ in range(20)]
        assert [number for number, _ in answers] == list(range(2, 22))
        assert peer.transport.reading

    run(scenario)


def test_requests_and_what_was_fetched_are_counted() -> None:
    async def check(world: KafkaWorld) -> None:
        peer = world.peer()
        records = batch(3)
        await produced(peer, records)
        await peer.ask(ApiKey.FETCH, fetching(0))
        traffic = world.server.services.traffic
        assert traffic.requests == {ApiKey.PRODUCE: 1, ApiKey.FETCH: 1}
        assert traffic.fetched_bytes == len(records)

    run(check)


def test_a_request_is_as_large_as_its_batches_and_one_too_large_is_told() -> None:
    """As Kafka bounds them: apart, so that a client whose message is too large hears of it. One
    whose connection is ended sends it again, until its time is over."""

    async def scenario(world: KafkaWorld) -> None:
        peer = world.peer()
        most = world.services.broker.message_bytes_max
        answer = await produced(peer, bytes(2 * most))
        assert answer.error_code == ErrorCode.MESSAGE_TOO_LARGE
        large = batch_of([KafkaRecord(0, 0, None, bytes(most - 1_000), [])], 1_000)
        request = producing(large)
        request.topics[0].partitions.append(ProducePartition(0, large))
        told = (await peer.ask(ApiKey.PRODUCE, request)).topics[0].partitions
        assert [(part.error_code, part.base_offset) for part in told] == [(0, 0), (0, 1)]
        peer.feed((world.services.config.request_bytes_max + 1).to_bytes(4, "big"))
        assert peer.session.closed

    run(scenario)


def test_what_waited_when_the_broker_ended_ends_the_connection() -> None:
    """A request was answered, the broker's tasks ended, and the next request of the connection
    began: nothing could run it any more, which came out as a defect of ours."""

    async def scenario(world: KafkaWorld) -> None:
        peer = world.peer()
        handlers, ends, defects = peer.session.handlers, [], []
        asyncio.get_running_loop().set_exception_handler(lambda _, what: defects.append(what))

        async def answers_as_the_broker_ends(*_: Any) -> None:
            ends.append(asyncio.ensure_future(world.services.scope.close()))

        handlers.table = {ApiKey.METADATA: answers_as_the_broker_ends}
        request = MetadataRequest(topics=[])
        peer.feed(peer.frame(ApiKey.METADATA, request) + peer.frame(ApiKey.METADATA, request))
        assert await peer.quiet()
        assert len(ends) == 1
        assert peer.session.closed
        assert defects == []

    run(scenario)


@pytest.mark.usefixtures("open_for_long")
def test_a_damaged_entry_among_the_last_does_not_end_idempotent_producers() -> None:
    """All of them were refused for as long as it was among the last 10 000."""

    async def scenario(world: KafkaWorld) -> None:
        peer = world.peer()

        def sent(producer: int, sequence: int) -> ProduceRequest:
            return producing(
                batch(1, 0, producer_id=producer, producer_epoch=0, base_sequence=sequence)
            )

        for producer, sequence in ((7, 0), (8, 0), (7, 1), (8, 1), (7, 2)):
            assert not outcome(await peer.ask(ApiKey.PRODUCE, sent(producer, sequence))).error_code
        await world.broker.topics.unload(parse_topic(f"{T}-partition-0"))
        await world.services.partition(T, 0)
        log = world.log()
        entries = await log.read(log.positions.first, 10, 1 << 20)
        places = [Position(each.ledger_id, each.entry_id) for each in entries]
        log.cached = False
        log.damaged[places[3]] = EntryDamagedError(f"no sound copy of entry {places[3]}")
        for producer, sequence, base_offset in (
            (7, 2, 4),  # told again: it is behind what is damaged
            (8, 0, 1),  # told again: it is before it
            (8, 2, 5),  # its 1 is what is damaged
            (7, 3, 6),
        ):
            told = outcome(await peer.ask(ApiKey.PRODUCE, sent(producer, sequence)))
            assert (told.error_code, told.base_offset) == (0, base_offset)
        told = outcome(await peer.ask(ApiKey.PRODUCE, sent(8, 5)))
        assert told.error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        (listed,) = world.services.unread.listed()
        assert T in listed.topic
        assert str(places[3]) in listed.place

    run(scenario)


def test_garbled_metadata_of_a_ledger_is_told_as_lost_and_not_in_a_loop() -> None:
    """Consumers got ``UNKNOWN_SERVER_ERROR`` at once, asked again at once, and told nobody."""

    async def scenario(world: KafkaWorld) -> None:
        peer, loop = world.peer(), asyncio.get_running_loop()
        assert not outcome(await peer.ask(ApiKey.PRODUCE, producing(batch(1)))).error_code
        log = world.log()
        log.cached, log.failing = False, MetadataFormatError("ledger 1: its metadata is garbled")
        began_s = loop.time()
        found = await fetched(peer, 0, wait_ms=10_000)
        assert found.error_code == ErrorCode.CORRUPT_MESSAGE
        assert LOST_WAIT_S <= loop.time() - began_s < 2
        health = await unread_check(world.services.unread)()
        assert not health.ok
        assert f"{T}-0, offset 0: ledger 1" in health.problem
        log.failing = None
        assert not (await fetched(peer, 0)).error_code
        await asyncio.sleep(LISTED_S + 1)
        assert (await unread_check(world.services.unread)()).ok

    run(scenario)


def test_a_log_that_cannot_be_read_is_not_told_as_a_corrupt_batch() -> None:
    """Of an idempotent producer it is read first what the log says. Some clients give a batch up
    that is told to be corrupt."""

    async def scenario(world: KafkaWorld) -> None:
        peer = world.peer()
        first, second = (
            batch(1, at, producer_id=7, producer_epoch=0, base_sequence=at) for at in range(2)
        )
        assert not outcome(await peer.ask(ApiKey.PRODUCE, producing(first))).error_code
        await world.broker.topics.unload(parse_topic(f"{T}-partition-0"))
        partition = await world.services.partition(T, 0)
        log = world.log()
        log.cached, log.failing = False, LedgerError("no bookie gave entry 1:0")
        found = outcome(await peer.ask(ApiKey.PRODUCE, producing(second)))
        assert found.error_code == ErrorCode.KAFKA_STORAGE_ERROR
        assert "entry 1:0" in (found.error_message or "")
        log.cached, log.failing = True, None
        assert not outcome(await peer.ask(ApiKey.PRODUCE, producing(second))).error_code
        assert partition.usable

    run(scenario)


def test_many_requests_in_one_chunk_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of producers that want no answers, nothing else stops them."""
    begun: list[int] = []
    request = KafkaSession._request

    def counted(session: KafkaSession, frame: memoryview) -> None:
        begun.append(len(frame))
        request(session, frame)

    monkeypatch.setattr(KafkaSession, "_request", counted)

    async def scenario(world: KafkaWorld) -> None:
        peer = world.peer()
        await peer.ask(ApiKey.PRODUCE, producing(batch()))
        begun.clear()
        frame = peer.frame(ApiKey.PRODUCE, producing(batch(), acks=0))
        peer.feed(frame * (3 * FRAMES_PER_TURN))
        assert len(begun) == FRAMES_PER_TURN
        most = before = FRAMES_PER_TURN
        for _ in range(50):
            await asyncio.sleep(0)
            most, before = max(most, len(begun) - before), len(begun)
        assert most == FRAMES_PER_TURN
        assert len(begun) == 3 * FRAMES_PER_TURN
        assert len(world.stored()) == 3 * FRAMES_PER_TURN + 1
        assert peer.transport.reading

    run(scenario)
