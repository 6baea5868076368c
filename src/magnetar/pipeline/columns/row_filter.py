"""Which messages of decoded entries are kept: conditions on their columns. Pure.

Decided before anything is built of a message: conditions on what holds for a whole entry leave out
entries before they are decompressed and taken apart, those on messages leave out rows before their
values are gathered.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import numpy as np
import pyarrow as pa

from magnetar.pipeline.columns.arrow_columns import EntryIds, gather, offsets_of
from magnetar.pipeline.columns.conditions import (
    OF_ENTRIES,
    OF_MESSAGES,
    Conditions,
    every,
    holds,
    on,
)
from magnetar.pipeline.columns.key_bytes import key_bytes
from magnetar.pipeline.columns.message_rows import MessageRows, select
from magnetar.pipeline.columns.plain_rows import PlainRows, chosen, plain_column
from magnetar.pipeline.columns.protobuf_columns import Flags, Ints

_READ: Final[Mapping[str, tuple[str, ...]]] = {
    "batch_index": (),
    "key_bytes": ("key", "key_is_base64"),
}
"""What is read for a condition, where that is not what it is on."""


class RowFilter:
    """Keeps the messages for which all conditions hold."""

    def __init__(self, conditions: Conditions) -> None:
        self._of_entries = on(conditions, OF_ENTRIES)
        self._of_messages = on(conditions, OF_MESSAGES)
        self.columns = frozenset(
            name for each in self._of_messages for name in _READ.get(each.column, (each.column,))
        )
        """Those that have to be read of the messages, as ``EntryTables`` names them."""

    def entries(self, ids: EntryIds) -> Flags:
        """Which of the entries may hold messages that are kept."""
        return self._hold_entries(ids, len(ids.entry_ids))

    def _hold_entries(self, ids: EntryIds, count: int) -> Flags:
        arrays = {each.column: _OF_ENTRIES[each.column](ids) for each in self._of_entries}
        found = (holds(each, pa.array(arrays[each.column])) for each in self._of_entries)
        return every(found, count)

    def kept(self, rows: MessageRows, ids: EntryIds) -> MessageRows:
        """The messages of entries that are kept."""
        if not self._of_messages or not len(rows.entries):
            return rows
        arrays = {column: _OF_MESSAGES[column](rows, ids) for column in self._columns}
        found = (holds(each, arrays[each.column]) for each in self._of_messages)
        kept = every(found, len(rows.entries))
        return rows if kept.all() else select(rows, kept)

    @property
    def _columns(self) -> frozenset[str]:
        return frozenset(each.column for each in self._of_messages)

    def plain(self, rows: PlainRows, ids: EntryIds) -> PlainRows:
        """The messages of one entry that are kept. Raises ``ProtocolError``."""
        if not self.entries(ids).all():
            return chosen(rows, [])
        arrays = {column: _plain_array(column, rows, ids) for column in self._columns}
        found = (holds(each, arrays[each.column]) for each in self._of_messages)
        kept = every(found, len(rows.indexes))
        return rows if kept.all() else chosen(rows, np.flatnonzero(kept).tolist())


_OF_ENTRIES: Final[Mapping[str, Callable[[EntryIds], Ints]]] = {
    "ledger_id": lambda ids: ids.ledger_ids,
    "entry_id": lambda ids: ids.entry_ids,
    "publish_time": lambda ids: ids.publish_times_ms * 1000,
}


def _keys(rows: MessageRows, _ids: EntryIds) -> pa.Array:
    assert rows.keys is not None
    return gather(rows.bytes, rows.keys, pa.binary())


def _key_bytes(rows: MessageRows, ids: EntryIds) -> pa.Array:
    assert rows.keys_encoded is not None
    return key_bytes(_keys(rows, ids), rows.keys_encoded > 0)


def _event_times(rows: MessageRows, _ids: EntryIds) -> pa.Array:
    times_ms = rows.event_times_ms
    assert times_ms is not None
    return pa.array(times_ms * 1000, mask=times_ms <= 0)


_OF_MESSAGES: Final[Mapping[str, Callable[[MessageRows, EntryIds], pa.Array]]] = {
    "batch_index": lambda rows, _ids: pa.array(rows.batch_indexes),
    "key": _keys,
    "key_bytes": _key_bytes,
    "event_time": _event_times,
    "offset": lambda rows, ids: pa.array(offsets_of(rows.entries, rows.batch_indexes, ids)),
}


def _plain_array(column: str, rows: PlainRows, ids: EntryIds) -> pa.Array:
    indexes = np.array(rows.indexes, np.int64)
    if column == "batch_index":
        return pa.array(indexes)
    if column == "offset":
        return pa.array(offsets_of(np.zeros(len(indexes), np.int64), indexes, ids))
    if column == "key":
        return plain_column("key", pa.string(), rows).cast(pa.binary())
    if column == "key_bytes":
        encoded = plain_column("key_is_base64", pa.bool_(), rows)
        texts = plain_column("key", pa.string(), rows)
        return key_bytes(texts, encoded.to_numpy(zero_copy_only=False))
    assert column == "event_time"
    return plain_column("event_time", pa.int64(), rows)
