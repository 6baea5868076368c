"""Entries of a ledger -> rows of a topic's table, and of its side table.

Every entry goes into the tables so that it can be put together again (``tables.columns``): by its
rows' frames and payloads, or whole, as the frame of one row of the side table. Which of the two is
decided here, and nowhere else:

====================================================  =======================================
entry                                                 rows
====================================================  =======================================
that messages fill from end to end                    its messages, with frames
compressed                                            the same, uncompressed (``unpacking``)
a chunk of a large message                            whole; with the last one the message, too,
                                                      without a frame
whose messages do not fill it, or that is too large   whole, and its messages without frames
to be unpacked
a record batch of Kafka's                             whole, and its messages without frames
part of a transaction of Kafka's                      whole: what decides it may lie behind it
encrypted, or that nobody can read                    whole
====================================================  =======================================

Messages are decoded by columns, those of record batches as the entries that Pulsar's consumers get
of them; other entries of the lower kinds one by one.

Why batches of Kafka's are kept whole: docs/adr/0152-kafkas-batches-lie-beside-their-rows.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from magnetar.model.entry import Entry
from magnetar.model.errors import ProtocolError
from magnetar.pipeline.brokers.topic_reader import StoredEntry
from magnetar.pipeline.columns.arrow_columns import (
    ArrowColumns,
    EntryIds,
    checked_text,
    gather,
)
from magnetar.pipeline.columns.chunked_messages import ChunkedMessages, EarlierChunks
from magnetar.pipeline.columns.entry_columns import (
    TIME_MS_MAX,
    EntryTable,
    EntryTables,
    read_entries,
)
from magnetar.pipeline.columns.entry_decoder import equal_runs
from magnetar.pipeline.columns.kafka_batches import as_pulsar, holds_batch
from magnetar.pipeline.columns.message_rows import MessageRows, OddEntries, read_rows
from magnetar.pipeline.columns.plain_rows import message_of_chunks, plain_rows
from magnetar.pipeline.columns.protobuf_columns import ABSENT, Flags, Spans
from magnetar.pipeline.tables.unpacking import UNPACKED_BYTES_MAX, unpacked
from magnetar.tables.columns import raw_fields, side_schema
from magnetar.tables.layout import WHY
from magnetar.wire.pulsar.broker_metadata import read_header
from magnetar.wire.pulsar.metadata import EntryMetadata, entry_metadata, parse_metadata
from magnetar.wire.pulsar.schemas import VERSION_BYTES, decode_version

DECODED: Final = (
    "partition", "message_id", "offset", "key", "publish_time", "event_time", "properties",
    "schema_version", "value",
)  # fmt: skip
PLACES: Final = ("ledger_id", "entry_id", "batch_index")
WHOLE: Final = -1
"""The ``batch_index`` of an entry that is kept whole."""

OF_KAFKA: Final = "a record batch of Kafka's, as Kafka's consumers get it; its messages are rows"


class Rows(NamedTuple):
    """Of some entries, in order. ``messages``: that entries say they hold. ``beside``: rows of the
    side table that are entries all of whose messages are in the main one."""

    main: list[pa.RecordBatch]
    side: list[pa.RecordBatch]
    messages: int
    beside: int = 0


class _Read(NamedTuple):
    """Entries as they are read. ``payloads``: uncompressed, and record batches of Kafka's as
    entries of Pulsar's (``of_kafka``); ``refused``: why those are not read that cannot be that."""

    payloads: list[bytes | memoryview]
    of_kafka: Flags
    refused: dict[int, str]

    @classmethod
    def of(cls, entries: Sequence[Entry]) -> _Read:
        """Raises ``ConfigError`` without a codec's library."""
        payloads: list[bytes | memoryview] = [entry.payload for entry in entries]
        found = cls(payloads, np.zeros(len(entries), np.bool_), {})
        for number, entry in enumerate(entries):
            if not holds_batch(entry.payload):
                continue
            try:
                payloads[number] = as_pulsar(entry.payload, compressed=False)
            except ProtocolError as error:
                found.refused[number] = str(error)
            else:
                found.of_kafka[number] = True
        return found


