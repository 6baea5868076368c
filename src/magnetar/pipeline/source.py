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

The first micro-batch of a stream is empty on purpose. Spark does not checkpoint the initial
offset; it asks for it again when a query restarts before its first commit, and "latest" would
then have moved on. So micro-batch 0 goes from the initial offset, marked as such, to the same
places unmarked: its *end* is checkpointed and pins the start.

Why: docs/adr/0080-the-spark-source-reads-entries.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from magnetar.pipeline.broker_client import BrokerClient
from magnetar.pipeline.conditions import may_hold
from magnetar.pipeline.even_splits import EvenSplits
from magnetar.pipeline.loss_reports import LossReports, said_in_one_line, warn
from magnetar.pipeline.losses import UNKNOWN_MS
from magnetar.pipeline.micro_batches import MicroBatches
from magnetar.pipeline.narrowing import narrowed, question_of
from magnetar.pipeline.options import (
    ReadOptions,
    WriteOptions,
    check_streaming,
    ignored_in_batch,
    parse_read_options,
    parse_write_options,
)
from magnetar.pipeline.pins import RENEWAL, Pins
from magnetar.pipeline.places import Offset, Point, from_offset, to_offset
from magnetar.pipeline.planner import Planner
from magnetar.pipeline.plans import created_of
from magnetar.pipeline.presentation import Presentation, constants_of
from magnetar.pipeline.schema import CORRUPT, check_read_schema, spark_schema
from magnetar.pipeline.sink import (
    COLUMNS,
    GIVEN_BY_THE_BROKER,
    RowSink,
    Sink,
    check_write_schema,
)
from magnetar.pipeline.split_readers import ReadTask, read_split
from magnetar.pipeline.splits import PlannedRange, Split, Splitter, WholeRanges, check_cover
from magnetar.pipeline.staged_sink import StagedSink
from magnetar.pipeline.storage_planning import BookieReach, StorageSplitter
from magnetar.pipeline.table_options import of_query, of_table
from magnetar.pipeline.topic_names import topic_of
from magnetar.pipeline.typed.inference import VALUE, ReaderSchema, carried, infer, with_values
from magnetar.pipeline.typed.options import BYTES
from magnetar.pipeline.typed.reading import NEEDED, TypedRead
from magnetar.pipeline.typed.registry import SchemaClient
from magnetar.pipeline.typed.writing import TypedWrite, plan_write, value_column
from magnetar.pipeline.worker_process import PROCESS

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
            return of_table(found, self._raw)

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
        check_read_schema(schema, options.column_names, None if reader is None else reader.type)
        if reader is None:
            return None
        timeout_s = options.poll_timeout_ms / 1000
        return TypedRead(reader, options.values.permissive, options.service_url, timeout_s)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        with said_in_one_line():
            options, values = self._write_options(schema, overwrite=overwrite)
            staged = options.delivery.exactly_once
            return BatchWriter(
                StagedSink.of_batch(options, values) if staged else Sink(options, values)
            )

    def streamWriter(  # noqa: N802
        self, schema: StructType, overwrite: bool
    ) -> DataSourceStreamArrowWriter:
        with said_in_one_line():
            options, values = self._write_options(schema, overwrite=overwrite)
            staged = options.delivery.exactly_once
            return StreamWriter(
                StagedSink.of_stream(options, values) if staged else Sink(options, values)
            )

    def _write_options(
        self, schema: StructType, *, overwrite: bool
    ) -> tuple[WriteOptions, TypedWrite | None]:
        PROCESS.prepare()
        options = parse_write_options(of_query(schema, self._raw))
        others = (*(name for name in COLUMNS if name != VALUE), *GIVEN_BY_THE_BROKER)
        column = value_column(schema, others, options.values)
        typed = () if column is None else (column[1] or (VALUE,))
        check_write_schema(schema, options, overwrite=overwrite, typed=typed)
        if column is None:
            return options, None
        return options, plan_write(options.service_url, options.topic, column, options.values)


def inferred(options: ReadOptions) -> ReaderSchema | None:
    """With which schema the topics are read now; None: as bytes."""
    if options.values.format == BYTES:
        return None
    planner = Planner(options)
    client = BrokerClient(options.service_url, options.poll_timeout_ms / 1000)
    try:
        topics = dict.fromkeys(topic_of(name) for name in planner.partitions())
        return infer(SchemaClient(client), list(topics), options.values)
    finally:
        planner.close()
        client.close()


class SplitPartition(InputPartition):
    """One task's work."""

    def __init__(self, split: Split, pins: Pins | None = None) -> None:
        super().__init__(split)
        self.split = split
        self.pins = pins


def _ranges(starts: Mapping[str, Point], end: Offset) -> list[PlannedRange]:
    """The ranges of every topic partition that has something to read, in a fixed order."""
    parts = []
    for name, point in sorted(end.points.items()):
        if name in starts:
            start, created_ms = starts[name], end.created_ms.get(name, UNKNOWN_MS)
            parts.append(
                PlannedRange(name, start.place, point.place, created_ms, start.offset, point.offset)
            )
    return [part for part in parts if not part.empty]


