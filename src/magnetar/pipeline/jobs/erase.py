"""The job ``erase``: messages of a key go from topics' tables, files and snapshots included.

Topics that have no table are said before anything is erased. One that fails is in the report, and
keeps no other back.

What bookies still have of them is not touched: it goes when retention lets it go, and the report
says how much of each log that is. Nor is what compaction has left of a topic: there the message is
gone when the key is deleted by a tombstone, and the topic is compacted again.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from magnetar.model.errors import ConfigError, JobError, MagnetarError
from magnetar.pipeline.jobs.context import JobContext
from magnetar.pipeline.jobs.job import Job, Report, argument, option, service_url_option
from magnetar.pipeline.jobs.table import (
    catalog_of,
    catalog_option,
    catalog_properties_option,
    warehouse_option,
)

if TYPE_CHECKING:
    from magnetar.pipeline.tables.erasing import Erased
    from magnetar.pipeline.tables.taking import Taking, TopicTaken


@dataclass(frozen=True)
class EraseOptions:
    """Whose messages, of which topics."""

    topics: tuple[str, ...] = argument("Topics that have tables.")
    key: str = option("Messages with this key.")
    service_url: str = service_url_option()
    warehouse: str = warehouse_option()
    catalog: str | None = catalog_option()
    catalog_property: tuple[str, ...] = catalog_properties_option()


@dataclass
class EraseReport(Report):
    """By topic. ``ledgers_elsewhere``: that bookies have, too, or that are not in the table yet.
    ``compacted``: partitions of which compaction has left something. ``errors``: of topics that
    failed; with a line in ``topics`` they are erased from, and what came after that failed."""

    topics: dict[str, Erased] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)
    ledgers_elsewhere: dict[str, int] = field(default_factory=dict)
    compacted: dict[str, list[str]] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        left = any(each.left or each.named for each in self.topics.values())
        return not (left or any(self.compacted.values()) or self.errors)

    def lines(self) -> Iterator[str]:
        for topic, each in self.topics.items():
            count = f"{each.messages:,} messages of {each.entries:,} entries"
            if self.dry_run:
                yield f"{topic}: {count} would be erased"
            else:
                yield (
                    f"{topic}: {count} erased; {each.kept.snapshots_expired:,} snapshots and "
                    f"{each.kept.files_removed:,} files are gone"
                )
            if each.left:
                yield (
                    f"  NOT erased: {each.left:,} entries of the side table hold messages of other "
                    "keys, too, and cannot be taken apart"
                )
            if each.named:
                yield (
                    "  NOT erased from snapshots that tags or branches keep "
                    f"({', '.join(each.named)}): drop these, and run it again"
                )
            if self.compacted.get(topic):
                yield (
                    f"  NOT erased from what compaction has left of {len(self.compacted[topic]):,} "
                    "partitions: publish a message without a value for the key, and compact them"
                )
            if self.ledgers_elsewhere.get(topic):
                yield (
                    f"  {self.ledgers_elsewhere[topic]:,} ledgers of the topic are at the bookies "
                    "as well; what they hold of the key goes with them"
                )
        for topic, error in self.errors.items():
            yield f"{topic}: FAILED: {error}"


def erase(options: EraseOptions, context: JobContext) -> EraseReport:
    """See the module's text."""
    given = options.warehouse, options.catalog, options.catalog_property
    catalog = catalog_of(*given, make=False)
    from magnetar.pipeline.tables.taking import Taking, TakingOptions

    report = EraseReport()
    with closing(Taking(TakingOptions(options.service_url, catalog))) as taking:
        taking.wait_for_broker()
        looked = taking.look(taking.topics(options.topics))
        without = [each.topic for each in looked if not _has_table(taking, each)]
        if without:
            raise ConfigError(
                f"{', '.join(without)}: no table in {options.warehouse}; nothing was erased"
            )
        for done, status in enumerate(looked, 1):
            try:
                _erase_topic(options, context, taking, status, report)
            except MagnetarError as error:
                report.errors[status.topic] = str(error)
            context.progress(done, len(looked), "topics")
    return report


def _has_table(taking: Taking, status: TopicTaken) -> bool:
    """Also when nobody can tell: then the topic fails, and says why."""
    try:
        return taking.table(status.topic).look()
    except MagnetarError:
        return True


def _erase_topic(
    options: EraseOptions,
    context: JobContext,
    taking: Taking,
    status: TopicTaken,
    report: EraseReport,
) -> None:
    from magnetar.pipeline.tables.erasing import erase as erase_from

    table = taking.table(status.topic)
    table.look()
    if status.errors:
        raise JobError("; ".join(status.errors))
    report.topics[status.topic] = erase_from(table, options.key, dry_run=context.dry_run)
    there = status.in_table - status.only_in_table
    report.ledgers_elsewhere[status.topic] = there + status.waiting_ledgers + status.open_ledgers
    if not context.dry_run:
        taking.tell_rewritten(status.topic)
    report.compacted[status.topic] = taking.compacted(status.topic)


ERASE: Final = Job(
    "erase",
    "Erase the messages of a key from topics' tables.",
    EraseOptions,
    erase,
    notes="\b\nExample:\n  magnetar pipeline erase flights --key AA42 --warehouse /data/tables",
)