class EntryRows:
    """Makes rows of the entries of one topic partition, block by block, in order. ``earlier`` finds
    the chunks before the ledger of a message whose last chunk is in it."""

    def __init__(self, topic: str, earlier: EarlierChunks) -> None:
        self._tables = EntryTables({*DECODED, "producer_name", "sequence_id"})
        self._arrow = ArrowColumns(DECODED, topic)
        self._fields = pa.schema(raw_fields())
        self._partition = self._arrow.partition
        self._chunks = ChunkedMessages(earlier)
        self._last_offset = ABSENT  # of the entry before

    def rows(self, entries: Sequence[Entry]) -> Rows:
        """Raises ``BrokerError`` when earlier chunks cannot be asked for."""
        read = _Read.of(entries)
        table = read_entries(read.payloads, self._tables)
        odd = table.odd.copy()
        if self._unpack(table, read.payloads, odd):
            table = read_entries(read.payloads, self._tables)
            odd |= table.odd
        ids = _ids(entries, table)
        found = Rows([], [], 0)
        for first, stop in equal_runs(odd + 2 * read.of_kafka.astype(np.int64)):
            if odd[first]:
                for number in range(first, stop):
                    self._whole(entries, read, number, found)
            else:
                self._by_columns(entries, read, table, ids, slice(first, stop), found)
        beside = int((read.of_kafka & ~odd).sum())
        return found._replace(messages=self._messages(table), beside=beside)

    def begin_anew(self) -> None:
        """Entries before the next one were passed over: their messages are not to be counted."""
        self._last_offset = ABSENT

    def _messages(self, table: EntryTable) -> int:
        """How many messages the entries hold: what their headers say, whatever is in them."""
        by_metadata = np.maximum(table.fields.ints["num_messages"], 1)
        last = table.last_offsets
        before = np.concatenate(([self._last_offset], last[:-1]))
        self._last_offset = int(last[-1])
        told = (last != ABSENT) & (before != ABSENT)
        return int(np.where(told, last - before, by_metadata).sum())

    @staticmethod
    def _unpack(table: EntryTable, payloads: list[bytes | memoryview], odd: Flags) -> bool:
        """Replace the payloads that are compressed; whether there are any."""
        ints = table.fields.ints
        packed = np.flatnonzero((ints["compression"] > 0) & ~odd)
        for number in packed.tolist():
            if not 0 <= ints["uncompressed_size"][number] <= UNPACKED_BYTES_MAX:
                odd[number] = True
                continue
            try:
                payloads[number] = unpacked(payloads[number])
            except ProtocolError:
                odd[number] = True
        return bool(len(packed))

    # -- by columns ---------------------------------------------------------------------------

    def _by_columns(
        self,
        entries: Sequence[Entry],
        read: _Read,
        table: EntryTable,
        ids: EntryIds,
        chosen: slice,
        found: Rows,
    ) -> None:
        """Entries of one kind: all of Kafka's, or none."""
        of_kafka = bool(read.of_kafka[chosen.start])
        part = EntryIds(*(column[chosen] for column in ids))
        try:
            rows = read_rows(table, chosen, self._tables)
            frames = None if of_kafka else _frames(rows, table, chosen)
            batch = self._batch(self._arrow.batch(rows, part), rows, table, chosen, frames)
        except OddEntries as told:
            odd = told.odd
        except ProtocolError:  # of which entry is found out one by one
            odd = np.ones(chosen.stop - chosen.start, np.bool_)
        else:
            found.main.append(batch)
            if of_kafka:
                found.side.append(self._side_rows(entries[chosen], OF_KAFKA))
            return
        for first, stop in equal_runs(odd):
            if odd[first]:
                for number in range(chosen.start + first, chosen.start + stop):
                    self._whole(entries, read, number, found)
            else:
                run = slice(chosen.start + first, chosen.start + stop)
                self._by_columns(entries, read, table, ids, run, found)

    def _batch(
        self,
        decoded: pa.RecordBatch,
        rows: MessageRows,
        table: EntryTable,
        chosen: slice,
        frames: Spans | None,
    ) -> pa.RecordBatch:
        fields = table.fields
        names, numbers = fields.spans["producer_name"], fields.ints["sequence_id"][chosen]
        text = pa.string()
        spans = Spans(names.at[chosen], names.length[chosen])
        producers = checked_text(gather(table.bytes, spans, text), "producer name")
        unnumbered = table.last_offsets[chosen] == ABSENT
        return self._assembled(
            _without_offsets(decoded, unnumbered[rows.entries]),
            producers.take(pa.array(rows.entries)),
            pa.array(numbers[rows.entries]),
            pa.nulls(decoded.num_rows, pa.binary())
            if frames is None
            else gather(table.bytes, frames, pa.binary()),
        )

    def _assembled(
        self, decoded: pa.RecordBatch, producers: pa.Array, numbers: pa.Array, frames: pa.Array
    ) -> pa.RecordBatch:
        columns = {name: decoded.column(name) for name in decoded.schema.names}
        places = columns.pop("message_id").flatten()
        columns |= dict(zip(PLACES, places, strict=True))
        columns["payload"] = columns.pop("value")
        columns |= {"producer_name": producers, "sequence_id": numbers, "frame": frames}
        return pa.RecordBatch.from_arrays(
            [columns[name] for name in self._fields.names], schema=self._fields
        )

    # -- one by one ---------------------------------------------------------------------------

    def _whole(self, entries: Sequence[Entry], read: _Read, number: int, found: Rows) -> None:
        """An entry that is kept as it is, with what of its messages can be read."""
        stored = entries[number]
        if number in read.refused:
            found.side.append(self._side_rows([stored], read.refused[number]))
            return
        entry = stored
        if read.of_kafka[number]:
            entry = Entry(stored.ledger_id, stored.entry_id, bytes(read.payloads[number]), 0)
        try:
            meta = entry_metadata(entry.payload)
            if meta.encrypted:
                why = "encrypted"
            elif meta.num_chunks > 1:
                why = f"chunk {meta.chunk_id} of {meta.num_chunks} of a large message"
            elif meta.publish_time_ms > TIME_MS_MAX:
                raise ProtocolError(f"published at {meta.publish_time_ms}, which is no time")
            else:
                why = "kept as it is: its messages are not all of it, or too large"
            batch = None if meta.encrypted else self._readable(entry, meta)
        except ProtocolError as error:
            why, batch = str(error), None
        if batch is not None and batch.num_rows:
            found.main.append(batch)
        found.side.append(self._side_rows([stored], why))

    def _readable(self, entry: Entry, meta: EntryMetadata) -> pa.RecordBatch | None:
        raw, _ = parse_metadata(entry.payload)
        if meta.num_chunks > 1:
            stored = StoredEntry(entry.ledger_id, entry.entry_id, entry.payload, 1)
            value = self._chunks.value(stored, meta)
            if value is None:
                return None
            rows = message_of_chunks(raw, value)
        else:
            rows = plain_rows(entry.payload, meta, raw)
        decoded = self._arrow.plain_batch(rows, _plain_ids(entry, meta, raw.schema_version))
        count = len(rows.indexes)
        if read_header(entry.payload) is None:
            decoded = _without_offsets(decoded, np.ones(count, np.bool_))
        return self._assembled(
            decoded,
            pa.array([meta.producer_name] * count, pa.string()),
            pa.array([_signed(meta.sequence_id)] * count, pa.int64()),
            pa.nulls(count, pa.binary()),
        )

    def _side_rows(self, entries: Sequence[Entry], why: str) -> pa.RecordBatch:
        """Entries as they are stored."""
        told = [
            {
                "partition": self._partition,
                "ledger_id": entry.ledger_id,
                "entry_id": entry.entry_id,
                "batch_index": WHOLE,
                "frame": bytes(entry.payload),
                WHY: why,
            }
            for entry in entries
        ]
        return pa.RecordBatch.from_pylist(told, schema=side_schema())


