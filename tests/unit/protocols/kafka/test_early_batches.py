"""Of a log that was opened a moment ago a batch may come before the one that goes before it."""

from __future__ import annotations

import pytest

from magnetar.cluster.topic_name import parse_topic
from magnetar.model.errors import OutOfOrderSequenceError, SequenceGapError
from magnetar.protocols.kafka.partitions import early_batches
from magnetar.protocols.kafka.partitions.early_batches import WAIT_S, EarlyBatches
from magnetar.wire.kafka.apis import ApiKey
from magnetar.wire.kafka.batches import BatchHeader
from magnetar.wire.kafka.errors import ErrorCode
from tests.unit.protocols.kafka.harness import KafkaPeer, KafkaWorld, batch, run
from tests.unit.protocols.kafka.test_session import outcome, producing

TOPIC = parse_topic("t-partition-0")


def header(sequence: int, producer_id: int = 7) -> BatchHeader:
    return BatchHeader(0, 0, 0, 2, 0, 0, 0, 0, 0, producer_id, 0, sequence, 1)


def test_only_a_producer_that_nobody_knows_waits_for_its_first_batch() -> None:
    early = EarlyBatches(10.0)
    assert early.may_come(10.0)
    assert not early.may_come(10.0 + WAIT_S)
    assert early.first_is_missing(header(3), lambda _: False)
    assert not early.first_is_missing(header(0), lambda _: False)
    assert not early.first_is_missing(header(3), lambda _: False), "the first one is under way"
    assert not early.first_is_missing(header(9, producer_id=8), lambda each: each == 8)


async def sent(peer: KafkaPeer, sequence: int, epoch: int = 0) -> ErrorCode:
    records = batch(1, sequence, producer_id=7, producer_epoch=epoch, base_sequence=sequence)
    return ErrorCode(outcome(await peer.ask(ApiKey.PRODUCE, producing(records))).error_code)


@pytest.mark.parametrize("known", [True, False])
def test_a_batch_that_comes_too_early_is_to_come_again(known: bool) -> None:
    """The client began a new epoch, in which it sent again what was stored already."""

    async def scenario(world: KafkaWorld) -> None:
        first = 2 if known else 0
        assert [await sent(world.peer(), each) for each in range(first)] == [ErrorCode.NONE] * first
        await world.broker.topics.unload(TOPIC)
        peer = world.peer()
        assert await sent(peer, first + 1) is ErrorCode.KAFKA_STORAGE_ERROR
        assert await sent(peer, first + 2) is ErrorCode.KAFKA_STORAGE_ERROR
        again = [await sent(peer, sequence) for sequence in range(first, first + 3)]
        assert again == [ErrorCode.NONE] * 3
        assert await sent(peer, 1, epoch=1) is ErrorCode.KAFKA_STORAGE_ERROR
        assert len(world.stored()) == first + 3

    run(scenario)


def test_a_log_that_has_been_open_for_long_says_what_is_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario(world: KafkaWorld) -> None:
        peer = world.peer()
        assert await sent(peer, 5) is ErrorCode.NONE, "of a producer that is not known any more"
        assert await sent(peer, 7) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        assert await sent(peer, 6) is ErrorCode.NONE

    monkeypatch.setattr(early_batches, "WAIT_S", 0.0)
    run(scenario)


@pytest.mark.parametrize("gap", [True, False])
def test_a_log_that_looks_at_sequences_itself_is_asked(gap: bool) -> None:
    """What it refused because it goes back is none that came too early."""

    async def scenario(world: KafkaWorld) -> None:
        peer = world.peer()
        assert await sent(peer, 0) is ErrorCode.NONE
        world.log().owns_sequences = True
        world.log().failing = (SequenceGapError if gap else OutOfOrderSequenceError)("refused")
        expected = ErrorCode.KAFKA_STORAGE_ERROR if gap else ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        assert await sent(peer, 4) is expected

    run(scenario)
