"""The columns of a topic, as Spark and as Arrow know them.

| column | type | meaning |
|---|---|---|
| key | string, may be null | the message's (partition) key |
| value | binary, null for a tombstone | the message's bytes, decompressed |
| topic | string | the topic partition it was read from |
| partition | int | its number, -1 when the topic is not partitioned |
| message_id | struct(ledger_id long, entry_id long, batch_index int) | orders within a partition; batch_index is -1 for an unbatched message |
| publish_time | timestamp | set by the producer's clock when sent, milliseconds |
| event_time | timestamp, null when not set | set by the application, milliseconds |
| properties | map(string, string) | the message's properties |
| offset | long | messages of a partition are numbered from 0 on; only if it is asked for |
| schema_version | long, null without one | of the schema that the value was written with; only if it is asked for |
| headers | array(struct(key string, value binary)) | the properties as Spark's Kafka source gives them, all of each name; only with ``includeHeaders`` |
| key_is_base64 | boolean | the producer gave the key as bytes; only if it is asked for |

These are what readers of splits build (``DECODED``). Others are made of them (``presentation.py``,
and ``typed``, which makes columns of values and puts those that it cannot read into
``_corrupt_record``): with ``columnNames=kafka`` the columns of that source, ``key``
binary, ``value``, ``topic`` without and ``partition`` with the partition's number (0 when the topic
is not partitioned), ``offset``, ``timestamp`` (when it was published), ``timestampType`` (0).
"""  # noqa: E501

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from magnetar.model.errors import ConfigError
from magnetar.pipeline.losses import LOST


def _spark_message_id() -> StructType:
    return StructType(
        [
            StructField("ledger_id", LongType(), nullable=False),
            StructField("entry_id", LongType(), nullable=False),
            StructField("batch_index", IntegerType(), nullable=False),
        ]
    )


CORRUPT = "_corrupt_record"
"""The column with the bytes of a value that could not be read as columns, as Spark's own sources
call it."""

Columns = Mapping[str, tuple[DataType, bool]]
"""Name -> type, and whether it may be null."""


def _spark_columns() -> dict[str, tuple[DataType, bool]]:
    return {
        "key": (StringType(), True),
        "value": (BinaryType(), True),
        "topic": (StringType(), False),
        "partition": (IntegerType(), False),
        "message_id": (_spark_message_id(), False),
        "publish_time": (TimestampType(), False),
        "event_time": (TimestampType(), True),
        "properties": (MapType(StringType(), StringType(), True), False),
    }


def _extra_columns() -> dict[str, tuple[DataType, bool]]:
    """Those that are not there unless they are asked for."""
    header = StructType([StructField("key", StringType()), StructField("value", BinaryType())])
    return {
        "offset": (LongType(), False),
        "headers": (ArrayType(header), True),
        "schema_version": (LongType(), True),
        "key_is_base64": (BooleanType(), False),
        CORRUPT: (BinaryType(), True),
    }


def _kafka_columns() -> dict[str, tuple[DataType, bool]]:
    return {
        "key": (BinaryType(), True),
        "value": (BinaryType(), True),
        "topic": (StringType(), False),
        "partition": (IntegerType(), False),
        "offset": (LongType(), False),
        "timestamp": (TimestampType(), False),
        "timestampType": (IntegerType(), False),
    }


DECODED = (
    "key", "value", "topic", "partition", "message_id", "publish_time", "event_time", "properties",
    "offset", "schema_version", "headers", "key_is_base64",
)  # fmt: skip


def columns_of(naming: str) -> Columns:
    """All that may be asked for under ``columnNames``."""
    extra = _extra_columns()
    if naming == "kafka":
        return _kafka_columns() | {name: extra[name] for name in ("headers", CORRUPT)}
    return _spark_columns() | extra


def default_columns(naming: str, headers: bool) -> list[str]:
    names = list(_kafka_columns() if naming == "kafka" else _spark_columns())
    return [*names, "headers"] if headers else names


def _arrow_types() -> dict[str, pa.DataType]:
    message_id = [
        pa.field("ledger_id", pa.int64(), nullable=False),
        pa.field("entry_id", pa.int64(), nullable=False),
        pa.field("batch_index", pa.int32(), nullable=False),
    ]
    header = [pa.field("key", pa.string()), pa.field("value", pa.binary())]
    return {
        "key": pa.string(),
        "value": pa.binary(),
        "topic": pa.string(),
        "partition": pa.int32(),
        "message_id": pa.struct(message_id),
        "publish_time": pa.timestamp("us", "UTC"),
        "event_time": pa.timestamp("us", "UTC"),
        "properties": pa.map_(pa.string(), pa.string()),
        "offset": pa.int64(),
        "schema_version": pa.int64(),
        "headers": pa.list_(pa.field("element", pa.struct(header))),
        "key_is_base64": pa.bool_(),
    }


def spark_schema(
    columns: Sequence[str] | None, naming: str = "magnetar", *, headers: bool = False
) -> StructType:
    """The schema of a read; ``columns`` picks and orders some of them (None: the usual ones)."""
    known = columns_of(naming)
    names = default_columns(naming, headers) if columns is None else list(columns)
    unknown = [name for name in names if name not in known]
    if unknown:
        raise ConfigError(f"no column {unknown[0]!r}; there are {', '.join(known)}")
    return StructType([StructField(n, known[n][0], nullable=known[n][1]) for n in names])


def _lost_type() -> StructType:
    numbers = ("ledger_id", "entry_id", "entries", "messages")
    fields = [StructField(name, LongType()) for name in numbers]
    return StructType([*fields, StructField("why", StringType())])


def with_lost(schema: StructType) -> StructType:
    """With rows that tell of losses: a column more, and all may be null."""
    fields = [StructField(f.name, f.dataType, True, f.metadata) for f in schema.fields]
    return StructType([*fields, StructField(LOST, _lost_type())])


def check_read_schema(
    schema: StructType,
    naming: str = "magnetar",
    value: DataType | None = None,
    *,
    losses: bool = False,
) -> None:
    """Refuse a schema of the user's that is no choice of the columns there are. ``value``: its type
    if it is not binary. ``losses``: there are rows that tell of them."""
    known = dict(columns_of(naming))
    if value is not None:
        known["value"] = value, True
    if losses:
        known[LOST] = _lost_type(), True
        if LOST not in schema.names or not all(field.nullable for field in schema.fields):
            raise ConfigError(
                f"schema: with includeLosses=true there are rows of losses, with the column {LOST} "
                "and null in others: name that column, and let all be nullable"
            )
    if len(set(schema.names)) < len(schema.names):
        raise ConfigError(f"schema: a column is there twice: {', '.join(schema.names)}")
    for field in schema.fields:
        if field.name not in known:
            raise ConfigError(
                f"schema: there is no column {field.name!r} to read; there are {', '.join(known)}. "
                "Leave the schema out, or choose with the option 'columns'; what a value holds is "
                "taken apart afterwards, for instance with from_json(cast(value as string), ...)"
            )
        kind = known[field.name][0]
        if field.dataType.simpleString() != kind.simpleString():
            raise ConfigError(
                f"schema: column {field.name!r} is {kind.simpleString()}, not "
                f"{field.dataType.simpleString()}; leave the schema out and cast afterwards"
            )


def arrow_schema(columns: Sequence[str]) -> pa.Schema:
    """The Arrow schema of decoded columns."""
    types = _arrow_types()
    known = _spark_columns() | _extra_columns()
    return pa.schema([pa.field(n, types[n], nullable=known[n][1]) for n in columns])
