"""Blocks of stored entries -> record batches, of the messages between two places.

Entries of the usual shape are decoded in one pass (``gathered_rows``), where that is done in C;
others by columns, many at once; odd ones one by one (``plain_rows``). A message that came in chunks
is a row where its last chunk lies.

Why: docs/adr/0082-entries-decoded-by-columns.md.

Errors: ``ProtocolError`` that names ledger and entry; ``ConfigError`` if a library is missing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from copy import copy
from typing import Final

import numpy as np
import pyarrow as pa

from magnetar.model.errors import ProtocolError
from magnetar.pipeline.brokers.topic_reader import StoredEntry
from magnetar.pipeline.columns.arrow_columns import ArrowColumns, EntryIds
from magnetar.pipeline.columns.chunked_messages import ChunkedMessages, EarlierChunks
from magnetar.pipeline.columns.conditions import Conditions
from magnetar.pipeline.columns.entry_columns import TIME_MS_MAX, EntryTables, read_entries
from magnetar.pipeline.columns.gathered_rows import gather_rows, wanted_of
from magnetar.pipeline.columns.kafka_batches import as_pulsar
from magnetar.pipeline.columns.message_rows import MessageRows, OddEntries, read_rows, select
from magnetar.pipeline.columns.plain_rows import PlainRows, message_of_chunks, plain_rows, within
from magnetar.pipeline.columns.protobuf_columns import ABSENT, Flags, Ints
from magnetar.pipeline.columns.row_filter import RowFilter
from magnetar.pipeline.places import UNBATCHED, Place
from magnetar.speedups import NATIVE
from magnetar.wire.pulsar.broker_metadata import read_header
from magnetar.wire.pulsar.metadata import entry_metadata, parse_metadata
from magnetar.wire.pulsar.schemas import VERSION_BYTES, decode_version

BATCH_BYTES = 1 << 20
BATCH_ROWS = 10_000
"""About what Spark takes best."""

BLOCK_BYTES = 1 << 20
"""Of stored entries that are decoded at once: what is made of them stays in a core's own cache."""

LARGE_BLOCK_BYTES, FEW_ROWS = 8 << 20, 2000
"""What a block costs beside its bytes is worth a thousand rows; of large messages it holds more,
unless it is decoded in one pass."""

BLOCK_ENTRIES = 20_000

RUN_BYTES_MAX = 8 << 20
"""Of uncompressed data that is decoded at once, if it is more than one entry's."""

UNNUMBERED = -1


def decode_entries(
    decoder: EntryDecoder, entries: Iterable[tuple[StoredEntry, int]]
) -> Iterator[pa.RecordBatch]:
    """The record batches of the entries of ``decoder``'s range, which come in order, each with the
    offset of its first message (``UNNUMBERED``: what its header says)."""
    block: list[StoredEntry] = []
    offsets: list[int] = []
    byte_count, bytes_max = 0, BLOCK_BYTES
    for entry, offset in entries:
        block.append(entry)
        offsets.append(offset)
        byte_count += len(entry.payload)
        if byte_count >= bytes_max or len(block) >= BLOCK_ENTRIES:
            before = decoder.messages_read
            yield from decoder.decode(block, offsets)
            few = decoder.by_columns and decoder.messages_read - before < FEW_ROWS
            block, offsets, byte_count = [], [], 0
            bytes_max = LARGE_BLOCK_BYTES if few else BLOCK_BYTES
    if block:
        yield from decoder.decode(block, offsets)


WAY_BEHIND: Final = (
    "; it is there as it was sent, and failOnDataLoss does not pass over it: to read what lies "
    "behind start there (startingOffsets, and a new checkpointLocation of a stream)"
)


