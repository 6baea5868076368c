"""The entries of a range -> Arrow record batches, whichever way the entries come."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa

from magnetar.model.errors import TopicNotFoundError
from magnetar.pipeline.brokers.topic_reader import StoredEntry
from magnetar.pipeline.columns.conditions import Conditions
from magnetar.pipeline.columns.entry_decoder import EntryDecoder, decode_entries
from magnetar.pipeline.loss_reports import LossReports
from magnetar.pipeline.places import Place
from magnetar.pipeline.planning.splits import PlannedRange
from magnetar.pipeline.reading.earlier_chunks import EarlierEntries
from magnetar.pipeline.reading.range_reading import (
    NumberedEntry,
    entries_from,
    entries_of,
    patiently,
)
from magnetar.pipeline.reading.tails import Readers
from magnetar.wire.pulsar.pulsar_pb2 import LogQuestion


def read_range(
    client: Readers,
    part: PlannedRange,
    columns: Sequence[str],
    reports: LossReports,
    conditions: Conditions = (),
) -> Iterator[pa.RecordBatch]:
    """Every message of a range for which the conditions hold, in order, exactly once, through the
    broker.

    What is lost goes to ``reports``, which raises or lets the rest be read. Raises ``BrokerError``
    when the end of the range does not come in time.
    """
    entries = entries_of(client, part, reports)
    return decoded(client, part, columns, reports, entries, conditions)


def decoded(
    client: Readers,
    part: PlannedRange,
    columns: Sequence[str],
    reports: LossReports,
    entries: Iterable[NumberedEntry],
    conditions: Conditions = (),
) -> Iterator[pa.RecordBatch]:
    """The messages of a range, whose entries come in order, for which the conditions hold. Raises
    ``ProtocolError``."""

    def read_from(place: Place) -> Iterator[StoredEntry]:
        return entries_from(client, part.topic, place)

    def ledgers() -> list[int]:
        try:
            return patiently(client.timeout_s, ask)
        except TopicNotFoundError:
            return []  # nor are there entries to look back for

    def ask() -> list[int]:
        with client.open(part.topic) as reader:
            return [facts.ledger_id for facts in reader.ask(LogQuestion(ledgers=True)).ledgers]

    earlier = EarlierEntries(part.topic, read_from, ledgers, reports)
    bounds = part.start, part.end
    decoder = EntryDecoder(columns, part.topic, *bounds, earlier.chunks, conditions)
    return decode_entries(decoder, entries)
