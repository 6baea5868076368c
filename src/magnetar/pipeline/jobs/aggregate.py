"""The job ``aggregate``: windows over a topic, declared in a file, written into another topic.

    [source]
    topic = "flights"
    values = "schema"          # or "json" with columns = "carrier string, delay int"
    time = "event_time"        # which column, or expression, says when; a timestamp
    where = "value.delay > 0"  # optional

    [window]
    size = "5 minutes"
    slide = "1 minute"         # optional: windows that overlap
    late = "10 minutes"        # how late a message may come

    [group]
    carrier = "value.carrier"  # optional; the first is the key of the results

    [aggregates]
    flights = "count(*)"
    delay = "avg(value.delay)"

    [sink]
    topic = "delays"

A result is one message per window and group, in JSON, with ``window_start`` and ``window_end``, its
event time the window's end. It is written when the window is over by ``late``, exactly once.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
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
from magnetar.pipeline.jobs.destinations import is_one_log
from magnetar.pipeline.jobs.job import Job, argument, option, service_url_option
from magnetar.pipeline.jobs.passing_over import LossyReport, loss_option
from magnetar.pipeline.topic_names import full_topic

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SECTIONS: Final[Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]]] = {
    "source": (("topic", "time"), ("values", "columns", "where")),
    "window": (("size", "late"), ("slide",)),
    "sink": (("topic",), ()),
}
"""What each must have, and may have. ``group`` and ``aggregates`` have names of the user's."""
VALUES: Final = ("schema", "json", "bytes")
WITHOUT_TIME: Final = "without_time"
OF_WINDOWS: Final = ("window", "window_start", "window_end")
"""Names that results have already."""
SAMPLE_MAX: Final = 20


@dataclass(frozen=True)
class AggregateOptions:
    """``declared``: the file."""

    declared: str = argument("The file that declares source, window, aggregates and sink.")
    service_url: str = service_url_option()
    to_service_url: str | None = option(
        "Where the results go, if that is another cluster.", default=None
    )
    checkpoint: str = checkpoint_option()
    rate: int = rate_option()
    follow: bool = follow_option()
    fail_on_data_loss: bool = loss_option()


@dataclass
class AggregateReport(LossyReport):
    """``without_time``: messages whose time is null, which are in no window. ``late``: that came
    too late for theirs; those of one window and group that are read together count once.
    ``sample``: of a run that only tries, some results as they would be."""

    read: int = 0
    without_time: int = 0
    late: int = 0
    batches: int = 0
    sample: list[str] = field(default_factory=list)

    def lines(self) -> Iterator[str]:
        yield from self.sample
        yield from self.loss_lines()
        if self.dry_run:
            yield f"{len(self.sample):,} results that there would be by now, {SAMPLE_MAX} at most"
            return
        yield f"{self.read:,} messages read, in {self.batches:,} micro-batches"
        if self.without_time:
            yield f"{self.without_time:,} of them have no time, and are in no window"
        if self.late:
            yield f"at least {self.late:,} of them came too late, and are in no window"


@dataclass(frozen=True)
class Declared:
    """A file that was read and checked."""

    source: Mapping[str, str]
    window: Mapping[str, str]
    group: Mapping[str, str]
    aggregates: Mapping[str, str]
    sink: Mapping[str, str]


def declared(text: str, where: str) -> Declared:
    """Raises ``ConfigError``, which names the section and the setting."""
    try:
        told: dict[str, Any] = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{where} is no TOML: {error}") from error
    known = {*SECTIONS, "group", "aggregates"}
    for name, section in told.items():
        if not isinstance(section, dict):
            raise ConfigError(f"{where}: {name!r} stands in no section")
        if name not in known:
            raise ConfigError(f"{where}: there is no section [{name}]")
        for setting, value in section.items():
            if not isinstance(value, str) or not value:
                raise ConfigError(f"{where}: [{name}] {setting} must be text, not {value!r}")
    for name, (needed, allowed) in SECTIONS.items():
        section = told.get(name, {})
        for setting in needed:
            if setting not in section:
                raise ConfigError(f"{where}: [{name}] lacks {setting}")
        for setting in section:
            if setting not in (*needed, *allowed):
                names = ", ".join((*needed, *allowed))
                raise ConfigError(f"{where}: [{name}] has no {setting}; there are {names}")
    if not told.get("aggregates"):
        raise ConfigError(f"{where}: [aggregates] lacks at least one, as flights = 'count(*)'")
    taken = list(map(str.lower, OF_WINDOWS))
    for name in (*told.get("group", ()), *told["aggregates"]):
        if name.lower() in taken:
            raise ConfigError(f"{where}: a result would have two {name!r}; choose another name")
        taken.append(name.lower())
    values = told["source"].get("values", "schema")
    if values not in VALUES:
        raise ConfigError(f"{where}: [source] values is one of {', '.join(VALUES)}, not {values!r}")
    if (values == "json") is not ("columns" in told["source"]):
        raise ConfigError(f"{where}: [source] columns goes with values = 'json', and only with it")
    return Declared(**{each.name: told.get(each.name, {}) for each in fields(Declared)})


