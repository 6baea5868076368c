"""The job ``table``: topics become Iceberg tables that every engine reads, ledger by ledger.

``pipeline.tables`` does the work; here is what it is asked and what it says. A topic that fails is
in the report and keeps no other back; the job may be killed at any moment and started again.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from magnetar.model.errors import BrokerError, ConfigError, MagnetarError
from magnetar.model.url_secrets import without_passwords
from magnetar.pipeline.brokers.connection import worth_another_try
from magnetar.pipeline.jobs.context import JobContext
from magnetar.pipeline.jobs.job import (
    Job,
    OptionKind,
    argument,
    option,
    service_url_option,
)
from magnetar.pipeline.jobs.passing_over import LossyReport, PassedOver, loss_option
from magnetar.pipeline.loss_reports import warn

if TYPE_CHECKING:
    from magnetar.pipeline.tables.ledger_writing import LedgerTask
    from magnetar.pipeline.tables.taking import Catalog, Taking, TopicTaken
    from magnetar.pipeline.tables.topic_table import WrittenLedger
    from magnetar.pipeline.tables.upkeep import TableUpkeep

CATALOG: Final = "magnetar"
"""Name of the catalog, for pyiceberg's own settings (``PYICEBERG_CATALOG__MAGNETAR__...``)."""
CATALOG_FILE: Final = "catalog.db"
NO_CATALOG: Final = "sqlite:///:memory:"


def warehouse_option() -> str:
    found: str = option(
        "Where the tables' files are: a folder, or s3://BUCKET/PATH. Needed.",
        default="",
        environment="MAGNETAR_WAREHOUSE",
    )
    return found


def catalog_option() -> str | None:
    found: str | None = option(
        "Iceberg's catalog: an http(s) URL (REST), or what SQLAlchemy takes (sqlite:///FILE). "
        "[default: catalog.db in a warehouse that is a folder]",
        default=None,
        environment="MAGNETAR_CATALOG",
    )
    return found


def catalog_properties_option() -> tuple[str, ...]:
    found: tuple[str, ...] = option(
        "A property of the catalog as NAME=VALUE, no secret; repeatable.", default=()
    )
    return found


@dataclass(frozen=True)
class TableOptions:
    """Which topics, into which tables."""

    topics: tuple[str, ...] = argument("Topics, with all their partitions.", default=())
    namespace: tuple[str, ...] = option("All topics of TENANT/NAMESPACE; repeatable.", default=())
    service_url: str = service_url_option()
    warehouse: str = warehouse_option()
    catalog: str | None = catalog_option()
    catalog_property: tuple[str, ...] = catalog_properties_option()
    partition_by: str = option(
        "By which span of publish times new tables are partitioned.",
        default="day",
        choices=("hour", "day", "month", "none"),
    )
    untyped: bool = option("Payloads as bytes only, also where there is a schema.", default=False)
    keep_ledgers: int | None = option(
        "How long what is in the table stays at the bookies, too. [default: as retention says]",
        default=None,
        kind=OptionKind.DURATION_MS,
    )
    keep_ledger_bytes: int | None = option(
        "How much of a partition that is in the table stays at the bookies, too.",
        default=None,
        kind=OptionKind.BYTES,
    )
    continuous: bool = option("Go on, until it is interrupted.", default=False)
    pause: int = option(
        "Between two looks for closed ledgers.", default=10_000, kind=OptionKind.DURATION_MS
    )
    expire: int = option(
        "Snapshots older than this go, with files that only they name.",
        default=5 * 24 * 3_600_000,
        kind=OptionKind.DURATION_MS,
    )
    spark: bool = option(
        "Ledgers are written by tasks on Spark, not in this process.", default=False
    )
    status: bool = option("Only say what is in the tables and what is not yet.", default=False)
    fail_on_data_loss: bool = loss_option()
    timeout: int = option(
        "How long a broker may take to answer.", default=60_000, kind=OptionKind.DURATION_MS
    )


