"""A ledger as it lies in a table: which parts of which files hold its entries, and reading them.

A part is a row group of a file: the least that is read. ``pipeline/tables`` puts one ledger into
each; of files that another engine has rewritten, parts that may hold the ledger are read whole.

Blocking. Raises what pyarrow and pyiceberg raise.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from magnetar.tables.rebuilding import COLUMNS

if TYPE_CHECKING:
    from pyiceberg.io import FileIO
    from pyiceberg.table import Table

FILES_OPEN_MAX: Final = 16


class FilePart(NamedTuple):
    """A row group: whose entries from ``first`` to ``last`` may be those of the ledger."""

    path: str
    group: int
    first: int
    last: int
    rows: int


def parts_of(table: Table, partition: int, ledger_id: int, entries: int) -> list[FilePart]:
    """The parts of a table's current snapshot that may hold the ledger's rows."""
    from pyiceberg.expressions import And, EqualTo

    chosen = And(
        EqualTo("ledger_id", ledger_id),  # type: ignore[call-arg,arg-type]
        EqualTo("partition", partition),  # type: ignore[call-arg,arg-type]
    )
    found: list[FilePart] = []
    for task in table.scan(row_filter=chosen, selected_fields=COLUMNS).plan_files():
        if task.delete_files:
            raise pa.ArrowInvalid(
                f"file {task.file.file_path} has rows that are deleted beside it (merge on read), "
                "which entries are not read back from; rewrite the table's files"
            )
        with open_parquet(table.io, task.file.file_path) as file:
            found += _parts(task.file.file_path, file.metadata, ledger_id, entries)
    return found


def open_parquet(io: FileIO, path: str) -> pq.ParquetFile:
    return pq.ParquetFile(io.new_input(path).open(seekable=True), pre_buffer=True)


def _parts(path: str, metadata: Any, ledger_id: int, entries: int) -> Iterator[FilePart]:
    names = [metadata.schema.column(n).path for n in range(metadata.num_columns)]
    ledgers, ids = names.index("ledger_id"), names.index("entry_id")
    for group in range(metadata.num_row_groups):
        told = metadata.row_group(group)
        of_ledger, of_entry = told.column(ledgers).statistics, told.column(ids).statistics
        if not (of_ledger and of_entry and of_ledger.has_min_max and of_entry.has_min_max):
            yield FilePart(path, group, 0, entries - 1, told.num_rows)
        elif of_ledger.min <= ledger_id <= of_ledger.max:
            alone = of_ledger.min == of_ledger.max
            first, last = (of_entry.min, of_entry.max) if alone else (0, entries - 1)
            yield FilePart(path, group, first, last, told.num_rows)


def window(parts: Sequence[FilePart], first: int, entries: int) -> tuple[list[FilePart], int]:
    """The parts to read for the entry ``first``, and where what they hold whole ends: entries from
    ``first`` up to there are in no other part."""
    ahead = sorted(part for part in parts if part.last >= first)
    if not ahead:
        return [], entries
    stop = min(part.last for part in ahead) + 1
    chosen = [part for part in ahead if part.first < stop]
    later = [part.first for part in ahead if part.first >= stop]
    if all(part.last < stop for part in chosen):  # nothing between here and what comes next
        stop = max(stop, min(later, default=entries))
    return chosen, stop


def read_parts(io: FileIO, parts: Sequence[FilePart], ledger_id: int) -> pa.Table:
    """The rows of the ledger in these parts, with ``COLUMNS``."""
    found = []
    for path in dict.fromkeys(part.path for part in parts):
        groups = [part.group for part in parts if part.path == path]
        with open_parquet(io, path) as file:
            rows = file.read_row_groups(groups, columns=list(COLUMNS))
        found.append(rows.filter(pc.field("ledger_id") == ledger_id).select(COLUMNS))
    return pa.concat_tables(found, promote_options="permissive")
