"""Nothing of a producer is stored before what was refused of it, and comes again."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from magnetar.log.sequences import SEQUENCES
from magnetar.model.errors import (
    LedgerError,
    LogClosedError,
    MagnetarError,
    NotEnoughReplicasError,
    PartitionError,
)
from magnetar.protocols.kafka.partitions.first_refused import HELD_S, KEPT_MAX, FirstRefused
from magnetar.protocols.kafka.partitions.partition import Partition
from magnetar.protocols.kafka.services import KafkaServices
from magnetar.wire.kafka.apis import ApiKey
from magnetar.wire.kafka.batches import BatchHeader
from magnetar.wire.kafka.errors import ErrorCode, error_code
from tests.unit.protocols.kafka.harness import KafkaPeer, KafkaWorld, batch, run
from tests.unit.protocols.kafka.test_session import outcome, producing

PLACE = "t", 0


def header(sequence: int, producer_id: int = 7, epoch: int = 0) -> BatchHeader:
    return BatchHeader(0, 0, 0, 2, 0, 0, 0, 0, 0, producer_id, epoch, sequence, 1)


def test_of_those_that_were_refused_all_wait_for_the_first_one() -> None:
    first = FirstRefused()
    for sequence in (3, 6, 9):
        first.refused(PLACE, header(sequence), 1.0)
    assert [first.holds_back(PLACE, header(each), 2.0) for each in (9, 6, 3, 6, 9)] == [
        True,
        True,
        False,
        False,
        False,
    ]


def test_what_is_behind_waits_for_the_first_one() -> None:
    first = FirstRefused()
    assert not first.holds_back(PLACE, header(3), 2.0)
    first.refused(PLACE, header(3), 1.0)
    first.refused(PLACE, header(6), 1.0)
    assert first.holds_back(PLACE, header(9), 2.0)
    assert not first.holds_back(("t", 1), header(9), 2.0)
    assert not first.holds_back(PLACE, header(9, producer_id=8), 2.0)
    assert not first.holds_back(PLACE, header(0, epoch=1), 2.0)
    assert not first.holds_back(PLACE, header(3), 2.0), "it has come"
    assert not first.holds_back(PLACE, header(6), 2.0)
    assert not first


def test_one_that_never_comes_holds_nothing_back_for_long() -> None:
    """Its client has heard elsewhere that it was stored."""
    first = FirstRefused()
    first.refused(PLACE, header(3), 1.0)
    assert first.holds_back(PLACE, header(6), 1.0 + HELD_S - 0.1)
    assert not first.holds_back(PLACE, header(6), 1.0 + HELD_S)
    assert not first


def test_sequences_go_round_and_places_are_bounded() -> None:
    first = FirstRefused()
    first.refused(PLACE, header(SEQUENCES - 1), 1.0)
    assert first.holds_back(PLACE, header(0), 2.0)
    for number in range(KEPT_MAX):
        first.refused(("t", 1 + number), header(0), 1.0)
    assert not first.holds_back(PLACE, header(0), 2.0), "it made room"
    assert first.holds_back(("t", KEPT_MAX), header(1), 2.0)


async def sent(peer: KafkaPeer, sequence: int) -> ErrorCode:
    records = batch(1, sequence, producer_id=7, producer_epoch=0, base_sequence=sequence)
    return ErrorCode(outcome(await peer.ask(ApiKey.PRODUCE, producing(records))).error_code)


def test_a_topic_that_opens_for_the_second_batch_does_not_take_it(monkeypatch: Any) -> None:
    """Five were under way, the first was refused, and the others were stored: a producer that is
    not known may begin anywhere. The first one was out of order for good then."""

    async def scenario(world: KafkaWorld) -> None:
        peer = world.peer()
        partition, failures = KafkaServices.partition, [LedgerError("no bookie now")]

        async def fails_once(self: KafkaServices, *asked: Any) -> Any:
            if failures:
                raise failures.pop()
            return await partition(self, *asked)

        monkeypatch.setattr(KafkaServices, "partition", fails_once)

        found = await asyncio.gather(*(sent(peer, sequence) for sequence in range(5)))
        assert found[0] is not ErrorCode.NONE
        assert found[1:] == [ErrorCode.KAFKA_STORAGE_ERROR] * 4
        assert [await sent(peer, sequence) for sequence in range(5)] == [ErrorCode.NONE] * 5

    run(scenario)


def test_a_topic_that_closes_for_the_first_batch_only_does_not_take_the_second(
    monkeypatch: Any,
) -> None:
    """It was unloaded while something was found out for the batch."""

    async def scenario(world: KafkaWorld) -> None:
        peer = world.peer()
        know, closes = Partition.know_producers, [True]

        async def closes_once(self: Partition) -> None:
            await know(self)
            if closes:
                closes.clear()
                assert await world.broker.topics.unload(self.topic.name)

        monkeypatch.setattr(Partition, "know_producers", closes_once)
        assert await sent(peer, 0) is ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert await sent(peer, 1) is ErrorCode.KAFKA_STORAGE_ERROR
        assert [await sent(peer, sequence) for sequence in range(3)] == [ErrorCode.NONE] * 3

    run(scenario)


@pytest.mark.parametrize("error", [LogClosedError("closed"), NotEnoughReplicasError("too few")])
def test_a_log_that_is_well_again_for_the_second_batch_does_not_take_it(
    error: MagnetarError,
) -> None:
    async def scenario(world: KafkaWorld) -> None:
        peer = world.peer()
        await world.services.partition("t", 0)
        # Only a log that looks at batches itself refuses one of them, and goes on.
        world.log().owns_sequences = isinstance(error, PartitionError)
        world.log().failing = error
        assert await sent(peer, 0) is error_code(error)
        world.log().failing = None
        await asyncio.sleep(HELD_S / 2)  # a topic that could not store rests for a moment
        assert await sent(peer, 1) is ErrorCode.KAFKA_STORAGE_ERROR
        assert [await sent(peer, sequence) for sequence in range(3)] == [ErrorCode.NONE] * 3

    run(scenario)


@pytest.mark.parametrize("name", ["//" + "x" * 30_000, "none"])
def test_of_what_can_be_no_topic_nothing_is_kept(name: str) -> None:
    """Thirty megabytes of names of one connection."""

    async def scenario(world: KafkaWorld) -> None:
        peer = world.peer()
        sent = batch(1, producer_id=7, producer_epoch=0, base_sequence=0)
        said = outcome(await peer.ask(ApiKey.PRODUCE, producing(sent, topic=name)))
        may_come = said.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert may_come or said.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
        assert bool(peer.session.first_refused) == may_come

    run(scenario)
