"""Sequences of idempotent producers: whether a batch is new, a repeat, or refused. Pure.

Each batch of such a producer has its id and epoch and its first record's sequence. The last
``BATCHES_KEPT`` batches of a producer are known, as many as a client has under way: one of them
that comes again is answered as the first time, and not stored twice.

=========================================  ==================================================
batch                                      verdict
=========================================  ==================================================
of an unknown producer                     new, whatever its sequence (its state has expired)
of an older epoch than the producer's      ``StaleProducerEpochError``
of a newer epoch, first sequence 0         new; what the older epoch sent is forgotten
of a newer epoch, any other sequence       ``SequenceGapError``
one of those that are known                repeat
follows the last one                       new
of a known producer without batches        new (only markers are left of it)
leaves some out                            ``SequenceGapError``
any other                                  ``OutOfOrderSequenceError``
=========================================  ==================================================

Who keeps what is known: a partition's log itself (``partition.producer_states``), since replicas
and recovery need it; for logs that know nothing of producers the front end
(``protocols.kafka.producer_states``), which reads it from the log's end.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol, TypeVar

from magnetar.model.errors import (
    OutOfOrderSequenceError,
    SequenceGapError,
    StaleProducerEpochError,
)
from magnetar.wire.kafka.batches import BatchHeader

BATCHES_KEPT: Final = 5
SEQUENCES: Final = 1 << 31
"""They go round."""


class KnownProducer(NamedTuple):
    """What is known of a producer in one log, for people. -1: it has none."""

    producer_id: int
    epoch: int
    last_sequence: int
    last_time_ms: int
    coordinator_epoch: int
    open_from: int
    """The first offset of its open transaction."""


class SentBatch(Protocol):
    """A batch that a producer may send again."""

    @property
    def first_sequence(self) -> int: ...

    @property
    def last_sequence(self) -> int: ...


def is_behind(sequence: int, other: int) -> bool:
    """Whether it comes after the other; they go round."""
    return 0 < (sequence - other) % SEQUENCES < SEQUENCES // 2


B = TypeVar("B", bound=SentBatch)


def find_repeated(header: BatchHeader, epoch: int, batches: Sequence[B]) -> B | None:
    """The batch that ``header`` repeats, of a producer whose epoch and last batches these are; None
    if it is new. Raises ``OutOfOrderSequenceError``, ``StaleProducerEpochError``."""
    if header.producer_epoch < epoch:
        raise StaleProducerEpochError(
            f"producer {header.producer_id} is at epoch {epoch} here; a batch of epoch "
            f"{header.producer_epoch} is of an instance that has been replaced"
        )
    expected = 0
    if header.producer_epoch == epoch:
        sequences = header.base_sequence, header.last_sequence
        for known in batches:
            if (known.first_sequence, known.last_sequence) == sequences:
                return known
        if not batches:
            return None
        expected = (batches[-1].last_sequence + 1) % SEQUENCES
    if header.base_sequence != expected:
        gap = is_behind(header.base_sequence, expected)
        raise (SequenceGapError if gap else OutOfOrderSequenceError)(
            f"producer {header.producer_id} of epoch {header.producer_epoch} sends sequence "
            f"{header.base_sequence}; {expected} comes next: what lies between was not stored"
        )
    return None
