"""A topic's table: made, and ledgers put into it, each exactly once.

Which ledgers are in the table is said by the table itself (``taking_rules``).

Rules:

* A commit stands or falls as a whole, and only on the snapshot that was read before
  (``COMMITS_ONCE``): pyiceberg would else put a commit that lost onto what the winner wrote, and
  two jobs would take the same ledger.
* The side table has a property of its own; which one is committed first: ``partition_taking``.
* A file is committed when this process finds it, as large as it was written: a task on another
  machine may have written it to a disk of that machine alone, and bookies delete what is in the
  table.
"""

from __future__ import annotations

import re
import time
import zlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.exceptions import (
    CommitFailedException,
    NamespaceAlreadyExistsError,
    TableAlreadyExistsError,
)
from pyiceberg.expressions import And, EqualTo
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.table import Table
from pyiceberg.transforms import DayTransform, HourTransform, MonthTransform

from magnetar.log.seam import TakenLedger
from magnetar.model.errors import ConfigError, TableError
from magnetar.pipeline.losses import LedgerFacts
from magnetar.pipeline.reading.passing_ledgers import LostEntries
from magnetar.pipeline.tables.files import WrittenFile
from magnetar.pipeline.tables.taking_rules import TableCommit, TakenUpTo, taken_up_to
from magnetar.pipeline.topic_names import partition_number
from magnetar.pipeline.typed.inference import ReaderSchema
from magnetar.tables.columns import main_schema, side_schema
from magnetar.tables.layout import TAKEN, VALUE, WHY, TablePlace
from magnetar.tables.warehouse import CATALOGS, table_errors

TOPIC: Final = "magnetar.topic"
READER: Final = "magnetar.schema"
MADE: Final = "magnetar.made-ms"
"""When a table was made: what lies in its folder since before is of one that had its name."""
COMMITS_ONCE: Final = {"commit.retry.num-retries": "0"}
PROPERTIES: Final = COMMITS_ONCE | {
    "write.metadata.metrics.column.frame": "none",
    "write.metadata.metrics.column.payload": "none",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "20",
}
_TRANSFORMS: Final = {"day": DayTransform, "hour": HourTransform, "month": MonthTransform}


class WrittenLedger(NamedTuple):
    """A ledger whose files are written and not in the table yet. ``lost``: entries that are in no
    file, and ``lost_messages`` of them, 0 if nobody knows. Picklable."""

    taken: TakenLedger
    main: Sequence[WrittenFile]
    side: Sequence[WrittenFile]
    stored_bytes: int
    rows: int
    unfit: int
    lost: Sequence[LostEntries] = ()
    lost_messages: int = 0

    @property
    def file_bytes(self) -> int:
        return sum(file.byte_count for file in (*self.main, *self.side))


_UP_TO: Final = re.compile(r"lost, up to entry (\d+):")


def why_lost(lost: LostEntries) -> str:
    """What the row of the side table says that entries have which were passed over."""
    return f"lost, up to entry {lost.last}: {lost.why}"


def table_name(topic: str) -> str:
    """``tenant_namespace.topic`` of a full topic name. Other letters than those of SQL's names
    become ``_``, and then the name ends with a number, so that two topics never have one table."""
    tenant, namespace, local = topic.partition("://")[2].split("/", 2)
    whole = f"{tenant}_{namespace}", local
    found = [re.sub(r"[^A-Za-z0-9_]", "_", part) for part in whole]
    if tuple(found) != whole or "_" in tenant + namespace:
        found[1] += f"_{zlib.crc32(topic.encode()):08x}"
    return ".".join(found)


def is_text_of_bytes(there: pa.DataType, new: pa.DataType) -> bool:
    """Whether bytes, anywhere in ``new``, would go into a column of text."""
    if pa.types.is_struct(there) and pa.types.is_struct(new):
        known = {each.name: each.type for each in there}
        both = (each for each in new if each.name in known)
        return any(is_text_of_bytes(known[each.name], each.type) for each in both)
    if is_list(there) and is_list(new):
        return is_text_of_bytes(there.value_type, new.value_type)
    if pa.types.is_map(there) and pa.types.is_map(new):
        return is_text_of_bytes(there.item_type, new.item_type)
    text = pa.types.is_string(there) or pa.types.is_large_string(there)
    return bool(text and pa.types.is_binary(new))


def is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))


