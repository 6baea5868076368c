"""The metadata of stored entries, many entries at once.

An entry, as stored: a broker's header, a checksum, both of which may be absent, the size of the
metadata, the metadata, and data: one message, or a batch, perhaps compressed (``wire.pulsar``'s
``metadata``). All entries of a block are put one behind the other and read by columns.

Entries that clients seldom write are ``odd``: encrypted ones, chunks, those that compaction took
messages out of, and whatever is not understood. ``plain_rows`` reads them one by one, and raises
what is wrong with them.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final, NamedTuple

import numpy as np

from magnetar.pipeline.columns.batch_records import single_metadata
from magnetar.pipeline.columns.protobuf_columns import (
    ABSENT,
    SLACK,
    Bytes,
    FieldKind,
    Fields,
    FieldTable,
    Flags,
    Ints,
    read_fields,
)
from magnetar.wire.pulsar.codes import Compression
from magnetar.wire.pulsar.schemas import VERSION_BYTES

TIME_MS_MAX: Final = (2**63 - 1) // 1000
"""Later times are no timestamp in microseconds."""

_NEEDED: Final[dict[str, tuple[int, FieldKind]]] = {
    "producer_name": (1, FieldKind.SEEN),
    "sequence_id": (2, FieldKind.SEEN),
    "publish_time": (3, FieldKind.INT),
    "compression": (8, FieldKind.INT),
    "uncompressed_size": (9, FieldKind.INT),
    "num_messages": (11, FieldKind.INT),
    "encryption_keys": (13, FieldKind.SEEN),
    "encryption_algo": (14, FieldKind.SEEN),
    "null_value": (25, FieldKind.INT),
    "num_chunks": (27, FieldKind.INT),
    "retained_indexes": (31, FieldKind.SEEN),
}
_HEADER: Final = FieldTable({"last_offset": (2, FieldKind.INT)})
_OPTIONAL: Final[dict[str, tuple[int, FieldKind]]] = {
    "properties": (4, FieldKind.SPANS),
    "key": (6, FieldKind.SPAN),
    "event_time": (12, FieldKind.INT),
    "schema_version": (16, FieldKind.SPAN),
    "key_is_base64": (17, FieldKind.INT),
}
_PRODUCER: Final[dict[str, tuple[int, FieldKind]]] = {
    "producer_name": (1, FieldKind.SPAN),
    "sequence_id": (2, FieldKind.INT),
}
"""Else it is only looked at whether they are there."""


class EntryTables:
    """Which fields are read for which columns."""

    def __init__(self, columns: Collection[str]) -> None:
        if "headers" in columns:
            columns = {*columns, "properties"}  # of which they are made
        optional = {name: _OPTIONAL[name] for name in _OPTIONAL if name in columns}
        self.optional = tuple(optional)
        self.offsets = "offset" in columns
        producer = {name: _PRODUCER[name] for name in _PRODUCER if name in columns}
        self.entry = FieldTable(_NEEDED | producer | optional)
        self.single = single_metadata(columns)


class EntryTable(NamedTuple):
    """What was read of a block's entries: where they begin, where their data lies, and their
    metadata. ``odd`` are
    those of which nothing was understood, or that are not for here. ``last_offsets``: of the last
    message of each, by the broker's header; ``schema_versions``: with which values were written.
    ``ABSENT`` without one, or if nobody asked."""

    bytes: Bytes
    at: Ints
    data_at: Ints
    data_stop: Ints
    fields: Fields
    odd: Flags
    last_offsets: Ints
    schema_versions: Ints

    def chosen(self, entries: Flags) -> EntryTable:
        """Those that are marked, of the same bytes."""
        return EntryTable(
            self.bytes,
            self.at[entries],
            self.data_at[entries],
            self.data_stop[entries],
            self.fields.chosen(entries),
            self.odd[entries],
            self.last_offsets[entries],
            self.schema_versions[entries],
        )


def read_entries(payloads: Sequence[bytes | memoryview], tables: EntryTables) -> EntryTable:
    """The metadata of entries as they were stored, with a broker's header or without."""
    bytes_ = Bytes(b"".join([*payloads, SLACK]))
    sizes = np.fromiter(map(len, payloads), np.int64, len(payloads))
    stop = np.cumsum(sizes)
    begin = stop - sizes
    at = _behind(bytes_, begin, stop, 0x02)  # the broker's header
    last_offsets = _last_offsets(bytes_, begin, at, stop, tables)
    at = _behind(bytes_, at, stop, 0x01)  # the checksum
    first = at + 4
    cut = first > stop
    size = bytes_.big_endian_u32(np.where(cut, 0, at))
    cut |= first + size > stop
    first, data_at = np.where(cut, 0, first), np.where(cut, 0, first + size)
    fields = read_fields(bytes_, first, data_at, tables.entry)
    odd = cut | _not_for_here(fields)
    versions = _schema_versions(bytes_, fields)
    return EntryTable(bytes_, begin, data_at, stop, fields, odd, last_offsets, versions)


def _schema_versions(bytes_: Bytes, fields: Fields) -> Ints:
    spans = fields.spans.get("schema_version")
    if spans is None:
        return np.full(fields.count, ABSENT, np.int64)
    whole = spans.length == VERSION_BYTES
    found = bytes_.little_endian_u64(np.where(whole, spans.at, 0)).byteswap().astype(np.int64)
    return np.where(whole, found, ABSENT)


def _behind(bytes_: Bytes, at: Ints, stop: Ints, kind: int) -> Ints:
    """Where the next part begins: a header of this kind is skipped. Beyond ``stop`` for one that
    is cut off."""
    at_magic = np.minimum(at, bytes_.size)
    here = (bytes_.u8[at_magic] == 0x0E) & (bytes_.u8[at_magic + 1] == kind) & (at + 6 <= stop)
    if kind == 0x02:
        return np.where(here, at + 6 + bytes_.big_endian_u32(at_magic + 2), at)
    return np.where(here & (at + 10 <= stop), at + 6, at)


def _last_offsets(bytes_: Bytes, begin: Ints, at: Ints, stop: Ints, tables: EntryTables) -> Ints:
    if not tables.offsets:
        return np.full(len(at), ABSENT, np.int64)
    some = (at > begin) & (at <= stop)
    first = np.where(some, begin + 6, begin)
    return read_fields(bytes_, first, np.where(some, at, begin), _HEADER).ints["last_offset"]


def _not_for_here(fields: Fields) -> Flags:
    ints = fields.ints
    odd = fields.odd | (ints["publish_time"] < 0) | (ints["publish_time"] > TIME_MS_MAX)
    for name in ("producer_name", "sequence_id"):
        odd |= (fields.spans[name].length if name in fields.spans else ints[name]) == ABSENT
    for name in ("encryption_keys", "encryption_algo", "retained_indexes"):
        odd |= ints[name] != ABSENT
    odd |= ints["num_chunks"] > 1
    odd |= ints["compression"] > max(Compression)
    return odd
