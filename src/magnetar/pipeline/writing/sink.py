"""Rows -> messages, through the brokers (``entry_sending``).

Columns of what is written: ``value`` (binary or string, needed), ``key`` (string or binary),
``topic`` (string, when no topic option is given), ``event_time`` (timestamp), ``properties``
(map of strings) or ``headers`` (array of key and binary value, as Spark's Kafka source has them),
``key_is_base64`` (boolean: the key is the base64 of bytes, and consumers are told so), and with
``keepSchemaVersion`` ``schema_version`` (long: of the schema of the topic that the row goes to, by
which its bytes were written). A row of a table has the other columns of a read as well; they are
the broker's to give, and must be null. A task ends only when the broker has acknowledged all of its
rows.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from magnetar.model.errors import ConfigError
from magnetar.pipeline.brokers.client import BrokerClient
from magnetar.pipeline.brokers.log_watch import LogWatch
from magnetar.pipeline.options.source_options import WriteOptions
from magnetar.pipeline.schema import CORRUPT
from magnetar.pipeline.topic_names import full_topic
from magnetar.pipeline.typed.writing import TypedWrite
from magnetar.pipeline.writing.entry_sending import EntrySender
from magnetar.pipeline.writing.row_encoding import (
    VERSION,
    Encoding,
    RowEncoder,
    without_schema,
)

if TYPE_CHECKING:
    import pyarrow as pa

COLUMNS = ("key", "value", "topic", "event_time", "properties", "headers", "key_is_base64")
_OF_TEXTS = MapType(StringType(), StringType()).simpleString()
_OF_PAIRS = ArrayType(
    StructType([StructField("key", StringType()), StructField("value", BinaryType())])
).simpleString()
GIVEN_BY_THE_BROKER = (
    "partition", "message_id", "publish_time", "offset", "timestamp", "timestampType",
    "schema_version", CORRUPT,
)  # fmt: skip


@dataclass
class Written(WriterCommitMessage):
    """How many rows a task has delivered."""

    rows: int


def check_write_schema(
    schema: StructType, options: WriteOptions, *, overwrite: bool, typed: Sequence[str] = ()
) -> None:
    """Raise ``ConfigError`` for rows that cannot become messages. ``typed``: the columns that a
    schema makes a value of."""
    if overwrite:
        raise ConfigError("a topic cannot be overwritten; use mode('append')")
    allowed: dict[str, tuple[type, ...]] = {
        "key": (StringType, BinaryType),
        "value": (StringType, BinaryType),
        "topic": (StringType,),
        "event_time": (TimestampType,),
        "properties": (MapType,),
        "headers": (ArrayType,),
        "key_is_base64": (BooleanType,),
    }
    exact = {"properties": _OF_TEXTS, "headers": _OF_PAIRS}
    for field in schema.fields:
        if field.name in GIVEN_BY_THE_BROKER or field.name in typed:
            continue  # see ``refuse_given``, ``typed.fitting``
        if field.name not in allowed:
            raise ConfigError(f"column {field.name!r} has no place in a message: {COLUMNS}")
        kind = field.dataType.simpleString()
        if not isinstance(field.dataType, allowed[field.name]):
            raise ConfigError(f"column {field.name!r} cannot be {kind}")
        if kind != exact.get(field.name, kind):
            raise ConfigError(f"column {field.name!r} is {exact[field.name]}, and not {kind}")
    if options.keeps_version:
        _check_kept(schema, typed)
    if "value" not in schema.names and not typed:
        raise ConfigError("rows need a column 'value' (binary or string)")
    if "topic" not in schema.names and options.topic is None:
        raise ConfigError("say where to write: option 'topic', or a column of that name")


def _check_kept(schema: StructType, typed: Sequence[str]) -> None:
    if typed:
        raise ConfigError(
            "option 'keepSchemaVersion' is for values that are bytes already; these are written by "
            "a schema, and carry its version"
        )
    if VERSION not in schema.names or not isinstance(schema[VERSION].dataType, LongType):
        raise ConfigError(f"option 'keepSchemaVersion' needs a column {VERSION!r} of type bigint")


class RowSink(Protocol):
    """Where rows go: this module's ``Sink``, or ``staged_sink``. Picklable; ``write`` is for tasks,
    the others for the driver, with what the tasks' ``write`` gave."""

    def write(self, batches: Iterator[pa.RecordBatch]) -> WriterCommitMessage: ...

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None: ...

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None: ...


@dataclass(frozen=True)
class Sink:
    """Sends record batches; picklable, opens its connections in the task. ``values``: how they are
    written, None for bytes."""

    options: WriteOptions
    values: TypedWrite | None = None

    def write(self, batches: Iterator[pa.RecordBatch]) -> Written:
        """Send every row and wait until all are acknowledged. Raises ``BrokerError``."""
        options, typed = self.options, self.values
        patience_s = options.send_timeout_ms / 1000
        client = BrokerClient(options.service_url, patience_s)
        logs = LogWatch(client, patience_s)
        logs.be_patient()
        values = None if typed is None else typed.opened()
        version = without_schema if values is None else values.version
        encoder = encoder_of(options, logs.partitions_to_write, version)
        sender = EntrySender(client, patience_s, None if typed is None else typed.schema)
        rows = 0
        try:
            for batch in batches:
                refuse_given(batch, options)
                as_bytes = batch if values is None else values.batch(batch)
                for encoded in encoder.encode(as_bytes, sender.name, sender.entries_of):
                    sender.send(encoded.topic, encoded.entries)
                    rows += encoded.messages
            sender.finish()
        finally:
            sender.close()
            logs.close()  # the client too
        return Written(rows)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Everything is delivered already: acknowledged before each task ended."""

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """What was sent stays in the topic (at least once); nothing can be taken back."""


def encoder_of(
    options: WriteOptions,
    partitions: Callable[[str], Sequence[str]],
    version: Callable[[str], bytes],
) -> RowEncoder:
    """Of one task. ``version``: of the schema that messages of a topic carry."""
    encoding = Encoding(
        options.compression,
        options.batching_messages_max,
        options.delivery.batching_bytes_max,
        options.delivery.by_key,
        options.delivery.chunked,
    )
    return RowEncoder(encoding, options.topic, full_topic, partitions, _now_ms, version)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def refuse_given(batch: pa.RecordBatch, options: WriteOptions) -> None:
    """A row that was read brings what its own message had there, and the new one would not."""
    for name in GIVEN_BY_THE_BROKER:
        if name == VERSION and options.keeps_version:
            continue
        index = batch.schema.get_field_index(name)
        if index >= 0 and batch.column(index).null_count < batch.num_rows:
            raise ConfigError(
                f"column {name!r} cannot be written, the broker gives it; name the columns that "
                f"are (select({', '.join(COLUMNS[:2])}), or INSERT INTO t (key, value) ...)"
            )
