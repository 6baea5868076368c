"""Streams that copy messages from topics to topics, exactly once: what ``redrive``, ``mirror`` and
``aggregate`` have in common.

A checkpoint is what such a job knows of itself. One that ends anywhere, and is run again with its
checkpoint, goes on where it was, and no message is written twice (``pipeline.writing``). A run goes
as far as topics reach when it begins, or follows them until it is interrupted; with a ``rate`` it
takes so many messages in a second and no more. What a checkpoint is of: ``checkpoints``.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any, Final

from magnetar.model.errors import ConfigError
from magnetar.pipeline.brokers.log_watch import job_watch
from magnetar.pipeline.jobs.checkpoints import check_same_job
from magnetar.pipeline.jobs.context import JobContext
from magnetar.pipeline.jobs.job import option
from magnetar.pipeline.jobs.passing_over import LossyReport, of_row
from magnetar.pipeline.jobs.spark_words import failure, is_sparks
from magnetar.pipeline.losses import LOST
from magnetar.pipeline.places import START, Place, from_offset

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

LOOK_S: Final = 0.5
SOURCE: Final = "magnetar"
READ: Final = "read"
"""The observation that counts what a stream has read."""
LARGE: Final = {"chunkingEnabled": "true"}
KEPT_TOGETHER: Final = {"maxPartitionBytes": "1g"}
"""So that what a micro-batch reads of a topic partition is one task's, and keeps its order."""


def checkpoint_option() -> Any:
    return option(
        "A directory that Spark reaches, where the job keeps how far it is. The next run with it "
        "goes on from there.",
        default="",
    )


def rate_option() -> Any:
    return option("Messages a second; 0: as fast as it goes.", default=0)


def follow_option() -> Any:
    return option("Go on until interrupted, and not only to where topics end now.", default=False)


def check_checkpoint(path: str) -> None:
    """Raises ``ConfigError``."""
    if not path:
        raise ConfigError(
            "--checkpoint is missing: the job writes exactly once by what it keeps there; give a "
            "directory that Spark reaches, for example /var/lib/magnetar/redrive-flights"
        )


def passing(fail_on_data_loss: bool) -> dict[str, str]:
    """The source's options for that: losses end the read, or are rows (``without_losses``)."""
    return {} if fail_on_data_loss else {"failOnDataLoss": "false", "includeLosses": "true"}


def read_stream(context: JobContext, options: Mapping[str, str], rate: int) -> DataFrame:
    """Of topics, from their start on. With ``passing`` losses are observed and left out."""
    reader = context.spark.readStream.format(SOURCE).options(**KEPT_TOGETHER, **options)
    if rate:
        reader = reader.option("maxOffsetsPerTrigger", str(rate))
    return _without_losses(reader.load())


def read_batch(context: JobContext, options: Mapping[str, str]) -> DataFrame:
    """The same, as far as the topics reach now; what a run finds lost that only tries is not
    told. A broker is waited for as a stream does."""
    from magnetar.pipeline.options.source_options import parse_read_options

    read = parse_read_options(options)
    with closing(job_watch(read.service_url, read.poll_timeout_ms / 1000)) as logs:
        logs.wait_for_broker()
    return _without_losses(context.spark.read.format(SOURCE).options(**options).load())


def _without_losses(frame: DataFrame) -> DataFrame:
    """Rows of losses are handed to the job's report, by an observation of the column's name, and
    are no messages."""
    from pyspark.sql import functions as f

    if LOST not in frame.columns:
        return frame
    if frame.isStreaming:
        told = f.when(f.col(LOST).isNotNull(), f.struct("topic", f"{LOST}.*"))
        frame = frame.observe(LOST, f.collect_list(told).alias(LOST))
    return frame.where(f.col(LOST).isNull()).drop(LOST)