def _frames(rows: MessageRows, table: EntryTable, chosen: slice) -> Spans:
    """What lies before each value: from the one before it in the entry on, or from the entry's
    begin. Raises ``OddEntries`` for entries whose values do not reach their ends."""
    entries, values = rows.entries, rows.values
    begins, stops = table.at[chosen], table.data_stop[chosen]
    ends = values.at + np.maximum(values.length, 0)
    at = np.empty_like(values.at)
    at[1:] = ends[:-1]
    first = np.flatnonzero(np.diff(entries, prepend=-1))
    at[first] = begins[entries[first]]
    last = np.append(first[1:], len(entries)) - 1
    odd = np.zeros(len(begins), np.bool_)
    odd[entries[last[ends[last] != stops[entries[last]]]]] = True
    odd[entries[rows.compacted | (at > values.at)]] = True
    if odd.any():
        raise OddEntries(odd)
    return Spans(at, values.at - at)


def _without_offsets(batch: pa.RecordBatch, rows: Flags) -> pa.RecordBatch:
    """Older releases did not number messages."""
    if not rows.any():
        return batch
    at = batch.schema.get_field_index("offset")
    return batch.set_column(at, "offset", pc.if_else(pa.array(rows), None, batch.column(at)))


def _ids(entries: Sequence[Entry], table: EntryTable) -> EntryIds:
    count, ints = len(entries), table.fields.ints
    first = table.last_offsets - np.maximum(ints["num_messages"], 1) + 1
    return EntryIds(
        np.fromiter((entry.ledger_id for entry in entries), np.int64, count),
        np.fromiter((entry.entry_id for entry in entries), np.int64, count),
        ints["publish_time"],
        np.maximum(first, 0),  # of what has no header it is nulled later
        table.schema_versions,
    )


def _plain_ids(entry: Entry, meta: EntryMetadata, version: bytes) -> EntryIds:
    header = read_header(entry.payload)
    last = -1 if header is None else header.last_offset
    told = (
        entry.ledger_id,
        entry.entry_id,
        meta.publish_time_ms,
        max(0, last - meta.num_messages + 1),
        decode_version(version) if len(version) == VERSION_BYTES else ABSENT,
    )
    return EntryIds(*(np.array([number], np.int64) for number in told))


def _signed(number: int) -> int:
    return number - 2**64 if number >= 2**63 else number
