"""Erasure by key: messages of a key go from a topic's table, and what is left is served as before.

An erased message's row stays, as its place in its batch does, without key, payload, value and
properties. In the entry it is marked as compacted out, which consumers pass over; an entry of which
nothing is left becomes one without metadata, which subscriptions leave out. Message ids and numbers
of entries do not change.

Rules:

* Rows of an entry lie in the table and in the side table; both are rewritten. The entry's checksum
  is no longer true and is left out, as very old clients did.
* All older snapshots expire with the erasure, and their files are removed: before that nothing is
  erased. Those that tags or branches name stay, and are named (``named``).
* Of a record batch of Kafka's, which is kept whole, a record of the key stays without key, value
  and headers: offsets do not change.
* Other entries that are kept whole and hold messages of other keys, too, are not taken apart; they
  are counted in ``left``. So is what bookies still have: that is for retention.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.expressions import EqualTo, In
from pyiceberg.table import FileScanTask, Table

from magnetar.model.errors import ProtocolError
from magnetar.pipeline.tables.entry_rows import WHOLE
from magnetar.pipeline.tables.topic_table import TopicTable
from magnetar.pipeline.tables.upkeep import (
    TableUpkeep,
    expire,
    names_of_others,
    read_files,
    replace_files,
    rewritten,
)
from magnetar.tables.layout import VALUE, WHY
from magnetar.tables.warehouse import table_errors
from magnetar.wire.crossing.kafka_to_pulsar import text_of
from magnetar.wire.kafka.batches import (
    CODEC_MASK,
    CONTROL,
    build_batch,
    is_batch,
    read_batch_header,
)
from magnetar.wire.kafka.compression import Codec, compress
from magnetar.wire.kafka.records import KafkaRecord, encode_records, read_batch
from magnetar.wire.pulsar.batches import iterate_messages
from magnetar.wire.pulsar.broker_metadata import header_bytes
from magnetar.wire.pulsar.metadata import entry_metadata, metadata_bounds, parse_metadata
from magnetar.wire.pulsar.writing import GONE_MESSAGE

Key: TypeAlias = tuple[int, int, int]
"""Partition, ledger, entry."""

_PLACES: Final = ("partition", "ledger_id", "entry_id", "batch_index")
FOREVER_MS: Final = 2**62


@dataclass
class Erased:
    """``left``: entries that hold messages of the key among others, and were not taken apart.
    ``named``: tags and branches whose snapshots may have some still."""

    messages: int = 0
    entries: int = 0
    left: int = 0
    named: list[str] = field(default_factory=list)
    kept: TableUpkeep = field(default_factory=TableUpkeep)


def erase(table: TopicTable, key: str, *, dry_run: bool = False) -> Erased:
    """Every message with this key. ``dry_run``: only count them. Raises ``TableError``."""
    done = Erased()
    tables = [each for each in (table.main, table.side) if each is not None]
    with table_errors(f"erasing in table {table.place.table}"):
        hit = Counter(place for each in tables for place in _places(each, key))
        whole = _whole_entries(table.side, key, done) if table.side is not None else {}
        done.messages = hit.total() + sum(whole[place] for place in whole if place not in hit)
        done.entries = len({*hit, *whole})
        if dry_run:
            return done
        ledgers = {place[1] for place in (*hit, *whole)}
        for each in tables if ledgers else ():
            _rewrite(each, key, hit, whole, ledgers)
    for each in tables:
        each.refresh()
        expire(each, FOREVER_MS, done.kept)
        done.named += [f"{'.'.join(each.name())}: {name}" for name in names_of_others(each)]
    return done


def _places(table: Table, key: str) -> Iterator[Key]:
    chosen = EqualTo("key", key)  # type: ignore[call-arg,arg-type]
    rows = table.scan(row_filter=chosen, selected_fields=_PLACES).to_arrow()
    yield from zip(*(rows[name].to_pylist() for name in _PLACES[:3]), strict=True)


def _whole_entries(side: Table, key: str, done: Erased) -> dict[Key, int]:
    """Entries that are kept whole and hold nothing but messages of the key, or chunks of one, or
    are Kafka's and hold any; and how many of its messages, of which a chunk is none."""
    chosen = EqualTo("batch_index", WHOLE)  # type: ignore[call-arg,arg-type]
    found = {}
    for batch in side.scan(
        row_filter=chosen, selected_fields=(*_PLACES, "frame")
    ).to_arrow_batch_reader():
        for row in batch.to_pylist():
            frame = row["frame"] or b""
            records = _records(frame)
            keys = _keys(frame) if records is None else {text_of(each.key) for each in records}
            if keys == {key} or (records is not None and key in keys):
                place = row["partition"], row["ledger_id"], row["entry_id"]
                found[place] = sum(text_of(each.key) == key for each in records or ())
            elif key in keys:
                done.left += 1
    return found


def _records(payload: bytes) -> list[KafkaRecord] | None:
    """Of a stored record batch; None if it is none, or a marker, or cannot be read."""
    batch = memoryview(payload)[header_bytes(payload) :]
    if not is_batch(batch) or read_batch_header(batch).attributes & CONTROL:
        return None
    try:
        return read_batch(batch)[1]
    except ProtocolError:
        return None


