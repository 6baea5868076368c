"""The messages of entries, side by side: where each one's value, key and properties lie.

Owns how an entry's metadata and that of single messages become the same rows: a message is one of
a batch, with metadata of its own, or an entry of its own, whose metadata is the entry's.

The bytes are those of the entries as stored, then, in the same order, what was compressed in them.
So values lie in ascending order, and keys do unless batches and single messages are mixed.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from magnetar.pipeline.columns.batch_records import Batches, find_records
from magnetar.pipeline.columns.entry_columns import TIME_MS_MAX, EntryTable, EntryTables
from magnetar.pipeline.columns.protobuf_columns import (
    ABSENT,
    SLACK,
    Bytes,
    FieldKind,
    FieldTable,
    Flags,
    Ints,
    Repeated,
    Spans,
    read_fields,
)
from magnetar.pipeline.places import UNBATCHED
from magnetar.wire.pulsar.codes import Compression
from magnetar.wire.pulsar.compression import decompress

_KEY_VALUE = FieldTable({"key": (1, FieldKind.SPAN), "value": (2, FieldKind.SPAN)})


class Properties(NamedTuple):
    """Of which row each property is, in order, and where its key and its value lie."""

    rows: Ints
    keys: Spans
    values: Spans


class MessageRows(NamedTuple):
    """Messages in order. ``entries``: which of the entries each lies in; ``batch_indexes``: its
    place in the batch, ``UNBATCHED`` for an entry of its own. A value or a key of the length
    ``ABSENT`` is none; so is an event time that is not above 0. A key of which ``keys_encoded`` is
    above 0 is bytes in base64. What was not asked for is None."""

    bytes: Bytes
    entries: Ints
    batch_indexes: Ints
    compacted: Flags
    values: Spans
    keys: Spans | None
    event_times_ms: Ints | None
    properties: Properties | None
    keys_encoded: Ints | None


class OddEntries(Exception):
    """Some of the entries must be read one by one: those that are marked."""

    def __init__(self, odd: Flags) -> None:
        super().__init__(f"{int(odd.sum())} odd entries")
        self.odd = odd

    @classmethod
    def of(cls, numbers: Ints, count: int) -> OddEntries:
        odd = np.zeros(count, np.bool_)
        odd[numbers] = True
        return cls(odd)


def read_rows(table: EntryTable, chosen: slice, tables: EntryTables) -> MessageRows:
    """The messages of some of the entries, none of which is odd in the table.

    Raises ``OddEntries`` for those that turn out to be when they are taken apart, ``ProtocolError``
    for data that is not what it says, ``ConfigError`` when there is no library to decompress it.
    """
    ints = {name: column[chosen] for name, column in table.fields.ints.items()}
    bytes_, at, stop = _uncompressed(table, chosen, ints)
    batched = ints["num_messages"] != ABSENT
    counts = np.where(batched, np.maximum(ints["num_messages"], 1), 1)
    if batched.any():
        found = _of_batches(bytes_, at, stop, counts, batched, tables)
        entries = np.repeat(np.arange(len(counts)), counts)
        indexes = np.arange(len(entries)) - np.repeat(np.cumsum(counts) - counts, counts)
        if not batched.all():
            of_batch = batched[entries]
            indexes[~of_batch] = UNBATCHED
            found = _merged(of_batch, found, _of_entries(table, chosen, ~batched, at, stop))
    else:
        found = _of_entries(table, chosen, ~batched, at, stop)
        entries = np.arange(len(batched))
        indexes = np.full(len(batched), UNBATCHED, np.int64)
    rows = _assembled(bytes_, entries, indexes, found, tables)
    _refuse_late_events(rows, len(batched))
    return rows


def _uncompressed(
    table: EntryTable, chosen: slice, ints: dict[str, Ints]
) -> tuple[Bytes, Ints, Ints]:
    """The bytes with what was compressed behind them, and where each entry's data lies."""
    at, stop = table.data_at[chosen], table.data_stop[chosen]
    compressed = np.flatnonzero(ints["compression"] > 0)
    if not len(compressed):
        return table.bytes, at, stop
    view = memoryview(table.bytes.data)
    at, stop = at.copy(), stop.copy()
    end = table.bytes.size
    found: list[memoryview] = [view[:end]]
    for number in compressed.tolist():
        how = Compression(int(ints["compression"][number]))
        size = max(0, int(ints["uncompressed_size"][number]))
        stored = view[int(at[number]) : int(stop[number])]
        found.append(memoryview(decompress(stored, how, size)))
        at[number], end = end, end + size
        stop[number] = end
    return Bytes(b"".join([*found, SLACK])), at, stop


class _Found(NamedTuple):
    """What metadata says of messages, and where their values lie."""

    values: Spans
    ints: dict[str, Ints]
    spans: dict[str, Spans]
    properties: Repeated


