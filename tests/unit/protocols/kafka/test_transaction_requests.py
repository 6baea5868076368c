"""Transactions as their producers ask for them: coordinators and leaders that go and come."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from magnetar.cluster import partitioned_topics
from magnetar.cluster.partitioned_topics import PartitionedTopic
from magnetar.cluster.topic_name import parse_topic
from magnetar.env.metadata import Versioned
from magnetar.log.seam import AppendDone
from magnetar.model.errors import (
    EntryDamagedError,
    LedgerError,
    LogError,
    MetadataError,
    NotEnoughReplicasAfterAppendError,
    ServiceNotReadyError,
    TopicNotFoundError,
)
from magnetar.protocols.kafka.coordination.group_offsets import Committed, PendingKey
from magnetar.protocols.kafka.coordination.transactions import EXPIRY_CHECK_S, Transactions
from magnetar.protocols.kafka.partitions import partition_transactions
from magnetar.protocols.kafka.partitions.partition import Ending
from magnetar.protocols.kafka.partitions.partition_transactions import CURSOR
from magnetar.protocols.kafka.services import NO_NODE, KafkaServices, Node
from magnetar.wire.kafka.apis import ApiKey
from magnetar.wire.kafka.batches import TRANSACTIONAL
from magnetar.wire.kafka.errors import ErrorCode
from magnetar.wire.kafka.fetch_messages import FetchedPartition
from magnetar.wire.kafka.markers import read_marker
from magnetar.wire.kafka.offset_messages import (
    OffsetFetchRequest,
    OffsetsGroup,
)
from magnetar.wire.kafka.produce_messages import InitProducerIdRequest
from magnetar.wire.kafka.topic_shapes import TopicPartitions
from magnetar.wire.kafka.transaction_messages import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    DescribeTransactionsRequest,
    EndTxnRequest,
    ListTransactionsRequest,
    TxnOffsetCommitRequest,
    TxnOffsetPartition,
    TxnOffsetTopic,
)
from tests.doubles.memory_metadata import MemoryMetadata
from tests.unit.protocols.kafka.harness import KafkaPeer, KafkaWorld, batch, run
from tests.unit.protocols.kafka.test_group_requests import joined, left, synced
from tests.unit.protocols.kafka.test_session import T, fetching, outcome, producing, values

NAME = "transactional"
G = "group"


class Own(NamedTuple):
    producer_id: int
    epoch: int


class TransactionalPeer:
    """A producer of transactions, by its requests."""

    def __init__(self, world: KafkaWorld) -> None:
        self.peer: KafkaPeer = world.peer()
        self.own = Own(-1, -1)
        self._sequence = 0

    async def begin(self, timeout_ms: int = 60_000) -> ErrorCode:
        """Asks until the former transaction has ended."""
        for _ in range(100):
            asked = InitProducerIdRequest(NAME, timeout_ms)
            found = await self.peer.ask(ApiKey.INIT_PRODUCER_ID, asked)
            if found.error_code != ErrorCode.CONCURRENT_TRANSACTIONS:
                self.own = Own(found.producer_id, found.producer_epoch)
                return ErrorCode(found.error_code)
            await asyncio.sleep(0.1)
        return ErrorCode.CONCURRENT_TRANSACTIONS

    async def add(self, topic: str = T) -> ErrorCode:
        asked = AddPartitionsToTxnRequest(NAME, *self.own, [TopicPartitions(topic, [0])])
        found = await self.peer.ask(ApiKey.ADD_PARTITIONS_TO_TXN, asked)
        return ErrorCode(found.topics[0].partitions[0].error_code)

    async def produce(self, value: int, name: str | None = NAME) -> ErrorCode:
        records = batch(
            1,
            value,
            producer_id=self.own.producer_id,
            producer_epoch=self.own.epoch,
            base_sequence=self._sequence,
            attributes=TRANSACTIONAL,
        )
        asked = producing(records)
        asked.transactional_id = name
        found = outcome(await self.peer.ask(ApiKey.PRODUCE, asked))
        if not found.error_code:
            self._sequence += 1
        return ErrorCode(found.error_code)

    async def end(self, commits: bool) -> ErrorCode:
        found = await self.peer.ask(ApiKey.END_TXN, EndTxnRequest(NAME, *self.own, commits))
        return ErrorCode(found.error_code)

    async def open_with(self, *numbers: int) -> None:
        """A transaction that has these records, and no outcome."""
        assert await self.add() is ErrorCode.NONE
        for number in numbers:
            assert await self.produce(number) is ErrorCode.NONE

    async def transaction(self, commits: bool, *numbers: int) -> None:
        await self.open_with(*numbers)
        assert await self.end(commits) is ErrorCode.NONE


async def begun(world: KafkaWorld, timeout_ms: int = 60_000) -> TransactionalPeer:
    producer = TransactionalPeer(world)
    assert await producer.begin(timeout_ms) is ErrorCode.NONE
    return producer


async def committed_part(peer: KafkaPeer, offset: int) -> FetchedPartition:
    asked = fetching(offset)
    asked.isolation_level = 1
    found = (await peer.ask(ApiKey.FETCH, asked)).topics[0].partitions[0]
    assert isinstance(found, FetchedPartition)
    assert found.error_code == 0
    return found


async def reload(world: KafkaWorld) -> None:
    await world.broker.topics.unload(parse_topic(f"{T}-partition-0"))


async def until(holds: Callable[[], Any]) -> None:
    for _ in range(1_000):
        if holds():
            return
        await asyncio.sleep(0.1)
    raise AssertionError("it did not come about in 100 s")


def test_partitions_are_added_all_or_none() -> None:
    """As Kafka answers: what is not there stops the others; what the coordinator says is said of
    each. A topic that nobody has made was taken, and one without a valid name tried again for
    ever."""

    async def scenario(world: KafkaWorld) -> None:
        producer = await begun(world)

        async def added(own: Own, *topics: str) -> list[int]:
            asked = [TopicPartitions(topic, [0]) for topic in topics]
            for version in range(4):
                request = AddPartitionsToTxnRequest(NAME, *own, asked)
                found = await producer.peer.ask(ApiKey.ADD_PARTITIONS_TO_TXN, request, version)
                codes = [part.error_code for topic in found.topics for part in topic.partitions]
            return codes

        unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        stopped = ErrorCode.OPERATION_NOT_ATTEMPTED
        assert await added(producer.own, T, "none", "..") == [stopped, unknown, unknown]
        other = Own(producer.own.producer_id + 1, 0)
        assert await added(other, T) == [ErrorCode.INVALID_PRODUCER_ID_MAPPING]
        assert await added(producer.own, T) == [ErrorCode.NONE]

        async def unreadable(topic: Any) -> int:
            raise MetadataError("the store does not answer")

        world.services.control.partitioned.partitions = unreadable  # type: ignore[method-assign]
        found = await added(producer.own, T, "none")
        assert len(set(found)) == 1, "what nobody can know is not said of one alone"
        assert stopped not in found

    run(scenario)


def test_what_is_asked_for_at_once_is_part_of_the_transaction() -> None:
    """One that was overwritten by another would have no marker: nothing after it were stable."""

    async def scenario(world: KafkaWorld) -> None:
        producer = await begun(world)
        other = TransactionalPeer(world)
        other.own = producer.own
        for_groups = [AddOffsetsToTxnRequest(NAME, *producer.own, each) for each in (G, "another")]
        found = await asyncio.gather(
            producer.add(T),
            other.add(T),
            *(world.peer().ask(ApiKey.ADD_OFFSETS_TO_TXN, each) for each in for_groups),
        )
        assert found[:2] == [ErrorCode.NONE] * 2
        transactions = world.server.transactions
        record = await transactions.find(NAME)
        assert record is not None
        assert set(record.partitions) == {
            (T, 0),
            transactions.offsets_place(G),
            transactions.offsets_place("another"),
        }

    run(scenario)


def test_who_leads_a_partition_asks_the_coordinator_elsewhere(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Records of a transaction that does not have the partition would stay open for ever."""

    async def scenario(world: KafkaWorld) -> None:
        producer = await begun(world)
        await producer.open_with(1)
        transactions = world.server.transactions
        coordinator = Node(99, "elsewhere", 9092)
        asked: list[Node] = []

        async def leader_of(*_: object) -> Node:
            return coordinator

        async def ask(_self: object, node: Node, key: ApiKey, _version: int, request: Any) -> Any:
            asked.append(node)
            return await world.peer().ask(key, request)

        async def judged(own: Own, index: int, name: str = NAME) -> ErrorCode:
            with monkeypatch.context() as patched:
                patched.setattr(transactions.coordinator, "open_shard", lambda _name: None)
                patched.setattr(KafkaServices, "leader_of", leader_of)
                patched.setattr(KafkaServices, "ask", ask)
                return await transactions.takes_part(name, *own, (T, index))

        own, other = producer.own, ErrorCode.INVALID_PRODUCER_ID_MAPPING
        assert await judged(own, 0) is ErrorCode.NONE
        assert await judged(own, 1) is ErrorCode.INVALID_TXN_STATE
        assert await judged(own._replace(epoch=own.epoch + 1), 0) is ErrorCode.PRODUCER_FENCED
        assert await judged(own._replace(producer_id=own.producer_id + 1), 0) is other
        assert await judged(own, 0, "nobody's") is other
        assert await producer.end(True) is ErrorCode.NONE
        assert await judged(own, 0) is ErrorCode.INVALID_TXN_STATE
        assert asked == [coordinator] * 6
        coordinator = NO_NODE
        with pytest.raises(ServiceNotReadyError):
            await judged(own, 0)

    run(scenario)


