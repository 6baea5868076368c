"""The entries of a range, through the partition's broker: each once, in order, to the range's end.

Rules:

* Before an entry is waited for, the range is held against the log: what was deleted never comes.
  While none comes the log is asked again, every ``LOOK_AGAIN_S``, as retention may delete what was
  planned meanwhile. So a range ends, with all of its entries or with a report of what is missing.
* The broker says which entry it cannot read for this reader. One of which no sound copy is left is
  a loss when nothing has come for ``LOOK_AGAIN_S``; of others behind it, one after the other,
  sooner. One that a bookie may have that is away is waited for.
* What is missing before an entry that comes (by its id, and by how many entries the ledgers have
  that were passed) is reported as well, and at the end whether the messages are as many as planned;
  but what the broker says nobody gets there is not missing: what transactions aborted, their
  markers, what compaction took. Ids say less where they are offsets (logs on partitions).
* A connection that breaks is replaced, and reading goes on at the place reached, as long as
  something comes every ``wait_s``: a broker that restarts ends no task. A topic that is gone is a
  loss.

Why gaps are asked about: docs/adr/0203-a-gap-is-held-against-the-broker.md.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import NamedTuple, TypeVar

from magnetar.model.errors import BrokerError, TopicNotFoundError
from magnetar.pipeline.brokers.connection import worth_another_try
from magnetar.pipeline.brokers.topic_reader import StoredEntry
from magnetar.pipeline.loss_reports import LossReports
from magnetar.pipeline.losses import (
    NO_FACTS,
    LedgerFacts,
    Loss,
    UnreadEntry,
    gap_before,
    loss_at,
    lost_entry,
)
from magnetar.pipeline.places import NO_OFFSETS, START, Place, after_entry, id_offset
from magnetar.pipeline.planning.splits import PlannedRange
from magnetar.pipeline.reading.tails import EntryReader, Readers
from magnetar.wire.pulsar.pulsar_pb2 import LogQuestion

LOOK_AGAIN_S = 2.0
LOOK_BEHIND_S = 0.1
"""Behind an entry that is lost: its neighbours often are, as they lay beside it."""
PAUSE_S = 0.2

Answer = TypeVar("Answer")


class NumberedEntry(NamedTuple):
    """An entry, and the offset of its first message (``NO_OFFSETS``: not known)."""

    entry: StoredEntry
    offset: int


def entries_of(
    client: Readers, part: PlannedRange, reports: LossReports
) -> Iterator[NumberedEntry]:
    """The entries that hold messages of the range; ends with the one that reaches its end. What is
    lost goes to ``reports``, which raises or lets the rest be read. Raises ``BrokerError``."""
    reading = _Reading(part, reports, client.timeout_s)
    while not reading.done:
        try:
            with client.open(part.topic, reading.expected) as reader:
                yield from reading.entries(reader)
        except TopicNotFoundError:
            reading.topic_is_gone()
        except BrokerError as error:
            if not worth_another_try(error) or reading.out_of_patience(PAUSE_S):
                raise
            time.sleep(PAUSE_S)


def patiently(wait_s: float, ask: Callable[[], Answer]) -> Answer:
    """The answer; asked again while nobody answers, for so long. Raises ``BrokerError``."""
    until_s = time.monotonic() + wait_s
    while True:
        try:
            return ask()
        except BrokerError as error:
            if not worth_another_try(error) or time.monotonic() + PAUSE_S > until_s:
                raise
        time.sleep(PAUSE_S)


def numbered(client: Readers, part: PlannedRange) -> PlannedRange:
    """The range with the offset of its start, if the broker knows it. Of a topic that is gone
    nobody knows: whoever reads the range says so."""
    if part.start_offset != NO_OFFSETS:
        return part
    question, start = LogQuestion(), part.start
    question.places.add(
        ledger_id=start.ledger_id, entry_id=start.entry_id, batch_index=start.batch_index
    )

    def ask() -> int:
        with client.open(part.topic) as reader:
            return next(iter(reader.ask(question).of_places), NO_OFFSETS)

    try:
        return replace(part, start_offset=patiently(client.timeout_s, ask))
    except TopicNotFoundError:
        return part


def entries_from(client: Readers, topic: str, place: Place) -> Iterator[StoredEntry]:
    """Those of a topic partition from a place on, until none comes in time, or one is lost. A
    connection that breaks is replaced where it was. Raises ``BrokerError``."""
    heard_s = time.monotonic()
    while True:
        try:
            with client.open(topic, place) as reader:
                while (entry := next_entry(reader, client.timeout_s)) is not None:
                    yield entry
                    place = after_entry(entry.ledger_id, entry.entry_id)
                    heard_s = time.monotonic()
                return
        except TopicNotFoundError:
            return  # whoever reads on in it says so
        except BrokerError as error:
            late = time.monotonic() + PAUSE_S > heard_s + client.timeout_s
            if late or not worth_another_try(error):
                raise
        time.sleep(PAUSE_S)


def next_entry(reader: EntryReader, wait_s: float) -> StoredEntry | None:
    """The next one of a reader; None if it does not come in that time, or is lost."""
    until_s = time.monotonic() + wait_s
    while (left_s := until_s - time.monotonic()) > 0:
        entry = reader.entry_within(min(LOOK_AGAIN_S, left_s))
        if entry is not None:
            return entry
        unread = reader.ask().unread
        if unread is not None and unread.lost:
            return None
    return None


class _Reading:
    """How far the reading of one range has come."""

    def __init__(self, part: PlannedRange, reports: LossReports, wait_s: float) -> None:
        self._part = part
        self._reports = reports
        self._wait_s = wait_s
        self._heard_s = time.monotonic()
        self._ledgers: Mapping[int, LedgerFacts] = NO_FACTS
        self._lost = False
        self._behind_a_lost_one = False
        self._by_offset = False
        self.expected = part.start
        self.offset = (
            NO_OFFSETS
            if part.start_offset == NO_OFFSETS
            else (part.start_offset - part.start.batch_index)
        )

    @property
    def done(self) -> bool:
        return self.expected >= self._part.end

    def out_of_patience(self, more_s: float = 0.0) -> bool:
        return time.monotonic() + more_s > self._heard_s + self._wait_s

    def topic_is_gone(self) -> None:
        what = f"the topic is not there any more; nothing from {self.expected} on was read"
        self._report(Loss(self._part.topic, what, 0, START, self._messages_left()))
        self.expected = self._part.end

    def _messages_left(self, until: int = NO_OFFSETS) -> int:
        """How many messages of the range are left, or lie before the offset ``until``; 0: nobody
        knows."""
        end_offset = self._part.end_offset
        if NO_OFFSETS in (self.offset, end_offset):
            return 0
        stop = end_offset if until == NO_OFFSETS else min(until, end_offset)
        return max(0, stop - max(self.offset, self._part.start_offset))

    def _report(self, loss: Loss) -> None:
        self._reports.report(loss)
        self._lost = True

    def entries(self, reader: EntryReader) -> Iterator[NumberedEntry]:
        part = self._part
        self._look(reader)
        while not self.done:
            look_s = LOOK_BEHIND_S if self._behind_a_lost_one else LOOK_AGAIN_S
            entry = reader.entry_within(min(look_s, self._wait_s))
            if entry is None:
                if self._nothing_came(reader):
                    return  # to be read on from another place
                continue
            self._heard_s = time.monotonic()
            self._behind_a_lost_one = False
            self._check_continuity(reader, entry)
            if Place(entry.ledger_id, entry.entry_id, 0) >= part.end:
                self.expected = part.end
                break
            yield NumberedEntry(entry, self.offset)
            self._heard_s = time.monotonic()  # whoever reads may have taken long
            self.expected = self._after(entry)
            if self.offset != NO_OFFSETS:
                self.offset += entry.messages
        self._check_count()

    def _after(self, entry: StoredEntry) -> Place:
        ids = entry.messages if self._by_offset else 1
        return after_entry(entry.ledger_id, entry.entry_id + ids - 1)

    def _nothing_came(self, reader: EntryReader) -> bool:
        """True: an entry is lost, and the range goes on behind it."""
        unread = self._look(reader)
        if unread is not None and unread.lost and not self.done:
            self._entry_is_lost(reader, unread)
            return True
        if unread is None and self._nobody_gets(reader, self._part.end, for_sure=True):
            self.expected, self.offset = self._part.end, self._part.end_offset
            return False
        if self.out_of_patience():
            why = f" ({unread.why})" if unread is not None else ""
            raise BrokerError(
                f"{self._part.topic}: nothing after {self.expected} came in {self._wait_s} s, and "
                f"the range ends at {self._part.end}; is the broker able to read its bookies?{why}"
            )
        return False

    def _entry_is_lost(self, reader: EntryReader, unread: UnreadEntry) -> None:
        topic, go_on = self._part.topic, unread.behind
        until = self._number_of(reader, go_on)
        messages = self._messages_left(until) if until != NO_OFFSETS else 0
        self._report(lost_entry(topic, unread.place, unread.why, go_on, messages))
        self.expected, self.offset = min(go_on, self._part.end), until
        self._heard_s = time.monotonic()
        self._behind_a_lost_one = True

    def _look(self, reader: EntryReader) -> UnreadEntry | None:
        """Hold what is left of the range against the log; the entry that is to come next, if the
        broker cannot read it."""
        part = self._part
        question = LogQuestion(
            ledgers=True,
            first_ledger_id=self.expected.ledger_id,
            last_ledger_id=part.end.ledger_id,
        )
        if self.offset == NO_OFFSETS:
            question.places.add(ledger_id=self.expected.ledger_id, entry_id=self.expected.entry_id)
        answer = reader.ask(question)
        extent = answer.extent
        self._by_offset = extent.by_offset
        if answer.of_places:
            self.offset = answer.of_places[0]
        elif extent.by_offset and self.offset < id_offset(self.expected):
            # Of a checkpoint of an earlier release: that of a message that compaction took.
            self.offset = self._number_of(reader, self.expected)
        self._ledgers = {facts.ledger_id: facts for facts in answer.ledgers}
        gone = loss_at(part.topic, part.end, part.created_ms, extent)
        lost = loss_at(part.topic, self.expected, part.created_ms, extent) or gone
        if lost is not None:
            until = NO_OFFSETS if gone is not None else extent.first_offset
            self._report(lost._replace(messages=self._messages_left(until)))
        if gone is not None:
            self.expected = part.end
        elif self.expected < extent.kept_from:
            self.expected, self.offset = extent.kept_from, extent.first_offset
        return self._waited_for(reader, answer.unread)

    def _waited_for(self, reader: EntryReader, unread: UnreadEntry | None) -> UnreadEntry | None:
        """``unread`` if nothing is to come before it: what was read may still be on its way."""
        if unread is None or unread.place < self.expected:
            return None
        if self._gap_before(unread.place) is None or self._nobody_gets(reader, unread.place):
            return unread
        return None

    def _gap_before(self, came: Place) -> Loss | None:
        """What is missing by its id before the entry there, where ``expected`` was to come next."""
        topic, expected = self._part.topic, self.expected
        if not self._by_offset:
            return gap_before(topic, expected, came.ledger_id, came.entry_id, self._ledgers)
        if came <= max(expected, Place(0, 0, 0)):
            return None
        return Loss(topic, f"entries are missing before {came}", 1, came)

    def _nobody_gets(self, reader: EntryReader, stop: Place, *, for_sure: bool = False) -> bool:
        """Whether the broker says that consumers get nothing from ``expected`` on before ``stop``.
        ``for_sure``: and that no transaction is open which would change that."""
        at = self.expected
        while at < stop:
            question = LogQuestion()
            first, last = question.given.first, question.given.stop
            first.ledger_id, first.entry_id = at[:2]
            last.ledger_id, last.entry_id = stop[:2]
            answer = reader.ask(question)
            given = answer.given
            if (
                given is None
                or given.any
                or given.sought_to <= at
                or (for_sure and given.undecided)
            ):
                return False
            if answer.extent.kept_from > at:
                return False  # it was deleted meanwhile
            at = given.sought_to
        return True

    def _check_continuity(self, reader: EntryReader, entry: StoredEntry) -> None:
        """Report what is missing before ``entry``, where ``expected`` was to come next. Where
        another ledger begins the broker knows whether any between were deleted while this was read.
        (Those of a ledger that is deleted itself meanwhile count as lost: it cannot be told any
        more.)"""
        part, expected = self._part, self.expected
        came = Place(entry.ledger_id, entry.entry_id, 0)
        loss = gap = self._gap_before(came)
        if gap is not None and self._nobody_gets(reader, came):
            loss = None
        if gap is None and entry.ledger_id != expected.ledger_id:
            loss = loss_at(part.topic, expected, part.created_ms, reader.extent())
        if loss is None and gap is None:
            return
        until = self._number_of(reader, came)
        if loss is not None:
            self._report(loss._replace(messages=self._messages_left(until)))
        self.offset = until

    @staticmethod
    def _number_of(reader: EntryReader, place: Place) -> int:
        """The offset of the message there; ``NO_OFFSETS``: the broker does not know."""
        question = LogQuestion()
        question.places.add(ledger_id=place.ledger_id, entry_id=place.entry_id)
        return next(iter(reader.ask(question).of_places), NO_OFFSETS)

    def _check_count(self) -> None:
        """A last check, of everything at once: the range has as many messages as were planned."""
        part = self._part
        if self._lost or NO_OFFSETS in (self.offset, part.end_offset) or part.end.batch_index:
            return
        missing = part.end_offset - self.offset
        if missing > 0:  # (more come of ledgers that were written before messages were numbered)
            what = f"{missing} messages fewer than planned came up to {part.end}"
            self._report(Loss(part.topic, what, 0, part.end, missing))