class _SplitReader:
    """What batch and streaming reads share: ranges become splits, and a task reads one."""

    def __init__(self, options: ReadOptions, schema: StructType, typed: TypedRead | None) -> None:
        self._options = options
        self._typed = typed
        self._schema = to_arrow_schema(schema, timezone="UTC")
        self._reach: BookieReach | None = None

    def _tasks(
        self, planner: Planner, parts: Sequence[PlannedRange], pins: Pins | None
    ) -> list[SplitPartition]:
        """The splits of these ranges, of what may hold rows."""
        pieces = [piece for part in parts for piece in self._narrowed(planner, part)]
        splitter, tasks = self._splitter(planner, pieces), []
        for part in pieces:
            splits = splitter.split(part)
            check_cover(part, splits)
            renewed = None if pins is None else pins.for_task(part.topic)
            tasks += [SplitPartition(split, renewed) for split in splits]
        return tasks

    def _narrowed(self, planner: Planner, part: PlannedRange) -> Sequence[PlannedRange]:
        """What of a range may hold rows for which the option ``filter`` is true."""
        conditions = self._options.conditions
        if not may_hold(conditions, constants_of(part.topic, self._options.column_names)):
            return []
        question = question_of(part, conditions)
        if question is None:
            return [part]
        answer = planner.ask(part.topic, question)
        return narrowed(part, conditions, answer.extent, answer.ledgers, answer.of_times)

    def _splitter(self, planner: Planner, parts: Sequence[PlannedRange]) -> Splitter:
        """How ranges are cut now."""
        least = self._options.partitions_min
        even = WholeRanges() if least is None else EvenSplits(parts, least, planner.ledgers)
        if self._options.read_mode == "broker":
            return even
        reach = self._reach or BookieReach(planner)
        return StorageSplitter(self._options, planner, reach, len(parts), even)

    def _read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, SplitPartition):
            return  # Spark turns an empty plan into one partition that is None
        PROCESS.prepare()
        split, options = partition.split, self._options
        reports = LossReports(fatal=options.fail_on_data_loss)
        with said_in_one_line():
            also = NEEDED if self._typed is not None else ()
            form = Presentation(self._schema, options.column_names, split.part.topic, also)
            batches = read_split(split, ReadTask(options, form.decoded, reports))
            if self._typed is not None:
                values = self._typed.values(split.part.topic, split.part.created_ms)
                batches = values.decode(batches)
            client = BrokerClient(options.service_url, options.poll_timeout_ms / 1000)
            yield from RENEWAL.renewing(client, partition.pins, form.present(batches))


class BatchReader(_SplitReader, DataSourceReader):
    """Reads from the starting to the ending places, fixed when the query is planned."""

    def partitions(self) -> Sequence[InputPartition]:
        for name in ignored_in_batch(self._options):
            warn(f"option {name!r} is for streams; a batch reads all that it is asked for")
        planner = Planner(self._options)
        try:
            with said_in_one_line():
                extents = planner.extents()
                starts = planner.starts(extents)
                ends = planner.ends(extents, starts)
                parts = _ranges(starts, Offset(ends, created_of(extents)))
                return self._tasks(planner, parts, planner.pin(parts))
        finally:
            planner.close()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self._read(partition)


class StreamReader(_SplitReader, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans micro-batches; lives as long as the query."""

    def __init__(self, options: ReadOptions, schema: StructType, typed: TypedRead | None) -> None:
        super().__init__(options, schema, typed)
        self._planner = Planner(options)
        self._plan = MicroBatches(self._planner, options.limits)
        self._reach = BookieReach(self._planner)
        self._initial: dict[str, object] | None = None

    def initialOffset(self) -> dict[str, object]:  # noqa: N802
        if self._initial is None:
            with said_in_one_line():
                self._planner.check_start()
                extents = self._planner.extents()
                starts = self._planner.starts(extents)
            self._initial = to_offset(Offset(starts, created_of(extents), initial=True))
        return self._initial

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Spark hands it back to ``latestOffset``, but for a query that is to read everything at
        once. It knows one limit only; all of them are taken from the options then."""
        limits = self._options.limits
        if limits.messages_max is not None:
            return ReadMaxRows(limits.messages_max)
        if limits.bytes_max is not None:
            return ReadMaxBytes(limits.bytes_max)
        if limits.messages_min is not None:
            return ReadMinRows(limits.messages_min)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        with said_in_one_line():
            self._plan.stop_at_the_present_end()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, object]:  # noqa: N802
        offset = from_offset(start)
        if offset.initial:
            return to_offset(replace(offset, initial=False))
        with said_in_one_line():
            following = self._plan.after(offset, everything=isinstance(limit, ReadAllAvailable))
        return start if following is None else to_offset(following)

    def reportLatestOffset(self) -> dict[str, object] | None:  # noqa: N802
        return self._plan.backlog()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        first, last = from_offset(start), from_offset(end)
        if first.initial:
            return []
        with said_in_one_line():
            parts = _ranges(self._plan.starts_of(first, last), last)
            return self._tasks(self._planner, parts, self._planner.pin(parts))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self._read(partition)

    def stop(self) -> None:
        self._planner.unpin()
        self._planner.close()


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