class EntryDecoder:
    """Decodes the entries of one range of a topic partition, block by block, in order.

    ``start`` and ``end`` bound the messages, of which entries outside have none. ``earlier`` finds
    the chunks before the range of a message whose last chunk lies in it. Rows are messages for
    which the ``conditions`` hold; ``messages_read`` counts all. ``gathers``: in one pass, if there
    are no conditions; in Python that takes longer than by columns. ``by_columns``: whether the last
    block, or a part of it, was not.
    """

    def __init__(
        self,
        columns: Sequence[str],
        topic: str,
        start: Place,
        end: Place,
        earlier: EarlierChunks,
        conditions: Conditions = (),
        *,
        gathers: bool = NATIVE,
    ) -> None:
        self._filter = RowFilter(conditions)
        self._gathers = gathers and not conditions
        self._wanted = wanted_of(columns)
        self.messages_read = 0
        self.by_columns = True
        self._tables = EntryTables({*columns, *self._filter.columns})
        self._arrow = ArrowColumns(columns, topic)
        self._topic = topic
        self._start, self._end = start, end
        self._chunks = ChunkedMessages(earlier)

    def decode(
        self, entries: Sequence[StoredEntry], offsets: Sequence[int]
    ) -> Iterator[pa.RecordBatch]:
        """The record batches of the next entries of the range, as ``decode_entries``."""
        taken = 0
        if self._gathers and entries and not self._cut(entries[0]) and not self._cut(entries[-1]):
            taken, batch = self._gathered(entries, offsets)
            if batch is not None:
                yield from _sliced(batch, batch.nbytes)
        self.by_columns = taken < len(entries)
        if self.by_columns:
            yield from self._decode(entries[taken:], offsets[taken:])

    def _cut(self, entry: StoredEntry) -> bool:
        """Whether messages of it may lie outside of the range."""
        place = Place(entry.ledger_id, entry.entry_id, self._start.batch_index)
        return (place == self._start and place.batch_index > 0) or place[:2] == self._end[:2]

    def _gathered(
        self, entries: Sequence[StoredEntry], offsets: Sequence[int]
    ) -> tuple[int, pa.RecordBatch | None]:
        """The first of the entries, as far as they are of the usual shape: how many, and what lies
        in them."""
        rows = gather_rows([entry.payload for entry in entries], self._wanted)
        taken = len(rows.messages)
        if not taken:
            return 0, None
        ids = None
        if self._arrow.of_entries:
            offsets_ = _offsets(offsets[:taken], rows.messages, rows.last_offsets)
            ids = _ids(entries[:taken], rows.publish_times_ms, offsets_, rows.schema_versions)
        try:
            batch = self._arrow.gathered_batch(rows, ids)
        except ProtocolError:  # of which entry is found out by columns
            return 0, None
        self.messages_read += batch.num_rows
        return taken, batch

    def _decode(
        self, entries: Sequence[StoredEntry], offsets: Sequence[int]
    ) -> Iterator[pa.RecordBatch]:
        """By columns."""
        block = _Block(entries, offsets, self._tables)
        self.messages_read += block.messages
        wanted = self._filter.entries(block.ids) | block.table.odd
        if not wanted.all():
            block = block.chosen(wanted)
        for first, stop in block.runs():
            part = slice(first, stop)
            if block.table.odd[first]:
                yield from self._plain(block, part)
            else:
                yield from self._run(block, part)

    def _run(self, block: _Block, chosen: slice) -> Iterator[pa.RecordBatch]:
        """Entries that are not odd, as far as is known."""
        try:
            ids = EntryIds(*(column[chosen] for column in block.ids))
            rows = self._kept(read_rows(block.table, chosen, self._tables), ids)
            rows = self._filter.kept(rows, ids)
            batch = self._arrow.batch(rows, ids)
        except OddEntries as found:
            odd = found.odd
        except ProtocolError:  # of which entry is found out one by one
            odd = np.ones(chosen.stop - chosen.start, np.bool_)
        else:
            yield from _sliced(batch, batch.nbytes)
            return
        for first, stop in equal_runs(odd):
            part = slice(chosen.start + first, chosen.start + stop)
            if odd[first]:
                yield from self._plain(block, part)
            else:
                yield from self._run(block, part)

    def _kept(self, rows: MessageRows, ids: EntryIds) -> MessageRows:
        """Without what was compacted away, and what is outside of the range."""
        kept = ~rows.compacted
        at_start, at_end = (
            (ids.ledger_ids == place.ledger_id) & (ids.entry_ids == place.entry_id)
            for place in (self._start, self._end)
        )
        if at_start.any():
            before = rows.batch_indexes < self._start.batch_index
            kept &= ~(at_start[rows.entries] & before & (rows.batch_indexes != UNBATCHED))
        if at_end.any():  # the place after a message that is an entry of its own is the next entry
            after = rows.batch_indexes >= self._end.batch_index
            kept &= ~(at_end[rows.entries] & (after | (rows.batch_indexes == UNBATCHED)))
        return rows if kept.all() else select(rows, kept)

    # -- one by one ---------------------------------------------------------------------------

    def _plain(self, block: _Block, chosen: slice) -> Iterator[pa.RecordBatch]:
        for entry, offset in zip(block.entries[chosen], block.offsets[chosen], strict=True):
            try:
                batch = self._plain_batch(entry, offset)
            except ProtocolError as error:
                where = f"{self._topic}: entry {entry.ledger_id}:{entry.entry_id}"
                raise ProtocolError(f"{where}: {error}{WAY_BEHIND}") from error
            if batch is not None and batch.num_rows:
                yield from _sliced(batch, batch.nbytes)

    def _plain_batch(self, entry: StoredEntry, offset: int) -> pa.RecordBatch | None:
        entry = entry._replace(payload=as_pulsar(entry.payload))
        meta = entry_metadata(entry.payload)
        raw, _ = parse_metadata(entry.payload)
        if meta.num_chunks > 1:
            value = self._chunks.value(entry, meta)
            if value is None:
                return None
            rows = message_of_chunks(raw, value)
        else:
            rows = plain_rows(entry.payload, meta, raw)
        if meta.publish_time_ms > TIME_MS_MAX:
            raise ProtocolError(f"publish time {meta.publish_time_ms} is no time in milliseconds")
        header = read_header(entry.payload) if offset == UNNUMBERED else None
        if header is not None and header.last_offset >= 0:
            offset = header.last_offset - meta.num_messages + 1
        version = raw.schema_version
        told = (
            entry.ledger_id,
            entry.entry_id,
            meta.publish_time_ms,
            offset,
            decode_version(version) if len(version) == VERSION_BYTES else ABSENT,
        )
        ids = EntryIds(*(np.array([number], np.int64) for number in told))
        rows = self._filter.plain(self._within(rows, entry), ids)
        return self._arrow.plain_batch(rows, ids)

    def _within(self, rows: PlainRows, entry: StoredEntry) -> PlainRows:
        here = entry.ledger_id, entry.entry_id
        first = self._start.batch_index if here == self._start[:2] else 0
        stop = self._end.batch_index if here == self._end[:2] else None
        return rows if first == 0 and stop is None else within(rows, first, stop)


