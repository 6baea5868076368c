"""Odd entries -> Arrow arrays, one by one, with protobuf: what is not read by columns.

Those are entries that few clients write, chunks, and broken ones: here it is said what is wrong.
The rows are the same as by columns; so this is also what those are held against in tests.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import pyarrow as pa

from magnetar.model.errors import ProtocolError
from magnetar.pipeline.places import UNBATCHED
from magnetar.wire.pulsar.batches import split_entry
from magnetar.wire.pulsar.metadata import Buffer, EntryMetadata, text
from magnetar.wire.pulsar.pulsar_pb2 import KeyValue, MessageMetadata, SingleMessageMetadata

Metadata = SingleMessageMetadata | MessageMetadata


class PlainRows(NamedTuple):
    """The messages of one entry: their places in the batch, the metadata of each, and values."""

    indexes: Sequence[int]
    metadata: Sequence[Metadata]
    values: Sequence[Buffer]


def plain_rows(payload: Buffer, entry: EntryMetadata, raw: MessageMetadata) -> PlainRows:
    """The messages that were not compacted away. Raises ``ProtocolError``."""
    indexes, singles, values = split_entry(payload, entry)
    if singles is None:
        return PlainRows(indexes, [raw], values)
    kept = [n for n, single in enumerate(singles) if not single.compacted_out]
    return chosen(PlainRows(indexes, singles, values), kept)


def message_of_chunks(raw: MessageMetadata, value: Buffer) -> PlainRows:
    """A message that came in several entries, of the last of which ``raw`` is."""
    return PlainRows([UNBATCHED], [raw], [value])


def within(rows: PlainRows, first: int, stop: int | None) -> PlainRows:
    """Those from one place in the batch up to, not including, another. The place after a message
    that is an entry of its own is the next entry: before ``stop`` it does not come."""
    kept = [
        place
        for place, index in enumerate(rows.indexes)
        if (
            stop is None
            if index == UNBATCHED
            else first <= index and (stop is None or index < stop)
        )
    ]
    return chosen(rows, kept)


def chosen(rows: PlainRows, kept: Sequence[int]) -> PlainRows:
    """Those with these numbers."""
    indexes, metadata, values = rows
    return PlainRows(
        [indexes[n] for n in kept], [metadata[n] for n in kept], [values[n] for n in kept]
    )


def _keys(rows: PlainRows) -> Iterable[Any]:
    return [m.partition_key if m.HasField("partition_key") else None for m in rows.metadata]


def _values(rows: PlainRows) -> Iterable[Any]:
    pairs = zip(rows.metadata, rows.values, strict=True)
    return [None if metadata.null_value else bytes(value) for metadata, value in pairs]


def _event_times(rows: PlainRows) -> Iterable[Any]:
    return [metadata.event_time * 1000 or None for metadata in rows.metadata]


def _keys_encoded(rows: PlainRows) -> Iterable[Any]:
    return [metadata.partition_key_b64_encoded for metadata in rows.metadata]


def _properties(rows: PlainRows) -> Iterable[Any]:
    return [_last_of_each(metadata.properties) for metadata in rows.metadata]


def _last_of_each(items: Iterable[KeyValue]) -> list[tuple[str, str]]:
    """In the order in which the last ones of each name come."""
    found: dict[str, str] = {}
    for item in items:
        found.pop(item.key, None)
        found[item.key] = item.value
    return list(found.items())


def _headers(rows: PlainRows) -> Iterable[Any]:
    return [[_header(item) for item in metadata.properties] for metadata in rows.metadata]


def _header(item: KeyValue) -> dict[str, Any]:
    return {"key": text(item.key), "value": text(item.value).encode()}


_COLUMN_OF: Mapping[str, Callable[[PlainRows], Iterable[Any]]] = {
    "key": _keys,
    "value": _values,
    "event_time": _event_times,
    "properties": _properties,
    "headers": _headers,
    "key_is_base64": _keys_encoded,
}


def plain_column(name: str, kind: pa.DataType, rows: PlainRows) -> pa.Array:
    """A column that is the messages' own. Raises ``ProtocolError`` for what does not fit it."""
    try:
        return pa.array(list(_COLUMN_OF[name](rows)), kind)
    except (pa.ArrowTypeError, pa.ArrowInvalid, OverflowError) as error:
        raise ProtocolError(f"column {name}: {error}") from error
