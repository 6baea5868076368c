"""The columns of a topic's table, and the name by which a log knows its table.

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

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from magnetar.model.errors import ConfigError

SIDE: Final = "__unfit"
VALUE: Final = "value"
WHY: Final = "why"
TAKEN: Final = "magnetar.taken."
"""With a topic partition's name behind it the property of a table that says up to which ledger that
log is in it."""

SECRETS: Final = ("secret", "token", "password", "credential", "access-key")
"""Words in the names of properties that are not for others to see."""


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


@dataclass(frozen=True)
class TablePlace:
    """Where a table is: an Iceberg catalog, as ``pyiceberg`` is configured, and a name in it."""

    catalog: str
    properties: Mapping[str, str]
    table: str  # namespace.name

    @property
    def side(self) -> str:
        return self.table + SIDE

    def to_text(self) -> str:
        """For a log's record, where others read it: without secrets."""
        parts = {"catalog": self.catalog, "properties": dict(self.properties), "table": self.table}
        return json.dumps(parts, sort_keys=True, separators=(",", ":"))

    @classmethod
    def from_text(cls, text: str) -> TablePlace:
        """Raises ``ConfigError`` for what is none."""
        try:
            parts = json.loads(text)
            return cls(str(parts["catalog"]), dict(parts["properties"]), str(parts["table"]))
        except (ValueError, KeyError, TypeError) as error:
            raise ConfigError(f"{text!r} does not say where a table is: {error}") from error

    def __post_init__(self) -> None:
        for name in self.properties:
            if any(word in name.lower() for word in SECRETS):
                raise ConfigError(
                    f"catalog property {name!r} would be seen by all who may read the topic; set "
                    f"it in the environment of job and brokers (PYICEBERG_CATALOG__"
                    f"{self.catalog.upper()}__...), or use the environment of the object storage"
                )
