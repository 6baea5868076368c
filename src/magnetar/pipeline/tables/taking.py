"""Topics -> tables: each closed ledger of each partition, in order, exactly once.

What is done for a partition, and in which order: ``partition_taking``. Ledgers are written by tasks
that commit nothing (``ledger_writing``).

A job may end anywhere: whoever comes next sees what is committed, and tells what was not told. A
topic that fails keeps no other one back, and is tried again in the next round.

The catalog is the only one that decides: two jobs on one topic hinder each other, and do no harm.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from pyspark.sql.pandas.types import to_arrow_type

from magnetar.log.seam import StoredAt, TakenLedger
from magnetar.model.errors import InvalidSchemaError, MagnetarError, TableError
from magnetar.pipeline.brokers.client import BrokerClient
from magnetar.pipeline.brokers.log_watch import LogWatch
from magnetar.pipeline.loss_reports import warn
from magnetar.pipeline.losses import LedgerFacts
from magnetar.pipeline.tables.ledger_writing import LedgerTask, write_ledger
from magnetar.pipeline.tables.partition_taking import at_once, take_partition
from magnetar.pipeline.tables.taking_rules import TableCommit, TakenUpTo, made_anew
from magnetar.pipeline.tables.topic_table import TopicTable, WrittenLedger, table_name
from magnetar.pipeline.topic_names import full_topic, topic_of
from magnetar.pipeline.typed.inference import ReaderSchema
from magnetar.pipeline.typed.registry import SchemaClient
from magnetar.tables.layout import TablePlace
from magnetar.wire.pulsar.pulsar_pb2 import LogCompaction, LogQuestion, LogTable
from magnetar.wire.pulsar.pulsar_pb2 import TakenLedger as TakenMessage

Write = Callable[[Sequence[LedgerTask]], list[WrittenLedger]]


@dataclass(frozen=True)
class Catalog:
    """Where tables are: ``pyiceberg``'s name and properties of a catalog, without secrets."""

    name: str
    properties: Mapping[str, str]

    def place(self, topic: str) -> TablePlace:
        return TablePlace(self.name, self.properties, table_name(topic))


@dataclass(frozen=True)
class TakingOptions:
    """``by``: by which span of publish times a new table is partitioned. ``typed``: values become
    columns where a topic has a schema. ``kept_ms``, ``kept_bytes``: how long what is in the table
    stays at the bookies; None: as it is said already, or as retention says. ``passes_lost``:
    ledgers are taken without entries of which no sound copy is left."""

    service_url: str
    catalog: Catalog
    by: str = "day"
    typed: bool = True
    kept_ms: int | None = None
    kept_bytes: int | None = None
    timeout_s: float = 60.0
    passes_lost: bool = False


@dataclass
class TopicTaken:
    """What was done for a topic, and what is left. ``waiting``: closed ledgers that are not in the
    table; ``open_bytes``: of ledgers that are still written."""

    topic: str
    table: str = ""
    ledgers: int = 0
    stored_bytes: int = 0
    file_bytes: int = 0
    rows: int = 0
    unfit: int = 0
    waiting_ledgers: int = 0
    waiting_bytes: int = 0
    open_ledgers: int = 0
    open_bytes: int = 0
    in_table: int = 0
    only_in_table: int = 0
    lost_entries: int = 0
    lost_messages: int = 0
    errors: list[str] = field(default_factory=list)


def write_here(tasks: Sequence[LedgerTask]) -> list[WrittenLedger]:
    """One after the other, in this process."""
    return [write_ledger(task) for task in tasks]


