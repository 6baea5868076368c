"""What is known of idempotent producers of a log that knows nothing of them: as much as the end of
the log says.

By which rules a batch is new, a repeat or refused: ``log.sequences``. Rules for what is known: a
batch is known from when it is appended, not from when it is stored: those behind it come before it
is. When an append fails, all that is known is forgotten and read from the log again, for what came
behind it may be stored or not. The state is no record of its own: batches in the log say it
(docs/adr/0106-kafka-protocol-over-logs.md). Logs that hold batches against sequences themselves
(``WritableLog.owns_sequences``) need none of this.

What of the log's end cannot be read any more is passed over. Who has batches behind it goes on as
if nothing were. Of anybody else it may have held the last ones (``SequencesOfOne.unsure``): their
repeats are still told, and a batch that comes later in their sequences is taken, though it seems
to leave out some, as one of a producer that is not known. So nothing is stored twice but what
nobody can read.

Pure.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Final

from magnetar.log.sequences import BATCHES_KEPT, find_repeated, is_behind
from magnetar.wire.kafka.batches import BatchHeader

PRODUCERS_MAX: Final = 10_000
"""Of one partition; the one that was silent for the longest time gives way."""


class KnownBatch:
    """A batch of a producer. ``base_offset`` is -1 until it is stored; who sent it again meanwhile
    waits in ``waiting``, which is called with the base offset, or -1 if it was not stored.
    ``append_time_ms``: which it was given when it was appended; -1: none."""

    __slots__ = ("append_time_ms", "base_offset", "first_sequence", "last_sequence", "waiting")

    def __init__(
        self,
        first_sequence: int,
        last_sequence: int,
        base_offset: int = -1,
        append_time_ms: int = -1,
    ) -> None:
        self.first_sequence = first_sequence
        self.last_sequence = last_sequence
        self.base_offset = base_offset
        self.append_time_ms = append_time_ms
        self.waiting: list[Callable[[int], None]] = []

    def stored(self, base_offset: int) -> None:
        """The append has its outcome: -1 if it failed."""
        self.base_offset = base_offset
        waiting, self.waiting = self.waiting, []
        for told in waiting:
            told(base_offset)


class SequencesOfOne:
    """``time_ms``: of the last batch. ``unsure``: what could not be read may be later ones."""

    __slots__ = ("batches", "epoch", "time_ms", "unsure")

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.time_ms = -1
        self.unsure = False
        self.batches: deque[KnownBatch] = deque(maxlen=BATCHES_KEPT)


class ProducerSequences:
    """See the module's text."""

    def __init__(self) -> None:
        self._producers: OrderedDict[int, SequencesOfOne] = OrderedDict()

    def __len__(self) -> int:
        return len(self._producers)

    def knows(self, producer_id: int) -> bool:
        return producer_id in self._producers

    def check(self, header: BatchHeader) -> KnownBatch | None:
        """The batch that it repeats; None if it is new. Raises ``OutOfOrderSequenceError``,
        ``StaleProducerEpochError``."""
        state = self._producers.get(header.producer_id)
        if state is None or (state.unsure and _may_follow(header, state)):
            return None
        return find_repeated(header, state.epoch, state.batches)

    def add(self, header: BatchHeader, base_offset: int = -1) -> KnownBatch:
        """A batch that is new is appended, or was found in the log."""
        number = header.producer_id
        state = self._producers.get(number)
        if state is None or state.epoch != header.producer_epoch:
            state = self._producers[number] = SequencesOfOne(header.producer_epoch)
            if len(self._producers) > PRODUCERS_MAX:
                self._producers.popitem(last=False)
        self._producers.move_to_end(number)
        time_ms = header.append_time_ms
        known = KnownBatch(header.base_sequence, header.last_sequence, base_offset, time_ms)
        state.batches.append(known)
        state.time_ms = header.max_timestamp_ms
        state.unsure = False
        return known

    def not_read(self) -> None:
        """Behind what was added so far is something that cannot be read."""
        for state in self._producers.values():
            state.unsure = True

    def known(self) -> dict[int, SequencesOfOne]:
        return dict(self._producers)

    def forget(self) -> None:
        self._producers.clear()


def _may_follow(header: BatchHeader, state: SequencesOfOne) -> bool:
    """Whether it can come behind the last batch that is known, with others between them; of a later
    epoch, too, whose first batches may be among those."""
    if header.producer_epoch != state.epoch:
        return header.producer_epoch > state.epoch
    last = state.batches[-1].last_sequence
    return is_behind(header.base_sequence, last)
