"""The job ``compact``: of each key of a topic its last message, found on Spark.

A broker compacts by itself (REST: ``PUT .../compaction``), in one process, with all keys in memory.
For large topics this job does the same on as many cores as there are, and the broker that owns the
topic takes over what it has left, as the same second view. A partition that fails is in the report
and keeps no other back.

Why: docs/adr/0147-compaction-by-another-process.md.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from typing import Final

from magnetar.model.errors import ConfigError, MagnetarError
from magnetar.pipeline.brokers.log_watch import job_watch
from magnetar.pipeline.jobs.compact_planning import TopicCompacted
from magnetar.pipeline.jobs.context import JobContext
from magnetar.pipeline.jobs.job import (
    Job,
    OptionKind,
    argument,
    option,
    service_url_option,
)
from magnetar.pipeline.jobs.passing_over import LossyReport, loss_option
from magnetar.pipeline.topic_names import full_topic


@dataclass(frozen=True)
class CompactOptions:
    """Which topics."""

    topics: tuple[str, ...] = argument("Topics, with all their partitions.")
    service_url: str = service_url_option()
    hold: int = option(
        "How long a topic is held against trimming when the job has died.",
        default=60_000,
        kind=OptionKind.DURATION_MS,
    )
    fail_on_data_loss: bool = loss_option()
    timeout: int = option(
        "How long a broker may take to answer.", default=60_000, kind=OptionKind.DURATION_MS
    )


@dataclass
class CompactReport(LossyReport):
    """A line for each partition. A key whose last message was passed over has the one before it,
    if there is one."""

    topics: list[TopicCompacted] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return super().ok and not any(each.error for each in self.topics)

    def lines(self) -> Iterator[str]:
        yield from self.loss_lines()
        for each in self.topics:
            read = f"{each.entries_read:,} entries ({each.bytes_read:,} bytes)"
            if each.error:
                yield f"{each.topic}: FAILED: {each.error}"
            elif each.horizon <= each.compacted_before:
                yield f"{each.topic}: nothing came since it was compacted"
            elif self.dry_run:
                yield f"{each.topic}: {read} of {each.ledgers:,} ledgers would be read, twice"
            else:
                yield (
                    f"{each.topic}: of {read} {each.entries:,} ({each.stored_bytes:,} bytes) are "
                    f"left, in {each.seconds:g} s"
                )


def compact(options: CompactOptions, context: JobContext) -> CompactReport:
    """Raises ``BrokerError``, ``TopicNotFoundError``."""
    if not options.topics:
        raise ConfigError("name topics")
    from magnetar.pipeline.jobs.compact_running import TopicCompaction

    timeout_s = options.timeout / 1000
    report = CompactReport()
    with closing(job_watch(options.service_url, timeout_s)) as watch:
        watch.wait_for_broker()
        names = [name for topic in options.topics for name in watch.partitions(full_topic(topic))]
    for number, name in enumerate(dict.fromkeys(names)):
        done = TopicCompacted(name)
        report.topics.append(done)
        begun_s = time.monotonic()
        try:
            passes = None if options.fail_on_data_loss else report.pass_over
            told = options.service_url, timeout_s, name, options.hold, done, passes
            TopicCompaction(*told).run(context)
        except MagnetarError as error:
            if isinstance(error, ConfigError) and not (context.dry_run or context.has_session):
                raise  # Spark does not start, for no partition
            done.error = str(error)
        done.seconds = round(time.monotonic() - begun_s, 3)
        context.progress(number + 1, len(names), "partitions")
    return report


COMPACT: Final = Job(
    "compact",
    "Keep of each key of topics its last message, as a second view of them.",
    CompactOptions,
    compact,
    notes=(
        "Consumers, readers and table views that ask for it (readCompacted) are served what is\n"
        "left; the topic itself stays as it is.\n\n"
        "\b\nExamples:\n"
        "  magnetar pipeline compact balances --dry-run\n"
        "  magnetar pipeline compact balances --master spark://10.0.0.1:7077 --progress lines"
    ),
)