class TopicTable:
    """The table of one topic, and its side table. Blocking; raises ``TableError``."""

    def __init__(self, place: TablePlace, topic: str) -> None:
        self.place = place
        self._topic = topic
        self._main: Table | None = None
        self._side: Table | None = None

    # -- what there is --------------------------------------------------------------------------

    def look(self) -> bool:
        """Read the catalog; whether there is a table."""
        self._main = self._found(self.place.table)
        self._side = self._found(self.place.side)
        return self._main is not None

    def _found(self, name: str) -> Table | None:
        """The table of that name, if there is one. It may be another topic's: one that is called
        ``flights__unfit`` has the name of the side table of ``flights``. Raises ``TableError``."""
        found = CATALOGS.table(self.place, name)
        of = self._topic if found is None else found.properties.get(TOPIC)
        if of != self._topic:
            raise TableError(
                f"table {name} is that of {of or 'no topic'}, not of {self._topic}; choose "
                "another warehouse, or rename the table"
            )
        return found

    @property
    def main(self) -> Table:
        assert self._main is not None
        return self._main

    @property
    def side(self) -> Table | None:
        return self._side

    def taken(self, partition: str, *, side: bool = False) -> TakenUpTo:
        """What the table has, as it was read last, or its side table, which is made if there is
        none."""
        table = self.make_side() if side else self._main
        return taken_up_to(None if table is None else table.properties, partition)

    def note(self, partition: str, taken: TakenUpTo) -> None:
        """Say it, and add nothing. Raises ``TableError``."""
        with (
            table_errors(f"properties of table {self.place.table}"),
            self.main.transaction() as change,
        ):
            change.set_properties({TAKEN + partition: taken.to_text()})
        self.look()

    @property
    def reader_text(self) -> str | None:
        """The schema by which values are read, as ``ReaderSchema.to_text`` says it. Raises
        ``TableError`` where it says none."""
        text = self.main.properties.get(READER)
        if text is None:
            return None
        try:
            ReaderSchema.from_text(text)
        except (ValueError, KeyError, TypeError) as error:
            raise TableError(
                f"table {self.place.table}: property {READER} says {text[:80]!r}, which is no "
                "schema; put back what it was, which older metadata of the table have, or run the "
                "release that wrote it"
            ) from error
        return text

    def check_has(self, partition: str, ledger: LedgerFacts) -> None:
        """Whether all entries of the ledger are in the tables, as they were read last, and were
        published when its log says: another cluster's ledger may have the same id. Raises
        ``TableError``."""
        with table_errors(f"looking for ledger {ledger.ledger_id} in table {self.place.table}"):
            entries = {
                entry for table in self._tables for entry in _entries(table, partition, ledger)
            }
            times = _times(self.main, partition, ledger)
        wrong = ""
        if len(entries) != ledger.entries:
            wrong = f"{len(entries)} of its {ledger.entries} entries are there"
        elif times is None:
            wrong = "none of its rows says when it was published"
        elif times[0] < ledger.least_ms or 0 < ledger.greatest_ms < times[1]:
            wrong = "its rows were published at other times than its log says"
        if wrong:
            raise TableError(
                f"{partition}: table {self.place.table} says that it has ledger "
                f"{ledger.ledger_id}, which its broker does not know of, and {wrong}; nothing is "
                "taken. Is it the table of this cluster's topic? Choose another warehouse, or make "
                "the table anew"
            )

    @property
    def _tables(self) -> list[Table]:
        return [self.main] if self._side is None else [self.main, self._side]

    # -- making ---------------------------------------------------------------------------------

    def make(self, value: pa.DataType | None, reader_text: str | None, by: str) -> None:
        """Make the table if there is none; by which span of publish times it is partitioned counts
        then only."""
        if self.look():
            return
        properties = PROPERTIES | {TOPIC: self._topic}
        if reader_text is not None:
            properties[READER] = reader_text
        self._create(self.place.table, main_schema(value), properties, by)
        self.look()

    def make_side(self) -> Table:
        if self._side is None:
            self._side = self._found(self.place.side)  # a task may have made it
        if self._side is None:
            self._create(self.place.side, side_schema(), PROPERTIES | {TOPIC: self._topic}, "none")
            self._side = self._found(self.place.side)
        assert self._side is not None
        return self._side

    def _create(self, name: str, schema: pa.Schema, properties: Mapping[str, str], by: str) -> None:
        catalog = CATALOGS.get(self.place)
        properties = {**properties, MADE: str(time.time_ns() // 10**6)}
        with table_errors(f"making table {name}"):
            with suppress(NamespaceAlreadyExistsError):
                catalog.create_namespace(name.rpartition(".")[0])
            try:
                with catalog.create_table_transaction(
                    name, schema, properties=properties
                ) as change:
                    if by in _TRANSFORMS:
                        with change.update_spec() as spec:
                            spec.add_field("publish_time", _TRANSFORMS[by](), f"published_{by}")
            except (TableAlreadyExistsError, CommitFailedException):
                if not catalog.table_exists(name):  # else somebody else was faster
                    raise

    def widen(self, value: pa.DataType, reader_text: str) -> bool:
        """Values are of a newer schema: take its columns, if those that are there can stay."""
        main = self.main
        there = schema_to_pyarrow(main.schema())
        if VALUE in there.names and is_text_of_bytes(there.field(VALUE).type, value):
            return False  # Iceberg lets it pass; a file with such values cannot be written
        try:
            with table_errors(f"columns of table {self.place.table}"), main.transaction() as change:
                with change.update_schema() as columns:
                    columns.union_by_name(pa.schema([pa.field(VALUE, value)]))
                change.set_properties({READER: reader_text})
        except (TableError, ValueError, TypeError):
            self.look()
            return False
        self.look()
        return True

    # -- committing -----------------------------------------------------------------------------

    def commit(
        self, commit: TableCommit, files: Mapping[int, Sequence[WrittenFile]], *, side: bool
    ) -> None:
        """To the main or the side table. ``files``: by ledger. Raises ``TableError`` when another
        job was faster, or the catalog does not answer; then it is not known whether they are in."""
        table = self.make_side() if side else self.main
        if COMMITS_ONCE.items() - table.properties.items():
            raise ConfigError(
                f"table {'.'.join(table.name())}: property commit.retry.num-retries is not 0, so "
                "two jobs might take the same ledger; set it to 0"
            )
        for ledger_id in commit.ledger_ids:
            for file in files[ledger_id]:
                self._check_there(table, file)
        with (
            table_errors(f"commit to table {'.'.join(table.name())}"),
            table.transaction() as change,
        ):
            change.set_properties(dict(commit.properties))
            with change.update_snapshot().fast_append() as append:
                for ledger_id in commit.ledger_ids:
                    for file in files[ledger_id]:
                        append.append_data_file(file.data_file())

    @staticmethod
    def _check_there(table: Table, file: WrittenFile) -> None:
        try:
            found = len(table.io.new_input(file.path))
        except FileNotFoundError:
            found = -1
        except OSError as error:
            raise TableError(f"file {file.path} cannot be looked at: {error}") from error
        if found != file.byte_count:
            has = "is not there" if found < 0 else f"has {found} bytes"
            raise TableError(
                f"file {file.path}, which a task wrote with {file.byte_count} bytes, {has}; "
                "nothing is taken. Executors of other machines need a warehouse that they share "
                "with this one and the brokers: a folder on all of them, or s3://BUCKET/PATH"
            )

    def side_ahead(self, partition: str) -> bool:
        """A job ended between its two commits: what it put into the side table is not to be
        decided otherwise now."""
        side = None if self._side is None else self._side.properties
        return taken_up_to(side, partition).ledger_id > self.taken(partition).ledger_id


def _rows_of(table: Table, partition: str, ledger: LedgerFacts, *columns: str) -> pa.Table:
    chosen = And(
        EqualTo("ledger_id", ledger.ledger_id),  # type: ignore[call-arg,arg-type]
        EqualTo("partition", partition_number(partition)),  # type: ignore[call-arg,arg-type]
    )
    return table.scan(row_filter=chosen, selected_fields=columns).to_arrow()


def _entries(table: Table, partition: str, ledger: LedgerFacts) -> set[int]:
    """The ids of the ledger's entries of which the table has something, or that they are lost."""
    why = [WHY] if WHY in table.schema().column_names else []
    rows = _rows_of(table, partition, ledger, "entry_id", *why)
    found = set(rows["entry_id"].unique().to_pylist())
    for row in rows.to_pylist() if why else ():
        lost = _UP_TO.match(row[WHY] or "")
        found.update(range(row["entry_id"], int(lost[1]) + 1) if lost else ())
    return found


def _times(table: Table, partition: str, ledger: LedgerFacts) -> tuple[int, int] | None:
    """The least and the greatest publish time of its rows, in milliseconds."""
    times = pc.min_max(_rows_of(table, partition, ledger, "publish_time")["publish_time"])
    least, greatest = (times[name].cast(pa.int64()).as_py() for name in ("min", "max"))
    return None if least is None else (least // 1000, greatest // 1000)
