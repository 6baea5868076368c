"""Reads from place to place: what batch and streaming reads share, and the batch read.

Planned ranges become splits, splits become Spark's partitions, and a task reads the rows of one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from magnetar.model.errors import TopicNotFoundError
from magnetar.pipeline.brokers.client import BrokerClient
from magnetar.pipeline.brokers.log_watch import START_S
from magnetar.pipeline.columns.conditions import may_hold
from magnetar.pipeline.columns.lost_rows import lost_rows, with_losses
from magnetar.pipeline.columns.presentation import Presentation, constants_of
from magnetar.pipeline.loss_reports import LossReports, said_in_one_line, warn
from magnetar.pipeline.losses import UNKNOWN_MS, Loss
from magnetar.pipeline.options.source_options import ReadOptions, ignored_in_batch
from magnetar.pipeline.places import Offset, Point
from magnetar.pipeline.planning.even_splits import EvenSplits
from magnetar.pipeline.planning.narrowing import narrowed, question_of
from magnetar.pipeline.planning.pins import RENEWAL, Pins
from magnetar.pipeline.planning.planner import Planner
from magnetar.pipeline.planning.plans import created_of
from magnetar.pipeline.planning.splits import (
    PlannedRange,
    Split,
    Splitter,
    WholeRanges,
    check_cover,
    whole,
)
from magnetar.pipeline.planning.storage_planning import BookieReach, StorageSplitter
from magnetar.pipeline.reading.split_readers import ReadTask, read_split
from magnetar.pipeline.reading.tails import Readers
from magnetar.pipeline.typed.reading import NEEDED, TypedRead
from magnetar.pipeline.worker_process import PROCESS

if TYPE_CHECKING:
    import pyarrow as pa


class SplitPartition(InputPartition):
    """One task's work."""

    def __init__(
        self, splits: Sequence[Split], pins: Pins | None = None, losses: Sequence[Loss] = ()
    ) -> None:
        """``losses``: found by who planned, to be told by rows."""
        super().__init__(splits)
        self.splits = splits
        self.pins = pins
        self.losses = losses


def ranges_of(starts: Mapping[str, Point], end: Offset) -> list[PlannedRange]:
    """The ranges of every topic partition that has something to read, in a fixed order."""
    parts = []
    for name, point in sorted(end.points.items()):
        if name in starts:
            start, created_ms = starts[name], end.created_ms.get(name, UNKNOWN_MS)
            parts.append(
                PlannedRange(name, start.place, point.place, created_ms, start.offset, point.offset)
            )
    return [part for part in parts if not part.empty]


class RangeReader:
    """What batch and streaming reads share: ranges become splits, and a task reads one."""

    def __init__(self, options: ReadOptions, schema: StructType, typed: TypedRead | None) -> None:
        self._options = options
        self._typed = typed
        self._schema = to_arrow_schema(schema, timezone="UTC")
        self._reach: BookieReach | None = None

    def _tasks(
        self, planner: Planner, parts: Sequence[PlannedRange], pins: Pins | None
    ) -> list[SplitPartition]:
        """The splits of these ranges, of what may hold rows. A topic that was deleted since they
        were planned (before a restart, perhaps) is a loss, which the task of its range tells."""
        pieces: list[PlannedRange] = []
        for part in parts:
            try:
                pieces += self._narrowed(planner, part)
            except TopicNotFoundError:
                pieces.append(part)
        splitter, tasks = self._splitter(planner, pieces), []
        for part in pieces:
            try:
                splits = splitter.split(part)
            except TopicNotFoundError:
                splits = whole(part)
            check_cover(part, splits)
            renewed = None if pins is None else pins.for_task(part.topic)
            tasks += [SplitPartition([split], renewed) for split in splits]
        return tasks

    def _told(self, losses: Sequence[Loss]) -> list[SplitPartition]:
        """The task that tells of them, if rows are to."""
        return [SplitPartition([], losses=losses)] if losses and self._options.losses else []

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
        options = self._options
        with said_in_one_line():
            client = BrokerClient(options.service_url, options.poll_timeout_ms / 1000)
            rows = (batch for split in partition.splits for batch in self._rows(split, client))
            yield from RENEWAL.renewing(client, partition.pins, rows)
            for loss in partition.losses:
                yield self._lost_rows(loss.topic, [loss])

    def _lost_rows(self, topic: str, losses: Sequence[Loss]) -> pa.RecordBatch:
        return lost_rows(self._schema, self._options.column_names, topic, losses)

    def _rows(self, split: Split, client: Readers) -> Iterator[pa.RecordBatch]:
        """The rows of a split, as Spark was promised them."""
        options = self._options
        reports = LossReports(fatal=options.fail_on_data_loss, keeps=options.losses)
        also = NEEDED if self._typed is not None else ()
        form = Presentation(self._schema, options.column_names, split.part.topic, also)
        batches = read_split(split, ReadTask(options, form.decoded, reports, client))
        if self._typed is not None:
            values = self._typed.values(split.part.topic, split.part.created_ms)
            batches = values.decode(batches)
        rows = form.present(batches)
        if not options.losses:
            return rows
        return with_losses(rows, reports, partial(self._lost_rows, split.part.topic))


class BatchReader(RangeReader, DataSourceReader):
    """Reads from the starting to the ending places, fixed when the query is planned."""

    def partitions(self) -> Sequence[InputPartition]:
        for name in ignored_in_batch(self._options):
            warn(f"option {name!r} is for streams; a batch reads all that it is asked for")
        with said_in_one_line(), closing(Planner(self._options, start_s=START_S)) as planner:
            extents = planner.extents()
            starts = planner.starts(extents)
            ends = planner.ends(extents, starts)
            parts = ranges_of(starts, Offset(ends, created_of(extents)))
            tasks = self._tasks(planner, parts, planner.pin(parts))
            return [*tasks, *self._told(planner.losses())]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self._read(partition)
