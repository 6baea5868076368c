"""Idempotent producers: what is new, what is a repeat, what is out of order."""

from __future__ import annotations

import pytest

from magnetar.log.sequences import BATCHES_KEPT
from magnetar.model.errors import OutOfOrderSequenceError, PartitionError, StaleProducerEpochError
from magnetar.protocols.kafka.partitions.producer_states import (
    PRODUCERS_MAX,
    KnownBatch,
    ProducerSequences,
)
from magnetar.wire.kafka.batches import BatchHeader


def header(sequence: int, count: int = 1, *, producer: int = 1, epoch: int = 0) -> BatchHeader:
    return BatchHeader(0, 0, 0, 2, 0, 0, count - 1, 0, 0, producer, epoch, sequence, count)


def refused(states: ProducerSequences, sent: BatchHeader, kind: type[PartitionError]) -> None:
    with pytest.raises(kind):
        states.check(sent)


def test_batches_that_follow_one_another_are_new() -> None:
    states = ProducerSequences()
    for sequence in (0, 3, 6):
        assert states.check(header(sequence, 3)) is None
        states.add(header(sequence, 3))
    refused(states, header(10, 3), OutOfOrderSequenceError)


def test_a_repeat_is_known_before_and_after_it_is_stored() -> None:
    states = ProducerSequences()
    states.add(header(0, 3))
    second = states.add(header(3, 3))
    found = states.check(header(3, 3))
    assert found is second
    assert found is not None
    told: list[int] = []
    found.waiting.append(told.append)
    second.stored(17)
    assert told == [17]
    assert second.base_offset == 17


def test_a_part_of_a_batch_is_no_repeat() -> None:
    states = ProducerSequences()
    states.add(header(0, 3))
    refused(states, header(0, 2), OutOfOrderSequenceError)


def test_as_many_batches_are_known_as_a_client_has_under_way() -> None:
    states = ProducerSequences()
    for sequence in range(BATCHES_KEPT + 1):
        states.add(header(sequence))
    refused(states, header(0), OutOfOrderSequenceError)
    assert isinstance(states.check(header(1)), KnownBatch)


def test_epochs() -> None:
    states = ProducerSequences()
    states.add(header(0, epoch=3))
    refused(states, header(1, epoch=2), StaleProducerEpochError)
    refused(states, header(1, epoch=4), OutOfOrderSequenceError)
    assert states.check(header(0, epoch=4)) is None
    states.add(header(0, epoch=4))
    refused(states, header(1, epoch=3), StaleProducerEpochError)


def test_who_may_have_sent_more_goes_on_over_the_last_sequence() -> None:
    states = ProducerSequences()
    last = 2**31 - 1
    states.add(header(last - 1))
    states.not_read()
    for sequence in (last, 0, 5):
        assert states.check(header(sequence)) is None
    assert isinstance(states.check(header(last - 1)), KnownBatch)
    refused(states, header(last - 5), OutOfOrderSequenceError)


def test_sequences_go_round() -> None:
    states = ProducerSequences()
    last = 2**31 - 1
    states.add(header(last - 1, 2))
    assert states.check(header(0)) is None
    states.add(header(last, 3, producer=2))
    assert states.check(header(2, producer=2)) is None


@pytest.mark.parametrize("sequence", [0, 1, 1_000])
def test_an_unknown_producer_begins_anywhere(sequence: int) -> None:
    assert ProducerSequences().check(header(sequence)) is None


def test_the_one_that_was_silent_for_longest_gives_way() -> None:
    states = ProducerSequences()
    for producer in range(PRODUCERS_MAX):
        states.add(header(0, producer=producer))
    states.add(header(1, producer=0))
    states.add(header(0, producer=PRODUCERS_MAX))
    assert len(states) == PRODUCERS_MAX
    assert states.check(header(5, producer=1)) is None, "it was forgotten"
    refused(states, header(5, producer=0), OutOfOrderSequenceError)