def test_what_is_open_is_known_after_the_topic_has_moved() -> None:
    async def scenario(world: KafkaWorld) -> None:
        producer = await begun(world)
        await producer.transaction(True, 1)
        await producer.open_with(2)
        for _ in range(2):
            await reload(world)
            found = await committed_part(world.peer(), 0)
            assert (found.last_stable_offset, found.high_watermark) == (2, 3)
        assert await producer.produce(3) is ErrorCode.NONE, "nobody is asked: it is open"
        assert await producer.end(False) is ErrorCode.NONE
        await reload(world)
        found = await committed_part(world.peer(), 0)
        assert found.last_stable_offset == found.high_watermark == 5
        own = producer.own.producer_id
        assert [(each.producer_id, each.first_offset) for each in found.aborted or ()] == [(own, 2)]

    run(scenario)


def test_what_was_aborted_before_anybody_looked_is_found_by_reading_on() -> None:
    async def scenario(world: KafkaWorld) -> None:
        producer = await begun(world)
        for number in range(10):
            await producer.transaction(number % 2 == 0, number)
        marked = world.log().cursors.durable()[CURSOR].mark_delete
        assert marked == world.log().positions.readable, "nothing is open"
        await reload(world)
        for number in range(10):
            found = await committed_part(world.peer(), 2 * number)
            aborted = [each.first_offset for each in found.aborted or ()]
            assert aborted == [2 * each for each in range(number, 10) if each % 2]

    run(scenario)


