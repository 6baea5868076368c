"""Rows -> messages, through the official client.

Columns of what is written: ``value`` (binary or string, needed), ``key`` (string or binary),
``topic`` (string, when no topic option is given), ``event_time`` (timestamp), ``properties``
(map of strings) or ``headers`` (array of key and binary value, as Spark's Kafka source has them). A
row of a table has the other columns of a read as well; they are the broker's to give, and must be
null. A task ends only when the broker has acknowledged all of its rows.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    MapType,
    StringType,
    StructType,
    TimestampType,
)

from magnetar.model.errors import BrokerError, ConfigError
from magnetar.model.schema import TopicSchema
from magnetar.pipeline.options import WriteOptions
from magnetar.pipeline.schema import CORRUPT
from magnetar.pipeline.topic_names import full_topic
from magnetar.pipeline.typed.client_schema import encoded_schema
from magnetar.pipeline.typed.writing import TypedWrite

if TYPE_CHECKING:
    import pulsar
    import pyarrow as pa

COLUMNS = ("key", "value", "topic", "event_time", "properties", "headers")
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
    }
    for field in schema.fields:
        if field.name in GIVEN_BY_THE_BROKER or field.name in typed:
            continue  # see ``refuse_given``, ``typed.fitting``
        if field.name not in allowed:
            raise ConfigError(f"column {field.name!r} has no place in a message: {COLUMNS}")
        if not isinstance(field.dataType, allowed[field.name]):
            raise ConfigError(f"column {field.name!r} cannot be {field.dataType.simpleString()}")
    if "value" not in schema.names and not typed:
        raise ConfigError("rows need a column 'value' (binary or string)")
    if "topic" not in schema.names and options.topic is None:
        raise ConfigError("say where to write: option 'topic', or a column of that name")


class RowSink(Protocol):
    """Where rows go: this module's ``Sink``, or ``staged_sink``. Picklable; ``write`` is for tasks,
    the others for the driver, with what the tasks' ``write`` gave."""

    def write(self, batches: Iterator[pa.RecordBatch]) -> WriterCommitMessage: ...

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None: ...

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None: ...


@dataclass(frozen=True)
class Sink:
    """Sends record batches; picklable, opens its client in the task. ``values``: how they are
    written, None for bytes."""

    options: WriteOptions
    values: TypedWrite | None = None

    def write(self, batches: Iterator[pa.RecordBatch]) -> Written:
        """Send every row and wait until all are acknowledged. Raises ``BrokerError``."""
        import pulsar

        logger = pulsar.ConsoleLogger(pulsar.LoggerLevel.Warn)
        client = pulsar.Client(self.options.service_url, logger=logger)
        try:
            schema = None if self.values is None else self.values.schema
            delivery = _Delivery(client, self.options, schema)
            values = None if self.values is None else self.values.opened()
            for batch in batches:
                refuse_given(batch)
                rows = batch if values is None else values.batch(batch)
                for row in rows.to_pylist():
                    delivery.send(row)
            return Written(delivery.finish())
        finally:
            client.close()

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Everything is delivered already: acknowledged before each task ended."""

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """What was sent stays in the topic (at least once); nothing can be taken back."""


class _Delivery:
    """The messages of one task under way."""

    def __init__(
        self, client: pulsar.Client, options: WriteOptions, schema: TopicSchema | None
    ) -> None:
        self._client = client
        self._schema = schema
        self._options = options
        self._producers: dict[str, pulsar.Producer] = {}
        self._lock = threading.Lock()
        self._failure: str | None = None
        self._acknowledged = 0
        self._sent = 0

    def send(self, row: dict[str, Any]) -> None:
        if self._failure is not None:
            raise BrokerError(self._failure)
        name = row.get("topic")
        topic = full_topic(name) if name else self._options.topic
        if topic is None:
            raise BrokerError("a row has no topic, and there is no option 'topic'")
        producer = self._producers.get(topic) or self._open(topic)
        self._sent += 1
        producer.send_async(_bytes(row["value"]), self._answered, **_message_fields(row))

    def _open(self, topic: str) -> pulsar.Producer:
        import pulsar

        kinds = {
            "none": pulsar.CompressionType.NONE,
            "lz4": pulsar.CompressionType.LZ4,
            "zlib": pulsar.CompressionType.ZLib,
            "zstd": pulsar.CompressionType.ZSTD,
            "snappy": pulsar.CompressionType.SNAPPY,
        }
        producer = self._client.create_producer(
            topic,
            schema=encoded_schema(self._schema),
            compression_type=kinds[self._options.compression],
            batching_enabled=self._options.batching_messages_max > 1,
            batching_max_messages=self._options.batching_messages_max,
            batching_type=self._batching(pulsar.BatchingType),
            block_if_queue_full=True,
            send_timeout_millis=self._options.send_timeout_ms,
        )
        self._producers[topic] = producer
        return producer

    def _batching(self, kinds: type[pulsar.BatchingType]) -> pulsar.BatchingType:
        """By key an entry holds one key's rows: as many entries as keys, in each batch."""
        return kinds.KeyBased if self._options.delivery.by_key else kinds.Default

    def _answered(self, result: pulsar.Result, _message_id: pulsar.MessageId) -> None:
        import pulsar

        with self._lock:
            if result == pulsar.Result.Ok:
                self._acknowledged += 1
            elif self._failure is None:
                self._failure = f"the broker did not take a row: {result}"

    def finish(self) -> int:
        """Wait for the last acknowledgement; returns the number of rows."""
        for producer in self._producers.values():
            producer.flush()
        for producer in self._producers.values():
            producer.close()
        with self._lock:
            if self._failure is not None:
                raise BrokerError(self._failure)
            if self._acknowledged != self._sent:
                raise BrokerError(f"{self._sent - self._acknowledged} rows were not acknowledged")
            return self._acknowledged


def refuse_given(batch: pa.RecordBatch) -> None:
    """A row that was read brings what its own message had there, and the new one would not."""
    for name in GIVEN_BY_THE_BROKER:
        index = batch.schema.get_field_index(name)
        if index >= 0 and batch.column(index).null_count < batch.num_rows:
            raise ConfigError(
                f"column {name!r} cannot be written, the broker gives it; name the columns that "
                f"are (select({', '.join(COLUMNS[:2])}), or INSERT INTO t (key, value) ...)"
            )


def _bytes(value: bytes | str | None) -> bytes | None:
    return value.encode() if isinstance(value, str) else value


def _message_fields(row: dict[str, Any]) -> dict[str, Any]:
    """Keyword arguments of ``send_async`` for what the row has."""
    fields: dict[str, Any] = {}
    key = row.get("key")
    if key is not None:
        fields["partition_key"] = key if isinstance(key, str) else _text("a key", key)
    event_time = row.get("event_time")
    if event_time is not None:
        fields["event_timestamp"] = int(event_time.timestamp() * 1000)
    properties = row.get("properties")
    if properties:
        fields["properties"] = dict(properties)
    headers = row.get("headers")
    if headers:
        pairs = ((header["key"], _text("a header", header["value"] or b"")) for header in headers)
        fields["properties"] = fields.get("properties", {}) | dict(pairs)
    return fields


def _text(what: str, value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"{what} is not UTF-8 text, which is all a message takes: {value!r}"
        ) from error
