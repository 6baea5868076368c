"""The columns of a topic's table, and of its side table, as Arrow has them.

=================  ========================================================================
column             what it is
=================  ========================================================================
partition          number of the topic's partition, -1 if it has none
ledger_id, entry_id, batch_index   the message's id; ``batch_index`` -1: an entry of its own
offset             the message's number in its partition
key, properties, publish_time, event_time, producer_name, sequence_id, schema_version
                   as the producer said; ``sequence_id`` is that of the message's entry
payload            the message's bytes, decompressed; null for a tombstone
value              the payload in its type, if the topic had a schema when the table was made
frame              what stood before the payload, from the payload before it in the entry on, or
                   from the entry's begin
=================  ========================================================================

An entry is its rows' frames and payloads, in the order of ``batch_index``: nothing else is kept of
it, and nothing twice. Rows without a frame are for queries only: their entry lies as it is in the
side table, as the frame of one row.

The side table (``NAME__unfit``) has the same columns but ``value``, and ``why``: messages that the
schema does not fit, and entries that do not fall apart into rows (chunks of large messages,
encrypted ones, what nobody can read).
"""

from __future__ import annotations

import pyarrow as pa

from magnetar.tables.layout import VALUE, WHY


def raw_fields() -> list[pa.Field]:
    """All columns but ``value`` and ``why``."""
    number, text, bytes_ = pa.int64(), pa.string(), pa.binary()
    time = pa.timestamp("us", "UTC")
    return [
        pa.field("partition", pa.int32()),
        pa.field("ledger_id", number),
        pa.field("entry_id", number),
        pa.field("batch_index", pa.int32()),
        pa.field("offset", number),
        pa.field("key", text),
        pa.field("publish_time", time),
        pa.field("event_time", time),
        pa.field("properties", pa.map_(text, text)),
        pa.field("producer_name", text),
        pa.field("sequence_id", number),
        pa.field("schema_version", number),
        pa.field("payload", bytes_),
        pa.field("frame", bytes_),
    ]


def main_schema(value: pa.DataType | None) -> pa.Schema:
    fields = raw_fields()
    return pa.schema(fields if value is None else [*fields, pa.field(VALUE, value)])


def side_schema() -> pa.Schema:
    return pa.schema([*raw_fields(), pa.field(WHY, pa.string())])