def test_a_log_without_transactions_is_not_read_for_them() -> None:
    async def scenario(world: KafkaWorld) -> None:
        peer = world.peer()
        await peer.ask(ApiKey.PRODUCE, producing(batch(3)))
        assert values(await committed_part(peer, 0)) == [b"0", b"1", b"2"]
        assert CURSOR not in world.log().cursors.durable()

    run(scenario)


def test_a_batch_of_a_transaction_needs_its_name_each_time() -> None:
    async def scenario(world: KafkaWorld) -> None:
        producer = await begun(world)
        await producer.open_with(0)
        assert await producer.produce(1, name=None) is ErrorCode.INVALID_TXN_STATE
        assert await producer.produce(1) is ErrorCode.NONE
        assert await producer.end(commits=True) is ErrorCode.NONE

    run(scenario)


def test_a_batch_that_comes_after_the_end_opens_nothing() -> None:
    async def scenario(world: KafkaWorld) -> None:
        producer = await begun(world)
        await producer.transaction(True, 1)
        assert await producer.produce(2) is ErrorCode.INVALID_TXN_STATE
        await reload(world)
        assert await producer.produce(2) is ErrorCode.INVALID_TXN_STATE
        found = await committed_part(world.peer(), 0)
        assert found.last_stable_offset == found.high_watermark == 2

    run(scenario)


def test_an_epoch_that_nobody_has_given_opens_nothing() -> None:
    """It was taken while another was open; the marker of that one was of an older epoch then, and
    refused, and the transaction stayed open."""

    async def scenario(world: KafkaWorld) -> None:
        producer = await begun(world)
        await producer.open_with(1)
        own = producer.own
        producer.own, producer._sequence = own._replace(epoch=own.epoch + 5), 0
        assert await producer.produce(2) is ErrorCode.INVALID_PRODUCER_EPOCH
        producer.own, producer._sequence = own, 1
        assert await producer.produce(3) is ErrorCode.NONE
        assert await producer.end(True) is ErrorCode.NONE
        found = await committed_part(world.peer(), 0)
        assert (found.last_stable_offset, found.high_watermark) == (3, 3)

    run(scenario)


def test_what_is_read_again_while_the_coordinator_is_asked_costs_no_transaction() -> None:
    async def scenario(world: KafkaWorld) -> None:
        producer = await begun(world)
        assert await producer.add() is ErrorCode.NONE
        partition = await world.services.partition(T, 0)
        takes_part, asked = world.services.takes_part, 0
        assert takes_part is not None

        async def failing_meanwhile(*said: Any) -> ErrorCode:
            nonlocal asked
            asked += 1
            found = await takes_part(*said)
            if asked == 1:
                partition.transactions.doubt()
                await partition.know_transactions()
            return found

        world.services.takes_part = failing_meanwhile
        assert await producer.produce(1) is ErrorCode.NONE
        assert asked == 2
        assert await producer.end(True) is ErrorCode.NONE
        assert (await committed_part(world.peer(), 0)).last_stable_offset == 2

    run(scenario)


