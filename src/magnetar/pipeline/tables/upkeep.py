"""Upkeep of a topic's table: snapshots expire, small files become larger ones, and what no snapshot
names is removed.

Rules:

* A file is removed after the commit that lets go of it, and never one that a snapshot names.
  Snapshots that tags and branches name do not expire: somebody wants them.
* A file that no snapshot names may be one that a job is about to commit: it is removed when it is
  older than any job's round (``ORPHAN_AGE_MS``). One from before the table was made is of another
  that had its name, and may be brought back.
* Whoever commits at the same time wins: what was rewritten is thrown away, and is done next time.
* Rows keep their entries together, one ledger to a row group: consumers are served from the files.

Why: docs/adr/0127-tables-are-kept-small-and-erased-from.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlparse

import numpy as np
import pyarrow as pa
from pyarrow.fs import FileInfo, FileSelector
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.io.pyarrow import ArrowScan, PyArrowFileIO
from pyiceberg.manifest import DataFile
from pyiceberg.table import FileScanTask, Table

from magnetar.model.errors import TableError
from magnetar.pipeline.tables.files import FULL, FileWriter
from magnetar.pipeline.tables.small_files import SizedFile, SmallFilesRule
from magnetar.pipeline.tables.topic_table import MADE, TopicTable
from magnetar.tables.ledger_files import open_parquet
from magnetar.tables.warehouse import table_errors

ORPHAN_AGE_MS: Final = 24 * 3_600_000
ROW_BYTES_MAX: Final = 1 << 30
"""Of rows that are rewritten together."""
ROW_BYTES_LEAST: Final = 128
"""Of a row, whatever is in it."""
ORDER: Final = [
    (name, "ascending") for name in ("partition", "ledger_id", "entry_id", "batch_index")
]


@dataclass
class TableUpkeep:
    """What upkeep has done to a table."""

    snapshots_expired: int = 0
    files_removed: int = 0
    files_rewritten: int = 0
    files_written: int = 0


def keep_up(topic_table: TopicTable, now_ms: int, expire_ms: int) -> TableUpkeep:
    """Raises ``TableError``."""
    kept = TableUpkeep()
    if topic_table.look():
        for table in (topic_table.main, topic_table.side):
            if table is not None:
                compact(table, kept)
                expire(table, now_ms - expire_ms, kept)
                remove_orphans(table, now_ms, kept)
    return kept


SMALL_FILES: Final = SmallFilesRule()


def compact(table: Table, kept: TableUpkeep, rule: SmallFilesRule = SMALL_FILES) -> None:
    """Small files of a day become one. Raises ``TableError``."""
    what = f"rewriting files of table {'.'.join(table.name())}"
    with table_errors(what):
        groups = list(_groups(table, rule))
    for tasks in groups:
        with table_errors(what):
            new = rewritten(table, read_files(table, tasks))
            replace_files(table, [task.file for task in tasks], new)
            table.refresh()
        kept.files_rewritten += len(tasks)
        kept.files_written += len(new)


def _groups(table: Table, rule: SmallFilesRule) -> Iterator[list[FileScanTask]]:
    tasks = [task for task in table.scan().plan_files() if not task.delete_files]
    files = [_sized(number, task.file) for number, task in enumerate(tasks)]
    for group in rule.groups(files):
        yield from _in_memory(table, [tasks[each.number] for each in group])


def _sized(number: int, file: DataFile) -> SizedFile:
    full = file.file_path.endswith(FULL)
    return SizedFile(number, repr(file.partition), file.file_size_in_bytes, full)


def _in_memory(table: Table, tasks: Sequence[FileScanTask]) -> Iterator[list[FileScanTask]]:
    """Those of a group that are rewritten together: their rows are in memory meanwhile, and are
    many times as large as their files, perhaps."""
    part: list[FileScanTask] = []
    size = 0
    for task in tasks:
        rows = _row_bytes(table, task.file)
        if len(part) > 1 and size + rows > ROW_BYTES_MAX:
            yield part
            part, size = [], 0
        part.append(task)
        size += rows
    if len(part) > 1:  # one alone would be written again for nothing
        yield part


def _row_bytes(table: Table, file: DataFile) -> int:
    """About, and rather too many."""
    with open_parquet(table.io, file.file_path) as found:
        told = found.metadata
        groups = (told.row_group(number) for number in range(told.num_row_groups))
        stored = sum(each.total_byte_size for each in groups)
        return int(max(stored, told.num_rows * ROW_BYTES_LEAST))


def read_files(table: Table, tasks: Sequence[FileScanTask]) -> pa.Table:
    """All rows of these files in today's columns, entries and ledgers together."""
    scan = ArrowScan(table.metadata, table.io, table.schema(), AlwaysTrue())
    return scan.to_table(tasks).sort_by(ORDER).combine_chunks()


