"""``format("magnetar")``: what Spark asks of a data source, answered from plans and ranges.

Guarantees:

* Batch read: every message between the two places, once, in order within a partition.
* Streaming read: offsets are places (next message, exclusive) and live in Spark's checkpoint; a
  query restarted from it reads on exactly where the last committed micro-batch ended, and a
  micro-batch that runs again reads the same messages.
* Write, batch and streaming: when a task's data is committed every row is acknowledged by the
  broker. A task or micro-batch that Spark runs again sends its rows again: **at least once**.

The first micro-batch of a stream is empty on purpose. Spark does not checkpoint the initial
offset; it asks for it again when a query restarts before its first commit, and "latest" would
then have moved on. So micro-batch 0 goes from the initial offset, marked as such, to the same
places unmarked: its *end* is checkpointed and pins the start.

Why: docs/adr/0080-the-spark-source-reads-entries.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping, Sequence
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
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from magnetar.pipeline.broker_client import BrokerClient
from magnetar.pipeline.decode import read_range
from magnetar.pipeline.options import ReadOptions, parse_read_options, parse_write_options
from magnetar.pipeline.places import START, Place, from_offset, to_offset
from magnetar.pipeline.planner import Planner, Range
from magnetar.pipeline.schema import spark_schema
from magnetar.pipeline.sink import Sink, check_write_schema

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
        return spark_schema(parse_read_options(self._raw).columns)

    def reader(self, schema: StructType) -> DataSourceReader:
        return BatchReader(parse_read_options(self._raw), schema.names)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        return StreamReader(parse_read_options(self._raw), schema.names)

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


class RangePartition(InputPartition):
    """One task's work."""

    def __init__(self, part: Range) -> None:
        super().__init__(part)
        self.part = part


def _tasks(starts: Mapping[str, Place], ends: Mapping[str, Place]) -> list[RangePartition]:
    """A range per topic partition that has something to read, in a fixed order."""
    parts = [Range(name, starts[name], ends[name]) for name in sorted(ends) if name in starts]
    return [RangePartition(part) for part in parts if not part.empty]


class _RangeReader:
    """What batch and streaming reads share: a task reads its range."""

    def __init__(self, options: ReadOptions, columns: Sequence[str]) -> None:
        self._options = options
        self._columns = tuple(columns)

    def _read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, RangePartition):
            return iter(())  # Spark turns an empty plan into one partition that is None
        options = self._options
        client = BrokerClient(options.service_url, options.poll_timeout_ms / 1000)
        return read_range(
            client, partition.part, self._columns, fail_on_gap=options.fail_on_data_loss
        )


class BatchReader(_RangeReader, DataSourceReader):
    """Reads from the starting to the ending places, fixed when the query is planned."""

    def partitions(self) -> Sequence[InputPartition]:
        planner = Planner(self._options)
        return _tasks(planner.starts(), planner.ends())

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self._read(partition)


class StreamReader(_RangeReader, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans micro-batches; lives as long as the query."""

    def __init__(self, options: ReadOptions, columns: Sequence[str]) -> None:
        super().__init__(options, columns)
        self._planner = Planner(options)
        self._initial: dict[str, object] | None = None
        self._target: dict[str, Place] | None = None

    def initialOffset(self) -> dict[str, object]:  # noqa: N802
        if self._initial is None:
            self._initial = to_offset(self._planner.starts(), initial=True)
        return self._initial

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        most = self._options.messages_per_trigger_max
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._target = self._planner.latest()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, object]:  # noqa: N802
        starts = from_offset(start)
        if start.get("initial"):
            return to_offset(starts)
        ends = self._planner.latest() if self._target is None else self._target
        # A partition that was added since begins at its start; one that is gone stays as it is.
        starts = {name: starts.get(name, START) for name in {**ends, **starts}}
        ends = {name: max(starts[name], ends.get(name, starts[name])) for name in starts}
        if isinstance(limit, ReadMaxRows):
            ends = self._planner.limited(starts, ends, limit.max_rows)
        return to_offset(ends)

    def reportLatestOffset(self) -> dict[str, object] | None:  # noqa: N802
        return to_offset(self._planner.latest())

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        if start.get("initial"):
            return []
        starts, ends = from_offset(start), from_offset(end)
        return _tasks({n: starts.get(n, START) for n in ends}, ends)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self._read(partition)

    def stop(self) -> None:
        self._planner.close()


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