class _Block:
    """Entries that are decoded together, and what was read of their metadata."""

    def __init__(
        self, entries: Sequence[StoredEntry], offsets: Sequence[int], tables: EntryTables
    ) -> None:
        self.entries, self.offsets = entries, offsets
        self.table = table = read_entries([entry.payload for entry in entries], tables)
        ints = table.fields.ints
        numbered = _offsets(offsets, ints["num_messages"], table.last_offsets)
        self.ids = _ids(entries, ints["publish_time"], numbered, table.schema_versions)

    @property
    def messages(self) -> int:
        return int(np.maximum(self.table.fields.ints["num_messages"], 1).sum())

    def chosen(self, entries: Flags) -> _Block:
        """Only the entries that are marked."""
        found = copy(self)
        numbers = np.flatnonzero(entries).tolist()
        found.entries = [self.entries[number] for number in numbers]
        found.offsets = [self.offsets[number] for number in numbers]
        found.table = self.table.chosen(entries)
        found.ids = EntryIds(*(column[entries] for column in self.ids))
        return found

    def runs(self) -> Iterator[tuple[int, int]]:
        """First and stop of entries that go together: all odd or none, and not too much data."""
        table = self.table
        sizes = np.maximum(table.fields.ints["uncompressed_size"], table.data_stop - table.data_at)
        for first, stop in equal_runs(table.odd):
            blocks = np.cumsum(sizes[first:stop]) // RUN_BYTES_MAX
            for begin, end in equal_runs(blocks):
                yield first + begin, first + end


def _offsets(given: Sequence[int], messages: Ints, last_offsets: Ints) -> Ints:
    """Of the first message of each entry: as given, else by the offset of its last one."""
    by_header = last_offsets - np.maximum(messages, 1) + 1
    by_header[last_offsets == ABSENT] = UNNUMBERED
    offsets = np.fromiter(given, np.int64, len(given))
    return np.where(offsets == UNNUMBERED, by_header, offsets)


def _ids(entries: Sequence[StoredEntry], times_ms: Ints, offsets: Ints, versions: Ints) -> EntryIds:
    count = len(entries)
    return EntryIds(
        np.fromiter((entry.ledger_id for entry in entries), np.int64, count),
        np.fromiter((entry.entry_id for entry in entries), np.int64, count),
        times_ms,
        offsets,
        versions,
    )


def equal_runs(values: Flags | Ints) -> Iterator[tuple[int, int]]:
    """First and stop of each run of equal values."""
    if not len(values):
        return iter(())
    changes = (np.flatnonzero(values[1:] != values[:-1]) + 1).tolist()
    return zip([0, *changes], [*changes, len(values)], strict=True)


def _sliced(batch: pa.RecordBatch, byte_count: int) -> Iterator[pa.RecordBatch]:
    """The batch in parts of about the size that Spark takes best."""
    rows = batch.num_rows
    parts = max(1, round(byte_count / BATCH_BYTES), -(-rows // BATCH_ROWS))
    size = -(-rows // parts)
    for first in range(0, rows, max(1, size)):
        yield batch.slice(first, size)
