"""The job ``mirror``: topics of one cluster are copied into another, each message once.

Key, value, event time and properties stay as they are; a message has another id, and the publish
time of its copy. A topic goes to one of the same name there, or behind a prefix; its partitions to
those that it has there, by key. Order holds by key. Values are copied as bytes, and the schemas
that wrote them are brought there: each copy says by which it is to be read (``copied_schemas``).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from magnetar.model.errors import ConfigError
from magnetar.pipeline.brokers.log_watch import job_watch
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
from magnetar.pipeline.jobs.destinations import TIMEOUT_S, is_one_log, topics_of
from magnetar.pipeline.jobs.job import Job, argument, option, service_url_option
from magnetar.pipeline.jobs.passing_over import LossyReport, loss_option
from magnetar.pipeline.options.selection import parse_selection
from magnetar.pipeline.topic_names import PARTITION_END

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

COLUMNS: Final = "key,key_is_base64,value,topic,event_time,headers,schema_version"
"""Headers are the properties, all of them where several have one name."""
UNREADABLE: Final = "unreadable"


@dataclass(frozen=True)
class MirrorOptions:
    """What is copied where."""

    topics: tuple[str, ...] = argument("Topics to copy.", default=())
    pattern: str | None = option(
        "Topics whose full names match this regular expression, also those that come later.",
        default=None,
    )
    service_url: str = service_url_option()
    to_service_url: str = option(
        "Where brokers of the other cluster answer; without it the same cluster's.", default=""
    )
    to_namespace: str | None = option("TENANT/NAMESPACE there; without it the same.", default=None)
    prefix: str = option("What copies' names begin with.", default="")
    checkpoint: str = checkpoint_option()
    rate: int = rate_option()
    follow: bool = follow_option()
    fail_on_data_loss: bool = loss_option()


@dataclass
class MirrorReport(LossyReport):
    """``by_topic``: of a run that only tries, how many messages would go to which topic.
    ``of_unknown_versions``: they say that they were written with a version of their topic's schema
    that nobody knows any more; their copies say none."""

    copied: int = 0
    of_unknown_versions: int = 0
    batches: int = 0
    by_topic: dict[str, int] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        return not self.of_unknown_versions and super().ok

    def lines(self) -> Iterator[str]:
        for topic, count in sorted(self.by_topic.items()):
            yield f"{count:,} to {topic}"
        yield from self.loss_lines()
        if self.dry_run:
            yield f"{sum(self.by_topic.values()):,} messages would be copied"
        else:
            yield f"{self.copied:,} messages copied, in {self.batches:,} micro-batches"
        if self.of_unknown_versions:
            yield (
                f"{self.of_unknown_versions:,} of them were written with a version of their schema "
                "that is deleted: their copies say none, and consumers that read values by a "
                "schema read them by its newest"
            )


def mirror(options: MirrorOptions, context: JobContext) -> MirrorReport:
    """Raises ``BrokerError``, ``JobError``, ``ConfigError``."""
    import pyspark.sql  # noqa: F401  (who lacks it is told before a broker is asked)

    if bool(options.topics) is (options.pattern is not None):
        raise ConfigError("give topics, or --pattern")
    selection = (
        {"topics": ",".join(options.topics)}
        if options.pattern is None
        else {"subscribePattern": options.pattern}
    )
    source = {"service.url": options.service_url, "columns": COLUMNS, **selection}
    source |= passing(options.fail_on_data_loss)
    _check_apart(options)
    if context.dry_run:
        copies = _copies(options, read_batch(context, source))
        with context.watched("tasks that count messages", 0):
            rows = copies.groupBy("topic").count().collect()
        return MirrorReport(by_topic={row["topic"]: row["count"] for row in rows})
    check_checkpoint(options.checkpoint)
    messages = read_stream(context, source, options.rate)
    counted = write_stream(
        context,
        _written(options, messages),
        {"service.url": _there(options)} | KEEPS,
        options.checkpoint,
        "messages",
        about={
            "job": "mirror",
            "to namespace": options.to_namespace or "",
            "prefix": options.prefix,
        },
        source=source,
        rate=options.rate,
        follow=options.follow,
    )
    found = counted.observed
    report = MirrorReport(
        copied=found.get(READ, 0),
        of_unknown_versions=found.get(UNREADABLE, 0),
        batches=counted.batches,
    )
    report.take_losses(counted.lost)
    return report


def _there(options: MirrorOptions) -> str:
    return options.to_service_url or options.service_url


def _written(options: MirrorOptions, messages: DataFrame) -> DataFrame:
    """Copies with the versions that their schemas have there, and counted."""
    from pyspark.sql import functions as f

    found = versions_there(options.service_url, _there(options), in_order=True, tells=True)
    copies = _copies(options, messages.withColumn("from", f.col("topic")))
    there = found(f.col("from"), f.col("topic"), f.col("schema_version"))
    copies = copies.withColumn("schema_version", there).drop("from")
    known = f.col("schema_version") >= 0
    copies = copies.observe(
        "mirror", f.count(f.lit(1)).alias(READ), f.count_if(~known).alias(UNREADABLE)
    )
    return copies.withColumn("schema_version", f.when(known, f.col("schema_version")))


def _is_same(options: MirrorOptions) -> bool:
    return options.to_service_url in ("", options.service_url)


def _check_apart(options: MirrorOptions) -> None:
    """Raises ``ConfigError`` where a topic would be copied into itself, without end: also where the
    other cluster is the same one at another address."""
    if options.to_namespace is not None and options.to_namespace.count("/") != 1:
        raise ConfigError(f"--to-namespace {options.to_namespace!r}: give TENANT/NAMESPACE")
    if _is_same(options) and not options.prefix and options.to_namespace is None:
        raise _into_itself("the topics that they come from")
    there = _there(options)
    for topic in _selected(options):
        if _name_of_copy(options, topic) == topic and is_one_log(options.service_url, there, topic):
            raise _into_itself(f"{topic}, where they come from, as {there} is the same cluster")


def _into_itself(where: str) -> ConfigError:
    return ConfigError(
        f"the copies would go to {where}: give another --to-service-url, a --prefix or a "
        "--to-namespace"
    )


def _selected(options: MirrorOptions) -> list[str]:
    """The topics that are there now."""
    if options.pattern is None:
        return sorted(topics_of(parse_selection("topics", ",".join(options.topics)).topics))
    selection = parse_selection("subscribePattern", options.pattern)
    with closing(job_watch(options.service_url, TIMEOUT_S)) as logs:
        logs.wait_for_broker()
        return sorted(topics_of(selection.matching(logs.topics(selection.namespace))))


def _name_of_copy(options: MirrorOptions, topic: str) -> str:
    """As ``_copies`` makes it."""
    tenant, namespace, local = topic.partition("://")[2].split("/", 2)
    to = options.to_namespace or f"{tenant}/{namespace}"
    return f"persistent://{to}/{options.prefix}{local}"


def _copies(options: MirrorOptions, messages: DataFrame) -> DataFrame:
    from pyspark.sql import functions as f

    plain = f.regexp_replace("topic", PARTITION_END, "")
    parts = f.split(plain, "/")
    namespace: Column = (
        f.concat_ws("/", parts[2], parts[3])
        if options.to_namespace is None
        else f.lit(options.to_namespace)
    )
    local = f.concat(f.lit(options.prefix), parts[4])
    name = f.concat(f.lit("persistent://"), namespace, f.lit("/"), local)
    if _is_same(options) and options.pattern is not None:
        name = _outside(options.pattern, name)
    return messages.withColumn("topic", name)


def _outside(pattern: str, copy: Column) -> Column:
    """The name of a copy, which may not be one of those that are copied: there would be copies of
    copies without end. Asked of every row, since topics come later."""
    from pyspark.sql import functions as f

    selected = parse_selection("subscribePattern", pattern).pattern
    told = f.concat(
        f.lit("copies would be copied again, without end: "),
        copy,
        f.lit(f" matches {selected} as well; give another --prefix, or a --pattern without it"),
    )
    return f.when(copy.rlike(f"^(?:{selected})$"), f.raise_error(told)).otherwise(copy)


MIRROR: Final = Job(
    "mirror",
    "Copy topics into another cluster, each message once, and go on where it was.",
    MirrorOptions,
    mirror,
    notes="""\b
Examples:
  magnetar pipeline mirror flights --to-service-url pulsar://10.1.0.1:6650 \\
      --checkpoint /var/lib/magnetar/mirror-flights --follow
  magnetar pipeline mirror --pattern 'persistent://public/default/.*' --prefix copy- \\
      --to-service-url pulsar://10.1.0.1:6650 --checkpoint /var/lib/magnetar/mirror --rate 5000""",
)