def _of_batches(
    bytes_: Bytes, at: Ints, stop: Ints, counts: Ints, batched: Flags, tables: EntryTables
) -> _Found:
    """Of those in batches."""
    batches = Batches(at[batched], stop[batched], counts[batched])
    records = find_records(bytes_, batches, tables.single)
    if records.odd.any():
        raise OddEntries.of(np.flatnonzero(batched)[records.odd], len(batched))
    fields = records.fields
    values = Spans(records.values_at, records.values_length)
    return _Found(values, fields.ints, fields.spans, fields.repeated("properties"))


def _of_entries(table: EntryTable, chosen: slice, unbatched: Flags, at: Ints, stop: Ints) -> _Found:
    """Of those that are messages themselves."""
    fields = table.fields
    ints = {name: column[chosen][unbatched] for name, column in fields.ints.items()}
    spans = {
        name: Spans(span.at[chosen][unbatched], span.length[chosen][unbatched])
        for name, span in fields.spans.items()
    }
    whole = np.full(fields.count, ABSENT, np.int64)
    numbers = np.arange(fields.count)[chosen][unbatched]
    whole[numbers] = np.arange(len(numbers))
    properties = _kept(fields.repeated("properties"), whole)
    values = Spans(at[unbatched], (stop - at)[unbatched])
    return _Found(values, ints, spans, properties)


def _kept(properties: Repeated, row_of: Ints) -> Repeated:
    """Properties of the rows that stay; ``row_of`` gives their new numbers."""
    rows = row_of[properties.rows]
    kept = rows != ABSENT
    return Repeated(rows[kept], properties.at[kept], properties.length[kept])


def _merged(of_batch: Flags, batch: _Found, plain: _Found) -> _Found:
    """Both kinds in the order of the entries."""
    places = np.flatnonzero(of_batch), np.flatnonzero(~of_batch)

    def both(first: Ints, second: Ints) -> Ints:
        column = np.empty(len(of_batch), np.int64)
        column[places[0]], column[places[1]] = first, second
        return column

    def spans(first: Spans, second: Spans) -> Spans:
        return Spans(both(first.at, second.at), both(first.length, second.length))

    absent = np.full(len(places[1]), ABSENT, np.int64)
    moved = [
        Repeated(place[part.rows], part.at, part.length)
        for place, part in zip(places, (batch.properties, plain.properties), strict=True)
    ]
    rows, at, length = (np.concatenate(columns) for columns in zip(*moved, strict=True))
    order = np.argsort(rows, kind="stable")
    return _Found(
        spans(batch.values, plain.values),
        {name: both(column, plain.ints.get(name, absent)) for name, column in batch.ints.items()},
        {name: spans(span, plain.spans[name]) for name, span in batch.spans.items()},
        Repeated(rows[order], at[order], length[order]),
    )


def _assembled(
    bytes_: Bytes, entries: Ints, indexes: Ints, found: _Found, tables: EntryTables
) -> MessageRows:
    nulls = found.ints["null_value"] > 0
    values = found.values
    if nulls.any():
        values = Spans(values.at, np.where(nulls, ABSENT, values.length))
    compacted = found.ints.get("compacted_out")
    return MessageRows(
        bytes_,
        entries,
        indexes,
        np.zeros(len(entries), np.bool_) if compacted is None else compacted > 0,
        values,
        found.spans.get("key"),
        found.ints.get("event_time"),
        _pairs(bytes_, found.properties, entries) if "properties" in tables.optional else None,
        found.ints.get("key_is_base64"),
    )


def _pairs(bytes_: Bytes, found: Repeated, entries: Ints) -> Properties:
    fields = read_fields(bytes_, found.at, found.at + found.length, _KEY_VALUE)
    keys, values = fields.spans["key"], fields.spans["value"]
    odd = fields.odd | (keys.length < 0) | (values.length < 0)
    if odd.any():
        raise OddEntries.of(entries[found.rows[odd]], int(entries[-1]) + 1)
    return Properties(found.rows, keys, values)


def _refuse_late_events(rows: MessageRows, count: int) -> None:
    times = rows.event_times_ms
    if times is not None and (times > TIME_MS_MAX).any():
        raise OddEntries.of(rows.entries[times > TIME_MS_MAX], count)


def select(rows: MessageRows, kept: Flags) -> MessageRows:
    """Only the rows that are marked."""

    def spans(span: Spans | None) -> Spans | None:
        return None if span is None else Spans(span.at[kept], span.length[kept])

    values = spans(rows.values)
    assert values is not None
    times, pairs, encoded = rows.event_times_ms, rows.properties, rows.keys_encoded
    if pairs is not None:
        stays = kept[pairs.rows]
        numbers = (np.cumsum(kept) - 1)[pairs.rows[stays]]
        keys, items = (Spans(s.at[stays], s.length[stays]) for s in (pairs.keys, pairs.values))
        pairs = Properties(numbers, keys, items)
    return MessageRows(
        rows.bytes,
        rows.entries[kept],
        rows.batch_indexes[kept],
        rows.compacted[kept],
        values,
        spans(rows.keys),
        None if times is None else times[kept],
        pairs,
        None if encoded is None else encoded[kept],
    )