def aggregate(options: AggregateOptions, context: JobContext) -> AggregateReport:
    """Raises ``BrokerError``, ``JobError``, ``ConfigError``."""
    from pyspark.sql import functions as f

    told = _read(Path(options.declared))
    _check_apart(options, told)
    source = {"service.url": options.service_url, "topic": told.source["topic"]}
    if told.source.get("values", "schema") == "schema":
        source["valueFormat"] = "schema"
    source |= passing(options.fail_on_data_loss)
    if context.dry_run:
        results = _results(told, read_batch(context, source))
        with context.watched("tasks that look at messages", 0):
            rows = results.limit(SAMPLE_MAX).collect()
        return AggregateReport(sample=[row["value"] for row in rows])
    check_checkpoint(options.checkpoint)
    messages = read_stream(context, source, options.rate)
    counted = write_stream(
        context,
        _results(told, messages.observe("aggregate", f.count(f.lit(1)).alias(READ))),
        {
            "service.url": options.to_service_url or options.service_url,
            "topic": told.sink["topic"],
        },
        options.checkpoint,
        "messages",
        about=_about(told),
        source=source,
        rate=options.rate,
        follow=options.follow,
    )
    found = counted.observed
    report = AggregateReport(
        read=found.get(READ, 0),
        without_time=found.get(WITHOUT_TIME, 0),
        late=counted.late,
        batches=counted.batches,
    )
    report.take_losses(counted.lost)
    return report


def _read(path: Path) -> Declared:
    if not path.is_file():
        raise ConfigError(f"{path} is not there; --help shows what such a file looks like")
    try:
        return declared(path.read_text(encoding="utf-8"), str(path))
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is no TOML: it is no text in UTF-8 ({error})") from error


def _check_apart(options: AggregateOptions, told: Declared) -> None:
    """Raises ``ConfigError``."""
    source, sink = (full_topic(each["topic"]) for each in (told.source, told.sink))
    there = options.to_service_url or options.service_url
    if source == sink and is_one_log(options.service_url, there, source):
        raise ConfigError(
            f"results would go to {sink}, where messages are read, and be counted themselves: give "
            "[sink] another topic"
        )


def _about(told: Declared) -> dict[str, str]:
    """What makes results what they are. What is read of a topic, and for how long late messages are
    waited for, may change: that counts for what comes."""
    found = {"job": "aggregate", "[sink] topic": full_topic(told.sink["topic"])}
    for section in ("window", "group", "aggregates"):
        for name, text in getattr(told, section).items():
            if (section, name) != ("window", "late"):
                found[f"[{section}] {name}"] = text
    return found


def _results(told: Declared, messages: DataFrame) -> DataFrame:
    from pyspark.sql import functions as f

    source, window = told.source, told.window
    if source.get("values") == "json":
        text = f.col("value").cast("string")
        messages = messages.withColumn("value", f.from_json(text, source["columns"]))
    if "where" in source:
        messages = messages.where(source["where"])
    timed = messages.withColumn("at", f.expr(source["time"]))
    timed = timed.observe("times", f.count_if(f.col("at").isNull()).alias(WITHOUT_TIME))
    timed = timed.withWatermark("at", window["late"])
    windows = f.window("at", window["size"], window.get("slide"))
    groups = [f.expr(text).alias(name) for name, text in told.group.items()]
    made = [f.expr(text).alias(name) for name, text in told.aggregates.items()]
    grouped = timed.groupBy(windows.alias("window"), *groups).agg(*made)
    bounds = (
        f.col("window.start").alias("window_start"),
        f.col("window.end").alias("window_end"),
    )
    value = f.to_json(f.struct(*bounds, *told.group, *told.aggregates))
    keyed = [f.col(next(iter(told.group))).cast("string").alias("key")] if told.group else []
    return grouped.select(*keyed, value.alias("value"), f.col("window.end").alias("event_time"))


AGGREGATE: Final = Job(
    "aggregate",
    "Aggregate a topic in windows, as a small file declares, into another topic.",
    AggregateOptions,
    aggregate,
    notes="""A result is written once, when its window is over and nothing late is waited for any
more. docs/jobs.md has a file as an example.

\b
Examples:
  magnetar pipeline aggregate delays.toml --dry-run
  magnetar pipeline aggregate delays.toml --checkpoint /var/lib/magnetar/delays --follow""",
)