class Taking:
    """Takes topics into tables. Close it, or use ``contextlib.closing``."""

    def __init__(
        self,
        options: TakingOptions,
        write: Write = write_here,
        lost: Callable[[str, WrittenLedger], None] = lambda partition, ledger: None,
        gone: Callable[[str, str], None] = lambda partition, why: None,
    ) -> None:
        """``lost``: hears of each ledger that was taken without some of its entries; ``gone``: why
        what was not taken of a partition never will be."""
        self._lost = lost
        self._gone = gone
        self._options = options
        self._write = write
        self._client = BrokerClient(options.service_url, options.timeout_s)
        self._watch = LogWatch(self._client, options.timeout_s)
        self._watch.be_patient()
        self._told_well: set[str] = set()

    def wait_for_broker(self) -> None:
        """Once, and not for each topic anew. Raises ``BrokerError``."""
        self._watch.wait_for_broker()

    def topics(self, names: Sequence[str], namespaces: Sequence[str] = ()) -> list[str]:
        """The full names of the topics, and of all those in the namespaces, without partitions."""
        found = [full_topic(name) for name in names]
        for namespace in namespaces:
            found += [topic_of(name) for name in self._watch.topics(namespace)]
        return sorted(dict.fromkeys(found))

    def take(
        self, topics: Sequence[str], *, stop: Callable[[], bool] = lambda: False
    ) -> list[TopicTaken]:
        """Every closed ledger that is there now; one topic after the other."""
        return [self._take_topic(topic, stop) for topic in topics]

    def look(self, topics: Sequence[str]) -> list[TopicTaken]:
        """What there is to do, and nothing else."""
        return [self._look(topic) for topic in topics]

    def tell_rewritten(self, topic: str) -> None:
        """Brokers are to serve nothing from memory that was erased. Raises ``BrokerError``."""
        name = self._options.catalog.place(topic).table
        for partition in self._watch.partitions(topic):
            where = self._watch.ask(partition).table
            if where and TablePlace.from_text(where).table == name:
                told = LogTable(where=where, rewritten=True)
                self._watch.ask(partition, LogQuestion(table=told))

    def tell_problem(self, topic: str, problem: str) -> None:
        """The topic's brokers say it to operators (``/health``); empty: there is none any more.
        What they cannot be told, as they are what fails, the report says."""
        place = self._options.catalog.place(topic)
        told = LogTable(where=place.to_text(), problem=problem)
        try:
            for partition in self._watch.partitions(topic):
                if problem:
                    self._told_well.discard(partition)
                elif partition in self._told_well:
                    continue
                self._watch.ask(partition, LogQuestion(table=told), patient=False)
                if not problem:
                    self._told_well.add(partition)
        except MagnetarError as error:
            if problem:
                warn(f"{topic}: its broker cannot be told that its table is not filled: {error}")

    def compacted(self, topic: str) -> list[str]:
        """The partitions of which compaction has left something. Raises ``BrokerError``."""
        question = LogQuestion(compaction=LogCompaction(holder=""))
        return [
            partition
            for partition in self._watch.partitions(topic)
            if (left := self._watch.ask(partition, question).compacted) is not None and left.entries
        ]

    def table(self, topic: str) -> TopicTable:
        """The topic's table, if it is there."""
        return TopicTable(self._options.catalog.place(topic), topic)

    def close(self) -> None:
        self._watch.close()

    # -- one topic ------------------------------------------------------------------------------

    def _take_topic(self, topic: str, stop: Callable[[], bool]) -> TopicTaken:
        place = self._options.catalog.place(topic)
        done = TopicTaken(topic, place.table)
        try:
            table = TopicTable(place, topic)
            partitions = self._watch.partitions(topic)
            if partitions == [topic]:  # a name that is misspelt is to leave no table behind
                self._watch.ask(topic)
            if not table.look():
                self._check_needed(place, partitions)
            reader = self._prepare(table, topic)
            for partition in partitions:
                try:
                    self._take_partition(table, partition, reader, done, stop)
                except MagnetarError as error:
                    done.errors.append(str(error))
        except MagnetarError as error:
            done.errors.append(str(error))
        self.tell_problem(topic, "; ".join(done.errors))
        self._count(topic, done)
        return done

    def _check_needed(self, place: TablePlace, partitions: Sequence[str]) -> None:
        """Whether a table may be made where none is of that name: one in its place would keep that
        from being brought back which has messages that are nowhere else."""
        for partition in partitions:
            answer = self._watch.ask(partition, LogQuestion(ledgers=True))
            only = [each.ledger_id for each in answer.ledgers if each.stored == StoredAt.TABLE]
            if only and TablePlace.from_text(answer.table).table == place.table:
                raise TableError(
                    f"{partition}: its ledgers {only[0]} to {only[-1]} are in table {place.table} "
                    "only, which is not in the catalog; was it dropped or renamed? Bring it back "
                    "under that name. If it is gone for good, give them up: magnetar pipeline "
                    "detach"
                )

    def _look(self, topic: str) -> TopicTaken:
        done = TopicTaken(topic, self._options.catalog.place(topic).table)
        self._count(topic, done)
        return done

    def _count(self, topic: str, done: TopicTaken) -> None:
        try:
            table = TopicTable(self._options.catalog.place(topic), topic)
            there = table.look()
            for partition in self._watch.partitions(topic):
                taken = table.taken(partition) if there else TakenUpTo()
                answer = self._watch.ask(partition, LogQuestion(ledgers=True))
                for each in answer.ledgers:
                    _count_ledger(done, each, taken)
        except MagnetarError as error:
            done.errors.append(str(error))

    def _prepare(self, table: TopicTable, topic: str) -> str | None:
        """Make the table, or widen it; with which schema its values are read."""
        found = SchemaClient(self._client).latest(topic) if self._options.typed else None
        reader = None if found is None else ReaderSchema(topic, found.version, found.schema)
        try:
            value = None if reader is None else to_arrow_type(reader.type, timezone="UTC")
        except InvalidSchemaError as error:
            warn(f"{topic}: values stay bytes in its table: {error}")
            reader = value = None
        text = None if reader is None else reader.to_text()
        table.make(value, text, self._options.by)
        known = table.reader_text
        if known is None or text is None or known == text:
            return known
        behind = [each for each in self._watch.partitions(topic) if table.side_ahead(each)]
        if not behind and not table.widen(value, text):
            warn(
                f"{topic}: its newest schema does not go with the columns that its table has; "
                "values are read by the schema before it, and others go to the side table"
            )
        return table.reader_text

    # -- one partition --------------------------------------------------------------------------

    def _take_partition(
        self,
        table: TopicTable,
        partition: str,
        reader: str | None,
        done: TopicTaken,
        stop: Callable[[], bool],
    ) -> None:
        created_ms = self._watch.ask(partition).extent.created_ms
        self._check_same(table, partition, created_ms)
        port = PartitionPort(
            self._options, self._watch, table, partition, created_ms, reader, self._write
        )

        def took(written: Sequence[WrittenLedger]) -> None:
            _add(done, written)
            for each in written:
                if each.lost:
                    self._lost(partition, each)

        at_once(take_partition(port, partition, stop, took))

    def _check_same(self, table: TopicTable, partition: str, created_ms: int) -> None:
        """Whether the table is of this log. What was not taken of a topic that was deleted and made
        anew is lost, and messages of both would be in one table without a word."""
        taken = table.taken(partition)
        if not made_anew(taken, created_ms):
            return
        why = (
            "the topic was deleted and made anew, or is another cluster's; of the former one the "
            f"table has what was closed up to ledger {taken.ledger_id}"
        )
        if not self._options.passes_lost:
            raise TableError(
                f"{partition}: {why}. --fail-on-data-loss false goes on in this one, or choose "
                "another warehouse"
            )
        table.note(partition, replace(taken, recent=(), created_ms=created_ms))
        self._gone(partition, why)