def test_a_producer_that_was_replaced_writes_nothing_more() -> None:
    async def scenario(world: KafkaWorld) -> None:
        former, later = TransactionalPeer(world), TransactionalPeer(world)
        await former.begin()
        await former.open_with(1)
        assert await later.begin() is ErrorCode.NONE
        assert later.own.epoch == former.own.epoch + 2, "one for its markers, one for the next"
        assert await former.produce(2) is ErrorCode.INVALID_PRODUCER_EPOCH
        assert await former.add() is ErrorCode.PRODUCER_FENCED
        assert await former.end(True) is ErrorCode.PRODUCER_FENCED
        await reload(world)
        assert await former.produce(2) is ErrorCode.INVALID_PRODUCER_EPOCH
        await later.transaction(True, 3)
        found = await committed_part(world.peer(), 0)
        assert [each.first_offset for each in found.aborted or ()] == [0]

    run(scenario)


def test_markers_are_sent_until_they_are_stored() -> None:
    async def scenario(world: KafkaWorld) -> None:
        producer = await begun(world)
        await producer.open_with(1)
        world.log().failing = LedgerError("for a test")
        assert await producer.end(True) is ErrorCode.NONE, "it is decided"
        assert await producer.add() is ErrorCode.CONCURRENT_TRANSACTIONS
        world.log().failing = None
        assert await producer.end(True) in (ErrorCode.NONE, ErrorCode.CONCURRENT_TRANSACTIONS)
        await until(lambda: world.log().positions.end_offset == 2)
        found = await committed_part(world.peer(), 0)
        assert (found.last_stable_offset, found.aborted) == (2, [])

    run(scenario)


def test_a_topic_that_cannot_be_read_keeps_no_marker_from_another() -> None:
    """Who reads what is committed stood still in all topics of the transaction."""

    async def scenario(world: KafkaWorld) -> None:
        await world.services.control.partitioned.create(parse_topic("damaged"), 1)
        producer, reader = await begun(world), world.peer()
        assert await producer.add("damaged") is ErrorCode.NONE
        await producer.open_with(1)
        metadata = world.services.control.partitioned._metadata
        assert isinstance(metadata, MemoryMetadata)
        path = "/admin/partitioned-topics/public/default/persistent/damaged"
        sound = metadata.nodes[path]
        metadata.nodes[path] = Versioned(b"no json", 7)
        metadata.tell(path)
        assert await producer.end(commits=True) is ErrorCode.NONE
        partition = await world.services.partition(T, 0)
        await until(lambda: partition.stable_offset() == 2)
        assert values(await committed_part(reader, 0))[0] == b"1", "and the marker"
        metadata.nodes[path] = sound
        metadata.tell(path)
        assert await producer.begin() is ErrorCode.NONE, "it has ended"

    run(scenario)