class Streamed:
    """Counts of a stream that has ended. ``observed``: sums by name of its observations; ``lost``:
    has what was passed over; ``late``: what came too late for its window, of which Spark has put
    some together before it says how many there are."""

    def __init__(self) -> None:
        self.batches = 0
        self.observed: dict[str, int] = {}
        self.lost = LossyReport()
        self.late = 0
        self._seen = -1

    def add(self, progress: Any) -> None:
        """Of a micro-batch that is over. While a stream waits it is told of the one that is not
        there yet, under its number, and that it has no rows."""
        if progress.batchId <= self._seen or _is_idle(progress):
            return
        self._seen = progress.batchId
        self.batches += bool(progress.numInputRows)
        self.late += sum(each.numRowsDroppedByWatermark for each in progress.stateOperators)
        for about, row in progress.observedMetrics.items():
            if about == LOST:
                for each in row[LOST]:  # Spark makes no rows of structs in an array
                    self.lost.pass_over(of_row(each))
                continue
            for name, value in row.asDict().items():
                self.observed[name] = self.observed.get(name, 0) + int(value or 0)


def write_stream(
    context: JobContext,
    frame: DataFrame,
    options: Mapping[str, str],
    checkpoint: str,
    what: str,
    *,
    about: Mapping[str, str],
    source: Mapping[str, str],
    rate: int = 0,
    follow: bool = False,
    mode: str = "append",
) -> Streamed:
    """Write it, and tell the progress in messages of ``what``. ``about``: what the job makes of
    what it reads, for ``check_same_job``; ``source``: where it reads. Raises ``JobError``,
    ``ConfigError``."""
    check_same_job(context.spark, checkpoint, about)
    ends = _ends(source) if rate and not follow else None
    # What one topic has in chunks, as it is large, the other is to have as well.
    writer = frame.writeStream.format(SOURCE).outputMode(mode).options(**LARGE, **options)
    writer = writer.option("checkpointLocation", checkpoint).option("commitWait", "taken-in")
    if rate or follow:
        writer = writer.trigger(processingTime="1 second")
    else:
        writer = writer.trigger(availableNow=True)
    counted = Streamed()
    with _told(what):
        query = writer.start()
        try:
            _watch(context, query, counted, what, until=ends)
        finally:
            query.stop()
            for progress in query.recentProgress:
                counted.add(progress)
    done = counted.observed.get(READ, 0)
    context.progress(done, done, what)  # what came since the last look
    return counted


def _ends(source: Mapping[str, str]) -> dict[str, Place]:
    """Where the topics that are read end now. Raises ``BrokerError``, ``ConfigError``."""
    from magnetar.pipeline.options.source_options import parse_read_options
    from magnetar.pipeline.planning.planner import Planner

    with closing(Planner(parse_read_options(source))) as planner:
        extents = planner.extents((), absent_allowed=True)
    return {name: extent.end for name, extent in extents.items()}


def _watch(
    context: JobContext,
    query: Any,
    counted: Streamed,
    what: str,
    *,
    until: Mapping[str, Place] | None,
) -> None:
    """Until the query ends, or has read up to these places: it goes on as long as somebody
    publishes faster than it may read."""
    done = 0
    while not query.awaitTermination(LOOK_S):
        for progress in query.recentProgress:
            counted.add(progress)
        last = query.lastProgress
        if last is None:
            continue
        behind = _behind(last)
        done = counted.observed.get(READ, 0)
        context.progress(done, done + (behind or 0), what)
        at_end = _is_idle(last) if behind is None else not behind
        if until is not None and last.batchId > 0 and (at_end or _has_read(last, until)):
            return


def _has_read(progress: Any, until: Mapping[str, Place]) -> bool:
    (told,) = (each.endOffset for each in progress.sources)
    if told is None:
        return False
    done = from_offset(json.loads(told)).places
    return all(done.get(name, START) >= place for name, place in until.items())


def _is_idle(progress: Any) -> bool:
    """Whether it is told of no micro-batch."""
    return "addBatch" not in progress.durationMs


def _behind(progress: Any) -> int | None:
    """Messages between the last micro-batch and the ends of the topics; None: nobody knows. So it
    is of one that was planned before the run began, and of brokers that do not number messages."""
    found = 0
    for source in progress.sources:
        latest = source.latestOffset
        told = json.loads(latest) if isinstance(latest, str) else latest
        behind = (told or {}).get("messages_behind")
        if behind is None:
            return None
        found += int(behind)
    return found


@contextmanager
def _told(what: str) -> Iterator[None]:
    """An error of Spark's becomes one line."""
    try:
        yield
    except Exception as error:
        if not is_sparks(error):
            raise
        raise failure(error, f"{what} could not be written") from error