class PartitionPort:
    """Implements ``TakingPort``: by the partition's broker and by the catalog. Blocking, all of it:
    its coroutines wait for nothing."""

    def __init__(
        self,
        options: TakingOptions,
        watch: LogWatch,
        table: TopicTable,
        partition: str,
        created_ms: int,
        reader: str | None,
        write: Write,
    ) -> None:
        self._options = options
        self._watch = watch
        self._table = table
        self._partition = partition
        self._reader = reader
        self._write = write
        self._created_ms = created_ms

    async def tell(self, taken: Sequence[TakenLedger], *, attach: bool = False) -> None:
        """See ``TakingPort``."""
        told = LogTable(where=self._table.place.to_text())
        told.taken.extend(TakenMessage(**each._asdict()) for each in taken)
        if attach and self._options.kept_ms is not None:
            told.kept_ms = self._options.kept_ms
        if attach and self._options.kept_bytes is not None:
            told.kept_bytes = self._options.kept_bytes
        self._watch.ask(self._partition, LogQuestion(table=told))

    async def ask(self) -> Sequence[LedgerFacts]:
        """See ``TakingPort``."""
        answer = self._watch.ask(self._partition, LogQuestion(ledgers=True))
        if answer.extent.created_ms != self._created_ms:
            raise TableError(f"{self._partition}: the topic was made anew; run the job again")
        return answer.ledgers

    async def write(self, ledgers: Sequence[LedgerFacts]) -> Sequence[WrittenLedger]:
        """See ``TakingPort``."""
        return self._write(self._tasks(ledgers))

    async def taken(self, *, side: bool) -> TakenUpTo:
        """See ``TakingPort``."""
        return replace(self._table.taken(self._partition, side=side), created_ms=self._created_ms)

    async def commit(
        self, commit: TableCommit, written: Sequence[WrittenLedger], *, side: bool
    ) -> None:
        """See ``TakingPort``."""
        files = {each.taken.ledger_id: each.side if side else each.main for each in written}
        self._table.commit(commit, files, side=side)

    async def check_has(self, ledger: LedgerFacts) -> None:
        """See ``TakingPort``."""
        self._table.check_has(self._partition, ledger)

    async def look(self) -> None:
        """See ``TakingPort``."""
        self._table.look()

    def _tasks(self, ledgers: Sequence[LedgerFacts]) -> list[LedgerTask]:
        ids = [each.ledger_id for each in ledgers]
        told = self._watch.ask(self._partition, LogQuestion(stored_ledgers=ids))
        missing = [ledger_id for ledger_id in ids if ledger_id not in told.stored_ledgers]
        if missing or not told.bookies:
            raise TableError(
                f"{self._partition}: its broker does not tell where ledger {(missing or ids)[0]} "
                "lies; it was deleted meanwhile, or the broker is of an older release"
            )
        options = self._options
        return [
            LedgerTask(
                options.service_url,
                options.timeout_s,
                self._partition,
                self._created_ms,
                each.ledger_id,
                each.entries,
                each.stored_bytes,
                told.stored_ledgers[each.ledger_id],
                told.bookies,
                self._table.place,
                self._reader,
                each.messages,
                options.passes_lost,
            )
            for each in ledgers
        ]


def _count_ledger(done: TopicTaken, ledger: LedgerFacts, taken: TakenUpTo) -> None:
    if not ledger.closed:
        done.open_ledgers += 1
        done.open_bytes += ledger.stored_bytes
    elif ledger.ledger_id > taken.ledger_id:
        done.waiting_ledgers += 1
        done.waiting_bytes += ledger.stored_bytes
    else:
        done.in_table += 1
        done.only_in_table += ledger.stored == StoredAt.TABLE


def _add(done: TopicTaken, written: Sequence[WrittenLedger]) -> None:
    for each in written:
        done.ledgers += 1
        done.stored_bytes += each.stored_bytes
        done.file_bytes += each.file_bytes
        done.rows += each.rows
        done.unfit += each.unfit
        done.lost_entries += sum(one.last - one.first + 1 for one in each.lost)
        done.lost_messages += each.lost_messages