@dataclass
class TableReport(LossyReport):
    """A line for each topic, and what upkeep did to its table. Entries that were passed over are in
    no table; its side table says so, too."""

    topics: list[TopicTaken] = field(default_factory=list)
    upkeep: dict[str, TableUpkeep] = field(default_factory=dict)
    rounds: int = 0

    @property
    def ok(self) -> bool:
        return super().ok and not any(each.errors for each in self.topics)

    def lines(self) -> Iterator[str]:
        yield from self.loss_lines()
        for each in self.topics:
            yield (
                f"{each.topic} -> {each.table}: {each.ledgers:,} ledgers taken "
                f"({each.stored_bytes:,} bytes, {each.rows:,} rows, {each.unfit:,} set aside); "
                f"in the table {each.in_table:,}, of which {each.only_in_table:,} are only there"
            )
            yield (
                f"  waiting: {each.waiting_ledgers:,} closed ledgers ({each.waiting_bytes:,} bytes)"
                f"; still open: {each.open_ledgers:,} ({each.open_bytes:,} bytes)"
            )
            for error in dict.fromkeys(each.errors):
                yield f"  FAILED: {error}"


def catalog_of(
    warehouse: str, catalog: str | None, properties: Sequence[str], *, make: bool = True
) -> Catalog:
    """``make``: where there is none yet, also the one that is kept in the warehouse; else one
    without tables takes its place. Raises ``ConfigError``."""
    try:
        from magnetar.pipeline.tables.taking import Catalog
    except ImportError as error:
        raise ConfigError(
            f"tables need parts that are not installed here ({error}): pip install "
            "'magnetar[tables]'"
        ) from error
    if not warehouse:
        raise ConfigError("say with --warehouse where the tables' files are")
    odd = [mark for mark in "#?" if mark in warehouse]
    if odd:  # places of files are read as URLs: all that follows would be cut off
        raise ConfigError(
            f"--warehouse {warehouse!r} has {odd[0]!r} in it, behind which engines that read "
            "Iceberg do not find files; choose a path without"
        )
    there = "://" in warehouse
    folder = warehouse if there else Path(warehouse).absolute().as_posix()
    if catalog is None:
        if there and not warehouse.startswith("file://"):
            raise ConfigError(
                f"a catalog cannot be kept in {warehouse}: name one with --catalog, as "
                "sqlite:///FILE or the URL of a REST catalog"
            )
        path = Path(folder.removeprefix("file://"))
        if make:
            path.mkdir(parents=True, exist_ok=True)
        there_is = make or (path / CATALOG_FILE).is_file()
        catalog = f"sqlite:///{path}/{CATALOG_FILE}" if there_is else NO_CATALOG
    rest = catalog.startswith(("http://", "https://"))
    told: dict[str, str] = {"type": "rest" if rest else "sql", "uri": catalog}
    told["warehouse"] = folder if there else f"file://{folder}"
    told |= _pairs(properties)
    _check_secrets(told)
    return Catalog(CATALOG, told)


def _check_secrets(told: Mapping[str, str]) -> None:
    """Raises ``ConfigError`` for a password in an address, which it does not say."""
    for name, value in told.items():
        if without_passwords(value) != value:
            where = "--catalog" if name == "uri" else f"--catalog-property {name}"
            variable = f"PYICEBERG_CATALOG__{CATALOG.upper()}__{name.upper().replace('.', '__')}"
            raise ConfigError(
                f"{where} {without_passwords(value)} was given with a password, which all who may "
                "read the topic would see; give it without, and set "
                f"{variable.replace('-', '_')} to the whole in the environment of the job, of "
                "brokers and of executors"
            )


def _pairs(texts: Sequence[str]) -> dict[str, str]:
    pairs = [text.partition("=") for text in texts]
    for name, mark, _ in pairs:
        if not name or not mark:
            raise ConfigError(f"--catalog-property {name!r} must be NAME=VALUE")
    return {name: value for name, _, value in pairs}