def test_a_leader_that_has_not_heard_of_a_topic_is_asked_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its metadata lags: the transaction was over, and in that partition it stayed open."""

    async def scenario(world: KafkaWorld) -> None:
        producer, asked = await begun(world), 0
        await producer.open_with(1)
        partition = KafkaServices.partition

        async def unheard_of(self: KafkaServices, name: str, *more: Any) -> Any:
            nonlocal asked
            asked += 1
            if asked < 3:
                raise TopicNotFoundError(f"topic {name} does not exist")
            return await partition(self, name, *more)

        monkeypatch.setattr(KafkaServices, "partition", unheard_of)
        assert await producer.end(True) is ErrorCode.NONE
        await until(lambda: world.log().positions.end_offset == 2)
        assert await producer.begin() is ErrorCode.NONE

    run(scenario)


def test_a_coordinator_that_has_not_heard_of_a_topic_asks_for_the_newest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario(world: KafkaWorld) -> None:
        producer, partitioned = await begun(world), world.services.control.partitioned
        await producer.open_with(1)
        path = partitioned_topics._path(parse_topic(T))
        node = partitioned._counts._nodes[path]
        node.value = PartitionedTopic(0, None)  # as it was before the topic was made

        async def sync() -> None:
            world.metadata.tell(path)
            await asyncio.sleep(0)

        monkeypatch.setattr(world.metadata, "sync", sync)
        assert await producer.end(True) is ErrorCode.NONE
        await until(lambda: world.log().positions.end_offset == 2)

    run(scenario)


@pytest.mark.parametrize("left", [0, 1])
def test_a_partition_that_is_gone_needs_no_marker(left: int) -> None:
    """With its topic, or since that was made anew with fewer partitions."""

    async def scenario(world: KafkaWorld) -> None:
        partitioned, other = world.services.control.partitioned, parse_topic("other")
        await partitioned.create(other, 2)
        producer = await begun(world)
        asked = AddPartitionsToTxnRequest(NAME, *producer.own, [TopicPartitions("other", [1])])
        found = await producer.peer.ask(ApiKey.ADD_PARTITIONS_TO_TXN, asked)
        assert found.topics[0].partitions[0].error_code == 0
        await partitioned.delete(other)
        if left:
            await partitioned.create(other, left)
        assert await producer.end(True) is ErrorCode.NONE
        assert await producer.begin() is ErrorCode.NONE

    run(scenario)


def test_a_later_coordinator_sends_the_markers_that_are_missing() -> None:
    async def scenario(world: KafkaWorld) -> None:
        producer = await begun(world)
        await producer.open_with(1)
        world.log().failing = LedgerError("for a test")
        assert await producer.end(False) is ErrorCode.NONE
        await world.broker.topics.unload(world.server.coordinator.topic_for(NAME))
        world.log().failing = None
        # Nobody asks for it: the log is opened because it is there.
        await until(lambda: world.log().positions.end_offset == 2)
        found = await committed_part(world.peer(), 0)
        assert [each.first_offset for each in found.aborted or ()] == [0]

    run(scenario)


def test_markers_say_which_coordinator_has_sent_them() -> None:
    """Those of one that was replaced are refused by that."""

    async def scenario(world: KafkaWorld) -> None:
        producer = await begun(world)
        for epoch in (7, 9):
            (await world.server.coordinator.shard(NAME)).log.topic.log.epoch = epoch
            await producer.transaction(True, 1)
            assert read_marker(world.stored()[-1]) == (True, epoch)

    run(scenario)


def test_a_coordinator_that_gave_its_log_up_and_has_it_still_goes_on(monkeypatch: Any) -> None:
    async def scenario(world: KafkaWorld) -> None:
        producer, asked = await begun(world), 0
        await producer.open_with(1)
        mark_all = Transactions._mark_all

        async def moved_once(self: Transactions, name: str) -> bool:
            nonlocal asked
            asked += 1
            if asked == 1:
                raise ServiceNotReadyError("another has it")
            return await mark_all(self, name)

        monkeypatch.setattr(Transactions, "_mark_all", moved_once)
        assert await producer.end(True) is ErrorCode.NONE
        await until(lambda: world.log().positions.end_offset == 2)

    run(scenario)


def test_a_later_coordinator_finishes_what_a_former_one_only_decided(monkeypatch: Any) -> None:
    async def scenario(world: KafkaWorld) -> None:
        producer = await begun(world)
        await producer.open_with(1)
        with monkeypatch.context() as patch:
            patch.setattr(Transactions, "_finish", lambda *_: None)  # it goes just then
            assert await producer.end(True) is ErrorCode.NONE
            await world.broker.topics.unload(world.server.coordinator.topic_for(NAME))
        await until(lambda: world.log().positions.end_offset == 2)
        found = await committed_part(world.peer(), 0)
        assert (found.last_stable_offset, found.aborted) == (2, [])
        assert await producer.begin() is ErrorCode.NONE

    run(scenario)


def test_an_outcome_that_is_not_stored_is_not_told() -> None:
    async def scenario(world: KafkaWorld) -> None:
        producer = await begun(world)
        await producer.open_with(1)
        log = world.store.logs[world.server.coordinator.topic_for(NAME).log_name]
        log.failing = LogError("for a test")
        assert await producer.end(True) is ErrorCode.COORDINATOR_NOT_AVAILABLE
        log.failing = None
        assert (await committed_part(world.peer(), 0)).last_stable_offset == 0
        assert await producer.end(True) is ErrorCode.NONE
        assert (await committed_part(world.peer(), 0)).last_stable_offset == 2

    run(scenario)


def test_a_silent_producer_is_aborted_when_its_time_is_over() -> None:
    async def scenario(world: KafkaWorld) -> None:
        producer = await begun(world, timeout_ms=5_000)
        await producer.open_with(1)
        await until(lambda: world.log().positions.end_offset == 2)
        assert await producer.end(True) is ErrorCode.PRODUCER_FENCED
        bad = await producer.begin(timeout_ms=0)
        assert bad is ErrorCode.INVALID_TRANSACTION_TIMEOUT

    run(scenario)


def test_a_producer_whose_time_was_over_goes_on_with_its_next_epoch() -> None:
    async def scenario(world: KafkaWorld) -> None:
        producer = await begun(world, timeout_ms=5_000)
        await producer.open_with(1)
        await until(lambda: world.log().positions.end_offset == 2)
        assert await producer.produce(2) is ErrorCode.INVALID_PRODUCER_EPOCH
        peer, own = producer.peer, producer.own
        for said in (Own(own.producer_id, -1), Own(-1, own.epoch)):
            for name in (NAME, None):
                alone = InitProducerIdRequest(name, 5_000, *said)
                error = (await peer.ask(ApiKey.INIT_PRODUCER_ID, alone)).error_code
                assert error == ErrorCode.INVALID_REQUEST, "it would fence nobody"
        asked = InitProducerIdRequest(NAME, 5_000, *own)
        found = await peer.ask(ApiKey.INIT_PRODUCER_ID, asked)
        assert (found.error_code, found.producer_id) == (0, own.producer_id)
        assert found.producer_epoch == own.epoch + 1
        producer.own, producer._sequence = Own(own.producer_id, found.producer_epoch), 0
        await producer.transaction(True, 3)
        assert values(await committed_part(peer, 2))[0] == b"3", "and its marker"

    run(scenario)


def test_the_cursor_follows_what_others_write(monkeypatch: Any) -> None:
    monkeypatch.setattr(partition_transactions, "MOVE_OFFSETS", 10)

    async def scenario(world: KafkaWorld) -> None:
        producer = await begun(world)
        await producer.transaction(True, 1)
        for number in range(15):
            await world.peer().ask(ApiKey.PRODUCE, producing(batch(1, number)))
        log = world.log()
        marked = log.cursors.durable()[CURSOR].mark_delete
        assert log.positions.entries_between(marked, log.positions.readable) < 10
        await producer.open_with(2)
        for number in range(15):
            await world.peer().ask(ApiKey.PRODUCE, producing(batch(1, number)))
        marked = log.cursors.durable()[CURSOR].mark_delete
        assert log.positions.entries_between(marked, log.positions.readable) == 16

    run(scenario)


def test_what_may_be_lost_and_is_there_is_not_stable() -> None:
    """Too few replicas were in sync when it was appended: its producer is told so, and the log has
    it all the same."""

    async def scenario(world: KafkaWorld) -> None:
        producer, log = await begun(world), (await world.services.partition(T, 0)).log
        append = log.append

        def appended(payloads: Any, done: AppendDone, content: Any = None) -> None:
            error = NotEnoughReplicasAfterAppendError("too few replicas are in sync")
            append(payloads, lambda *_: done(error, ()), content)

        assert await producer.add() is ErrorCode.NONE
        log.append = appended  # type: ignore[method-assign]
        assert await producer.produce(1) is ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
        log.append = append  # type: ignore[method-assign]
        found = await committed_part(world.peer(), 0)
        assert (found.last_stable_offset, found.high_watermark) == (0, 1)
        assert await producer.end(False) is ErrorCode.NONE
        found = await committed_part(world.peer(), 0)
        assert (found.last_stable_offset, found.high_watermark) == (2, 2)
        assert [each.first_offset for each in found.aborted or ()] == [0]

    run(scenario)


# -- offsets ----------------------------------------------------------------------------------


async def offset_of(peer: KafkaPeer, stable: bool) -> int | ErrorCode:
    group = OffsetsGroup(G, topics=[TopicPartitions(T, [0])])
    asked = OffsetFetchRequest(groups=[group], require_stable=stable)
    found = (await peer.ask(ApiKey.OFFSET_FETCH, asked)).groups[0].topics[0].partitions[0]
    return ErrorCode(found.error_code) if found.error_code else int(found.offset)


async def kept(producer: TransactionalPeer, offset: int) -> ErrorCode:
    topic = TxnOffsetTopic(T, [TxnOffsetPartition(0, offset)])
    asked = TxnOffsetCommitRequest(NAME, G, *producer.own, topics=[topic])
    found = await producer.peer.ask(ApiKey.TXN_OFFSET_COMMIT, asked)
    return ErrorCode(found.topics[0].partitions[0].error_code)


def test_offsets_count_with_the_transaction_that_commits_them() -> None:
    async def scenario(world: KafkaWorld) -> None:
        producer = await begun(world)
        reader = world.peer()
        assert await kept(producer, 4) is ErrorCode.INVALID_TXN_STATE, "it is not part of it"
        for commits, offset, expected in ((False, 5, -1), (True, 6, 6)):
            asked = AddOffsetsToTxnRequest(NAME, *producer.own, G)
            assert (await producer.peer.ask(ApiKey.ADD_OFFSETS_TO_TXN, asked)).error_code == 0
            assert await kept(producer, offset) is ErrorCode.NONE
            await world.broker.topics.unload(world.server.coordinator.topic_for(G))
            assert await offset_of(reader, True) is ErrorCode.UNSTABLE_OFFSET_COMMIT
            assert await offset_of(reader, False) == -1, "as it was before"
            assert await producer.end(commits) is ErrorCode.NONE
            assert await offset_of(reader, True) == expected

    run(scenario)


def test_offsets_that_may_be_stored_end_with_their_transaction() -> None:
    """They are in the log, and the coordinator was told that they are not: the next one would have
    them wait for ever, or commit them with the producer's next transaction."""

    async def scenario(world: KafkaWorld) -> None:
        producer, coordinator = await begun(world), world.server.coordinator
        asked = AddOffsetsToTxnRequest(NAME, *producer.own, G)
        assert (await producer.peer.ask(ApiKey.ADD_OFFSETS_TO_TXN, asked)).error_code == 0
        log = (await coordinator.shard(G)).log.topic.log
        append = log.append

        def appended(payloads: Any, done: AppendDone, content: Any = None) -> None:
            append(payloads, lambda *_: done(LedgerError("no answer of bookies"), ()), content)

        log.append = appended  # type: ignore[method-assign]
        assert await kept(producer, 5) is ErrorCode.COORDINATOR_NOT_AVAILABLE
        log.append = append  # type: ignore[method-assign]
        assert await producer.end(False) is ErrorCode.NONE
        await world.broker.topics.unload(coordinator.topic_for(G))
        assert await offset_of(world.peer(), True) == -1
        assert (await producer.peer.ask(ApiKey.ADD_OFFSETS_TO_TXN, asked)).error_code == 0
        assert await producer.end(True) is ErrorCode.NONE
        assert await offset_of(world.peer(), True) == -1

    run(scenario)


