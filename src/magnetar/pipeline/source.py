"""``format("magnetar")``: what Spark asks of a data source, answered from plans and ranges.

Guarantees:

* Batch read: every message between the two places, once, in order within a partition.
* Streaming read: offsets are places (next message, exclusive) and live in Spark's checkpoint; a
  query restarted from it reads on exactly where the last committed micro-batch ended, and a
  micro-batch that runs again reads the same messages.
* Write, batch and streaming: when a task's data is committed every row is acknowledged by the
  broker. A task or micro-batch that Spark runs again sends its rows again: **at least once**.

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
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from magnetar.pipeline.decode import cast_batches
from magnetar.pipeline.loss_reports import LossReports, said_in_one_line
from magnetar.pipeline.losses import UNKNOWN_MS, LogExtent
from magnetar.pipeline.options import ReadOptions, parse_read_options, parse_write_options
from magnetar.pipeline.places import START, Offset, Place, from_offset, to_offset
from magnetar.pipeline.planner import Planner
from magnetar.pipeline.schema import arrow_schema, check_read_schema, spark_schema
from magnetar.pipeline.sink import Sink, check_write_schema
from magnetar.pipeline.split_readers import ReadTask, read_split
from magnetar.pipeline.splits import PlannedRange, Split, Splitter, WholeRanges, check_cover

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
        with said_in_one_line():
            return spark_schema(parse_read_options(self._raw).columns)

    def reader(self, schema: StructType) -> DataSourceReader:
        with said_in_one_line():
            check_read_schema(schema)
            return BatchReader(parse_read_options(self._raw), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        with said_in_one_line():
            check_read_schema(schema)
            return StreamReader(parse_read_options(self._raw), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        options = parse_write_options(self._raw)
        check_write_schema(schema, options, overwrite=overwrite)
        return BatchWriter(Sink(options))

    def streamWriter(  # noqa: N802
        self, schema: StructType, overwrite: bool
    ) -> DataSourceStreamArrowWriter:
        options = parse_write_options(self._raw)
        check_write_schema(schema, options, overwrite=overwrite)
        return StreamWriter(Sink(options))


class SplitPartition(InputPartition):
    """One task's work."""

    def __init__(self, split: Split) -> None:
        super().__init__(split)
        self.split = split


def _tasks(starts: Mapping[str, Place], end: Offset, splitter: Splitter) -> list[SplitPartition]:
    """The splits of every topic partition that has something to read, in a fixed order."""
    tasks = []
    for name, place in sorted(end.places.items()):
        if name not in starts:
            continue
        part = PlannedRange(name, starts[name], place, end.created_ms.get(name, UNKNOWN_MS))
        splits = [] if part.empty else splitter.split(part)
        check_cover(part, splits)
        tasks += [SplitPartition(split) for split in splits]
    return tasks


def _made_ms(extents: Mapping[str, LogExtent]) -> dict[str, int]:
    return {name: extent.created_ms for name, extent in extents.items()}


class _SplitReader:
    """What batch and streaming reads share: ranges become splits, and a task reads one."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._columns = tuple(schema.names)
        # A user's schema says that every column may be null, and Spark wants batches that say so.
        asked = to_arrow_schema(schema, timezone="UTC")
        self._cast = None if asked.equals(arrow_schema(self._columns)) else asked

    def _splitter(self) -> Splitter:
        """How ranges are cut now."""
        return WholeRanges()

    def _read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, SplitPartition):
            return  # Spark turns an empty plan into one partition that is None
        reports = LossReports(fatal=self._options.fail_on_data_loss)
        with said_in_one_line():
            batches = read_split(partition.split, ReadTask(self._options, self._columns, reports))
            yield from batches if self._cast is None else cast_batches(batches, self._cast)


class BatchReader(_SplitReader, DataSourceReader):
    """Reads from the starting to the ending places, fixed when the query is planned."""

    def partitions(self) -> Sequence[InputPartition]:
        planner = Planner(self._options)
        with said_in_one_line():
            extents = planner.extents()
            starts, ends = planner.starts(extents), planner.ends(extents)
            return _tasks(starts, Offset(ends, _made_ms(extents)), self._splitter())

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self._read(partition)


class StreamReader(_SplitReader, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans micro-batches; lives as long as the query."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        super().__init__(options, schema)
        self._planner = Planner(options)
        self._initial: dict[str, object] | None = None
        self._target: dict[str, LogExtent] | None = None
        self._planned: dict[str, object] = {}  # the last end, and where its ranges begin
        self._starts: Mapping[str, Place] = {}

    def initialOffset(self) -> dict[str, object]:  # noqa: N802
        if self._initial is None:
            with said_in_one_line():
                extents = self._planner.extents()
                starts = self._planner.starts(extents)
            self._initial = to_offset(Offset(starts, _made_ms(extents), initial=True))
        return self._initial

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        most = self._options.messages_per_trigger_max
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        with said_in_one_line():
            self._target = self._planner.extents()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, object]:  # noqa: N802
        offset = from_offset(start)
        if offset.initial:
            return to_offset(replace(offset, initial=False))
        with said_in_one_line():
            self._planned = self._next(offset, limit)
        return self._planned

    def _next(self, offset: Offset, limit: ReadLimit) -> dict[str, object]:
        """The offset after ``offset``, as far as the log reaches and ``limit`` allows."""
        extents = self._planner.extents()
        starts = self._planner.resumed(offset, extents)
        target = extents if self._target is None else self._target
        ends = {n: max(starts[n], target.get(n, extents[n]).end) for n in starts}
        if isinstance(limit, ReadMaxRows):
            ends = self._planner.limited(starts, ends, limit.max_rows)
        self._starts = starts
        return to_offset(Offset(ends, _made_ms(extents)))

    def reportLatestOffset(self) -> dict[str, object] | None:  # noqa: N802
        extents = self._planner.extents()
        ends = {name: extent.end for name, extent in extents.items()}
        return to_offset(Offset(ends, _made_ms(extents)))

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        first, last = from_offset(start), from_offset(end)
        if first.initial:
            return []
        if end == self._planned:
            return _tasks(self._starts, last, self._splitter())
        # Planned before a restart. Its tasks find out what has been lost since.
        with said_in_one_line():
            self._planner.check_topics(last)
        return _tasks(_starts_of(first, last), last, self._splitter())

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self._read(partition)

    def stop(self) -> None:
        self._planner.close()


def _starts_of(first: Offset, last: Offset) -> dict[str, Place]:
    """Where the ranges up to ``last`` begin: at ``first``, or at the start of a partition that was
    added or made anew in between."""
    starts = {}
    for name in last.places:
        made_ms = first.created_ms.get(name, UNKNOWN_MS)
        same = not made_ms or made_ms == last.created_ms.get(name, made_ms)
        starts[name] = first.places.get(name, START) if same else START
    return starts


class BatchWriter(DataSourceArrowWriter):
    """Sends the rows; a task succeeds when all of its rows are acknowledged."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return self._sink.write(iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Everything is delivered already: acknowledged before each task ended."""

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """What was sent stays in the topic (at least once); nothing can be taken back."""


class StreamWriter(DataSourceStreamArrowWriter):
    """As ``BatchWriter``, for each micro-batch."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return self._sink.write(iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Everything is delivered already: acknowledged before each task ended."""

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """What was sent stays in the topic (at least once); nothing can be taken back."""
