"""The entries of a split, read at the bookies: each once, in order, to the split's end.

What a task is told beside its split is asked of the topic's broker: how far the log reaches, where
the split's ledgers lie, and where the bookies listen. The entries come from the bookies by the
ledger library; the broker does nothing more.

Rules:

* Before an entry is read its place is held against the log: what was deleted is a loss, at once.
  When the bookies do not have a ledger any more the log is asked again: it may have been deleted
  meanwhile, where nothing holds it (``planning/pins.py``).
* Within a ledger no entry is left out: the library reads them in order, or fails.
* An entry of which no bookie has a sound copy is a loss: it is read again after a moment, at those
  who hold it by then. Of others right behind it that is not waited for again. (Of one that all say
  they do not have the broker says so, if it may be asked for the rest.)
* From the first entry of a transaction on the rest is read through the broker, as if the bookies
  were out of reach: a marker behind it says whether it counts.
* Where the bookies are out of reach the rest of the split is read through the broker, and that is
  said; or the task fails, as ``ByStorage.or_broker`` decides.

Why: docs/adr/0081-spark-reads-storage.md.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from magnetar.ledger.told_ledgers import ToldLedgers
from magnetar.model.errors import (
    BrokerError,
    EntryDamagedError,
    LedgerError,
    MetadataFormatError,
    NoEntryError,
    TopicNotFoundError,
)
from magnetar.pipeline.brokers.client import BrokerClient
from magnetar.pipeline.brokers.log_watch import LogWatch
from magnetar.pipeline.brokers.topic_reader import LogAnswer, StoredEntry
from magnetar.pipeline.columns.kafka_batches import in_transaction
from magnetar.pipeline.loss_reports import LossReports, warn
from magnetar.pipeline.losses import Loss, loss_at, lost_entry
from magnetar.pipeline.places import NO_OFFSETS, START, Place, after_entry
from magnetar.pipeline.planning.splits import PlannedRange, Split
from magnetar.pipeline.planning.storage_splits import ByStorage, LedgerSpan
from magnetar.pipeline.reading.range_reading import NumberedEntry, entries_of, numbered
from magnetar.wire.pulsar.pulsar_pb2 import LogQuestion

ENTRY_BYTES_MAX = 64 << 20
LOST_AGAIN_S = 1.0
ASK_LEDGERS = 500
"""Of so many ledgers at once the broker is asked where they lie."""

TRANSACTION = (
    "a transaction of a Kafka producer begins, and whether it was committed is said somewhere "
    "behind it; brokers know"
)

UNNUMBERED = NO_OFFSETS  # the offset is in the entry's own header


class OutOfReachError(Exception):
    """The bookies, or what is needed to find them; the text says what."""


def _open_ledgers(bookies: Mapping[str, tuple[str, int]]) -> ToldLedgers:
    return ToldLedgers(bookies, frame_bytes_max=ENTRY_BYTES_MAX)


class StorageReading:
    """Reads one split."""

    def __init__(
        self,
        client: BrokerClient,
        split: Split,
        reports: LossReports,
        *,
        numbers: bool,
        open_ledgers: Callable[[Mapping[str, tuple[str, int]]], ToldLedgers] = _open_ledgers,
    ) -> None:
        """``numbers``: the offsets of messages are asked for. ``open_ledgers``: given where bookies
        listen."""
        assert isinstance(split.by, ByStorage)
        self._client = client
        self._part: PlannedRange = split.part
        self._spans = split.by.spans
        self._or_broker = split.by.or_broker
        self._reports = reports
        self._numbers = numbers
        self._open_ledgers = open_ledgers
        self._logs = LogWatch(client, client.timeout_s)
        self._logs.be_patient()
        self.expected = split.part.start
        self._damaged: Place | None = None
        """The entry that could not be read last, none of whose copies was sound."""

    def entries(self) -> Iterator[NumberedEntry]:
        """The entries that hold messages of the split. What is lost goes to the reports, which
        raise or let the rest be read. Raises ``BrokerError``."""
        try:
            yield from self._at_bookies()
        except OutOfReachError as error:
            part = self._part
            if not self._or_broker:
                raise BrokerError(
                    f"{part.topic}: readMode=storage, and its entries cannot be read at the "
                    f"bookies: {error}; readMode=auto reads through the broker then"
                ) from error
            rest = replace(part, start=self.expected, start_offset=NO_OFFSETS)
            if self._numbers:
                rest = numbered(self._client, rest)
            warn(
                f"{part.topic}: from {self.expected} to {part.end} it is read through the broker, "
                f"as its entries cannot be read at the bookies: {error}"
            )
            yield from entries_of(self._client, rest, self._reports)
        finally:
            self._logs.close()

    def _at_bookies(self) -> Iterator[NumberedEntry]:
        spans = [span for span in self._spans if span.stop_entry_id > span.first_entry_id]
        for first in range(0, len(spans), ASK_LEDGERS):
            chosen = spans[first : first + ASK_LEDGERS]
            answer = self._ask([span.ledger_id for span in chosen])
            if answer is None or self._lost(answer):
                return
            yield from self._read(chosen, answer)
        self.expected = self._part.end

    def _ask(self, ledger_ids: Sequence[int]) -> LogAnswer | None:
        """What the broker says of the log and of these ledgers; None if the topic is gone."""
        try:
            return self._logs.ask(self._part.topic, LogQuestion(stored_ledgers=ledger_ids))
        except TopicNotFoundError:
            what = f"the topic is not there any more; nothing from {self.expected} on was read"
            self._reports.report(Loss(self._part.topic, what, 0, START))
            self.expected = self._part.end
            return None

    def _lost(self, answer: LogAnswer) -> bool:
        """Report what was deleted of the rest of the split, and go on after it; True if that is all
        of it."""
        part, extent = self._part, answer.extent
        gone = loss_at(part.topic, part.end, part.created_ms, extent)
        lost = loss_at(part.topic, self.expected, part.created_ms, extent) or gone
        if lost is not None:
            self._reports.report(lost)
        self.expected = part.end if gone is not None else max(self.expected, extent.kept_from)
        return gone is not None

    def _read(self, spans: Sequence[LedgerSpan], answer: LogAnswer) -> Iterator[NumberedEntry]:
        if not answer.bookies:
            raise OutOfReachError("the broker does not tell where they are")
        with self._open_ledgers(answer.bookies) as ledgers:
            for span in spans:
                yield from self._read_span(ledgers, span, answer.stored_ledgers)

    def _read_span(
        self, ledgers: ToldLedgers, span: LedgerSpan, told: Mapping[int, bytes]
    ) -> Iterator[NumberedEntry]:
        ledger_id = span.ledger_id
        while (first := self._next_of(span)) < span.stop_entry_id:
            metadata = told.get(ledger_id)
            try:
                if metadata is None:
                    raise NoEntryError(f"the broker does not tell where ledger {ledger_id} lies")
                for entry in ledgers.entries(ledger_id, metadata, first, span.stop_entry_id):
                    if in_transaction(entry.payload):
                        raise OutOfReachError(TRANSACTION)
                    stored = StoredEntry(ledger_id, entry.entry_id, entry.payload, 0)
                    yield NumberedEntry(stored, UNNUMBERED)
                    self.expected = Place(ledger_id, entry.entry_id + 1, 0)
            except NoEntryError as error:
                told = self._check_deleted(span, str(error)) or told
            except EntryDamagedError as error:
                told = self._read_elsewhere(span, str(error)) or told
            except (LedgerError, MetadataFormatError) as error:
                raise OutOfReachError(str(error)) from error

    def _next_of(self, span: LedgerSpan) -> int:
        """The entry to read next of a ledger; its stop if it lies before what is expected."""
        if self.expected.ledger_id == span.ledger_id:
            return max(span.first_entry_id, self.expected.entry_id)
        return (
            span.first_entry_id if self.expected.ledger_id < span.ledger_id else span.stop_entry_id
        )

    def _read_elsewhere(self, span: LedgerSpan, why: str) -> Mapping[int, bytes] | None:
        """No copy of the next entry is sound where it was to be: where its ledger lies by now, to
        read it again. If that was done it is a loss, and reading goes on behind it."""
        entry = Place(span.ledger_id, self._next_of(span), 0)
        go_on = after_entry(*entry[:2])
        before, self._damaged = self._damaged, entry
        if before is None or (entry != before and entry != after_entry(*before[:2])):
            time.sleep(LOST_AGAIN_S)
            answer = self._ask([span.ledger_id])
            gone = answer is None or self._lost(answer)
            return None if gone or answer is None else answer.stored_ledgers
        self._reports.report(lost_entry(self._part.topic, entry, why, go_on))
        self.expected = go_on
        return None

    def _check_deleted(self, span: LedgerSpan, why: str) -> Mapping[int, bytes] | None:
        """An entry is not where it was: it was deleted meanwhile, or is out of reach; where its
        ledger lies by now. One that the log has and no bookie is lost, if no broker is to say."""
        before = self.expected
        self.expected = max(before, Place(span.ledger_id, self._next_of(span), 0))
        answer = self._ask([span.ledger_id])
        if answer is None or self._lost(answer):
            return None
        if self._next_of(span) < span.stop_entry_id and self.expected <= before:
            if self._or_broker or span.ledger_id not in answer.stored_ledgers:
                raise OutOfReachError(why)
            return self._read_elsewhere(span, why)
        return answer.stored_ledgers