def test_offsets_that_nobody_waits_for_any_more_end_with_their_transaction() -> None:
    """Whoever sent them has gone while they are stored, and a marker comes before they are."""

    async def scenario(world: KafkaWorld) -> None:
        producer, coordinator = await begun(world), world.server.coordinator
        asked = AddOffsetsToTxnRequest(NAME, *producer.own, G)
        assert (await producer.peer.ask(ApiKey.ADD_OFFSETS_TO_TXN, asked)).error_code == 0
        log = (await coordinator.shard(G)).log.topic.log
        append, asked_s = log.append, asyncio.Event()
        held: list[Callable[[], None]] = []

        def appended(payloads: Any, done: AppendDone, content: Any = None) -> None:
            held.append(lambda: append(payloads, done, content))
            asked_s.set()

        log.append = appended  # type: ignore[method-assign]
        change = (PendingKey(producer.own.producer_id, G, T, 0), Committed(5, -1, "", 0))
        transactions, own = world.server.transactions, producer.own
        kept = transactions.keep_offsets(NAME, *own, G, [change], lambda _: ErrorCode.NONE)
        task = asyncio.create_task(kept)
        await asked_s.wait()
        log.append = append  # type: ignore[method-assign]
        task.cancel()
        await asyncio.wait([task])
        ending = asyncio.create_task(producer.end(False))
        await asyncio.sleep(1)
        held[0]()
        assert await ending is ErrorCode.NONE
        assert await offset_of(world.peer(), True) == -1
        await world.broker.topics.unload(coordinator.topic_for(G))
        assert await offset_of(world.peer(), True) == -1

    run(scenario)