def table(options: TableOptions, context: JobContext) -> TableReport:
    """See the module's text."""
    makes = not (options.status or context.dry_run)
    given = options.warehouse, options.catalog, options.catalog_property
    catalog = catalog_of(*given, make=makes)
    from magnetar.pipeline.tables.taking import Taking, TakingOptions

    if not options.topics and not options.namespace:
        raise ConfigError("name topics, or a --namespace")

    def on_spark(tasks: Sequence[LedgerTask]) -> list[WrittenLedger]:
        from magnetar.pipeline.tables.ledger_writing import write_ledger

        return context.spread("ledgers of a round", tasks, write_ledger)

    def here(tasks: Sequence[LedgerTask]) -> list[WrittenLedger]:
        from magnetar.pipeline.tables.ledger_writing import write_ledger

        written = []
        for number, task in enumerate(tasks, 1):
            written.append(write_ledger(task))
            context.progress(number, len(tasks), "ledgers of a round")
        return written

    report = TableReport()
    taking = Taking(
        TakingOptions(
            options.service_url,
            catalog,
            options.partition_by,
            not options.untyped,
            options.keep_ledgers,
            options.keep_ledger_bytes,
            options.timeout / 1000,
            not options.fail_on_data_loss,
        ),
        on_spark if options.spark else here,
        lambda partition, ledger: _pass_over(report, partition, ledger),
        lambda partition, why: report.pass_over(PassedOver(partition, why=why)),
    )
    with closing(taking):
        _rounds(options, context, taking, report)
    return report


def _pass_over(report: TableReport, partition: str, ledger: WrittenLedger) -> None:
    """``lost_messages`` of a ledger are told with the first of its losses."""
    messages = ledger.lost_messages
    for each in ledger.lost:
        count = each.last - each.first + 1
        place = each.ledger_id, each.first, each.last
        report.pass_over(PassedOver(partition, *place, count, messages, each.why))
        messages = 0


def _rounds(
    options: TableOptions, context: JobContext, taking: Taking, report: TableReport
) -> None:
    while not _reached(options, taking):
        time.sleep(options.pause / 1000)
    if options.status or context.dry_run:
        topics = taking.topics(options.topics, options.namespace)
        report.topics = taking.look(topics)
        context.progress(len(topics), len(topics), "topics")
        return
    while True:
        try:
            topics = taking.topics(options.topics, options.namespace)
        except BrokerError as error:
            # In the first round a namespace may be misspelt; later brokers are away for long.
            if not (options.continuous and report.rounds and worth_another_try(error)):
                raise
            warn(f"{error}; its topics are asked for again")
            time.sleep(options.pause / 1000)
            continue
        _merge(report, taking.take(topics))
        report.rounds += 1
        _keep_up(options, taking, report)
        lag = sum(each.waiting_ledgers for each in report.topics)
        taken = sum(each.ledgers for each in report.topics)
        context.progress(taken, taken + lag, "ledgers")
        if not options.continuous:
            return
        time.sleep(options.pause / 1000)


def _reached(options: TableOptions, taking: Taking) -> bool:
    """Whether a broker answers. One that only goes on until it is interrupted is not ended by
    brokers that are away for long; it says each time that it waits."""
    try:
        taking.wait_for_broker()
    except BrokerError as error:
        if not options.continuous or options.status or not worth_another_try(error):
            raise
        warn(f"{error}; it is waited for again")
        return False
    return True


_SUMS: Final = (
    "ledgers", "stored_bytes", "file_bytes", "rows", "unfit", "lost_entries", "lost_messages",
)  # fmt: skip


def _merge(report: TableReport, now: list[TopicTaken]) -> None:
    """What was done counts from the begin; how things are, of now."""
    before = {each.topic: each for each in report.topics}
    for each in now:
        former = before.get(each.topic)
        if former is not None:
            for name in _SUMS:
                setattr(each, name, getattr(each, name) + getattr(former, name))
    report.topics = now


def _keep_up(options: TableOptions, taking: Taking, report: TableReport) -> None:
    """Upkeep of each table in which something was done; what fails is tried in the next round."""
    from magnetar.pipeline.tables.upkeep import keep_up

    now_ms = time.time_ns() // 10**6
    for each in report.topics:
        try:
            kept = keep_up(taking.table(each.topic), now_ms, options.expire)
        except MagnetarError as error:
            each.errors.append(f"upkeep of its table: {error}")
            taking.tell_problem(each.topic, each.errors[-1])
        else:
            report.upkeep[each.topic] = kept


TABLE: Final = Job(
    "table",
    "Make tables of topics, which Spark, DuckDB and others read.",
    TableOptions,
    table,
    notes=(
        "\b\nExamples:\n"
        "  magnetar pipeline table flights --warehouse /data/tables\n"
        "  magnetar pipeline table flights --warehouse /data/tables --continuous\n"
        "  magnetar pipeline table flights --warehouse /data/tables --status --json"
    ),
)
