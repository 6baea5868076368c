"""The job ``backfill``: rows of a table become messages of a topic, once.

What Spark reads (files of any format that it knows, or a table of its catalog) is written in one
batch, exactly once: under its ``name`` it is written one time, however often the job is run. Key,
event time and value are columns, or expressions; without a value all columns make one, by the
topic's schema, as everywhere in the sink (docs/spark.md).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING, Final

from magnetar.model.errors import ConfigError
from magnetar.pipeline.jobs.context import JobContext
from magnetar.pipeline.jobs.job import Job, Report, argument, option, service_url_option
from magnetar.pipeline.jobs.spark_words import failure, is_sparks
from magnetar.pipeline.options.delivery import Transaction, query_of
from magnetar.pipeline.topic_names import full_topic

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

NAME_DIGITS: Final = 16
FORMAT: Final = "parquet"
PATIENCE_MS: Final = 60_000
"""How long brokers are waited for, as by a write."""
RESERVED: Final = (
    "key", "event_time", "value", "topic", "properties", "headers", "key_is_base64",
)  # fmt: skip


@dataclass(frozen=True)
class BackfillOptions:
    """From where, and what of it is what. ``source``: a path, or a table's name."""

    source: str = argument("A path that Spark reads, or with --table the name of a table.")
    topic: str = argument("The topic that the rows go to.")
    service_url: str = service_url_option()
    table: bool = option("SOURCE is a table of Spark's catalog.", default=False)
    format: str = option("Of files: parquet, csv, json, orc, ...", default=FORMAT)
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
        "what is read, of what of it is what, and of the topic]",
        default=None,
    )
    version: int = option("A greater number under the same name writes it once more.", default=1)


@dataclass
class BackfillReport(Report):
    """``rows``: that there are. ``passed_over``: this version of ``name``, or a later one, was
    written before, and none of them is written now."""

    name: str = ""
    rows: int = 0
    columns: str = ""
    passed_over: bool = False

    def lines(self) -> Iterator[str]:
        yield f"{self.rows:,} rows ({self.columns})"
        if self.passed_over:
            yield (
                f"passed over: {self.name} was written before; a greater --version writes it once "
                "more"
            )
        elif not self.rows:
            yield "there is nothing to write"
        else:
            yield f"{'would be ' if self.dry_run else ''}written once, as {self.name}"


def backfill(options: BackfillOptions, context: JobContext) -> BackfillReport:
    """Raises ``BrokerError``, ``JobError``."""
    try:
        frame = _messages(options, _rows(options, context))
        report = BackfillReport(name=_name(options), columns=", ".join(frame.columns))
        with context.watched("tasks that read rows", 0):
            report.rows = frame.count()
        report.passed_over = _was_written(options)
        if not (context.dry_run or report.passed_over):
            _write(options, context, frame)
    except Exception as error:
        if not is_sparks(error):
            raise
        raise failure(error, f"{options.source} could not be backfilled") from error
    return report


def _rows(options: BackfillOptions, context: JobContext) -> DataFrame:
    if options.table:
        return context.spark.table(options.source)
    return context.spark.read.format(options.format).load(options.source)


def _name(options: BackfillOptions) -> str:
    """Of all that says what is written, and in which order: with another key it is something
    else."""
    if options.name:
        return options.name
    given = ("key", "event_time", "value", "order_by", "table")
    others = {name: getattr(options, name) for name in given if getattr(options, name)}
    if options.format != FORMAT and not options.table:
        others["format"] = options.format
    return _named(options, json.dumps(others, sort_keys=True)) if others else _named(options)


def _named(options: BackfillOptions, *others: str) -> str:
    about = "\0".join((options.source, options.where or "", options.topic, *others))
    return f"backfill-{sha256(about.encode()).hexdigest()[:NAME_DIGITS]}"


def _was_written(options: BackfillOptions) -> bool:
    """Whether this version, or a later one, was written before. Raises ``ConfigError`` where that
    cannot be told: releases before made the name of source, condition and topic alone."""
    name, former = _name(options), _named(options)
    if _last_version(options, name) >= options.version:
        return True
    if not options.name and former != name and _last_version(options, former) >= 0:
        raise ConfigError(
            f"rows of {options.source} were written to {options.topic} before, as {former}: by a "
            "job without --key, --event-time, --value and --order-by, or by an earlier release, "
            f"which did not look at these. If it was this job, say --name {former}; if these rows "
            "are to be written beside, give another --name"
        )
    return False


def _last_version(options: BackfillOptions, name: str) -> int:
    """That was written under the name; -1: none."""
    from magnetar.pipeline.writing.staged_session import SESSIONS

    query = query_of(Transaction(name, options.version), full_topic(options.topic))
    session = SESSIONS.get(options.service_url, PATIENCE_MS)
    record = session.run(session.queries.read(query))
    return -1 if record is None else record.last_batch


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
    others = (
        []
        if options.value is not None
        else [f.col(f"`{name.replace('`', '``')}`") for name in rows.columns]
    )
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
