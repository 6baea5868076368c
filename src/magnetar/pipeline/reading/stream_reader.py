"""The streaming read: micro-batches planned one after the other, as long as the query lives.

The first micro-batch of a stream is empty on purpose. Spark does not checkpoint the initial
offset; it asks for it again when a query restarts before its first commit, and "latest" would
then have moved on. So micro-batch 0 goes from the initial offset, marked as such, to the same
places unmarked: its *end* is checkpointed and pins the start.

Small micro-batches are read while they are planned (``prefetch``).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from magnetar.pipeline.brokers.client import BrokerClient
from magnetar.pipeline.loss_reports import said_in_one_line
from magnetar.pipeline.options.source_options import ReadOptions
from magnetar.pipeline.places import Offset, from_offset, to_offset
from magnetar.pipeline.planning.micro_batches import MicroBatches
from magnetar.pipeline.planning.planner import Planner
from magnetar.pipeline.planning.plans import created_of, lost_after, lost_between
from magnetar.pipeline.planning.splits import PlannedRange, whole
from magnetar.pipeline.planning.storage_planning import BookieReach
from magnetar.pipeline.reading.batch_reader import RangeReader, SplitPartition, ranges_of
from magnetar.pipeline.reading.prefetch import WAIT_S, Prefetch
from magnetar.pipeline.typed.reading import TypedRead
from magnetar.pipeline.worker_process import when_ended

if TYPE_CHECKING:
    import pyarrow as pa

try:
    from pyspark.sql.datasource_internal import _SimpleStreamReaderWrapper as WITH_THE_PLAN
except ImportError:  # another release: tasks read
    WITH_THE_PLAN = None  # type: ignore[assignment,misc]


class StreamReader(RangeReader, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans micro-batches; lives as long as the query."""

    def __init__(self, options: ReadOptions, schema: StructType, typed: TypedRead | None) -> None:
        super().__init__(options, schema, typed)
        self._planner = Planner(options)
        self._plan = MicroBatches(self._planner, options.limits)
        self._reach = BookieReach(self._planner)
        self._prefetches = self._may_prefetch(schema)
        self._prefetch: Prefetch | None = None
        self._prefetched: list[pa.RecordBatch] | None = None
        self._initial: dict[str, object] | None = None

    def initialOffset(self) -> dict[str, object]:  # noqa: N802
        when_ended(self.stop)
        if self._initial is None:
            # Nobody stands by when a stream is started again: that the broker is away for a moment
            # is no reason to end, now as later.
            self._planner.be_patient()
            with said_in_one_line():
                self._planner.check_start()
                extents = self._planner.extents()
                starts = self._planner.starts(extents)
            lost = lost_after(Offset({}), self._planner.losses())
            self._initial = to_offset(Offset(starts, created_of(extents), lost, initial=True))
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
        with said_in_one_line():
            when_ended(self.stop)
            offset = from_offset(start)
            if offset.initial:
                return to_offset(replace(offset, initial=False))
            following = self._plan.after(offset, everything=isinstance(limit, ReadAllAvailable))
        return start if following is None else to_offset(following)

    def reportLatestOffset(self) -> dict[str, object] | None:  # noqa: N802
        return self._plan.backlog()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        with said_in_one_line():
            # Of a micro-batch that was planned before a restart this is the first that is asked.
            self._planner.be_patient()
            first, last = from_offset(start), from_offset(end)
            if first.initial:
                return self._told(lost_between(first, last))
            parts = ranges_of(self._plan.starts_of(first, last), last)
            told = self._told(self._plan.losses_of(first, last, {part.topic for part in parts}))
            pins = self._planner.pin(parts)
            self._prefetched = None if told else self._small(parts)
            if self._prefetched is not None:  # one task, which reads these if they are lost
                return [SplitPartition([split for part in parts for split in whole(part)])]
            return [*self._tasks(self._planner, parts, pins), *told]

    def _small(self, parts: Sequence[PlannedRange]) -> list[pa.RecordBatch] | None:
        """The rows of a small micro-batch; None: tasks read it."""
        if not self._prefetches:
            return None
        if self._prefetch is None:
            client = BrokerClient(self._options.service_url, WAIT_S)
            self._prefetch = Prefetch(client, self._rows)
        return self._prefetch.read(parts)

    def _may_prefetch(self, schema: StructType) -> bool:
        """Whether Spark takes rows with a plan (see ``prefetch``). It compares their schema, as
        Arrow has it, with that of the query; of values with a schema, and of a table's columns,
        which say more than Arrow keeps, they may differ."""
        plain = self._typed is None and not any(field.metadata for field in schema.fields)
        return plain and WITH_THE_PLAN is not None and self._options.read_mode != "storage"

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        """Spark takes rows with a plan from readers of one class of its own, and asks which this
        is right after the plan was made: it is one when there are rows, and only then, as such
        readers tell less of their progress."""
        rows = self.__dict__.get("_prefetched")
        return type(self) if rows is None or WITH_THE_PLAN is None else WITH_THE_PLAN

    def getCache(  # noqa: N802
        self, start: dict[str, Any], end: dict[str, Any]
    ) -> Iterator[pa.RecordBatch] | None:
        """The rows of the plan that was just made."""
        rows, self._prefetched = self._prefetched, None
        return None if rows is None else iter(rows)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self._read(partition)

    def stop(self) -> None:
        if self._prefetch is not None:
            self._prefetch.close()
        self._planner.unpin()
        self._planner.close()
