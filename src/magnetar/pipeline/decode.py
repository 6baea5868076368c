"""Entries of a range -> Arrow record batches.

Rows are gathered column by column in plain lists and become one record batch at about
``BATCH_BYTES`` of values or ``BATCH_ROWS`` rows, which is what Spark takes best.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any

import pyarrow as pa

from magnetar.model.errors import BrokerError
from magnetar.pipeline.broker_client import BrokerClient, StoredEntry
from magnetar.pipeline.places import START, Place, after
from magnetar.pipeline.planner import Range
from magnetar.pipeline.schema import arrow_schema
from magnetar.wire.pulsar.batches import MessageInfo, iterate_messages
from magnetar.wire.pulsar.metadata import EntryMetadata, entry_metadata

BATCH_BYTES = 1 << 20
BATCH_ROWS = 10_000


class Rows:
    """The columns gathered so far."""

    def __init__(self, columns: Sequence[str], topic: str) -> None:
        self._schema = arrow_schema(columns)
        self._topic = topic
        self._partition = partition_number(topic)
        self._columns: dict[str, list[Any]] = {name: [] for name in columns}
        self._fill: list[tuple[list[Any], Callable[[_Row], Any]]] = [
            (self._columns[name], _COLUMN_OF[name]) for name in columns
        ]
        self.count = 0
        self.byte_count = 0

    def add(self, row: _Row) -> None:
        for values, take in self._fill:
            values.append(take(row))
        self.count += 1
        self.byte_count += row.size

    @property
    def full(self) -> bool:
        return self.count >= BATCH_ROWS or self.byte_count >= BATCH_BYTES

    def take(self) -> pa.RecordBatch:
        """A record batch of what was gathered; the columns are empty afterwards."""
        arrays = [self._array(field) for field in self._schema]
        self.count = self.byte_count = 0
        for values in self._columns.values():
            values.clear()
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _array(self, field: pa.Field) -> pa.Array:
        if field.name == "topic":
            return pa.array([self._topic] * self.count, field.type)
        if field.name == "partition":
            return pa.array([self._partition] * self.count, field.type)
        return pa.array(self._columns[field.name], field.type)


class _Row:
    """One message and the entry it came in."""

    __slots__ = ("entry", "info", "metadata", "size", "value")

    def __init__(
        self, entry: StoredEntry, metadata: EntryMetadata, info: MessageInfo, value: memoryview
    ) -> None:
        self.entry = entry
        self.metadata = metadata
        self.info = info
        self.value = value
        self.size = len(value) + 64


def _message_id(row: _Row) -> dict[str, int]:
    return {
        "ledger_id": row.entry.ledger_id,
        "entry_id": row.entry.entry_id,
        "batch_index": row.info.batch_index,
    }


def _event_time_us(row: _Row) -> int | None:
    return row.info.event_time_ms * 1000 or None


def _value(row: _Row) -> bytes | None:
    return None if row.info.null_value else bytes(row.value)


_COLUMN_OF: dict[str, Callable[[_Row], Any]] = {
    "key": lambda row: row.info.key,
    "value": _value,
    "topic": lambda row: None,
    "partition": lambda row: None,
    "message_id": _message_id,
    "publish_time": lambda row: row.metadata.publish_time_ms * 1000,
    "event_time": _event_time_us,
    "properties": lambda row: list(row.info.properties.items()),
}


def partition_number(topic: str) -> int:
    """The number at the end of ``NAME-partition-N``; -1 for a topic without partitions."""
    _, mark, number = topic.rpartition("-partition-")
    return int(number) if mark and number.isdigit() else -1


def read_range(
    client: BrokerClient, part: Range, columns: Sequence[str], *, fail_on_gap: bool
) -> Iterator[pa.RecordBatch]:
    """Every message of a range, in order, exactly once.

    Raises ``BrokerError`` when an entry is missing (with ``fail_on_gap``) or the end of the range
    does not come in time.
    """
    if part.empty:
        return
    rows = Rows(columns, part.topic)
    with client.open(part.topic, part.start) as reader:
        for entry in _entries_of(reader.entries(), part, fail_on_gap):
            metadata = entry_metadata(entry.payload)
            _refuse_chunks(part.topic, entry, metadata)
            for row in _rows_of(entry, metadata, part):
                rows.add(row)
                if rows.full:
                    yield rows.take()
    if rows.count:
        yield rows.take()


def _entries_of(
    entries: Iterator[StoredEntry], part: Range, fail_on_gap: bool
) -> Iterator[StoredEntry]:
    """The entries that hold messages of the range; ends with the one that reaches its end."""
    start = part.start
    previous = None if start <= START else Place(start.ledger_id, start.entry_id - 1, 0)
    for entry in entries:
        if fail_on_gap:
            check_continuity(part.topic, previous, entry)
        previous = Place(entry.ledger_id, entry.entry_id, 0)
        if previous >= part.end:
            return
        yield entry
        if Place(entry.ledger_id, entry.entry_id + 1, 0) >= part.end:
            return


def _rows_of(entry: StoredEntry, metadata: EntryMetadata, part: Range) -> Iterator[_Row]:
    """The entry's messages that lie in the range."""
    for info, value in iterate_messages(entry.payload, metadata):
        place = after(entry.ledger_id, entry.entry_id, info.batch_index)
        if part.start < place <= part.end and not info.compacted_out:
            yield _Row(entry, metadata, info, value)


def check_continuity(topic: str, previous: Place | None, entry: StoredEntry) -> None:
    """Raise when entries are missing between the one read before and this one: the ids of a
    ledger follow each other without a gap, and a ledger starts at 0."""
    if previous is None:
        return
    same = previous.ledger_id == entry.ledger_id
    expected = previous.entry_id + 1 if same else 0
    if entry.entry_id > expected:
        raise BrokerError(
            f"{topic}: {entry.entry_id - expected} entries are missing before "
            f"{entry.ledger_id}:{entry.entry_id}; to read on without them, set "
            f"failOnDataLoss=false"
        )


def _refuse_chunks(topic: str, entry: StoredEntry, metadata: EntryMetadata) -> None:
    if metadata.num_chunks > 1:
        raise BrokerError(
            f"{topic}: entry {entry.ledger_id}:{entry.entry_id} is one of {metadata.num_chunks} "
            "chunks of a large message, which this source does not put together; read the topic "
            "with a client"
        )


def first_rows(batches: Iterator[pa.RecordBatch], count: int) -> list[dict[str, Any]]:
    """A few rows as dictionaries, for people and tests."""
    return list(islice((row for batch in batches for row in batch.to_pylist()), count))
