"""The job ``erase``: messages of a key go from topics' tables, files and snapshots included.

What bookies still have of them is not touched: it goes when retention lets it go, and the report
says how much of each log that is. Nor is what compaction has left of a topic: there the message is
gone when the key is deleted by a tombstone, and the topic is compacted again.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from magnetar.model.errors import ConfigError
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
    ``compacted``: partitions of which compaction has left something."""

    topics: dict[str, Erased] = field(default_factory=dict)
    ledgers_elsewhere: dict[str, int] = field(default_factory=dict)
    compacted: dict[str, list[str]] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        return not any(each.left for each in self.topics.values()) and not any(
            self.compacted.values()
        )

    def lines(self) -> Iterator[str]:
        for topic, each in self.topics.items():
            yield (
                f"{topic}: {each.messages:,} messages of {each.entries:,} entries erased; "
                f"{each.kept.snapshots_expired:,} snapshots and {each.kept.files_removed:,} files "
                "are gone"
            )
            if each.left:
                yield (
                    f"  NOT erased: {each.left:,} entries of the side table hold messages of other "
                    "keys, too, and cannot be taken apart"
                )
            if self.compacted[topic]:
                yield (
                    f"  NOT erased from what compaction has left of {len(self.compacted[topic]):,} "
                    "partitions: publish a message without a value for the key, and compact them"
                )
            if self.ledgers_elsewhere[topic]:
                yield (
                    f"  {self.ledgers_elsewhere[topic]:,} ledgers of the topic are at the bookies "
                    "as well; what they hold of the key goes with them"
                )


def erase(options: EraseOptions, context: JobContext) -> EraseReport:
    """See the module's text."""
    catalog = catalog_of(options.warehouse, options.catalog, options.catalog_property)
    from magnetar.pipeline.tables.erasing import erase as erase_from
    from magnetar.pipeline.tables.taking import Taking, TakingOptions

    report = EraseReport()
    with closing(Taking(TakingOptions(options.service_url, catalog))) as taking:
        taking.wait_for_broker()
        looked = taking.look(taking.topics(options.topics))
        for done, status in enumerate(looked, 1):
            found = taking.table(status.topic)
            if not found.look():
                raise ConfigError(f"{status.topic} has no table in {options.warehouse}")
            if status.errors:
                raise ConfigError("; ".join(status.errors))
            report.topics[status.topic] = erase_from(found, options.key, dry_run=context.dry_run)
            if not context.dry_run:
                taking.tell_rewritten(status.topic)
            report.compacted[status.topic] = taking.compacted(status.topic)
            there = status.in_table - status.only_in_table
            report.ledgers_elsewhere[status.topic] = (
                there + status.waiting_ledgers + status.open_ledgers
            )
            context.progress(done, len(looked), "topics")
    return report


ERASE: Final = Job(
    "erase",
    "Erase the messages of a key from topics' tables.",
    EraseOptions,
    erase,
    notes="\b\nExample:\n  magnetar pipeline erase flights --key AA42 --warehouse /data/tables",
)