def rewritten(table: Table, rows: pa.Table) -> list[DataFile]:
    """New files with these rows, which are in order; in no snapshot yet."""
    writer = FileWriter(table, rows.nbytes)
    if rows.num_rows:
        ids = rows["ledger_id"].to_numpy()
        changes = (np.flatnonzero(np.diff(ids)) + 1).tolist()
        for first, stop in zip([0, *changes], [*changes, len(ids)], strict=True):
            for part in _whole_entries(rows.slice(first, stop - first)):
                writer.write(part)
            writer.end_ledger()
    return [file.data_file() for file in writer.close()]


ENTRY_ROWS: Final = 20_000


def _whole_entries(ledger: pa.Table) -> Iterator[pa.Table]:
    """About so many rows at a time, no entry in two."""
    ids = ledger["entry_id"].to_numpy()
    first = 0
    while first < len(ids):
        stop = min(len(ids), first + ENTRY_ROWS)
        if stop < len(ids):
            stop = int(np.searchsorted(ids, ids[stop - 1], side="right"))
        yield ledger.slice(first, stop - first)
        first = stop


def replace_files(table: Table, old: Sequence[DataFile], new: Sequence[DataFile]) -> None:
    """In one commit."""
    with table.transaction() as change, change.update_snapshot().overwrite() as files:
        for each in old:
            files.delete_data_file(each)
        for each in new:
            files.append_data_file(each)


def expire(table: Table, before_ms: int, kept: TableUpkeep) -> None:
    """Snapshots of before that time go, but for the last and those that somebody has given a name,
    and the files that only they name."""
    what = f"expiring snapshots of table {'.'.join(table.name())}"
    with table_errors(what):
        stay = {each.snapshot_id for each in table.metadata.refs.values()}
        stay.add(table.metadata.current_snapshot_id or 0)
        old = [
            each.snapshot_id
            for each in table.metadata.snapshots
            if each.timestamp_ms < before_ms and each.snapshot_id not in stay
        ]
        if not old:
            return
        before = named_files(table)
        table.maintenance.expire_snapshots().by_ids(old).commit()
        table.refresh()
        kept.snapshots_expired += len(old)
        for path in sorted(before - named_files(table)):
            with suppress(FileNotFoundError):
                table.io.delete(path)
            kept.files_removed += 1


def names_of_others(table: Table) -> list[str]:
    """The tags and branches that keep another snapshot than the last."""
    current, refs = table.metadata.current_snapshot_id, table.metadata.refs
    return sorted(name for name, ref in refs.items() if ref.snapshot_id != current)


def named_files(table: Table) -> set[str]:
    """Every file that a snapshot of the table names: data, manifests, lists of them."""
    found: set[str] = set()
    for snapshot in table.metadata.snapshots:
        found.add(snapshot.manifest_list)
        for manifest in snapshot.manifests(table.io):
            if manifest.manifest_path not in found:
                found.add(manifest.manifest_path)
                for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True):
                    found.add(entry.data_file.file_path)
    return found


def remove_orphans(
    table: Table, now_ms: int, kept: TableUpkeep, age_ms: int = ORPHAN_AGE_MS
) -> None:
    """Files that nothing of the table names: of jobs that were killed, or came second."""
    io = table.io
    if not isinstance(io, PyArrowFileIO):
        raise TableError(
            f"files of {'.'.join(table.name())} are not listed through {type(io).__name__}"
        )
    location = urlparse(table.location())
    with table_errors(f"listing the files of table {'.'.join(table.name())}"):
        files = io.fs_by_scheme(location.scheme or "file", location.netloc)
        named = {_bare(path) for path in named_files(table) | named_metadata(table)}
        ages = _made_ms(table), now_ms - age_ms
        for name in ("data", "metadata"):
            folder = f"{location.netloc}{location.path}/{name}"
            chosen = FileSelector(folder, allow_not_found=True, recursive=True)
            for each in files.get_file_info(chosen):
                if _left(each, *ages) and _bare(each.path) not in named:
                    files.delete_file(each.path)
                    kept.files_removed += 1


ENDS: Final = (".parquet", ".avro", ".metadata.json")
"""Of what a job writes; what others put there is theirs."""


def _left(file: FileInfo, made_ms: int, before_ms: int) -> bool:
    if not file.is_file or file.mtime_ns is None or not file.path.endswith(ENDS):
        return False
    return bool(made_ms <= file.mtime_ns // 10**6 < before_ms)


def _made_ms(table: Table) -> int:
    """0: a table of an earlier release."""
    text = table.properties.get(MADE, "")
    return int(text) if text.isdecimal() else 0


def named_metadata(table: Table) -> set[str]:
    """The files that say what the table is, and was."""
    former = {each.metadata_file for each in table.metadata.metadata_log}
    return former | {table.metadata_location}


def _bare(path: str) -> str:
    parts = urlparse(path)
    return f"{parts.netloc}{parts.path}".lstrip("/")