def test_a_marker_that_nobody_waits_for_ends_no_offsets() -> None:
    """It may have come another time since, and what waits by now be of the next transaction."""

    async def scenario(world: KafkaWorld) -> None:
        producer, transactions = await begun(world), world.server.transactions
        asked = AddOffsetsToTxnRequest(NAME, *producer.own, G)
        assert (await producer.peer.ask(ApiKey.ADD_OFFSETS_TO_TXN, asked)).error_code == 0
        assert await kept(producer, 5) is ErrorCode.NONE
        place, ending = transactions.offsets_place(G), Ending(*producer.own, True, 1)
        late = await transactions.end_in(place, ending, lambda: False)
        assert late is not ErrorCode.NONE
        assert await offset_of(world.peer(), True) is ErrorCode.UNSTABLE_OFFSET_COMMIT
        assert await offset_of(world.peer(), False) == -1
        assert await producer.end(False) is ErrorCode.NONE
        assert await offset_of(world.peer(), True) == -1

    run(scenario)


def test_offsets_of_a_member_that_leaves_while_they_are_judged_are_not_kept(
    monkeypatch: Any,
) -> None:
    """Whether the producer may commit them is asked of another broker. Who got the partitions
    meanwhile was told what was committed, without these: both would have done the same records."""

    async def scenario(world: KafkaWorld) -> None:
        producer = await begun(world)
        member = world.peer()
        join = await joined(member)
        await synced(member, join, {join.member_id: b"all"})
        asked = AddOffsetsToTxnRequest(NAME, *producer.own, G)
        assert (await producer.peer.ask(ApiKey.ADD_OFFSETS_TO_TXN, asked)).error_code == 0
        takes_part = Transactions.takes_part

        async def slow(self: Transactions, *said: Any) -> ErrorCode:
            found = await takes_part(self, *said)
            assert await left(member, join) == 0
            return found

        topic = TxnOffsetTopic(T, [TxnOffsetPartition(0, 5)])
        request = TxnOffsetCommitRequest(
            NAME, G, *producer.own, join.generation, join.member_id, topics=[topic]
        )
        with monkeypatch.context() as patched:
            patched.setattr(Transactions, "takes_part", slow)
            found = await producer.peer.ask(ApiKey.TXN_OFFSET_COMMIT, request)
        assert found.topics[0].partitions[0].error_code == ErrorCode.UNKNOWN_MEMBER_ID
        assert await offset_of(world.peer(), True) == -1, "and nobody waits for it"
        assert await producer.end(True) is ErrorCode.NONE
        assert await offset_of(world.peer(), True) == -1

    run(scenario)


# -- for people -------------------------------------------------------------------------------


