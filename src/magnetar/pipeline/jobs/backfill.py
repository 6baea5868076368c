"""The job ``backfill``: rows of a table become messages of a topic, once.

What Spark reads (files of any format that it knows, or a table of its catalog) is written in one
batch, exactly once: under its ``name`` it is written one time, however often the job is run. Key,
event time and value are columns, or expressions; without a value all columns make one, by the
topic's schema, as everywhere in the sink (docs/spark.md).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING, Final

from magnetar.model.errors import ConfigError, JobError
from magnetar.pipeline.jobs.context import JobContext
from magnetar.pipeline.jobs.job import Job, Report, argument, option, service_url_option
from magnetar.pipeline.jobs.spark_words import is_sparks, reason

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

NAME_DIGITS: Final = 16
RESERVED: Final = ("key", "event_time", "value", "topic", "properties", "headers")


@dataclass(frozen=True)
class BackfillOptions:
    """From where, and what of it is what. ``source``: a path, or a table's name."""

    source: str = argument("A path that Spark reads, or with --table the name of a table.")
    topic: str = argument("The topic that the rows go to.")
    service_url: str = service_url_option()
    table: bool = option("SOURCE is a table of Spark's catalog.", default=False)
    format: str = option("Of files: parquet, csv, json, orc, ...", default="parquet")
    key: str | None = option("The column, or SQL expression, that is the key.", default=None)
    event_time: str | None = option("That which is the event time, a timestamp.", default=None)
    value: str | None = option(
        "That which is the value, as text or bytes; without it all columns make one by schema.",
        default=None,
    )
    where: str | None = option("Only rows for which this condition is true.", default=None)
    order_by: tuple[str, ...] = option(
        "Rows of one key are written in the order of this column; repeatable.", default=()
    )
    name: str | None = option(
        "What is written once under a name is passed over when it comes again.  [default: made of "
        "source and topic]",
        default=None,
    )
    version: int = option("A greater number under the same name writes it once more.", default=1)


@dataclass
class BackfillReport(Report):
    """``written``: rows that were brought; if ``name`` was written before none of them are."""

    name: str = ""
    rows: int = 0
    columns: str = ""

    def lines(self) -> Iterator[str]:
        yield f"{self.rows:,} rows ({self.columns})"
        yield f"written once, as {self.name}"


def backfill(options: BackfillOptions, context: JobContext) -> BackfillReport:
    """Raises ``BrokerError``, ``JobError``."""
    try:
        frame = _messages(options, _rows(options, context))
        report = BackfillReport(name=_name(options), columns=", ".join(frame.columns))
        with context.watched("tasks that read rows", 0):
            report.rows = frame.count()
        if not context.dry_run:
            _write(options, context, frame)
    except Exception as error:
        if not is_sparks(error):
            raise
        raise JobError(f"{options.source} could not be backfilled: {reason(error)}") from error
    return report


def _rows(options: BackfillOptions, context: JobContext) -> DataFrame:
    if options.table:
        return context.spark.table(options.source)
    return context.spark.read.format(options.format).load(options.source)


def _name(options: BackfillOptions) -> str:
    about = "\0".join((options.source, options.where or "", options.topic))
    return options.name or f"backfill-{sha256(about.encode()).hexdigest()[:NAME_DIGITS]}"


def _messages(options: BackfillOptions, rows: DataFrame) -> DataFrame:
    """As the sink takes them."""
    from pyspark.sql import functions as f

    if options.where is not None:
        rows = rows.where(options.where)
    if options.value is None:
        taken = [name for name in rows.columns if name.lower() in RESERVED]
        if taken:
            raise ConfigError(
                f"{options.source} has columns {', '.join(taken)}, which mean something else in a "
                "message: rename them, or say with --value what the value is"
            )
    given = {"key": options.key, "event_time": options.event_time, "value": options.value}
    made = [f.expr(text).alias(name) for name, text in given.items() if text is not None]
    others = [] if options.value is not None else [f.col(name) for name in rows.columns]
    if options.order_by:
        by = [f.expr(options.key)] if options.key is not None else []
        rows = rows.repartition(*by) if by else rows.coalesce(1)
        rows = rows.sortWithinPartitions(*options.order_by)
    return rows.select(*made, *others)


def _write(options: BackfillOptions, context: JobContext, frame: DataFrame) -> None:
    writer = (
        frame.write.format("magnetar")
        .mode("append")
        .option("service.url", options.service_url)
        .option("topic", options.topic)
        .option("txnAppId", _name(options))
        .option("txnVersion", str(options.version))
        .option("commitWait", "taken-in")
    )
    with context.watched("tasks that write rows", 0):
        writer.save()


BACKFILL: Final = Job(
    "backfill",
    "Write the rows of a table, or of files, into a topic, once.",
    BackfillOptions,
    backfill,
    notes="""\b
Examples:
  magnetar pipeline backfill s3a://lake/flights flights --key carrier --event-time departed
  magnetar pipeline backfill lake.flights flights --table --value 'to_json(struct(*))' --dry-run""",
)
