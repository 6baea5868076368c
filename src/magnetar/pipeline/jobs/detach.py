"""The job ``detach``: topics have no table any more; retention alone says again what bookies keep.

Messages that are in the table only leave the topic with it, for every consumer. So that is done
with ``yes`` alone: it is for tables that are gone for good, or are not to be served any more. The
table itself is not touched, and need not be reached.

Why: docs/adr/0153-jobs-tell-brokers-what-fails.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from typing import Final

from magnetar.log.seam import StoredAt
from magnetar.model.errors import BrokerError, ConfigError
from magnetar.model.url_secrets import without_passwords
from magnetar.pipeline.brokers.log_watch import LogWatch, job_watch
from magnetar.pipeline.jobs.context import JobContext
from magnetar.pipeline.jobs.job import (
    Job,
    OptionKind,
    Report,
    argument,
    option,
    service_url_option,
)
from magnetar.pipeline.topic_names import full_topic
from magnetar.wire.pulsar.pulsar_pb2 import LogQuestion, LogTable


@dataclass(frozen=True)
class DetachOptions:
    """Which topics."""

    topics: tuple[str, ...] = argument("Topics, with all their partitions.")
    service_url: str = service_url_option()
    yes: bool = option(
        "Give up what is in the table only: no consumer gets it any more.", default=False
    )
    timeout: int = option(
        "How long a broker may take to answer.", default=60_000, kind=OptionKind.DURATION_MS
    )


@dataclass
class Detached:
    """A topic partition. ``ledgers``, ``entries``, ``messages``, ``stored_bytes``: that are in its
    table only, from ``first_ledger_id`` to ``last_ledger_id``. ``table``: where it is; empty: the
    partition has none. ``error``: why it could not be detached, after what is lost was given up,
    perhaps."""

    topic: str
    table: str = ""
    detached: bool = False
    ledgers: int = 0
    entries: int = 0
    messages: int = 0
    stored_bytes: int = 0
    first_ledger_id: int = -1
    last_ledger_id: int = -1
    error: str = ""


@dataclass
class DetachReport(Report):
    """``refused``: something would be lost, and ``yes`` was not said; then nothing was done."""

    partitions: list[Detached] = field(default_factory=list)
    refused: bool = False

    @property
    def ok(self) -> bool:
        return not self.refused and not any(each.error for each in self.partitions)

    def lines(self) -> Iterator[str]:
        for each in self.partitions:
            if not each.table:
                yield f"{each.topic}: it has no table"
                continue
            yield f"{each.topic}: {'detached from' if each.detached else 'has'} {each.table}"
            if each.ledgers:
                yield (
                    f"  {'LOST' if each.detached else 'would be LOST'}: {each.messages:,} messages "
                    f"of {each.entries:,} entries ({each.stored_bytes:,} bytes): {each.ledgers:,} "
                    f"ledgers, {each.first_ledger_id} to {each.last_ledger_id}, are in the table "
                    "only"
                )
            if each.error:
                yield f"  FAILED: {each.error}; run it again"
        if self.refused:
            yield "NOTHING was done: say --yes to give up what is in the table only"


def detach(options: DetachOptions, context: JobContext) -> DetachReport:
    """Raises ``BrokerError``."""
    if not options.topics:
        raise ConfigError("name topics")
    timeout_s = options.timeout / 1000
    report = DetachReport()
    with closing(job_watch(options.service_url, timeout_s)) as logs:
        logs.wait_for_broker()
        for topic in options.topics:
            for partition in logs.partitions(full_topic(topic)):
                report.partitions.append(_look(logs, partition))
        lossy = any(each.ledgers for each in report.partitions)
        report.refused = lossy and not options.yes
        if report.refused or context.dry_run:
            return report
        for done, each in enumerate(report.partitions, 1):
            if each.table:
                try:
                    _detach(logs, each)
                except BrokerError as error:  # others may be detached by now: that is to be told
                    each.error = str(error)
            context.progress(done, len(report.partitions), "partitions")
    return report


def _look(logs: LogWatch, partition: str) -> Detached:
    answer = logs.ask(partition, LogQuestion(ledgers=True))
    found = Detached(partition, without_passwords(answer.table))
    only = [each for each in answer.ledgers if each.stored == StoredAt.TABLE]
    if only:
        found.ledgers = len(only)
        found.entries = sum(each.entries for each in only)
        found.messages = sum(each.messages for each in only)
        found.stored_bytes = sum(each.stored_bytes for each in only)
        found.first_ledger_id, found.last_ledger_id = only[0].ledger_id, only[-1].ledger_id
    return found


def _detach(logs: LogWatch, each: Detached) -> None:
    """What is given up leaves the log first: a log is never without a table that its record says
    ledgers are in. A job that ends in between is run again."""
    if each.ledgers:
        gone = LogTable(where=each.table, gone_ledger_id=each.last_ledger_id, lost=True)
        logs.ask(each.topic, LogQuestion(table=gone))
    logs.ask(each.topic, LogQuestion(table=LogTable(where=each.table, detach=True)))
    each.detached = True


DETACH: Final = Job(
    "detach",
    "Let topics have no table any more; with --yes also what is in the table only.",
    DetachOptions,
    detach,
    notes="""Without --yes nothing is done where something would be lost, the exit code is 1, and
the report says what.

\\b
Examples:
  magnetar pipeline detach flights --dry-run
  magnetar pipeline detach flights --yes""",
)
