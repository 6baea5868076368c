"""Entries of a range -> Arrow record batches.

Columns are gathered entry by entry in plain lists (never row by row) and become one record batch
at about ``BATCH_BYTES`` of values or ``BATCH_ROWS`` rows, which is what Spark takes best.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import pyarrow as pa

from magnetar.model.errors import BrokerError, ConfigError, ProtocolError
from magnetar.pipeline.broker_client import BrokerClient
from magnetar.pipeline.loss_reports import LossReports
from magnetar.pipeline.places import NO_OFFSETS, after
from magnetar.pipeline.range_reading import entries_of
from magnetar.pipeline.schema import arrow_schema
from magnetar.pipeline.splits import PlannedRange
from magnetar.pipeline.topic_names import partition_number
from magnetar.pipeline.topic_reader import StoredEntry
from magnetar.wire.pulsar.batches import split_entry
from magnetar.wire.pulsar.metadata import EntryMetadata, entry_metadata
from magnetar.wire.pulsar.pulsar_pb2 import SingleMessageMetadata

BATCH_BYTES = 1 << 20
BATCH_ROWS = 10_000


class Rows:
    """The columns gathered so far, entry by entry."""

    def __init__(self, columns: Sequence[str], topic: str) -> None:
        self._schema = arrow_schema(columns)
        self._topic = topic
        self._partition = partition_number(topic)
        self._columns: dict[str, list[Any]] = {name: [] for name in columns}
        self._gather = [(self._columns[name], _COLUMN_OF[name]) for name in columns]
        self.count = 0
        self.byte_count = 0

    def add(self, rows: EntryRows) -> None:
        for values, take in self._gather:
            values.extend(take(rows))
        count = len(rows.values)
        self.count += count
        self.byte_count += sum(map(len, rows.values)) + 64 * count

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
            return pa.repeat(pa.scalar(self._topic, field.type), self.count)
        if field.name == "partition":
            return pa.repeat(pa.scalar(self._partition, field.type), self.count)
        values = self._columns[field.name]
        if field.name == "message_id":
            return _message_ids(values, field.type)
        try:
            return pa.array(values, field.type)
        except (pa.ArrowTypeError, pa.ArrowInvalid) as error:
            raise ProtocolError(f"{self._topic}: column {field.name}: {error}") from error


def _message_ids(ids: list[tuple[int, int, int]], kind: pa.StructType) -> pa.Array:
    ledgers, entries, indexes = zip(*ids, strict=True) if ids else ((), (), ())
    columns = (
        pa.array(part, kind.field(i).type) for i, part in enumerate((ledgers, entries, indexes))
    )
    return pa.StructArray.from_arrays(list(columns), fields=list(kind))


class EntryRows(NamedTuple):
    """The messages of one entry that belong to the range, side by side."""

    entry: StoredEntry
    metadata: EntryMetadata
    indexes: Sequence[int]
    singles: Sequence[SingleMessageMetadata] | None
    values: Sequence[memoryview]
    offset: int  # of the entry's first message


def _keys(rows: EntryRows) -> list[str | None]:
    if rows.singles is None:
        return [rows.metadata.partition_key]
    return [s.partition_key if s.HasField("partition_key") else None for s in rows.singles]


def _values(rows: EntryRows) -> list[bytes | None]:
    if rows.singles is None:
        return [None if rows.metadata.null_value else bytes(rows.values[0])]
    pairs = zip(rows.singles, rows.values, strict=True)
    return [None if single.null_value else bytes(value) for single, value in pairs]


def _ids(rows: EntryRows) -> list[tuple[int, int, int]]:
    ledger_id, entry_id = rows.entry.ledger_id, rows.entry.entry_id
    return [(ledger_id, entry_id, index) for index in rows.indexes]


def _publish_times(rows: EntryRows) -> list[int]:
    return [rows.metadata.publish_time_ms * 1000] * len(rows.values)


def _event_times(rows: EntryRows) -> list[int | None]:
    if rows.singles is None:
        return [rows.metadata.event_time_ms * 1000 or None]
    return [single.event_time * 1000 or None for single in rows.singles]


def _properties(rows: EntryRows) -> list[list[tuple[str, str]]]:
    if rows.singles is None:
        return [list(rows.metadata.properties.items())]
    return [[(item.key, item.value) for item in single.properties] for single in rows.singles]


def _offsets(rows: EntryRows) -> list[int]:
    if rows.offset == NO_OFFSETS:
        raise ConfigError(
            "column 'offset': the broker does not number its messages; choose others with the "
            "option 'columns'"
        )
    return [rows.offset + max(0, index) for index in rows.indexes]


def _constant(rows: EntryRows) -> tuple[()]:
    return ()  # the same in every row: made when the batch is


_COLUMN_OF: dict[str, Callable[[EntryRows], Iterable[Any]]] = {
    "key": _keys,
    "value": _values,
    "topic": _constant,
    "partition": _constant,
    "message_id": _ids,
    "publish_time": _publish_times,
    "event_time": _event_times,
    "properties": _properties,
    "offset": _offsets,
}


def read_range(
    client: BrokerClient, part: PlannedRange, columns: Sequence[str], reports: LossReports
) -> Iterator[pa.RecordBatch]:
    """Every message of a range, in order, exactly once.

    What is lost goes to ``reports``, which raises or lets the rest be read. Raises ``BrokerError``
    when the end of the range does not come in time.
    """
    rows = Rows(columns, part.topic)
    for entry, offset in entries_of(client, part, reports):
        metadata = entry_metadata(entry.payload)
        _refuse_chunks(part.topic, entry, metadata)
        rows.add(_rows_of(entry, metadata, part, offset))
        if rows.full:
            yield rows.take()
    if rows.count:
        yield rows.take()


def _rows_of(
    entry: StoredEntry, metadata: EntryMetadata, part: PlannedRange, offset: int
) -> EntryRows:
    """The entry's messages that lie in the range and were not compacted away."""
    found = split_entry(entry.payload, metadata)
    indexes, singles, values = found
    first = after(entry.ledger_id, entry.entry_id, indexes[0] if indexes else 0)
    last = after(entry.ledger_id, entry.entry_id, indexes[-1] if indexes else 0)
    compacted = singles is not None and any(single.compacted_out for single in singles)
    if part.start < first and last <= part.end and not compacted:
        return EntryRows(entry, metadata, indexes, singles, values, offset)
    keep = [
        place
        for place, index in enumerate(indexes)
        if part.start < after(entry.ledger_id, entry.entry_id, index) <= part.end
        and not (singles is not None and singles[place].compacted_out)
    ]
    return EntryRows(
        entry,
        metadata,
        [indexes[place] for place in keep],
        None if singles is None else [singles[place] for place in keep],
        [values[place] for place in keep],
        offset,
    )


def _refuse_chunks(topic: str, entry: StoredEntry, metadata: EntryMetadata) -> None:
    if metadata.num_chunks > 1:
        raise BrokerError(
            f"{topic}: entry {entry.ledger_id}:{entry.entry_id} is one of {metadata.num_chunks} "
            "chunks of a large message, which this source does not put together; read the topic "
            "with a client"
        )
