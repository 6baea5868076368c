"""Producers that a leader knows, as `kafka-transactions` asks for them."""

from __future__ import annotations

from pathlib import Path

from magnetar.log.partition.batch_header import read_header
from magnetar.log.partition.producer_states import ProducerStates
from magnetar.log.sequences import KnownProducer
from magnetar.wire.kafka.apis import ApiKey
from magnetar.wire.kafka.batches import TRANSACTIONAL
from magnetar.wire.kafka.errors import ErrorCode
from magnetar.wire.kafka.producer_messages import (
    DescribedProducer,
    DescribeProducersRequest,
    ProducersOfPartition,
)
from magnetar.wire.kafka.topic_shapes import TopicPartitions
from tests.unit.protocols.kafka.harness import KafkaPeer, KafkaWorld, batch, run
from tests.unit.protocols.kafka.secured import SecuredWorld, run_secured
from tests.unit.protocols.kafka.test_session import T, producing
from tests.unit.protocols.kafka.test_transaction_requests import begun, reload


async def described(peer: KafkaPeer, topic: str = T, index: int = 0) -> ProducersOfPartition:
    asked = DescribeProducersRequest([TopicPartitions(topic, [index])])
    (said,) = (await peer.ask(ApiKey.DESCRIBE_PRODUCERS, asked)).topics
    assert said.name == topic
    (found,) = said.partitions
    assert found.index == index
    assert isinstance(found, ProducersOfPartition)
    return found


async def one(peer: KafkaPeer) -> DescribedProducer:
    found = await described(peer)
    assert found.error_code == ErrorCode.NONE
    (said,) = found.producers
    return said


def test_producers_are_described_with_what_they_have_open() -> None:
    async def scenario(world: KafkaWorld) -> None:
        peer = world.peer()
        assert await described(peer) == ProducersOfPartition(0)
        records = batch(2, 0, producer_id=7, producer_epoch=3, base_sequence=0)
        await peer.ask(ApiKey.PRODUCE, producing(records))
        said = await one(peer)
        assert (said.producer_id, said.producer_epoch, said.last_sequence) == (7, 3, 1)
        assert (said.coordinator_epoch, said.open_from) == (-1, -1)
        assert said.last_time_ms > 0
        await reload(world)
        assert await one(peer) == said, "the log says it"

    run(scenario)


def test_open_transactions_have_their_first_offsets() -> None:
    async def scenario(world: KafkaWorld) -> None:
        producer = await begun(world)
        await producer.transaction(True, 1)
        ended = await one(producer.peer)
        assert ended.open_from == -1
        assert ended.coordinator_epoch >= 0
        await producer.open_with(2, 3)
        for _ in range(2):
            said = await one(producer.peer)
            assert (said.producer_id, said.producer_epoch) == producer.own
            assert (said.last_sequence, said.open_from) == (2, 2)
            await reload(world)
        assert await producer.end(False) is ErrorCode.NONE
        assert (await one(producer.peer)).open_from == -1

    run(scenario)


def test_what_is_not_there_or_not_permitted_is_refused(tmp_path: Path) -> None:
    async def unknown(world: KafkaWorld) -> None:
        peer = world.peer()
        for topic, index in (("none", 0), (T, 1)):
            found = await described(peer, topic, index)
            assert found.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            assert found.error_message

    async def refused(world: SecuredWorld) -> None:
        await world.grant("alice", "produce")
        found = await described(await world.known("alice"))
        assert found.error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED

    run(unknown)
    run_secured(tmp_path, refused)


def test_a_partitions_own_states_say_the_same() -> None:
    states = ProducerStates()
    fields = {"producer_id": 7, "producer_epoch": 3, "base_sequence": 0}
    header = read_header(batch(2, 0, attributes=TRANSACTIONAL, **fields))
    states.appended(header)
    said = KnownProducer(7, 3, 1, header.max_timestamp_ms, -1, 0)
    assert states.known() == [said]
