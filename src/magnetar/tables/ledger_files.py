"""A ledger as it lies in a table: finding the parts of files that hold its entries, and reading
them.

Blocking. Raises what pyarrow and pyiceberg raise.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from magnetar.tables.parts import FilePart, IdSpan, part_of_ledger
from magnetar.tables.rebuilding import COLUMNS

if TYPE_CHECKING:
    from pyiceberg.io import FileIO
    from pyiceberg.table import Table

FILES_OPEN_MAX: Final = 16


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
            continue
        found = IdSpan(of_ledger.min, of_ledger.max), IdSpan(of_entry.min, of_entry.max)
        part = part_of_ledger(path, group, told.num_rows, *found, ledger_id, entries)
        if part is not None:
            yield part


def read_parts(io: FileIO, parts: Sequence[FilePart], ledger_id: int) -> pa.Table:
    """The rows of the ledger in these parts, with ``COLUMNS``."""
    found = []
    for path in dict.fromkeys(part.path for part in parts):
        groups = [part.group for part in parts if part.path == path]
        with open_parquet(io, path) as file:
            rows = file.read_row_groups(groups, columns=list(COLUMNS))
        found.append(rows.filter(pc.field("ledger_id") == ledger_id).select(COLUMNS))
    return pa.concat_tables(found, promote_options="permissive")
