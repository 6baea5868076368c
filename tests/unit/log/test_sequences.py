"""Sequences of idempotent producers: what is a repeat, what is new, and what is refused."""

from __future__ import annotations

import pytest

from magnetar.log.partition.batch_header import BatchHead, read_header
from magnetar.log.partition.producer_states import KeptBatch
from magnetar.log.sequences import SEQUENCES, find_repeated
from magnetar.model.errors import OutOfOrderSequenceError, StaleProducerEpochError
from tests.unit.log.partition.kit import batch

KNOWN = (KeptBatch(2, 12, 2, 0), KeptBatch(5, 15, 2, 0))
"""Sequences 0 to 2, and 3 to 5."""


def sent(first: int, count: int, epoch: int = 4) -> BatchHead:
    return read_header(batch([b"x"] * count, producer=(7, epoch, first)))


def test_a_batch_that_is_known_is_a_repeat_and_the_next_is_new() -> None:
    assert find_repeated(sent(0, 3), 4, KNOWN) == KNOWN[0]
    assert find_repeated(sent(3, 3), 4, KNOWN) == KNOWN[1]
    assert find_repeated(sent(6, 2), 4, KNOWN) is None
    assert find_repeated(sent(0, 1, epoch=5), 4, KNOWN) is None
    assert find_repeated(sent(9, 1), 4, ()) is None
    last = (KeptBatch(SEQUENCES - 1, 20, 0, 0),)
    assert find_repeated(sent(0, 1), 4, last) is None, "they go round"


@pytest.mark.parametrize(("first", "count"), [(4, 2), (2, 4), (3, 2), (3, 4), (7, 1), (0, 6)])
def test_a_batch_that_begins_or_ends_elsewhere_is_no_repeat(first: int, count: int) -> None:
    """A part of it may not be stored."""
    with pytest.raises(OutOfOrderSequenceError):
        find_repeated(sent(first, count), 4, KNOWN)


def test_an_epoch_begins_at_nought_and_an_older_one_is_over() -> None:
    with pytest.raises(OutOfOrderSequenceError):
        find_repeated(sent(6, 1, epoch=5), 4, KNOWN)
    with pytest.raises(StaleProducerEpochError):
        find_repeated(sent(6, 1, epoch=3), 4, KNOWN)
