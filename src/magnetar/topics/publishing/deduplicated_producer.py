"""A producer of a topic that stores no message of it twice.

Each send is held against what is known of the producer (``sequence_marks``) before it is appended.

Rules:

* A repeat is told that it is stored, under no id (-1, -1), as Pulsar does: which entry has it is
  not remembered.
* Nobody is told so before it is: a repeat of what is under way waits for that. If that fails, the
  client hears nothing of either, but that the producer is closed; it comes back and sends again.
* Answers keep the order of the sends, which clients rely on. What waits for its turn counts as
  bytes under way, so a client cannot make it many.
* A batch of which a part is stored would lose the rest, or store that part twice: it is refused for
  good.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final

from magnetar.log.seam import Run
from magnetar.model.errors import MagnetarError, NotAllowedError
from magnetar.model.ids import Position
from magnetar.topics.publishing.deduplicating import TopicDeduplication
from magnetar.topics.publishing.producer import (
    Destination,
    NotAppended,
    Producer,
    ProducerClient,
    ProducerFacts,
    Sequences,
)
from magnetar.topics.publishing.sequence_marks import SendVerdict, SequenceMark

_NEW: Final = SendVerdict.NEW
REPEAT_BYTES: Final = 256
"""What a repeat takes that waits for its turn, beside its payload."""


class DeduplicatedProducer(Producer):
    """See the module's text. ``mark`` is set when it is connected."""

    def __init__(
        self,
        client: ProducerClient,
        topic: Destination,
        facts: ProducerFacts,
        deduplication: TopicDeduplication,
    ) -> None:
        super().__init__(client, topic, facts)
        self.mark = SequenceMark(facts.name)
        self._deduplication = deduplication
        self._last_of = deduplication.format.last_of
        self._ends: list[int] = []
        """How far the mark gets with each entry that is queued,"""
        self._under_way: deque[list[int]] = deque()
        """and with those of each append."""
        self._flushed = 0
        """Bytes that were appended before ``flush`` was called."""

    @property
    def last_sequence_id(self) -> int:
        return max(-1, self.mark.stored)

    def queue(
        self,
        sequence_id: int,
        highest_sequence_id: int,
        payload: memoryview,
        message_count: int = 1,
        publish_time_ms: int = 0,
    ) -> bool:
        """See the class above."""
        if self.closed:
            return False
        if self.resends is not None and self._answer_resend(
            sequence_id, highest_sequence_id, payload
        ):
            return False
        first, last, ends = self._last_of(sequence_id, highest_sequence_id, payload)
        verdict = self.mark.judge(first, last)
        if verdict is _NEW:
            if ends:
                self.mark.push(last)
            self._ends.append(self.mark.pushed)
            return super().queue(
                sequence_id, highest_sequence_id, payload, message_count, publish_time_ms
            )
        self._flushed += self._append_queued()
        send = sequence_id, highest_sequence_id
        if verdict is SendVerdict.TORN:
            self.refuse(send, self._torn(first, last), final=True)
        else:
            size = len(payload) + REPEAT_BYTES
            self._flushed += size
            self.answer_in_turn(NotAppended(self._appends, send, None, False, size))
        return True  # there are bytes to be told of

    def _torn(self, first: int, last: int) -> NotAllowedError:
        return NotAllowedError(
            f"producer {self.name} of {self.topic.name} sent messages {first} to {last} in a "
            f"batch, and stored some of them before: its last sequence id is {self.mark.pushed}. "
            "Begin behind that, or send what may be there already without batches"
        )

    def queue_run(
        self,
        payloads: list[memoryview],
        sends: list[Sequences],
        message_counts: list[int],
        times_ms: list[int],
        byte_count: int,
    ) -> bool:
        """See the class above; each is looked at."""
        if self.closed:
            return False
        for payload, send, messages, time_ms in zip(
            payloads, sends, message_counts, times_ms, strict=True
        ):
            self.queue(*send, payload, messages, time_ms)
        return True

    def flush(self) -> int:
        """See the class above."""
        before, self._flushed = self._flushed, 0
        return before + self._append_queued()

    def _append_queued(self) -> int:
        if not self._ends:
            return 0
        self._under_way.append(self._ends)
        self._ends = []
        return super().flush()

    def _answered(
        self,
        sends: Sequence[Sequences],
        messages: Sequence[int],
        byte_count: int,
        error: MagnetarError | None,
        runs: Sequence[Run],
    ) -> None:
        """See the class above."""
        ends = self._under_way.popleft()
        if runs:
            count = sum(run.entries for run in runs)
            ledger_id, first, entries = runs[-1]
            self.mark.confirm(ends[count - 1])
            last = Position(ledger_id, first + entries - 1)
            self._deduplication.confirmed(self.mark, count, last)
        if error is not None:
            self.forget_repeats()
        super()._answered(sends, messages, byte_count, error, runs)

    def left(self) -> None:
        """See the class above."""
        self._deduplication.leaves(self.mark)