def _records_without(payload: bytes, key: str) -> bytes:
    """The stored record batch, with empty records where the key's were."""
    at = header_bytes(payload)
    header, records = read_batch(memoryview(payload)[at:])
    left = [
        record._replace(key=None, value=None, headers=()) if text_of(record.key) == key else record
        for record in records
    ]
    batch = build_batch(
        compress(Codec(header.attributes & CODEC_MASK), encode_records(left)),
        count=header.record_count,
        last_offset_delta=header.last_offset_delta,
        attributes=header.attributes,
        base_timestamp_ms=header.base_timestamp_ms,
        max_timestamp_ms=header.max_timestamp_ms,
        producer_id=header.producer_id,
        producer_epoch=header.producer_epoch,
        base_sequence=header.base_sequence,
        base_offset=header.base_offset,
        leader_epoch=header.leader_epoch,
    )
    return payload[:at] + batch


def _keys(payload: bytes) -> set[str | None]:
    """Of the messages of an entry; empty for what cannot be read."""
    try:
        meta = entry_metadata(payload)
        if meta.num_chunks > 1 or meta.encrypted or not meta.batched:
            return {meta.partition_key}
        return {told.key for told, _ in iterate_messages(payload, meta) if not told.compacted_out}
    except ProtocolError:
        return set()


def _rewrite(
    table: Table, key: str, hit: Counter[Key], whole: Mapping[Key, int], ledgers: set[int]
) -> None:
    chosen = In("ledger_id", ledgers)  # type: ignore[call-arg,arg-type]
    tasks = list(table.scan(row_filter=chosen).plan_files())
    old, new = [], []
    for task in tasks:
        rows = _without(table, task, key, hit, whole)
        if rows is not None:
            old.append(task.file)
            new += rewritten(table, rows)
    if old:
        replace_files(table, old, new)


def _without(
    table: Table, task: FileScanTask, key: str, hit: Counter[Key], whole: Mapping[Key, int]
) -> pa.Table | None:
    """The file's rows without the key; None if nothing of it changes."""
    rows = read_files(table, [task])
    side = WHY in rows.schema.names
    erased = pc.fill_null(pc.equal(rows["key"], key), False)
    frames = rows["frame"].to_pylist()
    places = list(zip(*(rows[name].to_pylist() for name in _PLACES), strict=True))
    flags = erased.to_pylist()
    changed, first_of, gone = False, None, None
    for number, (*place, index) in enumerate(places):
        entry: Key = tuple(place)
        first, first_of = entry != first_of, entry
        frame = frames[number]
        if entry in whole and index == WHOLE and frame is not None:
            of_kafka = _records(frame) is not None
            frames[number] = _records_without(frame, key) if of_kafka else _blank(frame)
            changed = True
        elif side and index == WHOLE:
            pass  # an entry of several keys: it is in ``left``, and others' messages are not ours
        elif entry in hit and frame is not None:
            changed = True
            if entry == gone:
                frames[number] = b""
            elif first and _begins(frame) and hit[entry] >= _head(frame, key)[2]:
                frames[number], gone = _blank(frame), entry
            else:
                begins = first and _begins(frame)
                frames[number] = _frame(frame, index, begins, flags[number], key)
        changed |= flags[number]
    if not changed:
        return None
    at = rows.schema.get_field_index("frame")
    field_ = rows.schema.field("frame")
    rows = rows.set_column(at, field_, pa.array(frames, field_.type))
    for name in ("key", "payload", "event_time", VALUE, "properties"):
        at = rows.schema.get_field_index(name)
        if at >= 0:
            rows = rows.set_column(at, rows.schema.field(at), _nulled(rows[name], erased))
    return rows


def _nulled(column: pa.ChunkedArray, rows: pa.ChunkedArray) -> pa.Array:
    array = column.combine_chunks()
    numbers = pa.array(range(len(array)), pa.int64())
    return array.take(pc.if_else(rows.combine_chunks(), None, numbers))


def _begins(frame: bytes) -> bool:
    """Whether an entry begins with it, by the broker's header; a row that is in the other table may
    come before it."""
    try:
        parse_metadata(frame)
    except ProtocolError:
        return False
    return True


def _blank(frame: bytes) -> bytes:
    """The entry's header alone: its place in the log, and nothing that is a message."""
    return frame[: header_bytes(frame)]


def _frame(frame: bytes, index: int, begins: bool, erased: bool, key: str) -> bytes:
    """What stands before a value, of an entry some of whose messages are erased."""
    if index < 0:
        return _blank(frame)
    head, single = b"", frame
    if begins:
        head, single, _ = _head(frame, key)
    if erased:
        single = GONE_MESSAGE
    return head + single


def _head(frame: bytes, key: str) -> tuple[bytes, bytes, int]:
    """An entry's begin, without its checksum and the key; what follows; its number of messages."""
    _, stop = metadata_bounds(frame)
    meta: Any = parse_metadata(frame)[0]
    if meta.partition_key == key:
        meta.ClearField("partition_key")
        meta.ClearField("properties")
    told = meta.SerializeToString()
    head = frame[: header_bytes(frame)] + struct.pack(">I", len(told)) + told
    return head, frame[stop:], max(1, meta.num_messages_in_batch)
