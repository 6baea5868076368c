"""Ring 2, with brokers whose topics store nothing twice: one rule of deduplication is broken."""

from __future__ import annotations

from collections import deque
from contextlib import AbstractContextManager
from typing import Any

from magnetar.protocols.pulsar.entry_format import PulsarEntryFormat
from magnetar.topics.publishing.deduplicated_producer import DeduplicatedProducer
from magnetar.topics.publishing.deduplicating import TopicDeduplication
from magnetar.topics.publishing.producer import NotAppended, Producer
from magnetar.topics.publishing.sequence_marks import (
    NOTHING,
    SendVerdict,
    SequenceMark,
    SequenceMarks,
)
from magnetar.topics.topic import Topic
from tests.sim.mutants.mutant import Mutant, replaced

SEEDS_MAX = 300


def _replays_nothing() -> AbstractContextManager[None]:
    """Who opens a topic believes the snapshot, and does not read what lies behind it."""

    async def replay(self: Any, marks: Any) -> int:
        self._position = self._log.positions.readable
        return 0

    return replaced((TopicDeduplication, "_replay", replay))


def _believes_no_snapshot() -> AbstractContextManager[None]:
    """Who opens a topic reads what lies behind the snapshot, and not the snapshot."""
    return replaced((SequenceMarks, "decode", lambda self, data, now_ms: None))


def _snapshot_of_what_is_under_way() -> AbstractContextManager[None]:
    """A snapshot says how far a producer's messages were appended, not how far confirmed."""
    original = SequenceMarks.encode

    def encode(self: Any, date_ms: int) -> bytes:
        before = [(mark, mark.stored) for mark in self._marks.values()]
        for mark, _ in before:
            mark.stored = max(mark.stored, mark.pushed)
        try:
            return original(self, date_ms)
        finally:
            for mark, stored in before:
                mark.stored = stored

    return replaced((SequenceMarks, "encode", encode))


def _told_at_once() -> AbstractContextManager[None]:
    """A repeat is answered when it comes, not when its turn does."""

    def answer_in_turn(self: Any, answer: NotAppended) -> None:
        self._beside = deque((answer._replace(after=0), *(self._beside or ())))
        self._release()

    return replaced((Producer, "answer_in_turn", answer_in_turn))


def _told_though_it_failed() -> AbstractContextManager[None]:
    """What was a repeat of an append that failed is told all the same."""
    return replaced((DeduplicatedProducer, "forget_repeats", lambda self: None))


def _open_after_a_failure() -> AbstractContextManager[None]:
    """A topic whose append failed goes on with what it knew before."""
    original = Topic.append_failed

    def append_failed(self: Any, error: Any) -> None:
        marks, self.deduplication._marks = self.deduplication._marks, None
        try:
            original(self, error)
        finally:
            self.deduplication._marks = marks

    return replaced((Topic, "append_failed", append_failed))


def _ends_with_its_first_chunk() -> AbstractContextManager[None]:
    """A message in chunks counts as there with the first of them."""
    original = PulsarEntryFormat.last_of

    def last_of(self: Any, *send: Any) -> tuple[int, int, bool]:
        first, last, _ = original(self, *send)
        return first, last, True

    return replaced((PulsarEntryFormat, "last_of", last_of))


def _forgotten_when_it_leaves() -> AbstractContextManager[None]:
    """A producer is forgotten when it leaves, not after a while."""

    def leaves(self: Any, mark: Any) -> None:
        if self._marks is not None:
            self._marks._marks.pop(mark.name, None)

    return replaced((TopicDeduplication, "leaves", leaves))


def _a_later_id_is_lower() -> AbstractContextManager[None]:
    """Of a repeat's ids the least is compared with what is stored, and one behind it is new."""

    def judge(self: Any, first: int, last: int) -> SendVerdict:
        if first >= self.stored and self.stored != NOTHING:
            return SendVerdict.NEW
        return original(self, first, last)

    def push(self: Any, last: int) -> None:
        self.pushed = max(self.pushed, last)

    original = SequenceMark.judge
    return replaced((SequenceMark, "judge", judge), (SequenceMark, "push", push))


def _mutant(name: str, plant: Any) -> Mutant:
    return Mutant(name, 2, "", plant, SEEDS_MAX, brokers=True, deduplicated=True)


DEDUPLICATED = (
    _mutant("what lies behind a snapshot of ids is not read", _replays_nothing),
    _mutant("a snapshot of ids is not read", _believes_no_snapshot),
    _mutant("a snapshot has ids that are under way", _snapshot_of_what_is_under_way),
    _mutant("a repeat is answered out of turn", _told_at_once),
    _mutant("a repeat of what failed counts as stored", _told_though_it_failed),
    _mutant("ids outlive an append that failed", _open_after_a_failure),
    _mutant("a message in chunks is there with the first", _ends_with_its_first_chunk),
    _mutant("a producer is forgotten when it leaves", _forgotten_when_it_leaves),
    _mutant("a repeat of the last message is new", _a_later_id_is_lower),
)
