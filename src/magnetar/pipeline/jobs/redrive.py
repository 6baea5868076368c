"""The job ``redrive``: dead letters go back to the topics that they came from, once each.

Clients that give a message up publish it to a dead letter topic, with properties that say where it
came from (``REAL_TOPIC``, or ``ORIGIN_TOPIC``). The job copies those that its filters choose back,
without these properties and with one that says from where (``REDRIVEN_FROM``); key, value, event
time and the other properties stay, and by which schema the value is to be read
(``copied_schemas``). The dead letter topic stays as it is: its retention decides.

What a run has looked at, chosen or not, the next one with its checkpoint does not look at again.
A letter that cannot be sent stays, and is counted; it keeps no other back.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from magnetar.cluster.topic_name import parse_topic
from magnetar.model.errors import ConfigError, MagnetarError
from magnetar.pipeline.jobs.context import JobContext
from magnetar.pipeline.jobs.copied_schemas import KEEPS, versions_there
from magnetar.pipeline.jobs.copying import (
    READ,
    check_checkpoint,
    checkpoint_option,
    follow_option,
    passing,
    rate_option,
    read_batch,
    read_stream,
    write_stream,
)
from magnetar.pipeline.jobs.destinations import possible, topics_of
from magnetar.pipeline.jobs.job import Job, argument, option, service_url_option
from magnetar.pipeline.jobs.passing_over import LossyReport, loss_option
from magnetar.pipeline.topic_names import PARTITION_END, full_topic

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

ORIGINS: Final = ("REAL_TOPIC", "ORIGIN_TOPIC")
ABOUT_THE_LETTER: Final = (
    *ORIGINS, "REAL_SUBSCRIPTION", "ORIGIN_MESSAGE_ID", "ORIGIN_MESSAGE_IDY_TIME",
    "RECONSUMETIMES", "DELAY_TIME",
)  # fmt: skip
"""Properties that clients write on a dead letter."""
REDRIVEN_FROM: Final = "REDRIVEN_FROM"
COLUMNS: Final = (
    "key,key_is_base64,value,topic,message_id,publish_time,event_time,properties,headers,"
    "schema_version"
)


@dataclass(frozen=True)
class RedriveOptions:
    """Which dead letters go where."""

    topics: tuple[str, ...] = argument("Dead letter topics.")
    service_url: str = service_url_option()
    checkpoint: str = checkpoint_option()
    to: str | None = option(
        "The topic that they go to. Without it: each to that which its properties name.",
        default=None,
    )
    key: tuple[str, ...] = option("Only messages with this key; repeatable.", default=())
    with_property: tuple[str, ...] = option(
        "Only messages with this property, NAME=VALUE; repeatable, all must be there.", default=()
    )
    since: str | None = option("Only what was published then or later: a timestamp.", default=None)
    until: str | None = option("Only what was published before: a timestamp.", default=None)
    where: str | None = option(
        "Only what this condition of Spark's SQL is true for; columns: key, value, properties, "
        "publish_time, event_time, topic.",
        default=None,
    )
    rate: int = rate_option()
    follow: bool = follow_option()
    fail_on_data_loss: bool = loss_option()


@dataclass
class RedriveReport(LossyReport):
    """``without_origin``: chosen, but nothing says where they came from; they stay where they are.
    ``undeliverable``: chosen, and stay, as they cannot be sent: what they name is no topic, or in a
    namespace that is not there, or where they are read from; or it refuses the schema that they
    were written with (which a run that only tries does not bring), or nobody knows that any more.
    ``by_topic``: of a run that only tries, how many would go where."""

    read: int = 0
    redriven: int = 0
    passed_over: int = 0
    without_origin: int = 0
    undeliverable: int = 0
    batches: int = 0
    by_topic: dict[str, int] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        return not (self.without_origin or self.undeliverable) and super().ok

    def lines(self) -> Iterator[str]:
        for topic, count in sorted(self.by_topic.items()):
            yield f"{count:,} to {topic}"
        yield from self.loss_lines()
        would = "would be " if self.dry_run else ""
        yield (
            f"{self.read:,} dead letters read, {self.redriven:,} {would}redriven, "
            f"{self.passed_over:,} passed over"
        )
        if self.without_origin:
            yield (
                f"{self.without_origin:,} do not say where they came from, and stay: run it for "
                "them with --to, and a checkpoint of its own"
            )
        if self.undeliverable:
            yield (
                f"{self.undeliverable:,} cannot be sent, and stay: they name no topic that can be, "
                "or one that refuses the schema that they were written with; run it for them with "
                "--to, and a checkpoint of its own"
            )


def redrive(options: RedriveOptions, context: JobContext) -> RedriveReport:
    """Raises ``BrokerError``, ``JobError``, ``ConfigError``."""
    from pyspark.sql import functions as f

    if not options.topics:
        raise ConfigError("name dead letter topics")
    _check_to(options)
    source = {
        "service.url": options.service_url,
        "topics": ",".join(options.topics),
        "columns": COLUMNS,
    } | passing(options.fail_on_data_loss)
    _check_times(options, context.spark)
    if context.dry_run:
        return _tried(options, context, source)
    check_checkpoint(options.checkpoint)
    letters = _with_schemas(options, _chosen(options, read_stream(context, source, options.rate)))
    counts = letters.observe(
        "redrive",
        f.count(f.lit(1)).alias(READ),
        f.count_if(_goes()).alias("redriven"),
        f.count_if(_stays("without_origin")).alias("without_origin"),
        f.count_if(_stays("undeliverable")).alias("undeliverable"),
    )
    counted = write_stream(
        context,
        _messages(counts),
        {"service.url": options.service_url} | KEEPS,
        options.checkpoint,
        "dead letters",
        about={"job": "redrive", "to": options.to or ""},
        source=source,
        rate=options.rate,
        follow=options.follow,
    )
    found = counted.observed
    names = READ, "redriven", "without_origin", "undeliverable"
    report = _report(*(found.get(name, 0) for name in names))
    report.batches = counted.batches
    report.take_losses(counted.lost)
    return report


def _report(read: int, redriven: int, without_origin: int, undeliverable: int) -> RedriveReport:
    return RedriveReport(
        read=read,
        redriven=redriven,
        passed_over=read - redriven - without_origin - undeliverable,
        without_origin=without_origin,
        undeliverable=undeliverable,
    )


def _tried(options: RedriveOptions, context: JobContext, source: dict[str, str]) -> RedriveReport:
    letters = _chosen(options, read_batch(context, source))
    with context.watched("tasks that look at dead letters", 0):
        rows = letters.groupBy("fate", "to").count().collect()
    of_fate: dict[str, int] = {}
    for row in rows:
        of_fate[row["fate"]] = of_fate.get(row["fate"], 0) + row["count"]
    counts = (of_fate.get(fate, 0) for fate in ("goes", "without_origin", "undeliverable"))
    report = _report(sum(of_fate.values()), *counts)
    report.by_topic = {row["to"]: row["count"] for row in rows if row["fate"] == "goes"}
    return report


def _check_to(options: RedriveOptions) -> None:
    """Raises ``ConfigError`` for what is no topic, and for one that is read: dead letters would
    become dead letters, without end."""
    if options.to is None:
        return
    try:
        parse_topic(full_topic(options.to))
    except MagnetarError as error:
        raise ConfigError(f"--to {options.to!r} cannot be: {error}") from error
    if topics_of([options.to]) & topics_of(options.topics):
        raise ConfigError(
            f"--to {options.to} is where dead letters are read: each run would find there what the "
            "one before has written; give another topic"
        )


def _chosen(options: RedriveOptions, letters: DataFrame) -> DataFrame:
    """With ``to``, which topic, and ``fate``: "goes", or why not."""
    from pyspark.sql import functions as f

    origin: Column = f.coalesce(*(f.col("properties")[name] for name in ORIGINS))
    if options.to is not None:
        named: Column = f.lit(options.to)
    else:
        named = f.nullif(f.regexp_replace(origin, PARTITION_END, ""), f.lit(""))
    known = f.udf(possible(options.service_url), "string", useArrow=False)
    to = named if options.to is not None else known(named)
    letters = letters.withColumn("chosen", f.coalesce(_wanted(options), f.lit(False)))
    letters = letters.withColumn("named", named).withColumn("to", to)
    goes = f.col("to").isNotNull() & ~f.col("to").isin(*topics_of(options.topics))
    fate = f.when(~f.col("chosen"), "passed_over").when(f.col("named").isNull(), "without_origin")
    return letters.withColumn("fate", fate.when(goes, "goes").otherwise("undeliverable"))


def _with_schemas(options: RedriveOptions, letters: DataFrame) -> DataFrame:
    """``schema_version`` is that of the topic that a letter goes to; one that it refuses, or that
    nobody knows, does not go: what was written by it could not be read there."""
    from pyspark.sql import functions as f

    found = versions_there(options.service_url, options.service_url)
    to = f.when(_goes(), f.col("to"))  # of others nothing is asked
    letters = letters.withColumn("there", found(f.col("topic"), to, f.col("schema_version")))
    fate = f.when(_goes() & (f.col("there") < 0), "undeliverable").otherwise(f.col("fate"))
    return letters.withColumn("fate", fate).withColumn("schema_version", f.col("there"))


def _wanted(options: RedriveOptions) -> Column:
    from pyspark.sql import functions as f

    wanted: Column = f.lit(True)
    if options.key:
        wanted &= f.col("key").isin(*options.key)
    for each in options.with_property:
        name, equals, value = each.partition("=")
        if not equals:
            raise ConfigError(f"--with-property {each!r}: give NAME=VALUE")
        wanted &= f.col("properties")[name] == value
    if options.since is not None:
        wanted &= f.col("publish_time") >= _time(options.since)
    if options.until is not None:
        wanted &= f.col("publish_time") < _time(options.until)
    if options.where is not None:
        wanted &= f.expr(options.where)
    return wanted


def _check_times(options: RedriveOptions, spark: SparkSession) -> None:
    """Before anything is read: with times that choose nothing, all letters would be passed over,
    and not looked at again with this checkpoint. Raises ``ConfigError``."""
    from pyspark.sql import functions as f

    given = {"--since": options.since, "--until": options.until}
    times = {}
    for name, text in given.items():
        if text is None:
            continue
        (row,) = spark.range(1).select(f.try_to_timestamp(f.lit(text)).alias("at")).collect()
        if row["at"] is None:
            raise ConfigError(f"{name} {text!r} is no timestamp, as '2026-01-31 12:00:00' is one")
        times[name] = row["at"]
    if len(times) == len(given) and not times["--since"] < times["--until"]:
        raise ConfigError(
            f"--since {options.since} is not before --until {options.until}: no letter would be "
            "chosen"
        )


def _time(text: str) -> Column:
    from pyspark.sql import functions as f

    return f.to_timestamp(f.lit(text))


def _stays(why: str) -> Column:
    from pyspark.sql import functions as f

    return f.col("fate") == why


def _goes() -> Column:
    return _stays("goes")


def _messages(letters: DataFrame) -> DataFrame:
    """As the sink takes them."""
    from pyspark.sql import functions as f

    # One that was redriven before says so still.
    taken = (*ABOUT_THE_LETTER, REDRIVEN_FROM)
    others = f.filter("headers", lambda each: ~each["key"].isin(*taken))
    ids = f.col("message_id")
    place: Any = f.concat_ws(":", ids["ledger_id"], ids["entry_id"], ids["batch_index"])
    where = f.concat_ws(" ", f.col("topic"), place).cast("binary")
    about = f.struct(f.lit(REDRIVEN_FROM).alias("key"), where.alias("value"))
    return letters.where(_goes()).select(
        "key",
        "key_is_base64",
        "value",
        "event_time",
        "schema_version",
        f.concat(others, f.array(about)).alias("headers"),
        f.col("to").alias("topic"),
    )


REDRIVE: Final = Job(
    "redrive",
    "Send dead letters back to the topics that they came from, once each.",
    RedriveOptions,
    redrive,
    notes="""Ends with 1 when some that were chosen do not say where they came from, or cannot be
sent.

\b
Examples:
  magnetar pipeline redrive flights-billing-DLQ --dry-run
  magnetar pipeline redrive flights-billing-DLQ --checkpoint /var/lib/magnetar/redrive \\
      --since '2026-01-31 00:00:00' --where "properties['reason'] = 'timeout'" --rate 500""",
)