def test_transactions_are_described_and_listed() -> None:
    async def scenario(world: KafkaWorld) -> None:
        producer = await begun(world)
        assert await producer.add() is ErrorCode.NONE
        peer = world.peer()
        asked = DescribeTransactionsRequest([NAME, "unknown"])
        found = await peer.ask(ApiKey.DESCRIBE_TRANSACTIONS, asked)
        one, other = found.transactions
        assert (one.state, one.producer_id, one.timeout_ms) == (
            "Ongoing",
            producer.own.producer_id,
            60_000,
        )
        assert [(each.name, each.partitions) for each in one.topics] == [(T, [0])]
        assert other.error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
        for states, expected in (([], [NAME]), (["Ongoing"], [NAME]), (["Empty", "Odd"], [])):
            listed = await peer.ask(ApiKey.LIST_TRANSACTIONS, ListTransactionsRequest(states))
            assert [each.transactional_id for each in listed.transactions] == expected
            assert listed.unknown_states == [each for each in states if each == "Odd"]
        for pattern, error, expected in (
            ("trans.*", ErrorCode.NONE, [NAME]),
            ("", ErrorCode.NONE, [NAME]),
            ("trans", ErrorCode.NONE, []),
            ("(", ErrorCode.INVALID_REGULAR_EXPRESSION, []),
        ):
            asked = ListTransactionsRequest(id_pattern=pattern)
            listed = await peer.ask(ApiKey.LIST_TRANSACTIONS, asked)
            assert listed.error_code == error
            assert [each.transactional_id for each in listed.transactions] == expected

    run(scenario)


def test_an_id_that_nobody_uses_is_forgotten() -> None:
    async def scenario(world: KafkaWorld) -> None:
        producer = await begun(world)
        await producer.transaction(True, 1)
        await asyncio.sleep(300)
        again = TransactionalPeer(world)
        await again.begin()
        assert again.own.epoch == 0
        assert again.own.producer_id != producer.own.producer_id

    run(scenario, transactional_ids_retention_ms=100_000)


def test_an_id_whose_markers_are_on_their_way_is_not_forgotten() -> None:
    """Readers of what is committed wait for them."""

    async def scenario(world: KafkaWorld) -> None:
        producer = await begun(world)
        await producer.open_with(1)
        world.log().failing = LedgerError("for a test")
        assert await producer.end(True) is ErrorCode.NONE, "it is decided"
        await asyncio.sleep(300)
        world.log().failing = None
        await until(lambda: world.log().positions.end_offset == 2)
        assert (await committed_part(world.peer(), 0)).last_stable_offset == 2

    run(scenario, transactional_ids_retention_ms=100_000)


def test_an_id_that_is_used_while_it_is_to_be_forgotten_is_kept() -> None:
    async def scenario(world: KafkaWorld) -> None:
        producer = await begun(world)
        log = world.log(str(world.server.coordinator.topic_for(NAME)))
        await asyncio.sleep(EXPIRY_CHECK_S * 2 - 3)
        log.held = True
        coming = asyncio.create_task(producer.begin())
        await asyncio.sleep(6)
        assert not coming.done()
        log.held = False
        log.release()
        assert await coming is ErrorCode.NONE
        await producer.transaction(True, 1)

    run(scenario, transactional_ids_retention_ms=100_000)


def test_a_topic_is_in_use_while_its_writers_are_looked_for() -> None:
    """One that nobody is connected to was unloaded meanwhile where that took longer than it may be
    idle, and the next request began to read again: a producer could wait for ever."""

    async def scenario(world: KafkaWorld) -> None:
        producer = await begun(world)
        await producer.open_with(1)
        await reload(world)
        partition = await world.services.partition(T, 0)
        topic, transactions, seen = partition.topic, partition.transactions, []
        headers, read = partition._last_headers, transactions.read

        async def looks() -> Any:
            seen.append(topic.in_use)
            return await headers()

        async def reads() -> Any:
            seen.append(topic.in_use)
            return await read()

        partition._last_headers, transactions.read = looks, reads  # type: ignore[method-assign]
        assert not topic.in_use
        await partition.know_producers()
        await partition.know_transactions()
        assert seen == [True, True]
        assert not topic.in_use

    run(scenario)


def test_open_transactions_that_cannot_be_read_are_told_with_topic_and_entry() -> None:
    """A marker may be what is lost: nothing is guessed, and an operator can delete up to it."""

    async def scenario(world: KafkaWorld) -> None:
        producer = await begun(world)
        await producer.open_with(1)
        await reload(world)
        partition = await world.services.partition(T, 0)
        log = world.log()
        log.cached = False
        log.damaged[partition.positions.first] = EntryDamagedError("no sound copy of entry 1:0")
        assert await producer.produce(2) == ErrorCode.KAFKA_STORAGE_ERROR
        places = {each.place: each for each in world.services.unread.listed()}
        found = places["what is open of transactions"]
        assert found.topic == f"{T}-0"
        assert "entry 1:0" in found.why

    run(scenario)
