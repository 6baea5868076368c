"""A non-durable reader of one topic partition: whole entries in order, and what its log is.

The official client hands out single messages without an entry's shape, and has no way to ask how
far the log reaches without leaving a subscription behind; so readers speak the protocol directly.
A broken connection ends the reader; whoever reads opens another one at the place reached.
"""

from __future__ import annotations

import time
import uuid
from collections import deque
from collections.abc import Mapping
from types import MappingProxyType, TracebackType
from typing import NamedTuple

from magnetar.model.errors import BrokerError
from magnetar.pipeline.brokers.connection import BrokerConnection, ReceivedFrame, refused
from magnetar.pipeline.losses import UNKNOWN_MS, GivenAnswer, LedgerFacts, LogExtent, UnreadEntry
from magnetar.pipeline.places import NO_OFFSETS, START, Place, Point, after_entry
from magnetar.wire.pulsar.hot import signed64, verify_checksum
from magnetar.wire.pulsar.metadata import batch_size, publish_time_ms
from magnetar.wire.pulsar.pulsar_pb2 import (
    BaseCommand,
    CommandGetLastMessageIdResponse,
    CommandSubscribe,
    CompactedLedger,
    GivenEntries,
    LogLedger,
    LogPlace,
    LogQuestion,
    MessageIdData,
    UnreadPlace,
)

PERMITS = 2000
EARLIEST_ID = (2**64 - 1, 2**64 - 1)


class StoredEntry(NamedTuple):
    """An entry as the producer sent it (metadata and data), where it lies, and how many messages
    it says it has."""

    ledger_id: int
    entry_id: int
    payload: memoryview
    messages: int


NOTHING_STORED: Mapping[int, bytes] = MappingProxyType({})
NOWHERE: Mapping[str, tuple[str, int]] = MappingProxyType({})


class LogAnswer(NamedTuple):
    """What a broker says of a log: how far it reaches, and what was asked, each in the order of
    the questions (none of it from a broker whose extent has ``NO_OFFSETS``)."""

    extent: LogExtent
    ledgers: tuple[LedgerFacts, ...] = ()
    of_offsets: tuple[Point, ...] = ()
    of_places: tuple[int, ...] = ()
    of_times: tuple[Place, ...] = ()
    stored_ledgers: Mapping[int, bytes] = NOTHING_STORED
    bookies: Mapping[str, tuple[str, int]] = NOWHERE
    held_ms: int = 0
    """For so long the log is held as asked; 0: it is not."""
    table: str = ""
    """Where the log's table is; empty: it has none."""
    compacted: CompactedLedger | None = None
    """What compaction has left of the log, if that was asked."""
    compacting_ledger_id: int = -1
    """The ledger that was made for a compaction that begins."""
    unread: UnreadEntry | None = None
    """What the reader that asks waits for, and cannot be read."""
    given: GivenAnswer | None = None
    """Of the stretch that was asked about; None: the broker cannot tell."""


