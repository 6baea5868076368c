"""``format("magnetar")``: what Spark asks of a data source, answered from plans and ranges.

Guarantees:

* Batch read: every message between the two places, once, in order within a partition.
* Streaming read: offsets are places (next message, exclusive) and live in Spark's checkpoint; a
  query restarted from it reads on exactly where the last committed micro-batch ended, and a
  micro-batch that runs again reads the same messages.
* Write, batch and streaming: **exactly once**, also when tasks, commits and micro-batches run again
  (``staged_sink``).
* Write with ``deliveryGuarantee`` = ``at-least-once``: when a task's data is committed every row is
  acknowledged by the broker. A task or micro-batch that Spark runs again sends its rows again.

* What retention deleted before it was read, and a topic that is not the one of the checkpoint, end
  the query (``losses.py``); with ``failOnDataLoss=false`` it goes on without, and says so.

Why: docs/adr/0080-the-spark-source-reads-entries.md.
"""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from typing import TYPE_CHECKING

from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from magnetar.pipeline.brokers.client import BrokerClient
from magnetar.pipeline.brokers.log_watch import START_S
from magnetar.pipeline.loss_reports import said_in_one_line
from magnetar.pipeline.options.source_options import (
    ReadOptions,
    WriteOptions,
    check_streaming,
    parse_read_options,
    parse_write_options,
)
from magnetar.pipeline.options.table_options import of_query, of_table
from magnetar.pipeline.planning.planner import Planner
from magnetar.pipeline.reading.batch_reader import BatchReader
from magnetar.pipeline.reading.stream_reader import StreamReader
from magnetar.pipeline.schema import CORRUPT, check_read_schema, spark_schema, with_lost
from magnetar.pipeline.topic_names import topic_of
from magnetar.pipeline.typed.inference import VALUE, ReaderSchema, carried, infer, with_values
from magnetar.pipeline.typed.options import BYTES
from magnetar.pipeline.typed.reading import TypedRead
from magnetar.pipeline.typed.registry import SchemaClient
from magnetar.pipeline.typed.writing import TypedWrite, plan_write, value_column
from magnetar.pipeline.worker_process import PROCESS
from magnetar.pipeline.writing.sink import (
    COLUMNS,
    GIVEN_BY_THE_BROKER,
    RowSink,
    Sink,
    check_write_schema,
)
from magnetar.pipeline.writing.staged_sink import StagedSink

if TYPE_CHECKING:
    import pyarrow as pa


class MagnetarDataSource(DataSource):
    """Reads and writes topics."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self._raw: dict[str, str] = dict(options)

    @classmethod
    def name(cls) -> str:
        return "magnetar"

    def schema(self) -> StructType:
        PROCESS.prepare()
        with said_in_one_line():
            options = parse_read_options(self._raw)
            naming, headers = options.column_names, options.headers
            columns = spark_schema(options.columns, naming, headers=headers)
            chosen = options.columns is not None
            found = with_values(columns, inferred(options), options.values, chosen=chosen)
            return of_table(with_lost(found) if options.losses else found, self._raw)

    def reader(self, schema: StructType) -> DataSourceReader:
        with said_in_one_line():
            options = self._read_options(schema)
            return BatchReader(options, schema, self._typed(schema, options))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        with said_in_one_line():
            options = self._read_options(schema)
            check_streaming(options)
            return StreamReader(options, schema, self._typed(schema, options))

    def _read_options(self, schema: StructType) -> ReadOptions:
        PROCESS.prepare()
        return parse_read_options(of_query(schema, self._raw))

    @staticmethod
    def _typed(schema: StructType, options: ReadOptions) -> TypedRead | None:
        """With which schema values are read; None: as bytes, or not at all. That which came with
        the columns holds; a user's own columns come without."""
        reader = None
        if options.values.format != BYTES and {VALUE, CORRUPT} & set(schema.names):
            reader = carried(schema) or inferred(options)
        value = None if reader is None else reader.type
        check_read_schema(schema, options.column_names, value, losses=options.losses)
        if reader is None:
            return None
        timeout_s = options.poll_timeout_ms / 1000
        return TypedRead(reader, options.values.permissive, options.service_url, timeout_s)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        with said_in_one_line():
            options, values = self._write_options(schema, START_S, overwrite=overwrite)
            staged = options.delivery.exactly_once
            return BatchWriter(
                StagedSink.of_batch(options, values) if staged else Sink(options, values)
            )

    def streamWriter(  # noqa: N802
        self, schema: StructType, overwrite: bool
    ) -> DataSourceStreamArrowWriter:
        with said_in_one_line():
            options, values = self._write_options(schema, None, overwrite=overwrite)
            staged = options.delivery.exactly_once
            return StreamWriter(
                StagedSink.of_stream(options, values) if staged else Sink(options, values)
            )

    def _write_options(
        self, schema: StructType, patience_s: float | None, *, overwrite: bool
    ) -> tuple[WriteOptions, TypedWrite | None]:
        """``patience_s``: so long a broker is waited for; None: as long as by what is sent."""
        PROCESS.prepare()
        options = parse_write_options(of_query(schema, self._raw))
        others = (*(name for name in COLUMNS if name != VALUE), *GIVEN_BY_THE_BROKER)
        column = value_column(schema, others, options.values)
        typed = () if column is None else (column[1] or (VALUE,))
        check_write_schema(schema, options, overwrite=overwrite, typed=typed)
        if column is None:
            return options, None
        wait_s = options.send_timeout_ms / 1000 if patience_s is None else patience_s
        plan = options.service_url, options.topic, column, options.values, wait_s
        return options, plan_write(*plan)


def inferred(options: ReadOptions) -> ReaderSchema | None:
    """With which schema the topics are read now; None: as bytes."""
    if options.values.format == BYTES:
        return None
    planner = Planner(options, start_s=START_S)
    client = BrokerClient(options.service_url, options.poll_timeout_ms / 1000)
    try:
        topics = dict.fromkeys(topic_of(name) for name in planner.partitions())
        return infer(SchemaClient(client, START_S), list(topics), options.values)
    finally:
        planner.close()
        client.close()


class BatchWriter(DataSourceArrowWriter):
    """Hands the rows of a job to its sink."""

    def __init__(self, sink: RowSink) -> None:
        self._sink = sink

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        PROCESS.prepare()
        with said_in_one_line():
            return self._sink.write(iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        with said_in_one_line():
            self._sink.commit(messages)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        with said_in_one_line():
            self._sink.abort(messages)


class StreamWriter(DataSourceStreamArrowWriter):
    """As ``BatchWriter``, for each micro-batch. Which one it is the messages say."""

    def __init__(self, sink: RowSink) -> None:
        self._sink = sink

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        PROCESS.prepare()
        with said_in_one_line():
            return self._sink.write(iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        with said_in_one_line():
            self._sink.commit(messages)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        with said_in_one_line():
            self._sink.abort(messages)
