"""The job ``redrive``: dead letters go back to the topics that they came from, once each.

Clients that give a message up publish it to a dead letter topic, with properties that say where it
came from (``REAL_TOPIC``, or ``ORIGIN_TOPIC``). The job copies those that its filters choose back,
without these properties and with one that says from where (``REDRIVEN_FROM``); key, value, event
time and the other properties stay. The dead letter topic stays as it is: its retention decides.

What a run has looked at, chosen or not, the next one with its checkpoint does not look at again.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from magnetar.model.errors import ConfigError
from magnetar.pipeline.jobs.context import JobContext
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
from magnetar.pipeline.jobs.job import Job, argument, option, service_url_option
from magnetar.pipeline.jobs.passing_over import LossyReport, loss_option
from magnetar.pipeline.topic_names import PARTITION_END

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

ORIGINS: Final = ("REAL_TOPIC", "ORIGIN_TOPIC")
ABOUT_THE_LETTER: Final = (
    *ORIGINS, "REAL_SUBSCRIPTION", "ORIGIN_MESSAGE_ID", "ORIGIN_MESSAGE_IDY_TIME",
    "RECONSUMETIMES", "DELAY_TIME",
)  # fmt: skip
"""Properties that clients write on a dead letter."""
REDRIVEN_FROM: Final = "REDRIVEN_FROM"
COLUMNS: Final = (
    "key,key_is_base64,value,topic,message_id,publish_time,event_time,properties,headers"
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
    ``by_topic``: of a run that only tries, how many would go where."""

    read: int = 0
    redriven: int = 0
    passed_over: int = 0
    without_origin: int = 0
    batches: int = 0
    by_topic: dict[str, int] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        return self.without_origin == 0 and super().ok

    def lines(self) -> Iterator[str]:
        for topic, count in sorted(self.by_topic.items()):
            yield f"{count:,} to {topic}"
        yield from self.loss_lines()
        yield (
            f"{self.read:,} dead letters read, {self.redriven:,} redriven, {self.passed_over:,} "
            "passed over"
        )
        if self.without_origin:
            yield (
                f"{self.without_origin:,} do not say where they came from, and stay: run it for "
                "them with --to, and a checkpoint of its own"
            )


def redrive(options: RedriveOptions, context: JobContext) -> RedriveReport:
    """Raises ``BrokerError``, ``JobError``."""
    from pyspark.sql import functions as f

    source = {
        "service.url": options.service_url,
        "topics": ",".join(options.topics),
        "columns": COLUMNS,
    } | passing(options.fail_on_data_loss)
    if context.dry_run:
        return _tried(options, context, source)
    check_checkpoint(options.checkpoint)
    letters = _chosen(options, read_stream(context, source, options.rate))
    counts = letters.observe(
        "redrive",
        f.count(f.lit(1)).alias(READ),
        f.count_if(_goes()).alias("redriven"),
        f.count_if(f.col("chosen") & f.col("to").isNull()).alias("without_origin"),
    )
    counted = write_stream(
        context,
        _messages(counts),
        {"service.url": options.service_url},
        options.checkpoint,
        "dead letters",
        rate=options.rate,
        follow=options.follow,
    )
    found = counted.observed
    report = _report(
        found.get(READ, 0), found.get("redriven", 0), found.get("without_origin", 0),
        batches=counted.batches,
    )  # fmt: skip
    report.take_losses(counted.lost)
    return report


def _report(read: int, redriven: int, without_origin: int, batches: int = 0) -> RedriveReport:
    return RedriveReport(
        read=read,
        redriven=redriven,
        passed_over=read - redriven - without_origin,
        without_origin=without_origin,
        batches=batches,
    )


def _tried(options: RedriveOptions, context: JobContext, source: dict[str, str]) -> RedriveReport:
    letters = _chosen(options, read_batch(context, source))
    with context.watched("tasks that look at dead letters", 0):
        rows = letters.groupBy("chosen", "to").count().collect()
    read = sum(row["count"] for row in rows)
    chosen = [row for row in rows if row["chosen"]]
    by_topic = {row["to"]: row["count"] for row in chosen if row["to"] is not None}
    without = sum(row["count"] for row in chosen if row["to"] is None)
    report = _report(read, sum(by_topic.values()), without)
    report.by_topic = by_topic
    return report


def _chosen(options: RedriveOptions, letters: DataFrame) -> DataFrame:
    """With ``chosen``, and ``to`` which topic; null: nothing says."""
    from pyspark.sql import functions as f

    wanted: Column = f.lit(True)
    if options.key:
        wanted &= f.col("key").isin(*options.key)
    for each in options.with_property:
        name, equals, value = each.partition("=")
        if not equals:
            raise ConfigError(f"--with-property {each!r}: give NAME=VALUE")
        wanted &= f.col("properties")[name] == value
    for text, compare in ((options.since, "__ge__"), (options.until, "__lt__")):
        if text is not None:
            wanted &= getattr(f.col("publish_time"), compare)(_time(text))
    if options.where is not None:
        wanted &= f.expr(options.where)
    origin: Column = f.coalesce(*(f.col("properties")[name] for name in ORIGINS))
    to = f.lit(options.to) if options.to is not None else f.regexp_replace(
        origin, PARTITION_END, ""
    )  # fmt: skip
    return letters.withColumn("chosen", f.coalesce(wanted, f.lit(False))).withColumn("to", to)


def _time(text: str) -> Column:
    """Of a session that is not ANSI's Spark makes a null of what is no time, for which nothing is
    true: all letters would be passed over, for good."""
    from pyspark.sql import functions as f

    what = f.raise_error(f.lit(f"{text!r} is no timestamp, as '2026-01-31 12:00:00' is one"))
    return f.coalesce(f.to_timestamp(f.lit(text)), what.cast("timestamp"))


def _goes() -> Column:
    from pyspark.sql import functions as f

    return f.col("chosen") & f.col("to").isNotNull()


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
        f.concat(others, f.array(about)).alias("headers"),
        f.col("to").alias("topic"),
    )


REDRIVE: Final = Job(
    "redrive",
    "Send dead letters back to the topics that they came from, once each.",
    RedriveOptions,
    redrive,
    notes="""Ends with 1 when some that were chosen do not say where they came from.

\b
Examples:
  magnetar pipeline redrive flights-billing-DLQ --dry-run
  magnetar pipeline redrive flights-billing-DLQ --checkpoint /var/lib/magnetar/redrive \\
      --since '2026-01-31 00:00:00' --where "properties['reason'] = 'timeout'" --rate 500""",
)