class TopicReader:
    """A non-durable reader of one topic partition: entries in order, from a place on."""

    def __init__(
        self, connection: BrokerConnection, topic: str, place: Place, rollback_s: int = 0
    ) -> None:
        self.topic = topic
        self._connection = connection
        self._place = place
        self._permits = 0
        self._request_id = 1
        self._early: deque[ReceivedFrame] = deque()  # messages that came before an answer did
        try:
            self._subscribe(place, rollback_s)
        except BaseException:
            connection.close()
            raise

    def _subscribe(self, place: Place, rollback_s: int) -> None:
        command = BaseCommand(type=BaseCommand.SUBSCRIBE)
        subscribe = command.subscribe
        subscribe.topic = self.topic
        subscribe.subscription = f"pipeline-{uuid.uuid4().hex[:10]}"
        subscribe.subType = CommandSubscribe.Exclusive
        subscribe.consumer_id = 1
        subscribe.request_id = 1
        subscribe.durable = False
        subscribe.force_topic_creation = False
        self._start_at(subscribe.start_message_id, place)
        subscribe.initialPosition = CommandSubscribe.Earliest
        if rollback_s:
            subscribe.start_message_rollback_duration_sec = rollback_s
        self._connection.call(command)

    @staticmethod
    def _start_at(start: MessageIdData, place: Place) -> None:
        """Name the start so that the broker sends the place's own entry first.

        A reader starts *after* the id it gives, but at its entry when the id has a batch index.
        """
        if place <= START:
            start.ledgerId, start.entryId = EARLIEST_ID
            return
        start.ledgerId, start.entryId, start.batch_index = place.ledger_id, place.entry_id, 0

    def extent(self) -> LogExtent:
        """From where to where the log reaches now."""
        return self.ask().extent

    def ask(self, question: LogQuestion | None = None) -> LogAnswer:
        """From where to where the log reaches now, and what else is asked. A broker that does not
        say what was deleted (one that is no Magnetar, or older) is taken to have deleted all before
        its first ledger, which only a reader from ``START`` on can tell."""
        answer = self._last_message_id(question)
        extent, log = self._extent_of(answer), answer.log_extent
        return LogAnswer(
            extent,
            tuple(facts_of(one) for one in log.ledgers),
            tuple(Point(_place(one), one.offset) for one in log.of_offsets),
            tuple(one.offset for one in log.of_places),
            tuple(_place(one) for one in log.of_times),
            {one.ledger_id: one.metadata for one in log.stored_ledgers},
            {one.bookie_id: (one.host, one.port) for one in log.bookies},
            log.held_ms,
            log.table,
            log.compacted if log.HasField("compacted") else None,
            log.compacting_ledger_id if log.HasField("compacting_ledger_id") else -1,
            _unread(log.unread) if log.HasField("unread") else None,
            _given(log.given) if log.HasField("given") else None,
        )

    def _extent_of(self, answer: CommandGetLastMessageIdResponse) -> LogExtent:
        first = self._passed(answer) if self._place <= START else START
        kept_from, created_ms = first, UNKNOWN_MS
        first_offset = end_offset = NO_OFFSETS
        by_offset = answer.log_extent.numbered_by_offset
        if answer.HasField("log_extent"):
            log = answer.log_extent
            kept_from = after_entry(log.trimmed_ledger_id, log.trimmed_entry_id)
            created_ms = log.created_ms
            if log.HasField("end_offset"):
                first_offset, end_offset = log.first_offset, log.end_offset
        last = answer.last_message_id
        empty = signed64(last.entryId) < 0
        end = kept_from if empty else after_entry(signed64(last.ledgerId), signed64(last.entryId))
        return LogExtent(kept_from, first, end, created_ms, first_offset, end_offset, by_offset)

    def _last_message_id(
        self, question: LogQuestion | None = None
    ) -> CommandGetLastMessageIdResponse:
        self._request_id += 1
        command = BaseCommand(type=BaseCommand.GET_LAST_MESSAGE_ID)
        request = command.getLastMessageId
        request.consumer_id, request.request_id = 1, self._request_id
        if question is not None:
            request.log_question.CopyFrom(question)
        self._connection.send(command)
        while True:
            frame = self._connection.receive()
            answer = frame.command
            if answer.type == BaseCommand.GET_LAST_MESSAGE_ID_RESPONSE:
                if answer.getLastMessageIdResponse.request_id == self._request_id:
                    return answer.getLastMessageIdResponse
            elif answer.type == BaseCommand.MESSAGE:
                self._early.append(frame)
            else:
                self._check(answer)

    @staticmethod
    def _passed(answer: CommandGetLastMessageIdResponse) -> Place:
        """The place after what lies before this reader."""
        if not answer.HasField("consumer_mark_delete_position"):
            return START
        mark = answer.consumer_mark_delete_position
        return after_entry(signed64(mark.ledgerId), signed64(mark.entryId))

    def entry_within(self, wait_s: float) -> StoredEntry | None:
        """The next entry, if it comes in that time."""
        deadline = time.monotonic() + wait_s
        while True:
            self._ask_for_more()
            frame = self._early.popleft() if self._early else self._received(deadline)
            if frame is None:
                return None
            if frame.command.type == BaseCommand.MESSAGE:
                payload = frame.payload
                verify_checksum(payload, 0, len(payload))
                messages = batch_size(payload)
                self._permits -= messages
                place = frame.command.message.message_id
                return StoredEntry(place.ledgerId, place.entryId, payload, messages)
            self._check(frame.command)

    def _received(self, deadline: float) -> ReceivedFrame | None:
        return self._connection.receive_within(max(0.0, deadline - time.monotonic()))

    def _check(self, command: BaseCommand) -> None:
        """Raise what the broker says instead of what was asked for, if it is an ending."""
        if command.type == BaseCommand.CLOSE_CONSUMER:
            raise BrokerError(f"topic {self.topic} moved while it was read; try again")
        if command.type == BaseCommand.ERROR:
            raise refused(command.error.error, f"topic {self.topic}: {command.error.message}")

    def _ask_for_more(self) -> None:
        if self._permits > PERMITS // 2:
            return
        command = BaseCommand(type=BaseCommand.FLOW)
        command.flow.consumer_id = 1
        command.flow.messagePermits = PERMITS
        self._connection.send(command)
        self._permits += PERMITS

    def first_published_since(self, time_ms: int, wait_s: float) -> Place:
        """The place before the first entry from here on that was published at ``time_ms`` or
        later; the end if there is none."""
        answer = self._last_message_id()
        end = self._extent_of(answer).end
        if self._passed(answer) >= end:
            return end
        while (entry := self.entry_within(wait_s)) is not None:
            if publish_time_ms(entry.payload) >= time_ms:
                return Place(entry.ledger_id, entry.entry_id, 0)
            if Place(entry.ledger_id, entry.entry_id + 1, 0) >= end:
                return end
        raise BrokerError(f"topic {self.topic}: no entry came in {wait_s} s, and it ends at {end}")

    def close(self) -> None:
        self._connection.close()

    def __enter__(self) -> TopicReader:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def facts_of(found: LogLedger) -> LedgerFacts:
    """What a broker says of one ledger."""
    told = found.ledger_id, found.entries, found.stored_bytes, found.closed
    times = found.least_ms, found.greatest_ms
    return LedgerFacts(*told, *times, found.stored, found.messages)


def _unread(found: UnreadPlace) -> UnreadEntry:
    place = Place(found.ledger_id, found.entry_id, 0)
    behind = Place(found.behind_ledger_id, found.behind_entry_id, 0)
    return UnreadEntry(place, behind, found.why, found.lost)


def _given(found: GivenEntries) -> GivenAnswer:
    return GivenAnswer(found.any, _place(found.sought_to), found.undecided)


def _place(found: LogPlace) -> Place:
    return Place(found.ledger_id, found.entry_id, found.batch_index)
